"""The bundled model: its data are reproducible and split, its tokenizer loses nothing, and it remembers what it is told."""

import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from random import Random

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvcache import bundled
from kvcache.bundled import (
    attend,
    average,
    batches,
    beside,
    chats,
    chatter,
    checks,
    chores,
    compared,
    dialogues,
    doubles,
    drills,
    evaluate,
    exchanges,
    facts,
    family,
    games,
    grammar,
    grow,
    hand_written,
    lists,
    marks,
    mentions,
    mimetic,
    muon,
    overlap,
    own_lists,
    passages,
    phrases,
    reactions,
    records,
    remarks,
    repertoire,
    scenes,
    separation,
    situations,
    stories,
    sums,
    talks,
    train,
    trees,
    values,
    ways,
    words,
)
from kvcache.bundled import tokenizer as tokenizer_module

FOLDER = bundled.path()
SMALL = bundled.path("kvlab-granite-5m")  # with the small vocabulary


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def shipped():
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


# Data


def test_the_same_seed_makes_the_same_conversation():
    assert dialogues.conversation(3, 400) == dialogues.conversation(3, 400)
    assert dialogues.conversation(3, 400) != dialogues.conversation(4, 400)


MADE = "from kvcache.bundled import dialogues, drills, trees; print([make(n, 600) for n in range(6) for make in (dialogues.conversation, drills.told_and_asked, drills.talked_over, drills.told_amid_talk, trees.tree)])"


