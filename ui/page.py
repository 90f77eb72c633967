"""The whole page: tabs, their widgets and their events on one registry of sessions."""
from __future__ import annotations

import threading

import gradio as gr

from kvcache.bundled import evaluate, separation
from kvcache.catalog import ENTRIES
from kvcache.chat import models

from . import branch_events, calculator, layout, measure_events, quality, recall, share
from .api import wire_api
from .compare_events import wire_compare
from .events import wire_chat
from .gradio_upkeep import spare_the_browser
from .learn import cards_html, choice_html, glossary_html, lead_html
from .state import Registry, watch

DEFAULT_CACHE = "quantized"  # of which one sees from the first message on what it does
CRUDE = "quantized", {"nbits": 2, "axis_key": "token", "rotate": False}  # rounds whole keys, in which a few loud channels drown the others
PRESETS = (("dynamic", {}), ("quantized", {}), ("sink", {"window_length": 128}), CRUDE)


def build(model: str | None = None, registry: Registry | None = None) -> gr.Blocks:
    """The page, ready to launch with `theme.launch_options()`. `model` is the one chosen at first."""
    registry = Registry() if registry is None else registry  # an empty one is false
    model = model or models.DEFAULT
    listed = [(choice.label, choice.id) for choice in models.CHOICES if models.is_allowed(choice.id)]
    with gr.Blocks(title=layout.TITLE, fill_width=True, analytics_enabled=False, delete_cache=(3600, 3600)) as page:
        header = layout.header()
        with gr.Tabs(elem_id="kv-tabs") as tabs:
            with gr.Tab("Chat", id="chat"):
                chat = layout.chat_tab(ENTRIES, listed, model, DEFAULT_CACHE)
            with gr.Tab("Compare", id="compare"):
                compare = layout.compare_tab(ENTRIES, PRESETS)
            with gr.Tab("Measure", id="measure"):
                measure = measure_events.make_tab()
                measured = quality.make_part()
            with gr.Tab("Calculator", id="calculator") as opened:
                calculated = calculator.calculator_tab(listed, model)
            with gr.Tab("Learn", id="learn"):
                of_caches, of_models = separation.read(), evaluate.shipped()
                charts = of_caches and recall.chart_value(recall.of_caches(of_caches)), of_models and recall.chart_value(recall.of_models(of_models))
                layout.learn_tab(lead_html(), choice_html(ENTRIES), cards_html(ENTRIES), glossary_html(), *charts)
        wire_chat(chat, header, registry, page, [column.form for column in compare.columns], share.on_load(chat, tabs, page, model, registry))
        share.wire_share(chat, header, registry)
        branch_events.wire_branches(chat, registry)
        wire_compare(chat, compare, registry)
        measure_events.wire_measure(measure, registry)
        quality.wire_quality(measured, registry)
        calculator.wire_calculator(calculated, opened)
        wire_api(registry, model)
    spare_the_browser(page, header)
    page.queue(api_open=False)  # or a caller could pass by the queue, and be more than people at once
    watch(registry)
    return page


def warm_up(model: str) -> None:
    """Read the first model in a thread while the page is being opened; a failure is told when somebody asks for it."""
    threading.Thread(target=_read, args=(model,), daemon=True).start()


def _read(model: str) -> None:
    try:
        models.load(model)
    except models.ModelError:
        pass
