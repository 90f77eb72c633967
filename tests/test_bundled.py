"""The models that ship: their questions are whole, their tokenizer loses nothing, they remember what they are told, and cards and charts say what was found."""

import json
from itertools import pairwise

import pytest
from transformers import AutoTokenizer

from kvcache import bundled
from kvcache.bundled import card, evaluate, questions, separation
from kvcache.catalog import first_fitting
from kvcache.chat import models
from kvcache.chat.conversation import Conversation
from ui.compare_events import DEMO
from ui.page import PRESETS

EVERY = [(kind, distance) for distance in (77, 128, 142, 155, 310, 512, 568, 620, 1024, 1137, 1239, 1500, 1665, 1815) for kind in questions.kinds(distance)]


@pytest.fixture(scope="module")
def shipped():
    return evaluate.load(bundled.path())


def recalled(model, tokenizer, kind, distance, count):
    cases = questions.cases(kind, questions.tokens(distance, tokenizer), count)
    return evaluate.score(cases, evaluate.replies(model, tokenizer, [case.messages for case in cases]))


# What is asked


def test_every_question_is_about_what_was_told_first_or_about_what_nobody_told():
    for kind, distance in EVERY:
        for case in questions.cases(kind, distance):
            roles = [message["role"] for message in case.messages]
            assert roles == [("user", "assistant")[i % 2] for i in range(len(roles))] and roles[-1] == "user" and len(roles) > 2
            told, *_, asked = (message["content"] for message in case.messages)
            assert bool(case.expected) == ("never" not in kind)
            assert not case.expected or evaluate.contains(told, case.expected) and not evaluate.contains(asked, case.expected), (told, asked)


@pytest.mark.parametrize("name", bundled.MODELS)
def test_every_model_is_asked_at_the_distances_that_the_page_plots(name):
    tokenizer = AutoTokenizer.from_pretrained(bundled.path(name))
    distances, count = (separation.DISTANCES, 100) if name == bundled.DEFAULT else (evaluate.DISTANCES, 40)
    for distance in distances:
        cases = questions.cases("trained_ways", questions.tokens(distance, tokenizer), count)
        told_to_asked = [len(tokenizer.apply_chat_template(case.messages[2:-1], return_dict=False)) for case in cases]
        assert sum(told_to_asked) / count == pytest.approx(distance, rel=0.18), "in the model's own tokens, by estimate"


def test_the_sets_of_evaluations_are_asked_at_512_and_1024_tokens(shipped):
    for distance in (512, 1024):
        found = evaluate.shipped()[bundled.DEFAULT]
        counts = {kind: cells[str(distance)]["questions"] for kind, cells in found.items() if kind != "passages"}
        there = {kind: len(questions.cases(kind, far)) for far in [questions.tokens(distance, shipped[1])] for kind in questions.kinds(far)}
        assert there == counts | {"trained_ways": 100, "new_ways": 100}


@pytest.mark.parametrize(("ask", "why"), [
    (lambda: questions.cases("old_ways", 620), "no questions are called 'old_ways'; there are trained_ways, new_ways, hand_written"),
    (lambda: questions.cases("trained_ways", 620, 101), "there are not 101 questions 'trained_ways' at 620 tokens; there are .*100 at 620"),
    (lambda: questions.cases("hand_written", 77), "there are not any questions 'hand_written' at 77 tokens; there are 124 at 155"),
    (lambda: questions.kinds(300), "nothing is asked at 300 tokens, but at 77, 155"),
])  # fmt: skip
def test_what_is_not_asked_is_said_so(ask, why):
    with pytest.raises(ValueError, match=why):
        ask()


def test_unknown_bundled_models_are_named():
    with pytest.raises(KeyError, match="kvlab-llama-20m"):
        bundled.path("nothing")


# The tokenizer


@pytest.mark.parametrize("text", ["Hello Bram, 3-9-5!", " two  spaces ", "héllo wörld 你好 🎉\n\ttab", "", "A7X 395 3 9 5", "\u200bnull\x00", "don't"])
def test_any_text_survives_the_tokenizer(shipped, text):
    assert shipped[1].decode(shipped[1](text)["input_ids"]) == text


def test_digits_are_single_tokens(shipped):
    assert [t.strip("Ġ") for t in shipped[1].tokenize(" 4172")] == list("4172")


def test_a_shorter_conversation_is_a_prefix_of_a_longer_one(shipped):
    messages, tokenizer = questions.cases("trained_ways", 310)[5].messages, shipped[1]
    rendered = [tokenizer.apply_chat_template(messages[:n], return_dict=False) for n in range(1, len(messages) + 1)]
    assert all(long[:len(short)] == short and len(long) > len(short) for short, long in pairwise(rendered))
    prompt = tokenizer.apply_chat_template(messages[:-2], add_generation_prompt=True, return_dict=False)
    assert messages[-2]["role"] == "assistant" and rendered[-2][:len(prompt)] == prompt


# What the models say


def test_the_model_says_what_it_was_told_and_declines_what_it_was_not(shipped):
    asked = {"role": "user", "content": "What is my name?"}
    talk = [{"role": "user", "content": "Hi, my name is Bram."}, {"role": "assistant", "content": "Nice to meet you."}, asked]
    told, untold = evaluate.replies(*shipped, [talk, [asked]])
    assert "Bram" in told and evaluate.DECLINE in untold


