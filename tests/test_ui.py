"""The page without a browser: forms from the catalog, figures from snapshots, sessions, and events as generators."""

import csv
import gc
import io
import json
import re
import sys
import threading
import weakref
from functools import cache
from html import escape
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_models
from tiny_chat import make_model, make_reader, make_tokenizer, reader, tiny

import kvcache
import ui  # noqa: F401  (before gradio: telemetry off)

# isort: split
import gradio as gr

from kvcache import catalog
from kvcache.chat import models
from kvcache.chat.engine import Compiling, Prefill, Stats, Token
from kvcache.layer import EvictingLayer
from kvcache.memory import LayerMemory, Snapshot, take_snapshot
from ui import (
    charts,
    compare_events,
    compare_view,
    drift,
    events,
    forms,
    gradio_upkeep,
    html_parts,
    layout,
    learn,
    learn_pictures,
    recall,
    token_ribbon,
    view,
)
from ui.charts import History
from ui.compare import Comparison, Turn, compared_length, wanted_columns
from ui.pending import AGAIN, Outbox
from ui.state import Registry, Session, Settings
from ui.stream import batches, pause

WORDS = "The keeper counts the ships and remembers the code. "
REPLY = {"max_new_tokens": 6}
SMALL = {"dynamic": {}, "static": {"max_cache_len": 512}, "sliding_window": {"window_length": 32}, "sink": {"window_length": 32},
         "quantized": {"nbits": 4, "q_group_size": 32, "residual_length": 8}}
PAIRS = [("encoder_decoder", {"self_cache": "dynamic"}), ("encoder_decoder", {"self_cache": "static", "max_cache_len": 512}),
         ("encoder_decoder", {"self_cache": "quantized", "nbits": 2, "q_group_size": 32, "residual_length": 8})]
TEXT = "The keeper is called Bram and the code is 395."
TAB = SimpleNamespace(session_hash="tab")


@pytest.fixture(autouse=True)
def one_tiny_model(monkeypatch):
    """Every model asked for is the tiny one, except those with an encoder and one that cannot be had."""
    def load(model_id="tiny", *arguments, **options):
        if model_id in ("", None, "no/such-model"):
            raise models.ModelError(f"The hub has no public model {model_id!r}: check the spelling.")
        return {"reader": reader, "answerer": answerer}.get(model_id, tiny)()

    monkeypatch.setattr(models, "load", load)


def settings(cache="dynamic", parameters=None, model="tiny", system="", **sampling):
    return Settings(model, cache, SMALL[cache] if parameters is None else parameters, system, REPLY | sampling)


@cache
def answerer():
    """An encoder-decoder that takes each message by itself."""
    return make_reader(tokenizer=make_tokenizer(None), start=0)


def snapshot(seen, layers=4, held=None, reserved=100):
    layer = LayerMemory(keys=64 * seen, values=64 * seen, scales=8, residual=16, reserved=reserved)
    return Snapshot(seen, seen if held is None else held, (layer,) * layers, (seen,) * layers)


def grown(length):
    """A history of one prefill, a token at a time."""
    history = History()
    history.start_turn()
    for seen in range(1, length + 1):
        history.add(Prefill(seen, length, 0.1, snapshot(seen)))
    return history


def picked(index, seen):
    return Token(1, "a", index, 0.1, snapshot(seen))


def say(session, text, wanted=None):
    """Send a message and take in every event; returns the stats of the reply."""
    session.prepare(wanted or session.settings or settings())
    for event in session.conversation.send(text, session.chat_box.stop):
        session.history.add(event)
    return session.stats[-1]


# -- forms -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", list(kvcache.ENTRIES))
def test_every_parameter_of_the_catalog_has_a_widget_with_its_help_and_range(name):
    entry = kvcache.ENTRIES[name]
    form = built_form(name)
    for parameter in entry.parameters:
        widget = form.widgets[name, parameter.name]
        assert widget.label == parameter.label and widget.value == forms.TEACHING.get(parameter.name, parameter.default)
        assert parameter.help.rstrip(".") in widget.info
        if parameter.kind == "int":
            assert f"{parameter.maximum:,}" in widget.info


def handler(name, registry):
    """The first of the page's event handlers with that name, what its inputs hold when the page is opened, and they by id."""
    from ui import page
    event = next(event for event in page.build("tiny", registry).fns.values() if event.fn and event.fn.__name__ == name)
    return event.fn, {widget: widget.value for widget in event.inputs}, {widget.elem_id: widget for widget in event.inputs}


def built_form(name, **options):
    import gradio as gr
    with gr.Blocks():
        return forms.cache_form(kvcache.ENTRIES, "test", name, **options)


def test_a_form_reads_back_the_chosen_cache_and_only_its_own_parameters():
    form = built_form("sink", values={"window_length": 64})
    values = {form.cache: "sink"} | {widget: widget.value for widget in form.widgets.values()}
    assert form.read(values) == ("sink", {**kvcache.ENTRIES["sink"].defaults(), "window_length": 64, "residual_length": 0})


def test_picking_a_cache_shows_its_group_alone():
    form = built_form("dynamic")
    shown = form.chosen("sink", tiny().config)
    assert [name for name, group in form.groups.items() if shown[group]["visible"]] == ["sink"]
    assert kvcache.ENTRIES["sink"].summary.split(":")[0] in shown[form.note]


def test_a_cache_that_does_not_fit_is_marked_and_its_note_gives_the_reason():
    config = tiny("mamba").config
    refused = {name: forms.why_not(entry, config) for name, entry in kvcache.ENTRIES.items()}
    assert any(refused.values()), "mamba has no attention layers: some cache must say that it does not fit"
    for label, name in forms.cache_choices(kvcache.ENTRIES, config):
        assert label.endswith("not here") == bool(refused[name])
        if refused[name]:
            assert "kv-warning" in forms.note_html(kvcache.ENTRIES[name], config)


def test_choices_that_can_not_be_taken_are_greyed_out_with_the_reason():
    parameter = SimpleNamespace(name="nbits", label="Bits", kind="choice", choices=(8, 3, 1))
    entry = SimpleNamespace(name="q", title="Q", summary="s.", parameters=(parameter,), unavailable=lambda: None,
                            why_not_alone=lambda config: None, parts={}, disabled_choices=lambda name, config: {3: "no <3>", 1: "no <3>"})
    note = forms.reasons_html(entry, object(), "f")
    assert "#f-q-nbits label:nth-of-type(2), #f-q-nbits label:nth-of-type(3)" in note
    assert "Bits 3, 1: no &lt;3&gt;" in note


def test_wide_ranges_are_number_fields_and_narrow_ones_sliders():
    narrow = SimpleNamespace(kind="int", minimum=0, maximum=64, step=1)
    wide = SimpleNamespace(kind="int", minimum=8, maximum=32768, step=1)
    assert forms.is_slider(narrow) and not forms.is_slider(wide)


# -- charts ------------------------------------------------------------------------------------------------------

def test_the_memory_figure_stacks_every_kind_by_layer_in_its_own_colour():
    other = LayerMemory(keys=640, values=640, scales=8, residual=17, reserved=100)
    figure = charts.memory_figure(Snapshot(10, 10, (*snapshot(10, layers=2).layers, other), (10,) * 3))
    bars = [trace for trace in figure["data"] if trace["type"] == "bar"]
    assert [bar["name"] for bar in bars] == ["keys", "values", "scales", "residual", "reserved"]
    assert all(len(bar["x"]) == 3 and bar["marker"]["color"] == f"var(--kv-{bar['name']})" for bar in bars)
    assert bars[0]["x"] == [640] * 3


def test_state_joins_the_legend_only_where_a_model_has_it():
    layer = LayerMemory(state=50)
    names = [trace.get("name") for trace in charts.memory_figure(Snapshot(1, 0, (layer,), (0,)))["data"]]
    assert "state" in names


def test_layers_that_are_alike_are_one_bar_of_all_their_bytes():
    bars = [trace for trace in charts.memory_figure(snapshot(10, layers=28))["data"] if trace["type"] == "bar"]
    assert all(len(bar["x"]) == 1 and bar["y"] == ["28 layers"] for bar in bars) and bars[0]["x"] == [28 * 640]


def test_a_cache_on_two_devices_has_a_bar_for_each_and_words():
    there = (("cuda:0", LayerMemory(keys=640, reserved=60)), ("cpu", LayerMemory(keys=6400)))
    shown = Snapshot(10, 10, (LayerMemory(keys=640, reserved=60), *[LayerMemory(keys=640)] * 10), (10,) * 11, devices=there)
    bars = {trace["name"]: trace for trace in charts.memory_figure(shown)["data"] if trace["type"] == "bar"}
    assert bars["keys"]["y"] == ["cuda:0", "cpu"] and bars["keys"]["x"] == [640, 6400] and bars["reserved"]["x"] == [60, 0]
    assert charts.memory_words(shown).endswith(" 700 B on cuda:0, 6.4 kB on cpu.")


def test_28_layers_keep_few_labels():
    layers = tuple(LayerMemory(keys=64 * n) for n in range(1, 29))
    axis = charts.memory_figure(Snapshot(10, 10, layers, (10,) * 28))["layout"]["yaxis"]
    assert len(axis["tickvals"]) <= charts.MAX_LABELLED_LAYERS and axis["tickvals"][0] == 0


def test_the_history_counts_tokens_processed_through_crops_and_recomputation():
    history = grown(10)
    history.add(picked(0, 10))  # of what was read: nothing is fed for it
    history.add(picked(1, 11))
    history.start_turn()
    history.add(Prefill(2, 2, 0.1, snapshot(9), reused=7))  # cropped to 7 and 2 tokens fed
    history.add(picked(0, 9))
    history.add(picked(1, 10))
    history.start_turn()
    history.add(Prefill(15, 15, 0.1, snapshot(15)))  # all of it computed again, and longer than before
    assert [point[:2] for point in history.points[-5:]] == [(10, 10), (11, 11), (13, 9), (14, 10), (29, 15)]


