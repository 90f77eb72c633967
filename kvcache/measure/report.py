"""The tables of README.md and docs/: `python -m kvcache.measure.report` measures every cache on a bundled model, side by side with upstream.

`--write` puts them between their markers, wherever those stand; without it they are printed. Three ways measure nothing: `--catalog` writes the tables that the
catalog and the bundled models' folders say, of caches, operations and models, and `--speed FILE` and `--quality FILE ...` take the JSON of `python -m kvcache.measure speed`
and `quality`.
`--text TOKENS` measures a pretrained model, on so much of Python's documentation.
"""

import argparse
import datetime
import functools
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import transformers

from .. import bundled
from ..bundled import card, evaluate, questions
from ..catalog import ENTRIES, OTHERS, create, entry, first_fitting
from ..chat import models
from ..chat.engine import Sampling, forward, generate_tokens
from ..entry import OPERATIONS, Parameter
from ..memory import measure_memory
from .drift import drift, teacher_forced
from .quality import results as quality
from .speed import results, targets

OWN_CACHES = ("hybrid", "mamba", "hybrid_mamba", "encoder_decoder")  # that are there for some models alone
ROOT = Path(__file__).resolve().parents[2]
BEST = ("Dynamic", "Native 8-bit", "Native 4-bit", "Native 2-bit", "Sink 4 + 252")  # rows of the measured table that the README has, too
TOKENS = 1024  # context at which bytes, speed and drift are measured
DISTANCE = 512  # tokens between a fact and the question about it
WINDOW = 256  # of the streams
CHUNK = 16  # tokens of a text that a pretrained model reads at once
STREAM = ((0, 256), (256, 1024), (1024, 2048), (2048, 4096), (4096, 20 * WINDOW))  # parts of a stream of 20 windows
LONGEST_TEXT = 2048  # tokens that the static cache holds
DEFAULT_ASKED = ("trained_ways", card.TOGETHER, card.NEVER_TOGETHER, "hand_written", "never_told", "fourth", "fourth_never_told", "sixth", "sixth_never_told", "passages")
VARIANTS = (
    ("dynamic", {}),
    ("static", {"max_cache_len": LONGEST_TEXT}),
    ("quantized", {"nbits": 8}),
    ("quantized", {"nbits": 4}),
    ("quantized", {"nbits": 2}),
    ("quantized", {"backend": "hqq", "nbits": 4}),
    ("quantized", {"backend": "hqq", "nbits": 1}),
    ("quantized", {"backend": "quanto", "nbits": 4}),
    ("sliding_window", {"window_length": 256}),
    ("sink", {"window_length": 256}),
)


@dataclass(frozen=True)
class Row:
    """One cache's figures. `speed`: decode tokens a second over upstream DynamicCache's in the same rounds."""

    label: str
    nbytes: int
    speed: float
    mean_kl: float
    recall: float


def catalog_table() -> str:
    """Every cache with its class and parameters as Markdown, from the catalog alone."""
    lines = [
        [f"`{each.name}`", f"`{each.cache_class.__name__}`", ", ".join(f"`{p.name}={p.default!r}`" for p in each.parameters) or "none"]
        for each in (*ENTRIES.values(), *OTHERS.values())
    ]
    return _markdown(["name", "class", "parameters and defaults"], lines)


def parameters_table() -> str:
    """What every parameter of the catalog's caches takes and means, once for all caches that mean the same by it."""
    takers: dict[tuple[str, ...], list[str]] = {}
    for each in (*ENTRIES.values(), *OTHERS.values()):
        for p in each.parameters:
            takers.setdefault((f"`{p.name}`", _values(p), p.help), []).append(f"`{each.name}`")
    return _markdown(["parameter", "of", "values", "what it sets"], [[name, ", ".join(of), values, text] for (name, values, text), of in takers.items()])


def _values(parameter: Parameter) -> str:
    if parameter.kind in ("int", "amount"):
        return f"{parameter.minimum:,} to {parameter.maximum:,}" + (", or a share below 1" if parameter.kind == "amount" else "")
    return "True, False" if parameter.kind == "bool" else ", ".join(map(str, parameter.choices))


