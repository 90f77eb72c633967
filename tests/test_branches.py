"""Branches of a chat: each goes on by itself, costs what it does not share, and is freed with the session."""

import pytest
import torch
from tiny_chat import tiny

import ui  # noqa: F401  (before gradio: telemetry off)
from kvcache import create, feed
from kvcache.chat import models
from kvcache.memory import measure_added, measure_memory
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
