"""What each cache forgets, on a bundled model: `python -m kvcache.bundled.separation [--model FOLDER] [--questions 100]`.

The questions told and asked in training's ways, about facts told 64 to 1,500 tokens earlier, answered greedily with every cache of CACHES. Prints the
share answered right by distance and how many answers are word for word the full cache's; `--json` writes what separation.json beside the
default's weights holds, which the page's chart shows.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformers.cache_utils import QuantizedCache
from transformers.utils import is_hqq_available

from ..architecture import layer_types
from ..catalog import create, entry
from . import DEFAULT, MODELS, environment, evaluate, path, questions

DISTANCES = (64, 128, 256, 512, 1024, 1500)
FILE = "separation.json"
CACHES = (
    ("dynamic", {}),  # the first is what the others' answers are compared with
    ("static", {"max_cache_len": 2048}),
    ("offloaded", {}),
    ("quantized", {"nbits": 8}),
    ("quantized", {"nbits": 4}),
    ("quantized", {"nbits": 2}),
    ("quantized", {"nbits": 2, "axis_key": "token", "rotate": False}),
    ("quantized", {"backend": "hqq", "nbits": 2, "axis_key": "channel", "axis_value": "channel", "q_group_size": 64}),
    ("quantized", {"backend": "hqq", "nbits": 1}),
    ("sliding_window", {"window_length": 256}),
    ("sink", {"window_length": 256}),
)
UPSTREAM = "upstream HQQ 2-bit"  # transformers' own, as it comes: groups of 64 along axis 0, all rounded again at every flush
NO_CACHE, NEVER_TOLD = "No cache", "Guessing: it was never told"


@dataclass(frozen=True)
class Row:
    """One cache: the share of questions answered right, and of answers equal to the full cache's, for each distance in tokens."""

    label: str
    recalled: Mapping[str, float]
    same: Mapping[str, float]


def measure(model: Any, tokenizer: Any, count: int, distances: Any = DISTANCES, caches: Any = CACHES, tell: Any = print) -> list[Row]:
    """A Row for every cache of `count` questions a distance, for a run without one, and for the same questions with the telling taken out. `tell` hears each share."""
    found: dict[str, tuple[dict, dict]] = {}
    for distance in distances:
        cases = questions.cases("trained_ways", questions.tokens(distance, tokenizer), count)
        full: list[str] = []
        for label, answers in _answers(model, tokenizer, cases, caches):
            full = full or answers
            recalled, same = found.setdefault(label, ({}, {}))
            recalled[str(distance)] = sum(evaluate.contains(a, c.expected) for a, c in zip(answers, cases)) / len(cases)
            same[str(distance)] = sum(a == b for a, b in zip(answers, full)) / len(cases)
            tell(f"{label} at {distance:,} tokens: {recalled[str(distance)]:.1%} right, {same[str(distance)]:.1%} as with the full cache")
    return [Row(label, *shares) for label, shares in found.items()]


def _answers(model: Any, tokenizer: Any, cases: list, caches: Any) -> Iterator[tuple[str, list[str]]]:
    """(label, answers) of every row, the full cache's first; transformers' own quantised cache where it takes the model."""
    asked = [case.messages for case in cases]
    for name, parameters in caches:
        rows = 8 if "left padding" in entry(name).can else 1  # a batch is padded on the left
        yield entry(name).describe(**parameters), evaluate.replies(model, tokenizer, asked, rows, partial(create, name, model, **parameters))
    if set(layer_types(model.config)) == {"full_attention"} and is_hqq_available():
        yield UPSTREAM, evaluate.replies(model, tokenizer, asked, 1, partial(QuantizedCache, "hqq", model.config, nbits=2))
    yield NO_CACHE, evaluate.replies(model, tokenizer, asked, use_cache=False)
    yield NEVER_TOLD, evaluate.replies(model, tokenizer, [messages[2:] for messages in asked])


def table(measured: Mapping) -> str:
    """Markdown: a row per cache, a column per distance, a dash where it was not asked, and the share of answers that are the full cache's over all distances that were."""
    distances = list(measured["rows"][0]["recalled"])
    lines = [f"| cache | {' | '.join(f'{int(d):,}' for d in distances)} | answers as with the full cache |", "|---" * (len(distances) + 2) + "|"]
    for row in measured["rows"]:
        same = sum(row["same"].values()) / len(row["same"])
        shares = " | ".join(f"{row['recalled'][d]:.1%}" if d in row["recalled"] else "–" for d in distances)
        lines.append(f"| {row['label']} | {shares} | {same:.1%} |")
    return "\n".join(lines)


def read(folder: Path | None = None) -> dict | None:
    """What was measured on the model in `folder` (default: the default model), or None."""
    file = (folder or MODELS[DEFAULT]) / FILE
    return json.loads(file.read_text()) if file.exists() else None


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=None, help="folder; the default model's by default")
    parser.add_argument("--questions", type=int, default=100, help="questions a cell")
    parser.add_argument("--distances", type=int, nargs="+", default=list(DISTANCES), help="tokens between fact and question")
    parser.add_argument("--json", type=Path, help="where to write what was measured")
    options = parser.parse_args(arguments)
    model, tokenizer = evaluate.load(options.model or path())
    rows = measure(model, tokenizer, options.questions, options.distances, tell=lambda line: print(line, flush=True))
    measured = {"questions": options.questions, "rows": [asdict(row) for row in rows]}
    print(table(measured))
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    environment.restart("kvcache.bundled.separation")
    main()
