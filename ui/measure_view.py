"""A speed report as HTML: progress, table, charts and files. Pure functions."""
from __future__ import annotations

import base64
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
    heads = "".join(f'<th scope="col">{head}</th>' for head in HEADS)
    rows = "".join(_row_html(report, row) for row in sorted(report.rows, key=lambda row: row.context))
    table = (f'<div class="kv-scroll" tabindex="0" role="region" aria-label="Measured"><table class="kv-figures"><thead><tr>{heads}</tr>'
             f"</thead><tbody>{rows}</tbody></table></div>") if rows else ""
    words = [f"{title(report.rows[0].level, report.rows[0].query_heads)}. Speed and size beside upstream Dynamic's. {report.where()}"] if rows else []
    lines = words + left_out_words(report)
    return table + "".join(f'<p class="kv-quiet">{escape(line[0].upper() + line[1:])}</p>' for line in lines)


def _row_html(report: Report, row: Row) -> str:
    figures_of = (f"{row.context:,}", ms_text(row.seconds), versus(report.times_faster(row), row, "faster", "slower"), human_bytes(row.nbytes),
                  versus(report.times_smaller(row), row, "smaller", "larger"), f"{row.update.median * 1e6:,.0f}" if row.update else "–")
    symbol = figures.SYMBOLS[figures.dash_of(row.contender)]
    name = f'<i class="kv-swatch kv-{symbol}" style="background: {figures.colour_of(row.contender)}"></i>{escape(row.label)}'
    return f'<tr><th scope="row">{name}</th>{"".join(f"<td>{escape(text)}</td>" for text in figures_of)}</tr>'


def versus(ratio: float | None, row: Row, more: str, less: str) -> str:
    """A ratio to upstream's DynamicCache in words: "4.9x smaller", "1.12x larger"; a dash beside itself."""
    if ratio is None or row.contender == REFERENCE:
        return "–"
    return f"{ratio_text(ratio)} {more}" if ratio >= 1 else f"{ratio_text(1 / ratio)} {less}"


def time_chart(rows: Sequence[Row]) -> str:
    fastest = min(rows, key=lambda row: (-row.context, row.seconds))
    sentence = f"At {fastest.context:,} tokens the fastest is {fastest.label} with {ms_text(fastest.seconds)} ms a token."
    return html_parts.chart_value(figures.ms_figure(rows), sentence)


def size_chart(rows: Sequence[Row]) -> str:
    smallest = min(rows, key=lambda row: (-row.context, row.nbytes))
    sentence = f"At {smallest.context:,} tokens the smallest is {smallest.label} with {human_bytes(smallest.nbytes)}."
    return html_parts.chart_value(figures.bytes_figure(rows), sentence)


def downloads_html(report: Report) -> str:
    """A link that carries its file with it: nothing is written on the server."""
    text = base64.b64encode(report.to_json().encode()).decode()
    return f'<a class="kv-download" download="speed.json" href="data:application/json;base64,{text}">JSON</a>'
