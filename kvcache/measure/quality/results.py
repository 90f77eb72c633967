"""What came of a run: what every cache expected and answered, summed up with intervals; the table in words, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..speed.results import machine, plain_table
from . import spec

FORMAT = 1
Z = 1.959964  # of 95 %


@dataclass(frozen=True)
class Drifted:
    """How one cache went on in one passage beside the full cache: KL in nats, the share of tokens with the same likeliest one, nats a token of the text, bytes used and reserved at the end."""

    cache: str
    passage: int
    tokens: int
    mean_kl: float
    max_kl: float
    same_choice: float
    nats: float
    nbytes: int
    reserved: int


@dataclass(frozen=True)
class Answered:
    """One question to one cache, the reply, whether it is right, and the bytes used at its end."""

    cache: str
    task: str
    mode: str
    length: int
    case: int
    question: int
    right: bool
    reply: str
    expected: tuple[str, ...]
    nbytes: int


@dataclass(frozen=True)
class LeftOut:
    """A cache, or a task, that was not measured or not to the end, and why."""

    what: str
    reason: str


@dataclass(frozen=True)
class Share:
    """`hits` of `count`, with the bounds of what it may be in the long run."""

    hits: int
    count: int

    @property
    def value(self) -> float:
        return self.hits / self.count if self.count else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.hits, self.count)


def wilson(hits: int, count: int, z: float = Z) -> tuple[float, float]:
    """Wilson's interval of a share (1927, https://doi.org/10.1080/01621459.1927.10502953), by default of 95 %; from 0 to 1 where nothing was counted.

    It takes questions for independent ones; those about the same context are not quite.
    """
    if not count:
        return 0.0, 1.0
    share, square = hits / count, z * z
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = z / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    return 0.0 if hits == 0 else middle - half, 1.0 if hits == count else middle + half  # which rounding would miss


@dataclass(frozen=True)
class Cell:
    """One cache's answers to one task, mode and length: all, the full cache's, and those that the full cache gets right, too."""

    task: str
    mode: str
    length: int
    right: Share
    full: Share
    kept: Share


@dataclass(frozen=True)
class Row:
    """All figures of one cache. KL with the lowest and highest passage's; `nbytes` at the end of a passage, `answer_nbytes` at the end of an answer."""

    cache: str
    label: str
    mean_kl: float
    kl_range: tuple[float, float]
    same_choice: float
    perplexity: float
    nbytes: float
    reserved: float
    of_full: float
    answer_nbytes: float
    cells: tuple[Cell, ...]

    def kept(self, mode: str) -> Share:
        """Of what the full cache answers in this mode, whatever the task and length."""
        cells = [cell.kept for cell in self.cells if cell.mode == mode]
        return Share(sum(cell.hits for cell in cells), sum(cell.count for cell in cells))


