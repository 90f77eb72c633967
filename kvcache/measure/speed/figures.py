"""A report as Plotly figures and as one page that needs nothing else.

A figure is a plain dict {"data": [...], "layout": {...}} whose colours are CSS variables, as in the playground, which
resolves them when it draws; `page` puts its own colours in their place.
"""

import math
from collections.abc import Callable, Sequence
from html import escape

from .. import page
from . import targets
from .results import COLUMNS, Report, Row, cells, left_out_words, title

COLOURS = {
    "upstream": "var(--kv-text-soft)", "alone": "var(--kv-text)", "dynamic": "var(--kv-column-0)", "static": "var(--kv-column-0)",
    "native": "var(--kv-column-1)", "fused": "var(--kv-column-2)", "hqq": "var(--kv-column-3)", "quanto": "var(--kv-column-4)",
    "window": "var(--kv-column-5)", "sink": "var(--kv-column-5)", "offloaded": "var(--kv-column-5)",
    "upstream-offloaded": "var(--kv-text)", "upstream-offloaded-static": "var(--kv-text)",
}  # fmt: skip
DASHES = {
    "upstream-fp8": "dot", "upstream-quanto-4": "dash", "upstream-hqq-4": "dashdot", "static": "dash", "static-compiled": "dashdot", "dynamic-compiled": "dot", "fused-4-compiled": "dashdot", "native-8": "dot", "native-2": "dash",
    "fused-8": "dot", "fused-2": "dash", "sink": "dash", "alone": "dot",
    "upstream-static": "longdash", "upstream-offloaded": "longdash", "upstream-offloaded-static": "longdashdot", "offloaded": "longdash", "offloaded-static": "longdashdot",
}  # fmt: skip
SYMBOLS = {"solid": "circle", "dash": "square", "dot": "diamond", "dashdot": "triangle-up", "longdash": "cross", "longdashdot": "x"}  # as dashes tell lines of one colour apart, so these their points


def ms_figure(rows: Sequence[Row]) -> dict:
    """Milliseconds of one token against tokens of context, both axes logarithmic, one line per contender."""
    return _figure(rows, lambda row: round(row.seconds * 1e3, 4), "ms a token", lambda ms: f"{ms:g}", "%{y:.3~g} ms")


def bytes_figure(rows: Sequence[Row]) -> dict:
    """Bytes of the cache against tokens of context, both axes logarithmic, one line per contender."""
    return _figure(rows, lambda row: row.nbytes, "bytes of the cache", size_text, "%{y:.3~s}B")


def _figure(rows: Sequence[Row], value: Callable[[Row], float], name: str, words: Callable[[float], str], hover: str) -> dict:
    contexts = sorted({row.context for row in rows})
    marks = ticks([value(row) for row in rows])
    data = [_line([row for row in rows if row.contender == contender], value, hover) for contender in dict.fromkeys(row.contender for row in rows)]
    for place, trace in enumerate(data):  # of lines that coincide each is seen: the later, the thinner
        trace["line"]["width"] = round(6 - 4 * place / max(1, len(data) - 1), 1)
    layout = {
        "margin": {"l": 58, "r": 14, "t": 18, "b": 44}, "hovermode": "closest",
        "xaxis": {"type": "log", "title": {"text": "tokens of context", "standoff": 6}, "tickmode": "array", "tickvals": contexts,
                  "ticktext": [short(context) for context in contexts]},
        "yaxis": {"type": "log", "title": {"text": name, "standoff": 6}, "tickmode": "array", "tickvals": marks, "ticktext": list(map(words, marks))},
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _line(rows: Sequence[Row], value: Callable[[Row], float], hover: str) -> dict:
    rows = sorted(rows, key=lambda row: row.context)
    first = rows[0]
    dash = dash_of(first.contender)
    return {
        "type": "scatter", "mode": "lines+markers", "name": first.label, "x": [row.context for row in rows], "y": [value(row) for row in rows],
        "line": {"color": colour_of(first.contender), "width": 2, "dash": dash}, "marker": {"size": 7 if dash == "solid" else 9, "symbol": SYMBOLS[dash]},
        "hovertemplate": f"{first.label}, %{{x:,}} tokens: {hover}<extra></extra>",
    }  # fmt: skip


def colour_of(contender: str) -> str:
    """One for all of a family, but for those that have one of their own."""
    return COLOURS.get(contender) or COLOURS.get(contender.split("-")[0], "var(--kv-text)")


def dash_of(contender: str) -> str:
    """How its line is drawn, which tells it from the others of its colour."""
    return DASHES.get(contender, "solid")


def ticks(values: Sequence[float]) -> list[float]:
    """Round numbers around these values for a logarithmic axis: 1, 2, 5, 10, or powers of ten alone where they span many."""
    values = [value for value in values if value > 0] or [1.0]
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    marks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [mark for mark in marks if min(values) / 2.5 <= mark <= max(values) * 2.5]


def size_text(nbytes: float) -> str:
    """A size on an axis: 200 kB, 5 MB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:g} {unit}"
    return f"{nbytes:g} B"


def short(tokens: int) -> str:
    """Tokens as an axis shows them: 512, 1k, 16k."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else f"{tokens:,}"


# -- a page of its own -------------------------------------------------------------------------------------------------

NOTES = (
    "ms/token: the median step of interleaved rounds plus the share of work that comes once in many tokens (a flush, a growing buffer's copy).",
    "vs upstream: how many tokens are made, and how many bytes held, beside transformers' DynamicCache in the same place of the same run.",
    "prefill ms: storing the whole context at once in a fresh cache, quantising included, on the most threads of the run.",
    "update us: the cache's update alone. peak of a step: the most bytes that torch held beyond those before it; what numba or numpy allocate is not counted.",
)


def html(report: Report) -> str:
    """The whole report as one HTML file with plotly.js inside: no network, no other file. Raises ImportError without plotly."""
    sections = "".join(_section(report, n, *group) for n, group in enumerate(report.groups()))
    left_out = "".join(f"<li>{escape(each)}</li>" for each in left_out_words(report))
    missing = f"<section><h2>Not measured</h2><ul>{left_out}</ul></section>" if left_out else ""
    return page.whole("KV cache speed", "KV caches: time and bytes of a token", [report.where(), *NOTES], _targets(report) + sections + missing)


def _targets(report: Report) -> str:
    outcomes = targets.outcomes(report)
    return f"<section><h2>Targets</h2>{page.table(targets.HEADS, [each.cells for each in outcomes])}</section>" if outcomes else ""


def _section(report: Report, number: int, level: str, heads: int, threads: int) -> str:
    rows = report.find(level=level, query_heads=heads, threads=threads)
    drawn = (ms_figure(rows), bytes_figure(rows)) if len({row.context for row in rows}) > 1 else ()  # a line needs two points
    charts = "".join(page.chart(f"chart-{number}-{n}", figure) for n, figure in enumerate(drawn))
    table = page.table(COLUMNS, [cells(report, row) for row in sorted(rows, key=lambda row: row.context)])
    return f'<section><h2>{escape(title(level, heads, threads))}</h2><div class="charts">{charts}</div>{table}</section>'
