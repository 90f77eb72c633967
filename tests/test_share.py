"""Keep and share: the link, the file taken in, and what each refuses, without a browser."""

import base64
from dataclasses import replace

import pytest
import torch
from tiny_chat import make_model, tiny

import ui  # noqa: F401  (before gradio: telemetry off)
from kvcache import create, feed
from kvcache.chat import models, record
from kvcache.chat.conversation import Conversation
from kvcache.chat.engine import Sampling
from kvcache.chat.record import RecordError
from kvcache.memory import measure_added, measure_memory
from ui import kept, share, view
from ui.state import Session, Settings

WORDS = "The keeper counts the ships that pass before dawn. "


@pytest.fixture(autouse=True)
def only_tiny(monkeypatch):
    """The one model that is here is the tiny one."""
    monkeypatch.setattr(models, "load", lambda model_id="tiny-llama", **_: tiny())
    monkeypatch.setattr(models, "is_here", lambda model_id: model_id == "tiny-llama")


def talked(cache="sink", **parameters):
    talk = Conversation(tiny(), cache, parameters, None, Sampling(max_new_tokens=6))
    for _ in talk.send(WORDS):
        pass
    return talk


def url(raw):
    return f"data:application/octet-stream;base64,{base64.b64encode(raw).decode()}"


@pytest.mark.parametrize("cache, parameters", [("sink", {"window_length": 64, "num_sink_tokens": 4}), ("quantized", {"nbits": 2, "residual_length": 16}), ("dynamic", {}),
                                               ("encoder_decoder", {"self_cache": "sink", "window_length": 64})])
def test_a_link_says_what_was_set_and_is_read_back(cache, parameters):
    text = share.query(Settings("tiny-llama", cache, parameters))
    assert "num_sink_tokens" not in text  # the default
    settings, refused = share.read_link(dict(part.split("=") for part in text.split("&")), "other")
    assert (settings.model, settings.cache, refused) == ("tiny-llama", cache, [])
    assert settings.parameters == {name: value for name, value in parameters.items() if name != "num_sink_tokens"}


@pytest.mark.parametrize("given, words", [({"model": "evil/huge"}, "evil/huge, which is not on this computer"), ({"cache": "nonsense"}, "no cache|the cache 'nonsense'"),
                                          ({"cache": "sink", "window_length": "many"}, "window_length must be"), ({"cache": "quantized", "nbits": "5"}, "nbits must be one of")])
def test_what_a_link_may_not_ask_for_is_a_sentence_and_nothing_is_downloaded(given, words):
    settings, refused = share.read_link(given, "tiny-llama")
    assert settings.model == "tiny-llama" and len(refused) == 1 and any(word in refused[0] for word in words.split("|"))


def test_nothing_is_here_that_would_have_to_be_downloaded(monkeypatch):
    monkeypatch.undo()
    assert models.is_here(models.DEFAULT) and not models.is_here("somebody/some-model") and not models.is_here("..") and not models.is_here("/etc")


def test_python_of_a_set_up_answers_the_chats_first_message():
    session, wanted = Session("a"), Settings("tiny-llama", "sink", {"window_length": 64}, "", {"max_new_tokens": 6})
    assert share.FIRST_MESSAGE in share.python_of(None, wanted)
    session.conversation = talked()
    assert WORDS in share.python_of(session, wanted)
    with pytest.raises(ValueError, match="window_length must be"):
        share.python_of(session, replace(wanted, parameters={"window_length": 1}))


@pytest.mark.parametrize("with_cache", [False, True])
def test_a_chat_goes_out_and_comes_in_and_the_next_reply_says_what_was_reused(with_cache):
    talk = talked(window_length=64)
    file = share.with_cache(talk) if with_cache else url(record.to_json(talk).encode())
    other, words = share.read_file(file)
    session = Session("a")
    session.adopt(other, share.settings_of(other))
    assert session.prepare(Settings("tiny-llama", "sink", {"window_length": 64, "num_sink_tokens": 4}, "", {"max_new_tokens": 6})) == ""  # the form's settings are the file's
    *_, done = session.conversation.send("and then")
    assert done.stats.reused == (len(talk.cached_ids) if with_cache else 0)
    assert ("holds" in words) is with_cache and session.conversation.messages[:2] == talk.messages


