"""The comparison as HTML: threads with the diverging text marked, the table, the likeliest tokens where two caches part."""
from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Sequence
from html import escape
from typing import Any

from kvcache.memory import heard_by

from . import charts, html_parts
from .charts import human_bytes
from .compare import Column, Comparison, Turn
from .view import dynamic_nbytes

HEADS = (("cache", "Cache"), ("used_nbytes", "In use"), ("reserved_nbytes", "Reserved"), ("times_smaller_than_dynamic", "vs Dynamic"),
         ("time_to_first_token", "First token"), ("decode_tokens_per_second", "Tokens/s"), ("agreement", "Agrees"), ("diverges_at", "Diverges at"), ("mean_kl", "Mean KL"))


# -- threads -----------------------------------------------------------------------------------------------------

def thread_html(comparison: Comparison, column: Column) -> str:
    """One column's conversation; from the first token that differs from the first column's, a reply is marked."""
    parted = comparison.divergence(column)
    turns = "".join(_turn_html(turn, _mark_from(n, parted, turn, comparison)) for n, turn in enumerate(column.turns))
    return f'<div class="kv-thread"><p class="kv-quiet">Answered by <b>{escape(column.label)}</b></p>{turns}</div>'


def _mark_from(n: int, parted: tuple[int, int] | None, turn: Turn, comparison: Comparison) -> int | None:
    """From which token on a turn is marked: where it first parts; a later turn from its own first difference."""
    if parted is None or n < parted[0]:
        return None
    if n == parted[0]:
        return parted[1]
    first = comparison.columns[0].turns[n].ids
    return next((at for at, (a, b) in enumerate(zip(turn.ids, first)) if a != b), None)


def _turn_html(turn: Turn, mark_from: int | None) -> str:
    if mark_from is None:
        reply = escape(turn.text)
    else:
        pieces = [piece for _, piece in turn.tokens]
        reply = escape("".join(pieces[:mark_from]))
        differing = escape("".join(pieces[mark_from:]))
        reply += f'<mark title="differs from the first cache from here on">{differing}</mark>' if differing else _ended(turn)
    waiting = "" if turn.tokens or turn.stats else f'<span class="kv-quiet">{escape(turn.waiting_for)}</span>'
    line = html_parts.stats_line(turn.stats) if turn.stats else '<span class="kv-stats">&nbsp;</span>'
    return (f'<p class="kv-bubble kv-user"><span class="kv-hidden">You: </span>{escape(turn.user)}</p>'
            f'<p class="kv-bubble"><span class="kv-hidden">Reply: </span>{reply.strip()}{waiting}</p>{line}{_check_html(turn)}')


def _ended(turn: Turn) -> str:
    return '<mark title="the first cache goes on from here">(ends here)</mark>' if turn.stats else ""


def _check_html(turn: Turn) -> str:
    if turn.remembered is None:
        return ""
    if turn.remembered:
        return f'<p class="kv-check kv-right">✓ says {escape(turn.expects)}</p>'
    return f'<p class="kv-check kv-wrong">✗ does not say {escape(turn.expects)}</p>'


# -- table -------------------------------------------------------------------------------------------------------

def table_html(comparison: Comparison) -> str:
    """The figures side by side, one row per cache."""
    heads = "".join(f'<th scope="col">{head}</th>' for _, head in HEADS)
    rows = "".join(_row_html(n, row) for n, row in enumerate(comparison.rows()))
    count = len(comparison.users)
    words = (f"{comparison.loaded.title}, {count} message{'s' * (count != 1)}; times and rates are of the last reply; vs Dynamic: how many times fewer bytes "
             "are in use than a DynamicCache holds")
    return (f'<div class="kv-scroll" tabindex="0" role="region" aria-label="Comparison"><table class="kv-figures"><thead><tr>{heads}</tr>'
            f'</thead><tbody>{rows}</tbody></table></div><p class="kv-quiet">{escape(words)}.</p>')


