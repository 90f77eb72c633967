"""The comparison as HTML: threads with the diverging text marked, the table, the likeliest tokens where two caches part."""
from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from html import escape
from typing import Any

from kvcache.memory import heard_by

from . import charts, html_parts
from .charts import human_bytes
from .compare import REFUSED, Column, Comparison, Turn
from .view import dynamic_nbytes

HEADS = (("cache", "Cache"), ("nbytes", "Bytes"), ("times_smaller_than_dynamic", "vs Dynamic"), ("remembered", "Says"), ("agreement", "Agrees"), ("mean_kl", "Mean KL"),
         ("diverges_at", "Diverges at"), ("time_to_first_token", "First token"), ("decode_tokens_per_second", "Tokens/s"))


# -- threads -----------------------------------------------------------------------------------------------------

def thread_html(comparison: Comparison, column: Column) -> str:
    """One column's conversation; from the first token that differs from the first column's, a reply is marked."""
    parted = comparison.divergence(column)
    turns = "".join(_turn_html(turn, _mark_from(n, parted, turn, comparison), column.out) for n, turn in enumerate(column.turns))
    return f'<div class="kv-thread"><p class="kv-quiet">Answered by <b>{escape(column.label)}</b></p>{turns}</div>'


def _mark_from(n: int, parted: tuple[int, int] | None, turn: Turn, comparison: Comparison) -> int | None:
    """From which token on a turn is marked: where it first parts; a later turn from its own first difference."""
    if parted is None or n < parted[0]:
        return None
    if n == parted[0]:
        return parted[1]
    first = comparison.columns[0].turns[n].ids
    return next((at for at, (a, b) in enumerate(zip(turn.ids, first)) if a != b), None)


def _turn_html(turn: Turn, mark_from: int | None, refusal: str = "") -> str:
    if mark_from is None:
        reply = escape(turn.text)
    else:
        pieces = [piece for _, piece in turn.tokens]
        reply = escape("".join(pieces[:mark_from]))
        differing = escape("".join(pieces[mark_from:]))
        reply += f'<mark title="differs from the first cache from here on">{differing}</mark>' if differing else _ended(turn)
    waiting = "" if turn.tokens or turn.stats else f'<span class="kv-quiet">{escape(turn.waiting_for)}</span>'
    line = html_parts.stats_line(turn.stats, turn.reason) if turn.stats else '<span class="kv-stats">&nbsp;</span>'
    if turn.reason == REFUSED:
        waiting = f'<span class="kv-quiet">No room: {escape(refusal)}</span>'
    return (f'<p class="kv-bubble kv-user"><span class="kv-hidden">You: </span>{escape(turn.user)}</p>'
            f'<p class="kv-bubble"><span class="kv-hidden">Reply: </span>{reply.strip()}{waiting}</p>{line}{_check_html(turn)}')


def _ended(turn: Turn) -> str:
    return '<mark title="the first cache goes on from here">(ends here)</mark>' if turn.stats else ""


def _check_html(turn: Turn) -> str:
    if turn.remembered is None:
        return ""
    if turn.remembered:
        return f'<p class="kv-check kv-right">✓ says {escape(turn.expects)}</p>'
    return f'<p class="kv-check kv-wrong">✗ {"garbled" if turn.garbled else f"does not say {escape(turn.expects)}"}</p>'


# -- table -------------------------------------------------------------------------------------------------------

def table_html(comparison: Comparison) -> str:
    """The verdict, then the figures side by side, one row per cache; columns that nothing fills are left out."""
    rows = comparison.rows()
    heads = [(name, head) for name, head in HEADS if name in ("cache", "nbytes") or any(row[name] is not None for row in rows)]
    body = "".join(_row_html(n, row, heads[1:]) for n, row in enumerate(rows))
    count = len(comparison.users)
    words = (f"{comparison.loaded.title}, {count} message{'s' * (count != 1)}. Bytes are those in use and those reserved beside them; vs Dynamic: how many times fewer in all "
             "than a DynamicCache of the same tokens would use. Times and rates are of the last reply")
    table = html_parts.figures_table("Comparison", [words for _, words in heads], body, "kv-figures kv-stacked")
    return f'{verdict_html(rows)}{table}<p class="kv-quiet">{escape(words)}.</p>'


def _row_html(n: int, row: dict[str, Any], heads: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f'<td data-head="{escape(head)}">{_cell_html(row, name)}</td>' for name, head in heads)
    return f'<tr><th scope="row"><i class="kv-swatch kv-swatch-{n}"></i>{escape(row["cache"])}</th>{cells}</tr>'


def _cell_html(row: dict[str, Any], name: str) -> str:
    if name == "nbytes":
        reserved = f' <small>+ {human_bytes(row["reserved_nbytes"])} reserved</small>' if row["reserved_nbytes"] else ""
        return f'{human_bytes(row["used_nbytes"])}{reserved}'
    if name == "remembered" and row["checked"]:
        return f'{row["remembered"]} of {row["checked"]}'
    return escape(cell_text(name, row[name]))


def verdict_html(rows: Sequence[dict[str, Any]]) -> str:
    """What came of the questions that were asked of what had been told, in a sentence or two; "" where none was."""
    sentence = verdict(rows)
    return f'<p class="kv-verdict" role="status">{escape(sentence)}</p>' if sentence else ""


def verdict(rows: Sequence[dict[str, Any]]) -> str:
    """Who still says what was told, and the fewest bytes that do."""
    checked = [row for row in rows if row["checked"]]
    if not checked:
        return ""
    shares = {"all": [], "part": [], "none": []}
    for row in checked:
        shares["all" if row["remembered"] == row["checked"] else "part" if row["remembered"] else "none"].append(row)
    words = (("all", "still says what was told", "still say what was told"), ("part", "says a part of it", "say a part of it"), ("none", "has lost it", "have lost it"))
    said = [f"{listed([row['cache'] for row in shares[key]])} {one if len(shares[key]) == 1 else more}" for key, one, more in words if shares[key]]
    sentence = "; ".join(said) + "."
    return f"{sentence} {_smallest(shares['all'])}".strip()