def test_two_processes_make_the_same_data_of_a_seed():
    """Python orders sets of strings anew in each process: nothing that is drawn from may hang on that order."""
    texts = [subprocess.run([sys.executable, "-c", MADE], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout for seed in ("1", "2")]
    assert len(texts[0]) > 10_000 and texts[0] == texts[1]


def test_users_and_assistant_take_turns():
    for seed in range(20):
        roles = [m["role"] for m in dialogues.conversation(seed, 300) if m["role"] != "system"]
        assert roles[::2] == ["user"] * len(roles[::2]) and roles[1::2] == ["assistant"] * len(roles[1::2])


def test_training_never_tells_held_out_values_and_tests_tell_nothing_else():
    rng = Random(0)
    for kind in set(values.MAKERS) - values.CLOSED:
        assert not any(values.held_out(values.make(rng, kind)) for _ in range(30))
        assert all(values.held_out(values.make(rng, kind, held=True)) for _ in range(3))


def test_questions_for_the_tests_have_values_training_never_tells():
    seen = {fact.value for seed in range(300) for fact in [dialogues.new_fact(Random(seed), set())]}
    asked = {dialogues.question_at(seed, 64)[1].value for seed in range(60)}
    assert not seen & asked


def test_ways_of_speaking_are_split():
    rng = Random(0)
    tells = phrases.KINDS["name"].tells
    trained = {phrases.choose(rng, tells) for _ in range(2000)}
    held = {phrases.choose(rng, tells, held=True) for _ in range(50)}
    assert len(trained) > 150 and not trained & held


def test_every_way_of_talk_reads_whole_and_only_tells_have_the_value():
    rng = Random(0)
    for tells, questions in ways.TALK.values():
        for template in tells + questions:
            for _ in range(5):
                text = grammar.expand(rng, template)
                assert not set(text) & set("{}|") and (text.count("$v") == 1) == (template in tells) and " ," not in text, text


def test_every_scene_reads_whole_and_only_tells_have_the_value():
    rng, every = Random(0), (*scenes.scenes(held=False), *scenes.scenes(held=True))
    assert len(every) > 600 and len({scene.clause for scene in every}) > 0.9 * len(every)  # some are written twice, in other words
    for scene in every:
        for template in scene.tells + scene.questions:
            text = grammar.expand(rng, template)
            assert text.isascii() and not set(text) & set("{}|") and (text.count("$v") == 1) == (template in scene.tells), (scene.clause, text)
        assert len(scene.tells) >= 4 and len(scene.questions) >= 5 and not {"I'm", "mine"} & set(scene.clause.split()), scene.clause


def test_scenes_and_their_listed_values_are_split():
    trained, held = ({scene.clause for scene in scenes.scenes(side)} for side in (False, True))
    assert not trained & held and 0.05 < len(held) / len(trained) < 0.2
    rng = Random(0)
    told = {value for value, kind in (scenes.make(rng) for _ in range(2000)) if kind.values not in values.CLOSED}
    assert not any(values.held_out(value) for value in told)
    assert {rule.clauses[0] for _, rule in (scenes.make(rng) for _ in range(500))} <= trained


@pytest.mark.parametrize(("one", "other", "apart"), [
    ("when the meeting is", "where the meeting is", True), ("when the meeting is", "what time the meeting starts", False), ("where I parked", "which level I parked on", False),
    ("what my sister drives", "what I drive", True), ("who chairs the meeting", "what the meeting is about", False), ("why the train was late", "which train was late", True),
])
def test_scenes_that_share_a_word_are_told_apart_where_they_surely_ask_for_different_things(one, other, apart):
    assert scenes.differ(one, other) == scenes.differ(other, one) == apart


def test_related_scenes_share_a_word_and_stay_on_their_side():
    for held in (False, True):
        every = scenes.scenes(held)
        assert sum(bool(scenes.related(scene.clause, held)) for scene in every) > len(every) / 4
        for scene in every[::20]:
            for other in scenes.related(scene.clause, held):
                assert set(re.findall("[a-z]+", scene.clause.lower())) & set(re.findall("[a-z]+", other.clause.lower()))
                assert other.held_out == held and other.clause != scene.clause


def test_scenes_are_told_beside_related_ones():
    together = 0
    for seed in range(60):
        talk = dialogues.Conversation(Random(seed), 600)
        while talk.position < 600:
            talk.step()
        told = [fact.key for fact in talk.facts.values() if fact.open]
        together += sum(any(scene.clause in told for scene in scenes.related(key, False)) for key in told)
    assert together > 30  # 44 to 80 by seeds; none where facts are told regardless of each other


def test_rows_near_to_a_scene_are_counted():
    scene = next(s for s in scenes.scenes(held=False) if s.kind == "listed" and len(s.clause.split()) > 4)
    told, asked, value = scene.tells[0].replace("$v", "Xyzzy"), scene.questions[0], "Xyzzy"
    other = scenes.scenes(held=True)[0]
    assert overlap.overlapping([(told, asked, value)]) == 1
    assert overlap.overlapping([(told, other.questions[0], value), (other.tells[0], asked, value)]) == 0
    chats = [situation.chat for situation in situations.situations(False) if len(situation.chat) > 1]
    first, asked = next((chat[0][0][0], chat[-1][0][0]) for chat in chats if all(len(overlap._content(end[0][0])) > 2 for end in (chat[0], chat[-1])))
    assert overlap.overlapping([(first, asked, "")]) == 1


@pytest.mark.parametrize(("block", "wrong"), [("what I eat | food\n- $v", "'# clause | values'"), ("# what I eat | meals\n- $v", "'meals'"), ("# what I eat | food\n$v", "'\\$v'")])
def test_a_scene_that_is_none_is_named(block, wrong):
    with pytest.raises(ValueError, match=wrong):
        scenes.read(block)


def test_recalled_values_were_said_before():
    for seed in range(30):
        said = ""
        for message in dialogues.conversation(seed, 500):
            found = re.findall(f"{marks.RECALLED}(.*?){marks.CLOSE}", message["content"])
            assert all(value in said for value in found)
            said += marks.strip(message["content"]) + "\n"


def test_answers_and_refusals_mark_the_words_that_decide_between_them():
    replies = {m["content"] for seed in range(150) for m in dialogues.conversation(seed, 500)}
    assert any(r.startswith(f"{marks.REFUSING}You have{marks.CLOSE} not told me") for r in replies)
    assert any(re.match(f"{marks.DECISIVE}Your name{marks.CLOSE} is {marks.RECALLED}", r) for r in replies)
    assert marks.strip(marks.decisive(marks.recalled("Bo") + " it is")) == "Bo it is"


@pytest.mark.parametrize(("clause", "said"), [
    ("when the plumber comes to us", "when the plumber comes to you"), ("where I was born and my sister lives", "where you were born and your sister lives"),
    ("what I am afraid of", "what you are afraid of"), ("whose dog bit me at our gate", "whose dog bit you at your gate"), ("what your name is", ""), ("what I call you", ""),
])  # fmt: skip
def test_a_clause_is_turned_to_the_user_unless_it_speaks_of_the_assistant(clause, said):
    assert facts.turned(clause) == said


def test_a_clause_with_a_choice_of_words_is_restated_in_one_of_them():
    rule = phrases.Kind("word", ("$v",), ("what?",), ("{which|what} tent I am at",), "that", "You said $v.")
    assert facts.Fact("open", rule.clauses[0], "the blue one", rule).restated in ("which tent you are at", "what tent you are at")


def test_some_replies_say_which_open_fact_they_are_about():
    replies = [marks.strip(m["content"]) for seed in range(100) for m in dialogues.conversation(seed, 600) if m["role"] == "assistant"]
    known = {facts.turned(scene.clause) for scene in scenes.scenes(False)}
    asked, told = (re.findall(rf"^You {verb} ([^.?!]*)\.", "\n".join(replies), re.MULTILINE) for verb in ("asked", "told me"))
    assert len(asked) > 20 and len(told) > 20 and sum(clause in known for clause in asked + told) > 0.7 * len(asked + told)
    assert any(re.fullmatch(r"You asked .*\. You said .*\.", reply) for reply in replies)
    assert any(re.fullmatch(r"You asked .*\. You have not told me that\.", reply) for reply in replies)


def test_scenes_told_one_after_the_other_are_asked_for_and_say_what_was_told():
    messages = [m for seed in range(10) for m in drills.told_and_asked(seed, 500)]
    said = "\n".join(marks.strip(m["content"]) for m in messages)
    answers = [value for m in messages for value in re.findall(f"said{marks.CLOSE} {marks.RECALLED}(.*?){marks.CLOSE}", m["content"])]
    assert len(answers) > 60 and all(said.count(value) > 1 for value in answers)
    assert 0.05 < said.count("not told me") / (len(answers) + said.count("not told me")) < 0.3


def test_some_questions_ask_for_something_never_told():
    replies = [m["content"] for seed in range(150) for m in dialogues.conversation(seed, 500) if m["role"] == "assistant"]
    recalls, declines = sum(marks.RECALLED in r for r in replies), sum("not told me" in r for r in replies)
    assert 0.08 < declines / (declines + recalls) < 0.28


def test_every_chat_reads_whole_and_claims_to_remember_nothing():
    for chat in (*chats.chats(False), *chats.chats(True)):
        for messages, (first, *others) in chat:
            stock = chats.STOCK[others.pop()[1:]] if others and others[-1].startswith("=") else ()
            replies = (first, *others, *stock)
            assert all(text and text.isascii() and not set(text) & set("<>{}|$#[]") for text in (*messages, *replies)), (messages, replies)
            assert all(reply.endswith((".", "!", "?")) and not re.search(r"\b[Yy]ou( have| never)? told me\b|^You said", reply) for reply in replies), replies


def test_chats_are_split_and_told_in_order():
    held, seen = chats.chats(True), chats.chats(False)
    assert 0.06 < len(held) / len(seen) < 0.2 and not set(held) & set(seen)
    rng = Random(3)
    for chat in (chats.chat(rng) for _ in range(50)):
        assert any(len(chat) == len(turns) and all(user in messages and reply in (*replies, *chats.STOCK.get(replies[-1][1:], ())) for (user, reply), (messages, replies) in zip(chat, turns)) for turns in seen)


def test_stock_replies_come_beside_a_chats_own():
    rng = Random(4)
    told = [turn for _ in range(1000) for turn in chats.chat(rng)]
    stock = {reply for family in chats.STOCK.values() for reply in family}
    lists = [*chats.chats(False), *(situation.chat for situation in situations.situations(False))]
    assert {replies[-1][1:] for turns in lists for _, replies in turns if len(replies) > 1 and replies[-1].startswith("=")} == set(chats.STOCK)
    assert not any(reply.startswith("=") for _, reply in told)
    assert 0.2 < sum(reply in stock for _, reply in told) / len(told) < chats.STOCK_SHARE


@pytest.mark.parametrize("block", ["> hello", "< hello\n> hi", "> hello\n> hi"])
def test_a_chat_that_is_none_is_named(block):
    with pytest.raises(ValueError, match="out of place"):
        chats.read(block)


def test_every_list_of_remarks_has_a_kind_and_no_remark_has_two():
    assert {file.stem for file in remarks.FOLDER.glob("*.txt")} == set(remarks.KINDS)
    of = {kind: {line.lower() for held in (False, True) for line in remarks.lines(kind, held)} for kind in remarks.KINDS}
    assert sum(map(len, of.values())) == len(set().union(*of.values())) > 6000
    assert all(text and text.isascii() and not set(text.removeprefix("* ")) & set("<>{}|$#[]*") for lines in of.values() for text in lines)
    for kind in remarks.KINDS:
        held, seen = remarks.lines(kind, True), remarks.lines(kind, False)
        assert held and not set(held) & set(seen) and len(held) < len(seen) / 3


def test_remarks_get_replies_of_their_kind():
    rng = Random(5)
    for kind in remarks.KINDS:
        for _ in range(200):
            text, reply = remarks.one(rng, kind)
            assert text and not re.search(r"\$|\*|  |^ | $", text), text
            assert marks.strip(reply) in remarks.fitting(kind), (text, reply)
    assert not remarks.fitting("proud") & remarks.fitting("hurt")


def test_every_list_of_reactions_has_its_replies_and_holds_some_out():
    assert {file.stem for file in reactions.FOLDER.glob("*.txt")} == set(reactions.REPLIES)
    for kind in reactions.REPLIES:
        held, seen = reactions.lines(kind, True), reactions.lines(kind, False)
        assert held and len(seen) > 40 and not set(held) & set(seen), kind
        assert all(text.isascii() and text == text.strip() and not set(text) & set("<>{}|$#[]*") for text in (*held, *seen)), kind


def test_a_reaction_follows_what_it_is_a_reaction_to():
    for kind in reactions.REPLIES:
        for seed in range(60):
            turns = reactions.turns(Random(f"{kind} {seed}"), kind, alone=True)
            replies = [marks.strip(reply) for _, reply in turns]
            assert replies[-1] in reactions.fitting(kind, turns) and all(said.strip() and not re.search(r"\$[a-z]", said + reply) for said, reply in turns), turns
            before = replies[-2]
            if kind == "joke_another":
                assert (jokes := chores.TELLING["joke"][0])[(jokes.index(before.removeprefix(chores.STRANGE)) + 1) % len(jokes)] == replies[-1]
            elif kind == "story_another":
                order = [story.whole for story in stories.stories()]
                assert order[(next(number for number, whole in enumerate(order) if whole in before) + 1) % len(order)] == replies[-1]
            elif kind == "sum_doubted":
                assert replies[-1] == f"Yes, {before}" and read_sums(before)
            elif kind in ("list_more", "list_two"):
                said, more = items_of(before), items_of(replies[-1])
                assert len(more) == (2 if kind == "list_two" else 1)
                assert any(chores.named(name)[: len(said) + len(more)] == said + more for name in (*chores.LISTS, *chores.written()))
            elif kind.startswith("untold"):
                assert before.startswith("You have not told me ")


def test_every_conversation_of_stock_replies_reads_whole_and_some_are_held_out():
    held, seen = repertoire.conversations(True), repertoire.conversations(False)
    assert len(seen) > 300 and 0.05 < len(held) / len(seen) < 0.2 and not set(held) & set(seen)
    for conversation in (*held, *seen):
        assert all(text and text.isascii() and not set(text) & set("<>{}|$#[]*=") for messages, _ in conversation for text in messages), conversation
    used = {kind for conversation in seen for _, kind in conversation}
    assert len(used) > 70
    for seed in range(300):
        rng = Random(seed)
        conversation = rng.choice(seen)
        for (messages, kind), (message, reply) in zip(conversation, repertoire.said(rng, conversation), strict=True):
            assert message in messages and marks.strip(reply) in repertoire.fitting(kind), (kind, reply)


@pytest.mark.parametrize("told", [situations, repertoire])
def test_the_newest_lists_are_drawn_more_often(told):
    newest = {block for name in told.NEWEST for block in (told.FOLDER / f"{name}.txt").read_text().strip().split("\n\n")}
    times = Counter(lists.weighed(told.FOLDER, told.NEWEST))
    assert set(times) == {block for block in lists.blocks(told.FOLDER) if not lists.held_out(block)}
    assert {times[block] for block in newest & set(times)} == {lists.AGAIN} and {times[block] for block in set(times) - newest} == {1}
    assert len(told.weighed()) == times.total()


def test_jokes_in_a_conversation_of_stock_replies_come_in_order():
    two = repertoire.read("> a joke\n< =joke\n> lol\n< =joke_liked\n> more | another\n< =joke")
    for seed in range(40):
        (_, first), _, (_, second) = repertoire.said(Random(seed), two)
        assert chores.TELLING["joke"][0][chores.TELLING["joke"][0].index(first) + 1] == second


@pytest.mark.parametrize("block", ["> hello", "> hello\n< =greeted_by_nobody", "< =hello\n> hi", "> hello\n< Hello!"])
def test_a_conversation_of_stock_replies_that_is_none_is_named(block):
    with pytest.raises(ValueError, match="out of place"):
        repertoire.read(block)


def test_small_talk_is_of_every_sort(monkeypatch):
    for sort, made in (("reactions", "turns"), ("doubles", "turn"), ("beside", "turn"), ("repertoire", "talk"), ("games", "turns"), ("remarks", "talk")):
        monkeypatch.setattr(getattr(chatter, sort), made, lambda *_, sort=sort: sort)
    sorts = Counter(said if isinstance(said, str) else said[0] for said in (chatter.talk(Random(seed)) for seed in range(4000)))
    shares = {**chatter.SHARES, "remarks": 1 - sum(chatter.SHARES.values())}
    assert all(abs(sorts[sort] / 4000 - share) < 0.03 for sort, share in shares.items())


def test_two_things_in_one_message_get_both_replies(monkeypatch):
    made = {doubles.turn(Random(seed)) for seed in range(400)}
    assert len(made) > 390
    for message, reply in made:
        assert message and "$" not in message + reply and len(re.findall(r"[.!?](?= |$)", marks.strip(reply))) > 1, (message, reply)
    monkeypatch.setattr(doubles, "LISTS", 0)
    monkeypatch.setattr(doubles, "WISHES", (lambda _: ("do one", "One."), lambda _: ("do two", "Two.")))
    for seed in range(40):
        asked, reply = doubles.wishes(Random(seed), False)
        assert [word.capitalize() + "." for word in re.findall("one|two", asked)] == reply.split(" ")
    assert {doubles.opened(Random(seed), False)[1].split("!")[0].split(".")[0] for seed in range(40)} == {"Hello", "You are welcome"}
    told = [marks.strip(doubles.comforted(Random(seed), False)[1]) for seed in range(40)]
    assert all(any(joke in reply for joke in chores.TELLING["joke"][0]) and reply.startswith(tuple(doubles.SHORT[kind] for kind in remarks.SAD)) for reply in told)


def test_words_beside_a_wish_change_nothing_of_its_reply():
    assert not any(set(beside.words(where, True)) & set(beside.words(where, False)) for where in ("before", "after"))
    kinds = Counter()
    for seed in range(400):
        rng = Random(seed)
        message, reply = beside.turn(rng, held=seed % 2 > 0)
        kind = next((kind for kind in (*beside.TOLD, *doubles.ASKED) if marks.strip(reply) in (repertoire.fitting(kind) if kind in beside.TOLD else remarks.fitting(kind))), None)
        assert kind or marks.strip(reply).startswith(chores.STRANGE), (message, reply)
        assert "$" not in message and "{" not in message and len(message.split()) > 2
        kinds[kind] += 1
    assert set(kinds) > {*beside.TOLD, "taste", "unknown", "self", "advice", "outside"}


def test_the_assistant_asks_sums_and_knows_whether_the_answer_is_right():
    verdicts = Counter()
    for seed in range(300):
        question, turns = sums.QUIZ[0][0], sums.quizzed(Random(seed))
        for said, reply in turns:
            if not reply.startswith("What is"):
                ((a, _, b, result),) = read_sums(marks.strip(reply))
                assert question == f"What is {a} plus {b}?" and result == a + b
                number = {word: str(n) for n, word in enumerate(sums.NUMBERS)}
                given = {number.get(word, word) for word in re.findall(r"\w+", said.lower())}
                verdict = marks.strip(reply).split(",")[0] if "," in reply else "told"
                assert verdict != "Yes" or str(result) in given
                assert verdict != "No" or str(result) not in given
                verdicts[verdict] += 1
            else:
                question = reply
    assert set(verdicts) == {"Yes", "No", "told"}


def test_counting_goes_back_and_on():
    for seed in range(200):
        (_, there), (then, back) = chores.counted(Random(seed))
        first, second = ([int(n) for n in marks.strip(row).rstrip(".").split(", ")] for row in (there, back))
        assert second == first[::-1] or second == list(range(first[-1] + 1, first[-1] + 6)) and not re.search("back|down|revers|way", then)


def told_list(*items, theme="shopping", seed=0):
    """A list of the user's own that is being told."""
    return own_lists.Told(Random(seed), own_lists.THEMES[theme], False, list(items))


def test_questions_about_a_list_of_the_users_own_are_answered_from_it():
    assert marks.strip(own_lists.whole(told_list("milk", "soap", "string"))[1]) == "You need milk, soap and string."
    assert marks.strip(own_lists.whole(told_list("call my mother", "pay the rent", theme="tasks"))[1]) == "You have to call your mother and pay the rent."
    seen = set()
    for seed in range(200):
        told = told_list("milk", "soap", "string", seed=seed)
        asked, reply = own_lists.numbered(told)
        at = ("milk", "soap", "string").index(marks.strip(reply).rstrip(".").split(" ")[-1])
        word = "last" if "last" in asked.lower() else own_lists.ORDINALS[at]
        assert word in asked.lower() or str(at + 1) in asked, (asked, reply)
        assert marks.strip(reply).startswith(f"The {word} is ") and (word != "last" or at == 2)
        asked, reply = own_lists.holds(told)
        item = marks.strip(reply).rstrip(".").split("name ")[-1].split("named ")[-1]
        assert item in asked.lower() and marks.strip(reply).startswith("Yes" if item in told.items else "No")
        asked, reply = own_lists.after(told)
        first, second = re.fullmatch(r"After (.+) you named (.+)\.", marks.strip(reply)).groups()
        assert first in asked and told.items.index(second) == told.items.index(first) + 1
        assert "3" in own_lists.counted(told)[1]
        asked, reply = own_lists.added(told)
        assert told.items[3] in asked.lower() and marks.strip(reply).endswith(f", {own_lists.yours(told.items[3])} too.") and "4" in own_lists.counted(told)[1]
        asked, reply = own_lists.dropped(told)
        (gone,) = {"milk", "soap", "string"} - set(told.items) or {marks.strip(reply).removeprefix("Okay, without ").rstrip(".")}
        assert gone in asked.lower() and gone not in told.items and len(told.items) == 3
        seen |= {word, own_lists.in_vain(told)[1]}
    assert {"first", "second", "third", "last"} < seen and sum(marks.REFUSING in text for text in seen) == 2


def test_every_kind_of_own_list_is_told_whole_and_leaves_no_slot():
    whole = Counter()
    for seed in range(500):
        turns = own_lists.turns(Random(seed))
        assert not any(set(said + reply) & set("{}|$") for said, reply in turns), turns
        whole.update(name for name, theme in own_lists.THEMES.items() if any(marks.strip(reply).startswith(theme.answer.split(" $")[0] + " ") for _, reply in turns))
    assert set(whole) == set(own_lists.THEMES)
    for name, theme in own_lists.THEMES.items():
        for seed in range(60):
            told = told_list(theme=name, seed=seed)
            told.held = seed % 2 == 1  # of a theme's values few are held out from training: they run out
            for _ in range(9):
                told.items.append(told.new())
            assert len({item.lower() for item in told.items}) == 9 and all(step(told) for step in (own_lists.numbered, own_lists.after))
            text = theme.told.replace("$i", own_lists.joined(Random(seed), told.items))
            assert all(item in grammar.expand(Random(seed), text) for item in told.items)


def test_numbers_that_are_compared_are_compared_rightly():
    ages = {"I": 81, "my grandson": 9}
    kind = compared.KINDS["age"]
    assert marks.strip(compared.single(Random(1), kind, {"I": 81})[1]) == "You are 81."
    assert marks.strip(compared.ranked(True)(Random(1), kind, ages)[1]) == "You are older."
    assert marks.strip(compared.ranked(False)(Random(1), kind, ages)[1]) == "Your grandson is younger."
    assert marks.strip(compared.ranked(True)(Random(1), kind, {**ages, "Rosa": 90})[1]) == "Rosa is the oldest."
    assert marks.strip(compared.difference(Random(1), kind, ages)[1]) == "81 minus 9 is 72. That makes 72 years."
    assert marks.strip(compared.total(Random(1), compared.KINDS["points"], {"Rosa": 7, "Tom": 5, "I": 3})[1]) == "7 plus 5 is 12. 12 plus 3 is 15. That makes 15 points."
    kinds = Counter()
    for seed in range(600):
        turns = compared.turns(Random(seed))
        assert not any(set(said + reply) & set("{}|$") for said, reply in turns), turns
        assert not re.search(r"\b(I is|I has|you is|you has|I does)\b", " ".join(said + " " + reply for said, reply in turns), re.IGNORECASE), turns
        kinds["worked"] += any(read_sums(marks.strip(reply)) for _, reply in turns)
        for _, reply in turns:
            assert all(sums.result_of(a, sign, b) == result for a, sign, b, result in read_sums(marks.strip(reply)))
    assert kinds["worked"] > 100


def test_riddles_are_answered_and_names_and_words_given():
    answers = {riddle: answer for riddle, answer, _ in games.RIDDLES}
    told = Counter()
    for seed in range(300):
        turns = games.riddles(Random(seed), False)
        for (_, riddle), (guess, reply) in zip(turns[::2], turns[1::2], strict=True):
            answer, said = answers[riddle], marks.strip(reply)
            assert said == f"{said.split(' is ')[0]} is {answer}." and (said.startswith("Yes") == (answer.lower() in guess.lower())), (riddle, guess, said)
            told[said[:2]] += 1
        (said, reply), *_ = games.said_after(Random(seed), False)
        assert marks.strip(reply)[1:-1] in said
        names = [marks.strip(reply).removeprefix("How about ").rstrip("?") for _, reply in games.named(Random(seed), False)]
        assert any(row[: len(names)] == names for row in map(chores.named, set(games.NAMED.values())))
    assert set(told) == {"Ye", "No", "It"} and set(games.NAMED.values()) <= {*chores.LISTS, *chores.written()}
    assert all(answer not in others for _, answer, others in games.RIDDLES)


def test_a_reply_of_a_situation_may_be_a_kind_of_the_repertoire():
    made = situations.read("$n = name\n> a joke\n< =joke\n> I am $n | my name is $n, lol\n< =joke_liked\n> another\n< =joke\n> who am I\n< You are $n.")
    for seed in range(30):
        _, ((_, first), (said, liked), (_, second), (_, name)) = made.begin(Random(seed))
        jokes = chores.TELLING["joke"][0]
        assert jokes.index(second) == jokes.index(first) + 1 and marks.strip(liked) in repertoire.fitting("joke_liked")
        assert marks.strip(name).removeprefix("You are ").rstrip(".") in said
    with pytest.raises(ValueError, match="'=jokes' after 'a joke' is no kind of reply: those are "):
        situations.read("> a joke\n< =jokes")


def test_jokes_and_facts_about_something_are_about_it_or_say_that_they_are_not():
    kinds = Counter()
    for kind in chores.ABOUT:
        words = {word: number for number, subject in reversed(list(enumerate(chores.SUBJECTS[kind]))) for word in (*subject, *map(chores.wished_one, subject))}
        pieces = chores.TELLING[kind][0]
        assert len(pieces) == len(set(pieces)) == len(chores.SUBJECTS[kind]) > 100
        for seed in range(600):
            at, wish, told = chores.piece(Random(seed), kind, 3)
            subject = next((word for word in sorted(words, key=len, reverse=True) if re.search(rf"(about|with|on) {re.escape(word)}( please| in it| in it please)?$", wish)), None)
            strange = told.startswith(chores.STRANGE)
            assert told.removeprefix(chores.STRANGE) == pieces[at], (wish, told)
            assert at == 3 if subject is None else at == words[subject] and not strange, (wish, told, subject)
            kinds[kind, strange, subject is None] += 1
    assert len(kinds) == 6
    assert all(text.isascii() and text == text.strip() for kind in ("joke", "fact") for words, text in chores.written_pieces(kind) for text in (*words, text))


def test_small_talk_in_which_nothing_may_be_told_tells_nothing():
    kinds = Counter(reactions.any_kind(Random(seed)) for seed in range(2000))
    assert set(kinds) == {kind for kind in reactions.REPLIES if not kind.startswith(reactions.ABOUT_FACTS)}
    assert {reactions.any_kind(Random(seed), told=True) for seed in range(2000)} == set(reactions.REPLIES)


def test_stories_are_of_their_heroes_and_come_in_order():
    every = stories.stories()
    assert len(every) > 100 and len({story.name for story in every}) == len(every)
    assert all(re.match(rf"(An?|There once was an?|Once upon a time an?) {story.hero} called \$n", story.text) and len(story.questions) == 2 for story in every)
    first = {story.hero: number for number, story in reversed(list(enumerate(every)))}
    kinds = Counter()
    for seed in range(300):
        told = stories.wished(Random(seed), first=7)
        story, text = every[told.number], marks.strip(told.text)
        kind = "strange" if text.startswith(chores.STRANGE) else "of a hero" if re.search(rf"\b{story.hero}\b", told.wish, re.IGNORECASE) else "any"
        kinds[kind, text.startswith(stories.OTHER_NAME)] += 1
        assert text.endswith(story.whole) and (text == story.whole or kind == "strange" or text == stories.OTHER_NAME + story.whole and re.search(" (called|named) ", told.wish))
        assert told.number == (first[story.hero] if kind == "of a hero" else 7)
        assert kind != "strange" or not any(re.search(rf" (about|of|with) an? (\w+ )?{hero}\b", told.wish, re.IGNORECASE) for hero in first)
        assert all("$" not in question + answer for question, answer in told.questions)
    assert set(kinds) == {("any", False), ("strange", False), ("of a hero", False), ("of a hero", True)}
    assert stories.after(6, {every[7].name}) == 8 and stories.after(len(every) - 1) == 0
    told = [stories.wished(Random(seed), first=7, taken={every[7].name}) for seed in range(40)]
    assert all(every[7].name not in one.text and one.number != 7 for one in told) and any(one.number == 8 for one in told)


@pytest.mark.parametrize("block", ["fox | Rusty\nA fox slept.\n? who slept\n= $n slept.", "fox\nA fox called Rusty slept.\n? who slept\n= $n slept.", "fox | Rusty\nA fox called Rusty slept.", "fox | Rusty\nA fox called Rusty slept.\n? who slept"])
def test_a_story_that_is_none_is_named(block):
    with pytest.raises(ValueError, match="'fox"):
        stories.read(block)


def test_a_drill_of_stories_tells_them_and_asks_about_them():
    messages = evaluate.clean(drills.storytelling(0, 3000))
    replies = [m["content"] for m in messages if m["role"] == "assistant"]
    told = [number for number, story in enumerate(stories.stories()) if any(story.whole in reply for reply in replies)]
    assert any(reply.removeprefix(chores.STRANGE) in (*chores.TELLING["joke"][0], *chores.TELLING["fact"][0]) for reply in replies)
    assert len(told) > 12 and sum(reply in (answer.replace("$n", stories.stories()[number].name) for number in told for _, answer in stories.stories()[number].questions) for reply in replies) > 5


def test_sums_asked_by_the_way_are_of_the_numbers_in_them():
    number, signs = {word: n for n, word in enumerate(sums.NUMBERS)}, Counter()
    for seed in range(400):
        asked, reply = sums.casual(Random(seed))
        ((a, sign, b, result),) = read_sums(marks.strip(reply))
        said = [number.get(word, int(word) if word.isdigit() else None) for word in re.findall("[a-z]+|[0-9]+", asked.lower())]
        assert a in said and b in said and result == sums.result_of(a, sign, b) >= 0
        signs[sign] += 1
    assert set(signs) == {"plus", "minus", "times"} and all(line.count("$a") == line.count("$b") == 1 for sign in signs for line in sums.written(sign))
    assert all(line.count("$n") == 1 for what in ("and", "less") for line in sums.written(what))


def test_what_others_did_is_theirs():
    rng = Random(1)
    said = {remarks.done(rng, "lost my keys and blame myself", remarks.KINDS["annoyed"])[0] for _ in range(400)}
    assert any(text.startswith("my sister lost her keys and blame herself") for text in said) and any(text.startswith("I lost my keys and blame myself") for text in said)
    assert not any(text.startswith("my") and re.search(r" my | myself", text[3:]) for text in said)
    told = {remarks.done(rng, "broke my leg", remarks.KINDS["ill"]) for _ in range(400)}
    assert all("you feel" not in reply for text, reply in told if text.startswith("my ")) and any("he feels better" in reply for text, reply in told if text.startswith("my uncle"))


def test_what_is_offered_is_taken_up():
    turns = [turn for seed in range(400) for turn in remarks.exchange(Random(seed), "bored")]
    jokes = [reply for _, reply in turns[1:]]
    assert any(marks.strip(reply) in chores.JOKES for reply in jokes)
    topics = [remarks.exchange(Random(seed), "fine") for seed in range(200)]
    assert {len(made) for made in topics} == {1, 2} and all(made[1][1].endswith("about it.") for made in topics if len(made) == 2)


def as_either_says(told):
    """What was told in the user's words and in the assistant's."""
    return told + "\n" + re.sub(r"\b(I|we|me|us)\b", "you", re.sub(r"\b(my|our)\b", "your", re.sub(r"\bI was\b", "you were", told)))


def test_replies_in_situations_recall_what_was_told_in_them():
    rng, recalls, declines = Random(2), 0, 0
    for held in (False, True):
        for situation in situations.situations(held):
            told, turns = situation.begin(rng, held)
            assert bool(told) == bool(situation.system) and "$" not in SOME_PRICE.sub("", told)
            for message, reply in turns:
                assert "$" not in SOME_PRICE.sub("", message + reply) and message.isascii() and marks.strip(reply).rstrip("\"").endswith((".", "!", "?")), (message, reply)
                told += "\n" + message
                values = marks.recalls(reply)
                assert all(value in as_either_says(told) for value in values), (told, reply)
                recalls, declines = recalls + bool(values), declines + (marks.REFUSING in reply)
    assert recalls > 1500 and declines > 200


SOME_PRICE = re.compile(r"\$\d")


def test_no_two_slots_of_a_situation_have_one_value():
    boxes = situations.read("$c = : red; blue\n$d = : red; blue\n> a $c box and a $d one\n< A $c one, and a $d one.")
    assert {tuple(sorted(boxes.draw(Random(n)).values())) for n in range(20)} == {("blue", "red")}


def test_articles_in_situations_fit_their_values():
    made = situations.read("$a = : orange\n$b = : pear\n> I have a $a and a $b\n< A $a and a $b.")
    assert [(message, marks.strip(reply)) for message, reply in made.begin(Random(0))[1]] == [("I have an orange and a pear", "An orange and a pear.")]


def test_what_is_the_users_is_yours_in_a_reply():
    made = situations.read("$a = : my aunt\n$b = : our old dog\n$c = : I fell ill\n$d = : a day we chose\n$e = : the mine at seven am\n> $a, $b, $c, $d, $e\n< $a, $b, $c, $d, $e.")
    assert marks.strip(made.begin(Random(0))[1][0][1]) == "your aunt, your old dog, you fell ill, a day you chose, the mine at seven am."


@pytest.mark.parametrize(("block", "wrong"), [
    ("$a = nothing\n> $a\n< $a.", "names no values"), ("> I am $a\n< Hello $a.", "no line says"), ("$a = name\n> hello\n< Hello $a.", "not told before"),
    ("$a = name\n> I am $a | hello\n< Hello $a.", "not told before"), ("* You are $a. | You help.\n$a = name\n> who are you\n< I am $a.", "not told before"), ("$a = name\n< I am $a", "out of place"),
])
def test_a_situation_that_is_none_is_named(block, wrong):
    with pytest.raises(ValueError, match=wrong):
        situations.read(block)


def test_a_situation_may_begin_with_a_system_message():
    made = situations.read("* You are $a. | Your name is $a.\n$a = : Pip\n> who are you?\n< I am $a. | =self")
    assert {made.begin(Random(n))[0] for n in range(9)} == {"You are Pip.", "Your name is Pip."}
    assert {marks.strip(made.begin(Random(n))[1][0][1]) for n in range(20)} == {"I am Pip.", *chats.STOCK["self"]}


PASSAGE = """$a = name
$x = : chess; tennis
> my aunt $a likes $x | $x is what my aunt $a likes
< How nice.
? who likes $x? | whose thing is $x
= Your aunt $a likes $x.
& and what is her name? | her name?
= Your aunt is called $a.
? what does my uncle like?
= You have not told me what your uncle likes."""


def test_questions_about_a_passage_are_answered_from_what_it_tells():
    made = passages.read(PASSAGE)
    system, told, asked = made.draw(Random(1))
    name = marks.strip(asked[0][1][1]).removeprefix("Your aunt is called ").rstrip(".")
    assert not system and f"my aunt {name} likes" in told[0][0] and [len(turns) for turns in asked] == [2, 1]
    assert asked[1][0] == ("what does my uncle like?", marks.decisive("You have not told me what your uncle likes.", marks.REFUSING))
    rng, recalls, declines = Random(6), 0, 0
    for held in (False, True):
        for passage in passages.passages(held):
            system, told, asked = passage.draw(rng, held)
            assert bool(system) == bool(passage.told.system) and len(asked) > 2
            before = "\n".join([system, *(message for message, _ in told)])
            for turns in asked:
                heard = before + "\n" + "\n".join(message for message, _ in turns)
                for message, reply in turns:
                    assert "$" not in SOME_PRICE.sub("", message + reply) and (message + reply).isascii() and reply.endswith((".", "!", "?", '."')), (message, reply)
                    recalled = marks.recalls(reply)
                    assert all(value in as_either_says(heard) for value in recalled), (heard, reply)
                    recalls, declines = recalls + bool(recalled), declines + (marks.REFUSING in reply)
    assert recalls > 2000 and declines > 500


@pytest.mark.parametrize(("old", "new", "wrong"), [("? ", "> ", "has questions"), ("\n= ", "\n- ", "out of place"), ("likes $x.", "likes $y.", "no line says"), ("$a likes $x |", "likes $x |", "in every wording")])
def test_a_passage_that_is_none_is_named(old, new, wrong):
    with pytest.raises(ValueError, match=wrong):
        passages.read(PASSAGE.replace(old, new))


def test_questions_about_held_out_passages_have_one_answer_that_was_told():
    cases = evaluate.about_passages(60, 128)
    for case in cases:
        *told, asked = (m["content"] for m in case.messages)
        assert case.expected in "\n".join(told) and (not case.expected or not evaluate.contains(asked, case.expected))
    assert 5 < sum(not case.expected for case in cases) < 45 and cases == evaluate.about_passages(60, 128)


def test_passages_told_together_are_about_different_people_and_things():
    shared = 0
    for seed in range(40):
        grown = trees.Growing(dialogues.Conversation(Random(seed), 900))
        told = []
        grown.passage = lambda passage, told=told, keep=grown.passage: (told.append(passage), keep(passage))
        while grown.talk.position < 900:
            grown.tell()
        shared += len(told) > 1
        assert not any(one.subjects & other.subjects for n, one in enumerate(told) for other in told[:n])
        of_whom = {word for passage in told for word in passage.subjects if word in scenes.OWNERS}
        assert not of_whom & {fact.key.removeprefix("my ") for fact in grown.talk.facts.values() if not fact.open}
    assert shared > 5


def test_a_tree_asks_for_what_it_told_and_its_trunk_stays_as_it_was():
    for seed in range(12):
        made = trees.tree(str(seed), 700)
        assert trees.tree(str(seed), 700) == made and made.branches
        for part in (made.trunk, *made.branches):
            roles = [m["role"] for m in part if m["role"] != "system"]
            assert roles == ["user", "assistant"] * (len(roles) // 2) and roles
        assert not any(m["role"] == "system" for branch in made.branches for m in branch)


@pytest.mark.parametrize("name", [name for name in bundled.MODELS if family.MEMBERS[name].trees])
def test_a_branch_is_read_as_if_it_stood_alone_behind_its_trunk(name):
    """Row after row of trees in one forward gives each branch the logits of its trunk and itself, in layers with a window too."""
    shipped, tokenizer = evaluate.load(bundled.MODELS[name])
    ids, weights, places = (torch.tensor(part) for part in batches.row_of_trees(tokenizer, "alone", 800))
    tree, branch, position = places.T
    with torch.inference_mode():
        together = shipped(ids[None], attention_mask=batches.masks(places[None], shipped.config), position_ids=position[None]).logits[0]
        apart = [(t, b) for t, b in {(int(t), int(b)) for t, b in zip(tree, branch)} if b]
        for t, b in sorted(apart)[::4]:
            mine = (tree == t) & ((branch == 0) | (branch == b))
            assert torch.equal(position[mine], torch.arange(int(mine.sum())))
            alone = shipped(ids[None, mine]).logits[0]
            assert (together[mine] - alone).abs().max() < 1e-3  # sums in another order
    begins = (branch > 0) & (branch != branch.roll(1))
    assert len(apart) > 4 and not weights[begins].any()  # what a branch begins with follows on another in the row, not on its trunk


def test_batches_of_trees_have_places_and_others_do_not(tokenizer):
    made = [batches.with_trees(tokenizer, 0, number, 2, 96) for number in range(12)]
    assert {len(batch) for batch in made} == {2, 3}
    for batch in made:
        assert all(part.shape[:2] == (2, 97) for part in batch) and (len(batch) == 2 or batch[2].shape[2] == 3)
    assert all(torch.equal(*pair) for pair in zip(made[3], batches.with_trees(tokenizer, 0, 3, 2, 96)))


DISHES = """$a = name
$b = : soup; cake; bread; rice; salad; wine; juice; plates
+ $a brings the $b | the $b comes from $a
> who brings the $b? | whom do I ask for the $b
< $a brings the $b.
& and the $b?
- You have not told me who brings the $b.
> what does $a bring
< $a brings the $b. | The $b.
& and $a?
- You have not told me what $a brings."""
MOVED = DISHES + "\n! $a: the $b comes from $a now"


def test_questions_about_records_are_answered_from_the_one_they_ask_about():
    kind, answers, declines = records.read(DISHES), 0, 0
    for seed in range(60):
        table = records.Table(kind, Random(seed), lower=seed % 3 == 0)
        for _ in range(3):
            table.add(held=seed % 2 == 0)
        beside = {}
        for row in table.rows:
            one, other = row["a"].lower(), row["b"].lower()
            beside |= {one: other, other: one}
        for message, reply in table.asked(held=seed % 2 == 0):
            known = [value for value in beside if re.search(rf"\b{value}\b", message.lower())]
            shown, under = marks.spans(reply)
            recalled = "".join(c for c, mark in zip(shown, under) if mark == marks.RECALLED).lower()
            if known:
                assert [beside[value] for value in known] == [recalled], (message, reply)
                answers += 1
            else:
                assert shown.startswith("You have not told me") and marks.REFUSING in reply
                declines += 1
    assert answers > 60 and declines > 4


def test_a_slot_of_records_with_too_few_values_is_named():
    table = records.Table(records.read(DISHES.replace("; bread; rice; salad; wine; juice; plates", "")), Random(0))
    table.add(held=False), table.add(held=False)
    with pytest.raises(ValueError, match=r"\$b of records takes its values from \('soup', 'cake'\)"):
        table.add(held=False)


def test_a_record_that_changes_is_recalled_as_it_is_now():
    for seed in range(20):
        table = records.Table(records.read(MOVED), Random(seed))
        table.add(held=False), table.add(held=False)
        before = [dict(row) for row in table.rows]
        (message, reply), (question, answer) = table.changed()
        (now,) = [row for row in table.rows if row not in before]
        assert message.lower().endswith(f"the {now['b']} comes from {now['a']} now".lower()) and reply in records.CHANGED
        assert now["b"] in question and marks.recalled(now["a"]) in answer


def test_the_lists_of_records_make_turns_that_recall_what_was_told():
    rng, recalls = Random(5), 0
    assert len(records.records(False)) > 100
    for held in (False, True):
        for kind in records.records(held):
            table = records.Table(kind, rng)
            for _ in range(4):
                table.add(held)
            turns = records.told(rng, [table])
            for _ in range(6):
                turns += table.asked(held)
            turns += table.changed(held) if kind.changes else []
            told = ""
            for message, reply in turns:
                told += "\n" + message.lower()
                shown, under = marks.spans(reply)
                values = [value for value in "".join(c if mark == marks.RECALLED else "\n" for c, mark in zip(shown, under)).lower().split("\n") if value]
                assert "$" not in SOME_PRICE.sub("", message + reply) and reply.endswith((".", "!", "?")), (message, reply)
                assert all(value in told for value in values), (told, shown)
                recalls += bool(values)
    assert recalls > 800


@pytest.mark.parametrize(("old", "new", "wrong"), [
    ("$a = name", "$a = nothing", "names no values"), ("+ $a brings the $b |", "+ $a brings it |", "should have every slot"), ("& and the $b?\n", "", "begins one with other lines"),
    ("whom do I ask for the $b", "who brings it", "should know one"), ("- You have not told me who brings the $b.", "- Who brings $c?", "should have every slot"), ("< $a brings the $b. | The $b.", "< Wine.", "should know one"),
    ("! $a: the", "! the", "should have every slot"),
])
def test_a_kind_of_records_that_is_none_is_named(old, new, wrong):
    assert old in MOVED and records.read(MOVED)
    with pytest.raises(ValueError, match=wrong):
        records.read(MOVED.replace(old, new))


def test_situations_chats_and_records_make_conversations():
    messages = drills.talked_over(1, 600)
    said = [m["role"] for m in messages if m["role"] != "system"]
    assert said == ["user", "assistant"] * (len(said) // 2) and messages == drills.talked_over(1, 600)
    assert any(marks.RECALLED in m["content"] for m in messages) and sum(len(m["content"]) for m in messages) > 1500


def test_amid_small_talk_little_is_told_and_all_else_declined():
    asked = declined = turns = 0
    for seed in range(20):
        messages = drills.told_amid_talk(seed, 500)
        assert messages == drills.told_amid_talk(seed, 500) and [m["role"] for m in messages] == ["user", "assistant"] * (len(messages) // 2)
        replies = [m["content"] for m in messages[1::2]]
        declined, asked, turns = declined + sum(marks.REFUSING in r for r in replies), asked + sum(marks.RECALLED in r for r in replies), turns + len(replies)
    assert 0.03 < declined / turns < 0.2 and 0.03 < asked / turns < 0.4


def test_records_in_a_tree_are_asked_for_one_by_one():
    found = 0
    for seed in range(30):
        grown = trees.Growing(dialogues.Conversation(Random(seed), 400))
        made = trees.records.tables(Random(seed))
        grown.table(made)
        said = " ".join(m["content"] for m in grown.talk.messages).lower()
        assert all(value.lower() in said for table in made for row in table.rows for value in row.values())
        assert len(grown.asked[0]) == trees.AGAIN * sum(len(table.rows) for table in made) and grown.kinds == [table.kind for table in made]
        found += any(value.lower() in reply["content"].lower() for question in grown.asked[0] for reply in question[1::2] for table in made for row in table.rows for value in row.values())
    assert found == 30


def test_the_grammar_expands_nested_choices():
    readings = {grammar.expand(Random(i), "{a|b{c|d}|}e") for i in range(60)}
    assert readings == {"ae", "bce", "bde", "e"}
    with pytest.raises(ValueError, match="unbalanced"):
        grammar.parse("{a|b")


def test_no_generated_conversation_holds_a_template_character():
    for seed in range(60):
        for message in dialogues.conversation(seed, 400) + drills.told_and_asked(seed, 600):  # "$12" and "ann@home.net" are values
            assert not re.search(r"[{}|]|\$[a-z]|(?<!\w)@", message["content"]), message


# Data: the kinds of exchange beyond telling and asking by name


def talk_with(turn, seed, before=("code", "relation", "pet", "coloured", "home", "age", "spot", "event", "their job")):
    """A conversation in which facts of some kinds were told and one turn of a kind was added: (talk, messages of the turn)."""
    talk = dialogues.Conversation(Random(f"{turn.__name__} {seed}"), 800)
    for kind in before:
        fact = facts.new_fact(talk.rng, talk.taken(), kind=kind)
        talk.learn(fact)
        talk.turn(facts.tell(talk.rng, fact), "Okay.")
    start = len(talk.messages)
    turn(talk)
    while talk.chain:
        talk.chain.pop(0)()
    return talk, evaluate.clean(talk.messages[start:])


def items_of(reply):
    return re.split(", | and ", reply.split(": ")[1].rstrip("."))


def test_a_list_that_was_written_has_the_number_asked_of_what_it_is_called(monkeypatch):
    monkeypatch.setattr(chores, "WRITTEN", 1)
    for seed in range(400):
        name, n, text = chores.asked_list(Random(seed))
        called = max(filter(text.endswith, chores.written()[name][0]), key=len)
        assert text.removesuffix(called).strip() in (*chores.SOME, chores.NUMBERS[n], str(n)), text
        items = items_of(f": {chores.items(name, 0, n)}")
        assert len(set(items)) == n and set(items) <= set(chores.named(name))


def test_a_line_that_is_no_list_is_named(monkeypatch, tmp_path):
    (tmp_path / "kinds.txt").write_text("fruits | fruit || apples; pears\nfruits: apples\n")
    monkeypatch.setattr(chores, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match="'fruits: apples' is none"):
        chores.written.__wrapped__()


def test_a_drill_of_lists_asks_for_many_and_names_nothing_else():
    messages = evaluate.clean(drills.listing(0, 1500))
    everything = {item for name in (*chores.LISTS, *chores.written()) for item in chores.named(name)}
    replies = [m["content"] for m in messages if m["role"] == "assistant" and ": " in m["content"]]
    assert len(replies) > 30 and all(item in everything for reply in replies for item in items_of(reply))


def test_lists_have_the_number_asked_and_never_repeat(monkeypatch):
    monkeypatch.setattr(chores, "WRITTEN", 0)  # "things with two wheels" are not two
    words, seen = {w: n for n, w in enumerate(chores.NUMBERS)}, 0
    for seed in range(400):
        _, messages = talk_with(exchanges.item_list, seed, before=())
        said = []
        for asked, reply in zip(messages[::2], messages[1::2]):
            if ": " not in reply["content"]:
                assert reply["content"] == "I do not know any more." and len(said) >= 4
                continue
            found = items_of(reply["content"])
            number = next((n for w, n in words.items() if re.search(rf"\b({w}|{n})\b", asked["content"].lower())), None) if not said else 2 if "two" in asked["content"].lower() else 1
            if number:
                assert len(found) == number, (asked, reply)
            said += found
        assert len(said) == len(set(said)) and said
        seen += len(said)
    assert seen > 1200


def test_the_items_of_a_list_belong_to_it():
    for name in (*chores.LISTS, *chores.written()):
        row = chores.named(name)
        assert len(row) == len(set(row)) >= 4 and not any(" and " in item or ", " in item for item in row), name
    assert not set(chores.LISTS) & set(chores.written()) and len(chores.written()) > 200


def test_counting_is_right():
    number = {w: n for n, w in enumerate(chores.NUMBERS)}
    for seed in range(300):
        asked, reply = chores.count(Random(seed))
        ends = [number.get(w, int(w) if w.isdigit() else None) for w in re.findall(r"\w+", grammar.expand(Random(seed), asked))]
        ends = [n for n in ends if n is not None]
        down = "back" in asked or "down" in asked
        first, last = (ends[0], 1) if down else (1, ends[0]) if len(ends) == 1 else ends
        assert [int(n) for n in reply.rstrip(".").split(", ")] == list(range(first, last - 1, -1) if down else range(first, last + 1))


def read_sums(text):
    """Each sum of a reply as (a, sign, b, result)."""
    return [(int(a), sign, int(b), int(result)) for a, sign, b, result in re.findall(r"(\d+) (plus|minus|times|divided by) (\d+) is (\d+)\.", text)]


def test_sums_are_right_small_and_of_the_numbers_asked():
    number = {word: n for n, word in enumerate(sums.NUMBERS)}
    signs = set()
    for seed in range(600):
        user, reply = sums.total(Random(seed))
        ((a, sign, b, result),) = read_sums(marks.strip(reply))
        asked = [number.get(word, int(word) if word.isdigit() else None) for word in re.findall("[a-z]+|[0-9]+", user.split("|}")[-1])]
        asked = [2 if "twice" in user else None, *asked]
        assert [n for n in asked if n is not None] == [a, b]
        assert {"plus": a + b, "minus": a - b, "times": a * b, "divided by": a / max(b, 1)}[sign] == result
        assert max(a, b, result) <= sums.MOST and min(a, b, result) >= 0 if sign in ("plus", "minus") else b <= 10 and max(a, result) <= 100
        signs.add(sign)
        bigger, smaller = map(int, re.findall("[0-9]+", marks.strip(sums.more(Random(seed))[1])))
        assert bigger > smaller
    assert signs == set(sums.SIGNS)


def test_three_numbers_are_worked_out_in_two_steps():
    of_sign = {text: sign for sign in ("plus", "minus") for text in sums.SIGNS[sign]}
    for seed in range(200):
        user, reply = sums.three(Random(seed))
        a, first, b, second, c = re.fullmatch(r"(\d+)(\D+)(\d+)(\D+)(\d+)", user.split("|} ")[-1]).groups()
        (x, one, y, between), (z, two, w, result) = read_sums(marks.strip(reply))
        assert (x, y, w) == (int(a), int(b), int(c)) and z == between >= 0 and (one, two) == (of_sign[first], of_sign[second])
        assert between == sums.result_of(x, one, y) and result == sums.result_of(z, two, w) >= 0


def test_a_story_is_told_with_both_numbers_and_answered_with_its_sum():
    number, kinds = {word: n for n, word in enumerate(sums.NUMBERS)}, set()
    for seed in range(600):
        turns = sums.story(Random(seed))
        told = " ".join(grammar.expand(Random(seed), user) for user, _ in turns)
        ((a, sign, b, result),) = read_sums(marks.strip(turns[-1][1]))
        numbers = [number.get(word.lower(), int(word) if word.isdigit() else None) for word in re.findall(r"\w+", told.replace("in one box", "").replace("one ", ""))]
        assert {a, b} <= set(numbers) and "$" not in told + turns[-1][1], told
        assert min(a, b, result) >= 2 and int(re.findall("[0-9]+", turns[-1][1])[-1]) == result
        kinds.add((sign, len(turns)))
    assert len(kinds) == 2 * len(sums.STORIES)


def test_a_story_of_things_goes_on_from_its_result():
    signs = Counter()
    for seed in range(600):
        story, turns = sums.story(Random(seed)), sums.story_and_more(Random(seed))
        assert turns[: len(story)] == story
        for asked, reply in turns[len(story) :]:
            ((*_, result),), ((a, sign, b, then),) = read_sums(marks.strip(story[-1][1])), read_sums(marks.strip(reply))
            assert a == result and then == sums.result_of(a, sign, b) >= 0
            assert "$" not in asked and (str(b) in asked or sums.NUMBERS[b] in asked)
            signs[sign] += 1
    assert set(signs) == {"plus", "minus"} and sum(signs.values()) > 30


def test_a_row_of_sums_is_nothing_else():
    messages = drills.reckoning(3, 2000)
    replies = [marks.strip(m["content"]) for m in messages[1::2]]
    assert messages == drills.reckoning(3, 2000) != drills.reckoning(4, 2000) and len(replies) > 50
    assert all(read_sums(reply) or reply in (sums.LARGE, "Okay.", "I see.", "Got it.") or " is more than " in reply for reply in replies)
    assert sum(reply == sums.LARGE for reply in replies) < len(replies) / 8


def test_a_sum_goes_on_from_the_result_before_or_begins_anew():
    goes_on = begins = 0
    for seed in range(200):
        turns = [(grammar.expand(Random(seed), asked), marks.strip(reply)) for asked, reply in sums.run(Random(seed))]
        for (_, before), (asked, reply) in zip(turns, turns[1:]):
            numbers = [n for n in re.findall("[a-z]+|[0-9]+", asked) if n.isdigit() or n in sums.NUMBERS]
            goes_on, begins = goes_on + (len(numbers) == 1), begins + (len(numbers) == 2)
            assert len(numbers) == 2 or reply.split(" ")[0] == before.rstrip(".").split(" ")[-1], (before, asked, reply)
        _, messages = talk_with(exchanges.running_sum, seed, before=())
        assert len(messages) >= 2 and (" is " in messages[-1]["content"] or marks.strip(messages[-1]["content"]) == sums.LARGE)
    assert goes_on > 100 and begins > 50


def test_two_things_told_at_once_are_never_called_this_and_that():
    assert facts.named(["my name"]) == "my name" and facts.named(["your job", "your job"]) == "your job"
    assert facts.named(["your name", "your job"]) == "your name and your job"
    assert facts.named(["your name", "that"]) == facts.named(["that", "that"]) == "both"
    assert facts.named(["that"]) == "that" and facts.named(["your name", "that", "your job"]) == "all of that"


def test_a_system_message_names_the_assistant_and_the_greeting_after_it_is_answered_with_the_name():
    answered = 0
    for seed in range(300):
        talk = dialogues.Conversation(Random(seed), 600)
        talk.begin()
        if talk.assistant:
            assert talk.assistant in talk.messages[0]["content"]
        if len(talk.messages) > 1:
            answered += 1
            assert talk.assistant in marks.strip(talk.messages[2]["content"])
    assert answered > 15


def test_days_months_and_letters_follow_each_other():
    for seed in range(200):
        reply = chores.order(Random(seed))[1].rstrip(".")
        before, after = re.fullmatch("After (.*) comes (.*)|(.*) comes before (.*)", reply).groups()[:2] if reply.startswith("After") else reply.split(" comes before ")
        row = next(r for r in (values.DAYS, values.MONTHS, chores.LETTERS, [str(n) for n in range(31)]) if before in r)
        assert row.index(after) == row.index(before) + 1


def test_a_fact_whose_values_were_all_said_is_not_corrected():
    talk = dialogues.Conversation(Random(0), 600)
    fact = facts.new_fact(talk.rng, set(), kind="favourite season")
    talk.learn(fact)
    talk.turn("told", "Okay.")
    slot = exchanges.correctable(talk)
    talk.old[slot] = list(values.SEASONS)
    exchanges.correction(talk, slot)
    assert len(talk.messages) == 2 and talk.facts[slot] == fact


def test_after_a_correction_without_a_noun_the_newest_value_answers():
    changed = 0
    for seed in range(300):
        kind = ("code", "coloured", "home", "age", "spot", "event", "their job", "number")[seed % 8]
        talk = dialogues.Conversation(Random(f"correction {seed}"), 600)
        old = facts.new_fact(talk.rng, set(), kind=kind)
        talk.learn(old)
        talk.turn(facts.tell(talk.rng, old), "Okay.")
        slot = exchanges.correctable(talk)
        exchanges.correction(talk, slot)
        told = evaluate.clean(talk.messages)[-2]["content"]
        new = talk.facts[slot].value
        assert evaluate.contains(told, talk.facts[slot].split[1]) and new.lower() != old.value.lower(), told
        assert not old.key or old.key.lower() not in told.lower(), told
        talk.chain.clear()
        talk.ask_turn(slot)
        assert new in evaluate.clean(talk.messages)[-1]["content"]
        changed += old.value not in evaluate.clean(talk.messages)[-1]["content"]
    assert changed > 285  # a short old value may stand within a new one


def test_yes_and_no_are_true():
    answers = []
    for seed in range(400):
        talk, messages = talk_with(exchanges.check, seed)
        if not messages:
            continue
        asked, reply = (m["content"] for m in messages[-2:])
        if reply.startswith("You have not told me"):
            continue
        fact = talk.facts[talk.latest[0]]
        naming = "name" in asked.lower() or get_close_matches("called", asked.lower().split(), cutoff=0.8)  # typed in haste: "clled"
        existence = fact.kind in ("relation", "pet") and not naming and not evaluate.contains(asked, fact.value)
        assert evaluate.contains(reply, fact.value) and reply.startswith("Yes, " if existence or evaluate.contains(asked, fact.value) else "No, "), (asked, reply)
        answers.append(reply[:3])
    assert 0.3 < answers.count("No,") / len(answers) < 0.6


@pytest.mark.parametrize(("sentence", "asked"), [
    ("Your cat is called Rex.", "is my cat called Rex"), ("You live in Bern.", "do I live in Bern"), ("You are 25 years old.", "am I 25 years old"),
    ("Mia works as a baker.", "does Mia work as a baker"), ("Your keys are under the bed.", "are my keys under the bed"), ("You bought a hat.", "did I buy a hat"),
    ("It cost 5 euros.", "did it cost 5 euros"), ("The number of your plumber is 4-6-3.", "is the number of my plumber 4-6-3"),
])  # fmt: skip
def test_a_statement_becomes_its_question(sentence, asked):
    assert checks.question(sentence) == asked


def test_every_answer_can_be_asked_as_yes_or_no():
    rng = Random(0)
    for kind, rule in phrases.KINDS.items():
        fact = facts.new_fact(rng, set(), kind=kind)
        assert checks.question(fact.sentence(fact.value)) and rule
    for seed in range(300):
        subject = mentions.make(Random(seed), False, set(), set())
        for fact in subject.facts if subject else ():
            assert checks.question(subject.sentence(fact.kind, fact, fact.value) if fact.kind in subject.told else fact.sentence(fact.value))


def test_pronouns_are_those_of_who_was_mentioned_and_answers_are_what_was_told():
    opposite = {"she": {"he", "his", "him"}, "he": {"she", "her"}, "it": {"she", "he", "her", "his"}, "there": {"she", "he", "her", "his"}}
    for seed in range(300):
        talk, messages = talk_with(exchanges.mention, seed, before=())
        if len(talk.subjects) != 1:
            continue
        for message in messages:
            assert opposite[talk.subjects[0].pronoun].isdisjoint(re.findall(r"\w+", message["content"].replace("a new friend, he", "").lower())) or "friend" in message["content"], message
        told = "\n".join(m["content"] for m in messages).lower()
        assert all(f.value.lower() in told for f in talk.facts.values())


def test_nobody_shares_a_name():
    for seed in range(60):
        talk = dialogues.Conversation(Random(f"names {seed}"), 900)
        while talk.position < 900:
            talk.step()
        named = [f.value.lower() for f in talk.facts.values() if f.kind in ("relation", "pet", "their pet", "name")]
        assert len(named) - len(set(named)) <= (talk.old != {}), named


def test_what_was_said_is_repeated_word_for_word():
    for seed in range(60):
        talk = dialogues.Conversation(Random(f"again {seed}"), 300)
        talk.tell_turn()
        said = marks.strip(talk.messages[-1]["content"])
        exchanges.again(talk)
        assert talk.messages[-1]["content"] == "I said: " + said


def test_new_kinds_of_exchange_are_about_a_third_and_recall_stays_the_largest_part():
    replies = [m["content"] for seed in range(80) for m in dialogues.conversation(seed, 500) if m["role"] == "assistant"]
    share = {word: sum(bool(re.search(word, marks.strip(r))) for r in replies) / len(replies) for word in ("^(Yes|No), ", "^(She|He|It|Her|His) ", "^(Here you are|Two more|Another one|I said): ")}
    assert all(0.015 < s < 0.12 for s in share.values()), share
    assert sum(marks.RECALLED in r or "not told me" in r for r in replies) / len(replies) > 0.25  # answers about stories, which are learnt by heart, not among them


@pytest.mark.parametrize("pairs", [pairs for pairs, _ in hand_written.SETS.values()], ids=list(hand_written.SETS))
def test_hand_written_pairs_are_at_least_a_hundred_and_consistent(pairs):
    assert len(pairs) >= 100
    for told, asked, expected in pairs:
        assert evaluate.contains(told, expected) and not evaluate.contains(asked, expected), told


FULL_QUEUE = """
import sys, time
from kvcache.bundled import batches, path
if __name__ == "__main__":
    data = batches.Background(batches.batch, str(path()), 0, 0, rows=16, length=1024, ahead=2)  # more than a pipe holds
    data.next(16, 1024)
    time.sleep(5)  # it has made more than anybody took
    print(data.processes[0].pid, flush=True)
    time.sleep(600)
"""


def test_what_makes_batches_ends_after_a_killed_training(tmp_path):
    script = tmp_path / "training.py"
    script.write_text(FULL_QUEUE)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}) as training:
        worker = psutil.Process(int(training.stdout.readline()))
        training.kill()
    gone, left = psutil.wait_procs([worker], timeout=30)
    for process in left:
        process.kill()
    assert gone


# Tokenizer


def test_a_training_whose_batches_cannot_be_made_says_so(monkeypatch, capfd):
    monkeypatch.setattr(batches, "PATIENCE", 1)
    data = batches.Background(int, str(FOLDER), 0, 0, rows=1, length=8)  # takes no tokenizer
    with pytest.raises(RuntimeError, match="has ended"):
        data.next(1, 8)
    assert "TypeError" in capfd.readouterr().err
    data.close()


def test_several_processes_make_the_batches_of_one():
    several, one = batches.Background(batches.with_trees, str(FOLDER), 3, 5, rows=2, length=64, makers=2), batches.Inline(batches.with_trees, str(FOLDER), 3, 5)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(several.next(2, 64), one.next(2, 64), strict=True))
    several.close()


@pytest.mark.parametrize("text", ["Hello Bram, 3-9-5!", " two  spaces ", "héllo wörld 你好 🎉\n\ttab", "", "A7X 395 3 9 5", "\u200bnull\x00", "don't"])
def test_any_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_digits_are_single_tokens(tokenizer):
    assert [t.strip("Ġ") for t in tokenizer.tokenize(" 4172")] == list("4172")


def test_merges_join_the_commonest_pairs_first():
    vocab, merges = {"a": 0, "b": 1, "c": 2}, []
    words.merge(vocab, merges, {("a", "b", "c"): 3, ("b", "c"): 3, ("a", "b", "a", "b"): 1}, 5)
    assert merges == [["b", "c"], ["a", "bc"]]  # six times; then three, beside the "ab" left twice
    vocab, merges = {"a": 0, "b": 1, "c": 2}, []
    words.merge(vocab, merges, {("a", "b", "c"): 1}, 100)
    assert merges == [["a", "b"], ["ab", "c"]] and vocab == {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}


@pytest.fixture(scope="module")
def extended():
    small = AutoTokenizer.from_pretrained(SMALL)
    return small, words.extended(small, 10)


def test_more_merges_make_words_whole_of_tokens_that_stay_as_they_are(extended):
    small, large = extended
    assert len(large) == 8192 and small.get_vocab().items() <= large.get_vocab().items()
    text = " my sister plays the accordion, 42 Überraschungen"
    before, after = (sum(len(tok.tokenize(f" {word}")) == 1 for word in list(words.vectors())[:4000]) for tok in (small, large))
    assert after > 2.5 * before > 1000 and large.decode(large.encode(text)) == text
    parts = words._parts(large, len(small))
    assert ["".join(small.convert_ids_to_tokens(part)) for part in parts] == large.convert_ids_to_tokens(range(len(large)))


def test_without_its_latest_merges_a_tokenizer_is_the_smaller_one_that_it_was(extended):
    small, large = extended
    text = tokenizer_module.render(evaluate.clean(dialogues.conversation(3, 600)))
    assert words.shortened(large, len(small)).encode(text) == small.encode(text) != large.encode(text)
    middle = words.shortened(large, 3072)
    assert len(middle) == 3072 and middle.get_vocab().items() <= large.get_vocab().items() and middle.decode(middle.encode(text)) == text
    assert len(large.encode(text)) < len(middle.encode(text)) < len(small.encode(text))


def test_embeddings_of_words_begin_with_what_they_mean(extended):
    small, large = extended
    known = torch.randn(len(small), 256, generator=torch.Generator().manual_seed(0)) * torch.linspace(1, 0.2, 256)
    made = words.embeddings(known, large)

    pairs = [("doctor", "hospital"), ("brother", "sister"), ("kitchen", "house"), ("train", "bus"), ("guitar", "piano"), ("winter", "summer")]

    def alike(ones, others):
        return torch.cosine_similarity(*(made[large.convert_tokens_to_ids([f"Ġ{word}" for word in words])] for words in (ones, others))).mean()

    ones, others = zip(*pairs)
    assert all(f"Ġ{word}" in large.get_vocab() for word in (*ones, *others))
    assert made.shape == (8192, 256) and torch.allclose(made[7], known[7], atol=1e-5)
    assert alike(ones, others) > alike(ones, others[1:] + others[:1]) + 0.1
    assert (made.unique(dim=0).shape[0]) == 8192


def test_the_data_maker_knows_how_long_a_token_is():
    small, count = AutoTokenizer.from_pretrained(SMALL), [0, 0, 0]
    large = words.extended(small, 300)
    middle = words.shortened(large, 3072)
    for seed in range(40):
        make = drills.told_and_asked if seed % 2 else dialogues.conversation
        text = tokenizer_module.render(evaluate.clean(make(seed, 500)))
        count = [so_far + len(tok.encode(text)) for so_far, tok in zip(count, (small, middle, large))]
    assert tokenizer_module.stretch(large) == pytest.approx(count[0] / count[2], rel=0.08) and tokenizer_module.stretch(small) == 1
    assert tokenizer_module.stretch(middle) == pytest.approx(count[0] / count[1], rel=0.04)


def test_a_shorter_conversation_is_a_prefix_of_a_longer_one(tokenizer):
    messages = evaluate.clean(dialogues.conversation(5, 400))
    rendered = [tokenizer.apply_chat_template(messages[:n], return_dict=False) for n in range(1, len(messages) + 1)]
    assert all(long[:len(short)] == short and len(long) > len(short) for short, long in pairwise(rendered))
    prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
    assert messages[-1]["role"] == "assistant" and rendered[-1][:len(prompt)] == prompt


def test_training_text_is_what_the_template_renders(tokenizer):
    messages = dialogues.conversation(6, 300)
    text, weights = batches.weighted(messages)
    assert text == tokenizer.apply_chat_template(evaluate.clean(messages), tokenize=False) and len(weights) == len(text)


# Training


def test_a_refusal_weighs_the_more_the_more_was_said(tokenizer):
    declined = [{"role": "user", "content": "who am I"}, {"role": "assistant", "content": marks.decisive("You have not told me your name.", marks.REFUSING)}]
    near, far = (set(batches.encoded(tokenizer, declined, before)[1]) for before in (0, 5000))
    assert near - far and far - near == {batches.REFUSING[1]} and max(near - far) < 1.1 * batches.REFUSING[0] < batches.REFUSING[1]
    assert batches.refusing(0) == batches.REFUSING[0] and batches.refusing(batches.FAR // 2) == pytest.approx(sum(batches.REFUSING) / 2)


def test_batches_are_a_function_of_seed_and_number(tokenizer):
    ids, weights = batches.batch(tokenizer, 0, 1, 2, 96)
    again, _ = batches.batch(tokenizer, 0, 1, 2, 96)
    assert ids.shape == weights.shape == (2, 97) and torch.equal(ids, again) and weights.max() <= batches.RECALLED


def test_muon_steps_are_nearly_orthogonal():
    update = muon.orthogonal(torch.randn(2, 24, 48, generator=torch.Generator().manual_seed(0)))
    singular = torch.linalg.svdvals(update)
    assert singular.min() > 0.5 and singular.max() < 1.4  # five Newton-Schulz steps aim at 1 within about 0.3


@pytest.mark.parametrize("length", [1, 255, 256, 700])
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("heads", [4, 8])
def test_blocked_attention_and_its_gradients_are_those_of_the_formula(length, window, heads):
    generator = torch.Generator().manual_seed(length + heads)
    q, k, v, given = (torch.randn(2, number, length, 16, generator=generator, dtype=torch.float64) for number in (heads, 4, 4, heads))
    far = torch.arange(length)[:, None] - torch.arange(length)
    visible = ((far >= 0) & (far < (window or length)))[None, None].expand(2, 1, -1, -1)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    repeated = [t.repeat_interleave(heads // 4, 1) for t in (k, v)]
    formula = ((q @ repeated[0].mT * 0.3).masked_fill(~visible, float("-inf")).softmax(-1) @ repeated[1])
    out = attend.attend(None, q, k, v, visible if window else None, 0.3)[0].transpose(1, 2)
    torch.testing.assert_close(out, formula)
    for found, wanted in zip(torch.autograd.grad(out, leaves, given), torch.autograd.grad(formula, leaves, given)):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)  # sums over blocks are of float32


@pytest.mark.parametrize("name", ["kvlab-llama-20m", "kvlab-ministral-7m", "kvlab-mistral-5m"])
def test_a_cpu_trains_in_bfloat16_on_gradients_of_the_float32_weights_direction(name, tmp_path):
    """For trees and plain rows alike; and what was learnt is copied to the weights that compute."""
    made = {}
    for kind in ([], ["--bfloat16"]):
        run = train.Run(train.parse(["--smoke", "--model", name, "--start", str(bundled.path(name)), "--work", str(tmp_path / f"{kind}"), "--threads", "1", *kind]))
        assert (run.worker is run.model) == (not kind)
        rows = [batches.batch(run.tok, 0, 0, 2, 300), batches.with_trees(run.tok, 0, next(n for n in range(99) if Random(f"0 {n}").random() < batches.EVEN.trees), 2, 300)]
        made[bool(kind)] = [torch.cat([grad.float().flatten() for grad in run.gradients(100.0, *row)[2]]) for row in rows]
        run.one_step()
        for ours, theirs in zip(run.model.parameters(), run.worker.parameters(), strict=True):
            assert ours.dtype == torch.float32 and torch.equal(ours.to(theirs.dtype), theirs)
    for plain, half in zip(made[False], made[True], strict=True):
        assert torch.nn.functional.cosine_similarity(plain, half, dim=0) > 0.99


def test_a_deeper_model_says_what_the_shallower_one_said_and_its_new_layers_can_learn(tokenizer, tmp_path):
    made = family.fresh("kvlab-llama-7m")
    with torch.no_grad():
        for p in made.parameters():
            p += 0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0))  # all of its layers write
    family.export(made, tokenizer, tmp_path)
    small = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    large = family.fresh("kvlab-llama-20m", start=tmp_path)
    ids = torch.tensor([tokenizer.encode("Hi, my name is Bram and my locker code is 4-1-7.")])
    torch.testing.assert_close(large(ids).logits, small(ids).logits)
    large(ids, labels=ids).loss.backward()
    new = [index for index, layer in enumerate(large.model.layers) if not layer.mlp.down_proj.weight.any()]
    assert len(new) == large.config.num_hidden_layers - small.config.num_hidden_layers
    assert all(layer.self_attn.o_proj.weight.grad.any() and layer.mlp.down_proj.weight.grad.any() for layer in (large.model.layers[index] for index in new))


@pytest.mark.parametrize("name", ["kvlab-llama-20m", "kvlab-llama-7m", "kvlab-llama-4m"])
def test_a_fresh_model_already_copies(name, extended):
    """That is what mimetic initialisation is for: plain initialisation gets 1 in 2,000 right. Word vectors leave it so."""
    tok = extended[family.MEMBERS[name].tokens > tokenizer_module.VOCAB_SIZE]
    fresh, generator = family.fresh(name, tok=tok), torch.Generator().manual_seed(1)
    ids = torch.randint(6, len(tok), (16, 40), generator=generator).repeat(1, 2)
    with torch.inference_mode():
        guess = fresh(ids[:, :-1]).logits.argmax(-1)
    assert (guess == ids[:, 1:])[:, 40:].float().mean() > 0.1
    assert mimetic.frequencies(fresh).shape == (32,)


def test_a_model_that_grew_says_what_the_narrower_one_said_and_all_of_it_can_learn(monkeypatch, tmp_path):
    small = AutoTokenizer.from_pretrained(SMALL)
    family.export(family.fresh("kvlab-llama-4m"), small, tmp_path)
    narrow = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    large = words.extended(small, 4)
    monkeypatch.setattr(words, "vectors", lambda: {"accordion": torch.zeros(100)})  # no meaning beside what the pieces have
    wide = family.fresh("kvlab-llama-7m", start=tmp_path, tok=large)
    ids = torch.tensor([small.encode("Hi, my name is Bram and my locker code is 4-1-7.")])
    torch.testing.assert_close(wide(ids).logits[..., :len(small)], narrow(ids).logits, atol=1e-3, rtol=1e-4)
    wide(ids, labels=ids).loss.backward()
    new = [wide.model.layers[2].self_attn.o_proj.weight.grad[:, 64:128], wide.model.layers[2].mlp.down_proj.weight.grad[:, 704:]]
    assert all((part.abs().sum(0) > 0).all() for part in new)


@pytest.mark.parametrize("name", ["kvlab-granite-5m", "kvlab-ministral-7m", "kvlab-llama-4m"])
def test_weights_of_more_layers_are_refused(name):
    with pytest.raises(ValueError, match="weights of 10 layers do not fit a model of 4"):
        family.fresh(name, start=FOLDER)


def test_only_a_narrower_model_of_the_same_kind_grows():
    wide = family.fresh("kvlab-llama-7m")
    theirs = dict(family.fresh("kvlab-llama-4m").named_parameters()) | {family.EMBEDDING: wide.model.embed_tokens.weight}
    assert grow.wider(wide, theirs) and not grow.wider(wide, dict(wide.named_parameters()))
    assert not grow.wider(family.fresh("kvlab-llama-4m"), dict(wide.named_parameters()))
    assert not grow.wider(wide, theirs | {"model.norm.weight": torch.ones(300)})


def test_rows_of_small_talk_are_mostly_whole_conversations_and_tell_nothing():
    messages = drills.chatting(1, 3000)
    assert messages == drills.chatting(1, 3000) and [m["role"] for m in messages] == ["user", "assistant"] * (len(messages) // 2)
    replies = [m["content"] for m in messages if m["role"] == "assistant"]
    stock = {reply for kind in repertoire.kinds() for reply in repertoire.fitting(kind)}
    assert sum(marks.strip(reply) in stock for reply in replies) > 0.7 * len(replies) and not any(marks.RECALLED in reply for reply in replies)


def test_a_mix_says_how_many_rows_are_drills_and_of_which_kind(tokenizer, monkeypatch):
    made = Counter()
    for kind, make in list(drills.KINDS.items()):
        monkeypatch.setitem(drills.KINDS, kind, lambda seed, length, kind=kind, make=make: made.update([kind]) or make(seed, length))
    found = {}
    for name, mix in (("even", batches.EVEN), ("talk", batches.TALK)):
        made.clear()
        for number in range(400):
            batches.row(tokenizer, f"mix {number}", 256, mix)
        found[name] = dict(made)
        asked = 400 * mix.drills[256]
        assert all(abs(made[kind] - asked * share) < 4 * (asked * share) ** 0.5 + 2 for kind, share in mix.kinds.items() if kind != "segments"), (name, made)
    assert found["talk"]["storytelling"] > 2 * found["even"]["storytelling"]


def test_the_schedule_ends_at_zero():
    assert train.rate_at(0.0) == train.rate_at(train.FLAT - 0.01) == 1.0 and train.rate_at(1.0) == 0.0
    for stages in (train.CURRICULUM, train.FURTHER, train.LONGER, train.TALKING, train.READING):
        assert abs(sum(stage.share for stage in stages) - 1) < 1e-9
    assert train.curriculum(train.parse(["--long", "--start", str(FOLDER)]), reads=False) is train.LONGER
    assert train.curriculum(train.parse(["--talk", "--start", str(FOLDER)]), reads=False) is train.TALKING
    for refused, reads in ((["--talk"], True), (["--long"], True), (["--talk", "--long"], False)):
        with pytest.raises(ValueError, match="rows of (its|their) own"):
            train.curriculum(train.parse(refused), reads)
    assert [train.stage_at(s).length for s in (0, 0.1, 0.3, 0.7, 0.9, 1.0)] == [128, 256, 512, 1024, 2048, 2048]


def test_training_from_nothing_stops_resumes_and_exports(tmp_path):
    folder = train.main(["--smoke", "--work", str(tmp_path), "--threads", "1"])
    made = AutoModelForCausalLM.from_pretrained(folder)
    assert made.dtype == torch.float16 and (tmp_path / "checkpoint.pt").exists()
    resumed = train.Run(train.parse(["--smoke", "--work", str(tmp_path)]))
    resumed.data.close()
    assert resumed.step > 0 and resumed.seconds > 0 and resumed.tokens >= resumed.total


def test_a_training_of_so_many_minutes_ends_with_them(tmp_path):
    folder = train.main(["--smoke", "--minutes", "0.05", "--rows", "2", "--work", str(tmp_path)])
    note = json.loads((folder / "training.json").read_text())
    run = train.Run(train.parse(["--smoke", "--minutes", "0.05", "--rows", "2", "--work", str(tmp_path)]))
    run.data.close()
    assert run.share() >= 1 and 3 <= run.seconds < 30 and note["tokens"] == run.tokens > 0
    assert run.stage().rows == 2 * train.SMOKE[-1].rows


@pytest.mark.parametrize("option", ["tokens", "minutes", "threads", "rows", "makers"])
def test_a_training_of_nothing_is_refused(option, capsys):
    with pytest.raises(SystemExit):
        train.parse([f"--{option}", "0"])
    assert f"--{option} must be above 0, got 0" in capsys.readouterr().err


def test_what_is_left_out_while_training_changes_and_is_whole_again_after(tmp_path, capsys):
    run = train.Run(train.parse(["--smoke", "--dropout", "0.3", "--start", str(FOLDER), "--work", str(tmp_path)]))
    ids = run.data.next(2, 64)[0][:, :-1].long()
    with torch.no_grad():
        one, other = (run.model(ids).logits for _ in range(2))
        whole = run.model.eval()(ids).logits
        torch.testing.assert_close(whole, AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)(ids).logits, atol=1e-4, rtol=1e-4)
    assert not torch.equal(one, other) and (one - whole).norm() < 2 * whole.norm()
    with pytest.raises(SystemExit):
        train.parse(["--dropout", "1"])
    assert "--dropout must be from 0 to below 1, got 1.0" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "blocks"), [("kvlab-llama-20m", 20), ("kvlab-ministral-7m", 8), ("kvlab-granite-5m", 8), ("kvlab-mamba2-5m", 8)])
