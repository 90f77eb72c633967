"""The Measure tab without a browser: what the form asks for, what is painted, and how it is stopped."""

import base64
import csv
import io
import json
from dataclasses import replace

import pytest
from tiny_chat import some_ids, tiny

import ui  # noqa: F401  (before gradio: telemetry off)
from kvcache.measure.quality import texts
from kvcache.measure.quality.results import Answered, Drifted
from kvcache.measure.quality.results import Report as QualityReport
from kvcache.measure.speed import run
from kvcache.measure.speed.contenders import CONTENDERS, REFERENCE
from kvcache.measure.speed.results import LeftOut, Report, Row
from kvcache.measure.speed.rigs import LayerRig
from kvcache.measure.speed.timing import Times
from ui import measure_events, measure_view, quality
from ui.measure_events import LEVELS, measure, read_plan
from ui.state import Session


@pytest.fixture
def tab(monkeypatch):
    """The tab on a rig so small that it is measured in a moment."""
    import gradio as gr

    monkeypatch.setattr(measure_events, "ROUNDS", 3)
    monkeypatch.setitem(LEVELS, "layer", ("One", lambda contexts, names: run.Level("layer", lambda: LayerRig(2, 2, 32), contexts, names, 2)))
    with gr.Blocks():
        return measure_events.make_tab()


def asked(tab, level="layer", contexts=(64,), caches=("dynamic",)):
    return {tab.level: level, tab.contexts: list(contexts), tab.caches: list(caches)}


def a_row(contender=REFERENCE, seconds=0.01, nbytes=4_000_000, context=1024):
    return Row("layer", 8, context, 1, contender, CONTENDERS[contender].label, "ours", Times(seconds, seconds, seconds, 3), nbytes)


def test_a_run_paints_the_bar_then_table_charts_and_file(tab):
    frames = list(measure(tab, Session("a"), asked(tab, contexts=(96, 64), caches=("dynamic", "native-4"))))
    assert frames[0][tab.stop]["visible"] and not frames[0][tab.run]["interactive"]
    assert any("<progress" in frame.get(tab.progress, "") for frame in frames)
    last = frames[-1]
    assert last[tab.table].count('<th scope="row">') == 6 and last[tab.progress] == "" and not last[tab.stop]["visible"]
    assert [trace["name"] for trace in json.loads(last[tab.time])["figure"]["data"]] == ["upstream Dynamic", "Dynamic", "Native 4-bit, decoded"]
    assert json.loads(last[tab.size])["figure"]["data"][0]["x"] == [64, 96]
    table, found = (base64.b64decode(link.split('"')[0]).decode() for link in last[tab.downloads].split("base64,")[1:])
    found = Report.from_json(found)
    assert len(table.splitlines()) == 7 and table.startswith("level,context")
    assert len(found.rows) == 6 and found.machine["cores"]


@pytest.mark.parametrize("changes, words", [({"caches": ()}, "Choose at least one cache"), ({"contexts": ()}, "choose at least one context")])
def test_an_empty_choice_gets_a_sentence(tab, changes, words):
    frames = list(measure(tab, Session("a"), asked(tab, **changes)))
    assert len(frames) == 1 and words in frames[0][tab.notice]


def test_stop_ends_the_run_and_keeps_what_there_is(tab):
    session = Session("a")
    frames = measure(tab, session, asked(tab, contexts=(64, 96, 128)))
    next(frames)
    session.measure_box.stop.set()
    rest = list(frames)
    assert "Stopped" in rest[-1][tab.notice] and rest[-1][tab.run]["interactive"] and not session.busy


def test_figures_of_an_earlier_run_do_not_stand_as_those_of_a_stopped_one(tab):
    session = Session("a")
    session.measure_box.stop.set()
    first, *rest = measure(tab, session, asked(tab))
    assert first[tab.table] == first[tab.time] == first[tab.size] == first[tab.downloads] == ""
    assert measure_events.STOPPED_EARLY in rest[-1][tab.notice]


def test_leaving_the_page_stops_the_run(tab):
    session = Session("a")
    frames = measure(tab, session, asked(tab, contexts=(64, 96, 128)))
    next(frames), next(frames)
    frames.close()
    assert session.measure_box.stop.is_set() and not session.busy


def test_what_breaks_gets_a_sentence(tab, monkeypatch):
    monkeypatch.setattr(run.Station, "measure", lambda self: iter([1 / 0]))
    assert "broke off: division by zero" in list(measure(tab, Session("a"), asked(tab)))[-1][tab.notice]


def test_the_tab_offers_both_rigs_and_every_contender_that_can_be_had(tab):
    names = {name for _, name in measure_events.offered()}
    assert {"dynamic", "native-4", "window", "upstream-hqq-4"} <= names and not {REFERENCE, "static"} & names
    plan = read_plan(tab, asked(tab, level="tiny", contexts=(1024,)))
    assert plan.levels[0].name == "tiny" and plan.levels[0].contenders == ("dynamic",) and not plan.patient


def test_no_verdict_on_noise_nor_on_what_is_not_finished():
    rows = [a_row(), replace(a_row("native-4", 0.008), step=Times(0.008, 0.006, 0.011, 3)), a_row("native-2", 0.002)]
    table = measure_view.table_html(Report(rows=rows))
    assert table.count("within the noise") == 1 and "5.00x faster" in table and "8.00 <small>6.00 to 11.0</small>" in table
    close = json.loads(measure_view.time_chart(rows[:2]))["sentence"]
    assert "cannot be told from it" in close and "cannot be told" not in json.loads(measure_view.time_chart(rows))["sentence"]
    assert "fastest" not in json.loads(measure_view.time_chart(rows, finished=False))["sentence"]
    assert "smallest" not in json.loads(measure_view.size_chart(rows, finished=False))["sentence"]


