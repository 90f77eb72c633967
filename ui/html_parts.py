"""Small pieces of HTML, as pure functions: everything that came from a person or a model is escaped here."""
from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape

from .charts import human_bytes, ratio_text


def figures_line(facts: Sequence[tuple[str, str]]) -> str:
    """(words, figure) pairs as one quiet line: "seen **229** · held **229**"."""
    return " · ".join(f"{escape(words)} <b>{escape(figure)}</b>" for words, figure in facts)


def seconds_text(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def rate_text(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


MARKS = {"stopped": "stopped", "length": "cut at the longest length", "context": "cut at the end of the context", "capacity": "cut: the cache is full"}


def stats_line(stats, reason: str = "") -> str:
    """The line under a reply, in words: what was reused, how fast it came, what it left behind; it unfolds to the rest. `reason`: why it ended."""
    mark = f'<b class="kv-ending">{MARKS[reason]}</b> · ' if reason in MARKS else ""
    rate = [("tok/s", rate_text(stats.decode_tokens_per_second))] if stats.decode_tokens_per_second else []
    short = [("reused", f"{stats.reused:,}" + " (of a prefix kept from before)" * bool(stats.kept)), *rate, ("cache", human_bytes(stats.cache_nbytes))]
    note = getattr(stats, "note", "") or ""
    return (f'<details class="kv-stats"><summary>{mark}{figures_line(short)}</summary>{figures_line(_other_figures(stats))}</details>'
            + (f'<span class="kv-stats kv-why">{escape(note)}</span>' if note else ""))


def actions(turn: int, can_go_on: bool = False, version: int = 0, versions: int = 0) -> str:
    """The small buttons under a reply, which page.js presses. `turn`, from 1; `version` of how many `versions` it has."""
    steps = [("version", -1, "‹", "Previous version", version > 1), ("version", 1, "›", "Next version", version < versions)]
    back, on = (_action(name, value, f'{sign}<span class="kv-hidden">{words}</span>', enabled) for name, value, sign, words, enabled in steps)
    pages = f'<span class="kv-versions">{back}{version} of {versions}{on}</span>' if versions > 1 else ""
    shown = [_action("more", turn, "Continue")] * can_go_on + [pages] * bool(pages) + [_action(*each) for each in (("copy", "reply", "Copy reply"), ("copy", "message", "Copy message"), ("retry", turn, "Retry"))]
    return f'<div class="kv-stats kv-actions">{"".join(shown)}</div>'


def _action(name: str, value: str | int, words: str, enabled: bool = True) -> str:
    return f'<button type="button" class="kv-action" name="{name}" value="{value}"{"" if enabled else " disabled"}>{words}</button>'


def _other_figures(stats) -> list[tuple[str, str]]:
    facts = [("computed", f"{stats.computed:,}"), ("written", f"{stats.generated:,}")]
    if stats.time_to_first_token is not None:
        facts.append(("first token", seconds_text(stats.time_to_first_token)))
    if stats.prefill_tokens_per_second:
        facts.append(("prefill", f"{rate_text(stats.prefill_tokens_per_second)} tok/s"))
    return facts


def chart_value(figure: dict, sentence: str, facts: Sequence[tuple[str, str]] = ()) -> str:
    """What a chart component is given: one JSON string, because Gradio compares strings faster than trees."""
    line = figures_line(facts)
    return json.dumps({"figure": figure, "sentence": sentence, "line": line}, separators=(",", ":"))


def prediction_table(label: str, rows: Sequence[tuple[str, int | None, int]]) -> str:
    """Bytes at a few lengths against a DynamicCache. rows: (length, this cache's bytes or None if full, Dynamic's or 0 where it does not suit)."""
    if all(mine is not None and (mine == dynamic or not dynamic) for _, mine, dynamic in rows):
        heads = (escape(label),)
        cells = [(f"<b>{human_bytes(mine)}</b>",) for _, mine, _ in rows]
    else:
        heads = (escape(label), "Dynamic", '<span class="kv-hidden">times smaller</span>')
        cells = [(f"<b>{'too long' if mine is None else human_bytes(mine)}</b>", human_bytes(dynamic), ratio_text(dynamic, mine or 0))
                 for _, mine, dynamic in rows]
    head = "".join(f'<th scope="col">{words}</th>' for words in ("tokens", *heads))
    body = "".join(f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{cell}</td>" for cell in line)}</tr>'
                   for row, line in zip(rows, cells))
    return f'<table class="kv-predicted"><caption>Predicted bytes</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def notice(sentence: str, kind: str = "warning") -> str:
    """A sentence in the page; empty clears it. kind: "warning" and "error" are read out at once, "info" in its turn, "progress" not."""
    role = {"info": ' role="status"', "progress": ""}.get(kind, ' role="alert"')
    return f'<p class="kv-{"info" if kind == "progress" else kind}"{role}>{escape(sentence)}</p>' if sentence else ""


def figures_table(label: str, heads: Sequence[str], rows: str, classes: str = "kv-figures") -> str:
    """A table of figures that scrolls sideways by itself; `rows` is HTML, `label` what a screen reader calls it."""
    head = "".join(f'<th scope="col">{escape(words)}</th>' for words in heads)
    return (f'<div class="kv-scroll" tabindex="0" role="region" aria-label="{label}"><table class="{classes}"><thead><tr>{head}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>")


def downloads(*files: tuple[str, str, str, str]) -> str:
    """Links that carry their files (words, file name, MIME type, text) with them: nothing is written on the server."""
    return " ".join(f'<a class="kv-download" download="{name}" href="data:{kind};base64,{base64.b64encode(text.encode()).decode()}">{words}</a>' for words, name, kind, text in files)