def test_every_block_of_a_layer_may_leave_things_out(name, blocks):
    model = family.fresh(name)
    train.drop_out(model, 0.1)
    assert sum(len(module._forward_hooks) for module in model.modules()) == blocks


def test_what_a_reader_can_not_do_in_training_is_refused():
    with pytest.raises(ValueError, match="--dropout is for models with blocks called self_attn"):
        train.drop_out(family.fresh("kvlab-umt5-5m"), 0.1)
    with pytest.raises(ValueError, match="--long is for models of conversations"):
        train.curriculum(train.parse(["--long"]), reads=True)


def test_bfloat16_changes_gradients_by_rounding_alone_and_leaves_parameters_in_float32(tmp_path):
    made = {}
    for flags in ([], ["--bfloat16"]):
        run = train.Run(train.parse(["--smoke", "--start", str(FOLDER), "--work", str(tmp_path / str(len(flags))), *flags]))
        ids, weights, *places = run.data.next(4, 64)
        loss, _, gradients = run.gradients(float(weights[:, 1:].sum()), ids, weights, *places)
        made[len(flags)] = loss, torch.cat([g.flatten() for g in gradients])
        run.one_step()
        run.data.close()
        assert {p.dtype for p in run.model.parameters()} == {torch.float32}
    (exact, sharp), (loss, rounded) = made[0], made[1]
    assert not torch.equal(sharp, rounded) and torch.cosine_similarity(sharp, rounded, dim=0) > 0.99
    assert abs(loss - exact) < 0.02 * exact