def test_the_history_figure_draws_bytes_in_use_and_what_is_reserved_beside_them():
    history = grown(40)
    drawn = {trace["name"]: trace["y"][-1] for trace in charts.history_figure(history, lambda tokens: 1000)["data"]}
    assert drawn["this cache"] == charts.used_nbytes(snapshot(40)) and drawn["with reserved"] == snapshot(40).total
    assert charts.compare_figure([("a", history)], lambda tokens: 0)["data"][0]["y"][-1] == drawn["this cache"]


def test_a_long_history_is_thinned_and_keeps_its_ends_and_its_steps_down():
    points = [(n, n if n < 900 else n - 800, 0, 0, 0) for n in range(1, 2001)]
    kept = charts.decimate(points)
    assert len(kept) <= charts.MAX_POINTS + 4
    assert kept[0] == points[0] and kept[-1] == points[-1]
    assert points[898] in kept and points[899] in kept


def test_the_history_figure_marks_window_turns_and_a_dynamic_cache():
    history = grown(40)
    history.turns = [0, 20]
    figure = charts.history_figure(history, lambda tokens: 1000 * tokens, window=32)
    by_name = {trace["name"]: trace for trace in figure["data"]}
    assert by_name["DynamicCache would hold"]["y"][-1] == 40_000 and by_name["DynamicCache would hold"]["line"]["dash"] == "dash"
    assert by_name["tokens seen"]["y"][-1] == 40
    assert {note["text"] for note in figure["layout"]["annotations"]} == {"turn 2", "window 32"}


@pytest.mark.parametrize(("name", "parameters", "window"), [("sliding_window", {"window_length": 24}, 24), ("sink", {"window_length": 24}, 24), ("dynamic", {}, None)])
def test_the_window_of_a_conversations_cache_is_marked(name, parameters, window):
    session = Session("s")
    say(session, WORDS, settings(name, parameters))
    chart = json.loads(view.history_chart(session, take_snapshot(session.conversation.cache)))
    marked = [note["text"] for note in chart["figure"]["layout"]["annotations"] if note["text"].startswith("window")]
    assert marked == ([f"window {window}"] if window else [])


def test_a_chunk_is_a_step_and_not_a_slope():
    """What was held while a chunk was fed is not known: a straight line over it would say that a static cache grows."""
    history = History()
    history.start_turn()
    history.add(Prefill(142, 142, 0.1, snapshot(142)))
    figure, other = charts.history_figure(history, lambda tokens: 1000 * tokens), charts.compare_figure([("a", history)], lambda tokens: 1000)
    assert {trace["line"]["shape"] for trace in figure["data"] + other["data"]} == {"hv"}
    assert [point[0] for point in history.points] == [0, 142]


@pytest.mark.parametrize("name", ["static", "sliding_window"])
def test_what_never_grew_is_not_drawn_as_growing(name):
    session = Session("s")
    say(session, WORDS * 6, settings(name))
    total, held = [point[4] for point in session.history.points[1:]], [point[2] for point in session.history.points[1:]]
    assert len(set(total)) == 1 if name == "static" else max(held) <= 32


def test_nothing_is_drawn_of_a_cache_that_holds_nothing():
    session = Session("s")
    session.prepare(settings())
    assert view.charts_at_rest(session)[:2] == ("", "")
    assert view.memory_chart(take_snapshot(session.conversation.cache)) == ""


@pytest.mark.parametrize("name", ["dynamic", "quantized", "sink"])
def test_undo_takes_the_turn_out_of_charts_facts_and_ribbon(tab, name):
    session, wanted = Session("s"), settings(name, dict(residual_length=512) if name == "quantized" else None)
    turn(tab, session, WORDS, wanted)
    points, seen = list(session.history.points), len(session.conversation.cached_ids)
    turn(tab, session, WORDS * 3, wanted)
    list(events.reply(tab, Registry(), session, wanted, events.again))
    assert session.undo() == WORDS * 3
    memory, history, ribbon = view.charts_at_rest(session)
    assert session.history.points == points and session.history.turns == [0]
    if name == "sink":  # which can't go back
        assert (memory, history) == ("", "") and "kv-cells" not in ribbon and "can't go back" in view.after_undo(session)
    else:
        assert f"seen <b>{seen}</b>" in json.loads(history)["line"] and "not yet cached <b>1</b>" in ribbon and view.after_undo(session) == ""
    session.undo()
    assert view.charts_at_rest(session)[:2] == ("", "") and session.history.turns == []


def test_three_families_of_colours_share_none():
    """A colour that means keys in one picture must not mean a column in the next."""
    css = (Path(ui.__file__).parent / "assets" / "page.css").read_text()
    for block in css.split("body.dark {")[0:2]:
        colours = dict(re.findall(r"--kv-([\w-]+): (#[0-9a-f]{6})", block.split("}")[0]))
        kinds = {colours[kind] for kind in charts.KINDS}
        columns = {colours[name] for name in colours if name.startswith("column")}
        fates = {colours["ink"], colours["ink-soft"]}
        assert len(kinds) == len(charts.KINDS) and not kinds & columns and not kinds & fates and not (columns - {colours["column-5"]}) & fates
    used = re.findall(r"var\(--kv-([\w-]+)\)", "".join(line for line in css.splitlines() if line.startswith(".fate-")))
    assert not set(used) & set(charts.KINDS)


@pytest.mark.parametrize("nbytes, words", [(0, "0 B"), (938, "938 B"), (187_400, "187 kB"), (1_340_000, "1.34 MB"), (999_999, "1 MB")])
def test_sizes_in_words(nbytes, words):
    assert charts.human_bytes(nbytes) == words


def test_the_facts_under_the_chart_say_what_a_dynamic_cache_would_hold():
    facts = dict(charts.length_facts(snapshot(10), 26_000, predicted=5216, window=32))
    assert facts["seen"] == "10" and facts["in use"] == "5.22 kB" and facts["window"] == "32" and "predicted" not in facts
    assert facts["reserved beside"] == "400 B" and facts["in all"] == "5.62 kB"
    assert facts["DynamicCache would use"] == "26 kB (4.6x of this)", "what is reserved is taken, too"
    assert dict(charts.length_facts(snapshot(10), 0, predicted=9))["predicted"] == "9 B"


def test_every_chart_has_words_for_those_who_can_not_see_it():
    assert charts.memory_words(snapshot(10, layers=2)) == (
        "2 layers hold 2.81 kB: keys 1.28 kB, values 1.28 kB, scales 16 B, residual 32 B, reserved 200 B.")


# -- every token's fate ------------------------------------------------------------------------------------------

def test_a_short_ribbon_has_one_cell_a_token_and_counts_in_words():
    per_cell, kinds = token_ribbon.cells([("sink", 2), ("evicted", 3), ("full", 4)], pending=1)
    assert per_cell == 1 and kinds == ["sink"] * 2 + ["evicted"] * 3 + ["full"] * 4 + ["pending"]
    html = token_ribbon.ribbons_html([("", [("sink", 2), ("full", 4)])], 1)
    assert "full precision <b>4</b>" in html and "not yet cached <b>1</b>" in html


def test_a_long_ribbon_shares_cells_and_never_hides_the_sinks():
    per_cell, kinds = token_ribbon.cells([("sink", 4), ("evicted", 10_000), ("quantized", 900)])
    assert len(kinds) <= token_ribbon.MAX_CELLS and per_cell == 46
    assert kinds[0] == "sink" and kinds[-1] == "quantized" and kinds[100] == "evicted"


def test_a_square_of_the_ribbon_is_its_word(tab):
    session = Session("s")
    turn(tab, session, WORDS * 3, settings("sink"))
    html = view.charts_at_rest(session)[2]
    ids, words = session.conversation.ids, re.findall(r'data-word="([^"]*)" data-where="([^"]*)" data-fate="([^"]*)" data-message="(\d*)"', html)
    decode = session.conversation.loaded.tokenizer.decode
    assert [escape(decode([token])).replace("\n", "\u21b5") for token in ids] == [word for word, *_ in words]
    assert words[0][1:3] == ("token 1", "sink") and words[8][1:3] == ("token 9", "evicted") and words[-1][1:] == (f"token {len(ids)}", "not yet cached", "1")
    assert {message for *_, message in words} == {"0", "1"}


def test_words_that_were_forgotten_fade_in_the_conversation(tab):
    session = Session("s")
    turn(tab, session, "My name is <b>Ada</b>. " + WORDS * 3, settings("sink"))
    turn(tab, session, WORDS * 2, settings("sink"))
    first, reply, _, second = view.chat_messages(session)[:4]
    assert 'class="kv-gone"' in first["content"] and "&lt;b&gt;" in first["content"] and "<b>" not in first["content"]
    from_, to = view.forgotten(session)[0]
    said = session.conversation.messages[0]["content"]
    assert said[from_:to].strip() and to == len(said), "all but what the sinks hold"
    assert view.forgotten(session).get(2, (1, 0))[1] < len(WORDS * 2), "the end is still in the window"
    turn(tab, session, "and then", settings("dynamic"))
    assert view.forgotten(session) == {} and "kv-gone" not in view.chat_messages(session)[0]["content"]


def test_where_each_head_forgets_other_tokens_no_word_is_said_to_be_gone():
    class Some(EvictingLayer):
        def __init__(self):
            self.seen = 3
    assert not view.says_which(SimpleNamespace(layers=[Some()])) and view.says_which(SimpleNamespace(layers=[]))


@pytest.mark.parametrize("name", list(kvcache.ENTRIES))
def test_the_learn_card_shows_what_the_cache_itself_says(name):
    card = learn.card_html(kvcache.ENTRIES[name])
    assert kvcache.ENTRIES[name].title in card and "kv-cells" in card
    if name == "evicting":  # each head has kept the budget's tokens, which squares of as many shades say
        shares = [int(share) for share in re.findall(r'style="--share: (\d+)%"', card)]
        assert len(set(shares)) > 4 and {0, 100} < set(shares)
    assert all(parameter.name in card for parameter in kvcache.ENTRIES[name].parameters)


