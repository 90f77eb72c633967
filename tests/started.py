"""The page started in this process on the tiny model: what the API and browser tests talk to."""

from contextlib import contextmanager

from tiny_chat import make_model

import ui  # noqa: F401  (before gradio: telemetry off)
from kvcache.chat import models
from ui import gradio_upkeep, page, theme
from ui.state import Registry


@contextmanager
def started_page(model=None, port=None):
    """Yields (address, registry). `model` is the page's own; `port` None for any that is free. Every listed model is the tiny one; ids with "no/" in front cannot be had, nor an empty one."""
    tiny, original = make_model("llama"), models.load

    def load(model_id="tiny", *arguments, **options):
        if not model_id or model_id.startswith("no/"):
            raise models.ModelError(f"The hub has no public model {model_id!r}: check the spelling.")
        return tiny

    models.load = load
    registry = Registry()
    blocks = page.build(model, registry)
    try:
        app, address, _ = blocks.launch(server_port=port, prevent_thread_lock=True, quiet=True, **theme.launch_options())
        gradio_upkeep.spare_the_server(app, blocks)
        yield address, registry
    finally:
        blocks.close()
        models.load = original
