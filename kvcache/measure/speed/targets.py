"""What was aimed at, and whether a run got there: ratios and limits, each read off a report's rows.

A target is a limit on one figure; the figure is taken on every number of threads that was measured, in its worst place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from .contenders import REFERENCE

if TYPE_CHECKING:
    from .results import Report, Row

Figure = Callable[["Row", "Row | None"], "float | None"]  # of a contender and of whom it is put beside
HEADS = ("target", "aim", "measured", "")


@dataclass(frozen=True)
class Target:
    """A figure of `contender` beside `other` in the same place: `at_most`, or at least, `limit`, in `unit`.

    Places that count: this level, and these query heads and this context where they are said.
    """

    words: str
    contender: str
    figure: Figure
    limit: float
    unit: str
    other: str | None = REFERENCE
    level: str = "layer"
    query_heads: int | None = None
    context: int | None = None
    at_most: bool = False

    @property
    def aim(self) -> str:
        return f"{'at most' if self.at_most else 'at least'} {self.limit:g}{self.unit}"

    def figures(self, report: Report) -> dict[int, float]:
        """By number of threads, the worst of the places that count; empty where nothing was measured."""
        found: dict[int, list[float]] = {}
        for row, other in self._pairs(report):
            value = self.figure(row, other)
            if value is not None:
                found.setdefault(row.threads, []).append(value)
        return {threads: (max if self.at_most else min)(values) for threads, values in sorted(found.items())}

    def _pairs(self, report: Report) -> Iterator[tuple[Row, Row | None]]:
        for row in report.find(level=self.level, contender=self.contender):
            counts = self.query_heads in (None, row.query_heads) and self.context in (None, row.context)
            others = report.find(level=row.level, query_heads=row.query_heads, context=row.context, threads=row.threads, contender=self.other)
            if counts and (others or self.other is None):
                yield row, others[0] if others else None

    def outcome(self, report: Report) -> Outcome:
        found = self.figures(report)
        met = all(value <= self.limit if self.at_most else value >= self.limit for value in found.values()) if found else None
        return Outcome(self.words, self.aim, self.unit, found, met)


@dataclass(frozen=True)
class Outcome:
    """What became of a target: its figure on each number of threads, and whether all of them are within the limit; None: not measured."""

    words: str
    aim: str
    unit: str
    figures: dict[int, float]
    met: bool | None

    @property
    def measured(self) -> str:
        parts = [f"{number(value)}{self.unit} on {threads} thread{'s' * (threads != 1)}" for threads, value in self.figures.items()]
        return ", ".join(parts) or "not measured"

    @property
    def verdict(self) -> str:
        return {True: "met", False: "missed", None: "-"}[self.met]

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Under HEADS."""
        return self.words, self.aim, self.measured, self.verdict


def number(value: float) -> str:
    """Three figures."""
    return f"{value:,.0f}" if abs(value) >= 99.5 else f"{value:.3g}"


def faster(row: Row, other: Row) -> float:
    return other.seconds / row.seconds


def share(row: Row, other: Row) -> float:
    return row.seconds / other.seconds


def smaller(row: Row, other: Row) -> float:
    return other.nbytes / row.nbytes


def prefill_faster(row: Row, other: Row) -> float | None:
    return other.prefill.median / row.prefill.median if row.prefill and other.prefill else None


def flush_faster(row: Row, other: Row) -> float | None:
    """Of one whole flush; None where ours was too short to be told from a usual step."""
    return other.rare.seconds / row.rare.seconds if row.rare and other.rare and row.rare.seconds else None


def flush_ms(row: Row, other: Row | None) -> float | None:
    return row.rare.seconds * 1e3 if row.rare else None


def update_us(row: Row, other: Row | None) -> float | None:
    return row.update.median * 1e6 if row.update else None


def peak_bytes(row: Row, other: Row | None) -> float | None:
    """Beyond what is held before the step, of which the codes are a part."""
    return row.peak


def peak_beyond(row: Row, other: Row) -> float | None:
    """Bytes that a step needs at its peak beyond those of attention alone: what the update does. 0 where attention itself then needs fewer."""
    return None if row.peak is None or other.peak is None else max(0, row.peak - other.peak)


def peak_share(row: Row, other: Row) -> float | None:
    return row.peak / other.peak if row.peak is not None and other.peak else None