def test_averaged_weights_lie_between_two_models_of_one_shape(tmp_path):
    one, other = (AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32) for _ in range(2))
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1.0)
    other.save_pretrained(tmp_path / "other")
    average.main([str(FOLDER), str(tmp_path / "other"), "--share", "0.25", "--out", str(tmp_path / "out")])
    mixed = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert all(torch.allclose(p + 0.25, q, atol=1e-6) for p, q in zip(one.parameters(), mixed.parameters()))
    average.main([str(FOLDER), str(FOLDER), "--out", str(tmp_path / "rounded"), "--bits", "7"])
    rounded = AutoModelForCausalLM.from_pretrained(tmp_path / "rounded")
    assert all(q.dtype == torch.float16 and torch.equal(p.bfloat16().half(), q) for p, q in zip(one.parameters(), rounded.parameters()))
    with pytest.raises(ValueError, match="only models of one shape"):
        average.average(FOLDER, bundled.path("kvlab-mamba2-5m"), 0.5, tmp_path / "none")


@pytest.mark.parametrize("name", ["first", "second", "third", "fourth"])
def test_talks_to_be_judged_have_a_hundred_turns(name):
    lines = [line for talk in talks.talks(name) for line in talk]
    assert sum(not line.startswith("System: ") for line in lines) == 100 and all(line.strip() == line and line for line in lines)


