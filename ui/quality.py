"""The Measure tab's second half: what each cache loses, by kvcache.measure.quality at sizes that a visitor can wait for."""
from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

import gradio as gr

from kvcache import bundled
from kvcache.chat import models
from kvcache.measure.quality import command, figures, results, spec, texts
from kvcache.measure.quality import run as quality
from kvcache.measure.quality.results import Report, Row

from . import html_parts
from .events import in_turn, key_of, stops
from .layout import measure_buttons, measure_results
from .measure_events import PAINT_SECONDS, STOPPED, STOPPED_EARLY
from .measure_view import progress_html
from .pending import AGAIN
from .state import Registry, Session
from .stream import batches

TOKENS = (("256", 256), ("512", 512), ("1k", 1024))
CHOSEN = ("quantized:nbits=4", "quantized:nbits=2", "evicting:budget=0.25", "evicting:policy=lagkv,budget=0.25", "sink:window_length=128")
FORCED, CASES = 32, 4
COLUMNS = [n for n, head in enumerate(results.COLUMNS) if head != "of passages"]  # there is one
TASK = {True: ("facts",), False: ("multikey",)}  # of bundled models, and of others


@dataclass(frozen=True)
class QualityPart:
    tokens: gr.Radio
    caches: gr.Dropdown
    run: gr.Button
    stop: gr.Button
    notice: gr.HTML
    progress: gr.HTML
    table: gr.HTML
    downloads: gr.HTML
    drift: gr.HTML
    answers: gr.HTML

    @property
    def inputs(self) -> set:
        return {self.tokens, self.caches}

    @property
    def results(self) -> list:
        return [self.table, self.downloads, self.drift, self.answers]


def offered() -> list[tuple[str, str]]:
    """(label, cache) of what is measured by default at 512 tokens; any other can be typed."""
    return [(each.label, str(each)) for each in map(spec.parse, spec.at(512))]


def make_part() -> QualityPart:
    """The widgets, where it is called."""
    with gr.Column(elem_classes="kv-card", elem_id="kv-quality-ask"):
        gr.HTML('<h2>What does each cache lose?</h2><p class="kv-quiet">The model of the chat reads one text with each cache, token by token behind a prompt, and answers questions about what it was told. The full cache is '
                "always in the run. On the small default this takes about a minute; python -m kvcache.measure quality does it with more texts, tasks and questions.</p>")
        tokens = gr.Radio(list(TOKENS), value=512, label="Tokens of the prompt", elem_id="kv-quality-tokens")
        caches = gr.Dropdown(offered(), value=list(CHOSEN), multiselect=True, allow_custom_value=True, label="Caches", elem_id="kv-quality-caches",
                             info="Pick some, or type any: a name and what differs from its defaults, as in quantized:key_bits=4,value_bits=2")
        asked = measure_buttons("kv-quality")
    shown = measure_results("kv-quality", {"drift": ("Drift over bytes", "Points: mean KL divergence from the full cache over bytes, one for each cache"),
                                           "answers": ("Answers over bytes", "Points: share of what the full cache answers, with intervals, over bytes, one for each cache")})
    return QualityPart(tokens, caches, **asked, **shown)


# -- what is measured --------------------------------------------------------------------------------------------

def read_plan(part: QualityPart, values: Mapping, loaded: models.LoadedModel) -> quality.Plan:
    """What the form asks for. Raises ValueError for caches that nobody knows or that the model does not take."""
    tokens = values[part.tokens]
    caches = tuple(spec.parse(text).check(loaded.model) for text in values[part.caches] or ())
    if not caches:
        raise ValueError("choose at least one cache to put beside the full one")
    plan = quality.Plan(caches, tokens, FORCED, 1, TASK[loaded.id in bundled.MODELS], ("agnostic",), (tokens,), CASES)
    plan.check(loaded)
    return plan


def measure(part: QualityPart, session: Session, values: Mapping) -> Iterator[dict]:
    """Run and paint: the bar, table and charts as figures come."""
    stop = session.quality_box.stop
    try:
        loaded = models.load(session.showing or models.DEFAULT)
        plan, text = read_plan(part, values, loaded), texts.usual(loaded.id, loaded.tokenizer)
        events = quality.run(loaded, plan, text, stop.is_set)
    except (ValueError, models.ModelError) as error:
        yield {part.notice: html_parts.notice(f"{str(error)[0].upper()}{str(error)[1:]}.", "error"), **_buttons(part, at_work=False)}
        return
    report, notice = Report(settings=command.settings_of(plan, loaded, text)), ""
    try:
        with session.at_work():
            yield {part.notice: "", **dict.fromkeys(part.results, ""), **_buttons(part, at_work=True)}
            yield from _paint(part, stop, report, events)
        notice = html_parts.notice(STOPPED if report.drifted else STOPPED_EARLY, "info") if stop.is_set() else ""
    except Exception as error:
        notice = html_parts.notice(f"The measurement broke off: {error}", "error")
    yield {part.notice: notice, part.progress: "", **_buttons(part, at_work=False), **_results(part, report)}


