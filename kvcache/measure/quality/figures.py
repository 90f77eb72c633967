"""Quality over bytes as Plotly figures, and the page with them. Colours are CSS variables, see `measure.page`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from .. import page
from ..speed.figures import size_text, ticks
from .results import COLUMNS, Report, Row, answer_cells, answer_heads, cells, columns, kl_text

COLOURS = tuple(f"var(--kv-{name})" for name in (*(f"column-{n}" for n in range(6)), "text", "text-soft"))  # of caches' names, in the order of the rows
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down")  # of those of one name
LEAST = 1e-7  # nats: what rounding of the logits alone makes, and the lowest that a logarithmic axis shows
NOTES = (
    "Bytes used in the end, as they are held: codes, scales, residuals and positions. Reserved ones are in the CSV.",
    "Mean KL: how far the next token's distribution is from the full cache's, in nats a token, over the tokens that follow each passage, fed one by one. Same choice: how often both like one token best.",
    "Answers: greedy, each with Wilson's 95 % interval, of what the full cache gets right where it says 'of'. Where that is little, a cell says nothing about the caches.",
    "Aware: the question is part of the prompt that a cache reads. Agnostic: it comes when all else has been read, and a cache could not choose by it what to keep.",
)


def best(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points (bytes, loss) beside which no other has less of both, by bytes."""
    found: list[tuple[float, float]] = []
    for nbytes, loss in sorted(points):
        if not found or loss < found[-1][1]:
            found.append((nbytes, loss))
    return found


def drift_figure(rows: Sequence[Row]) -> dict:
    """Mean KL over bytes, both logarithmic, a point for each cache but the full one, which would be at no KL; a line through the best."""
    points = {row.cache: (row.nbytes, max(row.mean_kl, LEAST)) for row in rows[1:] if not math.isnan(row.mean_kl)}
    data = [_point(rows, row, *points[row.cache], f"KL {kl_text(row.mean_kl)}, {row.of_full:.1%} of the full cache's bytes") for row in rows if row.cache in points]
    marks = ticks([kl for _, kl in points.values()])
    axis = {"type": "log", "title": {"text": "mean KL from the full cache, nats", "standoff": 6}, "tickmode": "array", "tickvals": marks, "ticktext": [f"{mark:g}" for mark in marks]}
    return {"data": [_line(best(list(points.values()))), *data], "layout": _layout([nbytes for nbytes, _ in points.values()], axis)}


def answers_figure(rows: Sequence[Row], mode: str) -> dict:
    """The share of what the full cache answers in one mode, with its interval, over bytes."""
    shown = [row for row in rows if row.kept(mode).count]
    data = []
    for row in shown:
        kept = row.kept(mode)
        low, high = kept.interval
        bars = {"type": "data", "symmetric": False, "array": [high - kept.value], "arrayminus": [kept.value - low], "thickness": 1, "width": 3}
        data.append(_point(rows, row, row.answer_nbytes, kept.value, f"{kept.hits} of {kept.count}") | {"error_y": bars})
    front = [(nbytes, 1 - lost) for nbytes, lost in best([(row.answer_nbytes, 1 - row.kept(mode).value) for row in shown])]
    axis = {"title": {"text": f"of what the full cache answers, {mode}", "standoff": 6}, "tickformat": ".0%", "range": [-0.04, 1.04]}
    return {"data": [_line(front), *data], "layout": _layout([row.answer_nbytes for row in shown], axis)}


def figures(report: Report) -> list[tuple[str, dict]]:
    """(title, figure) of everything that was measured of two caches at least."""
    rows = report.rows()
    found = [("Drift over bytes", drift_figure(rows))] if any(not math.isnan(row.mean_kl) for row in rows[1:]) else []
    return found + [(f"Answers over bytes, {mode}", answers_figure(rows, mode)) for mode in report.modes if len(rows) > 1 and any(row.kept(mode).count for row in rows)]


def _point(rows: Sequence[Row], row: Row, x: float, y: float, words: str) -> dict:
    colour = colour_of(rows, row)
    return {
        "type": "scatter", "mode": "markers", "name": row.label, "x": [x], "y": [y], "marker": {"size": 10, "color": colour, "symbol": symbol_of(rows, row)}, "line": {"color": colour},
        "hovertemplate": f"{row.label}: {words}<extra></extra>",
    }  # fmt: skip


def _line(points: Sequence[tuple[float, float]]) -> dict:
    xs, ys = [list(axis) for axis in zip(*points)] or ([], [])
    return {"type": "scatter", "mode": "lines", "name": "best for its bytes", "x": xs, "y": ys, "line": {"color": "var(--kv-text-soft)", "width": 1.5, "dash": "dot"}, "hoverinfo": "skip"}


def _layout(sizes: Sequence[float], vertical: dict) -> dict:
    marks = ticks(sizes)
    across = {"type": "log", "title": {"text": "bytes of the cache", "standoff": 6}, "tickmode": "array", "tickvals": marks, "ticktext": list(map(size_text, marks))}
    return {"margin": {"l": 58, "r": 14, "t": 18, "b": 44}, "hovermode": "closest", "xaxis": across, "yaxis": vertical}


def _name(row: Row) -> str:
    return row.cache.partition(":")[0]


def colour_of(rows: Sequence[Row], row: Row) -> str:
    """One for all caches of a name."""
    return COLOURS[list(dict.fromkeys(map(_name, rows))).index(_name(row)) % len(COLOURS)]


def symbol_of(rows: Sequence[Row], row: Row) -> str:
    """Which tells it from the others of its name."""
    return SYMBOLS[[other.cache for other in rows if _name(other) == _name(row)].index(row.cache) % len(SYMBOLS)]


def html(report: Report) -> str:
    """The whole report as one HTML file. Raises ImportError without plotly."""
    rows, drawn = report.rows(), figures(report)
    charts = "".join(f"<div><h2>{escape(title)}</h2>{page.chart(f'chart-{n}', figure)}</div>" for n, (title, figure) in enumerate(drawn))
    sections = [f'<section><div class="charts">{charts}</div></section>']
    if report.drifted:
        sections.append(f"<section><h2>Drift</h2>{page.table(COLUMNS, [cells(row) for row in rows])}</section>")
    for mode in report.modes:
        places = [place for place in columns(report) if place[1] == mode]
        sections.append(f"<section><h2>Answers, {mode}</h2>{page.table(answer_heads(places), [answer_cells(row, places) for row in rows])}</section>")
    missing = "".join(f"<li>{escape(each.what)}: {escape(each.reason)}</li>" for each in report.left_out)
    sections.append(f"<section><h2>Not measured</h2><ul>{missing}</ul></section>" if missing else "")
    return page.whole("KV cache quality", "KV caches: quality over bytes", [report.where(), *NOTES], "".join(sections))
