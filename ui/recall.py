"""What each cache forgets, as measured on the bundled model: recall over the distance between telling and question."""
from __future__ import annotations

from collections.abc import Mapping

from kvcache import bundled
from kvcache.bundled import separation

from . import html_parts

# Caches that answer alike lie on one line: the wider ones are drawn first.
STYLES = {
    "Dynamic": ("var(--kv-column-0)", 6, "solid"), "Static": ("var(--kv-text-soft)", 1.5, "dot"), "Offloaded": ("var(--kv-text-soft)", 1.5, "dash"),
    separation.NO_CACHE: ("var(--kv-text)", 1.5, "dash"), "Native 8-bit": ("var(--kv-column-2)", 4, "dot"), "Native 4-bit": ("var(--kv-column-2)", 2, "solid"),
    "Native 2-bit, keys by token": ("var(--kv-column-1)", 2, "dash"), "Native 2-bit": ("var(--kv-column-1)", 2, "solid"), "HQQ 2-bit": ("var(--kv-column-3)", 2, "dot"), "HQQ 1-bit": ("var(--kv-column-3)", 2, "dash"),
    separation.UPSTREAM: ("var(--kv-text-soft)", 2, "solid"),
    "Window": ("var(--kv-column-5)", 3, "solid"), "Sink": ("var(--kv-column-4)", 2, "dash"), separation.NEVER_TOLD: ("var(--kv-text-soft)", 2, "dot"),
}


COLOURS = (*(f"column-{n}" for n in range(6)), "text-soft")  # of the models that are here, in order
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")  # beside the colours, which not everybody tells apart


def figure(measured: Mapping) -> dict:
    """Lines: share of questions answered right over tokens between telling and question, one per row."""
    distances = [int(d) for d in measured["rows"][0]["recalled"]]
    layout = {
        "margin": {"l": 52, "r": 14, "t": 10, "b": 44}, "hovermode": "closest",
        "xaxis": {"type": "log", "title": {"text": "tokens between the telling and the question", "standoff": 6}, "tickmode": "array", "tickvals": distances,
                  "ticktext": [f"{d:,}" for d in distances]},
        "yaxis": {"title": {"text": "answered right", "standoff": 6}, "tickformat": ".0%", "range": [-0.03, 1.03]},
    }
    return {"data": [_line(row) for row in measured["rows"]], "layout": layout}


def _line(row: Mapping) -> dict:
    colour, width, dash = next((style for start, style in STYLES.items() if row["label"].startswith(start)), ("var(--kv-text)", 1.5, "solid"))
    symbol = "circle"
    if row["label"] in bundled.MODELS:
        place = list(bundled.MODELS).index(row["label"])
        colour, width, symbol = f"var(--kv-{COLOURS[place]})", 2, SYMBOLS[place]
    return {
        "type": "scatter", "mode": "lines+markers", "name": row["label"], "x": [int(d) for d in row["recalled"]], "y": list(row["recalled"].values()),
        "line": {"color": colour, "width": width, "dash": dash}, "marker": {"size": width + 4 if symbol == "circle" else 9, "symbol": symbol},
        "hovertemplate": f"{row['label']}, %{{x:,}} tokens: %{{y:.0%}}<extra></extra>",
    }


def words(measured: Mapping) -> str:
    """The chart in a sentence: every cache's share at the longest distance."""
    furthest = list(measured["rows"][0]["recalled"])[-1]
    shares = ", ".join(f"{row['label']} {row['recalled'][furthest]:.0%}" for row in measured["rows"] if furthest in row["recalled"])
    return f"Answered right {int(furthest):,} tokens after the telling: {shares}."


def of_models(evaluations: Mapping[str, Mapping]) -> dict:
    """What each bundled model recalls with its own full cache, in the form of a separation: evaluations by the model's name."""
    cells = {name: found["trained_ways"] for name, found in evaluations.items()}
    rows = [{"label": name, "recalled": {d: cell["recalled"] for d, cell in row.items()}} for name, row in cells.items()]
    counts = sorted({cell["questions"] for row in cells.values() for cell in row.values()})
    return {"questions": f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else counts[0], "rows": rows}


def chart_value(measured: Mapping) -> str:
    """What the chart component is given."""
    return html_parts.chart_value(figure(measured), words(measured), [("questions a point", f"{measured['questions']}")])
