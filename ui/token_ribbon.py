"""Every token's fate: the ribbon that shows which tokens a cache kept, squeezed or dropped."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

POINT = "Point at a square, or tap it, for its word."
WORDS = {"sink": "sink", "full": "full precision", "quantized": "quantized", "state": "summed up in the state", "evicted": "evicted",
         "pending": "not yet cached"}
MAX_CELLS = 240


def cells(fates: Sequence[tuple[str, int]], pending: int = 0, limit: int = MAX_CELLS) -> tuple[int, list[str]]:
    """(tokens per cell, one kind per cell), oldest first. A long history shares cells; the largest share names one."""
    runs = [(kind, count) for kind, count in fates if count] + ([("pending", pending)] if pending else [])
    total = sum(count for _, count in runs)
    per_cell = max(1, -(-total // limit))
    if per_cell == 1:
        return 1, [kind for kind, count in runs for _ in range(count)]
    return per_cell, [_largest_share(runs, at, min(at + per_cell, total)) for at in range(0, total, per_cell)]


def _largest_share(runs: Sequence[tuple[str, int]], start: int, end: int) -> str:
    """The kind with most tokens in [start, end); a sink is never outvoted, or four sinks would vanish."""
    share: dict[str, int] = {}
    at = 0
    for kind, count in runs:
        overlap = min(end, at + count) - max(start, at)
        if overlap > 0:
            share[kind] = share.get(kind, 0) + overlap
        at += count
    return "sink" if "sink" in share else max(share, key=share.__getitem__)


def counts(fates: Sequence[tuple[str, int]], pending: int = 0) -> dict[str, int]:
    """Tokens by kind, in the order of the legend, kinds without tokens left out."""
    totals = dict.fromkeys(WORDS, 0)
    for kind, count in fates:
        totals[kind] += count
    totals["pending"] += pending
    return {kind: n for kind, n in totals.items() if n}


EMPTY = '<div class="kv-fates"><p class="kv-quiet">Send a message: each square will be one token, filled by what the cache did with it.</p></div>'


def ribbons_html(groups: Sequence[tuple[str, Sequence[tuple[str, int]]]], pending: int = 0, bits: str | int | None = None, words: Sequence[str] = (),
                 spans: Sequence[tuple[int, int]] = (), note: str = "", below: str = "") -> str:
    """For each group of layers, by title, cells and a legend whose words and counts are the text equivalent of the picture. `bits` names the width.

    words: the text of every token, which its cell shows when it is pointed at. spans: (first, end) of each message's tokens. With a note, which says
    why, it is not known which tokens they are: then how many there are of each kind is drawn. below: a quiet line at the end.
    """
    names = WORDS | ({"quantized": f"{bits}-bit"} if bits else {})
    drawn = [_group_html(title, fates, pending, names, words, spans, bool(note)) for title, fates in groups if sum(counts(fates, pending).values())]
    if not drawn:
        return EMPTY
    said = f'<p class="kv-quiet kv-picked">{escape(note or (POINT if words else ""))}</p>' if note or words else ""
    return f'<div class="kv-fates">{"".join(drawn)}{said}{f"""<p class="kv-quiet">{escape(below)}</p>""" if below else ""}</div>'


def _group_html(title: str, fates: Sequence[tuple[str, int]], pending: int, names: Mapping[str, str], words: Sequence[str], spans: Sequence[tuple[int, int]], unordered: bool) -> str:
    amounts = counts(fates, pending)
    legend = "".join(f'<li><i class="fate-{kind}"></i>{names[kind]} <b>{n:,}</b></li>' for kind, n in amounts.items())
    head = f'<p class="kv-quiet kv-of-layer">{escape(title)}</p>' if title else ""
    if unordered:
        parts = "".join(f'<i class="fate-{kind}" style="flex-grow: {n}"></i>' for kind, n in amounts.items())
        return f'{head}<div class="kv-shares" aria-hidden="true">{parts}</div><ul class="kv-legend">{legend}</ul>'
    per_cell, kinds = cells(fates, pending)
    squares = "".join(_square(n, kind, per_cell, names[kind], words, spans) for n, kind in enumerate(kinds))
    scale = f'<li class="kv-quiet">one square = {per_cell} tokens</li>' if per_cell > 1 else ""
    return f'{head}<div class="kv-cells" data-layers="{escape(title)}" aria-hidden="true">{squares}</div><ul class="kv-legend">{legend}{scale}</ul>'


def shares_html(shares: Sequence[float], pending: int = 0, words: Sequence[str] = (), spans: Sequence[tuple[int, int]] = (), below: str = "") -> str:
    """A ribbon whose squares are the darker, the more heads still hold their token. shares: by token, 0 to 1; the rest as of `ribbons_html`."""
    if not shares:
        return EMPTY
    per_cell = max(1, -(-(len(shares) + pending) // MAX_CELLS))
    means = [sum(part) / len(part) for part in (shares[at:at + per_cell] for at in range(0, len(shares), per_cell))]
    squares = [_square(n, "share", per_cell, f"held by {share:.0%} of the heads", words, spans, f"--share: {share:.0%}") for n, share in enumerate(means)]
    squares += [_square(len(shares) + n, "pending", 1, WORDS["pending"], words, spans) for n in range(pending if per_cell == 1 else 0)]
    amounts = {"no head": sum(share == 0 for share in shares), "some heads": sum(0 < share < 1 for share in shares), "every head": sum(share == 1 for share in shares)}
    legend = "".join(f'<li><i class="fate-share" style="--share: {shade}%"></i>in {who} <b>{n:,}</b></li>' for shade, (who, n) in zip((0, 50, 100), amounts.items()) if n)
    legend += f'<li><i class="fate-pending"></i>{WORDS["pending"]} <b>{pending:,}</b></li>' if pending else ""
    legend += f'<li class="kv-quiet">one square = {per_cell} tokens</li>' if per_cell > 1 else ""
    said = "".join(f'<p class="kv-quiet{extra}">{escape(line)}</p>' for line, extra in ((POINT if words else "", " kv-picked"), (below, "")) if line)
    return f'<div class="kv-fates"><div class="kv-cells" data-layers="" aria-hidden="true">{"".join(squares)}</div><ul class="kv-legend">{legend}</ul>{said}</div>'


def _square(n: int, kind: str, per_cell: int, name: str, words: Sequence[str], spans: Sequence[tuple[int, int]], style: str = "") -> str:
    first = n * per_cell
    text = "".join(words[first:first + per_cell])
    look = f'class="fate-{kind}"' + (f' style="{style}"' if style else "")
    if not text:
        return f"<i {look}></i>"
    where = f"token {first + 1:,}" if per_cell == 1 else f"tokens {first + 1:,} to {min(first + per_cell, len(words)):,}"
    message = next((m for m, (start, end) in enumerate(spans) if start <= first < end), "")
    return f'<i {look} data-word="{escape(shown(text))}" data-where="{where}" data-fate="{escape(name)}" data-message="{message}"></i>'


def shown(text: str) -> str:
    """A token's text on one line."""
    return text.replace("\n", "\u21b5")


def evicted_runs(fates: Sequence[tuple[str, int]]) -> list[tuple[int, int]]:
    """(first, end) of the tokens that are gone, runs side by side joined."""
    runs: list[tuple[int, int]] = []
    at = 0
    for kind, count in fates:
        if kind == "evicted" and count:
            runs = [*runs[:-1], (runs[-1][0], at + count)] if runs and runs[-1][1] == at else [*runs, (at, at + count)]
        at += count
    return runs