# The model that ships


def test_no_bundled_file_is_over_ten_megabytes():
    files = [f for f in Path(bundled.__file__).parent.rglob("*") if f.is_file()]
    assert set(family.files(FOLDER)) <= set(files)
    assert max(f.stat().st_size for f in files) < 10_000_000


def test_unknown_bundled_models_are_named():
    with pytest.raises(KeyError, match="kvlab-llama-20m"):
        bundled.path("nothing")


def test_the_model_says_what_it_was_told(shipped, tokenizer):
    talk = [{"role": "user", "content": "Hi, my name is Bram."}, {"role": "assistant", "content": "Nice to meet you."}, {"role": "user", "content": "What is my name?"}]
    assert "Bram" in evaluate.replies(shipped, tokenizer, [talk])[0]


def test_the_model_adds_single_digits_and_some_of_what_stories_tell(shipped, tokenizer):
    def right(asked):
        replies = evaluate.replies(shipped, tokenizer, [[{"role": "user", "content": question}] for question, _ in asked])
        return sum(f" is {result}." in reply for (_, result), reply in zip(asked, replies))

    stories = []
    for seed in range(400):
        turns = sums.story(Random(seed))
        ((_, sign, _, result),) = read_sums(marks.strip(turns[-1][1]))
        if len(turns) == 1 and sign in ("plus", "minus"):
            stories.append((grammar.expand(Random(seed), turns[0][0]), result))
    assert right([(f"What is {a} + {b}?", a + b) for a in range(10) for b in range(10)]) >= 95
    assert right(stories[:100]) >= 20, "of a hundred with numbers up to 20"


