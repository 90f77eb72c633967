"""The Compare tab's wiring: run a message or the guided demo through every column, then measure what differed."""
from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import gradio as gr

from . import compare_view, drift, html_parts, layout
from .compare import Comparison, wanted_columns
from .events import (
    CHART_SECONDS,
    COMPARE_QUEUE,
    PAINT_SECONDS,
    buttons,
    fetched,
    give_back_after,
    in_turn,
    key_of,
    loaded_or_none,
    read_settings,
    reason,
    stops,
)
from .layout import ChatTab, Column, CompareTab
from .pending import AGAIN
from .state import Registry, Session, require_room
from .stream import batches
from .view import TAKEN_BACK

DEMO = (
    ("Hi, my name is Ada and the red box opens with 7-3-1.", ""),
    ("Tell me a story about a mouse.", ""),
    ("Tell me a story about a robot.", ""),
    ("What can you do?", ""),
    ("Tell me a story about an owl.", ""),
    ("What is my name?", "Ada"),
    ("Which code opens the red box?", "7-3-1"),
)

READ = "My name is Ada and the red box opens with 7-3-1."  # by an encoder, which is told nothing in the chat
DEMO_READING = (
    ("My dog is called Rex.", ""),
    ("Tell me a story about a fox.", ""),
    ("What can you do?", ""),
    ("What is my name?", "Ada"),
    ("Which code opens the red box?", "7-3-1"),
    ("What is my dog called?", "Rex"),
)


TAKEN_BACK_FROM_ALL = "Stopped before every cache had begun to answer: the message was taken back. The turns before it stay, and the next message goes on from them."
PLAY = object()  # what waits where the demo's button was pressed
OTHER_SETTINGS = "The model, the caches, their settings or the sampling are no longer those of the replies: Run all goes on with what is set."
AT_REST = gr.update(submit_btn="Run all", stop_btn=False)


def demo_for(loaded) -> tuple[str, tuple[tuple[str, str], ...]]:
    """What the demo puts into the system box, or "" to leave it, and its messages."""
    return (READ, DEMO_READING) if loaded is not None and loaded.is_encoder_decoder else ("", DEMO)


def read_columns(chat: ChatTab, tab: CompareTab, values: Mapping) -> list:
    """Settings of the columns that show. Raises ValueError where they are not two to four."""
    shared = read_settings(chat, values)
    caches = [column.form.read(values) for column in tab.columns[:values[tab.count]]]
    return wanted_columns(shared.model, shared.system, shared.sampling, caches)


def going_on(session: Session, wanted: list, afresh: bool) -> tuple[Comparison, str]:
    """(the comparison that a message goes on with, what is to be said of it). Raises ValueError where its caches can't be had."""
    before = session.comparison
    if afresh:
        return fresh(session, wanted), ""
    if before is None or before.broken:
        return fresh(session, wanted), started_over(session)
    if list(before.wanted) == wanted:
        return before, ""
    changed = before.changed(wanted)
    if changed is None:
        return fresh(session, wanted), started_over(session)
    require_room([*wanted, *wanted], changed.loaded, session.budget)
    names = ", ".join(f"{n + 1}" for n in changed.behind)
    return changed, f"Cache {names}: changed, and answers the earlier messages first. The other columns stay as they were." if names else ""


def run(tab: CompareTab, registry: Registry, session: Session, wanted: list, messages: Sequence[tuple[str, str]], afresh: bool, typed: str = "",
        said: str = "") -> Iterator[dict]:
    """Send `messages` (text, what a cache that remembers would answer) to every column, painting as they stream.

    `typed` is the message to give back if it is refused; `said` stands above the columns.
    """
    stop = session.compare_box.stop
    try:
        comparison, begun = going_on(session, wanted, afresh)
        again = bool(comparison.asked)
        if len(messages) > 1 and comparison.alike:
            raise ValueError(alike_words(comparison))
        replies = comparison.ask(messages[0][0], stop, messages[0][1])
    except Exception as error:
        session.compare_box.give_back(typed)
        yield refused(tab, reason(error))
        return
    note = said or begun or alike_words(comparison)
    rest = (comparison.ask(text, stop, expects) for text, expects in messages[1:])
    yield from answered(tab, registry, session, comparison, chain([replies], rest), typed, note, _no_longer(tab, len(wanted)) if again else _nothing_yet(tab))


def regenerate(tab: CompareTab, registry: Registry, session: Session, wanted: list) -> Iterator[dict]:
    """Have all columns answer the last message again, painting as they stream."""
    comparison = session.comparison
    try:
        if comparison is None:
            raise ValueError(started_over(session) or "There is no reply to make again: send a message first.")
        if list(comparison.wanted) != wanted:
            raise ValueError(OTHER_SETTINGS)
        replies = comparison.again(session.compare_box.stop)
    except ValueError as error:
        yield refused(tab, str(error))
        return
    greedy = not comparison.columns[0].conversation.sampling.temperature
    yield from answered(tab, registry, session, comparison, [replies], "", "At temperature 0 a reply made again is the same." if greedy else "", {})


