"""Snapshots in, Plotly figures out: pure functions that know neither Gradio nor a cache.

A figure is a plain dict {"data": [...], "layout": {...}}. Colours are CSS variables ("var(--kv-keys)"); the page
resolves them when it draws, so one figure serves light and dark.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvcache.chat.engine import Prefill, Token
from kvcache.measure.speed.figures import size_text, ticks

KINDS = ("keys", "values", "scales", "residual", "state", "reserved")
COLUMNS = (("var(--kv-column-0)", 5, "solid"), ("var(--kv-column-1)", 3.5, "dash"), ("var(--kv-column-2)", 2.5, "dot"), ("var(--kv-column-3)", 1.5, "solid"))  # thinner ones on top: lines that coincide are all seen
MAX_POINTS = 200
POINT = ("processed", "seen", "held", "used_nbytes", "nbytes")  # what is recorded after each token
MAX_LABELLED_LAYERS = 12
LEAST_KL = 1e-5  # nats: the lowest that a logarithmic axis shows
ROLLING = 16  # tokens of which a rolling mean is taken
SYMBOLS = ("circle", "square", "diamond", "triangle-up")  # of the columns, beside their colours


def human_bytes(nbytes: float) -> str:
    """A size as people read it: 938 B, 187 kB, 1.26 MB. Units are powers of 1,000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 999.5 or unit == "GB":
            break
        nbytes /= 1000
    if unit == "B" or nbytes >= 100:
        return f"{nbytes:.0f} {unit}"
    return f"{nbytes:.3g} {unit}"


def used_nbytes(snapshot) -> int:
    """Bytes in use, the reserved ones left out: what is fairly compared between caches."""
    return sum(layer.used for layer in snapshot.layers)


def ratio_text(dynamic_nbytes: float, nbytes: float) -> str:
    """How many times smaller than a DynamicCache: "5.0x"; empty while there is nothing to divide."""
    return f"{dynamic_nbytes / nbytes:.1f}x" if nbytes and dynamic_nbytes else ""


# -- memory by layer ---------------------------------------------------------------------------------------------

def memory_figure(snapshot) -> dict:
    """Horizontal stacked bars, one colour per kind of byte: one per layer, layer 0 on top, or one for all where they are alike; one per device where there are several."""
    layers, names = [layer.as_dict() for layer in snapshot.layers], layer_names(snapshot)
    if snapshot.devices:
        layers, names = [memory.as_dict() for _, memory in snapshot.devices], [device for device, _ in snapshot.devices]
    elif len(layers) > 1 and all(layer == layers[0] for layer in layers):
        layers, names = [{kind: len(layers) * nbytes for kind, nbytes in layers[0].items()}], [f"{len(layers)} layers"]
    kinds = [kind for kind in KINDS if any(layer[kind] for layer in layers)]
    data = [_kind_bars(kind, [layer[kind] for layer in layers], names) for kind in kinds]
    if len(layers) <= MAX_LABELLED_LAYERS:
        data.append(_totals([sum(layer.values()) for layer in layers], names))
    return {"data": data, "layout": _memory_layout(names)}


def layer_names(snapshot) -> list[str]:
    """"layer 0", "layer 1", ...; with an encoder "self 0", ... for the decoder's own tokens and "cross 0", ... for what the encoder gave."""
    own = len(snapshot.layers) - snapshot.cross
    return [f"{'self' if snapshot.cross else 'layer'} {i}" for i in range(own)] + [f"cross {i}" for i in range(snapshot.cross)]


def _kind_bars(kind: str, nbytes: list[int], names: list[str]) -> dict:
    return {
        "type": "bar", "orientation": "h", "name": kind, "x": nbytes, "y": names,
        "marker": {"color": f"var(--kv-{kind})", "line": {"width": 0}},
        "hovertemplate": f"%{{y}}, {kind}: %{{x:.3~s}}B<extra></extra>",
    }