def test_the_model_declines_what_it_was_never_told(shipped, tokenizer):
    talk = [{"role": "user", "content": "What is my name?"}]
    assert evaluate.DECLINE in evaluate.replies(shipped, tokenizer, [talk])[0]


def test_recall_right_after_the_telling_of_values_never_seen_in_training(shipped, tokenizer):
    """A floor: 190 of 200 were measured (see the model card)."""
    cases = evaluate.generated(40, 128)
    assert evaluate.score(cases, evaluate.replies(shipped, tokenizer, [c.messages for c in cases]))["recalled"] >= 0.85


def test_what_each_cache_forgets_is_measured_with_the_caches_themselves(shipped, tokenizer):
    caches = (("dynamic", {}), ("static", {"max_cache_len": 256}), ("sliding_window", {"window_length": 32}), ("sink", {"window_length": 32}))
    rows = {row.label: row for row in separation.measure(shipped, tokenizer, 8, (100,), caches, tell=lambda line: None)}
    assert list(rows) == ["Dynamic", "Static 256", "Window 32", "Sink 4 + 28", separation.UPSTREAM, separation.NO_CACHE, separation.NEVER_TOLD]
    assert rows["Dynamic"].recalled["100"] >= 0.75
    assert all(rows[label].same["100"] == 1 for label in ("Static 256", separation.NO_CACHE))
    assert all(rows[label].recalled["100"] <= 0.25 for label in ("Window 32", "Sink 4 + 28", separation.NEVER_TOLD))


