"""The quality command at tiny sizes: what is asked has the answers it says, what is measured is what a slow formula gives, and what is written can be read."""

import csv
import io
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tiny_chat import make_model, make_tokenizer, some_ids, tiny

import kvcache
from kvcache import catalog
from kvcache.chat.engine import Token
from kvcache.measure import __main__ as command_line
from kvcache.measure import report
from kvcache.measure.drift import teacher_forced
from kvcache.measure.quality import answers, command, figures, prompts, results, run, spec, tasks, texts
from kvcache.measure.quality.results import Answered, Drifted, LeftOut, Report, Share, wilson
from kvcache.measure.quality.run import Plan
from kvcache.measure.quality.spec import Spec, parse
from kvcache.measure.quality.tasks import TASKS, Question

TEXT = texts.Text("random tokens", (tuple(some_ids(300)), tuple(some_ids(300, seed=1))))
SETTINGS = {"model": "tiny", "dtype": "float32", "tokens": 64, "forced": 8, "passages": 2, "text": "random tokens", "cases": 2, "seed": 0, "chunk": None}


def measured(plan, loaded=None, text=TEXT):
    report = Report(settings=dict(SETTINGS))
    for event in run.run(loaded or tiny(), plan, text):
        report.add(event)
    return report


def drifts(*caches, **sizes):
    return Plan(tuple(map(parse, caches)), **{"tokens": 64, "forced": 8, "passages": 2, "tasks": (), **sizes})


# -- caches by a word ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["dynamic", "quantized:key_bits=4,value_bits=2", "sink:window_length=64,num_sink_tokens=2", "evicting:policy=snapkv,budget=0.25", "quantized:nbits=4,compact=0.25", "dynamic:compact=64"])
def test_a_cache_is_written_as_it_is_read(text):
    assert str(parse(text)) == text and str(parse(text).check(tiny().model)) == text
    assert parse(text).make(tiny()).name == text.split(":")[0]


