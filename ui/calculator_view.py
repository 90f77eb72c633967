"""A calculation as HTML and a chart. Pure functions."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from kvcache.measure.calculator import Calculation, Cost, Device, Fit, to_csv

from . import html_parts
from .charts import KINDS, human_bytes, ratio_text

HEADS = ("Cache", "Bytes", "of each user", "Times smaller", "On the device", "Most users", "Longest context")


def summary_html(title: str, found: Calculation, device: Device) -> str:
    """What was asked, what the weights take and what is left for caches."""
    asked, room = found.workload, found.room(device)
    facts = [("parameters", f"{found.weights:,}"), ("weights", human_bytes(found.weights_nbytes)), (device.name, human_bytes(device.nbytes)),
             ("left for caches", human_bytes(max(room, 0)))]
    if found.context_length:
        facts.append(("trained for", f"{found.context_length:,} tokens"))
    lines = [f'<p class="kv-facts">{escape(title)}: {html_parts.figures_line(facts)}</p>']
    if room < 0:
        lines.append(html_parts.notice(f"The weights alone do not fit: {human_bytes(found.weights_nbytes)} into {human_bytes(found.weights_nbytes + room)}."))
    if found.context_length and asked.tokens > found.context_length:
        lines.append(html_parts.notice(f"{asked.tokens:,} tokens are more than this model was trained for: {found.context_length:,}."))
    return "".join(lines)


def table_html(found: Calculation, device: Device) -> str:
    """One row per cache: its bytes, and what of it fits on the device."""
    dynamic = next((cost.memory.total for cost in found.costs if cost.name == "dynamic"), 0)
    rows = "".join(_row_html(found, cost, device, dynamic) for cost in found.costs)
    words = (f"Bytes of {_users(found.workload.users)} with {found.workload.tokens:,} tokens each, reserved ones too; how many times smaller than Dynamic's. {found.workload.kept_free:.0%} of the device are left "
             "for activations. A context that fits may be longer than the model was trained for.")
    if device.is_accelerator and any(cost.on_accelerator < cost.memory.total for cost in found.costs):
        words += " Of an offloaded cache two layers are on the device, and the others wait in the host's memory."
    return html_parts.figures_table("Caches", HEADS, rows) + f'<p class="kv-quiet">{words}</p>' + _left_out(found.why_not)


def _row_html(found: Calculation, cost: Cost, device: Device, dynamic: int) -> str:
    fit, users = found.fit(cost, device), found.workload.users
    cells = (human_bytes(users * cost.memory.total), human_bytes(cost.memory.total), ratio_text(dynamic, cost.memory.total), human_bytes(users * cost.nbytes_on(device)),
             f"{fit.users:,}", tokens_words(fit))
    fits = "" if users * cost.nbytes_on(device) <= found.room(device) else ' class="kv-too-much"'
    return f'<tr{fits}><th scope="row">{escape(cost.label)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'


def tokens_words(fit: Fit) -> str:
    """The longest context, rounded down to three digits; what is known of it is one in 200."""
    if not fit.tokens:
        return "any" if fit.tokens is None else "–"
    step = 10 ** max(0, len(str(fit.tokens)) - 3)
    return f"{fit.tokens // step * step:,}"


def devices_html(found: Calculation, devices: Sequence[Device]) -> str:
    """One row per device: how many users of each cache it takes, and how long a context."""
    heads = ("Device", "Memory", *(cost.label for cost in found.costs))
    rows = "".join(_device_row(found, device) for device in devices)
    words = f"Most users with {found.workload.tokens:,} tokens each; under it, the longest context of {_users(found.workload.users)}. Weights are counted in."
    return html_parts.figures_table("Devices", heads, rows) + f'<p class="kv-quiet">{words}</p>'


def _device_row(found: Calculation, device: Device) -> str:
    fits = [found.fit(cost, device) for cost in found.costs]
    cells = "".join(f"<td>{fit.users:,}<br><small>{tokens_words(fit)}</small></td>" if fit.users or fit.tokens != 0 else "<td>–</td>" for fit in fits)
    return f'<tr><th scope="row">{escape(device.name)}</th><td>{human_bytes(device.nbytes)}</td>{cells}</tr>'


def _left_out(why_not: Mapping[str, str]) -> str:
    if not why_not:
        return ""
    lines = "".join(f"<li>{escape(reason)}</li>" for reason in why_not.values())
    return f'<details class="kv-quiet"><summary>{len(why_not)} caches do not suit this model</summary><ul>{lines}</ul></details>'


def _users(count: int) -> str:
    return "one user" if count == 1 else f"{count:,} users"


def chart(found: Calculation, device: Device) -> str:
    """Stacked bars of bytes by kind, one per cache, and a line where the device is full."""
    room = found.room(device)
    smallest = min(found.costs, key=lambda cost: cost.memory.total)
    sentence = f"The smallest is {smallest.label} with {human_bytes(found.workload.users * smallest.memory.total)}; {human_bytes(max(room, 0))} are left for caches."
    return html_parts.chart_value(figure(found, device), sentence)


def figure(found: Calculation, device: Device) -> dict:
    """The chart as a Plotly figure: as `charts.memory_figure`, of caches in place of layers."""
    names, users = [cost.label for cost in found.costs], found.workload.users
    amounts = [{kind: users * nbytes for kind, nbytes in cost.memory.by_kind().items()} for cost in found.costs]
    totals = [sum(each.values()) for each in amounts]
    data = [_bars(kind, [each[kind] for each in amounts], names) for kind in KINDS if any(each[kind] for each in amounts)]
    data.append({"type": "scatter", "mode": "text", "x": totals, "y": names, "text": [f" {human_bytes(n)}" for n in totals], "textposition": "middle right",
                 "cliponaxis": False, "hoverinfo": "skip", "textfont": {"size": 11, "color": "var(--kv-text-soft)"}})
    layout = {"barmode": "stack", "bargap": 0.3, "margin": {"l": 128, "r": 62, "t": 18, "b": 30},
              "xaxis": {"tickformat": "~s", "ticksuffix": "B", "nticks": 5, "rangemode": "tozero", "range": [0, 1.02 * max(totals)]},
              "yaxis": {"autorange": "reversed", "showgrid": False, "fixedrange": True}}
    if 0 < found.room(device) <= 1.02 * max(totals):
        layout |= _full(found.room(device), device)
    return {"data": data, "layout": layout}


def _bars(kind: str, nbytes: list[int], names: list[str]) -> dict:
    return {"type": "bar", "orientation": "h", "name": kind, "x": nbytes, "y": names, "marker": {"color": f"var(--kv-{kind})", "line": {"width": 0}},
            "hovertemplate": f"%{{y}}, {kind}: %{{x:.3~s}}B<extra></extra>"}


def _full(room: int, device: Device) -> dict:
    line = {"type": "line", "x0": room, "x1": room, "yref": "paper", "y0": 0, "y1": 1, "line": {"color": "var(--kv-text)", "width": 1.5, "dash": "dash"}}
    words = {"x": room, "yref": "paper", "y": 1, "yanchor": "bottom", "text": f"{device.name} is full", "showarrow": False, "font": {"size": 11, "color": "var(--kv-text-soft)"}}
    return {"shapes": [line], "annotations": [words]}


def download_html(found: Calculation, devices: Sequence[Device]) -> str:
    return html_parts.downloads(("CSV", "caches.csv", "text/csv", to_csv(found, devices)))
