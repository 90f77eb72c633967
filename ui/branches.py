"""Branches of a chat: fork at any turn, switch between them, and see the bytes each costs beside what it shares."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from kvcache.chat.conversation import Conversation
from kvcache.memory import measure_added, take_snapshot
from kvcache.validation import whole_number

from .charts import History, human_bytes

MOST = 8


@dataclass
class Branch:
    """One line of talk, and where it left its parent."""
    name: str
    conversation: Conversation
    settings: Any
    history: History = field(default_factory=History)


@dataclass
class Branches:
    """The branches of one chat; `at` is the one that is shown. Empty until the chat is forked for the first time."""
    all: list[Branch] = field(default_factory=list)
    at: int = 0

    @property
    def others(self) -> list[Branch]:
        """Those that are not shown: their caches are held beside the session's own."""
        return [branch for number, branch in enumerate(self.all) if number != self.at]

    def fork(self, session: Any, turns: int | str | None) -> str:
        """Fork the chat behind a turn, or behind the last, and show the branch; returns a sentence. Raises ValueError."""
        turns = _turn(session.conversation, turns, "fork behind")
        self._fork(session, turns)
        return f"Forked behind turn {turns}: what you say now changes this branch alone."

    def _fork(self, session: Any, turns: int) -> None:
        """Show a branch that has the first `turns`; none is a chat that begins anew."""
        talk = session.conversation
        if len(self.all) >= MOST:
            raise ValueError(f"There are {MOST} branches, the most that are kept: Clear lets go of them.")
        branch = talk.fork(turns)
        self.keep(session)
        self.all = self.all or [Branch("main", talk, session.settings, session.history)]
        self.all.append(Branch(f"{self.all[self.at].name} › {turns}", branch, session.settings))
        self._show(session, len(self.all) - 1)

    def edit(self, session: Any, turn: int | str | None) -> str:
        """Fork before a turn, or before the last, and give its message back to be changed; the reply that it had stays as the branch it was forked from. Raises ValueError."""
        turn = _turn(session.conversation, turn, "edit")
        text = session.conversation.turns[turn - 1].user
        self._fork(session, turn - 1)
        session.chat_box.give_back(text)
        return f"Message {turn} is in the box: change it or send it again. The reply that it had stays as a branch."

    def retry(self, session: Any, turn: int | str | None) -> str | None:
        """Fork before a turn and return its message, to be sent again; None for the last turn, whose reply is made again in its place. Raises ValueError."""
        turn = _turn(session.conversation, turn, "retry")
        if turn == len(session.conversation.turns):
            return None
        text = session.conversation.turns[turn - 1].user
        self._fork(session, turn - 1)
        return text

    def switch(self, session: Any, number: int) -> None:
        """Show another branch; the one shown so far stays as it is."""
        number = whole_number("branch", number, 0, len(self.all) - 1, typed=True)
        self.keep(session)
        self._show(session, number)

    def keep(self, session: Any) -> None:
        """Take note of what the shown branch has come to: a change of the cache gives it another conversation."""
        if self.all:
            shown = self.all[self.at]
            shown.conversation, shown.settings, shown.history = session.conversation, session.settings, session.history

    def _show(self, session: Any, number: int) -> None:
        self.at, branch = number, self.all[number]
        session.conversation, session.settings, session.history = branch.conversation, branch.settings, branch.history
        session.earlier_stats = []

    def forget(self) -> None:
        """Let go of every branch but the one that is shown."""
        self.all, self.at = [], 0

    def release(self, gone: bool) -> None:
        """Free the caches of the branches that are not shown, and let go of the model where the tab has gone; each is computed again when it goes on."""
        for branch in self.others:
            if branch.conversation.loaded:
                branch.conversation.detach() if gone else branch.conversation.release()

    def choices(self) -> list[tuple[str, int]]:
        """(words, number) of each: its turns, its bytes, and how many of them are its own."""
        caches = [branch.conversation.cache for branch in self.all]
        return [(_words(branch, [cache for cache in caches if cache is not branch.conversation.cache and cache is not None]), number) for number, branch in enumerate(self.all)]


def _turn(talk: Conversation | None, turn: int | str | None, what: str) -> int:
    """The turn that was asked for, the last where none was. Raises ValueError."""
    if talk is None or not talk.messages:
        raise ValueError(f"There is no turn to {what} yet: the conversation is empty.")
    count = len(talk.turns)
    return count if turn in (None, "") else whole_number(f"The turn to {what}", turn, 1, count, typed=True)


def _words(branch: Branch, others: Iterable[Any]) -> str:
    count, cache = len(branch.conversation.turns), branch.conversation.cache
    turns = f"{branch.name} · {count} turn{'s' * (count != 1)}"
    if cache is None:
        return turns
    total, own = take_snapshot(cache).total, measure_added(cache, list(others))
    return f"{turns} · {human_bytes(total)}" + (f", {human_bytes(own)} of its own" if own < total else "")


# -- widgets ------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class BranchForm:
    turn: gr.Textbox  # a gr.Number that is empty becomes 0
    fork: gr.Button
    edit: gr.Button
    retry: gr.Button
    list: gr.Radio


def branch_form() -> BranchForm:
    """Where to fork, and the branches there are."""
    with gr.Row(elem_classes="kv-buttons", elem_id="kv-branches"):
        fork = gr.Button("Fork", size="sm", elem_id="kv-fork")
        edit = gr.Button("Edit", size="sm", elem_id="kv-edit")
        retry = gr.Button("Retry", size="sm", elem_id="kv-retry")
        turn = gr.Textbox("", lines=1, max_lines=1, label="Turn to fork behind, to edit or to retry", show_label=False, container=False, placeholder="turn: the last one", elem_id="kv-fork-turn", scale=0, min_width=150)
    listed = gr.Radio([], visible=False, label="Branches", elem_id="kv-branch-list", info="Bytes of each cache; what it shares with others is held once.")
    return BranchForm(turn, fork, edit, retry, listed)


def shown(form: BranchForm, session: Any) -> dict:
    """The list as it is now."""
    branches = session.branches
    branches.keep(session)
    return {form.list: gr.update(choices=branches.choices(), value=branches.at if branches.all else None, visible=bool(branches.all))}