def test_the_model_adds_single_digits(shipped):
    sums = [(a, b) for a in range(10) for b in range(10)]
    replies = evaluate.replies(*shipped, [[{"role": "user", "content": f"What is {a} + {b}?"}] for a, b in sums])
    assert sum(f" is {a + b}." in reply for (a, b), reply in zip(sums, replies)) >= 95


@pytest.mark.parametrize(("kind", "distance", "share"), [pytest.param("trained_ways", 512, 0.85, marks=pytest.mark.slow), ("new_ways", 128, 0.7), ("sixth", 128, 0.8)])
def test_the_model_recalls_about_as_often_as_its_card_says(shipped, kind, distance, share):
    assert recalled(*shipped, kind, distance, 16)["recalled"] >= share


def test_the_model_declines_about_as_often_as_its_card_says(shipped):
    assert recalled(*shipped, "fourth_never_told", 128, 16)["declined"] >= 0.75


@pytest.mark.parametrize("name", [name for name in bundled.MODELS if name != bundled.DEFAULT])
def test_a_relative_recalls_as_often_as_its_figures_say(name):
    found = evaluate.shipped()[name]["trained_ways"]["128"]
    assert abs(recalled(*evaluate.load(bundled.path(name)), "trained_ways", 128, 24)["recalled"] - found["recalled"]) < 0.25  # 24 of the same questions


@pytest.mark.parametrize("name", bundled.MODELS)
def test_every_model_that_ships_chats_on_the_cache_that_is_made_for_it(name):
    loaded = models.ModelStore().load(name, device="cpu")
    told, reads = "My name is Oscar and my dog is called Biscuit.", loaded.is_encoder_decoder
    talk = Conversation(loaded, first_fitting(loaded.model), system=told if reads else None)
    for message in ("Hello!" if reads else told, "What is my name?"):
        for _ in talk.send(message):
            pass
    assert "Oscar" in talk.messages[-1]["content"]
    assert talk.cache.get_seq_length() == len(talk.cached_ids) > 20


# What was measured


@pytest.mark.parametrize("name", bundled.MODELS)
def test_a_models_card_says_what_was_found(name):
    text = (bundled.path(name) / "README.md").read_text()
    assert card.table(evaluate.shipped()[name]) in text
    measured = separation.read(bundled.path(name))
    assert measured is None or separation.table(measured) in text
    assert bundled.WHAT[name] in text and f"{bundled.nbytes(name) / 1e6:.1f} MB" in text and "1e93f6c" in text


def test_an_evaluation_and_a_separation_are_printed_and_written(tmp_path, capsys):
    small = ["--model", str(bundled.path("kvlab-mistral-5m")), "--distances", "128", "--questions", "2", "--json", str(tmp_path / "found.json")]
    assert evaluate.main(small) == json.loads((tmp_path / "found.json").read_text()) != {}
    assert "| trained ways: recalled | 2 |" in capsys.readouterr().out


@pytest.mark.slow
def test_what_each_cache_forgets_is_measured_with_the_caches_themselves(shipped):
    caches = (("dynamic", {}), ("static", {"max_cache_len": 256}), ("sliding_window", {"window_length": 32}), ("sink", {"window_length": 32}))
    rows = {row.label: row for row in separation.measure(*shipped, 8, (64,), caches, tell=lambda line: None)}
    assert list(rows) == ["Dynamic", "Static 256", "Window 32", "Sink 4 + 28", separation.UPSTREAM, separation.NO_CACHE, separation.NEVER_TOLD]
    assert rows["Dynamic"].recalled["64"] >= 0.75
    assert all(rows[label].same["64"] == 1 for label in ("Static 256", separation.NO_CACHE))
    assert all(rows[label].recalled["64"] <= 0.25 for label in ("Window 32", "Sink 4 + 28", separation.NEVER_TOLD))


def test_what_was_measured_on_the_default_sets_the_caches_apart():
    measured = {row["label"]: row["recalled"] for row in separation.read()["rows"]}
    full, crude, native = measured["Dynamic"]["512"], measured[separation.UPSTREAM]["512"], measured["Native 2-bit"]["512"]
    assert crude <= full - 0.25 and crude < native <= full
    assert measured["Native 8-bit"]["512"] >= full - 0.01 and measured["Native 4-bit"]["512"] >= full - 0.03
    assert measured["Static 2048"] == measured["Offloaded"] == measured["Dynamic"]
    assert measured[separation.NO_CACHE].items() <= measured["Dynamic"].items(), "asked as far as 1,024 tokens"


@pytest.mark.slow
def test_the_guided_demo_sets_its_four_columns_apart():
    loaded, heard = models.load(models.DEFAULT), []
    for name, parameters in PRESETS:
        talk, right = Conversation(loaded, name, parameters), []
        for text, expected in DEMO:
            list(talk.send(text))
            if expected:
                right.append(expected in talk.messages[-1]["content"])
        heard.append((name, right))
    assert heard == [("dynamic", [True, True]), ("quantized", [True, True]), ("sink", [False, False]), ("quantized", [False, False])]