def test_pictures_are_of_what_the_caches_do_to_each_kind_of_layer():
    def of(name):
        return re.sub(r'<i class="[^"]*"></i>|</?(div|ul|li|b|p)[^>]*>', " ", learn_pictures.picture_html(kvcache.ENTRIES[name]))

    assert "sink 4" in " ".join(of("sink").split())
    assert sum(map(int, re.findall(r"in (?:no head|some heads|every head) (\d+)", " ".join(of("evicting").split())))) == learn_pictures.TOKENS
    hybrid, mixed = (" ".join(of(name).split()) for name in ("hybrid", "hybrid_mamba"))
    assert "a full-attention layer full precision 400" in hybrid and "a sliding-window layer full precision 128 evicted 272" in hybrid
    assert "a recurrent layer summed up in the state 400" in mixed


def test_who_is_told_to_take_a_cache_is_led_to_its_card():
    choice, cards = learn.choice_html(kvcache.ENTRIES), learn.cards_html(kvcache.ENTRIES)
    links = re.findall('href="#([^"]+)"', choice)
    assert len(links) == len(learn.CHOICES) and all(f'id="{link}"' in cards for link in links)


def test_the_recall_chart_names_a_few_lines_at_their_ends_and_says_the_furthest_shares():
    shares = {"Dynamic": 0.95, "Static 2048": 0.95, "Native 4-bit": 0.95, "Native 2-bit": 0.9, "Native 2-bit, keys by token": 0.1, "Window 256": 0.0}
    rows = [{"label": label, "recalled": {"64": 0.9, "512": share}, "same": {}} for label, share in shares.items()]
    value = json.loads(recall.chart_value(recall.of_caches({"questions": 50, "rows": rows})))
    lines, names = value["figure"]["data"], value["figure"]["layout"]["annotations"]
    assert [(line["name"], line["y"][-1]) for line in lines] == [("full cache", 0.95), ("4 bits", 0.95), ("2 bits, keys by token", 0.1), ("window of 256", 0.0)]
    assert value["sentence"] == "Answered right 512 tokens after the telling: full cache 95%, 4 bits 95%, 2 bits, keys by token 10%, window of 256 0%." and "50" in value["line"]
    heights = [name["y"] for name in names]
    assert [name["text"] for name in names] == [line["name"] for line in lines]
    assert abs(heights[0] - heights[1]) >= recall.APART - 1e-9 and max(heights) <= 1 + 1e-9


# -- words -------------------------------------------------------------------------------------------------------

def test_the_line_under_a_reply():
    stats = Stats(214, 9, 30, 0.016, 900.0, 205.0, 187_000, "recomputed all 223: the cache is new")
    line = html_parts.stats_line(stats, "stopped")
    summary, rest = line.split("</summary>")
    for words in ("stopped", "reused <b>214</b>", "tok/s <b>205</b>", "cache <b>187 kB</b>"):
        assert words in summary
    for words in ("computed <b>9</b>", "written <b>30</b>", "first token <b>16 ms</b>", "prefill <b>900 tok/s</b>", "recomputed all 223"):
        assert words in rest
    assert "kv-ending" not in html_parts.stats_line(stats, "eos")


def test_what_people_and_models_write_is_escaped():
    assert "<script>" not in html_parts.notice("<script>alert(1)</script>")
    assert "<img" not in html_parts.figures_line([("<img>", "<img>")])


# -- sessions ----------------------------------------------------------------------------------------------------

def test_each_key_has_its_own_conversation():
    registry = Registry()
    say(registry.get("ada"), WORDS)
    assert registry.get("bram").conversation is None and len(registry.get("ada").conversation.messages) == 2


def test_changing_the_cache_keeps_the_messages_and_says_that_it_computes_again():
    session = Session("s")
    say(session, WORDS, settings("dynamic"))
    sentence = session.prepare(settings("sink"))
    assert sentence.startswith("Changed the cache: the messages stay")
    assert len(session.conversation.messages) == 2 and session.stats[0].generated
    stats = say(session, "and then", settings("sink"))
    assert stats.reused == 0 and "recomputed all" in stats.note


def test_changing_only_the_sampling_keeps_the_cache():
    session = Session("s")
    say(session, WORDS, settings())
    assert session.prepare(settings(temperature=0.5)) == ""
    assert say(session, "and then", settings(temperature=0.5)).reused > 0


@pytest.mark.parametrize("wanted, words", [
    (settings("quantized", {"nbits": 5}), "nbits"),
    (settings("sink", {"window_length": 8, "num_sink_tokens": 8}), "window_length"),
    (settings(model="no/such-model"), "no/such-model"),
    (settings(temperature=-1), "temperature"),
    (settings(max_new_tokens=0), "max_new_tokens"),
])
def test_settings_that_can_not_be_are_refused_in_a_sentence_and_nothing_changes(wanted, words):
    session = Session("s")
    say(session, WORDS, settings())
    before = (session.conversation, session.settings, session.conversation.messages)
    with pytest.raises(ValueError, match=words):
        session.prepare(wanted)
    assert (session.conversation, session.settings, session.conversation.messages) == before


def test_the_least_recently_used_cache_goes_first_and_comes_back_from_its_messages():
    registry = Registry()
    for key in ("old", "new"):
        say(registry.get(key), WORDS)
    registry.budget = registry.get("new").nbytes
    assert registry.make_room() == ["old"]
    assert registry.find("old").nbytes == 0 and len(registry.find("old").conversation.messages) == 2
    stats = say(registry.get("old"), "and then")
    assert stats.reused == 0 and "freed" in stats.note


def test_a_busy_session_keeps_its_cache():
    registry = Registry()
    session = registry.get("a")
    say(session, WORDS)
    registry.budget = 0
    with session.at_work():
        assert registry.make_room() == [] and session.nbytes > 0
    assert registry.make_room(keep=session) == [] and session.nbytes > 0 and registry.make_room() == ["a"]


def test_bytes_are_counted_while_other_threads_free_what_is_counted():
    registry, over = Registry(), threading.Event()
    session = registry.get("comes and goes")
    say(session, WORDS)
    loaded = session.conversation.loaded

    def come_and_go():
        while not over.is_set():
            session.conversation.detach()
            session.conversation.attach(loaded)

    frees, interval = threading.Thread(target=come_and_go), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    frees.start()
    try:
        for _ in range(300):
            assert session.nbytes >= 0
            registry.make_room(), registry.counts()
    finally:
        over.set(), frees.join(), sys.setswitchinterval(interval)


def test_a_cache_that_takes_more_than_there_is_is_refused_before_it_is_filled():
    session, large = Session("s", budget=1_000_000), settings("static", {"max_cache_len": 65_536})
    with pytest.raises(ValueError, match="static would take .* MB at once, and 1 MB are kept .* smaller capacity"):
        session.prepare(large)
    session.prepare(settings("static"))
    half = settings("static", {"max_cache_len": 512})
    with pytest.raises(ValueError, match="static would take"):
        compare_events.fresh(Session("s", budget=700_000), [half, half])


def test_a_tab_that_went_lets_go_of_its_model_and_goes_on_where_it_was_when_it_comes_back(monkeypatch):
    monkeypatch.setattr(models, "load", lambda *arguments: make_model("llama"))  # one that nobody else holds
    registry = Registry()
    session = registry.get("s")
    say(session, WORDS)
    ids, model = session.conversation.ids, weakref.ref(session.conversation.loaded.model)
    session.comparison = SimpleNamespace(caches=[])
    registry.leave("s")
    gc.collect()
    assert model() is None and session.nbytes == 0 and session.lost_comparison
    with pytest.raises(ValueError, match="let go of its model"):
        session.conversation.send("too early")
    assert len(view.chat_messages(registry.get("s"))) == 3
    assert session.chat_box.take("and then"), "with a switch of its own"
    stats = say(session, "and then")
    assert stats.reused == 0 and "freed" in stats.note and session.conversation.ids[:len(ids)] == ids


def test_a_closed_tab_stops_its_reply_and_frees_its_cache_and_its_messages_wait_a_while(monkeypatch):
    registry = Registry()
    session = registry.get("gone")
    say(session, WORDS)
    registry.leave("gone")
    assert session.chat_box.stop.is_set() and session.nbytes == 0 and len(session.conversation.messages) == 2
    registry.get("another")
    assert registry.get("gone") is session and not session.gone
    registry.leave("gone")
    monkeypatch.setattr("ui.state.KEPT_SECONDS", -1)
    registry.get("another")
    assert registry.find("gone") is None


def test_a_tab_that_goes_while_it_computes_frees_its_cache_once_that_has_stopped():
    registry = Registry()
    session = registry.get("gone")
    say(session, WORDS)
    with session.at_work():
        registry.leave("gone")
        assert session.chat_box.stop.is_set() and session.nbytes > 0
    registry.make_room()
    assert session.nbytes == 0


def test_a_message_waits_for_its_turn_and_comes_back_before_what_was_typed_since():
    box = Outbox()
    assert box.take("first") and not box.take("second") and box.next() == "first"
    assert not box.take("while it is answered")
    box.done()
    assert box.next() is None and box.take("next")
    assert box.into("draft") is None
    box.returned = "first"
    assert box.into("draft") == "first\ndraft" and box.into("draft") is None
    box.returned = "first"
    assert box.into(" ") == "first"


def test_what_an_undo_gave_back_makes_room_for_the_next_unless_it_was_touched():
    box = Outbox()
    box.undo("third")
    assert box.into("") == "third"
    box.undo("second")
    assert box.into("third") == "second"
    box.undo("first")
    assert box.into("second, and more") == "first\nsecond, and more"
    box.give_back("not sent")
    assert box.into("first") == "not sent\nfirst", "only an undo takes back what it gave"


def test_an_event_that_waits_for_its_turn_answers_nothing_but_what_it_was_begun_for():
    """Cleared while it waited, and another message taken since: that one has settings of its own, read by its own event."""
    box = Outbox()
    box.take("first")
    ticket = box.ticket
    assert box.settle() and box.take("second")
    assert list(events.in_turn(box, lambda wanted: iter([wanted]), lambda notice: {}, ticket)) == [gr.skip()] and box.occupied
    assert list(events.in_turn(box, lambda wanted: iter([wanted]), lambda notice: {}, box.ticket)) == ["second"]
    assert list(events.in_turn(box, lambda wanted: iter([wanted]), lambda notice: {}, box.ticket)) == [gr.skip()] and not box.occupied