def _row_html(n: int, row: dict[str, Any]) -> str:
    cells = "".join(f"<td>{escape(cell_text(name, row[name]))}</td>" for name, _ in HEADS[1:])
    return f'<tr><th scope="row"><i class="kv-swatch kv-swatch-{n}"></i>{escape(row["cache"])}</th>{cells}</tr>'


def cell_text(name: str, value: Any) -> str:
    """One figure as the table shows it; a dash where there is none."""
    if value is None:
        return "–"
    if name in ("used_nbytes", "reserved_nbytes"):
        return human_bytes(value)
    if name == "times_smaller_than_dynamic":
        return f"{value:.1f}x"
    if name == "time_to_first_token":
        return html_parts.seconds_text(value)
    if name == "decode_tokens_per_second":
        return html_parts.rate_text(value)
    if name == "agreement":
        return f"{value:.0%}"
    if name == "diverges_at":
        return f"turn {value['turn']}, token {value['token']}"
    return "0" if value < 5e-5 else f"{value:.2g}"


# -- the first diverging token -----------------------------------------------------------------------------------

def divergence_html(parting: dict[str, Any] | None) -> str:
    """The likeliest next tokens of both caches where they first part. parting: see `drift.measure`."""
    if parting is None:
        return '<p class="kv-quiet">No reply differs from the first cache\'s.</p>'
    where = f"{parting['label']}, turn {parting['turn']}, token {parting['token']}"
    if not parting["first"]:
        one_ended = len(parting["goes_on"]) == 1
        words = f"only {parting['goes_on'][0]} goes on there" if one_ended else "they differ, but its cache has no room for the first one's text, so what it expects there was not measured"
        return f'<p class="kv-quiet">{escape(where)}: {escape(words)}.</p>'
    sides = "".join(_side_html(label, tokens, n) for label, tokens, n in (
        (parting["first_label"], parting["first"], 0), (parting["label"], parting["other"], parting["column"])))
    return f'<p class="kv-quiet">{escape(where)}: after the same text, the likeliest next tokens are</p><div class="kv-sides">{sides}</div>'


def _side_html(label: str, tokens: Sequence[tuple[str, float]], n: int) -> str:
    bars = "".join(
        f'<li><span class="kv-token">{escape(token)}</span><span class="kv-bar"><i class="kv-swatch-{n}" style="width:{share:.1%}"></i></span>'
        f"<b>{share:.2f}</b></li>" for token, share in tokens)
    return f'<div><h3>{escape(label)}</h3><ol class="kv-bars">{bars}</ol></div>'


# -- chart and files ---------------------------------------------------------------------------------------------

def chart_value(comparison: Comparison) -> str:
    figure = charts.compare_figure([(column.label, column.history) for column in comparison.columns], dynamic_nbytes(comparison.loaded, heard_by(comparison.columns[0].conversation.cache)))
    sizes = ", ".join(f"{column.label} {human_bytes(charts.used_nbytes(column.snapshot))}" for column in comparison.columns if column.snapshot)
    return html_parts.chart_value(figure, f"Bytes in use at the end: {sizes}.")


def csv_text(comparison: Comparison) -> str:
    """The table as CSV, one line per cache, figures unrounded."""
    rows = [row | {"parameters": json.dumps(row["parameters"]), "diverges_at": cell_text("diverges_at", row["diverges_at"])
                   if row["diverges_at"] else ""} for row in comparison.rows()]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def downloads_html(comparison: Comparison) -> str:
    """Links that carry their files with them: nothing is written on the server."""
    files = (("CSV", "comparison.csv", "text/csv", csv_text(comparison)),
             ("JSON", "comparison.json", "application/json", json.dumps(comparison.record(), indent=1)))
    return "".join(f'<a class="kv-download" download="{name}" href="data:{kind};base64,{base64.b64encode(text.encode()).decode()}">{title}</a>'
                   for title, name, kind, text in files)