def test_lines_that_coincide_are_all_seen():
    figure = json.loads(measure_view.time_chart([a_row(), a_row("dynamic"), a_row("native-4")]))["figure"]
    widths = [trace["line"]["width"] for trace in figure["data"]]
    assert widths == sorted(widths, reverse=True) and len(set(widths)) == 3


def test_the_table_compares_in_words_and_says_what_is_missing():
    report = Report(rows=[a_row(), a_row("native-4", 0.04, 1_000_000)], left_out=[LeftOut("layer", 8, 1024, "upstream fp8", "it is <not> here")])
    table = measure_view.table_html(report)
    assert "4.00x slower" in table and "4.00x smaller" in table and "it is &lt;not&gt; here" in table and report.machine["torch"] in table
    assert 'class="kv-swatch kv-circle"' in table and 'class="kv-swatch kv-square"' in measure_view.table_html(Report(rows=[a_row("static")]))
    assert measure_view.versus(1 / 1.12, a_row("dynamic"), "smaller", "larger") == "1.12x larger"


# -- what each cache loses -----------------------------------------------------------------------------------------

@pytest.fixture
def part(monkeypatch):
    """The widgets, a tiny model and a random text."""
    import gradio as gr

    monkeypatch.setattr(quality.models, "load", lambda *_: tiny())
    monkeypatch.setattr(quality.texts, "usual", lambda *_: texts.Text("random tokens", (tuple(some_ids(900)),)))
    monkeypatch.setattr(quality, "CASES", 1)
    monkeypatch.setattr(quality, "FORCED", 4)
    with gr.Blocks():
        return quality.make_part()


def chosen(part, *caches, tokens=600):
    return {part.tokens: tokens, part.caches: list(caches)}


def link(html, number):
    return base64.b64decode(html.split("base64,")[number].split('"')[0]).decode()


def test_a_run_paints_the_bar_then_table_charts_and_files(part):
    frames = list(quality.measure(part, Session("a"), chosen(part, "sink:window_length=64", "evicting:policy=lagkv,budget=0.25")))
    assert frames[0][part.stop]["visible"] and not frames[0][part.run]["interactive"]
    assert any("<progress" in frame.get(part.progress, "") for frame in frames)
    last = frames[-1]
    assert last[part.table].count('<th scope="row">') == 3 and last[part.progress] == "" and not last[part.stop]["visible"]
    assert "Sink 4 + 60" in last[part.table] and "lagkv" in last[part.table] and "random tokens" in last[part.table]
    assert [trace["name"] for trace in json.loads(last[part.drift])["figure"]["data"]][1:] == ["Sink 4 + 60", "lagkv 0.25"]
    report = QualityReport.from_json(link(last[part.downloads], 1))
    assert len(report.drifted) == 3 and len(report.answered) == 3 * 4 and report.settings["model"] == "tiny-llama"
    assert len(list(csv.DictReader(io.StringIO(link(last[part.downloads], 2))))) == 3


@pytest.mark.parametrize(
    "caches, words",
    [
        ((), "Choose at least one cache"),
        (("turbo",), "No cache is called &#x27;turbo&#x27;"),
        (("sink:window_length=no",), "window_length must be a whole number"),
        (("hybrid_mamba",), "can&#x27;t be had"),
    ],
)
def test_what_can_not_be_measured_gets_a_sentence(part, caches, words):
    frames = list(quality.measure(part, Session("a"), chosen(part, *caches)))
    assert len(frames) == 1 and words in frames[0][part.notice] and frames[0][part.run]["interactive"]


def test_of_quality_stop_ends_the_run_and_keeps_what_there_is(part):
    session = Session("a")
    frames = quality.measure(part, session, chosen(part, "sink:window_length=64"))
    next(frames)
    session.quality_box.stop.set()
    rest = list(frames)
    assert measure_events.STOPPED_EARLY in rest[-1][part.notice] and rest[-1][part.run]["interactive"] and not session.busy


def test_of_quality_leaving_the_page_stops_the_run(part):
    session = Session("a")
    frames = quality.measure(part, session, chosen(part, "sink:window_length=64"))
    next(frames), next(frames)
    frames.close()
    assert session.quality_box.stop.is_set() and not session.busy


def test_of_quality_what_breaks_gets_a_sentence(part, monkeypatch):
    monkeypatch.setattr(quality.quality, "drift", lambda *_: 1 / 0)
    assert "broke off: division by zero" in list(quality.measure(part, Session("a"), chosen(part, "sink")))[-1][part.notice]


def test_what_is_chosen_at_first_is_on_offer():
    assert set(quality.CHOSEN) <= {cache for _, cache in quality.offered()}


def test_words_are_escaped_and_marks_are_those_of_the_chart():
    drifted = [Drifted(cache, 0, 1, 0.1, 0.1, 1.0, 1.0, size, size) for cache, size in (("dynamic", 4), ("sink", 1))]
    report = QualityReport(settings={"text": "<b>", "tokens": 1, "forced": 1}, drifted=drifted, answered=[Answered("dynamic", "facts", "agnostic", 1, 0, 0, True, "", (), 4)])
    table = quality.table_html(report)
    assert "&lt;b&gt;" in table and "<b>" not in table and table.count("kv-swatch kv-circle") == 2 and "100% (21-100) of 100%" in table
