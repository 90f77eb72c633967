"""A page of charts and tables in one HTML file, with plotly.js inside: no network, no other file.

A figure is a plain dict {"data": [...], "layout": {...}} whose colours are CSS variables, as in the playground; here they get the playground's colours in light.
"""

import json
from collections.abc import Sequence
from html import escape

from ..extras import why_not_imported

LIGHT = {
    "--kv-column-0": "#d9480f", "--kv-column-1": "#a61e4d", "--kv-column-2": "#4f7d0a", "--kv-column-3": "#8a5a00", "--kv-column-4": "#e0318c",
    "--kv-column-5": "#2f3b52", "--kv-text": "#1b2130", "--kv-text-soft": "#5b6477", "--kv-grid": "#e7e9ef",
}  # fmt: skip
STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; color: #1b2130; background: #f6f7fa; margin: 0 auto; max-width: 1180px; padding: 16px; }
section { background: #fff; border: 1px solid #e3e6ed; border-radius: 12px; padding: 14px 16px; margin: 16px 0; }
h1 { font-size: 20px; } h2 { font-size: 15px; margin: 0; } p, li { color: #5b6477; max-width: 100ch; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 12px; } .chart { height: 460px; min-width: 0; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 12.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 8px; text-align: right; font-weight: 400; white-space: nowrap; border-top: 1px solid #e3e6ed; }
thead th { color: #5b6477; border: 0; } tr > :first-child { text-align: left; font-weight: 600; }
"""


def whole(title: str, heading: str, notes: Sequence[str], body: str) -> str:
    """The page, its notes as paragraphs before its body. Raises ImportError without plotly."""
    try:
        from plotly.offline import get_plotlyjs  # the library itself draws nothing
    except ImportError as error:
        raise ImportError(f"the page of charts cannot be made: {why_not_imported(error)}") from error

    lead = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style><script>{get_plotlyjs()}</script></head><body>"
        f"<h1>{escape(heading)}</h1>{lead}{body}</body></html>"
    )


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Texts in columns; the first of each line is its head."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(map(_line, lines))}</tbody></table></div>'


def _line(texts: Sequence[str]) -> str:
    first, *rest = texts
    return f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(text)}</td>" for text in rest)}</tr>'


def chart(name: str, figure: dict) -> str:
    """A figure, drawn when the page has loaded, in an element of this id."""
    layout = {"showlegend": True, **figure["layout"], "legend": {"orientation": "h", "y": -0.18, "font": {"size": 11}}, "paper_bgcolor": "#fff", "plot_bgcolor": "#fff"}
    for axis in ("xaxis", "yaxis"):
        layout[axis] = layout[axis] | {"gridcolor": "var(--kv-grid)"}
    text = json.dumps({"data": figure["data"], "layout": layout}).replace("</", "<\\/")
    for variable, colour in LIGHT.items():
        text = text.replace(f"var({variable})", colour)
    draw = f"const f = {text}; Plotly.newPlot('{name}', f.data, f.layout, {{responsive: true, displaylogo: false}});"
    return f'<div class="chart" id="{name}"></div><script>addEventListener("load", () => {{ {draw} }})</script>'