def _totals(nbytes: list[int], names: list[str]) -> dict:
    return {
        "type": "scatter", "mode": "text", "x": nbytes, "y": names, "text": [f" {human_bytes(n)}" for n in nbytes],
        "textposition": "middle right", "cliponaxis": False, "hoverinfo": "skip",
        "textfont": {"size": 11, "color": "var(--kv-text-soft)"},
    }


def _memory_layout(names: Sequence[str]) -> dict:
    count = len(names)
    step = max(1, -(-count // MAX_LABELLED_LAYERS))
    ticks = list(range(0, count, step))
    return {
        "height": max(84, min(230, 44 + 40 * count)), "barmode": "stack", "bargap": 0.3 if count <= MAX_LABELLED_LAYERS else 0.12,
        "margin": {"l": 58, "r": 58 if count <= MAX_LABELLED_LAYERS else 14, "t": 6, "b": 26},
        "xaxis": {"tickformat": "~s", "ticksuffix": "B", "nticks": 5, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "tickmode": "array", "tickvals": ticks,
                  "ticktext": [names[i] for i in ticks], "showgrid": False, "fixedrange": True},
    }


# -- over tokens -------------------------------------------------------------------------------------------------

@dataclass
class History:
    """What a conversation's cache held after each token processed, since it began.

    The x axis is tokens processed, not sequence length: a rewind shows as a step down, a recomputation as a climb.
    """
    former: tuple[str, list[tuple[int, ...]]] | None = None  # the cache that was there before, and its points
    points: list[tuple[int, ...]] = field(default_factory=lambda: [(0,) * len(POINT)])
    turns: list[int] = field(default_factory=list)  # processed at the start of each turn
    _start: int = 0  # processed at the start of this reply
    _read: int = 0  # tokens of this turn's prompt that were fed

    @property
    def processed(self) -> int:
        return self.points[-1][0]

    def start_turn(self, again: bool = False) -> None:
        """A reply begins; `again`: another one to the same message."""
        self._start, self._read = self.processed, 0
        if not again or not self.turns:
            self.turns.append(self.processed)

    def undo_turn(self) -> None:
        """Forget the last turn, as the conversation did."""
        start = self.turns.pop() if self.turns else 0
        self.points = [point for point in self.points if point[0] <= start]

    def add(self, event) -> None:
        """Record what the cache held at an event of the engine. A token is fed when the next one is picked."""
        if isinstance(event, Prefill):
            self._read = event.done
        elif not isinstance(event, Token):
            return
        fed = self._start + self._read + (event.index if isinstance(event, Token) else 0)
        if fed <= self.processed:
            return
        snapshot = event.snapshot
        self.points.append((fed, snapshot.seen, snapshot.held, used_nbytes(snapshot), snapshot.total))
        if len(self.points) > 20 * MAX_POINTS:
            self.points = decimate(self.points, 10 * MAX_POINTS)


def decimate(points: Sequence[tuple], limit: int = MAX_POINTS) -> list[tuple]:
    """At most about `limit` points: every n-th, the last, and both sides of every step down.

    n is a power of two, so that most points stay the same while a history grows.
    """
    stride = 1
    while len(points) > limit * stride:
        stride *= 2
    keep = set(range(0, len(points), stride)) | {len(points) - 1}
    drops = [i for i in range(1, len(points)) if points[i][1] < points[i - 1][1]][-limit // 4:]
    keep.update(drops)
    keep.update(i - 1 for i in drops)
    return [points[i] for i in sorted(keep)]


def _would_hold(x: Sequence[int], seen: Sequence[int], dynamic_nbytes: Callable[[int], int]) -> list[dict]:
    """The dashed line of a DynamicCache, on models that it suits."""
    if not dynamic_nbytes(1):
        return []
    return [_line("DynamicCache would hold", x, [dynamic_nbytes(n) for n in seen], "var(--kv-text-soft)", dash="dash", unit="B")]


def history_figure(history: History, dynamic_nbytes: Callable[[int], int], *, window: int | None = None,
                   capacity: int | None = None) -> dict:
    """Bytes above, length below, over tokens processed. `dynamic_nbytes(seen)` is what a DynamicCache would hold, 0 where none suits the model."""
    points = decimate(history.points)
    x, seen, held, used, nbytes = (list(column) for column in zip(*points))
    reserved = [_line("with reserved", x, nbytes, "var(--kv-reserved)", unit="B")] if nbytes != used else []
    data = [
        *reserved,
        *_would_hold(x, seen, dynamic_nbytes),
        *_ghost(history),
        _line("this cache", x, used, "var(--kv-text)", unit="B", fill=True),
        _line("tokens seen", x, seen, "var(--kv-text-soft)", axis="y2", dash="dot"),
        _line("tokens held", x, held, "var(--kv-text)", axis="y2"),
    ]
    shapes = [_turn_mark(at) for at in history.turns[1:]] if len(history.turns) <= 24 else []
    notes = [_turn_label(at, number) for at, number in labelled_turns(history.turns, history.processed)]
    limit, name = (window, "window") if window else (capacity, "capacity")
    if limit and limit <= 4 * max(max(seen), 64):
        shapes.append(_level(limit))
        notes.append(_level_label(limit, f"{name} {limit:,}"))
    return {"data": data, "layout": _history_layout(shapes, notes)}


def _ghost(history: History) -> list[dict]:
    """The line of the cache that was there before a switch."""
    if history.former is None:
        return []
    name, points = history.former
    return [_line(f"before: {name}", [point[0] for point in points], [point[3] for point in points], "var(--kv-ink-soft)", unit="B", width=3)]


def _line(name: str, x: list, y: list, colour: str, *, axis: str = "y", dash: str = "solid", unit: str = "",
          fill: bool = False, width: float = 2) -> dict:
    """A line in steps: a chunk of a prompt is fed at once, and what was held meanwhile is not known."""
    number = "%{y:.3~s}B" if unit else "%{y:,}"
    trace = {
        "type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "yaxis": axis,
        "line": {"color": colour, "width": width, "dash": dash, "shape": "hv"}, "hovertemplate": number,
    }
    return trace | ({"fill": "tozeroy", "fillcolor": "var(--kv-faint)"} if fill else {})


def labelled_turns(turns: list[int], processed: int) -> list[tuple[int, int]]:
    """(where, number) of the turns after the first whose labels have room beside each other."""
    chosen, free_from = [], 0.0
    for number, at in enumerate(turns[1:], start=2):
        if at >= free_from:
            chosen.append((at, number))
            free_from = at + 0.14 * processed
    return chosen


def _turn_mark(at: int) -> dict:
    return {"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1,
            "line": {"color": "var(--kv-grid)", "width": 1, "dash": "dot"}, "layer": "below"}


def _turn_label(at: int, number: int) -> dict:
    return {"xref": "x", "yref": "paper", "x": at, "y": 1, "yanchor": "bottom", "xanchor": "left", "text": f"turn {number}",
            "showarrow": False, "font": {"size": 10, "color": "var(--kv-text-soft)"}}


def _level(tokens: int) -> dict:
    return {"type": "line", "xref": "paper", "yref": "y2", "x0": 0, "x1": 1, "y0": tokens, "y1": tokens,
            "line": {"color": "var(--kv-text-soft)", "width": 1.5, "dash": "longdash"}}


def _level_label(tokens: int, text: str) -> dict:
    return {"xref": "paper", "yref": "y2", "x": 0.01, "y": tokens, "xanchor": "left", "yanchor": "bottom", "text": text,
            "showarrow": False, "font": {"size": 11, "color": "var(--kv-text-soft)"}}


def _history_layout(shapes: list[dict], notes: list[dict]) -> dict:
    return {
        "margin": {"l": 58, "r": 14, "t": 18, "b": 40}, "hovermode": "x unified", "shapes": shapes, "annotations": notes,
        "xaxis": {"title": {"text": "tokens processed", "standoff": 6}, "rangemode": "tozero", "anchor": "y2",
                  "nticks": 6, "tickformat": ",d"},
        "yaxis": {"domain": [0.46, 1], "tickformat": "~s", "ticksuffix": "B", "nticks": 5, "rangemode": "tozero"},
        "yaxis2": {"domain": [0, 0.36], "nticks": 4, "rangemode": "tozero", "tickformat": ",d"},
    }


# -- several caches ----------------------------------------------------------------------------------------------

def compare_figure(columns: Sequence[tuple[str, History]], dynamic_nbytes: Callable[[int], int]) -> dict:
    """Bytes in use over tokens processed, one line per column, and the dashed DynamicCache for scale."""
    data = []
    longest: list[tuple] = []
    for (label, history), (colour, width, dash) in zip(columns, COLUMNS):
        points = decimate(history.points)
        longest = max(longest, points, key=len)
        data.append(_line(label, [p[0] for p in points], [p[3] for p in points], colour, unit="B", width=width, dash=dash))
    data += _would_hold([p[0] for p in longest], [p[1] for p in longest], dynamic_nbytes)
    layout = _history_layout([], [])
    layout.pop("yaxis2")
    layout["xaxis"].pop("anchor")
    layout["yaxis"].pop("domain")
    return {"data": data, "layout": layout}


def quality_figure(points: Sequence[tuple[int, str, int, float]]) -> dict:
    """Mean KL over bytes in use, both logarithmic, a labelled point per column. points: (column, label, bytes, nats)."""
    by_size = sorted(points, key=lambda point: point[2])
    words = _beside_one_another(by_size)
    data = [_quality_point(*point, words[place], "bottom center" if place % 2 and "<br>" not in words[place] else "top center") for place, point in enumerate(by_size)]
    sizes = [nbytes for _, _, nbytes, _ in points]
    marks = ticks([*sizes, min(sizes) / 2, max(sizes) * 2])
    across = {"type": "log", "title": {"text": "bytes in use", "standoff": 6}, "tickmode": "array", "tickvals": marks, "ticktext": list(map(size_text, marks)),
              "range": [math.log10(min(sizes) / 3), math.log10(max(sizes) * 3)]}
    layout = {"meta": {"named": True}, "margin": {"l": 64, "r": 14, "t": 10, "b": 44}, "hovermode": "closest", "xaxis": across, "yaxis": _kl_axis([kl for *_, kl in points])}
    return {"data": data, "layout": layout}


def _beside_one_another(points: Sequence[tuple[int, str, int, float]]) -> list[str]:
    """What is written at each point: its label, or those of all that lie on it, one below another, at the first of them and nothing at the others."""
    groups: list[list[int]] = []
    for place, (_, _, nbytes, kl) in enumerate(points):
        _, _, first, least = points[groups[-1][0]] if groups else (0, "", 0, 0.0)
        near = groups and nbytes < 1.2 * first and max(kl, least, LEAST_KL) < 2 * max(min(kl, least), LEAST_KL)
        groups[-1].append(place) if near else groups.append([place])
    words = [""] * len(points)
    for group in groups:
        words[group[0]] = "<br>".join(points[place][1] for place in group)
    return words


def _quality_point(n: int, label: str, nbytes: int, kl: float, words: str, where: str) -> dict:
    colour = COLUMNS[n][0]
    return {
        "type": "scatter", "mode": "markers+text", "name": label, "x": [nbytes], "y": [max(kl, LEAST_KL)], "text": [words], "textposition": where, "cliponaxis": False,
        "marker": {"size": 11, "color": colour, "symbol": SYMBOLS[n]}, "line": {"color": colour}, "textfont": {"size": 12, "color": "var(--kv-text)"},
        "hovertemplate": f"{label}: {human_bytes(nbytes)}, KL {kl:.2g}<extra></extra>",
    }


def _kl_axis(values: Sequence[float]) -> dict:
    marks = [mark for mark in ticks([LEAST_KL, max([0.1, *values])]) if mark >= LEAST_KL]
    return {"type": "log", "title": {"text": "KL, nats", "standoff": 4}, "tickmode": "array", "tickvals": marks,
            "ticktext": ["\u2264 1e-5" if mark == marks[0] else f"{mark:g}" for mark in marks], "range": [math.log10(LEAST_KL) - 0.5, math.log10(max([0.1, *values])) + 0.4]}


def kl_figure(columns: Sequence[tuple[int, str, Mapping[int, float]]], starts: Sequence[int]) -> dict:
    """KL over the first column's reply tokens, the mean of the latest ROLLING, a line per column. columns: (column, label, nats by token); starts: the first token of each turn."""
    data = []
    for n, label, kl in columns:
        colour, width, dash = COLUMNS[n]
        line = _line(label, [at + 1 for at in kl], [max(value, LEAST_KL) for value in rolling(kl)], colour, width=width, dash=dash)
        data.append(line | {"hovertemplate": "%{y:.2g}", "line": {"color": colour, "width": width, "dash": dash}})
    length = max((max(kl, default=0) for *_, kl in columns), default=0)
    notes = [_turn_label(at + 1, number) for at, number in labelled_turns(list(starts), length)]
    layout = _history_layout([_turn_mark(at + 1) for at in starts[1:]], notes) | {"yaxis": _kl_axis([value for *_, kl in columns for value in rolling(kl)])}
    layout.pop("yaxis2")
    layout["margin"] = layout["margin"] | {"l": 64}
    layout["xaxis"] = layout["xaxis"] | {"title": {"text": "tokens of the first cache's replies", "standoff": 6}, "anchor": "y"}
    return {"data": data, "layout": layout}


def rolling(kl: Mapping[int, float]) -> list[float]:
    """At each token, the mean of what was measured of the latest ROLLING."""
    values, places = list(kl.values()), list(kl)
    found, first, total = [], 0, 0.0
    for end, at in enumerate(places):
        total += values[end]
        while places[first] <= at - ROLLING:
            total -= values[first]
            first += 1
        found.append(max(total, 0.0) / (end - first + 1))
    return found


# -- in words ----------------------------------------------------------------------------------------------------

def memory_words(snapshot) -> str:
    """The memory chart as a sentence for people who cannot see it."""
    by_kind = {kind: sum(layer.as_dict()[kind] for layer in snapshot.layers) for kind in KINDS}
    parts = ", ".join(f"{kind} {human_bytes(n)}" for kind, n in by_kind.items() if n)
    cross = sum(layer.total for layer in snapshot.layers[len(snapshot.layers) - snapshot.cross:])
    text = f" Of these, {human_bytes(cross)} are cross-attention's, for the text that the encoder read." if snapshot.cross else ""
    places = ", ".join(f"{human_bytes(memory.total)} on {device}" for device, memory in snapshot.devices)
    return f"{len(snapshot.layers)} layers hold {human_bytes(snapshot.total)}" + (f": {parts}." if parts else ".") + (f" {places}." if places else "") + text


def length_facts(snapshot, dynamic_nbytes: int, *, predicted: int | None = None, window: int | None = None,
                 capacity: int | None = None) -> list[tuple[str, str]]:
    """The visible line under the chart, as (words, figure) pairs: tokens, then bytes in use, reserved and in all, and what Dynamic would use, as many times as all of this."""
    facts = [("seen", f"{snapshot.seen:,}"), ("held", f"{snapshot.held:,}")]
    if snapshot.cross:
        facts.append(("of the text", f"{snapshot.held_by_layer[-1]:,}"))
    if window:
        facts.append(("window", f"{window:,}"))
    if capacity:
        facts.append(("capacity", f"{capacity:,}"))
    used = used_nbytes(snapshot)
    facts.append(("in use", human_bytes(used)))
    if predicted not in (None, used):
        facts.append(("predicted", human_bytes(predicted)))
    if snapshot.total > used:
        facts += [("reserved beside", human_bytes(snapshot.total - used)), ("in all", human_bytes(snapshot.total))]
    ratio = ratio_text(dynamic_nbytes, snapshot.total)
    if dynamic_nbytes or not used:
        facts.append(("DynamicCache would use", human_bytes(dynamic_nbytes) + (f" ({ratio} of this)" if ratio else "")))
    return facts
