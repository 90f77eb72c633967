"""Branches of a chat: each goes on by itself, costs what it does not share, and is freed with the session."""

import json

import pytest
import torch
from tiny_chat import tiny

import ui  # noqa: F401  (before gradio: telemetry off)
from kvcache import create, feed
from kvcache.chat import models
from kvcache.memory import measure_added, measure_memory
from ui import view
from ui.state import Session, Settings

WORDS = "The keeper counts the ships that pass before dawn. "


@pytest.fixture(autouse=True)
def only_tiny(monkeypatch):
    monkeypatch.setattr(models, "load", lambda model_id="tiny-llama", **_: tiny())


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
    session.endings = {0: "length", 2: "stopped"}
    session.branches.fork(session, 1)
    assert session.endings == {0: "length"}
    session.branches.switch(session, 0)
    assert session.endings == {0: "length", 2: "stopped"}


def test_the_chart_says_how_much_of_the_context_is_used(session):
    session.history.points.append((10,) * len(session.history.points[-1]))
    assert "context used <b>" in json.loads(view.charts_at_rest(session)[1])["line"].replace("context used<b>", "context used <b>") and "of 2,048" in view.charts_at_rest(session)[1]


def test_a_session_that_is_freed_frees_its_branches_and_each_goes_on(session):
    session.branches.fork(session, 1)
    session.release()
    assert session.nbytes == 0
    session.branches.switch(session, 0)
    assert "recomputed all" in say(session, "and then").note and len(session.conversation.turns) == 4


@pytest.mark.parametrize("turn, words", [(9, "from 0 to 3, got 9"), (-1, "from 0 to 3"), (1.5, "whole number")])
def test_a_turn_that_is_none_is_a_sentence(session, turn, words):
    with pytest.raises(ValueError, match=words):
        session.branches.fork(session, turn)
    assert not session.branches.all


def test_an_empty_chat_and_a_ninth_branch_are_refused(session):
    with pytest.raises(ValueError, match="nothing to fork"):
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
    with pytest.raises(ValueError, match="nothing to edit"):
        Session("b").branches.edit(Session("b"), None)
    with pytest.raises(ValueError, match="from 1 to 3, got 0"):
        session.branches.edit(session, 0)
