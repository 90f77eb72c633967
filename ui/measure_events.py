"""The Measure tab's wiring: run the benchmark of kvcache.measure.speed at sizes that a visitor can wait for."""
from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import gradio as gr
import torch

from kvcache.chat import scheduler
from kvcache.measure.speed import run as speed
from kvcache.measure.speed.contenders import CONTENDERS, REFERENCE
from kvcache.measure.speed.results import Report

from . import html_parts, layout, measure_view
from .events import in_turn, key_of, stops
from .layout import MeasureTab
from .pending import AGAIN
from .state import Registry, Session
from .stream import batches

ROUNDS = 11
STOPPED, STOPPED_EARLY = "Stopped: what was measured by then stands below.", "Stopped before anything was measured."
BESIDE = "Replies were written meanwhile: times are those of a machine with other work."
PAINT_SECONDS = 0.4  # seldom: painting takes time from what is being timed
LEVELS = {"layer": ("One attention layer", lambda contexts, names: speed.layer(8, contexts, names)),
          "tiny": ("A tiny Llama of 4 layers", speed.tiny)}
CONTEXTS = (("1k", 1024), ("4k", 4096), ("16k", 16384))
CHOSEN = ("dynamic", "native-4", "fused-4", "fused-2", "window")


def offered() -> list[tuple[str, str]]:
    """(label, name) of the contenders on offer: ours that can be had, and upstream's, which say for themselves why not."""
    return [(each.label, name) for name, each in CONTENDERS.items()
            if name not in (REFERENCE, "static") and not (each.side == "ours" and each.why_not())]


def make_tab() -> MeasureTab:
    """The tab's widgets, where it is called."""
    caches = offered()
    names = {name for _, name in caches}
    return layout.measure_tab([(words, name) for name, (words, _) in LEVELS.items()], CONTEXTS, caches,
                              chosen_contexts=(1024, 4096), chosen_caches=[name for name in CHOSEN if name in names])


def read_plan(tab: MeasureTab, values: Mapping) -> speed.Plan:
    """What the form asks for. Raises ValueError where nothing is chosen."""
    names, contexts = tuple(values[tab.caches]), tuple(sorted(values[tab.contexts]))
    if not names:
        raise ValueError("choose at least one cache to put beside upstream's")
    plan = speed.Plan((LEVELS[values[tab.level]][1](contexts, names),), (torch.get_num_threads(),), ROUNDS, patient=False, prefills=False, peaks=False)
    plan.check()
    return plan


def measure(tab: MeasureTab, session: Session, values: Mapping) -> Iterator[dict]:
    """Run and paint: the bar twice a second, table and charts after each context."""
    stop = session.measure_box.stop
    try:
        plan = read_plan(tab, values)
        events = speed.run(plan, stop.is_set)
    except ValueError as error:
        yield {tab.notice: html_parts.notice(f"{str(error)[0].upper()}{str(error)[1:]}.", "error"), **_buttons_at_rest(tab)}
        return
    beside = False
    report = Report(settings={"rounds": plan.rounds})
    notice = ""
    try:
        with session.at_work():
            yield {tab.notice: "", tab.table: "", tab.downloads: "", tab.time: "", tab.size: "", **_buttons_at_work(tab)}
            for frame in _paint(tab, stop, report, events):
                beside = beside or scheduler.someone_writes()
                yield frame
            said = [STOPPED if report.rows else STOPPED_EARLY] if stop.is_set() else []
            notice = html_parts.notice(" ".join(said + ([BESIDE] if beside else [])), "info")
    except Exception as error:
        notice = html_parts.notice(f"The measurement broke off: {error}", "error")
    report.settings |= {"stopped": True} if stop.is_set() else {}
    yield {tab.notice: notice, tab.progress: "", **_buttons_at_rest(tab), **_results(tab, report, not notice)}


def _paint(tab: MeasureTab, stop: threading.Event, report: Report, events: Iterator) -> Iterator[dict]:
    for batch in batches(events, stop, PAINT_SECONDS):
        before = len(report.rows)
        for event in batch:
            report.add(event)
        latest = next((event for event in reversed(batch) if isinstance(event, speed.Progress)), None)
        frame = {tab.progress: measure_view.progress_html(latest)} if latest else {}
        yield frame | (_results(tab, report) if len(report.rows) > before else {})


def _results(tab: MeasureTab, report: Report, finished: bool = False) -> dict:
    if not report.rows:
        return {tab.table: measure_view.table_html(report)} if report.left_out else {}
    return {tab.table: measure_view.table_html(report), tab.downloads: measure_view.downloads_html(report),
            tab.time: measure_view.time_chart(report.rows, finished), tab.size: measure_view.size_chart(report.rows, finished)}


def _buttons_at_work(tab: MeasureTab) -> dict:
    return {tab.run: gr.update(interactive=False), tab.stop: gr.update(visible=True)}


def _buttons_at_rest(tab: MeasureTab) -> dict:
    return {tab.run: gr.update(interactive=True), tab.stop: gr.update(visible=False)}


def wire_measure(tab: MeasureTab, registry: Registry) -> None:
    """Connect the Measure tab. One measures at a time; replies are written meanwhile, and the tab says so."""
    painted = [tab.notice, tab.progress, tab.run, tab.stop, tab.table, tab.downloads, tab.time, tab.size]
    compute = {"concurrency_id": "measure", "concurrency_limit": 1, "show_progress": "minimal", "show_progress_on": [tab.progress],
               "api_visibility": "private"}

    quick = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}

    def accept(request: gr.Request):
        return _buttons_at_work(tab) if registry.get(key_of(request)).measure_box.take(AGAIN) else gr.skip()

    def start(values, request: gr.Request):
        session = registry.get(key_of(request))
        yield from in_turn(session.measure_box, lambda _: measure(tab, session, values), lambda notice: {tab.notice: notice, **_buttons_at_rest(tab)})

    tab.run.click(accept, None, [tab.run, tab.stop], **quick).then(start, tab.inputs, painted, **compute)
    tab.stop.click(stops(registry, lambda session: session.measure_box), None, None, **quick)