def operations_table() -> str:
    """What every cache does and what it refuses, as the catalog claims and tests/test_operations.py tries; what all do is one sentence."""
    every = ENTRIES | OTHERS
    common = [words for operation, words in OPERATIONS.items() if all(operation in each.can for each in every.values())]
    lines = [[words, *("✓" if name in each.can else "refused" for each in every.values())] for name, words in OPERATIONS.items() if words not in common]
    return "\n\n".join([f"Every cache does: {'; '.join(common)}.", _markdown(["", *(f"`{name}`" for name in every)], lines)])


def measured_table(rows: list[Row], where: str) -> str:
    """The measured rows as Markdown; the first row is what the others' bytes are compared with."""
    lines = ["| cache | bytes | vs Dynamic | decode speed vs upstream | mean KL, nats | recalled |", "|---|---|---|---|---|---|"]
    for row in rows:
        ratio = f"{rows[0].nbytes / row.nbytes:.1f}x smaller" if row.nbytes < rows[0].nbytes else f"{row.nbytes / rows[0].nbytes:.2f}x"
        lines.append(f"| {row.label} | {row.nbytes:,} | {ratio} | {row.speed:.2f}x | {row.mean_kl:.4f} | {row.recall:.0%} |")
    return "\n".join([*lines, "", where])


def measure(loaded: models.LoadedModel, count: int, rounds: int, tell: Callable[[str], None]) -> list[Row]:
    """Every variant's Row. `count` questions about values never seen in training; `rounds` of interleaved timings."""
    prompt, continuation = _talk(loaded)
    cases = questions.cases("trained_ways", DISTANCE, count)
    reference = teacher_forced(loaded, create("dynamic", loaded.model), prompt, continuation)
    speeds = _speeds(loaded, prompt, rounds)
    rows = []
    for (name, parameters), speed in zip(VARIANTS, speeds):
        cache = create(name, loaded.model, **parameters)
        kl = drift(reference, teacher_forced(loaded, cache, prompt, continuation)).mean_kl
        filled = create(name, loaded.model, **parameters)
        forward(loaded, filled, prompt)
        rows.append(Row(entry(name).describe(**parameters), measure_memory(filled).total, speed, kl, _recall(loaded, name, parameters, cases)))
        tell(str(rows[-1]))
    return rows


def _talk(loaded: models.LoadedModel) -> tuple[list[int], list[int]]:
    """TOKENS ids of a generated conversation, and the 128 that follow."""
    case = questions.cases("trained_ways", 2 * TOKENS)[0]
    ids = loaded.tokenizer.apply_chat_template(case.messages, return_dict=False)
    return ids[:TOKENS], ids[TOKENS : TOKENS + 128]


def _speeds(loaded: models.LoadedModel, prompt: list[int], rounds: int) -> list[float]:
    """Each variant's median decode speed over upstream's, both decoding in turns in every round."""
    makers = [lambda: transformers.DynamicCache(config=loaded.config)]
    makers += [lambda name=name, parameters=parameters: create(name, loaded.model, **parameters) for name, parameters in VARIANTS]
    caches = [make() for make in makers]
    for cache in caches:
        forward(loaded, cache, prompt)
    ratios = [[] for _ in VARIANTS]
    for _ in range(rounds):
        seconds = [_seconds_a_token(loaded, cache) for cache in caches]
        for ratio, own in zip(ratios, seconds[1:]):
            ratio.append(seconds[0] / own)
    return [statistics.median(ratio) for ratio in ratios]


def _seconds_a_token(loaded: models.LoadedModel, cache: Any, tokens: int = 16) -> float:
    start = time.perf_counter()
    for _ in range(tokens):
        forward(loaded, cache, [5])
    return (time.perf_counter() - start) / tokens


def _recall(loaded: models.LoadedModel, name: str, parameters: dict, cases: list[questions.Case]) -> float:
    """Share of questions answered right, each on a fresh cache, greedily."""
    return sum(evaluate.contains(_answer(loaded, name, parameters, case), case.expected) for case in cases) / len(cases)


def _answer(loaded: models.LoadedModel, name: str, parameters: dict, case: questions.Case) -> str:
    ids = loaded.tokenizer.apply_chat_template(case.messages, add_generation_prompt=True, return_dict=False)
    cache = create(name, loaded.model, **parameters)
    events = generate_tokens(loaded, cache, ids, sampling=Sampling(max_new_tokens=32))
    return "".join(getattr(event, "text", "") for event in events)


