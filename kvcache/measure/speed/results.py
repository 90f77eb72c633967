"""What came of a run: rows, what was left out and why, on which machine; ratios, the table in words, and JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers

from . import targets
from .contenders import REFERENCE
from .timing import Rare, Times

FORMAT = 1
Place = tuple[str, int, int]  # level, query heads, context


@dataclass(frozen=True)
class Row:
    """One contender at one place on so many threads. Seconds and bytes; `update` of one layer, `peak` beyond what was held before a step.

    `prefill`: storing the whole context at once in a fresh cache, which includes quantising it.
    """

    level: str
    query_heads: int
    context: int
    threads: int
    contender: str
    label: str
    side: str
    step: Times
    nbytes: int
    rare: Rare | None = None
    update: Times | None = None
    peak: int | None = None
    prefill: Times | None = None

    @property
    def seconds(self) -> float:
        """Of one token: a usual step, and its share of what comes rarely."""
        return self.step.median + (self.rare.a_token if self.rare else 0.0)

    @property
    def place(self) -> Place:
        return self.level, self.query_heads, self.context


@dataclass(frozen=True)
class LeftOut:
    """A contender that was not measured at a place, or not to the end, and why."""

    level: str
    query_heads: int
    context: int
    label: str
    reason: str

    @property
    def place(self) -> Place:
        return self.level, self.query_heads, self.context


@dataclass
class Report:
    """A whole run, or as much of it as there is."""

    machine: dict[str, Any] = field(default_factory=lambda: machine())
    settings: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def add(self, event: object) -> None:
        """Take in what a run yields; progress is not kept."""
        if isinstance(event, Row):
            self.rows.append(event)
        elif isinstance(event, LeftOut):
            self.left_out.append(event)

    def reference(self, row: Row) -> Row | None:
        """Upstream's DynamicCache in the same place on as many threads."""
        wanted = (row.place, row.threads, REFERENCE)
        return next((other for other in self.rows if (other.place, other.threads, other.contender) == wanted), None)

    def times_faster(self, row: Row) -> float | None:
        """How many tokens it makes while upstream's DynamicCache makes one."""
        reference = self.reference(row)
        return reference.seconds / row.seconds if reference else None

    def times_smaller(self, row: Row) -> float | None:
        reference = self.reference(row)
        return reference.nbytes / row.nbytes if reference and row.nbytes else None

    def find(self, **wanted: Any) -> list[Row]:
        """The rows with these values: `find(level="layer", threads=1)`."""
        return [row for row in self.rows if all(getattr(row, name) == value for name, value in wanted.items())]

    def groups(self) -> list[tuple[str, int, int]]:
        """(level, query heads, threads) of every table, in the order in which they were measured."""
        return list(dict.fromkeys((row.level, row.query_heads, row.threads) for row in self.rows))

    def to_json(self) -> str:
        """Everything measured, and the ratios and targets for those who read it without this module."""
        rows = [asdict(row) | {"times_faster": self.times_faster(row), "times_smaller": self.times_smaller(row)} for row in self.rows]
        left_out = [asdict(each) for each in self.left_out]
        return json.dumps({"format": FORMAT, "machine": self.machine, "settings": self.settings, "rows": rows, "left_out": left_out, "targets": targets.as_json(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The inverse of `to_json`. Raises ValueError on anything else."""
        try:
            found = json.loads(text)
            if found["format"] != FORMAT:
                raise ValueError(f"format {found['format']}, this version reads {FORMAT}")
            left_out = [LeftOut(**each) for each in found["left_out"]]
            return cls(found["machine"], found["settings"], [_row(each) for each in found["rows"]], left_out)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"this is not the JSON of a speed run: {type(error).__name__}: {error}") from error

    @classmethod
    def read(cls, path: str | os.PathLike) -> Report:
        return cls.from_json(Path(path).read_text(encoding="utf-8"))

    def where(self) -> str:
        """One sentence: on what it was measured, with what, when."""
        on = self.machine
        threads = sorted({row.threads for row in self.rows})
        counted = f"{' and '.join(map(str, threads))} thread{'s' if threads != [1] else ''}"
        ends = " A quick run: few rounds and short contexts, so trust the order more than the figures." if self.settings.get("quick") else ""
        ends += " It was stopped before its end." if self.settings.get("stopped") else ""
        device = self.settings.get("device")
        how = f"{self.settings.get('dtype')}, every step synchronised" if device else "fp32, batch 1"
        return (
            f"Measured {on['date']} on {device + ', ' if device else ''}{on['cpu']}, {on['cores']} cores, {counted}, torch {on['torch']}, transformers {on['transformers']}, {how}, "
            f"random keys and values; medians of {self.settings.get('rounds', 'several')} interleaved rounds.{ends}"
        )


def _row(found: dict[str, Any]) -> Row:
    found = {name: value for name, value in found.items() if name not in ("times_faster", "times_smaller")}
    times = {name: Times(**found[name]) if found.get(name) else None for name in ("step", "update", "prefill")}
    return Row(**{**found, **times, "rare": Rare(**found["rare"]) if found["rare"] else None})


def machine() -> dict[str, Any]:
    """What a figure depends on: processor, cores, versions, day."""
    return {
        "cpu": processor(), "cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version(),
        "torch": torch.__version__, "transformers": transformers.__version__, "date": date.today().isoformat(),
    }  # fmt: skip


def processor() -> str:
    """The processor's name, or its family where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


# -- in words ----------------------------------------------------------------------------------------------------------

LEVELS = {
    "layer": "one attention layer, 8 key/value heads of 128",
    "tiny": "tiny Llama: hidden 256, 4 layers",
    "135m": "geometry of a 135M model: hidden 576, 30 layers, 9/3 heads",
    "growth": "how cost grows, on the tiny Llama",
}
DEVICE_LEVELS = {
    "device": "one attention layer on the device, 8 key/value heads of 128",
    "device-8": "8 rows in one attention layer on the device, 8 key/value heads of 128",
    "device-model": "a Llama of 16 layers and 2,048 channels on the device, 32/8 heads of 64",
}
COLUMNS = ("cache", "tokens", "ms/token", "step, quartiles", "vs upstream", "update us", "rare ms / every", "prefill ms", "bytes", "vs upstream", "peak of a step")


def title(level: str, query_heads: int, threads: int | None = None) -> str:
    """What one table is about."""
    heads = f", {query_heads} query heads" if level in ("layer", "device", "device-8") else ""
    counted = "" if threads is None else f", {threads} thread{'s' * (threads != 1)}"
    return f"{(LEVELS | DEVICE_LEVELS).get(level, level)}{heads}{counted}"


def ratio_text(ratio: float | None) -> str:
    """ "4.9x", "0.57x"; a dash where there is nothing to divide by."""
    if ratio is None:
        return "-"
    return f"{ratio:.0f}x" if ratio >= 99.5 else f"{ratio:.1f}x" if ratio >= 9.95 else f"{ratio:.2f}x"


def ms_text(seconds: float) -> str:
    """Milliseconds to three figures."""
    ms = seconds * 1e3
    return f"{ms:,.0f}" if ms >= 99.5 else f"{ms:.1f}" if ms >= 9.95 else f"{ms:.2f}" if ms >= 0.0995 else f"{ms:.3f}"


def cells(report: Report, row: Row) -> tuple[str, ...]:
    """One row under COLUMNS."""
    return (
        row.label, f"{row.context:,}", ms_text(row.seconds), f"{ms_text(row.step.low)}-{ms_text(row.step.high)}", ratio_text(report.times_faster(row)),
        f"{row.update.median * 1e6:,.0f}" if row.update else "-", f"{ms_text(row.rare.seconds)} / {row.rare.every:,}" if row.rare else "-",
        ms_text(row.prefill.median) if row.prefill else "-", f"{row.nbytes:,}", ratio_text(report.times_smaller(row)), f"{row.peak:,}" if row.peak is not None else "-",
    )  # fmt: skip


def plain_table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Columns in line: the first to the left, the others to the right."""
    table = [tuple(heads), *lines]
    widths = [max(len(line[n]) for line in table) for n in range(len(heads))]
    aligned = ((text.ljust(width) if n == 0 else text.rjust(width) for n, (text, width) in enumerate(zip(line, widths))) for line in table)
    return "\n".join("  ".join(line).rstrip() for line in aligned)


def words(report: Report) -> str:
    """The whole report as plain text."""
    parts = [report.where()]
    for level, heads, threads in report.groups():
        rows = sorted(report.find(level=level, query_heads=heads, threads=threads), key=lambda row: row.context)
        parts.append(f"{title(level, heads, threads)}\n{plain_table(COLUMNS, [cells(report, row) for row in rows])}")
    outcomes = targets.outcomes(report)
    if outcomes:
        parts.append("\n".join(["targets", plain_table(targets.HEADS, [each.cells for each in outcomes])]))
    if report.left_out:
        parts.append("\n".join(["not measured:", *(f"  {each}" for each in left_out_words(report))]))
    return "\n\n".join(parts)


def left_out_words(report: Report) -> list[str]:
    """A sentence for each contender and reason, naming the places once."""
    places: dict[tuple[str, str], list[str]] = {}
    for each in report.left_out:
        places.setdefault((each.label, each.reason), []).append(f"{each.level} at {each.context:,}")
    return [f"{label} ({', '.join(dict.fromkeys(where))}): not measured because {reason}" for (label, reason), where in places.items()]