def test_recall_at_512_tokens_of_values_never_seen_in_training(shipped, tokenizer):
    """A floor: 180 of 200 were measured."""
    cases = evaluate.generated(40, 512)
    assert evaluate.score(cases, evaluate.replies(shipped, tokenizer, [c.messages for c in cases]))["recalled"] >= 0.8


def test_a_model_is_marked_by_the_kinds_of_its_replies(shipped, monkeypatch):
    every = remarks.lines
    monkeypatch.setattr(remarks, "lines", lambda kind, held: every(kind, held)[:10])  # all of them take a minute
    found = talks.in_kind(shipped, AutoTokenizer.from_pretrained(FOLDER))
    assert set(found) == set(remarks.KINDS)
    new = set(remarks.SPECIAL)
    old_share, new_share = (sum(talks.share(found[kind]) for kind in kinds) / len(kinds) for kinds in (set(found) - new, new))
    assert talks.share(found["thanks"]) >= 0.6 and old_share >= 0.7 and new_share >= 0.3, "80 % of all lines of the old kinds were measured, 47 % of those of the newer ones"


def test_the_model_knows_what_to_say_to_reactions(shipped, monkeypatch):
    every = reactions.lines
    monkeypatch.setattr(reactions, "lines", lambda kind, held: every(kind, held)[:4])  # all of them take half a minute
    found = talks.reacted(shipped, AutoTokenizer.from_pretrained(FOLDER))
    assert set(found) == set(reactions.REPLIES) and sum(map(talks.share, found.values())) / len(found) >= 0.43, "56 % of all were measured"