def stream(loaded: models.LoadedModel, tell: Callable[[str], None]) -> dict[str, list[float]]:
    """Perplexity of dialogue that goes on for 20 windows, token by token, in the parts of it that STREAM names."""
    talks = (case.messages for case in questions.cases("trained_ways", TOKENS, 8))
    ids = [token for talk in talks for token in loaded.tokenizer.apply_chat_template(talk, return_dict=False)][: STREAM[-1][1] + 1]
    found = {}
    for name in ("dynamic", "sliding_window", "sink"):
        parameters = {} if name == "dynamic" else {"window_length": WINDOW}
        cache = create(name, loaded.model, **parameters)
        limit = len(ids) - 1 if cache.bounded else min(len(ids) - 1, loaded.context_length)
        losses = [-forward(loaded, cache, ids[i : i + 1]).float().log_softmax(-1)[ids[i + 1]].item() for i in range(limit)]
        found[entry(name).describe(**parameters)] = [math.exp(statistics.fmean(losses[a:b])) if b <= limit else math.nan for a, b in STREAM]
        tell(f"{name} {list(found.values())[-1]}")
    return found


@torch.no_grad()
def text_table(loaded: models.LoadedModel, tokens: int, tell: Callable[[str], None]) -> str:
    """Perplexity of Python's own documentation, which every machine has, part by part for every cache: what forgetting and rounding do to a pretrained model."""
    ids = torch.tensor(loaded.tokenizer(topics["typesseq"], add_special_tokens=False)["input_ids"])[None, : tokens + 1]
    parts = [(0, WINDOW), *((WINDOW << n, min(2 * WINDOW << n, tokens)) for n in range(20) if WINDOW << n < tokens)]
    table = []
    for name, parameters in VARIANTS:
        cache, losses = create(name, loaded.model, **parameters), []
        for piece, expected in zip(ids[:, :-1].split(CHUNK, dim=1), ids[0, 1:].split(CHUNK)):
            logits = loaded.model(input_ids=piece, **{loaded.cache_argument: cache}).logits[0]
            losses += torch.nn.functional.cross_entropy(logits.float(), expected, reduction="none").tolist()
        cells = [f"{math.exp(statistics.fmean(losses[a:b])):.2f}" for a, b in parts]
        table.append([entry(name).describe(**parameters), *cells, f"{measure_memory(cache).used:,}"])
        tell(" ".join(table[-1]))
    return _markdown(["perplexity at tokens", *(f"{a:,}-{b:,}" for a, b in parts), "bytes held in the end"], table)