def test_a_reply_asked_for_anew_and_taken_back_in_time_says_that_the_old_one_stays():
    box, said = Outbox(), []
    for wanted in ("a message", AGAIN):
        box.take(wanted)
        box.stop.set()
        said += events.in_turn(box, lambda wanted: iter([wanted]), lambda notice: {"notice": notice})
    assert "before its turn came." in said[0]["notice"] and "before its turn came: all stays as it was." in said[1]["notice"]


def test_half_a_character_is_shown_as_such_and_stops_nothing():
    box = Outbox()
    box.take("half \ud83d, whole \U0001f600")
    box.give_back(box.next())
    assert box.into("draft\udc00") == "half \ufffd, whole \U0001f600\ndraft\ufffd"


def test_every_job_has_its_own_switch_and_what_waits_is_given_back_when_all_must_end():
    box = Outbox()
    assert box.take("first")
    first = box.stop
    box.next(), box.done()
    assert box.take("second") and box.stop is not first
    assert box.settle() and box.stop.is_set() and not first.is_set() and not box.occupied and box.returned == "second"
    assert box.take(AGAIN) and box.next() is AGAIN
    threading.Timer(0.1, box.done).start()
    assert box.settle() and box.returned == "second", "a button that was pressed has no text to give back"
    box.take("third"), box.next()
    assert not box.settle(patience=0.05)


def test_a_stop_in_one_tab_leaves_the_others_alone():
    session = Session("s")
    for box in session.boxes:
        box.take("text")
    session.compare_box.stop.set()
    assert [box.stop.is_set() for box in session.boxes] == [False, True, False, False]
    shown = list(events.in_turn(session.compare_box, lambda wanted: iter([wanted]), lambda notice: {"notice": notice}))
    assert "Taken back" in shown[0]["notice"] and session.compare_box.returned == "text" and not session.compare_box.occupied
    assert list(events.in_turn(session.chat_box, lambda wanted: iter([wanted]), lambda notice: {})) == ["text"]


def test_whoever_has_no_session_gets_none():
    import gradio as gr
    for request in (None, SimpleNamespace(session_hash=None), SimpleNamespace(session_hash="")):
        with pytest.raises(gr.Error, match="session_hash"):
            events.key_of(request)


@pytest.mark.parametrize("text", ["Hi, I'm Ada; call me at 4:30 (please)!", "zwei Worte, \u00e4hnlich"])
def test_plain_words_are_shown_as_they_are(text):
    assert view.user_message(text)["content"] == text


@pytest.mark.parametrize("text", ["What does <section> do?", "x*y*z", "# title", "1. one", "- one", "a\n\nb", "  code", "[a](b)", "`x`", "a_b_", "1 < 2 & 3 > 2", "---", "- - -"])
def test_what_markdown_would_change_is_shown_as_it_was_typed(text):
    import html
    shown = view.user_message(text)["content"]
    inside = shown.removeprefix('<div class="kv-typed">').removesuffix("</div>")
    assert inside != shown and html.unescape(inside) == text and "\n" not in inside and "<" not in inside


def test_no_more_sessions_are_remembered_than_allowed():
    registry = Registry(max_sessions=3)
    for n in range(9):
        registry.get(str(n))
    assert len(registry) == 3 and registry.find("8") is not None


# -- one chat turn as a generator --------------------------------------------------------------------------------

@pytest.fixture
def tab():
    import gradio as gr
    with gr.Blocks():
        return layout.chat_tab(kvcache.ENTRIES, [("tiny", "tiny")], "tiny", "dynamic")


def turn(tab, session, text, wanted=None):
    ask = lambda talk, stop: (text, talk.send(text, stop))  # noqa: E731
    return list(events.reply(tab, Registry(), session, wanted or settings(), ask, text))


def test_the_line_of_the_cache_before_stays_as_a_ghost(tab):
    session = Session("s")
    turn(tab, session, WORDS)
    assert session.history.former is None
    before = [(point[0], point[3]) for point in session.history.points]
    turn(tab, session, "and then", settings("sink"))
    name, points = session.history.former
    assert name == "Dynamic" and [(point[0], point[3]) for point in points] == before
    ghost = next(trace for trace in json.loads(view.charts_at_rest(session)[1])["figure"]["data"] if trace["name"] == "before: Dynamic")
    assert list(zip(ghost["x"], ghost["y"])) == before
    turn(tab, session, "once more", settings("sink", temperature=0.5))
    assert session.history.former[0] == "Dynamic"  # the same cache goes on
    turn(tab, session, "once more", settings("sink", system="Be brief."))
    assert session.history.former is None  # the same cache of another text


def test_where_layers_differ_the_ribbon_says_so_by_layer(tab):
    session = Session("s")
    turn(tab, session, WORDS)
    assert [title for title, _ in view.fates_of(session).groups] == [""]
    full, window = [("full", 9)], [("evicted", 5), ("full", 4)]
    layer, sliding = SimpleNamespace(is_sliding=False), SimpleNamespace(is_sliding=True)
    cache = SimpleNamespace(layers=[sliding, layer, sliding, sliding, layer], layer_fates=lambda: [window, full, window, window, full])
    assert view.layer_groups(cache) == [("full-attention layers 1, 4", full), ("sliding-window layers 0, 2, 3", window)]
    assert view.layers_words("recurrent", [0, 1, 2, 5]) == "recurrent layers 0 to 2, 5" and view.layers_words("recurrent", [3]) == "recurrent layer 3"
    html = token_ribbon.ribbons_html(view.layer_groups(cache), words=list("abcdefghi"))
    assert html.count('class="kv-cells"') == 2 and 'data-layers="sliding-window layers 0, 2, 3"' in html and html.count("kv-picked") == 1


def test_where_each_head_forgets_other_tokens_a_square_says_how_many_still_hold_its_word(tab):
    session, wanted = Session("s"), settings("evicting", {"budget": 40})
    turn(tab, session, WORDS * 6, wanted)
    fates, cache = view.fates_of(session), session.conversation.cache
    held = [layer.positions.view()[0, head, :, 0].tolist() for layer in cache.layers for head in range(2)]
    assert fates.shares == [sum(token in each for each in held) / len(held) for token in range(cache.get_seq_length())]
    assert 0.0 in fates.shares and 1.0 in fates.shares and len(set(fates.shares)) > 2
    html = view.charts_at_rest(session)[2]
    assert f'in no head <b>{fates.shares.count(0.0)}</b>' in html and 'data-fate="held by 25% of the heads"' in html and "not yet cached <b>1</b>" in html
    assert html.count("<i class") - html.count("<li><i") == len(session.conversation.ids)
    assert len(fates.gone) > 0 and all(not any(fates.shares[first:end]) for first, end in fates.gone)
    long = token_ribbon.shares_html([1.0, 0.5] * 300)
    assert long.count("--share: 83%") == long.count("--share: 67%") == 100 and "one square = 3 tokens" in long


def test_where_each_head_forgets_other_tokens_no_square_stands_for_one():
    html = token_ribbon.ribbons_html([("", [("evicted", 300), ("full", 100)])], 1, note=view.OF_EACH_HEAD)
    assert "kv-cells" not in html and "flex-grow: 300" in html and "evicted <b>300</b>" in html and view.OF_EACH_HEAD in html


def test_the_ribbon_says_how_much_of_the_context_is_used(tab):
    session = Session("s")
    turn(tab, session, WORDS)
    seen = len(session.conversation.cached_ids)
    assert f"{seen} of 2,048 tokens of the context used" in view.charts_at_rest(session)[2]
    turn(tab, session, WORDS, settings("static"))
    assert " of 512 tokens of the cache used" in view.charts_at_rest(session)[2]
    turn(tab, session, WORDS, settings("sink"))
    assert "used (" not in view.charts_at_rest(session)[2]  # which never ends


def test_a_turn_shows_the_message_at_once_and_ends_with_statistics_and_charts(tab):
    frames = turn(tab, Session("s"), WORDS)
    assert frames[0][tab.chatbot][0]["content"] == WORDS and "value" not in frames[0][tab.message]
    last = frames[-1]
    assert "reused <b>0</b>" in last[tab.chatbot][-1]["content"]
    assert json.loads(last[tab.memory])["figure"]["data"] and "not yet cached <b>1</b>" in last[tab.fates]
    assert last[tab.message]["submit_btn"] == "Send" and last[tab.message]["stop_btn"] is False


def test_the_second_turn_reuses_the_first(tab):
    session = Session("s")
    turn(tab, session, WORDS)
    turn(tab, session, "and then")
    assert session.stats[1].reused > 10 and session.history.turns[1] == session.stats[0].computed + session.stats[0].generated - 1


@pytest.mark.parametrize("text", ["", "   ", "x" * 1_000_000])
def test_a_message_that_can_not_be_sent_stays_in_its_box_with_a_sentence_above(tab, text):
    session = Session("s")
    turn(tab, session, WORDS)
    before = view.chat_messages(session)
    frames = turn(tab, session, text)
    assert len(frames) == 1 and frames[0][tab.chatbot] == before and session.chat_box.returned == text
    assert 'role="alert"' in frames[0][tab.notice]
    assert len(session.conversation.messages) == 2


def test_a_reply_that_was_cut_goes_on_where_it_was(tab):
    session = Session("s")
    last = turn(tab, session, WORDS)[-1]
    assert 'name="more"' in last[tab.chatbot][-1]["content"] and "Continue" in last[tab.notice]
    before = session.conversation.messages[1]["content"]
    frames = list(events.reply(tab, Registry(), session, settings(), events.more))
    assert all(frame[tab.chatbot][1]["content"].startswith(before) for frame in frames if tab.chatbot in frame)
    assert len(session.conversation.messages) == 2 and session.stats[0].generated == 12 and len(session.history.turns) == 1
    assert session.history.processed == len(session.conversation.cached_ids)
    whole = Session("t")
    turn(tab, whole, WORDS, settings(max_new_tokens=12))
    assert whole.conversation.ids == session.conversation.ids
    session.chat_box.stop.set()
    stopped = list(events.reply(tab, Registry(), session, settings(), events.more))[-1]
    assert "stays as it was" in stopped[tab.notice] and session.conversation.ids == whole.conversation.ids


