"""Catalog parameters -> widgets: one form per cache, made from its catalog entry and nothing else."""
from __future__ import annotations

import html
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import gradio as gr

MAX_SLIDER_STEPS = 1024
MANY = 4  # parameters that are shown together
TEACHING = {"window_length": 64, "residual_length": 0}  # what the page opens with: within three turns one sees what such a cache does


# -- what to show, without widgets -------------------------------------------------------------------------------

def why_not(entry, config) -> str | None:
    """None where the cache can be built for this model here, else the reason in one sentence."""
    return entry.why_not_here() or (entry.why_not_alone(config) if config is not None else None)


def cache_choices(entries: Mapping[str, Any], config=None) -> list[tuple[str, str]]:
    """(label, name) for the dropdown; a cache that can't be used is marked and stays readable."""
    return [(entry.title + (" · not here" if why_not(entry, config) else ""), name) for name, entry in entries.items()]


def disabled(entry, parameter, config) -> dict[Any, str]:
    """The choices of one parameter that can't be used, each with its reason."""
    if parameter.kind != "choice" or config is None:
        return {}
    return dict(entry.disabled_choices(parameter.name, config))


def range_words(parameter) -> str:
    """The range as people read it: "1 to 8,192" or "at least 4"; empty where there is none."""
    low, high = parameter.minimum, parameter.maximum
    if low is not None and high is not None:
        return f"{low:,} to {high:,}"
    if low is not None:
        return f"at least {low:,}"
    return f"at most {high:,}" if high is not None else ""


def info_text(parameter) -> str:
    """Help and range in one line under the label."""
    words = range_words(parameter)
    return parameter.help.rstrip(".") + (f" ({words})." if words else ".")


def is_slider(parameter) -> bool:
    """A slider where every step can be hit with a pointer; a number field for wide or open ranges."""
    if parameter.kind != "int" or parameter.minimum is None or parameter.maximum is None:
        return False
    return (parameter.maximum - parameter.minimum) / (parameter.step or 1) <= MAX_SLIDER_STEPS


def note_html(entry, config) -> str:
    """The line under the cache: what it does, or why it can't be used."""
    reason = why_not(entry, config)
    if reason:
        return f'<p class="kv-warning" role="status">{html.escape(entry.title)}: {html.escape(reason)}</p>'
    return f'<p class="kv-summary">{html.escape(entry.summary)}</p>'


def reasons_html(entry, config, form_id: str) -> str:
    """Choices that can't be used: greyed out, and why, parameters of the same reasons in one line."""
    styles, labels = [], {}
    for parameter in entry.parameters:
        if off := disabled(entry, parameter, config):
            styles.append(_grey_out(widget_id(form_id, entry.name, parameter.name), parameter, off))
            labels.setdefault(reasons_text(off, entry.parts), []).append(parameter.label)
    lines = (words if entry.parts else f"{', '.join(names)} {words}" for words, names in labels.items())
    return "".join(styles) + "".join(f'<p class="kv-quiet">{html.escape(line)}</p>' for line in lines)


def reasons_text(off: Mapping[Any, str], parts: Mapping[str, Any]) -> str:
    """One sentence for all choices that share a reason: "3, 1: native takes 8, 4 or 2 bits"; caches by their titles."""
    by_reason: dict[str, list[str]] = {}
    for choice, why in off.items():
        by_reason.setdefault(why, []).append(parts[choice].title if choice in parts else str(choice))
    return "; ".join(f"{', '.join(choices)}: {why}" for why, choices in by_reason.items())


def _grey_out(elem_id: str, parameter, off: Mapping[Any, str]) -> str:
    places = [n + 1 for n, choice in enumerate(parameter.choices) if choice in off]
    labels = ", ".join(f"#{elem_id} label:nth-of-type({n})" for n in places)
    return f"<style>{labels} {{ opacity: .7; text-decoration: line-through; }}</style>"


def widget_id(form_id: str, *names: str) -> str:
    return "-".join((form_id, *names)).replace("_", "-")


