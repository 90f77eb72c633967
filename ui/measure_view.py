"""A speed report as HTML: progress, table, charts and files. Pure functions."""
from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from html import escape

from kvcache.measure.speed import figures
from kvcache.measure.speed.contenders import REFERENCE
from kvcache.measure.speed.results import Report, Row, left_out_words, ms_text, ratio_text, title
from kvcache.measure.speed.run import Progress

from . import html_parts
from .charts import human_bytes

HEADS = ("Cache", "Tokens", "ms a token", "Speed", "Bytes", "Size", "Update, µs")


def progress_html(progress: Progress) -> str:
    """How much of the run is done, as a bar, and what comes next."""
    return (f'<progress class="kv-progress" max="{progress.total}" value="{progress.done}" aria-label="Measuring"></progress>'
            f'<p class="kv-quiet">{escape(progress.words)} · {progress.done / progress.total:.0%}</p>')


def table_html(report: Report) -> str:
    """One row per cache and context, by context; what was left out, and where all this was measured."""
    rows = "".join(_row_html(report, row) for row in sorted(report.rows, key=lambda row: row.context))
    table = html_parts.figures_table("Measured", HEADS, rows) if rows else ""
    words = [f"{title(report.rows[0].level, report.rows[0].query_heads)}. Speed and size beside upstream Dynamic's; the small figures are the quartiles of the rounds, and where those of two overlap no speed is said. {report.where()}"] if rows else []
    lines = words + left_out_words(report)
    return table + "".join(f'<p class="kv-quiet">{escape(line[0].upper() + line[1:])}</p>' for line in lines)


def _row_html(report: Report, row: Row) -> str:
    speed = versus(report.times_faster(row), row, "faster", "slower") if told_apart(row, report.reference(row)) else "within the noise"
    figures_of = (f"{row.context:,}", spread_text(row), speed, human_bytes(row.nbytes),
                  versus(report.times_smaller(row), row, "smaller", "larger"), f"{row.update.median * 1e6:,.0f}" if row.update else "–")
    symbol = figures.SYMBOLS[figures.dash_of(row.contender)]
    name = f'<i class="kv-swatch kv-{symbol}" style="background: {figures.colour_of(row.contender)}"></i>{escape(row.label)}'
    return f'<tr><th scope="row">{name}</th>{"".join(f"<td>{text}</td>" for text in figures_of)}</tr>'


def versus(ratio: float | None, row: Row, more: str, less: str) -> str:
    """A ratio to upstream's DynamicCache in words: "4.9x smaller", "1.12x larger"; a dash beside itself."""
    if ratio is None or row.contender == REFERENCE:
        return "–"
    return f"{ratio_text(ratio)} {more}" if ratio >= 1 else f"{ratio_text(1 / ratio)} {less}"


def span(row: Row) -> tuple[float, float]:
    """The quartiles of a token's seconds over the rounds."""
    rare = row.rare.a_token if row.rare else 0.0
    return row.step.low + rare, row.step.high + rare


def spread_text(row: Row) -> str:
    """Median and quartiles: "3.20 (3.11 to 3.35)", as HTML."""
    low, high = span(row)
    return f"{ms_text(row.seconds)} <small>{ms_text(low)} to {ms_text(high)}</small>"


def told_apart(one: Row, other: Row | None) -> bool:
    """Do the quartiles of two rows leave each other's alone? Where they overlap, which is faster is not known."""
    if other is None or one is other:
        return True
    (low, high), (other_low, other_high) = span(one), span(other)
    return high < other_low or other_high < low


def time_chart(rows: Sequence[Row], finished: bool = True) -> str:
    """The chart; which is fastest is said of a finished run, and where the rounds tell it from the next."""
    fastest, *others = sorted(rows, key=lambda row: (-row.context, row.seconds))
    near = [row.label for row in others if row.context == fastest.context and not told_apart(row, fastest)]
    sentence = f"At {fastest.context:,} tokens the fastest is {fastest.label} with {ms_text(fastest.seconds)} ms a token"
    sentence += f", and {', '.join(near)} cannot be told from it." if near else "."
    return html_parts.chart_value(figures.ms_figure(rows), sentence if finished else UNFINISHED)


def size_chart(rows: Sequence[Row], finished: bool = True) -> str:
    smallest = min(rows, key=lambda row: (-row.context, row.nbytes))
    sentence = f"At {smallest.context:,} tokens the smallest is {smallest.label} with {human_bytes(smallest.nbytes)}."
    return html_parts.chart_value(figures.bytes_figure(rows), sentence if finished else UNFINISHED)


UNFINISHED = "Not all is measured yet."


def csv_text(report: Report) -> str:
    """One line per cache and context, figures unrounded: seconds of a token with quartiles, bytes, ratios to upstream's DynamicCache."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("level", "context", "threads", "contender", "label", "seconds", "low", "high", "rounds", "nbytes", "times_faster", "times_smaller"))
    for row in report.rows:
        writer.writerow((row.level, row.context, row.threads, row.contender, row.label, row.seconds, *span(row), row.step.count, row.nbytes,
                         report.times_faster(row), report.times_smaller(row)))
    return out.getvalue()


def downloads_html(report: Report) -> str:
    return html_parts.downloads(("CSV", "speed.csv", "text/csv", csv_text(report)), ("JSON", "speed.json", "application/json", report.to_json()))