def refused(tab: CompareTab, sentence: str) -> dict:
    return {tab.notice: html_parts.notice(sentence, "error"), tab.message: AT_REST}


def answered(tab: CompareTab, registry: Registry, session: Session, comparison: Comparison, replies: Iterable[Iterator], typed: str, note: str, shown: dict) -> Iterator[dict]:
    """Paint the columns' replies to one message after the other, and measure each. `shown`: what else the first frame changes."""
    stop = session.compare_box.stop
    session.comparison, session.lost_comparison = comparison, False
    try:
        with session.at_work():
            yield {tab.notice: html_parts.notice(note, "info"), tab.message: layout.STOP_BUTTON, tab.table: compare_view.table_html(comparison)} | shown
            for one in replies:
                yield from _paint(tab, stop, comparison, one)
                if not comparison.ended_early:
                    yield from _drift(tab, comparison, stop, note)
                if stop.is_set() or comparison.ended_early:
                    break
    except Exception as error:
        session.comparison, session.lost_comparison = None, True
        yield {tab.notice: html_parts.notice(f"The comparison broke off: {error}", "error")}
    finally:
        registry.make_room(keep=session)
    if session.comparison and comparison.taken_back:
        session.compare_box.give_back(typed)
        yield {tab.notice: html_parts.notice(TAKEN_BACK if not comparison.asked else TAKEN_BACK_FROM_ALL, "info"), **_results(tab, comparison)}
    elif session.comparison and comparison.stopped:
        yield {tab.notice: html_parts.notice("Stopped: what was written by then stays, and the next message goes on from it.", "info"), **_results(tab, comparison)}
    yield {tab.message: AT_REST}


def fresh(session: Session, wanted: list) -> Comparison:
    """A new comparison. Raises ValueError on a misfit, and where its caches, of which each has a second one, take more than there is."""
    comparison = Comparison(wanted)
    require_room([*wanted, *wanted], comparison.loaded, session.budget)
    return comparison


def started_over(session: Session) -> str:
    """Why the message does not go on from the comparison before, if there was one."""
    if session.lost_comparison:
        return "Started over: the caches of the comparison before had been freed."
    if session.comparison and session.comparison.broken:
        return "Started over: the run before broke off."
    return "Started over: the model, the caches, their settings or the sampling have changed." if session.comparison else ""


def _nothing_yet(tab: CompareTab) -> dict:
    """What a new comparison has not shown yet must not stand there from the one before."""
    return dict.fromkeys((tab.divergence, tab.downloads, tab.quality, tab.kl), "") | {column.thread: "" for column in tab.columns}


def _no_longer(tab: CompareTab, columns: int) -> dict:
    """Threads of columns that are no longer among those that run."""
    return {column.thread: "" for column in tab.columns[columns:]}


def alike_words(comparison: Comparison) -> str:
    """What to say where there is nothing to compare: some models suit one cache alone."""
    sentence = "All columns hold the same cache, so they come out alike. Choose another cache or, where the model suits no other, another model."
    return sentence if comparison.alike else ""


def _drift(tab: CompareTab, comparison: Comparison, stop: threading.Event, note: str) -> Iterator[dict]:
    painted = time.perf_counter()
    for done in drift.measure(comparison, stop):
        if time.perf_counter() - painted >= CHART_SECONDS:
            painted = time.perf_counter()
            yield {tab.notice: html_parts.notice(f"Measuring how far the distributions drift apart: {done:.0%}", "progress")}
    yield {tab.notice: html_parts.notice(note, "info"), **_results(tab, comparison)}


def _paint(tab: CompareTab, stop: threading.Event, comparison: Comparison, replies: Iterator) -> Iterator[dict]:
    charted = time.perf_counter()
    yield _threads(tab, comparison)
    for _ in batches(replies, stop, PAINT_SECONDS):
        charts_too = time.perf_counter() - charted >= CHART_SECONDS
        yield _threads(tab, comparison) | ({tab.chart: compare_view.chart_value(comparison)} if charts_too else {})
        charted = time.perf_counter() if charts_too else charted
    yield _threads(tab, comparison) | {tab.chart: compare_view.chart_value(comparison), tab.table: compare_view.table_html(comparison)}


def _threads(tab: CompareTab, comparison: Comparison) -> dict:
    return {widgets.thread: compare_view.thread_html(comparison, column) for widgets, column in zip(tab.columns, comparison.columns)}