@pytest.mark.parametrize("name", [*catalog.ENTRIES, *catalog.OTHERS])
def test_every_cache_of_the_catalog_and_any_of_its_parameters_can_be_asked_for(name):
    defaults = catalog.entry(name).defaults()
    found = parse(str(Spec(name, defaults)))
    assert found.name == name and {key: str(value) for key, value in found.parameters.items()} == {key: str(value) for key, value in defaults.items()}


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "written as NAME or NAME:PARAMETER=VALUE"),
        ("sink:", "written as NAME or NAME:PARAMETER=VALUE"),
        ("turbo", "no cache is called 'turbo'; there are dynamic"),
        ("sink:window_length", "written as NAME=VALUE, got 'window_length'"),
        ("sink:=4", "written as NAME=VALUE"),
        ("sink:window_length=64,window_length=32", "window_length is given twice"),
        ("sink:nbits=4", "sink has no parameter 'nbits'; it takes window_length"),
        ("dynamic:nbits=4", "takes no parameters"),
    ],
)
def test_what_is_no_cache_gets_a_sentence(text, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        parse(text)


def test_what_the_model_refuses_is_said_before_anything_runs():
    with pytest.raises(ValueError, match="the cache 'quantized:nbits=7' can't be had: nbits must be one of"):
        run.run(tiny(), drifts("quantized:nbits=7"), TEXT)
    with pytest.raises(ValueError, match="'hybrid_mamba' can't be had"):
        run.run(tiny(), drifts("hybrid_mamba"), TEXT)
    with pytest.raises(ValueError, match="'dynamic:compact=much' can't be had: budget must be"):
        run.run(tiny(), drifts("dynamic:compact=much"), TEXT)


def test_nothing_chosen_means_every_lossy_cache_that_the_model_takes_and_a_compacted_one():
    names = {each.name for each in spec.usual(tiny(), 512)}
    assert names - {"dynamic"} == {name for name, entry in catalog.ENTRIES.items() if entry.lossy and not entry.why_not(tiny().model)}
    assert spec.usual(tiny("mamba"), 512) == []


# -- drift ---------------------------------------------------------------------------------------------------------------


def test_lossless_caches_do_not_drift_and_perplexity_is_that_of_the_model_without_a_cache():
    report = measured(drifts("static:max_cache_len=128", "offloaded"))
    full, static, offloaded = report.rows()
    assert full.cache == "dynamic" and full.mean_kl == 0 and full.same_choice == 1
    for row in (static, offloaded):
        assert row.mean_kl < 1e-6 and row.same_choice == 1  # other orders of summing move fp32 logits by 1e-6
    losses = []
    for passage in texts.passages(TEXT, 2, 64, 8, 0):
        ids = torch.tensor([passage.prompt + passage.continuation])
        with torch.no_grad():
            logits = tiny().model(ids, use_cache=False).logits[0, 63:-1]
        losses.append(torch.nn.functional.cross_entropy(logits, ids[0, 64:]).item())
    assert full.perplexity == pytest.approx(math.exp(sum(losses) / 2), rel=1e-4)


def test_kl_is_the_slow_formulas_and_bytes_are_what_the_cache_holds():
    cache = "quantized:nbits=2,residual_length=0"
    row = measured(drifts(cache)).rows()[1]
    kls, sizes = [], []
    for passage in texts.passages(TEXT, 2, 64, 8, 0):
        filled = parse(cache).make(tiny())
        p, q = (teacher_forced(tiny(), made, passage.prompt, passage.continuation, prefill_chunk=64).double() for made in (kvcache.create("dynamic", tiny().model), filled))
        kls.append(sum(float(a.exp() * (a - b)) for a, b in zip(p.flatten(), q.flatten())) / len(p))
        sizes.append(kvcache.measure_memory(filled).used)
    assert row.mean_kl == pytest.approx(sum(kls) / 2, rel=1e-4) and row.kl_range == pytest.approx((min(kls), max(kls)), rel=1e-4)
    assert row.mean_kl > 1e-4 and row.nbytes == sum(sizes) / 2 and row.of_full < 0.6


def test_chunks_are_what_the_cache_is_fed():
    at_once, in_chunks = (measured(drifts("sink:window_length=16", chunk=chunk)).rows()[1] for chunk in (None, 8))
    assert at_once.mean_kl != in_chunks.mean_kl and at_once.nbytes == in_chunks.nbytes


def test_another_seed_reads_other_passages_and_asks_other_questions():
    assert texts.passages(TEXT, 2, 64, 8, 0) == texts.passages(TEXT, 2, 64, 8, 0) != texts.passages(TEXT, 2, 64, 8, 1)
    one, other = (measured(Plan((), passages=0, tasks=("multikey",), modes=("aware",), lengths=(512,), cases=1, seed=seed)) for seed in (0, 1))
    assert {each.expected for each in one.answered}.isdisjoint(each.expected for each in other.answered)


def test_a_compacted_cache_is_what_compact_makes_of_one_that_has_read_the_prompt():
    row = measured(drifts("dynamic:compact=48", tokens=128)).rows()[1]
    kls = []
    for passage in texts.passages(TEXT, 2, 128, 8, 0):
        ids = torch.tensor([passage.prompt])
        cache = kvcache.create("dynamic", tiny().model)
        with torch.no_grad():
            kvcache.feed(tiny().model, ids[:, :-1], cache)
        small = kvcache.compact(tiny().model, cache, ids[:, :-1], 48)
        p = teacher_forced(tiny(), kvcache.create("dynamic", tiny().model), passage.prompt, passage.continuation)
        q = teacher_forced(tiny(), small, passage.prompt[-1:], passage.continuation, passage.prompt[:-1])
        kls.append((p.exp() * (p - q)).sum(-1).mean().item())
    assert row.label == "Dynamic compacted to 48" and row.of_full < 0.6 and row.mean_kl == pytest.approx(sum(kls) / 2, rel=1e-3)


def test_a_compacted_cache_answers_like_the_full_one_where_nothing_had_to_go():
    found = prompts.fitting(tiny(), tasks.single, 0, 600)
    for mode in answers.MODES.values():
        assert next(mode(tiny(), parse("dynamic:compact=4096"), found)).reply == next(mode(tiny(), Spec("dynamic"), found)).reply


# -- texts ---------------------------------------------------------------------------------------------------------------


def test_passages_do_not_overlap_and_a_text_that_is_too_short_says_so():
    text = texts.Text("numbers", (tuple(range(300)), tuple(range(300, 400)), (1, 2)))
    found = texts.passages(text, 9, 40, 10, 3)
    ids = [token for passage in found for token in passage.prompt + passage.continuation]
    assert len(found) == 8 and len(ids) == len(set(ids)) == 400 and all(len(passage.prompt) == 40 and len(passage.continuation) == 10 for passage in found)
    with pytest.raises(ValueError, match="numbers: the longest has 300 tokens, and a passage takes 290 and 11"):
        texts.passages(text, 1, 290, 11, 0)


def test_the_bundled_novels_are_plain_text_enough_for_long_passages():
    assert len(texts.novels()) == 3 and all(len(text) > 40_000 and text.isascii() for text in texts.novels().values())
    assert len(texts.words()) > 1000 and len(texts.sentences()) > 500 and texts.FILE.stat().st_size < 60_000


def test_a_users_file_is_read_and_one_that_is_none_gets_a_sentence(tmp_path):
    (tmp_path / "a.txt").write_text("The lighthouse keeper counts the ships.")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00")
    assert texts.read(tmp_path / "a.txt", tiny().tokenizer).documents[0] == tuple(tiny().tokenizer("The lighthouse keeper counts the ships.")["input_ids"])
    for name in ("b.txt", "c.txt"):
        with pytest.raises(ValueError, match=f"{name}' can't be read"):
            texts.read(tmp_path / name, tiny().tokenizer)


# -- tasks ---------------------------------------------------------------------------------------------------------------


def solved(text):
    """What somebody who reads all of it answers to the prompt in `text`: found by other means than those that made it."""
    question = text[-400:]
    if found := re.search(r"magic numbers? for (\w+) mentioned in the provided text\?", question):
        return " and ".join(re.findall(rf"special magic numbers for {found[1]} is: (\d+)\.", text))
    if found := re.search(r"assigned the value (\d+) in the text", question):
        names, before = [], found[1]
        while match := re.search(rf"VAR ([A-Z]+) = {before}\.", text):
            names.append(match[1])
            before = f"VAR {match[1]}"
        return ", ".join(names)
    if "most common words" in question:
        words = re.findall(r"\d+\. ([a-z]+)", text)
        return " ".join(sorted(set(words), key=words.count)[-3:])
    return ""


@pytest.mark.parametrize("name", [name for name in TASKS if name != "facts"])
@pytest.mark.parametrize("size", [8, 60])
def test_who_reads_everything_answers_everything_and_who_reads_nothing_nothing(name, size):
    for number in range(5):
        case = TASKS[name](number, size)
        for question in case.questions:
            assert question.is_answered(solved(case.lead + question.text))
            assert not question.is_answered(solved("" + question.text)) and not question.is_answered(question.opening + question.text)
    assert TASKS[name](3, size) == TASKS[name](3, size) != TASKS[name](4, size)


def test_needles_are_as_many_as_they_should_be_and_lie_anywhere():
    depths = []
    for number in range(40):
        context = tasks.single(number, 50).lead
        assert context.count("special magic numbers for") == 1
        depths.append(context.index("One of the special") / len(context))
    assert min(depths) < 0.2 and max(depths) > 0.8
    assert [len(tasks.multikey(0, 50).questions), len(tasks.multivalue(0, 50).questions[0].expected)] == [4, 4]


def test_facts_are_told_first_and_differ_from_case_to_case():
    cases = [tasks.facts(number, 5) for number in range(124)]
    assert len({case.questions[0] for case in cases}) > 110  # some facts are asked for in the same words
    assert all(case.questions[0].is_answered(case.said[0]) for case in cases if case.questions[0].expected[0].isdigit())


@pytest.mark.parametrize("reply, right", [("It is 12345.", True), ("12,345", True), ("123456", False), ("1234", False), ("x12345", False), ("12345 and 6", True)])
def test_answers_count_as_a_whole(reply, right):
    assert Question("?", ("12345",)).is_answered(reply) is right


def test_all_that_is_asked_must_be_there():
    question = Question("?", ("Oak", "elm"))
    assert question.is_answered("ELM, oak") and not question.is_answered("oak") and not question.is_answered("oak, helm")


@pytest.mark.parametrize("template", ["with", "without"])
def test_a_prompt_is_cut_before_its_question_and_is_as_long_as_asked(template):
    loaded = tiny() if template == "with" else make_model(tokenizer=make_tokenizer(None))
    for name, task in TASKS.items():
        found = prompts.fitting(loaded, task, 1, 900)
        assert len({tuple(prompt.context) for prompt in found}) == 1
        for prompt in found:
            assert len(prompt) <= 900 and (name == "facts" or len(prompt) > 700)
            head, tail = (loaded.tokenizer.decode(ids) for ids in (prompt.context, prompt.rest))
            assert prompt.question.text not in head and tail.startswith(prompt.question.text) and tail.endswith(prompt.question.opening)
            assert prompt.context + prompt.rest == loaded.tokenizer(head + tail, add_special_tokens=False)["input_ids"]


def test_a_task_that_is_longer_than_asked_is_left_out_and_the_others_go_on():
    report = measured(Plan((), passages=0, tasks=("common", "single"), lengths=(450,), cases=2, modes=("aware",)))
    assert [each.what for each in report.left_out] == ["common at 450 tokens"] and "takes at least" in report.left_out[0].reason
    assert {each.task for each in report.answered} == {"single"}


# -- answers -------------------------------------------------------------------------------------------------------------


def test_a_full_cache_answers_the_same_whether_the_question_comes_with_the_prompt_or_later():
    found = prompts.fitting(tiny(), tasks.multikey, 0, 600)
    replies = [[each.reply for each in answers.MODES[mode](tiny(), Spec("dynamic"), found, chunk)] for mode in answers.MODES for chunk in (None, 64)]
    assert len(set(map(tuple, replies))) == 1 and len(set(replies[0])) == 4  # and every question of a context gets a reply of its own


def test_an_agnostic_cache_has_lost_what_it_could_not_know_it_would_need():
    """A window drops the context before the question comes; in one prompt, fed at once, the question still attends to everything."""
    found = prompts.fitting(tiny(), tasks.single, 0, 600)
    full = next(answers.aware(tiny(), Spec("dynamic"), found))
    window = parse("sliding_window:window_length=16")
    assert next(answers.agnostic(tiny(), window, found)).reply[:4] != full.reply[:4]
    assert next(answers.agnostic(tiny(), window, found)).nbytes < full.nbytes / 10


class Reader:
    """Stands in for the token loop: what `solved` says to the prompt's last `reach` tokens."""

    def __init__(self, reach=None):
        self.reach = reach

    def __call__(self, loaded, cache, new, seen=(), sampling=None, **_):
        ids = [*seen, *new]
        text = loaded.tokenizer.decode(ids[-self.reach :] if self.reach and cache.name != "dynamic" else ids)
        yield Token(0, solved(text), 0, 0.0, None)


def test_who_answers_all_has_full_cells_and_who_forgets_has_less_beside_them(monkeypatch):
    monkeypatch.setattr(answers, "generate_tokens", Reader(reach=400))
    report = measured(Plan((parse("sink:window_length=64"),), passages=0, tasks=("single", "multikey", "variables"), lengths=(1200,), cases=4))
    full, sink = report.rows()
    assert len(full.cells) == 6 and all(cell.right.value == 1 and cell.right == cell.full == cell.kept for cell in full.cells)
    for cell in sink.cells:
        assert cell.full.value == 1 and cell.right.value < 0.8 and cell.right.count == (16 if cell.task == "multikey" else 4)
    assert sink.kept("aware").count == 4 + 16 + 4


# -- the run -------------------------------------------------------------------------------------------------------------


def test_a_cache_that_fails_is_left_out_and_the_full_one_ends_the_run(monkeypatch):
    plan = drifts("static:max_cache_len=70", "sink:window_length=16")  # the static one has no room for the second part
    report = measured(plan)
    assert [(each.what, "don't fit" in each.reason) for each in report.left_out] == [("static:max_cache_len=70", True)]
    assert report.caches == ["dynamic", "sink:window_length=16"] and len(report.drifted) == 4
    with pytest.raises(ZeroDivisionError):
        monkeypatch.setattr(run, "drift", lambda a, b: 1 / 0)
        measured(drifts())


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"passages": 0}, "nothing to measure"),
        ({"forced": 0}, "forced must be at least 1, got 0"),
        ({"tokens": 4096}, "tiny-llama reads 2,048 tokens, and this takes 4,104"),
        ({"tasks": ("riddles",)}, "no task is called 'riddles'; there are facts, single"),
        ({"tasks": ("facts",), "modes": ("both",)}, "no mode is called 'both'"),
        ({"tasks": ("facts",), "lengths": (2048,)}, "and this takes 2,304"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_it_runs(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        run.run(tiny(), replace(drifts(), **changes), TEXT)


def test_a_model_with_an_encoder_is_refused():
    from tiny_chat import reader

    with pytest.raises(ValueError, match="has an encoder"):
        run.run(reader(), drifts(), TEXT)


def test_progress_counts_up_to_the_end_and_stop_ends_the_run():
    plan = drifts("sink:window_length=16", tasks=("single",), lengths=(300,), cases=1)
    progress = [event for event in run.run(tiny(), plan, TEXT) if isinstance(event, run.Progress)]
    assert [event.done for event in progress] == list(range(8)) and {event.total for event in progress} == {8}
    assert len([event for event in run.run(tiny(), plan, TEXT, stop=lambda: True)]) == 1


# -- by several processes ------------------------------------------------------------------------------------------------


def test_shares_of_a_run_joined_are_the_run_also_where_caches_fail_and_tasks_have_no_room():
    plan = drifts("static:max_cache_len=700", "quantized:nbits=2", tasks=("single", "multikey"), lengths=(40, 300, 1200), cases=2)
    alone = [event for event in run.run(tiny(), plan, TEXT) if not isinstance(event, run.Progress)]
    assert {each.what for each in alone if isinstance(each, LeftOut)} == {"static:max_cache_len=700", *(f"{task} at {length} tokens" for task in ("single", "multikey") for length in (40, 300))}
    units = run.units_of(plan)
    shares = [list(run.parts(tiny(), plan, TEXT, units[first::3])) for first in range(3)]
    found = [(unit, event) for share in reversed(shares) for unit, event in share if not isinstance(event, run.Progress)]
    assert len(found) > len(alone) and list(run.joined(plan, found)) == alone


@pytest.mark.slow
def test_two_processes_that_accelerate_launches_find_what_one_finds(tmp_path):
    arguments = "-m kvcache.measure quality --model kvlab-ministral-7m --dtype float32 --caches quantized:nbits=2 sink:window_length=64 --tokens 96 --forced 8 --passages 3 --cases 3 --lengths 600 --json".split()
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}

    def found(name, launcher):
        ended = subprocess.run([sys.executable, *launcher, *arguments, str(tmp_path / name)], capture_output=True, text=True, env=surroundings, timeout=240)
        assert ended.returncode == 0, ended.stderr
        return Report.from_json((tmp_path / name).read_text()), ended.stdout

    (one, alone), (two, together) = found("one.json", []), found("two.json", ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"])
    assert (two.drifted, two.answered, two.left_out) == (one.drifted, one.answered, one.left_out) and len(one.drifted) == 9
    assert together.splitlines()[-1] == alone.splitlines()[-1] and together.count("mean KL") == 1  # said once


def test_times_are_not_shared_by_processes(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        command_line.main(["speed", "--quick"])
    assert "speed is measured by one process" in capsys.readouterr().err


# -- results -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hits, count, low, high", [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)])
def test_intervals_are_those_of_newcombe_1998(hits, count, low, high):
    assert wilson(hits, count) == pytest.approx((low, high), abs=5e-5)


def test_nothing_counted_may_be_anything():
    assert wilson(0, 0) == (0.0, 1.0) and math.isnan(Share(0, 0).value) and wilson(24, 24)[1] == 1.0


def a_report():
    drifted = [Drifted(cache, n, 8, kl, 2 * kl, 1 - kl, 1.5 + kl, size, 2 * size) for n in range(2) for cache, kl, size in (("dynamic", 0.0, 1000), ("sink", 0.1 + n / 10, 250))]
    answered = [Answered(cache, "single", "aware", 64, n, 0, n < right, "<12>", ("12",), size) for n in range(4) for cache, right, size in (("dynamic", 3, 2000), ("sink", 1, 500))]
    return Report(settings=dict(SETTINGS), drifted=drifted, answered=answered, left_out=[LeftOut("quantized", "it is <not> here")])


def test_rows_sum_up_passages_and_set_answers_beside_the_full_caches():
    full, sink = a_report().rows()
    assert (sink.mean_kl, sink.of_full, sink.nbytes, sink.answer_nbytes) == pytest.approx((0.15, 0.25, 250, 500)) and sink.kl_range == pytest.approx((0.1, 0.2))
    assert sink.cells[0].right == Share(1, 4) and sink.cells[0].full == Share(3, 4) and sink.cells[0].kept == sink.kept("aware") == Share(1, 3)
    assert sink.perplexity == pytest.approx(math.exp(1.65)) and full.kept("aware") == Share(3, 3)


def test_two_caches_that_menus_call_alike_are_told_apart():
    report = Report(drifted=[Drifted(cache, 0, 1, 0, 0, 1, 1, 1, 1) for cache in ("dynamic", "quantized:nbits=4", "quantized:nbits=4,residual_length=0")])
    assert [row.label for row in report.rows()] == ["Dynamic", "quantized:nbits=4", "quantized:nbits=4,residual_length=0"]


def test_json_comes_back_and_anything_else_is_refused():
    report = a_report()
    assert Report.from_json(report.to_json()) == report
    assert json.loads(report.to_json())["rows"][1]["cells"][0]["kept_asked"] == 3
    for text in ("{", "{}", '{"format": 0}'):
        with pytest.raises(ValueError, match="not the JSON of a quality run"):
            Report.from_json(text)


def test_figures_that_are_not_known_are_null_and_no_nan():
    report = Report(answered=a_report().answered)
    json.loads(report.to_json(), parse_constant=lambda name: pytest.fail(name))
    json.loads(json.dumps(report.summary()), parse_constant=lambda name: pytest.fail(name))
    assert "nan" not in report.to_csv()


def test_csv_has_a_line_a_cache_and_a_column_a_figure():
    lines = list(csv.DictReader(io.StringIO(a_report().to_csv())))
    assert [line["cache"] for line in lines] == ["dynamic", "sink"]
    assert float(lines[1]["mean_kl"]) == pytest.approx(0.15) and float(lines[1]["single aware 64"]) == 0.25 and float(lines[1]["single aware 64 full"]) == 0.75
    assert (float(lines[1]["single aware 64 low"]), float(lines[1]["single aware 64 high"])) == pytest.approx(wilson(1, 4))


def test_the_best_for_their_bytes_are_those_beside_which_none_has_less_of_both():
    assert figures.best([(4, 1), (1, 9), (2, 9), (3, 0.5), (2, 3)]) == [(1, 9), (2, 3), (3, 0.5)] and figures.best([]) == []


def test_the_page_has_charts_tables_and_what_is_missing():
    page = figures.html(a_report())
    assert "Drift over bytes" in page and "Answers over bytes, aware" in page and "it is &lt;not&gt; here" in page and "33% (" not in page
    assert "25% (5-70) of 75%" in page and "var(--kv" not in page and "plotly" in page
    drift, aware = (figure for _, figure in figures.figures(a_report()))
    assert drift["data"][1]["x"] == [250] and drift["data"][1]["y"][0] == pytest.approx(0.15)
    bars = aware["data"][2]["error_y"]
    assert aware["data"][2]["y"][0] == pytest.approx(1 / 3) and 1 / 3 + bars["array"][0] == pytest.approx(wilson(1, 3)[1])


def test_every_cache_looks_different():
    report = Report(drifted=[Drifted(str(each), 0, 1, 0, 0, 1, 1, 1, 1) for each in (Spec("dynamic"), *spec.usual(tiny(), 512))])
    rows = report.rows()
    looks = [(figures.colour_of(rows, row), figures.symbol_of(rows, row)) for row in rows]
    assert len(set(looks)) == len(rows) > 8


def test_the_tables_of_the_docs_are_made_of_a_runs_json(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("nothing")
    (tmp_path / "docs" / "measured.md").write_text("a <!-- quality --> b <!-- /quality --> c")
    (tmp_path / "q.json").write_text(a_report().to_json())
    monkeypatch.setattr("sys.argv", ["report", "--quality", str(tmp_path / "q.json"), "--write", "--pages", str(tmp_path)])
    report.main()
    page = (tmp_path / "docs" / "measured.md").read_text()
    assert "| Sink 4 + 252 | 250 | 25.0% | 0.15 | 0.10 to 0.20 | 85.0% | 5.21 |" in page and "| Sink 4 + 252 | 25% (5-70) of 75% |" in page and page.startswith("a") and page.endswith("c")


# -- the command ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(command.models, "load", lambda *_, **__: tiny())


def test_the_command_writes_files_and_ends_with_a_line_of_json(model, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("The lighthouse keeper counts the ships that pass before dawn. " * 40)
    files = {kind: tmp_path / "out" / f"q.{kind}" for kind in ("json", "csv", "html")}
    sizes = "--tokens 64 --forced 4 --passages 2 --cases 1 --lengths 600 --tasks single multikey".split()
    command_line.main(["quality", "--caches", "sink:window_length=16", "quantized:nbits=2", *sizes, "--text", str(tmp_path / "text.txt"), *(f"--{kind}={path}" for kind, path in files.items())])
    *_, last = capsys.readouterr().out.strip().splitlines()
    found = json.loads(last)
    assert list(found["caches"]) == ["dynamic", "sink:window_length=16", "quantized:nbits=2"] and found["caches"]["sink:window_length=16"]["kl"] > 0
    assert found["caches"]["dynamic"]["agnostic"][1] <= 5 and found["model"] == "tiny-llama"
    report = Report.from_json(files["json"].read_text())
    assert len(report.drifted) == 6 and len(report.answered) == 3 * 2 * (1 + 4) and str(tmp_path) in report.where()
    assert len(files["csv"].read_text().splitlines()) == 4 and "<!doctype html>" in files["html"].read_text()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--caches", "turbo"], "no cache is called 'turbo'"),
        (["--caches", "sink:window_length=few"], "window_length must be a whole number"),
        (["--tasks", "riddles"], "no task is called 'riddles'"),
        (["--text", "nowhere.txt"], "'nowhere.txt' can't be read"),
        (["--tokens", "9999"], "reads 2,048 tokens"),
    ],
)
def test_wrong_arguments_get_a_sentence(model, arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2 and words in capsys.readouterr().err


def test_an_interrupted_run_says_so_and_keeps_what_there_is(monkeypatch, tmp_path):
    def two_then_stop(*_):
        yield run.Progress(0, 2, "a")
        yield a_report().drifted[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", two_then_stop)
    monkeypatch.setattr(command, "SAVED_EVERY", -1)
    report = command.measure(tiny(), drifts(), TEXT, tmp_path / "out" / "q.json")
    assert Report.from_json((tmp_path / "out" / "q.json").read_text()).drifted == report.drifted  # what is killed leaves as much
    assert report.drifted and report.settings["stopped"] and "stopped before its end" in results.words(report)