# -- widgets -----------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class CacheForm:
    """A cache dropdown, its note, why some choices can't be had, and one group of parameter widgets per catalog entry, of which one group shows.

    An entry that is made of another one has a group for each of these, too, of which one shows. `widgets` is by
    (cache, parameter) and (cache, part, parameter).
    """
    form_id: str
    entries: Mapping[str, Any]
    preset: str
    cache: gr.Dropdown
    note: gr.HTML
    reasons: gr.HTML
    groups: dict[str, gr.Column]
    parts: dict[tuple[str, str], gr.Column]
    widgets: dict[tuple[str, ...], gr.components.Component]

    @property
    def inputs(self) -> set:
        """Every widget that an event must read to know the chosen cache and its parameters."""
        return {self.cache, *self.widgets.values()}

    @property
    def outputs(self) -> list:
        return [self.cache, self.note, self.reasons, *self.groups.values(), *self.choosers.values()]

    @property
    def choosers(self) -> dict[str, gr.Radio]:
        """By cache, the widget that chooses the part it is made of."""
        return {name: self.widgets[name, self.entries[name].parameters[0].name] for name, _ in self.parts}

    def read(self, values: Mapping) -> tuple[str, dict[str, Any]]:
        """(cache name, its parameters as typed); not yet checked."""
        name = values[self.cache]
        chooser = self.choosers.get(name)
        groups = [(name,), (name, values[chooser])] if chooser else [(name,)]
        return name, {key[-1]: values[widget] for key, widget in self.widgets.items() if key[:-1] in groups}

    def chosen(self, name: str, config) -> dict:
        """Updates after another cache was picked."""
        updates = {group: gr.update(visible=cache == name) for cache, group in self.groups.items()}
        entry = self.entries[name]
        return {self.note: note_html(entry, config), self.reasons: reasons_html(entry, config, self.form_id), **updates}

    def fits(self, name: str, config) -> bool:
        """Can the cache of that name be had for this model?"""
        return not why_not(self.entries[name], config)

    def fitting(self, name: str, config, taken: Collection[str] = ()) -> str:
        """The cache of that name if it can be had for this model, else the form's own or another that can, rather one not in `taken`."""
        others = sorted((self.preset, *self.entries), key=lambda each: each in taken)
        return next((each for each in (name, *others) if self.fits(each, config)), name)

    def refit(self, name: str, config, taken: Collection[str] = (), wanted: str | None = None) -> dict:
        """Updates after another model was loaded: which caches and choices fit it, and one that does in place of one that does not.

        `wanted` is the cache that the one of this name stands in for: it comes back where it fits. A cache that is made of others
        takes the former one for its part, where it can, else the first one not in `taken`. One that fits is not sent back:
        another may have been picked meanwhile.
        """
        former = wanted or name
        new = self.fitting(former, config, taken)
        put = {} if new == name else {"value": new}
        updates = self.chosen(new, config) | {self.cache: gr.update(choices=cache_choices(self.entries, config), **put)}
        entry = self.entries[new]
        if new != name and entry.parts:
            off = disabled(entry, entry.parameters[0], config)
            parts = [part for part in (former, *entry.parts) if part in entry.parts and part not in off]
            updates[self.choosers[new]] = next((part for part in parts if part == former or part not in taken), parts[0])
        return updates

    def part_in(self, updates: Mapping) -> str | None:
        """The part that `refit` chose, or None."""
        return next((updates[chooser] for chooser in self.choosers.values() if chooser in updates), None)

    def wire_parts(self) -> None:
        """Show the settings of the part that was chosen, of every cache that is made of others."""
        for name, chooser in self.choosers.items():
            columns = {part: column for (cache, part), column in self.parts.items() if cache == name}
            chooser.change(lambda chosen, parts=tuple(columns): [gr.update(visible=part == chosen) for part in parts], chooser, [*columns.values()],
                           queue=False, show_progress="hidden", api_visibility="private")


def cache_form(entries: Mapping[str, Any], form_id: str, default: str, *, label: str = "Cache",
               values: Mapping[str, Any] | None = None, folded: bool = False) -> CacheForm:
    """Build the form where it is called. `values` replaces defaults of the cache chosen at first; `folded` hides the
    parameters behind a heading."""
    cache = gr.Dropdown(cache_choices(entries), value=default, label=label, elem_id=f"{form_id}-cache", filterable=False)
    note = gr.HTML(note_html(entries[default], None), elem_classes="kv-note")
    groups, parts, widgets = {}, {}, {}
    with gr.Accordion("Settings", open=False) if folded else nullcontext():
        reasons = gr.HTML(reasons_html(entries[default], None, form_id), elem_classes="kv-note")
        for name, entry in entries.items():
            with gr.Column(visible=name == default, elem_classes="kv-params") as groups[name]:
                given = values or {} if name == default else {}
                widgets |= _parameter_widgets(entry, form_id, given)
                for part, own in entry.parts.items():
                    with gr.Column(visible=part == entry.parameters[0].default, elem_classes="kv-params") as parts[name, part]:
                        widgets |= _parameter_widgets(own, form_id, {}, name)
                if folded and not entry.parameters:
                    gr.HTML('<p class="kv-quiet">Nothing to set.</p>')
    return CacheForm(form_id, entries, default, cache, note, reasons, groups, parts, widgets)


def _parameter_widgets(entry, form_id: str, given: Mapping[str, Any], *whole: str) -> dict:
    """Widgets of an entry's parameters, or of those it has as a part of the entry called `whole`; of many, all but the figures are folded."""
    keys = {parameter: (*whole, entry.name, parameter.name) for parameter in entry.parameters}
    titles = {part: own.title for part, own in entry.parts.items()}
    folded = [parameter for parameter in keys if len(keys) > MANY and not isinstance(parameter.default, int)]
    made = {}
    for group in ([parameter for parameter in keys if parameter not in folded], folded):
        with gr.Accordion("More", open=False) if group and group is folded else nullcontext():
            made |= {keys[parameter]: parameter_widget(parameter, given.get(parameter.name, opening_value(parameter)), widget_id(form_id, *keys[parameter]), titles)
                     for parameter in group}
    return {key: made[key] for key in keys.values()}


def opening_value(parameter) -> Any:
    """What a parameter's widget opens with: the catalog's default, or a value at which its effect shows in a short chat."""
    return TEACHING.get(parameter.name, parameter.default)


def parameter_widget(parameter, value, elem_id: str, titles: Mapping[str, str]) -> gr.components.Component:
    """One widget for one parameter; ranges are checked by the catalog, so that its sentence is what people read."""
    common = {"value": value, "label": parameter.label, "info": info_text(parameter), "elem_id": elem_id}
    if parameter.kind == "bool":
        return gr.Checkbox(**common)
    if parameter.kind == "choice":
        return gr.Radio(choices=[(titles.get(choice, str(choice)), choice) for choice in parameter.choices], **common)
    if is_slider(parameter):
        return gr.Slider(minimum=parameter.minimum, maximum=parameter.maximum, step=parameter.step, **common)
    return gr.Number(precision=0 if parameter.kind == "int" else None, step=parameter.step or 1, **common)