@pytest.mark.parametrize("raw, words", [("too large", "larger than 300 MB"), ("data:;base64,!!", "could not be read"), (url(b""), "no whole JSON"), (url(b"{"), "no whole JSON"),
                                        (url(b"\x00\x01rubbish"), "not a whole safetensors file")])
def test_a_file_that_is_none_is_a_sentence(raw, words):
    with pytest.raises(ValueError, match=words):
        share.read_file(raw)


def test_a_file_of_a_model_that_is_not_here_downloads_nothing(monkeypatch):
    text = record.to_json(talked())
    monkeypatch.setattr(models, "is_here", lambda model_id: False)
    monkeypatch.setattr(models, "load", lambda *_: pytest.fail("loaded"))
    with pytest.raises(models.ModelError, match="tiny-llama, which is not on this computer"):
        share.read_file(url(text.encode()))


def test_nothing_is_kept_of_an_empty_chat_or_while_a_reply_is_written():
    session = Session("a")
    with pytest.raises(ValueError, match="nothing to keep"):
        share.ready(session)
    session.conversation = talked()
    session.chat_box.take("and then")
    with pytest.raises(ValueError, match="is being written"):
        share.ready(session)


def test_a_cache_larger_than_the_page_keeps_is_refused():
    talk = talked()
    with pytest.raises(ValueError, match="are kept for all caches"):
        Session("a", budget=100).adopt(talk, share.settings_of(talk))


def test_a_cache_out_of_the_menu_is_refused():
    talk = talked()
    talk.cache_name = "hqq"
    with pytest.raises(RecordError, match="no cache 'hqq'"):
        share.settings_of(talk)


# -- branches ------------------------------------------------------------------------------------------------------

@pytest.fixture
def session():
    """A chat of three turns."""
    session = Session("a")
    session.prepare(Settings("tiny-llama", "dynamic", {}, "", {"max_new_tokens": 6}))
    for number in range(3):
        say(session, f"{WORDS}{number}")
    return session


def say(session, text):
    *_, done = session.conversation.send(text)
    return done.stats


def test_a_fork_costs_nothing_until_one_of_the_two_goes_on():
    cache = create("dynamic", tiny().model)
    feed(tiny().model, torch.randint(3, 200, (1, 40)), cache)
    branch = cache.fork()
    assert measure_added(branch, [cache]) == 0 and measure_added(branch, []) == measure_memory(branch).total
    feed(tiny().model, torch.randint(3, 200, (1, 40)), branch)
    assert measure_added(branch, [cache]) > 0


def test_a_branch_behind_an_earlier_turn_goes_on_by_itself(session):
    main, whole = session.conversation, session.conversation.messages
    assert session.branches.fork(session, 1).startswith("Forked behind turn 1")
    assert session.conversation.messages == whole[:2] and session.branches.at == 1
    assert say(session, "something else").reused > 0
    session.branches.switch(session, 0)
    assert session.conversation is main and session.conversation.messages == whole
    assert say(session, "and then").reused > len(main.turns[0].prompt_ids)
    session.branches.switch(session, 1)
    assert [message["content"] for message in session.conversation.messages[::2]] == [f"{WORDS}0", "something else"]
    assert [words.split(" · ")[:2] for words, _ in session.branches.choices()] == [["main", "4 turns"], ["main › 1", "2 turns"]]


def test_shared_bytes_are_counted_once(session):
    alone = session.nbytes
    session.branches.fork(session, None)
    assert session.nbytes == alone
    assert all("0 B of its own" in words for words, _ in session.branches.choices())
    say(session, "and then")
    assert alone < session.nbytes


def test_a_branch_keeps_the_settings_it_was_said_under(session):
    session.branches.fork(session, 2)
    session.prepare(Settings("tiny-llama", "sink", {"window_length": 64, "num_sink_tokens": 4}, "", {"max_new_tokens": 6}))
    say(session, "and then")
    session.branches.switch(session, 0)
    assert session.settings.cache == session.conversation.cache_name == "dynamic"
    session.branches.switch(session, 1)
    assert session.settings.cache == session.conversation.cache_name == "sink" and len(session.conversation.turns) == 3