def _smallest(rows: Sequence[dict[str, Any]]) -> str:
    least = min(rows, key=lambda row: row["nbytes"], default=None)
    ratio = least and least["times_smaller_than_dynamic"]
    return f"The smallest that remembers all, {least['cache']}, does it in {human_bytes(least['nbytes'])}, {ratio:.1f} times fewer than Dynamic would use." if ratio and ratio >= 1.1 else ""


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def cell_text(name: str, value: Any) -> str:
    """One figure as the table shows it; a dash where there is none."""
    if value is None:
        return "–"
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


# -- where columns part --------------------------------------------------------------------------------------------

def divergence_html(comparison: Comparison) -> str:
    """Where each column first differs from the first one, with the likeliest next tokens of both there; the earliest is unfolded."""
    places = [(comparison.divergence(column), n) for n, column in enumerate(comparison.columns)]
    differ = sorted((place, n) for place, n in places if place)
    alike = [comparison.columns[n].label for place, n in places if n and not place and comparison.columns[n].turns]
    parts = "".join(_parting_html(comparison, comparison.columns[n], n, place, not rank) for rank, (place, n) in enumerate(differ))
    says = f"{listed(alike)} {'has' if len(alike) == 1 else 'have'} said just what {comparison.columns[0].label} has." if alike else ""
    return parts + (f'<p class="kv-quiet">{escape(says)}</p>' if says else "")


def _parting_html(comparison: Comparison, column: Column, n: int, place: tuple[int, int], is_open: bool) -> str:
    where = f"{column.label}: turn {place[0] + 1}, token {place[1] + 1}"
    body = _sides_html(comparison, column, n) if column.parting else f'<p class="kv-quiet">{escape(_unmeasured(comparison, column, n, place))}</p>'
    return f'<details class="kv-parting"{" open" * is_open}><summary><i class="kv-swatch kv-swatch-{n}"></i>{escape(where)}</summary>{body}</details>'


def _unmeasured(comparison: Comparison, column: Column, n: int, place: tuple[int, int]) -> str:
    """Why it is not known what both caches expected where they part."""
    turn, at = place
    going_on = [each.label for each in (comparison.columns[0], column) if len(each.turns[turn].ids) > at]
    if len(going_on) == 1:
        return f"Only {going_on[0]} goes on there."
    if n in comparison.full:
        return "They differ, but its cache has no room for the first one's text, so what it expects there was not measured."
    return "They differ; what both expect there was not measured."


def _sides_html(comparison: Comparison, column: Column, n: int) -> str:
    sides = ((comparison.columns[0].label, column.parting["first"], 0), (column.label, column.parting["other"], n))
    return f'<p class="kv-quiet">After the same text, the likeliest next tokens are</p><div class="kv-sides">{"".join(_side_html(*side) for side in sides)}</div>'


def _side_html(label: str, tokens: Sequence[tuple[str, float]], n: int) -> str:
    bars = "".join(
        f'<li><span class="kv-token">{escape(token)}</span><span class="kv-bar"><i class="kv-swatch-{n}" style="width:{share:.1%}"></i></span>'
        f"<b>{escape(share_text(share))}</b></li>" for token, share in tokens)
    return f'<div><h3>{escape(label)}</h3><ol class="kv-bars">{bars}</ol></div>'


def share_text(share: float) -> str:
    """A probability: 0.43, or that it is less than can be shown."""
    return f"{share:.2f}" if share >= 0.005 else "<.01"


# -- charts and files --------------------------------------------------------------------------------------------

def chart_value(comparison: Comparison) -> str:
    figure = charts.compare_figure([(column.label, column.history) for column in comparison.columns], dynamic_nbytes(comparison.loaded, heard_by(comparison.columns[0].conversation.cache)))
    sizes = ", ".join(f"{column.label} {human_bytes(charts.used_nbytes(column.snapshot))}" for column in comparison.columns if column.snapshot)
    return html_parts.chart_value(figure, f"Bytes in use at the end: {sizes}.")


def quality_value(comparison: Comparison) -> str:
    """Drift over bytes; "" before anything was measured."""
    points = [(n, column.label, charts.used_nbytes(column.snapshot), column.mean_kl) for n, column in enumerate(comparison.columns) if column.mean_kl is not None and column.snapshot]
    if not points:
        return ""
    words = "; ".join(f"{label} {human_bytes(nbytes)}, {cell_text('mean_kl', kl)}" for _, label, nbytes, kl in points)
    return html_parts.chart_value(charts.quality_figure(points), f"Bytes in use, and mean KL from {comparison.columns[0].label} in nats: {words}.")


def kl_value(comparison: Comparison) -> str:
    """How far each column is from the first along its replies; "" before anything was measured."""
    columns = [(n, column.label, column.kl) for n, column in enumerate(comparison.columns) if n and column.kl]
    if not columns:
        return ""
    ends = "; ".join(f"{label} {cell_text('mean_kl', charts.rolling(kl)[-1])}" for _, label, kl in columns)
    return html_parts.chart_value(charts.kl_figure(columns, comparison.starts), f"KL from {comparison.columns[0].label}, mean of the last {charts.ROLLING} tokens, in nats: {ends}.")


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
    return html_parts.downloads(("CSV", "comparison.csv", "text/csv", csv_text(comparison)), ("JSON", "comparison.json", "application/json", json.dumps(comparison.record(), indent=1)))