def _paint(part: QualityPart, stop: threading.Event, report: Report, events: Iterator) -> Iterator[dict]:
    for batch in batches(events, stop, PAINT_SECONDS):
        known = len(report.drifted) + len(report.answered)
        for event in batch:
            report.add(event)
        latest = next((event for event in reversed(batch) if isinstance(event, quality.Progress)), None)
        frame = {part.progress: progress_html(latest)} if latest else {}
        yield frame | (_results(part, report) if len(report.drifted) + len(report.answered) > known else {})


def _buttons(part: QualityPart, at_work: bool) -> dict:
    return {part.run: gr.update(interactive=not at_work), part.stop: gr.update(visible=at_work)}


# -- as HTML -----------------------------------------------------------------------------------------------------

def _results(part: QualityPart, report: Report) -> dict:
    rows = report.rows()
    if not rows:
        return {}
    drawn = {part.drift: html_parts.chart_value(figures.drift_figure(rows), drift_words(rows))} if len(rows) > 1 else {}
    if any(row.kept("agnostic").count for row in rows):
        drawn[part.answers] = html_parts.chart_value(figures.answers_figure(rows, "agnostic"), answer_words(rows))
    return {part.table: table_html(report), part.downloads: downloads_html(report), **drawn}


def table_html(report: Report) -> str:
    """A row a cache, what was left out, and what was measured on what."""
    rows, places = report.rows(), results.columns(report)
    heads = (*(results.COLUMNS[n] for n in COLUMNS), *results.answer_heads(places)[1:])
    lines = "".join(_row_html(rows, row, (*(results.cells(row)[n] for n in COLUMNS[1:]), *results.answer_cells(row, places)[1:])) for row in rows)
    words = [f"{each.what}: {each.reason}" for each in report.left_out] + [report.where()]
    return html_parts.figures_table("Measured", heads, lines) + "".join(f'<p class="kv-quiet">{escape(line)}</p>' for line in words)


def _row_html(rows: list[Row], row: Row, texts: tuple[str, ...]) -> str:
    swatch = f'<i class="kv-swatch kv-{figures.symbol_of(rows, row)}" style="background: {figures.colour_of(rows, row)}"></i>'
    return f'<tr><th scope="row">{swatch}{escape(row.label)}</th>{"".join(f"<td>{escape(text)}</td>" for text in texts)}</tr>'


def drift_words(rows: list[Row]) -> str:
    """The chart in a sentence."""
    return "Mean KL: " + ", ".join(f"{row.label} {results.kl_text(row.mean_kl)}" for row in rows[1:]) + "."


def answer_words(rows: list[Row]) -> str:
    return "Of what the full cache answers: " + ", ".join(f"{row.label} {row.kept('agnostic').hits} of {row.kept('agnostic').count}" for row in rows if row.answer_nbytes) + "."


def downloads_html(report: Report) -> str:
    return html_parts.downloads(("JSON", "quality.json", "application/json", report.to_json()), ("CSV", "quality.csv", "text/csv", report.to_csv()))


# -- wiring ------------------------------------------------------------------------------------------------------

def wire_quality(part: QualityPart, registry: Registry) -> None:
    """Connect the widgets. One measures at a time, in the queue of the tab's first half; replies are written meanwhile."""
    painted = [part.notice, part.progress, part.run, part.stop, *part.results]
    compute = {"concurrency_id": "measure", "concurrency_limit": 1, "show_progress": "minimal", "show_progress_on": [part.progress], "api_visibility": "private"}
    quick = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}

    def accept(request: gr.Request):
        return _buttons(part, at_work=True) if registry.get(key_of(request)).quality_box.take(AGAIN) else gr.skip()

    def start(values, request: gr.Request):
        session = registry.get(key_of(request))
        yield from in_turn(session.quality_box, lambda _: measure(part, session, values), lambda notice: {part.notice: notice, **_buttons(part, at_work=False)})

    part.run.click(accept, None, [part.run, part.stop], **quick).then(start, part.inputs, painted, **compute)
    part.stop.click(stops(registry, lambda session: session.quality_box), None, None, **quick)