@dataclass
class Report:
    """A whole run, or as much of it as there is. The full cache is the first that it has met."""

    machine: dict[str, Any] = field(default_factory=lambda: machine())
    settings: dict[str, Any] = field(default_factory=dict)
    drifted: list[Drifted] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def add(self, event: object) -> None:
        """Take in what a run yields; progress is not kept."""
        for kind, kept in ((Drifted, self.drifted), (Answered, self.answered), (LeftOut, self.left_out)):
            if isinstance(event, kind) and event not in kept:
                kept.append(event)

    @property
    def caches(self) -> list[str]:
        """Every cache measured, the full one first."""
        return list(dict.fromkeys(each.cache for each in (*self.drifted, *self.answered)))

    @property
    def modes(self) -> list[str]:
        return list(dict.fromkeys(each.mode for each in self.answered))

    def rows(self) -> list[Row]:
        labels = [spec.parse(cache).label for cache in self.caches]
        return [self._row(cache, label if labels.count(label) == 1 else cache) for cache, label in zip(self.caches, labels)]

    def _row(self, cache: str, label: str) -> Row:
        mine = [each for each in self.drifted if each.cache == cache]
        full = {each.passage: each for each in self.drifted if each.cache == self.caches[0]}
        kls = [each.mean_kl for each in mine]
        replies = [each for each in self.answered if each.cache == cache]
        return Row(
            cache, label, _mean(kls), (min(kls, default=math.nan), max(kls, default=math.nan)), _mean(each.same_choice for each in mine),
            math.exp(_mean(each.nats for each in mine)), _mean(each.nbytes for each in mine), _mean(each.reserved for each in mine),
            _mean(each.nbytes / full[each.passage].nbytes for each in mine if each.passage in full), _mean(each.nbytes for each in replies), tuple(self._cells(replies)),
        )  # fmt: skip

    def _cells(self, replies: Sequence[Answered]) -> Iterable[Cell]:
        by_full = {_place(each): each.right for each in self.answered if each.cache == self.caches[0]}
        groups: dict[tuple[str, str, int], list[Answered]] = {}
        for each in replies:
            groups.setdefault((each.task, each.mode, each.length), []).append(each)
        for (task, mode, length), group in groups.items():
            asked = [(each.right, by_full[_place(each)]) for each in group if _place(each) in by_full]
            both = Share(sum(right and full for right, full in asked), sum(full for _, full in asked))
            yield Cell(task, mode, length, _share(right for right, _ in asked), _share(full for _, full in asked), both)

    # -- files

    def to_json(self) -> str:
        """Everything measured, and what it comes to for those who read it without this module. What is not known is null."""
        found = {"format": FORMAT, "machine": self.machine, "settings": self.settings, "rows": [as_dict(row) for row in self.rows()]}
        found |= {name: [asdict(each) for each in getattr(self, name)] for name in ("drifted", "answered", "left_out")}
        return json.dumps(_finite(found), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The inverse of `to_json`. Raises ValueError on anything else."""
        try:
            found = json.loads(text)
            if found["format"] != FORMAT:
                raise ValueError(f"format {found['format']}, this version reads {FORMAT}")
            answered = [Answered(**{**each, "expected": tuple(each["expected"])}) for each in found["answered"]]
            return cls(found["machine"], found["settings"], [Drifted(**each) for each in found["drifted"]], answered, [LeftOut(**each) for each in found["left_out"]])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"this is not the JSON of a quality run: {type(error).__name__}: {error}") from error

    def to_csv(self) -> str:
        """One line a cache, and one column a figure: of every task, mode and length the share, its interval's bounds, and the full cache's share."""
        lines = [flat(row) for row in self.rows()]
        out = io.StringIO()
        writer = csv.DictWriter(out, list(dict.fromkeys(name for line in lines for name in line)), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: "" if isinstance(value, float) and math.isnan(value) else value for name, value in line.items()} for line in lines)
        return out.getvalue()

    def summary(self) -> dict[str, Any]:
        """The main figures, small enough for one line."""
        rows = {row.cache: self._main(row) for row in self.rows()}
        return _finite({"model": self.settings.get("model"), "tokens": self.settings.get("tokens"), "seed": self.settings.get("seed"), "full": next(iter(rows), None), "caches": rows})

    def _main(self, row: Row) -> dict[str, Any]:
        figures = {"kl": row.mean_kl, "same_choice": row.same_choice, "perplexity": row.perplexity, "nbytes": row.nbytes, "of_full": row.of_full}
        found = {name: round(value) if name == "nbytes" else float(f"{value:.4g}") for name, value in figures.items() if not math.isnan(value)}
        return found | {mode: [row.kept(mode).hits, row.kept(mode).count] for mode in self.modes}

    def where(self) -> str:
        """One sentence: what was measured on what, with what, when."""
        on, to = self.machine, self.settings
        ends = " It was stopped before its end." if to.get("stopped") else ""
        return (
            f"{to.get('model')} in {to.get('dtype')}, {on['date']}, {on['cpu']}, torch {on['torch']}, transformers {on['transformers']}. Passages: {to.get('passages')} of {to.get('tokens'):,} tokens, and "
            f"{to.get('forced'):,} that follow one by one, of {to.get('text')}. Cases of a task: {to.get('cases')}; seed {to.get('seed')}; prompts fed {'at once' if not to.get('chunk') else str(to['chunk']) + ' tokens at a time'}.{ends}"
        )


def _place(each: Answered) -> tuple:
    return each.task, each.mode, each.length, each.case, each.question


def _share(hits: Iterable[bool]) -> Share:
    found = list(hits)
    return Share(sum(found), len(found))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.fmean(found) if found else math.nan


def _finite(found: Any) -> Any:
    """The same with None for every number that JSON has no word for."""
    if isinstance(found, dict):
        return {name: _finite(value) for name, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [_finite(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def as_dict(row: Row) -> dict[str, Any]:
    """A row with its shares' bounds."""
    cells = [{"task": cell.task, "mode": cell.mode, "length": cell.length, **_spread("", cell.right), **_spread("full_", cell.full), **_spread("kept_", cell.kept)} for cell in row.cells]
    return {**asdict(row), "cells": cells}


def _spread(prefix: str, share: Share) -> dict[str, float]:
    low, high = share.interval
    return {f"{prefix}right": share.hits, f"{prefix}asked": share.count, f"{prefix}low": low, f"{prefix}high": high}


def flat(row: Row) -> dict[str, Any]:
    """A row as columns."""
    low, high = row.kl_range
    found: dict[str, Any] = {
        "cache": row.cache, "label": row.label, "nbytes": row.nbytes, "reserved": row.reserved, "of_full": row.of_full, "mean_kl": row.mean_kl, "kl_low": low, "kl_high": high,
        "same_choice": row.same_choice, "perplexity": row.perplexity,
    }  # fmt: skip
    for cell in row.cells:
        name = f"{cell.task} {cell.mode} {cell.length}"
        low, high = cell.right.interval
        found |= {name: cell.right.value, f"{name} low": low, f"{name} high": high, f"{name} full": cell.full.value, f"{name} asked": cell.right.count}
    return found


# -- in words ----------------------------------------------------------------------------------------------------------

COLUMNS = ("cache", "bytes", "of full", "mean KL", "of passages", "same choice", "perplexity")


def cells(row: Row) -> tuple[str, ...]:
    """A row under COLUMNS."""
    low, high = map(kl_text, row.kl_range)
    return row.label, f"{row.nbytes:,.0f}", f"{row.of_full:.1%}", kl_text(row.mean_kl), low if low == high else f"{low} to {high}", f"{row.same_choice:.1%}", f"{row.perplexity:.2f}"


def kl_text(kl: float) -> str:
    """Nats to two figures: 0.0017, 0.12, 3e-05."""
    return "0" if kl < 5e-7 else f"{kl:.2g}" if kl < 1e-4 else f"{kl:.{max(2, 1 - math.floor(math.log10(kl)))}f}"


def columns(report: Report) -> list[tuple[str, str, int]]:
    """(task, mode, length) of every cell there is."""
    return list(dict.fromkeys((each.task, each.mode, each.length) for each in report.answered))


def share_text(share: Share, full: Share | None = None) -> str:
    """ "83% (61-94) of 96%": the share, its interval and, where it is another's, the full cache's."""
    low, high = share.interval
    mine = f"{share.value:.0%} ({low * 100:.0f}-{high * 100:.0f})" if share.count else "-"
    return mine if full is None else f"{mine} of {full.value:.0%}"


def answer_cells(row: Row, places: Sequence[tuple[str, str, int]]) -> tuple[str, ...]:
    """A row of the table of answers: every cell's share, interval and the full cache's share."""
    found = {(cell.task, cell.mode, cell.length): cell for cell in row.cells}
    return row.label, *(share_text(found[place].right, found[place].full) if place in found else "-" for place in places)


def answer_heads(places: Sequence[tuple[str, str, int]]) -> list[str]:
    return ["cache", *(f"{task} {mode} {length:,}" for task, mode, length in places)]


def words(report: Report) -> str:
    """The whole report as plain text."""
    parts, rows = [report.where()], report.rows()
    if report.drifted:
        parts.append(plain_table(COLUMNS, map(cells, rows)))
    for mode in report.modes:
        places = [place for place in columns(report) if place[1] == mode]
        parts.append(plain_table(answer_heads(places), [answer_cells(row, places) for row in rows]))
    if report.left_out:
        parts.append("\n".join(["not measured:", *(f"  {each.what}: {each.reason}" for each in report.left_out)]))
    return "\n\n".join(parts)
