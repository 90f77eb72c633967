"""The benchmark's own logic at tiny sizes: who is timed, what is counted, and that a contender that fails does not end a run."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

import kvcache
from kvcache.measure import __main__ as command_line
from kvcache.measure import report
from kvcache.measure.speed import command, contenders, figures, results, run, targets, timing
from kvcache.measure.speed.contenders import CONTENDERS, REFERENCE, Contender
from kvcache.measure.speed.results import LeftOut, Report, Row
from kvcache.measure.speed.rigs import LayerRig, ModelRig, Setup, Step
from kvcache.measure.speed.timing import Rare, Runner, Times, rare_work

MODEL = dict(hidden_size=32, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=32)


def small_layer(names, contexts=(64,)):
    return run.Level("layer", lambda: LayerRig(4, kv_heads=2, head_dim=64), contexts, tuple(names), 4)


def plan(*levels, **settings):
    return run.Plan(levels, **{"threads": (1,), "rounds": 3, **settings})


def collected(events):
    found = Report(settings={"rounds": 3})
    for event in events:
        found.add(event)
    return found


def a_row(contender, ms, nbytes=1000, context=64, threads=1, rare=None, level="layer"):
    step = Times(ms / 1e3, ms / 1e3, ms / 1e3, 3)
    return Row(level, 8, context, threads, contender, CONTENDERS[contender].label, CONTENDERS[contender].side, step, nbytes, rare)


def a_report():
    rows = [a_row(REFERENCE, 10, 4000), a_row("native-4", 4, 1000, rare=Rare(0.064, 64)), a_row(REFERENCE, 20, 8000, context=128)]
    return Report(settings={"rounds": 3}, rows=rows, left_out=[LeftOut("layer", 8, 64, "upstream fp8", "it is <not> here")])


# -- contenders ----------------------------------------------------------------------------------------------------------


def test_every_contender_runs_on_one_layer_or_says_why_not():
    names = {name for name, each in CONTENDERS.items() if not each.compiled and not name.endswith("static")} - {"upstream-quanto-4"}
    found = collected(run.run(plan(small_layer(names))))
    measured, left_out = {row.contender for row in found.rows}, {each.label for each in found.left_out}
    unavailable = {name for name in names if CONTENDERS[name].why_not()}
    assert measured == names - unavailable | {REFERENCE}
    assert left_out == {CONTENDERS[name].label for name in unavailable}
    for row in found.rows:
        assert row.step.low <= row.step.median <= row.step.high and row.nbytes > 0 and row.update.median > 0
        assert row.peak >= 0 and (row.threads, row.context) == (1, 64)


@torch.no_grad()
def test_a_step_needs_no_history_of_memory_and_an_update_of_a_growing_buffer_none():
    rig = LayerRig(2, kv_heads=2, head_dim=64)  # not grouped: for that older releases of torch copy keys and values themselves
    peaks = {name: Runner(rig, CONTENDERS[name], 4096).peak() for name in (REFERENCE, "alone", "dynamic", "fused-4", "native-4")}
    one_history = 2 * 4096 * 64 * 4
    assert peaks["dynamic"] <= peaks["alone"] + 4096 < one_history and peaks["fused-4"] < one_history < peaks[REFERENCE]
    assert peaks["native-4"] < one_history  # decoded in pieces, never all at once


def test_whole_models_decode_with_every_cache_that_grows():
    level = run.Level("growth", lambda: ModelRig(**MODEL), (64,), ("dynamic", "static", "native-4", "window", "sink"), 2)
    found = collected(run.run(plan(level)))
    assert [row.contender for row in found.rows] == [REFERENCE, "dynamic", "static", "native-4", "window", "sink"] and not found.left_out
    assert all(row.update is None for row in found.rows)


def test_filling_directly_is_what_feeding_would_be_to_a_cache():
    rig = ModelRig(**MODEL)
    cache = kvcache.create("dynamic", rig.model)
    rig.fill(cache, 40)
    assert cache.get_seq_length() == 40
    with torch.no_grad():
        rig.step(cache)
    assert cache.get_seq_length() == 41 and [layer.seen for layer in cache.layers] == [41, 41]


def test_attention_alone_keeps_its_keys_and_stores_nothing():
    rig = LayerRig(2, kv_heads=2, head_dim=32)
    cache = CONTENDERS["alone"].make(rig.model, 64)
    rig.fill(cache, 64)
    keys, _ = cache.update(rig.key, rig.value, 0)
    assert keys.shape[2] == 64 and keys is cache.update(rig.key, rig.value, 0)[0]


def test_unknown_contenders_are_named_with_those_there_are():
    with pytest.raises(ValueError, match="no contender is called nonsense; there are upstream-dynamic, alone"):
        contenders.named(["nonsense", "dynamic"])
    assert [each.name for each in contenders.named(["sink", "dynamic"])] == [REFERENCE, "dynamic", "sink"]


def test_a_cache_without_the_parameter_asked_for_says_so():
    assert contenders._ours("x", "quantized", "X", speed="ludicrous").why_not() == "'quantized' has no parameter speed in this version"


def test_quanto_is_left_out_until_its_extension_is_built(tmp_path, monkeypatch):
    extensions = pytest.importorskip("optimum.quanto.library.extensions")
    built = type("Extension", (), {"build_directory": str(tmp_path)})
    monkeypatch.setattr(extensions, "get_extension", lambda name: built)
    assert "--slow does it" in contenders.why_not_quanto()
    (tmp_path / "quanto_cpp.so").touch()
    (tmp_path / "pytorch_version.txt").write_text("0.0")
    assert "--slow does it" in contenders.why_not_quanto()
    (tmp_path / "pytorch_version.txt").write_text(torch.__version__)
    assert contenders.why_not_quanto() is None


# -- what is counted -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, changed", [("native-4", lambda layer: layer.quantized), ("dynamic", lambda layer: layer.key_rows.data.shape[2])])
def test_rare_work_comes_exactly_when_it_is_foretold(name, changed):
    rig = LayerRig(2, kv_heads=2, head_dim=32)
    cache = CONTENDERS[name].make(rig.model, 600)
    rig.fill(cache, 256)
    comings = []
    for token in range(200):
        foretold, before = rare_work(cache)[0] == 0, changed(cache.layers[0])
        cache.update(rig.key, rig.value, 0)
        assert foretold == (changed(cache.layers[0]) != before), f"at token {token}"
        comings += [token] * foretold
    assert len(comings) >= 3 and comings[2] - comings[1] == (64 if name == "native-4" else 32)


def test_upstreams_flushes_are_foretold_too():
    rig = LayerRig(2, kv_heads=2, head_dim=64)
    cache = transformers.QuantizedCache("hqq", rig.model.config, nbits=4)
    rig.fill(cache, 64)
    assert rare_work(cache) == (127, 128)
    rig.fill(cache, 127)
    before = cache.layers[0]._quantized_keys
    assert rare_work(cache) == (0, 128)
    cache.update(rig.key, rig.value, 0)
    assert cache.layers[0]._quantized_keys is not before and rare_work(cache) == (127, 128)


def test_a_flush_is_kept_out_of_the_median_and_spread_over_its_tokens():
    runner = Runner(LayerRig(2, kv_heads=2, head_dim=32), CONTENDERS["native-4"], 4 + 64 + 62)  # one token, then a flush
    with torch.no_grad():
        for _ in range(3):
            runner.step()
    assert len(runner.steps) == 2 and runner.cache.layers[0].quantized == 64
    row = a_row("native-4", 4, rare=Rare(0.064, 64))
    assert row.seconds == pytest.approx(0.005)


def test_a_flush_is_told_from_a_usual_update_not_from_a_step_that_attention_makes_unsteady(monkeypatch):
    runner = Runner(LayerRig(2, kv_heads=2, head_dim=32), CONTENDERS["native-4"], 128)
    monkeypatch.setattr(runner.rig, "step", lambda cache, compiled: Step(0.9, 0.003))
    assert runner.rare(Times.of([0.5]), Times.of([0.001])).seconds == pytest.approx(0.002)
    assert runner.rare(Times.of([0.5]), None).seconds == pytest.approx(0.4)


def test_times_are_median_and_quartiles():
    assert Times.of([3.0, 1.0, 2.0, 5.0, 4.0]) == Times(3.0, 2.0, 4.0, 5)
    assert Times.of([2.0]) == Times(2.0, 2.0, 2.0, 1)


def test_a_cache_that_brings_its_own_attention_has_it_for_its_own_steps_alone():
    rig, seen = LayerRig(2, kv_heads=2, head_dim=32), []

    def make(model, tokens):
        model.config._attn_implementation = "eager"
        return transformers.DynamicCache(config=model.config)

    runner = Runner(rig, Contender("own", "own", "ours", make), 16)
    assert rig.model.config._attn_implementation == "sdpa"
    rig.step = lambda cache, compiled: seen.append(rig.model.config._attn_implementation) or timing.Step(1.0)
    runner.step()
    assert seen == ["eager"] and rig.model.config._attn_implementation == "sdpa"


# -- a run ---------------------------------------------------------------------------------------------------------------


class Fails(transformers.DynamicCache):
    """Breaks at the fourth update: filling, warming up and one round go well."""

    calls = 0

    def update(self, *arguments, **options):
        self.calls += 1
        if self.calls == 4:
            raise RuntimeError("out of\nluck")
        return super().update(*arguments, **options)


def test_a_contender_that_fails_is_reported_and_the_others_go_on(monkeypatch):
    def refuse(model, tokens):
        raise ValueError("it does not fit")

    monkeypatch.setitem(CONTENDERS, "refuses", Contender("refuses", "Refuses", "ours", refuse))
    monkeypatch.setitem(CONTENDERS, "fails", Contender("fails", "Fails", "ours", lambda model, tokens: Fails(config=model.config)))
    found = collected(run.run(plan(small_layer(("refuses", "fails", "dynamic")))))
    assert [row.contender for row in found.rows] == [REFERENCE, "dynamic"]
    assert [(each.label, each.reason) for each in found.left_out] == [("Refuses", "it does not fit"), ("Fails", "RuntimeError: out of luck")]


def test_progress_counts_to_the_end_and_threads_are_given_back():
    before = torch.get_num_threads()
    work = plan(small_layer(("dynamic",), (64, 96)), threads=(1, 2))
    events = list(run.run(work))
    steps = [event for event in events if isinstance(event, run.Progress)]
    assert [step.done for step in steps] == list(range(work.total)) and torch.get_num_threads() == before
    assert {(row.context, row.threads) for row in events if isinstance(row, Row)} == {(64, 1), (64, 2), (96, 1), (96, 2)}


def test_a_run_can_be_stopped_and_leaves_gradients_alone():
    seen = []
    for event in run.run(plan(small_layer(("dynamic",))), stop=lambda: len(seen) == 4):
        assert torch.is_grad_enabled()
        seen.append(event)
    assert len(seen) == 4


def test_slow_contenders_wait_for_those_who_are_patient(monkeypatch):
    monkeypatch.setattr(run, "MANY_TOKENS", 32)
    found = collected(run.run(plan(small_layer(("upstream-hqq-4",)), patient=False)))
    assert [row.contender for row in found.rows] == [REFERENCE] and "takes too long" in found.left_out[0].reason


@pytest.mark.parametrize(
    "wrong, words",
    [
        (lambda: plan(), "nothing to measure"),
        (lambda: plan(small_layer(("dynamic",), ())), "nothing to measure"),
        (lambda: plan(small_layer(("dynamic",), (4,))), "a context is 16 to 131,072 tokens, got 4"),
        (lambda: plan(small_layer(("dynamic",)), rounds=1), "rounds must be from 3 to 200, got 1"),
        (lambda: plan(small_layer(("dynamic",)), threads=(0,)), "threads must be from 1 to 256, got 0"),
    ],
)
def test_what_can_not_be_measured_is_refused_before_anything_runs(wrong, words):
    with pytest.raises(ValueError, match=words):
        run.run(wrong())


# -- results -------------------------------------------------------------------------------------------------------------


def test_ratios_are_taken_against_upstream_in_the_same_place():
    found = a_report()
    assert found.times_faster(found.rows[1]) == pytest.approx(10 / 5) and found.times_smaller(found.rows[1]) == 4.0
    assert found.times_faster(found.rows[0]) == 1.0
    assert found.times_faster(a_row("native-4", 4, threads=2)) is None


def test_a_report_comes_back_from_its_json_and_carries_its_ratios():
    found = a_report()
    again = Report.from_json(found.to_json())
    assert again == found
    assert json.loads(found.to_json())["rows"][1]["times_faster"] == pytest.approx(2.0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 1, "machine": {}, "settings": {}, "rows": [{}], "left_out": []}'])
def test_other_json_is_no_report(text):
    with pytest.raises(ValueError, match="not the JSON of a speed run"):
        Report.from_json(text)


def test_the_words_say_what_where_and_what_is_missing():
    words = results.words(a_report())
    assert re.search(r"Native 4-bit, decoded +64 +5\.00 .* 2\.00x .* 64\.0 / 64 +- +1,000 +4\.00x", words)
    assert "upstream fp8 (layer at 64): not measured because it is <not> here" in words and "torch " + torch.__version__ in words


def test_the_page_stands_alone_and_escapes_what_it_shows():
    page = figures.html(a_report())
    assert "it is &lt;not&gt; here" in page and "Plotly.newPlot('chart-0-1'" in page
    assert not re.search(r"<script[^>]+src=|<link", page) and "var(--kv" not in page.split("</script>", 1)[1].split("<style>")[-1]


def test_the_figures_have_a_line_for_each_contender():
    figure = figures.ms_figure(a_report().rows)
    assert [trace["name"] for trace in figure["data"]] == ["upstream Dynamic", "Native 4-bit, decoded"]
    assert figure["data"][0]["x"] == [64, 128] and figure["data"][1]["y"] == [5.0]
    assert figures.ticks([2.3, 40]) == [1, 2, 5, 10, 20, 50, 100] and figures.size_text(2e6) == "2 MB" and figures.short(4096) == "4k"


def test_no_two_contenders_look_alike_where_only_their_points_show():
    looks = [(figures.colour_of(name), figures.SYMBOLS[figures.dash_of(name)]) for name in contenders.CONTENDERS]
    assert len(set(looks)) == len(looks)
    row = a_report().rows[0]
    marks = [figures.ms_figure([replace(row, contender=name)])["data"][0]["marker"]["symbol"] for name in ("native-4", "native-8", "native-2")]
    assert marks == ["circle", "diamond", "square"]


def test_the_pages_table_comes_from_the_json(tmp_path, monkeypatch, capsys):
    (tmp_path / "speed.json").write_text(a_report().to_json())
    (tmp_path / "README.md").write_text("a\n<!-- speed -->\nold\n<!-- /speed -->\nb")
    monkeypatch.setattr("sys.argv", ["report", "--speed", str(tmp_path / "speed.json"), "--write", "--pages", str(tmp_path)])
    report.main()
    text = (tmp_path / "README.md").read_text()
    assert "| Native 4-bit, decoded | 5.00 | - | - | - | - |" in text and "old" not in text and text.startswith("a\n") and text.endswith("\nb")
    assert "A quick run" not in text


def test_the_page_has_a_place_for_the_table():
    text = (Path(__file__).resolve().parent.parent / "docs" / "measured.md").read_text()
    assert "\npython -m kvcache.measure speed\n" in text and "| a |" in report.put(text, "speed", "| a |")


# -- targets -------------------------------------------------------------------------------------------------------------


def outcome(words, rows):
    return next(each for each in targets.outcomes(Report(rows=rows)) if each.words.startswith(words))


def test_a_target_is_met_where_every_place_and_number_of_threads_meets_it():
    rows = [a_row(REFERENCE, 10, context=1024, level="135m"), a_row("fused-4", 5, context=1024, level="135m")]
    found = outcome("4-bit fused, 135M", rows)
    assert found.cells == ("4-bit fused, 135M geometry from 1k on: faster than upstream Dynamic", "at least 1x", "2x on 1 thread", "met")
    slower = [a_row(REFERENCE, 10, context=4096, level="135m", threads=2), a_row("fused-4", 20, context=4096, level="135m", threads=2)]
    found = outcome("4-bit fused, 135M", rows + slower)
    assert found.figures == {1: 2.0, 2: 0.5} and found.verdict == "missed"
    unmeasured = outcome("Static, compiled", rows)
    assert (unmeasured.measured, unmeasured.verdict) == ("not measured", "-")
    assert targets.outcomes(Report(rows=rows[:1])) == []


def test_limits_from_above_take_the_worst_place_too():
    rows = [a_row("native-4", 1, rare=Rare(seconds, 64), context=context) for seconds, context in ((0.002, 1024), (0.006, 4096))]
    found = outcome("Native 4-bit: one flush", rows)
    assert found.aim == "at most 5 ms" and found.measured == "6 ms on 1 thread" and found.verdict == "missed"


def test_every_target_is_about_contenders_that_are_measured_there():
    levels = [level for arguments in (["--slow"], ["--device", "cpu"]) for level in command.plan_of(command.parser().parse_args(arguments)).levels]
    for target in targets.TARGETS:
        found = [level for level in levels if level.name == target.level and target.query_heads in (None, level.query_heads)]
        assert found, target.words
        assert target.context is None or any(target.context in level.contexts for level in found), target.words
        for level in found:
            assert {target.contender, target.other or target.contender} <= set(level.contenders) | {REFERENCE}, target.words


def test_targets_stand_in_the_words_the_page_the_json_and_the_readmes_table():
    found = Report(settings={"rounds": 3}, rows=[a_row(REFERENCE, 10, context=1024, level="135m"), a_row("fused-4", 5, context=1024, level="135m")])
    assert re.search(r"faster than upstream Dynamic +at least 1x +2x on 1 thread +met", results.words(found))
    assert "<h2>Targets</h2>" in figures.html(found) and "<td>2x on 1 thread</td><td>met</td>" in figures.html(found)
    assert "| at least 1x | 2x on 1 thread | met |" in report.speed_table(found)
    again = json.loads(found.to_json())["targets"]
    assert [each["met"] for each in again if each["figures"]] == [True] and Report.from_json(found.to_json()) == found


def test_storing_a_prompt_is_timed_in_fresh_caches():
    runner = Runner(LayerRig(2, kv_heads=2, head_dim=32), CONTENDERS["native-4"], 128)
    with torch.no_grad():
        times = runner.prefill_times()
    assert times.count > 1 and 0 < times.low <= times.median and runner.cache.layers[0].seen == 128


def test_a_compiled_model_is_another_way_to_step():
    rig = ModelRig(**MODEL)
    calls = []
    rig.compiled = SimpleNamespace(forward_for=lambda cache: lambda **options: calls.append((cache, options[rig.keyword])))
    runner = Runner(rig, CONTENDERS["static-compiled"], 64)
    with torch.no_grad():
        runner.step()
    assert calls == [(runner.cache, runner.cache)]
    with pytest.raises(ValueError, match="whole models are compiled"):
        LayerRig(2, kv_heads=2, head_dim=32).step(None, compiled=True)


def test_compiling_waits_until_it_is_asked_for(monkeypatch):
    monkeypatch.setattr("kvcache.chat.decode_step.why_not_compiled", lambda: None)
    assert "--slow does it" in contenders.why_not_compiled()
    monkeypatch.setattr("kvcache.chat.decode_step.why_not_compiled", lambda: "no compiler")
    assert contenders.why_not_compiled() == "no compiler"


# -- the command ---------------------------------------------------------------------------------------------------------


def test_the_command_prints_and_saves(tmp_path, capsys):
    command_line.main(["speed", "--levels", "layer", "--contexts", "64", "--threads", "1", "--rounds", "3", "--contenders", "dynamic", "--out", str(tmp_path)])
    printed = capsys.readouterr()
    assert "upstream Dynamic" in printed.out and "1/" in printed.err
    assert {row.query_heads for row in Report.read(tmp_path / command.JSON_NAME).rows} == {8, 32}
    assert (tmp_path / command.PAGE_NAME).stat().st_size > 1_000_000


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["speed", "--contexts", "4"], "a context is 16 to 131,072 tokens, got 4"),
        (["speed", "--contenders", "nonsense"], "no contender is called nonsense"),
        (["speed", "--threads", "0"], "threads must be from 1 to 256, got 0"),
        (["speed", "--rounds", "2"], "rounds must be from 3 to 200, got 2"),
        (["speed", "--levels", "all"], "invalid choice: 'all'"),
        (["speed", "--out", __file__], "--out must be a folder"),
        (["speed", "--device", "toaster"], "there is no device 'toaster' here"),
        (["speed", "--device", "meta"], "on the device 'meta' nothing is computed"),
        (["speed", "--levels", "device"], "device is measured on a device: add --device cuda"),
        (["speed", "--device", "cpu", "--levels", "tiny"], "tiny is measured on the CPU, without --device"),
        (["drift"], "not 'drift'"),
        ([], "usage: python -m kvcache.measure speed"),
    ],
)
def test_bad_arguments_get_a_sentence(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        command_line.main(arguments)
    assert ended.value.code == 2 and words in capsys.readouterr().err


DEVICE = "speed --device cpu --contexts 192 --rounds 3 --contenders dynamic static fused-4 upstream-offloaded --out".split()


def test_a_device_is_measured_in_16_bits_with_its_name_and_its_memory(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "LARGE", MODEL | dict(head_dim=64))
    command_line.main([*DEVICE, str(tmp_path)])
    found = Report.read(tmp_path / command.JSON_NAME)
    at = {(row.level, row.contender): row for row in found.rows}
    assert {level for level, _ in at} == {"device", "device-8", "device-model"} and found.settings["device"] == "cpu"
    upstream = {level: at[level, REFERENCE].nbytes for level in command.DEVICE_LEVELS}
    assert upstream == {"device": 2 * 8 * 128 * 2 * 192, "device-8": 8 * 2 * 8 * 128 * 2 * 192, "device-model": 2 * 2 * 2 * 64 * 2 * 192}  # two bytes an element
    assert all(row.peak is not None and row.update is not None for row in found.rows if row.level != "device-model")
    assert {each.reason for each in found.left_out} == {"there is no accelerator here, so that there is nowhere to fetch layers to"}
    printed = capsys.readouterr().out
    assert "on cpu, " in printed and "bfloat16, every step synchronised" in printed and "On a device, Static: no slower than upstream's" in printed and "135M" not in printed
    assert "peak of a step |" in report.speed_table(found)


def test_a_row_says_where_codes_that_were_to_be_read_were_decoded():
    runner = object.__new__(Runner)
    runner.contender = CONTENDERS["fused-4"]
    for read_by, label in (("triton", "Native 4-bit, fused"), ("torch", "Native 4-bit, fused (decoded by torch)")):
        runner.cache = SimpleNamespace(layers=[SimpleNamespace(read_by=read_by)])
        assert runner.label == label


def test_a_device_has_so_many_minutes(tmp_path, capsys):
    command_line.main([*DEVICE, str(tmp_path), "--levels", "device", "--minutes", "0"])
    assert "It was stopped before its end" in capsys.readouterr().out


def test_a_device_that_is_not_the_cpu_is_waited_for_before_the_clock_is_read(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.accelerator, "synchronize", asked.append)
    device = torch.device("meta")  # which computes nothing, and stands for one
    assert Setup(device).now() > 0 and asked == [device] and Setup().now() > 0 and len(asked) == 1


def test_a_run_that_is_stopped_leaves_what_it_has_measured(tmp_path, monkeypatch, capsys):
    def stopped(plan):
        yield a_row("dynamic", 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", stopped)
    command_line.main(["speed", "--quick", "--out", str(tmp_path)])
    assert Report.read(tmp_path / command.JSON_NAME).rows == [a_row("dynamic", 1)]
    assert "stopped before its end" in capsys.readouterr().out


def test_a_run_that_is_killed_leaves_the_rows_before(tmp_path, monkeypatch):
    def killed(plan):
        yield a_row("dynamic", 1)
        raise SystemExit

    monkeypatch.setattr(command, "run", killed)
    with pytest.raises(SystemExit):
        command_line.main(["speed", "--quick", "--out", str(tmp_path)])
    assert Report.read(tmp_path / command.JSON_NAME).rows == [a_row("dynamic", 1)]


def test_quick_and_full_plans_are_what_the_help_says():
    quick, full = (command.plan_of(command.parser().parse_args(arguments)) for arguments in (["--quick"], []))
    assert quick.threads == (1,) and not quick.patient and {level.name for level in quick.levels} == {"layer", "tiny", "135m", "growth"}
    assert full.threads == (1, 2) and full.patient and [level.query_heads for level in full.levels if level.name == "layer"] == [8, 32]
    assert max(full.levels[-1].contexts) == 65536 and full.levels[-1].threads == (1,)