def _results(tab: CompareTab, comparison: Comparison) -> dict:
    return {tab.table: compare_view.table_html(comparison), tab.divergence: compare_view.divergence_html(comparison) or layout.NOTHING_DIVERGED, tab.quality: compare_view.quality_value(comparison),
            tab.kl: compare_view.kl_value(comparison), tab.downloads: compare_view.downloads_html(comparison), **_threads(tab, comparison)}


def wire_compare(chat: ChatTab, tab: CompareTab, registry: Registry) -> None:
    """Connect the Compare tab; model, system prompt and sampling are read from the Chat tab."""
    forms = set().union(*(column.form.inputs for column in tab.columns))
    inputs = chat.settings | forms | {tab.count, tab.ticket}
    threads = [column.thread for column in tab.columns]
    painted = [tab.notice, tab.message, tab.table, tab.divergence, tab.downloads, tab.chart, tab.quality, tab.kl, *threads]
    compute = {**COMPARE_QUEUE, "show_progress": "minimal", "show_progress_on": [tab.table],
               "api_visibility": "private", "trigger_mode": "multiple"}  # one that was started over may still wait
    quick = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}

    def begin(values, session, work, typed=""):
        try:
            wanted = read_columns(chat, tab, values)
        except ValueError as error:
            session.compare_box.give_back(typed)
            yield refused(tab, str(error))
            return
        yield from work(wanted)

    def accept(text, request: gr.Request):
        box = registry.get(key_of(request)).compare_box
        return {tab.message: layout.STOP_BUTTON | {"value": ""}, tab.ticket: box.ticket} if box.take(text) else gr.skip()

    pressed = buttons(tab, registry, lambda session: session.compare_box)

    def send(values, request: gr.Request):
        session = registry.get(key_of(request))
        yield from in_turn(session.compare_box, lambda wanted: answer(values, session, wanted),
                           lambda notice: {tab.notice: notice, tab.message: AT_REST}, values[tab.ticket])

    def answer(values, session, wanted):
        if wanted is PLAY:
            return demo(values, session)
        if wanted is AGAIN:
            return begin(values, session, lambda settings: regenerate(tab, registry, session, settings))
        return begin(values, session, lambda settings: run(tab, registry, session, settings, [(wanted, "")], False, wanted), wanted)

    def demo(values, session):
        text, messages = demo_for(loaded_or_none(values[chat.model]))
        values, said = (values | {chat.system: text}, f"The demo's text, which the encoder reads: {text}") if text else (values, "")
        return begin(values, session, lambda settings: run(tab, registry, session, settings, messages, True, said=said))

    def restart(request: gr.Request):
        session = registry.get(key_of(request))
        if not session.compare_box.settle():
            return {tab.notice: html_parts.notice("The caches have not stopped yet: press Start over again in a moment.", "error")}
        session.comparison, session.lost_comparison = None, False
        empty = '<p class="kv-quiet">Run a message to fill this table.</p>'
        return {tab.notice: "", tab.message: AT_REST, tab.table: empty} | dict.fromkeys((tab.divergence, tab.downloads, tab.chart, tab.quality, tab.kl, *threads), "")

    accepted = [tab.message, tab.ticket]
    for taken in (tab.message.submit(accept, tab.message, accepted, **quick), tab.demo.click(pressed(PLAY), None, accepted, **quick),
                  tab.regenerate.click(pressed(AGAIN), None, accepted, **quick)):
        sent = fetched(taken, chat.model).then(send, inputs, painted, **compute)
        give_back_after(sent, tab.message, registry, lambda session: session.compare_box)
    restarted = tab.restart.click(restart, None, painted, **quick)
    give_back_after(restarted, tab.message, registry, lambda session: session.compare_box)
    tab.message.stop(stops(registry, lambda session: session.compare_box), None, None, **quick)
    tab.count.input(lambda count: [gr.update(visible=n < count) for n in range(len(tab.columns))], tab.count,
                    [column.box for column in tab.columns], **quick)
    for column in tab.columns:
        wire_form(chat, column, registry)


def wire_form(chat: ChatTab, column: Column, registry: Registry) -> None:
    """Show the parameters of the cache that was picked, and what it is called with them."""
    form, quick = column.form, {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}

    def named(values) -> dict:
        name, parameters = form.read(values)
        return {column.title: layout.column_title(form.entries[name], parameters)}

    def chosen(values, request: gr.Request):
        registry.get(key_of(request)).picked(form.form_id)
        loaded = loaded_or_none(values[chat.model])
        return form.chosen(values[form.cache], loaded and loaded.config) | named(values)

    form.cache.input(chosen, {chat.model} | form.inputs, [*form.outputs, column.title], **quick)
    gr.on([form.cache.change, *(widget.change for widget in form.widgets.values())], named, form.inputs, column.title, trigger_mode="always_last", **quick)