def test_what_is_shown_under_replies_goes_with_the_branch(session):
    shown = [message["content"] for message in view.chat_messages(session)]
    assert [("cut at the longest length" in line, "Continue" in line) for line in shown[2::3]] == [(True, False), (True, False), (True, True)]
    session.branches.fork(session, 1)
    assert "Continue" in view.chat_messages(session)[2]["content"]
    session.branches.switch(session, 0)
    assert [message["content"] for message in view.chat_messages(session)] == shown


def test_a_message_that_is_tried_again_leaves_what_came_of_it_as_a_branch(session):
    before = session.conversation.messages
    assert session.branches.retry(session, 3) is None and session.branches.all == []  # the last one: its reply is made again in its place
    assert session.branches.retry(session, "") is None  # as the page sends an empty box
    assert session.branches.retry(session, "2") == before[2]["content"]
    assert session.conversation.messages == before[:2]
    session.branches.switch(session, 0)
    assert session.conversation.messages == before
    assert session.branches.retry(session, 1) == before[0]["content"] and session.conversation.messages == []
    session.branches.switch(session, 0)
    with pytest.raises(ValueError, match="The turn to retry"):
        session.branches.retry(session, 4)


def test_a_session_that_is_freed_frees_its_branches_and_each_goes_on(session):
    session.branches.fork(session, 1)
    session.release()
    assert session.nbytes == 0
    session.branches.switch(session, 0)
    assert "recomputed all" in say(session, "and then").note and len(session.conversation.turns) == 4


@pytest.mark.parametrize("turn, words", [(9, "from 1 to 3, got 9"), (0, "from 1 to 3, got 0"), (-1, "from 1 to 3"), (1.5, "whole number")])
def test_a_turn_that_is_none_is_a_sentence(session, turn, words):
    with pytest.raises(ValueError, match=words):
        session.branches.fork(session, turn)
    assert not session.branches.all


def test_an_empty_chat_and_a_ninth_branch_are_refused(session):
    with pytest.raises(ValueError, match="no turn to fork"):
        Session("b").branches.fork(Session("b"), None)
    for _ in range(7):
        session.branches.fork(session, None)
    with pytest.raises(ValueError, match="8 branches"):
        session.branches.fork(session, None)


@pytest.mark.parametrize("turn, left", [(None, 2), (2, 1), (1, 0)])
def test_an_edited_message_is_given_back_and_its_former_reply_stays_as_a_branch(session, turn, left):
    whole = session.conversation.messages
    session.branches.edit(session, turn)
    assert session.chat_box.into("") == f"{WORDS}{left}" and len(session.conversation.turns) == left
    say(session, f"{WORDS}{left}")  # as it was: tried again
    assert session.conversation.messages == whole[: 2 * left + 2]
    session.branches.switch(session, 0)
    assert session.conversation.messages == whole


def test_there_is_nothing_to_edit_in_an_empty_chat_and_no_turn_0(session):
    with pytest.raises(ValueError, match="no turn to edit"):
        Session("b").branches.edit(Session("b"), None)
    with pytest.raises(ValueError, match="from 1 to 3, got 0"):
        session.branches.edit(session, 0)


# -- kept in the browser -------------------------------------------------------------------------------------------

def kept_chat(session):
    text, sentence = kept.write(session)
    assert sentence == ""
    return text


def taken_up(text, model="tiny-llama"):
    session = Session("b")
    return session, kept.take_up(session, text, model)


def test_a_kept_chat_goes_on_with_its_true_ids_figures_versions_and_endings(session):
    list(session.conversation.regenerate())
    other, words = taken_up(kept_chat(session))
    assert words == "" and other.conversation.turns == session.conversation.turns
    assert len(other.conversation.turns[-1].versions) == 2 and {turn.reason for turn in other.conversation.turns} == {"length"}
    assert view.chat_messages(other) == view.chat_messages(session)
    assert other.prepare(session.settings) == ""  # nothing has changed
    assert say(other, "and then").note.endswith("the page was opened anew")