TARGETS = (
    Target("Dynamic: one update of a layer, at any context", "dynamic", update_us, 20, " us", other=None, at_most=True),
    Target("Dynamic: bytes that an update needs at its peak", "dynamic", peak_beyond, 0, " bytes", other="alone", at_most=True),
    Target("Dynamic, tiny Llama at 8k: its step in upstream Dynamic's", "dynamic", share, 0.6, "x", level="tiny", context=8192, at_most=True),
    Target("Dynamic, 135M geometry at 4k: its step in upstream Dynamic's", "dynamic", share, 0.7, "x", level="135m", context=4096, at_most=True),
    Target("Native 4-bit: one flush of a layer, at any context", "native-4", flush_ms, 5, " ms", other=None, at_most=True),
    Target("Native 4-bit at 16k: one flush, faster than upstream HQQ's", "native-4", flush_faster, 1, "x", other="upstream-hqq-4", query_heads=8, context=16384),
    Target("Native 4-bit: storing a 4k prompt, faster than upstream HQQ", "native-4", prefill_faster, 50, "x", other="upstream-hqq-4", query_heads=8, context=4096),
    Target("Native 4-bit: storing a 16k prompt, faster than upstream HQQ", "native-4", prefill_faster, 50, "x", other="upstream-hqq-4", query_heads=8, context=16384),
    Target("Native 4-bit: storing a 4k prompt, faster than upstream Quanto", "native-4", prefill_faster, 1, "x", other="upstream-quanto-4", query_heads=8, context=4096),
    Target("4-bit fused at 16k: its step in SDPA's alone", "fused-4", share, 0.5, "x", other="alone", query_heads=8, context=16384, at_most=True),
    Target("4-bit fused at 16k: faster than upstream Dynamic", "fused-4", faster, 8, "x", query_heads=8, context=16384),
    Target("4-bit fused at 16k: faster than upstream Quanto 4-bit", "fused-4", faster, 30, "x", other="upstream-quanto-4", query_heads=8, context=16384),
    Target("4-bit fused at 16k: faster than upstream HQQ 4-bit", "fused-4", faster, 70, "x", other="upstream-hqq-4", query_heads=8, context=16384),
    Target("4-bit fused, 135M geometry from 1k on: faster than upstream Dynamic", "fused-4", faster, 1, "x", level="135m"),
    Target("4-bit fused, tiny Llama from 1k on: faster than upstream Dynamic", "fused-4", faster, 1, "x", level="growth"),
    Target("4-bit fused at 16k: smaller than upstream Dynamic", "fused-4", smaller, 6, "x", query_heads=8, context=16384),
    Target("Without numba: Native 4-bit, decoded, faster than upstream Quanto", "native-4", faster, 1, "x", other="upstream-quanto-4"),
    Target("HQQ 4-bit at 4k through our storage: faster than upstream HQQ", "hqq-4", faster, 20, "x", other="upstream-hqq-4", context=4096),
    Target("Dynamic: peak bytes of a step, beside upstream Dynamic's", "dynamic", peak_share, 1, "x", at_most=True),
    Target("4-bit fused: peak bytes of a step, beside upstream Dynamic's", "fused-4", peak_share, 1, "x", at_most=True),
    Target("Without numba: peak bytes of a step, beside upstream Dynamic's", "native-4", peak_share, 1, "x", at_most=True),
    Target("Static, compiled: faster than Static, eager", "static-compiled", faster, 1, "x", other="static", level="tiny"),
    Target("Dynamic, compiled, 135M geometry from 1k on: faster than upstream Dynamic", "dynamic-compiled", faster, 1.5, "x", level="135m"),
    Target("4-bit fused, compiled, 135M geometry from 1k on: faster than upstream Dynamic", "fused-4-compiled", faster, 1.5, "x", level="135m"),
    Target("On a device, 4-bit fused at 32k: faster than upstream Dynamic", "fused-4", faster, 1.5, "x", level="device", context=32768),
    Target("On a device, 4-bit fused at 4k: no slower than upstream Dynamic", "fused-4", faster, 1, "x", level="device", context=4096),
    Target("On a device, 4-bit fused at 32k: smaller than upstream Dynamic", "fused-4", smaller, 3.5, "x", level="device", context=32768),
    Target("On a device, 4-bit fused: bytes that a step needs at its peak", "fused-4", peak_bytes, 4e6, " bytes", other=None, level="device", at_most=True),
    Target("On a device, Dynamic: no slower than upstream's", "dynamic", faster, 1, "x", level="device-model"),
    Target("On a device, Static: no slower than upstream's", "static", faster, 1, "x", other="upstream-static", level="device-model"),
    Target("On a device, Offloaded: no slower than upstream's", "offloaded", faster, 1, "x", other="upstream-offloaded", level="device-model"),
    Target("On a device, Offloaded static: no slower than upstream's", "offloaded-static", faster, 1, "x", other="upstream-offloaded-static", level="device-model"),
)  # fmt: skip


def outcomes(report: Report) -> list[Outcome]:
    """Of every target for a CPU, or for a device, those that this run says nothing of included; none at all where it says nothing of any."""
    found = [target.outcome(report) for target in TARGETS if target.level.startswith("device") == bool(report.settings.get("device"))]
    return found if any(each.figures for each in found) else []


def as_json(report: Report) -> list[dict]:
    return [asdict(each) | {"measured": each.measured} for each in outcomes(report)]
