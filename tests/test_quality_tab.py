"""The Measure tab's second half without a browser: what the form asks for, what is painted, and how it is stopped."""

import base64
import csv
import io
import json

import pytest
from tiny_chat import some_ids, tiny

import ui  # noqa: F401  (before gradio: telemetry off)
from kvcache.measure.quality import texts
from kvcache.measure.quality.results import Answered, Drifted, Report
from ui import measure_events, quality
from ui.state import Session


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


def asked(part, *caches, tokens=600):
    return {part.tokens: tokens, part.caches: list(caches)}


def link(html, number):
    return base64.b64decode(html.split("base64,")[number].split('"')[0]).decode()


def test_a_run_paints_the_bar_then_table_charts_and_files(part):
    frames = list(quality.measure(part, Session("a"), asked(part, "sink:window_length=64", "evicting:policy=lagkv,budget=0.25")))
    assert frames[0][part.stop]["visible"] and not frames[0][part.run]["interactive"]
    assert any("<progress" in frame.get(part.progress, "") for frame in frames)
    last = frames[-1]
    assert last[part.table].count('<th scope="row">') == 3 and last[part.progress] == "" and not last[part.stop]["visible"]
    assert "Sink 4 + 60" in last[part.table] and "lagkv" in last[part.table] and "random tokens" in last[part.table]
    assert [trace["name"] for trace in json.loads(last[part.drift])["figure"]["data"]][1:] == ["Sink 4 + 60", "lagkv 0.25"]
    report = Report.from_json(link(last[part.downloads], 1))
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
    frames = list(quality.measure(part, Session("a"), asked(part, *caches)))
    assert len(frames) == 1 and words in frames[0][part.notice] and frames[0][part.run]["interactive"]


def test_stop_ends_the_run_and_keeps_what_there_is(part):
    session = Session("a")
    frames = quality.measure(part, session, asked(part, "sink:window_length=64"))
    next(frames)
    session.quality_box.stop.set()
    rest = list(frames)
    assert measure_events.STOPPED_EARLY in rest[-1][part.notice] and rest[-1][part.run]["interactive"] and not session.busy


def test_leaving_the_page_stops_the_run(part):
    session = Session("a")
    frames = quality.measure(part, session, asked(part, "sink:window_length=64"))
    next(frames), next(frames)
    frames.close()
    assert session.quality_box.stop.is_set() and not session.busy


def test_what_breaks_gets_a_sentence(part, monkeypatch):
    monkeypatch.setattr(quality.quality, "drift", lambda *_: 1 / 0)
    assert "broke off: division by zero" in list(quality.measure(part, Session("a"), asked(part, "sink")))[-1][part.notice]


def test_what_is_chosen_at_first_is_on_offer():
    assert set(quality.CHOSEN) <= {cache for _, cache in quality.offered()}


def test_words_are_escaped_and_marks_are_those_of_the_chart():
    drifted = [Drifted(cache, 0, 1, 0.1, 0.1, 1.0, 1.0, size, size) for cache, size in (("dynamic", 4), ("sink", 1))]
    report = Report(settings={"text": "<b>", "tokens": 1, "forced": 1}, drifted=drifted, answered=[Answered("dynamic", "facts", "agnostic", 1, 0, 0, True, "", (), 4)])
    table = quality.table_html(report)
    assert "&lt;b&gt;" in table and "<b>" not in table and table.count("kv-swatch kv-circle") == 2 and "100% (21-100) of 100%" in table