def test_what_is_kept_grows_with_the_words_and_not_with_their_square(session):
    short = len(kept_chat(session))
    for number in range(3):
        say(session, f"{WORDS}{number}")
    assert len(kept_chat(session)) < 2.3 * short < len(record.to_json(session.conversation))


def test_the_next_reply_finds_the_prefix_that_the_tab_before_had_read(session, monkeypatch):
    monkeypatch.setenv("KVCACHE_PREFIX_BYTES", "100000000")
    loaded = make_model("llama")
    monkeypatch.setattr(models, "load", lambda model_id="tiny-llama", **_: loaded)
    before, wanted = Session("a"), Settings("tiny-llama", "sink", {"window_length": 64, "num_sink_tokens": 4}, "", {"max_new_tokens": 6})
    before.prepare(wanted)
    say(before, WORDS * 20)
    other, _ = taken_up(kept_chat(before))
    other.prepare(wanted)
    stats = say(other, "and then")
    assert stats.kept == stats.reused == len(before.conversation.ids) - 1


def test_an_empty_chat_keeps_nothing_and_one_that_is_too_long_says_so(session, monkeypatch):
    assert kept.write(Session("b")) == kept.write(None) == ("", "")
    monkeypatch.setattr(kept, "LARGEST", 500)
    text, sentence = kept.write(session)
    assert sentence == kept.GROWN_TOO_LONG and len(text) < 500
    assert taken_up(text)[1] == kept.WAS_TOO_LONG and taken_up("")[1] == ""


@pytest.mark.parametrize("damage", [lambda text: text[:-9], lambda text: "[]", lambda text: "null", lambda text: "x", lambda text: "[" * 100_000, lambda text: text.replace(kept.FORMAT, "kvcache page 0"),
                                    lambda text: text.replace("keeper", "sleeper", 1), lambda text: text.replace('"turns": [{', '"turns": [7, {'), lambda text: '{"format": "kvcache page 1", "model": "tiny-llama"}'])
def test_what_is_damaged_foreign_or_old_is_a_sentence_and_a_fresh_page(session, damage):
    text = damage(kept_chat(session))
    other = Session("b")
    with pytest.raises(RecordError, match="the page begins anew"):
        kept.take_up(other, text, "tiny-llama")
    assert other.conversation is None


def test_turns_that_would_unfold_to_more_than_is_kept_are_refused():
    turn = {"prompt_text": [0, "x" * 1_000_000], "prompt_ids": [0, []], "reply_ids": [], "versions": []}
    again = {**turn, "prompt_text": [1_000_000, ""]}
    for turns in ([turn, *[again] * 10_000], [{**turn, "versions": [again] * 10_000}]):
        with pytest.raises(RecordError):
            kept.unfolded(turns)


def test_a_chat_with_a_model_that_is_not_here_goes_on_with_another_and_says_so(session):
    text = kept_chat(session).replace('"model": "tiny-llama", "record"', '"model": "somebody/gone", "record"')
    other, words = taken_up(text)
    assert "somebody/gone, which is not on this computer" in words and other.conversation.messages == session.conversation.messages
    assert not other.conversation.ids and "opened anew" in say(other, "and then").note


def test_a_chat_that_has_begun_meanwhile_stays(session):
    mine = session.conversation
    assert kept.take_up(session, kept_chat(session), "tiny-llama") == kept.BEGUN and session.conversation is mine


@pytest.mark.parametrize("text", [None, "", "{", "[1]", "7", '{"model": ["a"], "cache": null}'])
def test_a_form_that_can_not_be_read_is_an_empty_one(text):
    assert kept.read_values(text) == {}


def test_sampling_that_can_not_be_is_left_out_whole():
    assert kept.sound_sampling({"temperature": 0.5, "seed": "3"})["seed"] == 3
    assert kept.sound_sampling({"temperature": -1}) == kept.sound_sampling({"colour": 1}) == {}
