"""The widgets of the page and nothing else: what exists, in which order, under which names."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import quote

import gradio as gr

from kvcache import bundled
from kvcache.chat.models import WORLDLY, find_choice, for_strangers, is_allowed, why_not_fetched

from . import token_ribbon
from .branches import BranchForm, branch_form
from .charts import ROLLING
from .forms import CacheForm, cache_form
from .theme import PLOTLY_JS

TITLE = "KV cache playground"
WHAT_IT_IS = ("A language model keeps the keys and values of every past token, so that it need not read the conversation again for each new one: that is its KV cache. "
              "Which cache you choose decides how much memory it takes, how fast it writes, and what it still remembers.")
WELCOME = "Talk to the model. Each word becomes a square, filled by what the cache did with it."
KNOWS_LITTLE = "This small model knows only what you tell it. These know the world; each is downloaded once:"
TOUR = "See what caches forget (30 s)"
EXAMPLES = (
    "Hi, my name is Ada and the red box opens with 7-3-1.",
    "Which code opens the red box?",
    "What is my name?",
    "Tell me a story about a fox.",
)
DEFAULT_SYSTEM = ""
SYSTEM_PROMPT = {"label": "System prompt", "placeholder": "Optional", "lines": 1, "max_lines": 4}
TEXT_TO_READ = {"label": "Text to read", "placeholder": "The encoder reads it once; the conversation is about it", "lines": 3, "max_lines": 10}


@dataclass(frozen=True)
class SamplingForm:
    """The sampling controls; `read` gives the keyword arguments of `kvcache.chat.engine.Sampling`."""
    temperature: gr.Slider
    top_p: gr.Slider
    top_k: gr.Number
    min_p: gr.Slider
    repetition_penalty: gr.Slider
    seed: gr.Number
    max_new_tokens: gr.Number

    @property
    def inputs(self) -> set:
        return set(vars(self).values())

    def read(self, values: Mapping) -> dict[str, Any]:
        return {name: values[widget] for name, widget in vars(self).items()}


@dataclass(frozen=True)
class ShareForm:
    python: gr.Button
    link: gr.Button
    export: gr.Button
    export_cache: gr.Button
    load: gr.Button
    code: gr.Code
    address: gr.Textbox
    notice: gr.HTML
    text: gr.Textbox


@dataclass(frozen=True)
class WorldlyForm:
    """Models that know more than the bundled ones, one click away: shown beside one of these."""
    box: gr.Column
    buttons: Mapping[str, gr.Button]


@dataclass(frozen=True)
class ChatTab:
    model: gr.Dropdown
    model_note: gr.HTML
    form: CacheForm
    predicted: gr.HTML
    system: gr.Textbox
    sampling: SamplingForm
    share: ShareForm
    chatbot: gr.Chatbot
    notice: gr.HTML
    message: gr.Textbox
    ticket: gr.Number
    regenerate: gr.Button
    more: gr.Button
    older: gr.Button
    newer: gr.Button
    undo: gr.Button
    clear: gr.Button
    branches: BranchForm
    kept: gr.Textbox
    kept_notice: gr.HTML
    worldly: WorldlyForm
    fates: gr.HTML
    memory: gr.HTML
    history: gr.HTML

    @property
    def settings(self) -> set:
        """Everything an event must read to know what the person has set up."""
        return {self.model, self.system} | self.form.inputs | self.sampling.inputs


@dataclass(frozen=True)
class Column:
    box: gr.Column
    title: gr.HTML
    form: CacheForm
    thread: gr.HTML


@dataclass(frozen=True)
class CompareTab:
    columns: tuple[Column, ...]
    count: gr.Radio
    message: gr.Textbox
    ticket: gr.Number
    demo: gr.Button
    regenerate: gr.Button
    restart: gr.Button
    notice: gr.HTML
    table: gr.HTML
    divergence: gr.HTML
    chart: gr.HTML
    quality: gr.HTML
    kl: gr.HTML
    downloads: gr.HTML


def header(status: str = "") -> gr.HTML:
    return gr.HTML(header_html(status), elem_id="kv-header")


def header_html(status: str) -> str:
    return f'<h1>{TITLE}</h1><p role="status">{escape(status)}</p>'


# -- chat --------------------------------------------------------------------------------------------------------

def chat_tab(entries: Mapping[str, Any], models: Sequence[tuple[str, str]], default_model: str, default_cache: str
             ) -> ChatTab:
    """Three columns: set up, talk, see. page.css stacks them on a phone as talk, see, set up."""
    with gr.Row(elem_id="kv-chat", equal_height=False):
        with gr.Column(elem_id="kv-setup", elem_classes="kv-card", min_width=240):
            setup = _setup(entries, models, default_model, default_cache)
        with gr.Column(elem_id="kv-talk", elem_classes="kv-card", min_width=280):
            talk = _talk(default_model)
        with gr.Column(elem_id="kv-see", min_width=280):
            see = _see(default_model)
    return ChatTab(**setup, **talk, **see)


def share_form() -> ShareForm:
    """Five buttons, the text that two of them make, and a place for sentences."""
    with gr.Accordion("Keep and share", open=False, elem_id="kv-share"):
        with gr.Row(elem_classes="kv-buttons"):
            buttons = {name: gr.Button(words, size="sm", elem_id=f"kv-{name.replace('_', '-')}") for name, words in {
                "python": "Copy as Python", "link": "Copy link", "export": "Export chat", "export_cache": "Export chat and cache", "load": "Import"}.items()}
        notice = gr.HTML(elem_id="kv-share-notice", elem_classes="kv-note")
        code = gr.Code(language="python", label="Python", visible=False, elem_id="kv-code", lines=8, max_lines=24)
        address = gr.Textbox(label="Link", visible=False, elem_id="kv-address", lines=1, max_lines=3)
        gr.HTML('<p class="kv-quiet">An exported chat holds settings, token ids, seeds, bytes, times and versions: <code>python -m kvcache.measure replay FILE</code> says it again.</p>')
        text = gr.Textbox(visible=False)
    return ShareForm(**buttons, code=code, address=address, notice=notice, text=text)


SETUP_HEAD = '<h2>Setup</h2><button type="button" class="kv-more" aria-expanded="false" onclick="window.kvMore(this)">All settings</button>'


def _setup(entries, models, default_model, default_cache) -> dict[str, Any]:
    gr.HTML(SETUP_HEAD)
    model = gr.Dropdown(list(models), value=default_model, label="Model", allow_custom_value=True, elem_id="kv-model",
                        info="Pick one, or type a hub id." if for_strangers() else "Pick one, or type a hub id or a folder.")
    model_note = gr.HTML(elem_classes="kv-note", elem_id="kv-model-note")
    form = cache_form(entries, "kv-chat-form", default_cache)
    predicted = gr.HTML(elem_id="kv-predicted")
    system = gr.Textbox(DEFAULT_SYSTEM, elem_id="kv-system", **SYSTEM_PROMPT)
    with gr.Accordion("Sampling", open=False):
        sampling = sampling_form()
    share = share_form()
    return {"model": model, "model_note": model_note, "form": form, "predicted": predicted, "system": system,
            "sampling": sampling, "share": share}


def sampling_form() -> SamplingForm:
    return SamplingForm(
        temperature=gr.Slider(0, 2, 0, step=0.05, label="Temperature", info="0 always takes the likeliest token."),
        top_p=gr.Slider(0.05, 1, 1, step=0.05, label="Top-p", info="Keep the likeliest tokens up to this mass; 1 is off."),
        top_k=gr.Number(0, precision=0, label="Top-k", info="Keep this many tokens; 0 is off."),
        min_p=gr.Slider(0, 1, 0, step=0.01, label="Min-p", info="Drop tokens below this share of the likeliest; 0 is off."),
        repetition_penalty=gr.Slider(1, 2, 1, step=0.05, label="Repetition penalty", info="1 is off."),
        seed=gr.Number(0, precision=0, label="Seed", info="The same seed gives the same reply."),
        max_new_tokens=gr.Number(256, precision=0, label="Longest reply, in tokens"),
    )


SEND_BUTTON = gr.update(submit_btn="Send", stop_btn=False)
STOP_BUTTON = gr.update(submit_btn=False, stop_btn="Stop")


def _talk(default_model: str) -> dict[str, Any]:
    gr.HTML("<h2>Conversation</h2>")
    ribbon = gr.HTML(token_ribbon.EMPTY, elem_id="kv-fates")
    chatbot = gr.Chatbot(
        [], height=None, show_label=False, container=False, buttons=[], group_consecutive_messages=False, autoscroll=False,
        feedback_options=None, elem_id="kv-chatbot", latex_delimiters=[], layout="bubble", label="Conversation",
        placeholder="\n\n".join([WELCOME, *([bundled.ABOUT] if default_model == bundled.DEFAULT else [])]),
        examples=[{"text": text} for text in EXAMPLES],
    )
    message = gr.Textbox(show_label=False, label="Message", lines=1, max_lines=6, container=False, submit_btn="Send",
                         placeholder="Message... (Enter sends, Esc stops)", elem_id="kv-message", elem_classes="kv-message",
                         autofocus=False)
    notice = gr.HTML(elem_id="kv-notice", elem_classes="kv-note")
    with gr.Row(elem_classes="kv-buttons"):
        regenerate = gr.Button("Regenerate", size="sm", elem_id="kv-regenerate")
        undo = gr.Button("Undo", size="sm", elem_id="kv-undo")
        clear = gr.Button("Clear", size="sm", elem_id="kv-clear")
        pressed = {name: gr.Button(name, elem_id=f"kv-{name}", elem_classes="kv-pressed") for name in ("more", "older", "newer")}  # by what stands under a reply
    branches = branch_form()
    kept = {"kept": gr.Textbox(visible=False), "kept_notice": gr.HTML(elem_id="kv-kept", elem_classes="kv-note")}
    return {**kept, "chatbot": chatbot, "notice": notice, "message": message, "ticket": _ticket(), "regenerate": regenerate, "undo": undo,
            "clear": clear, "branches": branches, "fates": ribbon, **pressed}


def _ticket() -> gr.Number:
    """What an event that waits for its turn has in its hand, from the moment it is begun; a gr.State would be read at its turn."""
    return gr.Number(0, precision=0, visible=False)


def knows_little(model_id: str) -> bool:
    """Is it one of the bundled ones, which know only what they are told?"""
    return model_id in bundled.MODELS


def worldly_form(default_model: str) -> WorldlyForm:
    """A sentence, a button for each model, and why those can't be pressed that can't."""
    choices = [find_choice(model_id) for model_id in WORLDLY if is_allowed(model_id)]
    reasons = {choice.title: why_not_fetched(choice) for choice in choices}
    with gr.Column(visible=bool(choices) and knows_little(default_model), elem_id="kv-worldly") as box:
        gr.HTML(f'<p class="kv-quiet">{escape(KNOWS_LITTLE)}</p>')
        with gr.Row(elem_classes="kv-buttons"):
            buttons = {choice.id: gr.Button(f"{choice.title} ({choice.size})", size="sm", interactive=reasons[choice.title] is None) for choice in choices}
        for reason in sorted({reason for reason in reasons.values() if reason}):
            gr.HTML(f'<p class="kv-quiet">{escape(" and ".join(title for title, why in reasons.items() if why == reason))}: {escape(reason)}.</p>')
    return WorldlyForm(box, buttons)


def _see(default_model: str) -> dict[str, Any]:
    with gr.Column(elem_classes="kv-card", elem_id="kv-intro"):
        gr.HTML(f'<h2>What is a KV cache?</h2><p class="kv-intro">{escape(WHAT_IT_IS)}</p>')
        gr.Button(TOUR, variant="primary", elem_id="kv-tour").click(None, js="() => window.kvTour()", api_visibility="private")
        gr.HTML('<p class="kv-quiet">Or write a message: what the cache holds of it is drawn here.</p>')
        worldly = worldly_form(default_model)
    with gr.Column(elem_classes="kv-card"):
        gr.HTML("<h2>Memory by layer</h2>")
        memory = chart("kv-memory", "Stacked bars: bytes of each layer by kind")
    with gr.Column(elem_classes="kv-card"):
        gr.HTML("<h2>Bytes and length over tokens</h2>")
        history = chart("kv-history", "Lines: bytes held, tokens seen and tokens held, over tokens processed")
    return {"memory": memory, "history": history, "worldly": worldly}


def chart(elem_id: str, label: str, value: str | None = None) -> gr.HTML:
    """A Plotly node that lives as long as the page. Its value is `fragments.chart_value(...)`."""
    url = f"gradio_api/file={quote(PLOTLY_JS.as_posix())}"
    return gr.HTML(
        value, elem_id=elem_id, elem_classes="kv-chart", padding=False,
        html_template=(f'<div class="kv-plot" role="img" aria-label="{escape(label)}" data-plotly="{url}"></div>'
                       '<ul class="kv-legend" aria-label="Show or hide"></ul><p class="kv-facts"></p><p class="kv-words kv-hidden" aria-live="off"></p>'),
        js_on_load="window.kvPlot(element, props, watch)",
    )


# -- compare -----------------------------------------------------------------------------------------------------

def compare_tab(entries: Mapping[str, Any], presets: Sequence[tuple[str, Mapping[str, Any]]], shown: int = 4) -> CompareTab:
    """One message for two to four caches, their replies side by side, and what the difference was."""
    with gr.Column(elem_classes="kv-card", elem_id="kv-ask"):
        message = gr.Textbox(show_label=False, label="Message for every cache", lines=1, max_lines=6, container=False,
                             submit_btn="Run all", placeholder="One message for every cache; run again for the next turn",
                             elem_id="kv-compare-message", elem_classes="kv-message")
        with gr.Row(elem_classes="kv-buttons"):
            demo = gr.Button("Guided demo: what does each cache forget?", size="sm", elem_id="kv-demo")
            regenerate = gr.Button("Regenerate", size="sm", elem_id="kv-compare-regenerate")
            restart = gr.Button("Start over", size="sm", elem_id="kv-restart")
            count = gr.Radio([(f"{n} caches", n) for n in (2, 3, 4)], value=shown, label="Caches", elem_id="kv-count", container=False)
        gr.HTML('<p class="kv-quiet">Model, system prompt and sampling are those of the Chat tab.</p>')
        notice = gr.HTML(elem_id="kv-compare-notice", elem_classes="kv-note")
    with gr.Column(elem_classes="kv-card", elem_id="kv-side-by-side"):
        table = gr.HTML('<p class="kv-quiet">Run a message to fill this table.</p>', elem_id="kv-table")
        downloads = gr.HTML(elem_id="kv-downloads")
    with gr.Row(elem_id="kv-columns", equal_height=True):
        columns = tuple(_compare_column(entries, n, name, values, n < shown) for n, (name, values) in enumerate(presets))
    with gr.Row(elem_classes="kv-results-row", equal_height=False):
        quality = _result("Quality over bytes", "kv-compare-quality", "Points: mean KL from the first cache over bytes in use, one per cache", "Further left is smaller, further down is closer to the first cache.")
        kl = _result("Drift along the replies", "kv-compare-kl", "Lines: KL from the first cache over the tokens of its replies, one per cache", f"Each cache is fed the first one's replies; the mean of the last {ROLLING} tokens.")
    with gr.Row(elem_classes="kv-results-row", equal_height=False):
        plot = _result("Bytes in use over tokens", "kv-compare-chart", "Lines: bytes in use by each cache over tokens processed")
        with gr.Column(elem_classes="kv-card", min_width=280, scale=1):
            gr.HTML("<h2>Where each first differs</h2>")
            divergence = gr.HTML(NOTHING_DIVERGED, elem_id="kv-divergence")
    return CompareTab(columns, count, message, _ticket(), demo, regenerate, restart, notice, table, divergence, plot, quality, kl, downloads)


NOTHING_DIVERGED = '<p class="kv-quiet">Nothing has diverged yet.</p>'


def _result(title: str, elem_id: str, label: str, words: str = "") -> gr.HTML:
    with gr.Column(elem_classes="kv-card", min_width=280, scale=1):
        gr.HTML(f"<h2>{title}</h2>" + (f'<p class="kv-quiet">{words}</p>' if words else ""))
        return chart(elem_id, label)


def _compare_column(entries, n: int, name: str, values: Mapping[str, Any], visible: bool) -> Column:
    with gr.Column(visible=visible, min_width=230, elem_classes=["kv-card", "kv-column", f"kv-column-{n}"]) as box:
        title = gr.HTML(column_title(entries[name], values), elem_classes="kv-title")
        form = cache_form(entries, f"kv-compare-{n}", name, label=f"Cache {n + 1}", values=values, folded=True)
        thread = gr.HTML('<div class="kv-thread"></div>', elem_id=f"kv-thread-{n}", max_height=440,
                         js_on_load="window.kvFollow(element, watch)")
    return Column(box, title, form, thread)


def column_title(entry, parameters: Mapping[str, Any]) -> str:
    """What tells a column apart: its cache with the settings that name it."""
    try:
        words = entry.describe(**{**entry.defaults(), **parameters})
    except (TypeError, ValueError):  # of settings that are half typed: a label has no figure to show
        words = entry.title
    return f"<h2>{escape(words)}</h2>"


# -- measure -----------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class MeasureTab:
    level: gr.Radio
    contexts: gr.CheckboxGroup
    caches: gr.CheckboxGroup
    run: gr.Button
    stop: gr.Button
    notice: gr.HTML
    progress: gr.HTML
    table: gr.HTML
    downloads: gr.HTML
    time: gr.HTML
    size: gr.HTML

    @property
    def inputs(self) -> set:
        return {self.level, self.contexts, self.caches}


def measure_tab(levels: Sequence[tuple[str, str]], contexts: Sequence[tuple[str, int]], caches: Sequence[tuple[str, str]], *,
                chosen_contexts: Sequence[int], chosen_caches: Sequence[str]) -> MeasureTab:
    """What to measure, how far it is, and what came of it: a table and two charts."""
    with gr.Column(elem_classes="kv-card", elem_id="kv-measure-ask"):
        gr.HTML('<h2>What does a token cost on this machine?</h2><p class="kv-quiet">Time and bytes of our caches beside those of '
                'transformers, whose DynamicCache is always in the run. Random weights and random keys and values: nothing is read or written.</p>')
        level = gr.Radio(list(levels), value=levels[0][1], label="Decode with", elem_id="kv-measure-level")
        lengths = gr.CheckboxGroup(list(contexts), value=list(chosen_contexts), label="Tokens of context", elem_id="kv-measure-contexts",
                                   info="Longer ones take longer: each cache is filled first.")
        names = gr.CheckboxGroup(list(caches), value=list(chosen_caches), label="Caches", elem_id="kv-measure-caches")
        asked = measure_buttons("kv-measure")
    shown = measure_results("kv-measure", {"time": ("Time of a token", "Lines: milliseconds of a token over tokens of context, one line per cache"),
                                           "size": ("Bytes of the cache", "Lines: bytes of the cache over tokens of context, one line per cache")})
    return MeasureTab(level, lengths, names, **asked, **shown)


def measure_buttons(prefix: str) -> dict[str, gr.components.Component]:
    """Measure, Stop, how far it is, and a place for sentences; ids begin with `prefix`."""
    with gr.Row(elem_classes="kv-buttons"):
        run = gr.Button("Measure", size="sm", variant="primary", elem_id=f"{prefix}-run")
        stop = gr.Button("Stop", size="sm", visible=False, elem_id=f"{prefix}-stop", elem_classes="kv-stop")
    return {"run": run, "stop": stop, "progress": gr.HTML(elem_id=f"{prefix}-progress"), "notice": gr.HTML(elem_id=f"{prefix}-notice", elem_classes="kv-note")}


def measure_results(prefix: str, charts: Mapping[str, tuple[str, str]]) -> dict[str, gr.HTML]:
    """A table with its downloads, and charts beside it: name -> (title, what it shows)."""
    with gr.Row(elem_id=f"{prefix}-results", elem_classes="kv-results", equal_height=False):
        with gr.Column(elem_classes="kv-card", min_width=280, scale=3):
            gr.HTML("<h2>Side by side</h2>")
            shown = {"table": gr.HTML('<p class="kv-quiet">Measure to fill this table.</p>', elem_id=f"{prefix}-table"), "downloads": gr.HTML(elem_id=f"{prefix}-downloads")}
        with gr.Column(min_width=280, scale=2, elem_classes="kv-stack"):
            for name, (title, words) in charts.items():
                with gr.Column(elem_classes="kv-card"):
                    gr.HTML(f"<h2>{title}</h2>")
                    shown[name] = chart(f"{prefix}-{name}", words)
    return shown


# -- learn -------------------------------------------------------------------------------------------------------

def learn_tab(lead: str, choice: str, cards: str, glossary: str, recall: str | None, recall_of_models: str | None) -> None:
    """What a cache is and which one suits whom, a card for each, what each cache and each bundled model remembers (charts, where the models are), and words."""
    gr.HTML(lead)
    gr.HTML(choice)
    if recall:
        with gr.Column(elem_classes="kv-card", elem_id="kv-recall"):
            gr.HTML('<h2>What is remembered</h2><p class="kv-quiet">The bundled model was told facts, and asked for them so many tokens later. The full cache shows what the model itself remembers; '
                    "how far another line lies below it is what that cache forgets. All that was measured is in docs/measured.md.</p>")
            chart("kv-recall-chart", "Lines: share of questions answered right over tokens since the telling, one line per cache", recall)
    gr.HTML(cards, elem_id="kv-learn")
    if recall_of_models:
        with gr.Column(elem_classes="kv-card", elem_id="kv-recall-models"):
            gr.HTML('<h2>What each model remembers</h2><p class="kv-quiet">The bundled models, each with the full cache made for it. Windows in every layer forget; '
                    "where only some layers have one, the others remember; a state of fixed size holds what it can. The UMT5 is told in its text, not in the conversation.</p>")
            chart("kv-recall-models-chart", "Lines: share of questions answered right over tokens since the telling, one line per model", recall_of_models)
    gr.HTML(glossary)