def test_the_model_knows_which_reply_fits_in_a_conversation(shipped, monkeypatch):
    held = repertoire.conversations(True)[::3]
    monkeypatch.setattr(repertoire, "conversations", lambda _: held)
    found = talks.in_conversation(shipped, AutoTokenizer.from_pretrained(FOLDER))
    rights = [right for kind in found.values() for right in kind]
    assert len(rights) == sum(map(len, held)) and talks.share(rights) >= 0.47, "68 % of all were measured"


def test_the_model_recalls_what_held_out_situations_tell(shipped, monkeypatch):
    held = situations.situations(True)[::6]
    monkeypatch.setattr(situations, "situations", lambda _: held)
    found = talks.in_situation(shipped, AutoTokenizer.from_pretrained(FOLDER))
    assert set(found) == {"recalled", "declined", "in kind"} and len(found["recalled"]) > 100 and talks.share(found["recalled"]) >= 0.5, "72 % of all were measured"
    assert talks.share(found["declined"]) >= 0.35, "75 % of 142 were measured"


def test_the_model_tells_stories_by_heart_and_then_the_next(shipped, tokenizer):
    every = stories.stories()
    chosen = [number for number, story in enumerate(every) if story.hero not in {other.hero for other in every[:number]}][::4]
    asked = [[{"role": "user", "content": f"Tell me a story about {grammar.article(every[number].hero)} {every[number].hero}."}] for number in chosen]
    told = evaluate.replies(shipped, tokenizer, asked, max_new_tokens=80)
    right = [reply.strip() == every[number].whole for number, reply in zip(chosen, told)]
    assert sum(right) >= 0.8 * len(chosen), told
    more = [[*messages, {"role": "assistant", "content": reply}, {"role": "user", "content": "Another one, please!"}] for messages, reply in zip(asked, told)]
    following = evaluate.replies(shipped, tokenizer, more, max_new_tokens=80)
    assert sum(one.strip() != other.strip() for one, other in zip(told, following)) >= 0.6 * len(chosen)


def test_the_model_adds_what_is_asked_by_the_way(shipped, tokenizer):
    asked = [sums.casual(Random(seed), held=True) for seed in range(60)]
    replies = evaluate.replies(shipped, tokenizer, [[{"role": "user", "content": question}] for question, _ in asked])
    results = [[result for *_, result in read_sums(text)] for text in (*replies, *(marks.strip(right) for _, right in asked))]
    assert sum(got[-1:] == right for got, right in zip(results[:60], results[60:], strict=True)) >= 45, "ways of asking held out from training"


def test_replies_that_fit_are_likelier_than_those_of_other_chats(shipped):
    model, tok = shipped, AutoTokenizer.from_pretrained(FOLDER)
    held = chats.chats(True)[:12]
    first = tuple((chat[0],) for chat in held)
    elsewhere = tuple(((said, other[0][1]),) for ((said, _),), other in zip(first, held[1:] + held[:1]))
    assert talks.loss(model, tok, held) < math.log(len(tok)) and talks.loss(model, tok, first) < talks.loss(model, tok, elsewhere) - 0.3
    (said, *_), (reply, *_) = first[0][0]
    prompt, whole = (tok.apply_chat_template([{"role": "user", "content": said}, *more], add_generation_prompt=not more, return_dict=False) for more in ([], [{"role": "assistant", "content": reply}]))
    with torch.no_grad():
        steps = [model(torch.tensor([whole[:n]])).logits[0, -1].log_softmax(-1)[whole[n]].item() for n in range(len(prompt), len(whole))]
    assert talks.loss(model, tok, first[:1]) == pytest.approx(-sum(steps) / len(steps), rel=1e-4)
