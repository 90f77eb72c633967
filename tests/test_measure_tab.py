"""The Measure tab without a browser: what the form asks for, what is painted, and how it is stopped."""

import base64
import json
from dataclasses import replace

import pytest

import ui  # noqa: F401  (before gradio: telemetry off)
from kvcache.measure.speed import run
from kvcache.measure.speed.contenders import CONTENDERS, REFERENCE
from kvcache.measure.speed.results import LeftOut, Report, Row
from kvcache.measure.speed.rigs import LayerRig
from kvcache.measure.speed.timing import Times
from ui import measure_events, measure_view
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