def test_versions_of_a_reply_are_stepped_through_under_it(tab):
    session, drawn = Session("s"), settings(temperature=1.5)
    turn(tab, session, WORDS, drawn)
    assert " of 2" not in view.chat_messages(session)[-1]["content"]
    list(events.reply(tab, Registry(), session, drawn, events.again))
    ids = [list(each.reply_ids) for each in session.conversation.turns[0].versions]
    assert "2 of 2" in view.chat_messages(session)[-1]["content"] and session.conversation.ids[-6:] == ids[1] != ids[0]
    assert session.show_version(-1) == "version 1 of 2" and "1 of 2" in view.chat_messages(session)[-1]["content"]
    assert session.conversation.ids[-6:] == ids[0] and session.history.processed == 0
    with pytest.raises(ValueError, match="no version 0"):
        session.show_version(-1)
    turn(tab, session, "and then", drawn)
    assert session.conversation.ids[len(session.conversation.turns[0].prompt_ids):][:6] == ids[0] and session.stats[1].reused > 10
    session.undo()
    session.release()
    assert session.show_version(1) == "version 2 of 2"


def test_only_the_last_reply_can_go_on_and_each_can_be_copied_and_tried_again(tab):
    session = Session("s")
    turn(tab, session, WORDS)
    turn(tab, session, "and then")
    lines = [message["content"] for message in view.chat_messages(session)][2::3]
    assert ["Continue" in line for line in lines] == [False, True]
    assert all(f'name="retry" value="{n}"' in line and line.count('name="copy"') == 2 for n, line in enumerate(lines, 1))
    assert html_parts.actions(1, version=1, versions=3).count("disabled") == 1 and "1 of 3" in html_parts.actions(1, version=1, versions=3)


def test_regenerate_replaces_the_last_reply(tab):
    session = Session("s")
    turn(tab, session, WORDS)
    turn(tab, session, "and then")
    frames = list(events.reply(tab, Registry(), session, settings(), events.again))
    assert [m["content"] for m in frames[0][tab.chatbot] if m["role"] == "user"] == [WORDS, "and then"]
    assert view.THE_SAME in frames[-1][tab.notice]
    assert len(session.conversation.messages) == 4 and len(session.stats) == 2