@torch.no_grad()
def sink_share(loaded: models.LoadedModel) -> str:
    """How much attention the first four tokens draw: what a window without sinks loses."""
    talk = questions.cases("trained_ways", TOKENS)[0].messages
    ids = torch.tensor([loaded.tokenizer.apply_chat_template(talk, return_dict=False)[:TOKENS]])
    before = loaded.model.config._attn_implementation
    try:
        loaded.model.set_attn_implementation("eager")
        attentions = loaded.model(ids, output_attentions=True).attentions  # a layer: [1, H, T, T]
    finally:
        loaded.model.set_attn_implementation(before)
    shares = torch.stack([layer[0, :, ids.shape[1] // 2 :, :4].sum(-1).mean(-1) for layer in attentions])
    return (
        f"Over tokens {ids.shape[1] // 2:,} to {ids.shape[1]:,} the model's {shares.numel()} heads give the first four "
        f"{shares.mean():.1%} of their attention on average and {shares.max():.1%} at most."
    )


def stream_table(found: dict[str, list[float]]) -> str:
    """Perplexities as Markdown; a cache that cannot go on for so long has none."""
    lines = ["| perplexity at tokens | " + " | ".join(f"{a:,}-{b:,}" for a, b in STREAM) + " |", "|---" * (len(STREAM) + 1) + "|"]
    lines += [f"| {label} | " + " | ".join("past its context" if math.isnan(x) else f"{x:.2f}" for x in row) + " |" for label, row in found.items()]
    return "\n".join(lines)


def speed_table(report: results.Report) -> str:
    """A speed run as Markdown: a table for each rig, milliseconds on its fewest threads and ratios to upstream's DynamicCache."""
    rigs = sorted(dict.fromkeys((level, heads) for level, heads, _ in report.groups()), key=lambda rig: [*results.LEVELS, *results.DEVICE_LEVELS].index(rig[0]))
    left_out = [f"- {each}" for each in results.left_out_words(report)]
    aims = [outcome.cells for outcome in targets.outcomes(report)]
    parts = [_markdown(targets.HEADS, aims) if aims else "", *(_rig_table(report, level, heads) for level, heads in rigs), report.where(), "\n".join(left_out)]
    return "\n\n".join(part for part in parts if part)


def _rig_table(report: results.Report, level: str, heads: int) -> str:
    rows = report.find(level=level, query_heads=heads)
    contexts, threads = sorted({row.context for row in rows}), sorted({row.threads for row in rows})
    head = ["", *(f"ms at {context:,}" for context in contexts)]
    head += [f"speed vs upstream, {count} thread{'s' * (count != 1)}" for count in threads] + ["bytes", "times smaller", *["peak of a step"] * (level in results.DEVICE_LEVELS)]
    title = f"**{results.title(level, heads)}**; ratios and bytes at {contexts[-1]:,} tokens:"
    lines = [_speed_line(report, [row for row in rows if row.contender == name], contexts, threads) for name in dict.fromkeys(row.contender for row in rows)]
    return "\n".join([title, "", _markdown(head, lines)])


def quality_table(report: quality.Report) -> str:
    """A quality run as Markdown: drift, then each mode's answers, a row a cache."""
    rows, parts = report.rows(), []
    if report.drifted:
        parts.append(_markdown(quality.COLUMNS, [quality.cells(row) for row in rows]))
    for mode in report.modes:
        places = [place for place in quality.columns(report) if place[1] == mode]
        parts.append(_markdown(quality.answer_heads(places), [quality.answer_cells(row, places) for row in rows]))
    return "\n\n".join([*parts, report.where()])


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(line)} |" for line in lines)])


def _speed_line(report: results.Report, rows: list[results.Row], contexts: list[int], threads: list[int]) -> list[str]:
    at = {(row.context, row.threads): row for row in rows}
    ms = [results.ms_text(at[context, threads[0]].seconds) if (context, threads[0]) in at else "-" for context in contexts]
    last = [at.get((contexts[-1], count)) for count in threads]
    ratios = [results.ratio_text(report.times_faster(row)) if row else "-" for row in last]
    size = [f"{last[0].nbytes:,}", results.ratio_text(report.times_smaller(last[0]))] if last[0] else ["-", "-"]
    peak = [f"{last[0].peak:,}" if last[0] and last[0].peak is not None else "-"] if rows[0].level in results.DEVICE_LEVELS else []
    return [rows[0].label, *ms, *ratios, *size, *peak]


def where(loaded: models.LoadedModel, count: int) -> str:
    """What was measured on what, by which command, when."""
    return (
        f"Measured {datetime.date.today()} on {platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch "
        f"{torch.__version__}, transformers {transformers.__version__}, model `{loaded.id}` in {str(loaded.dtype).removeprefix('torch.')}, by "
        f"`{' '.join(['python -m kvcache.measure.report', *sys.argv[1:]])}`: bytes and speed at {TOKENS:,} tokens of context; KL of the next-token "
        f"distribution from a full cache's over 128 tokens; {count} questions about values never seen in training, {DISTANCE} tokens after they were told."
    )


def put(text: str, name: str, table: str) -> str:
    """`text` with `table` between the markers <!-- name --> and <!-- /name -->."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if start not in text or end not in text:
        raise ValueError(f"README has no markers {start} and {end}")
    return text[: text.index(start)] + f"{start}\n{table}\n{end}" + text[text.index(end) + len(end) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=bundled.DEFAULT)
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="write the tables between their markers, and print none")
    parser.add_argument("--pages", type=Path, default=ROOT, help="folder whose README.md and docs/*.md have the markers")
    parser.add_argument("--json", type=Path, help="where to write the rows as JSON")
    parser.add_argument("--catalog", action="store_true", help="write what the catalog and the models' folders say, and measure nothing")
    parser.add_argument("--speed", type=Path, help="JSON of a speed run: write or print its table, and measure nothing")
    parser.add_argument("--quality", type=Path, nargs="+", help="JSON of quality runs: write or print their tables, one after the other, and measure nothing")
    parser.add_argument("--text", type=int, metavar="TOKENS", help="measure perplexity on so many tokens of text, and nothing else: for a pretrained model")
    options = parser.parse_args()
    if (options.catalog or options.write) and not (options.pages / "README.md").is_file():
        parser.error(f"{options.pages} has no README.md and docs/ to write tables into: run this in a clone, or leave --write out")
    if options.catalog:
        return write(said_by_catalog(options.pages), options.pages)
    show = functools.partial(write, pages=options.pages) if options.write else _print
    if options.text is not None:
        if not WINDOW < options.text <= LONGEST_TEXT:
            parser.error(f"--text takes {WINDOW + 1} to {LONGEST_TEXT:,} tokens, which every cache of the table holds, not {options.text}")
        loaded = models.load(options.model)
        return show({"text": text_table(loaded, options.text, lambda line: print(line, file=sys.stderr, flush=True))})
    if options.speed:
        found = results.Report.read(options.speed)
        return show({"speed-device" if found.settings.get("device") else "speed": speed_table(found)})
    if options.quality:
        found = [quality.Report.from_json(path.read_text(encoding="utf-8")) for path in options.quality]
        return show({"quality": "\n\n".join(map(quality_table, found))})
    loaded = models.load(options.model)
    rows = measure(loaded, options.questions, options.rounds, lambda line: print(line, file=sys.stderr, flush=True))
    table = measured_table(rows, where(loaded, options.questions))
    streams = stream_table(stream(loaded, lambda line: print(line, file=sys.stderr, flush=True))) + "\n\n" + sink_share(loaded)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    show({"measured": table, "stream": streams})
    if options.write:
        write(said_by_catalog(options.pages), options.pages)


def said_by_catalog(pages: Path) -> dict[str, str]:
    """The tables that need no measuring, by the names of their markers."""
    return {
        "kinds": kinds_table(), "catalog": catalog_table(), "parameters": parameters_table(), "operations": operations_table(), "default": default_table(), "models": models_table(),
        "best": best_rows((pages / "docs" / "measured.md").read_text()),
    }  # fmt: skip


def kinds_table() -> str:
    """What is on offer in the menus, in a line each."""
    return _markdown(["name", "what it keeps"], [[f"`{each.name}`", each.summary] for each in ENTRIES.values()])


def best_rows(measured: str) -> str:
    """The rows of the measured table in a page that a newcomer looks for first."""
    table = measured.split("<!-- measured -->\n")[1].split("\n\n")[0].splitlines()
    return "\n".join([*table[:2], *(row for label in BEST for row in table if row.startswith(f"| {label} |"))])


def default_table() -> str:
    """What the default model was asked, with its full cache; the card has more rows."""
    return card.table(evaluate.shipped()[bundled.DEFAULT], DEFAULT_ASKED)


def models_table() -> str:
    """The bundled models: what they are, their caches, and how much each recalls with a full cache."""
    distances = [str(distance) for distance in evaluate.DISTANCES]
    head = ["model", "what it is", "MB", "caches made for it", *(f"recalled at {int(d):,}" for d in distances), "by hand, at 512"]
    return _markdown(head, [_model_line(name, folder, distances) for name, folder in bundled.MODELS.items()])


def _model_line(name: str, folder: Path, distances: Sequence[str]) -> list[str]:
    found = evaluate.shipped()[name]
    config = transformers.AutoConfig.from_pretrained(folder)
    suited = [each.title for each in (*ENTRIES.values(), *OTHERS.values()) if not each.why_not(config) and (each.name in OWN_CACHES or each.name == first_fitting(config))]
    shares = [f"{found[kind][d]['recalled']:.0%}" if d in found[kind] else "-" for kind, ds in (("trained_ways", distances), ("hand_written", ["512"])) for d in ds]
    return [f"[{name}](../kvcache/bundled/{name}/README.md)", bundled.WHAT[name], f"{bundled.nbytes(name) / 1e6:.1f}", ", ".join(suited), *shares]


def write(tables: dict[str, str], pages: Path) -> None:
    """Put tables between their markers in README.md and docs/*.md of a folder. Raises ValueError for a table without a place."""
    left = set(tables)
    for page in (pages / "README.md", *sorted((pages / "docs").glob("*.md"))):
        text = before = page.read_text()
        for name in [name for name in tables if f"<!-- {name} -->" in before]:
            text = put(text, name, tables[name])
            left.discard(name)
        if text != before:
            page.write_text(text)
    if left:
        raise ValueError(f"no page in {pages} has the marker of {', '.join(sorted(left))}")


def _print(tables: dict[str, str]) -> None:
    print("\n\n".join(tables.values()))


if __name__ == "__main__":
    main()
