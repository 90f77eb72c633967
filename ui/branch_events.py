"""The wiring of branches: fork behind a turn, show another branch."""
from __future__ import annotations

import gradio as gr

from kvcache.chat import models

from . import branches, html_parts, view
from .events import give_back_after, keep_after, key_of, refused
from .layout import ChatTab
from .share import IN_USE, filled_in, form_outputs
from .state import Registry, Session


def wire_branches(tab: ChatTab, registry: Registry) -> None:
    """Connect the Fork button and the list."""
    form = tab.branches
    quick = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": 4, "concurrency_id": "branches"}
    painted = [tab.chatbot, tab.notice, tab.memory, tab.history, tab.fates, form.list, form.turn, tab.system, *form_outputs(tab)]

    def fork(turn, request: gr.Request):
        return _done(tab, registry.get(key_of(request)), lambda session: session.branches.fork(session, turn))

    def edit(turn, request: gr.Request):
        return _done(tab, registry.get(key_of(request)), lambda session: session.branches.edit(session, turn))

    def switch(number, request: gr.Request):
        session = registry.get(key_of(request))
        if number is None or number == session.branches.at:
            return gr.skip()
        return _done(tab, session, lambda session: session.branches.switch(session, number)) | branches.shown(form, session)

    edited = form.edit.click(edit, form.turn, painted, **quick)
    give_back_after(edited, tab.message, registry, lambda session: session.chat_box)
    for event in (edited, form.fork.click(fork, form.turn, painted, **quick), form.list.input(switch, form.list, painted, **quick)):
        keep_after(event, tab, registry)


def _done(tab: ChatTab, session: Session, work) -> dict:
    """What the tab shows after `work(session)`, or its sentence and nothing else."""
    try:
        if session.chat_box.occupied:
            raise ValueError(IN_USE)
        sentence = work(session)
        if session.conversation.loaded is None:
            session.conversation.attach(models.load(session.settings.model))
    except ValueError as error:
        return refused(tab, str(error))
    return {tab.chatbot: view.chat_messages(session), tab.notice: html_parts.notice(sentence or "", "info"), tab.branches.turn: "", tab.system: session.settings.system,
            **dict(zip((tab.memory, tab.history, tab.fates), view.charts_at_rest(session))), **branches.shown(tab.branches, session),
            **filled_in(tab, session.settings, session.conversation.loaded.config)}
