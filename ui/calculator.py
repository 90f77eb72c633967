"""The Calculator tab: which cache fits? A model's config, context, users and dtype in; bytes of every cache, and what fits where, out."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
import torch

from kvcache.catalog import ENTRIES
from kvcache.chat import models
from kvcache.measure import calculator
from kvcache.measure.calculator import CAPACITY, GPUS, WEIGHT_BITS, Calculation, Device, Workload

from . import calculator_view, html_parts
from .forms import parameter_widget, widget_id
from .layout import chart

DTYPES = {"16 bits (bfloat16, float16)": torch.bfloat16, "32 bits (float32)": torch.float32}
HINTS = ("attention", "backend")  # parameters that change no bytes here, or what is installed


@dataclass(frozen=True)
class CalculatorTab:
    model: gr.Dropdown
    config: gr.Textbox
    tokens: gr.Number
    users: gr.Number
    dtype: gr.Radio
    weight_bits: gr.Radio
    device: gr.Dropdown
    source_tokens: gr.Number
    parameters: dict[tuple[str, str], gr.components.Component]
    notice: gr.HTML
    summary: gr.HTML
    table: gr.HTML
    chart: gr.HTML
    devices: gr.HTML
    download: gr.HTML

    @property
    def inputs(self) -> set:
        return {self.model, self.config, self.tokens, self.users, self.dtype, self.weight_bits, self.device, self.source_tokens, *self.parameters.values()}

    @property
    def outputs(self) -> list:
        return [self.notice, self.summary, self.table, self.chart, self.devices, self.download, self.source_tokens]


def devices() -> list[Device]:
    return [*calculator.this_machine(), *GPUS]


# -- widgets -----------------------------------------------------------------------------------------------------

def calculator_tab(listed: Sequence[tuple[str, str]], model: str) -> CalculatorTab:
    """What is asked on the left, what it costs on the right."""
    with gr.Row(elem_id="kv-calculator", equal_height=False):
        with gr.Column(elem_classes="kv-card", min_width=260, scale=1):
            asked = _asked(listed, model)
            parameters = _settings()
        with gr.Column(min_width=300, scale=3, elem_classes="kv-stack"):
            shown = _shown()
    return CalculatorTab(**asked, parameters=parameters, **shown)


def _asked(listed: Sequence[tuple[str, str]], model: str) -> dict[str, Any]:
    gr.HTML('<h2>Which cache fits?</h2><p class="kv-quiet">From a model\'s config alone: its weights are not downloaded.</p>')
    where = devices()
    return {
        "model": gr.Dropdown(list(listed), value=model, label="Model", allow_custom_value=True, elem_id="kv-calculator-model", info="Pick one, or type a hub id."),
        "config": gr.Textbox("", label="Or a config.json", lines=1, max_lines=4, elem_id="kv-calculator-config", placeholder="Paste its text; it goes before the model above"),
        "tokens": gr.Number(8192, precision=0, label="Context, in tokens", minimum=1, elem_id="kv-calculator-tokens"),
        "users": gr.Number(1, precision=0, label="Users at once", minimum=1, elem_id="kv-calculator-users"),
        "source_tokens": gr.Number(512, precision=0, label="Tokens that the encoder reads", minimum=1, visible=False, elem_id="kv-calculator-source"),
        "dtype": gr.Radio(list(DTYPES), value=next(iter(DTYPES)), label="Keys and values in", elem_id="kv-calculator-dtype"),
        "weight_bits": gr.Radio([(f"{bits} bits", bits) for bits in WEIGHT_BITS], value=16, label="Weights in", elem_id="kv-calculator-weights"),
        "device": gr.Dropdown([each.name for each in where], value=where[0].name, label="Device", elem_id="kv-calculator-device", filterable=False),
    }


def _settings() -> dict[tuple[str, str], gr.components.Component]:
    """Widgets for the parameters of every cache, but for the capacity, which is the context."""
    widgets = {}
    with gr.Accordion("Settings of the caches", open=False):
        for name, entry in ENTRIES.items():
            own = [parameter for parameter in entry.parameters if parameter.name not in (CAPACITY, *HINTS) and not entry.parts]
            if own:
                gr.HTML(f"<h3>{entry.title}</h3>")
            widgets |= {(name, each.name): parameter_widget(each, each.default, widget_id("kv-calculator", name, each.name), {}) for each in own}
    return widgets


def _shown() -> dict[str, Any]:
    with gr.Column(elem_classes="kv-card"):
        notice = gr.HTML(elem_id="kv-calculator-notice", elem_classes="kv-note")
        summary = gr.HTML(elem_id="kv-calculator-summary")
        table = gr.HTML(elem_id="kv-calculator-table")
        download = gr.HTML(elem_id="kv-calculator-download")
    with gr.Column(elem_classes="kv-card"):
        gr.HTML("<h2>Bytes by kind</h2>")
        bars = chart("kv-calculator-chart", "Stacked bars: bytes of each cache by kind")
    with gr.Column(elem_classes="kv-card"):
        gr.HTML("<h2>Where it fits</h2>")
        table_of_devices = gr.HTML(elem_id="kv-calculator-devices")
    return {"notice": notice, "summary": summary, "table": table, "chart": bars, "devices": table_of_devices, "download": download}


# -- what is computed --------------------------------------------------------------------------------------------

def read_workload(tab: CalculatorTab, values: Mapping) -> Workload:
    return Workload(values[tab.tokens], values[tab.users], DTYPES[values[tab.dtype]], values[tab.weight_bits], values[tab.source_tokens])


def read_parameters(tab: CalculatorTab, values: Mapping) -> dict[str, dict[str, Any]]:
    """By cache, its parameters as typed."""
    typed: dict[str, dict[str, Any]] = {}
    for (name, parameter), widget in tab.parameters.items():
        typed.setdefault(name, {})[parameter] = values[widget]
    return typed


def read_config(tab: CalculatorTab, values: Mapping) -> tuple[str, Any]:
    """(what to call it, the config) of the text that was pasted, else of the model that was picked. Raises ModelError."""
    if (values[tab.config] or "").strip():
        config = models.config_from_text(values[tab.config])
        return f"The pasted {config.model_type}", config
    return models.find_choice(values[tab.model]).title, models.config_named(values[tab.model])


def calculate(tab: CalculatorTab, values: Mapping) -> dict:
    """What the tab shows for what is typed: all of it, or a sentence and nothing else that could be taken for an answer."""
    try:
        title, config = read_config(tab, values)
        found = calculator.calculate(config, read_workload(tab, values), read_parameters(tab, values))
        return {tab.notice: "", tab.source_tokens: gr.update(visible=bool(config.is_encoder_decoder)), **_results(tab, title, found, values[tab.device])}
    except Exception as error:  # configs come from strangers
        words = str(error) if isinstance(error, ValueError) else f"Nothing can be computed from that: {type(error).__name__}: {error}"
        empty = dict.fromkeys((tab.summary, tab.table, tab.devices, tab.download), "") | {tab.chart: None}
        return {tab.notice: html_parts.notice(words, "error"), **empty}


def _results(tab: CalculatorTab, title: str, found: Calculation, device_name: str) -> dict:
    where = devices()
    device = next((each for each in where if each.name == device_name), where[0])
    if not found.costs:
        raise ValueError(next(iter(found.why_not.values())))
    return {tab.summary: calculator_view.summary_html(title, found, device), tab.table: calculator_view.table_html(found, device),
            tab.chart: calculator_view.chart(found, device), tab.devices: calculator_view.devices_html(found, where),
            tab.download: calculator_view.download_html(found, where)}


def wire_calculator(tab: CalculatorTab, opened: gr.Tab) -> None:
    """Compute when the tab is opened and at every change; the last one wins."""
    def run(values):
        return calculate(tab, values)

    events = [opened.select, *(widget.input if isinstance(widget, gr.Dropdown) else widget.change for widget in tab.inputs - {tab.source_tokens}), tab.source_tokens.input]
    gr.on(events, run, tab.inputs, tab.outputs, trigger_mode="always_last", concurrency_id="calculate", concurrency_limit=1, show_progress="minimal",
          show_progress_on=[tab.summary], api_visibility="private")