def test_what_breaks_before_the_reply_gives_the_text_back_too(tab, monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("no home")

    session = Session("s")
    monkeypatch.setattr(models, "load", broken)
    frames = turn(tab, session, WORDS)
    assert "RuntimeError: no home" in frames[0][tab.notice] and session.chat_box.returned == WORDS
    assert frames[0][tab.message]["submit_btn"] == "Send"


def test_an_error_half_way_leaves_the_conversation_as_it_was_and_gives_the_text_back(tab, monkeypatch):
    session = Session("s")
    turn(tab, session, WORDS)

    def broken(*arguments, **options):
        raise RuntimeError("out of memory")
        yield

    monkeypatch.setattr(session.conversation, "generate", broken)
    last = turn(tab, session, "and then")[-1]
    assert "out of memory" in last[tab.notice] and session.chat_box.returned == "and then"
    assert len(session.conversation.messages) == 2 and not session.busy


def test_stop_ends_the_reply_and_keeps_what_was_said(tab):
    session = Session("s")
    wanted = settings(max_new_tokens=400)
    frames = events.reply(tab, Registry(), session, wanted, lambda talk, stop: (WORDS, talk.send(WORDS, stop)), WORDS)
    next(frames)
    next(frames)
    session.chat_box.stop.set()
    list(frames)
    assert 1 <= session.stats[0].generated < 400 and len(session.conversation.messages) == 2


def test_text_is_painted_by_time_not_by_token():
    session, written = Session("s"), view.Reply()
    session.prepare(settings())
    tokens = [Token(1, "a", n, 0.001 * n, snapshot(n + 1)) for n in range(200)]
    assert len(list(events.paint_times(iter(tokens), written, session, threading.Event()))) <= 3
    assert written.text == "a" * 200 and session.history.points[-1][:2] == (199, 200)


def test_a_reply_says_that_it_waits_for_a_compiler_until_it_does_not():
    written = view.Reply()
    written.add(Compiling("compiling <now>", snapshot(0)))
    assert written.messages("Hi")[1]["content"] == '<span class="kv-stats">compiling &lt;now&gt;</span>'
    written.add(Prefill(3, 4, 0.1, snapshot(3)))
    assert "reading the message: 3 of 4 tokens" in written.messages("Hi")[1]["content"]


def test_a_column_says_that_it_waits_for_a_compiler_until_it_does_not():
    comparison = Comparison(wanted_columns("tiny", "", REPLY, [("dynamic", {}), ("static", {"max_cache_len": 512})]))
    column = comparison.columns[1]
    column.turns.append(Turn(WORDS))
    column.add(Compiling("compiling <now>", snapshot(0)))
    assert "compiling &lt;now&gt;" in compare_view.thread_html(comparison, column)
    column.add(Prefill(3, 4, 0.1, snapshot(3)))
    assert "reading" in compare_view.thread_html(comparison, column)


@pytest.mark.parametrize("seconds, taken, wanted", [(0.1, 0, 0.1), (0.1, 256, 0.1), (0.1, 512, 0.2), (0.1, 4000, 0.4), (0.5, 4000, 0.5)])
def test_a_long_reply_is_painted_more_seldom(seconds, taken, wanted):
    assert pause(seconds, taken) == pytest.approx(wanted)


def test_what_the_token_loop_raises_is_raised_where_the_page_is_painted():
    def broken():
        yield 1
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(batches(broken(), threading.Event(), 0.01))


def test_leaving_a_page_early_stops_the_loop_behind_it():
    stop, made = threading.Event(), []

    def endless():
        while not stop.is_set():
            made.append(1)
            yield len(made)

    painting = batches(endless(), stop, 0.01)
    next(painting)
    painting.close()
    count = len(made)
    assert stop.is_set() and count == len(made)


# -- comparison --------------------------------------------------------------------------------------------------

def compared(*texts, caches=("dynamic", "sink"), **sampling):
    comparison = Comparison(wanted_columns("tiny", "", REPLY | sampling, [(name, SMALL[name]) for name in caches]))
    for text in texts:
        list(comparison.ask(text))
        list(drift.measure(comparison))
    return comparison


def test_columns_answer_in_turn_token_by_token():
    comparison = Comparison(wanted_columns("tiny", "", REPLY, [("dynamic", {}), ("static", {"max_cache_len": 512})]))
    order = [comparison.columns.index(column) for column in comparison.ask(WORDS)]
    assert order[:6] == [0, 1, 0, 1, 0, 1]


def test_an_exact_cache_agrees_to_the_last_token():
    row = compared(WORDS, "and then", caches=("dynamic", "static")).rows()[1]
    assert row["agreement"] == 1.0 and row["diverges_at"] is None and row["mean_kl"] < 1e-6


def test_a_forgetful_cache_diverges_and_both_expectations_are_shown():
    comparison = compared(WORDS * 8, "and then", max_new_tokens=20)
    row = comparison.rows()[1]
    assert row["mean_kl"] > 0 and row["agreement"] < 1
    parting, place = comparison.columns[1].parting, row["diverges_at"]
    assert (parting["turn"], parting["token"]) == (place["turn"], place["token"])
    first, other = comparison.columns[0].turns[place["turn"] - 1], comparison.columns[1].turns[place["turn"] - 1]
    decode = lambda token: drift.shown(comparison.loaded.tokenizer.decode([token]))  # noqa: E731
    assert parting["first"][0][0] == decode(first.ids[place["token"] - 1])
    assert parting["other"][0][0] == decode(other.ids[place["token"] - 1])
    assert len(parting["first"]) == len(parting["other"]) == 10


def test_each_column_says_where_it_first_differs_and_the_earliest_is_unfolded():
    comparison = compared(WORDS * 8, "and then", caches=("dynamic", "sink", "static", "sliding_window"), max_new_tokens=20)
    places = {n: comparison.divergence(column) for n, column in enumerate(comparison.columns)}
    assert places[0] is places[2] is None and places[1] and places[3]
    for n in (1, 3):
        parting = comparison.columns[n].parting
        assert (parting["turn"] - 1, parting["token"] - 1) == places[n]
        said = [drift.shown(comparison.loaded.tokenizer.decode([comparison.columns[column].turns[places[n][0]].ids[places[n][1]]])) for column in (0, n)]
        assert [parting["first"][0][0], parting["other"][0][0]] == said
    html = compare_view.divergence_html(comparison)
    earliest = min((place, n) for n, place in places.items() if place)[1]
    assert html.count("<details") == 2 and html.count("<details class=\"kv-parting\" open") == 1 == html.count(" open>")
    assert html.index(comparison.columns[earliest].label) < html.index(comparison.columns[4 - earliest].label)
    assert "Static 512 has said just what Dynamic has." in html


def test_what_is_measured_anew_is_what_was_measured_the_first_time():
    """A second cache that forgets or rounds is fed the earlier turns in the pieces they were said in."""
    for caches in (("dynamic", "sink"), ("dynamic", "quantized"), ("sink", "quantized")):
        comparison = compared(WORDS * 3, "and then", "once more", caches=caches, max_new_tokens=20)
        before, partings = [dict(column.kl) for column in comparison.columns], [column.parting for column in comparison.columns]
        assert max(before[1].values()) > 1e-3
        list(comparison.again())  # greedy: the same replies
        assert all(max(column.kl) < comparison.starts[-1] for column in comparison.columns)
        list(drift.measure(comparison))
        for column, kl, parting in zip(comparison.columns, before, partings):
            assert column.kl == pytest.approx(kl, rel=1e-3, abs=1e-5)  # many tokens in one forward are summed in another order than one by one
            assert (column.parting and column.parting["token"]) == (parting and parting["token"])


def test_all_columns_answer_the_last_message_again():
    comparison = compared(WORDS, "and then", caches=("dynamic", "static", "sink"), temperature=1.0, max_new_tokens=20)
    before = [[turn.ids for turn in column.turns] for column in comparison.columns]
    list(comparison.again())
    list(drift.measure(comparison))
    for column, (first, last) in zip(comparison.columns, before):
        assert [turn.ids for turn in column.turns][0] == first and column.turns[1].ids != last and len(column.turns) == 2
        assert column.turns[1].all_ids == column.conversation.ids and column.conversation.turns[1].seed == 1
    assert comparison.columns[0].turns[1].ids == comparison.columns[1].turns[1].ids and comparison.rows()[1]["mean_kl"] < 1e-6
    assert len(comparison.columns[2].kl) == sum(len(turn.ids) for turn in comparison.columns[0].turns)
    assert comparison.record()["columns"][0]["seeds"] == [0, 1]
    stop = threading.Event()
    stop.set()
    kept = [column.turns[1] for column in comparison.columns]
    list(comparison.again(stop))
    assert [column.turns[1] for column in comparison.columns] == kept and comparison.users == [WORDS, "and then"] and not comparison.broken
    with pytest.raises(ValueError, match="no reply of every column"):
        Comparison(comparison.wanted).again()


def test_regenerate_refuses_other_settings_and_says_that_greedy_replies_are_the_same():
    with gr.Blocks():
        tab = layout.compare_tab(kvcache.ENTRIES, [("dynamic", {})] * 2, 2)
    session = Session("s")
    wanted = [settings("dynamic"), settings("sink")]
    assert "send a message first" in list(compare_events.regenerate(tab, Registry(), session, wanted))[-1][tab.notice]
    list(compare_events.run(tab, Registry(), session, wanted, [(WORDS, "")], False))
    frames = list(compare_events.regenerate(tab, Registry(), session, wanted))
    assert "At temperature 0" in frames[0][tab.notice] and frames[-1][tab.message]["submit_btn"] == "Run all"
    assert any(tab.quality in frame and json.loads(frame[tab.quality])["figure"]["data"] for frame in frames)
    other = list(compare_events.regenerate(tab, Registry(), session, [settings("dynamic"), settings("static")]))
    assert len(other) == 1 and "no longer those of the replies" in other[0][tab.notice]


def test_quality_over_bytes_has_a_point_for_each_column_in_its_colour():
    comparison = compared(WORDS * 8, "and then", caches=("dynamic", "quantized", "sink"), max_new_tokens=20)
    value = json.loads(compare_view.quality_value(comparison))
    points = {point["name"]: point for point in value["figure"]["data"]}
    for n, column in enumerate(comparison.columns):
        point = points[column.label]
        assert point["x"] == [charts.used_nbytes(column.snapshot)] and point["y"] == [max(column.mean_kl, charts.LEAST_KL)]
        assert point["marker"]["color"] == f"var(--kv-column-{n})" and point["text"] == [column.label] and column.label in value["sentence"]
    assert value["figure"]["layout"]["xaxis"]["type"] == value["figure"]["layout"]["yaxis"]["type"] == "log"
    assert compare_view.quality_value(Comparison(comparison.wanted)) == compare_view.kl_value(Comparison(comparison.wanted)) == ""


def test_the_drift_line_is_a_rolling_mean_by_token_of_the_first_columns_replies():
    kl = {at: float(at) for at in (*range(20), *range(40, 44))}  # what was not measured leaves a gap
    found = charts.rolling(kl)
    slow = [sum(kl[near] for near in kl if at - charts.ROLLING < near <= at) / sum(at - charts.ROLLING < near <= at for near in kl) for at in kl]
    assert found == pytest.approx(slow)
    figure = charts.kl_figure([(2, "Sink", kl)], [0, 15, 40])
    (line,) = figure["data"]
    assert line["x"] == [at + 1 for at in kl] and line["line"]["color"] == "var(--kv-column-2)" and len(figure["layout"]["shapes"]) == 2
    assert line["y"] == pytest.approx([max(value, charts.LEAST_KL) for value in slow])


def small_static(room, first):
    caches = [("dynamic", {}), ("static", {"max_cache_len": room})]
    comparison = Comparison(wanted_columns("tiny", "", {"max_new_tokens": 40}, caches if first == "dynamic" else caches[::-1]))
    list(comparison.ask("Hello there"))
    list(drift.measure(comparison))
    return comparison


def test_a_cache_that_gets_full_is_measured_as_far_as_it_reaches():
    comparison = small_static(32, "dynamic")
    dynamic, static = comparison.rows()
    written = len(comparison.columns[1].turns[0].ids)
    assert static["mean_kl"] < 1e-6 and written - 1 <= len(comparison.columns[1].kl) <= written < 40
    assert list(comparison.columns[1].kl) == list(range(len(comparison.columns[1].kl)))
    assert comparison.full == {1} and not comparison.broken and len(comparison.columns[0].kl) == 40 == len(comparison.columns[0].turns[0].ids)
    assert comparison.columns[1].turns[0].reason == "capacity"


@pytest.mark.parametrize("first", ["dynamic", "static"])
def test_what_is_said_of_the_parting_agrees_with_the_table_where_one_reply_ends_before_the_other(first):
    comparison = small_static(32, first)
    place, html = comparison.rows()[1]["diverges_at"], compare_view.divergence_html(comparison)
    assert f"turn {place['turn']}, token {place['token']}" in html and "Only Dynamic goes on there" in html and comparison.columns[1].parting is None
    comparison.columns[0].turns[0].tokens = comparison.columns[1].turns[0].tokens = [(1, "a")] * 50
    words = compare_view._unmeasured(comparison, comparison.columns[1], 1, (0, 40))
    assert "was not measured" in words and ("no room" in words) is (1 in comparison.full)


def test_the_diverging_text_is_marked():
    comparison = compared(WORDS * 8, "and then", max_new_tokens=20)
    assert "<mark" in compare_view.thread_html(comparison, comparison.columns[1])
    assert "<mark" not in compare_view.thread_html(comparison, comparison.columns[0])


def test_the_files_hold_the_run():
    comparison = compared(WORDS)
    rows = list(csv.DictReader(io.StringIO(compare_view.csv_text(comparison))))
    assert [row["name"] for row in rows] == ["dynamic", "sink"]
    record = json.loads(json.dumps(comparison.record()))
    assert record["messages"] == [WORDS] and len(record["columns"][0]["replies"]) == 1


@pytest.mark.parametrize("reply, finished, right", [
    ("Your name is Ada.", True, True), ("Ada", True, True), ("You said ada and G G G G", True, False), ("You said ada.", True, False), ("Your name is Ada G G G G.", True, False),
    ("Ada Ada Ada.", True, False), ("Your name is Ada and", True, False), ("Your name is Ada-7.", True, False), ("Your name is Velelelelelelelelelelelelele Ada.", True, False), ("Your name is Adam.", True, False), ("You live in Canada.", True, False),
    ("Your", False, None), ("Your name is Ada", False, None)])
def test_a_reply_is_marked_right_by_whole_words_and_only_when_it_is_finished(reply, finished, right):
    found = Turn("What is my name?", "Ada", [(1, reply)], stats=Stats(0, 0, 1, 0.1, 1.0, 1.0, 10), reason="eos" if finished else "length")
    assert found.remembered is right
    words = compare_view._check_html(found)
    assert ("kv-right" in words, "kv-wrong" in words) == (right is True, right is False)


def test_garbage_is_called_so_and_not_a_wrong_answer():
    turns = [Turn("What is my name?", "Ada", [(1, reply)], reason="eos") for reply in ("You said ada and G G G G", "You have not told me.")]
    assert "garbled" in compare_view._check_html(turns[0]) and "does not say Ada" in compare_view._check_html(turns[1])


def test_a_thread_says_which_cache_has_answered():
    comparison = compared(WORDS)
    assert "Answered by <b>Sink" in compare_view.thread_html(comparison, comparison.columns[1])


@pytest.mark.parametrize("before, words", [
    ({}, ""), ({"comparison": SimpleNamespace(broken=False)}, "have changed"), ({"comparison": SimpleNamespace(broken=True)}, "broke off"),
    ({"lost_comparison": True}, "had been freed")])
def test_a_comparison_that_does_not_go_on_says_why(before, words):
    session = Session("s", **before)
    assert (words in compare_events.started_over(session)) and bool(words) is bool(compare_events.started_over(session))


def stopped(comparison, when, text="and then"):
    """Ask, and press Stop once `when` is true of the comparison."""
    stop = threading.Event()
    for _ in comparison.ask(text, stop):
        if when(comparison):
            stop.set()
    return comparison


def test_a_stop_keeps_the_turns_before_and_what_was_written():
    comparison = compared(WORDS, caches=("dynamic", "sink"), max_new_tokens=300)
    stopped(comparison, lambda all_: all(len(column.turns[-1].tokens) > 2 for column in all_.columns))
    assert comparison.stopped and not comparison.broken and not comparison.taken_back and comparison.users == [WORDS, "and then"]
    assert "stopped" in compare_view.thread_html(comparison, comparison.columns[1])
    session = Session("s", comparison=comparison)
    assert compare_events.going_on(session, list(comparison.wanted), False) == (comparison, "")
    list(comparison.ask("once more"))
    assert [len(column.conversation.messages) for column in comparison.columns] == [6, 6] and not comparison.stopped


def test_a_stop_before_some_column_has_begun_takes_the_message_back_from_all():
    comparison = compared(WORDS, caches=("dynamic", "sink"), max_new_tokens=30)
    replies = [column.turns[0].ids for column in comparison.columns]
    stopped(comparison, lambda all_: all_.columns[0].turns[-1].tokens and not all_.columns[1].turns[-1].tokens)
    assert comparison.taken_back and not comparison.broken and comparison.users == [WORDS]
    assert [len(column.conversation.messages) for column in comparison.columns] == [2, 2]
    list(comparison.ask("and then"))
    other = compared(WORDS, "and then", caches=("dynamic", "sink"), max_new_tokens=30)
    assert [column.turns[0].ids for column in comparison.columns] == replies
    assert [column.turns[1].ids for column in comparison.columns] == [column.turns[1].ids for column in other.columns]


def test_a_column_that_changes_catches_up_and_the_others_stay():
    before = compared(WORDS, "and then", caches=("dynamic", "sink"))
    wanted = [before.wanted[0], settings("quantized"), settings("static")]
    after, note = compare_events.going_on(Session("s", comparison=before), wanted, False)
    assert after.columns[0] is before.columns[0] and after.behind == [1, 2] and "Cache 2, 3: changed" in note
    list(after.ask("once more"))
    list(drift.measure(after))
    assert after.users == [WORDS, "and then", "once more"] and after.behind == []
    assert [turn.user for turn in after.columns[1].turns] == after.users
    assert after.rows()[2]["agreement"] == 1.0 and after.rows()[2]["mean_kl"] < 1e-6
    assert [column.turns[-1].ids for column in after.columns] == [
        column.turns[-1].ids for column in compared(WORDS, "and then", "once more", caches=("dynamic", "quantized", "static")).columns]


def test_a_column_that_is_full_leaves_the_run_to_the_others():
    comparison = Comparison([settings("dynamic"), settings("static", {"max_cache_len": 32}), settings("sink")])
    for text in (WORDS, "and then", WORDS * 2):
        list(comparison.ask(text))
        list(drift.measure(comparison))
    assert comparison.columns[1].out and [len(column.conversation.messages) for column in comparison.columns][::2] == [6, 6]
    assert "No room: " in compare_view.thread_html(comparison, comparison.columns[1]) and not comparison.broken
    assert len(comparison.columns[2].kl) == sum(len(turn.ids) for turn in comparison.columns[0].turns)
    with pytest.raises(ValueError, match="Cache 1, Dynamic: .*empty"):
        comparison.ask("")
    alone = Comparison([settings("static", {"max_cache_len": 32}), settings("static", {"max_cache_len": 16})])
    with pytest.raises(ValueError, match="Cache 1, Static 32: .*takes 32: shorten"):
        alone.ask(WORDS * 4)
    assert alone.users == [] and alone.columns[0].turns == []


def test_where_a_comparison_was_stopped_is_no_difference():
    comparison = Comparison(wanted_columns("tiny", "", {"max_new_tokens": 300}, [("dynamic", {})] * 3))
    stopped(comparison, lambda all_: len(all_.columns[0].turns[-1].tokens) == 5, WORDS)
    assert comparison.stopped and [len(column.turns[-1].tokens) for column in comparison.columns] == [5, 4, 4]
    assert all(row["agreement"] == 1.0 and row["diverges_at"] is None for row in comparison.rows())
    assert "<mark" not in "".join(compare_view.thread_html(comparison, column) for column in comparison.columns)


@pytest.mark.parametrize("remembered, words", [
    ((2, 2, 0), "Dynamic and Quantized still say what was told; Sink has lost it. The smallest that remembers all, Quantized, does it in 400 kB, 2.5 times fewer"),
    ((2, 1, 0), "Dynamic still says what was told; Quantized says a part of it; Sink has lost it."), ((None, None, None), "")])
def test_the_demo_ends_with_a_sentence(remembered, words):
    rows = [{"cache": name, "remembered": said, "checked": said if said is None else 2, "nbytes": nbytes, "times_smaller_than_dynamic": 1e6 / nbytes}
            for name, said, nbytes in zip(("Dynamic", "Quantized", "Sink"), remembered, (1_000_000, 400_000, 100_000))]
    assert compare_view.verdict(rows).startswith(words) and bool(words) is bool(compare_view.verdict(rows))


def test_a_reply_that_was_stopped_carries_a_mark(tab, monkeypatch):
    session = Session("s")
    frames = events.reply(tab, Registry(), session, settings(max_new_tokens=400), lambda talk, stop: (WORDS, talk.send(WORDS, stop)), WORDS)
    next(frames), next(frames)
    session.chat_box.stop.set()
    list(frames)
    assert 'kv-ending">stopped' in view.chat_messages(session)[-1]["content"]


def test_what_is_reserved_counts_beside_dynamic():
    static = compared(WORDS, caches=("dynamic", "static")).rows()[1]
    used = view.dynamic_nbytes(tiny())(static["tokens_seen"])
    assert static["times_smaller_than_dynamic"] == pytest.approx(used / static["nbytes"], abs=1e-3) and static["reserved_nbytes"] > 0


def test_a_reply_that_ends_before_the_first_columns_differs_there():
    ends = [Turn(WORDS, tokens=[(n, "a") for n in range(length)], reason=reason) for length, reason in ((4, "length"), (3, "eos"))]
    assert compared_length(*ends) == 4
    ends[0].reason = "stopped"
    assert compared_length(*ends) == 3


def test_a_comparison_stopped_before_any_token_takes_the_message_back_and_goes_on():
    comparison = Comparison(wanted_columns("tiny", "", REPLY, [("dynamic", {}), ("sink", {})]))
    stop = threading.Event()
    stop.set()
    assert list(comparison.ask(WORDS, stop))
    assert comparison.taken_back and not comparison.broken and comparison.users == [] and comparison.rows()[1]["agreement"] is None
    assert list(comparison.ask(WORDS)) and comparison.users == [WORDS] and not comparison.taken_back
    assert comparison.columns[0].turns[0].ids == compared(WORDS).columns[0].turns[0].ids


@pytest.mark.parametrize("caches", [[("dynamic", {})], [("dynamic", {})] * 5])
def test_a_comparison_takes_two_to_four_caches(caches):
    with pytest.raises(ValueError, match="two to four"):
        wanted_columns("tiny", "", {}, caches)


def test_a_misfit_names_its_column():
    with pytest.raises(ValueError, match="Cache 2: .*nbits"):
        Comparison(wanted_columns("tiny", "", {}, [("dynamic", {}), ("quantized", {"nbits": 5})]))


def test_twins_are_told_apart():
    comparison = Comparison(wanted_columns("tiny", "", {}, [("dynamic", {}), ("dynamic", {})]))
    assert len({column.label for column in comparison.columns}) == 2


@pytest.mark.parametrize(
    "other, alike", [(("dynamic", {}), True), (("sink", {}), False), (("sink", {"window_length": 64, "num_sink_tokens": 2}), False)]
)
def test_columns_of_one_cache_are_said_to_be_alike(other, alike):
    comparison = Comparison(wanted_columns("tiny", "", {}, [("dynamic", {}), ("dynamic", {}), other]))
    assert comparison.alike is alike
    assert bool(compare_events.alike_words(comparison)) is alike


def test_a_default_that_is_written_out_is_still_the_same_cache():
    twins = [("sink", {}), ("sink", catalog.entry("sink").check(tiny().config))]
    assert Comparison(wanted_columns("tiny", "", {}, twins)).alike


def test_the_demo_does_not_run_columns_that_are_alike():
    with gr.Blocks():
        tab = layout.compare_tab(kvcache.ENTRIES, [("dynamic", {})] * 2, 2)
    session = Session("s")
    frames = list(compare_events.run(tab, Registry(), session, [settings(), settings()], compare_events.DEMO, True))
    assert len(frames) == 1 and "same cache" in frames[0][tab.notice] and session.comparison is None


@pytest.mark.parametrize("load", [tiny, reader, lambda: None])
def test_the_demo_asks_for_what_it_has_told(load):
    text, messages = compare_events.demo_for(load())
    assert bool(text) is (load is reader)
    told = text
    for message, expected in messages:
        assert expected in told and expected not in message or not expected
        told += message
    assert sum(bool(expected) for _, expected in messages) >= 2


# -- set-up ------------------------------------------------------------------------------------------------------

def test_the_forecast_compares_three_lengths_with_dynamic():
    table = view.prediction("sink", {"window_length": 128, "num_sink_tokens": 4}, tiny())
    assert table.count("<tr>") == 4 and "32k" in table and "x</td>" in table


def test_a_forecast_beyond_the_capacity_says_so():
    assert "too long" in view.prediction("static", {"max_cache_len": 2048}, tiny())


def test_a_forecast_for_bad_parameters_is_a_sentence():
    assert "num_sink_tokens" in view.prediction("sink", {"window_length": 8, "num_sink_tokens": 8}, tiny())


def test_the_page_builds_and_names_only_its_three_endpoints():
    from ui import page
    blocks = page.build("tiny", Registry())
    shown = [dependency for dependency in blocks.config["dependencies"] if dependency.get("api_visibility") == "public"]
    assert sorted(dependency["api_name"] for dependency in shown) == ["catalog", "chat", "compare"]


def test_labels_of_turns_never_overlap():
    assert charts.labelled_turns([0, 26, 224, 241], 257) == [(26, 2), (224, 3)]
    assert len(charts.labelled_turns(list(range(0, 1000, 10)), 1000)) <= 8


# -- models with an encoder --------------------------------------------------------------------------------------

def test_a_pair_shows_and_reads_the_settings_of_the_cache_it_is_made_of():
    form = built_form("encoder_decoder")
    values = {form.cache: "encoder_decoder"} | {widget: widget.value for widget in form.widgets.values()}
    assert form.read(values) == ("encoder_decoder", {"self_cache": "dynamic"})
    name, parameters = form.read(values | {form.choosers["encoder_decoder"]: "static"})
    assert parameters == {"self_cache": "static", **kvcache.ENTRIES["static"].defaults()}
    assert kvcache.create(name, reader().model, **parameters)
    assert {part for _, part in form.parts} == set(kvcache.ENTRIES["encoder_decoder"].parameters[0].choices)
    ids = [widget.elem_id for widget in form.widgets.values()]
    assert len(ids) == len(set(ids))


def test_a_model_with_an_encoder_turns_a_cache_into_a_pair_made_of_it_and_back():
    form = built_form("quantized")
    shown = form.refit("quantized", reader().config)
    assert shown[form.cache]["value"] == "encoder_decoder" and shown[form.choosers["encoder_decoder"]] == "quantized"
    assert [name for name, group in form.groups.items() if shown[group]["visible"]] == ["encoder_decoder"]
    assert form.part_in(shown) == "quantized" and form.part_in(form.refit("sink", reader().config)) == "dynamic"
    assert form.part_in(form.refit("sink", reader().config, ["dynamic", "quantized"])) == "static"
    assert form.refit("encoder_decoder", tiny().config)[form.cache]["value"] == "quantized", "the form's own cache"
    assert "value" not in form.refit("sink", tiny().config)[form.cache], "what fits is not sent back over what was picked meanwhile"
    assert "Sliding window: umt5 biases by the distance" in shown[form.reasons]


def test_columns_stay_different_when_the_model_changes_and_come_back_with_it():
    """A Llama has no windows for `hybrid`, so that its column gets a cache that no other one has, and `hybrid` again with the next model."""
    with gr.Blocks():
        columns = [forms.cache_form(kvcache.ENTRIES, f"column-{n}", name) for n, name in enumerate(("dynamic", "offloaded", "hybrid"))]
    session, values = Session("s"), {form.cache: form.preset for form in columns}

    def change(kind):
        config = tiny_models.build(kind).config
        shown = events.refitted(session, values, config, columns)
        values.update({form.cache: shown[form.cache].get("value", values[form.cache]) for form in columns})
        assert all(form.fits(values[form.cache], config) for form in columns)
        return [values[form.cache] for form in columns]

    before = change("gemma3_text")
    assert before == ["dynamic", "offloaded", "hybrid"]
    llama = change("llama")
    assert llama[:2] == ["dynamic", "offloaded"] and len({*llama, "hybrid"}) == 4
    assert change("gemma3_text") == before, "what stood in for `hybrid` fits here, too, and makes way for it"
    assert change("mamba2") == ["mamba"] * 3 and change("gemma3_text") == before
    values[columns[0].cache] = "static"
    assert change("mistral")[0] == "static", "what the visitor picked stays"
    assert change("gemma3_text") == ["static", "offloaded", "hybrid"]
    instead = change("llama")[2]
    session.picked(columns[2].form_id)  # another one and then the stand-in again
    assert change("gemma3_text") == ["static", "offloaded", instead], "picked by the visitor, though it was a stand-in before"


@pytest.mark.parametrize("name", ["cache_changed", "chosen"])
def test_a_cache_picked_by_hand_stands_in_for_no_other(name):
    registry = Registry()
    session = registry.get(TAB.session_hash)
    chosen, values, widgets = handler(name, registry)
    form_id = next(name for name in widgets if name in ("kv-chat-form-cache", "kv-compare-0-cache")).removesuffix("-cache")
    session.stand_ins[form_id] = "dynamic", "hybrid"
    assert session.wanted(form_id, "dynamic") == "hybrid"
    chosen(values, request=TAB)
    assert session.wanted(form_id, "dynamic") == "dynamic"


@pytest.mark.parametrize("empty", ["", None])
def test_an_emptied_model_box_gets_its_model_back_and_stops_no_menu(empty):
    registry, shown = Registry(), {}
    registry.get(TAB.session_hash).showing = "tiny"
    for name, more in (("cache_changed", [TAB]), ("parameters_changed", []), ("model_changed", [TAB]), ("settled", [TAB])):
        event, values, widgets = handler(name, registry)
        shown = event(values | {widgets["kv-model"]: empty}, *more)
    assert shown[widgets["kv-model"]] == "tiny"


def test_a_turn_shows_self_and_cross_attention_apart_and_the_ribbon_the_decoders_tokens(tab):
    session, wanted = Session("s"), settings("encoder_decoder", {}, "reader", TEXT)
    last = turn(tab, session, WORDS, wanted)[-1]
    bars = json.loads(last[tab.memory])
    assert bars["figure"]["data"][0]["y"] == ["self 0", "self 1", "self 2", "cross 0", "cross 1", "cross 2"]
    assert "are cross-attention's, for the text that the encoder read" in bars["sentence"]
    seen, heard = session.conversation.cache.tokens_seen, len(session.conversation.heard_ids)
    line = json.loads(last[tab.history])["line"]
    assert f"seen <b>{seen}</b>" in line and f"held <b>{seen}</b>" in line and f"of the text <b>{heard}</b>" in line and "(0.8x of this)" in line, "with what is reserved"
    assert f"full precision <b>{seen}</b>" in last[tab.fates] and f"the encoder read {heard} tokens" in last[tab.chatbot][-1]["content"]


def test_one_token_is_no_tokens():
    session, wanted = Session("s"), settings("encoder_decoder", {}, "reader", "")
    assert say(session, WORDS, wanted).note.endswith("the encoder read 1 token") and len(session.conversation.heard_ids) == 1


def test_another_text_begins_anew_and_says_so():
    session, wanted = Session("s"), settings("encoder_decoder", {}, "reader", TEXT)
    say(session, WORDS, wanted)
    other = settings("encoder_decoder", {}, "reader", "A fox met a crow.")
    assert session.prepare(other).startswith("Changed the text: the messages stay")
    assert say(session, "and then", other).reused == 0


def test_the_forecast_for_a_model_with_an_encoder_counts_its_text_apart():
    table = view.prediction("encoder_decoder", PAIRS[1][1], reader())
    assert "Static 512 + cross" in table and "Beside them 1.54 kB for each token that the encoder reads." in table
    assert view.prediction("dynamic", {}, reader()) == "" and "umt5 has an encoder" in forms.note_html(kvcache.ENTRIES["dynamic"], reader().config), "said once"


@pytest.mark.parametrize("model", ["reader", "answerer"])
def test_pairs_are_compared_on_what_their_encoder_read(model):
    comparison = Comparison(wanted_columns(model, TEXT, REPLY, PAIRS))
    for text in (WORDS, "and then", "why?"):
        list(comparison.ask(text))
        list(drift.measure(comparison))
    first, static, rounded = comparison.rows()
    assert static["agreement"] == 1.0 and static["mean_kl"] < 1e-6
    assert first["times_smaller_than_dynamic"] == pytest.approx(first["used_nbytes"] / first["nbytes"], abs=1e-3) and comparison.heard == comparison.columns[0].conversation.heard_ids
    if model == "reader":
        assert rounded["mean_kl"] > 0 and first["used_nbytes"] > 1.3 * rounded["used_nbytes"]
    assert rounded["cache"] == "Native 2-bit + cross"
    assert json.loads(compare_view.chart_value(comparison))["figure"]["data"][-1]["y"][-1] == first["used_nbytes"]


def test_memory_kept_for_later_stands_beside_the_bytes_in_use():
    comparison = Comparison(wanted_columns("tiny", "", REPLY, [("dynamic", {}), ("static", {"max_cache_len": 512})]))
    list(comparison.ask(WORDS))
    dynamic, static = comparison.rows()
    assert static["used_nbytes"] == dynamic["used_nbytes"] and static["times_smaller_than_dynamic"] == pytest.approx(static["used_nbytes"] / static["nbytes"], abs=1e-3)
    assert static["reserved_nbytes"] > 4 * static["used_nbytes"] and static["nbytes"] == static["used_nbytes"] + static["reserved_nbytes"]
    table = compare_view.table_html(comparison)
    assert compare_view.human_bytes(static["reserved_nbytes"]) in table and "reserved" in table


def test_a_column_that_is_no_pair_is_refused_with_what_would_do():
    with pytest.raises(ValueError, match="Cache 1: dynamic: umt5 has an encoder.*'encoder_decoder' takes this cache"):
        Comparison(wanted_columns("reader", "", {}, [("dynamic", {}), ("sink", {})]))


def test_the_page_says_what_the_encoder_reads():
    assert events.system_words(reader())["label"] == "Text to read"
    assert events.system_words(answerer()) == events.system_words(tiny()) == layout.SYSTEM_PROMPT
    assert "Each message is answered by itself" in events.about(answerer()) and events.about(reader()) == events.about(tiny()) == ""


def test_a_model_that_dynamic_does_not_suit_is_shown_without_it():
    history = History()
    nothing = lambda tokens: 0  # noqa: E731
    assert [line["name"] for line in charts.history_figure(history, nothing)["data"]] == ["this cache", "tokens seen", "tokens held"]
    assert "DynamicCache would hold" not in str(charts.compare_figure([("Mamba", history)], nothing))
    table = html_parts.prediction_table("Mamba state", [("1k", 5, 0), ("8k", 5, 0)])
    assert "Dynamic" not in table and table.count("5 B") == 2


def test_a_reply_has_room_beside_those_being_written_or_where_there_are_none():
    registry = Registry(budget=1000)
    one, other = registry.get("one"), registry.get("other")
    one.needs, other.needs = 900, 200
    with one.at_work():
        assert registry.has_room(one) and not registry.has_room(other)
    assert registry.has_room(other), "what one had taken is free again"
    other.needs = 5000
    assert registry.has_room(other), "nobody else writes: more than all is refused elsewhere, before"


def test_an_api_client_who_is_silent_frees_its_cache_and_may_come_back(monkeypatch):
    registry = Registry()
    session, page = registry.get("client"), registry.get("tab")
    session.from_api = True
    say(session, WORDS), say(page, WORDS)
    registry.make_room()
    assert session.nbytes > 0
    monkeypatch.setattr(ui.state, "API_SECONDS", -1)
    registry.make_room()
    assert session.nbytes == 0 and page.nbytes > 0
    stats = say(registry.get("client"), "and then")
    assert stats.reused == 0 and "freed" in stats.note


def test_gradio_marks_few_widgets_at_a_frame_and_keeps_no_copy_of_the_page_for_a_session():
    from ui import page

    blocks = page.build("tiny", Registry())
    hidden = [event for event in blocks.get_config_file()["dependencies"] if event["show_progress"] == "hidden"]
    assert len(hidden) > 50 and all(len(event["show_progress_on"] or event["outputs"]) <= 1 for event in hidden)
    app = SimpleNamespace()
    gradio_upkeep.spare_the_server(app, blocks)
    session, widget = app.state_holder["somebody"], next(iter(blocks.blocks))
    session._update_config(widget), session._update_value_in_config(widget, 1)
    assert session is app.state_holder["somebody"] and session[widget] is blocks.blocks[widget] and len(session.config_values) == 0


def test_labels_of_points_that_lie_on_one_another_stand_below_one_another():
    points = [(0, "Dynamic", 600_000, 0.0), (1, "4 bits", 610_000, 0.0), (2, "Sink", 650_000, 0.02), (3, "2 bits", 2_000_000, 0.02)]
    drawn = charts.quality_figure(points)["data"]
    assert [trace["name"] for trace in drawn] == ["Dynamic", "4 bits", "Sink", "2 bits"] and [trace["text"] for trace in drawn] == [["Dynamic<br>4 bits"], [""], ["Sink"], ["2 bits"]]
