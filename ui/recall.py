"""What each cache forgets, as measured on the bundled model: recall over the distance between telling and question, each line named at its end."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvcache import bundled

from . import html_parts

SHOWN = {  # of all that was measured, the lines that tell most: how a label begins -> its words at the line's end
    "Dynamic": "full cache", "Native 4-bit": "4 bits", "Native 2-bit, keys by token": "2 bits, keys by token", "Window": "window of 256",
}
COLOURS = tuple(f"column-{n}" for n in range(6))  # of lines, in order
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")  # beside the colours, which not everybody tells apart
APART = 0.09  # of the axis between two names at lines' ends


def of_caches(measured: Mapping) -> dict:
    """As measured, the lines of SHOWN alone, under their words."""
    found = {words: row for start, words in SHOWN.items() for row in measured["rows"] if row["label"] == start or row["label"].startswith(f"{start} ") or row["label"].startswith(f"{start},")}
    return {**measured, "rows": [{**row, "label": words} for words, row in found.items()]}


def figure(measured: Mapping) -> dict:
    """Lines: share of questions answered right over tokens between telling and question, one per row."""
    rows = measured["rows"]
    distances = [int(d) for d in rows[0]["recalled"]]
    layout = {
        "margin": {"l": 52, "r": 150, "t": 10, "b": 44}, "hovermode": "closest", "meta": {"named": True},
        "xaxis": {"type": "log", "title": {"text": "tokens between the telling and the question", "standoff": 6}, "tickmode": "array", "tickvals": distances,
                  "ticktext": [f"{d:,}" for d in distances]},
        "yaxis": {"title": {"text": "answered right", "standoff": 6}, "tickformat": ".0%", "range": [-0.05, 1.05]},
        "annotations": _names(rows),
    }
    return {"data": [_line(row, place) for place, row in enumerate(rows)], "layout": layout}


def _line(row: Mapping, place: int) -> dict:
    return {
        "type": "scatter", "mode": "lines+markers", "name": row["label"], "x": [int(d) for d in row["recalled"]], "y": list(row["recalled"].values()),
        "line": {"color": _colour(place), "width": 2.5 if place else 5}, "marker": {"size": 9, "symbol": SYMBOLS[place % len(SYMBOLS)]},
        "hovertemplate": f"{row['label']}, %{{x:,}} tokens: %{{y:.0%}}<extra></extra>",
    }


def _colour(place: int) -> str:
    return f"var(--kv-{COLOURS[place % len(COLOURS)]})"


def _names(rows: Sequence[Mapping]) -> list[dict]:
    """Each line's name behind its end, moved where two would lie on one another."""
    heights = spread([list(row["recalled"].values())[-1] for row in rows])
    return [
        {"x": 1, "xref": "paper", "xanchor": "left", "xshift": 8, "y": height, "yref": "y", "yanchor": "middle", "showarrow": False, "text": row["label"], "font": {"color": _colour(place)}}
        for place, (row, height) in enumerate(zip(rows, heights))
    ]


def spread(heights: Sequence[float], apart: float = APART) -> list[float]:
    """Heights in the same order, at least `apart` from one another, none below the lowest."""
    order, placed = sorted(range(len(heights)), key=lambda at: heights[at]), list(heights)
    for below, above in zip(order, order[1:]):
        placed[above] = max(placed[above], placed[below] + apart)
    surplus = max(placed, default=0) - max(1.0, max(heights, default=0))
    return [height - surplus for height in placed] if surplus > 0 else placed


def words(measured: Mapping) -> str:
    """The chart in a sentence: every line's share at the longest distance."""
    furthest = list(measured["rows"][0]["recalled"])[-1]
    shares = ", ".join(f"{row['label']} {row['recalled'][furthest]:.0%}" for row in measured["rows"] if furthest in row["recalled"])
    return f"Answered right {int(furthest):,} tokens after the telling: {shares}."


def of_models(evaluations: Mapping[str, Mapping]) -> dict:
    """What each bundled model recalls with its own full cache, in the form of a separation: evaluations by the model's name."""
    cells = {name: found["trained_ways"] for name, found in evaluations.items() if name in bundled.MODELS}
    rows = [{"label": name, "recalled": {d: cell["recalled"] for d, cell in row.items()}} for name, row in cells.items()]
    counts = sorted({cell["questions"] for row in cells.values() for cell in row.values()})
    return {"questions": f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else counts[0], "rows": rows}


def chart_value(measured: Mapping) -> str:
    """What the chart component is given."""
    return html_parts.chart_value(figure(measured), words(measured), [("questions a point", f"{measured['questions']}")])
