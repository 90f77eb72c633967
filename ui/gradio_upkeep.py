"""What Gradio does at every frame and for every session, cut down to what this page needs."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gradio as gr
from fastapi import FastAPI
from gradio.state_holder import SessionState, StateHolder


def spare_the_browser(page: gr.Blocks, shown: gr.HTML) -> None:
    """Events that hide their progress mark `shown` as waiting in place of all they fill.

    At every update of a reply Gradio's page goes through each widget that an event has marked before, and looks for it in the tree of all: with every
    output of those that had run, a reply of a second took two seconds of a browser's time.
    """
    for event in page.fns.values():
        if event.show_progress == "hidden" and len(event.outputs) > 1:
            event.show_progress_on = [shown]


def spare_the_server(app: FastAPI, page: gr.Blocks) -> None:
    """Sessions of a page that has been launched, and has no visitors yet, keep what was changed for them and nothing else."""
    app.state_holder = Sessions()
    app.state_holder.set_blocks(page)


class _Nowhere(dict):
    """Takes everything and keeps nothing."""

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: int) -> dict:
        return {}

    def __setitem__(self, key: int, value: Any) -> None:
        pass


class Sessions(StateHolder):
    """Gradio's sessions without a copy of every widget's settings, for links of its own that this page has not: 95 ms of everybody's time and 1.3 MB for each new one."""

    def __getitem__(self, session_id: str) -> SessionState:
        if session_id not in self.session_data:
            session = SessionState(SimpleNamespace(default_config=self.blocks.default_config, blocks={}))
            session.config_values = _Nowhere()
            self.session_data[session_id] = session
        return super().__getitem__(session_id)
