"""Keep and share: the set-up as Python and as a link, the conversation as a file, alone or with its cache, and a file as a conversation."""
from __future__ import annotations

import base64
import binascii
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import gradio as gr

from kvcache.catalog import ENTRIES
from kvcache.chat import models, record
from kvcache.chat.conversation import Conversation
from kvcache.chat.program import program
from kvcache.chat.record import RecordError
from kvcache.entry import Entry
from kvcache.saving import read as read_cache_file

from . import html_parts, kept, layout, view
from .events import keep_after, key_of, read_settings
from .kept import settings_of
from .layout import ChatTab
from .state import Registry, Session, Settings, sampling_of

FIRST_MESSAGE = layout.EXAMPLES[0]
LARGEST = 300_000_000  # bytes of a file that is taken in
COPIED, DOWNLOADED = "Copied; it stands below, too.", "Downloaded."
IN_USE = "A reply is being written: wait for it or press Stop."

# Each is given text by the server and does in the browser what only a browser can.
COPY = "(text) => { if (text && navigator.clipboard) navigator.clipboard.writeText(text).catch(() => {}); }"
COPY_LINK = """(query) => {
  if (!query) return "";
  const tab = document.querySelector('#kv-tabs [role="tab"][aria-selected="true"]')?.innerText.trim().toLowerCase() ?? "chat";
  const link = `${location.origin}${location.pathname}?${query}&tab=${tab}`;
  navigator.clipboard?.writeText(link).catch(() => {});
  return link;
}"""
DOWNLOAD = """(text) => {
  if (!text) return;
  const link = Object.assign(document.createElement("a"), { download: text.startsWith("{") ? "conversation.json" : "conversation.safetensors",
    href: text.startsWith("{") ? URL.createObjectURL(new Blob([text], { type: "application/json" })) : text });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}"""
PICK = """() => new Promise((done) => {
  const input = Object.assign(document.createElement("input"), { type: "file", accept: ".json,.safetensors", id: "kv-picked-file" });
  input.oncancel = () => done("");
  input.onchange = () => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => done("");
    if (input.files[0].size > LARGEST) done("too large"); else reader.readAsDataURL(input.files[0]);
  };
  input.click();
})""".replace("LARGEST", str(LARGEST))


# -- out ---------------------------------------------------------------------------------------------------------

def python_of(session: Session | None, wanted: Settings) -> str:
    """The program of a set-up, which answers the chat's first message. Raises ValueError."""
    messages = session.conversation.messages if session and session.conversation else []
    message = messages[0]["content"] if messages else FIRST_MESSAGE
    return program(models.load(wanted.model), wanted.cache, wanted.parameters, message, wanted.system.strip(), sampling_of(wanted))


def ready(session: Session | None) -> Conversation:
    """The conversation of a tab that can be kept now. Raises ValueError."""
    if session is None or not session.holds_messages:
        raise ValueError("There is nothing to keep yet: the conversation is empty.")
    if session.chat_box.occupied:
        raise ValueError(IN_USE)
    if session.conversation.loaded is None:
        session.conversation.attach(models.load(session.settings.model))
    return session.conversation


def with_cache(talk: Conversation) -> str:
    """The file of conversation and cache as a data URL. Raises ValueError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conversation.safetensors"
        record.save(talk, path)
        return f"data:application/octet-stream;base64,{base64.b64encode(path.read_bytes()).decode()}"


# -- as a link ---------------------------------------------------------------------------------------------------

KEPT = "What this browser kept"
TABS = ("chat", "compare", "measure", "calculator", "learn")
MAX_CHARACTERS = 200


def query(settings: Settings) -> str:
    """What stands behind the "?": model, cache and the parameters that are not the cache's defaults."""
    entry = ENTRIES[settings.cache]
    known = entry.known(settings.parameters)
    changed = {name: value for name, value in settings.parameters.items() if name in known and value != known[name].default}
    return urlencode({"model": settings.model, "cache": settings.cache, **changed})


def read_link(given: Mapping[str, str], model: str, source: str = "The link") -> tuple[Settings, list[str]]:
    """(settings, sentences on what a link asks for and does not get); `model` where it names none that is here. Nothing is downloaded for a link."""
    given, refused = {name: value[:MAX_CHARACTERS] for name, value in given.items()}, []
    wanted = given.get("model", model)
    if wanted != model and not models.is_here(wanted):
        refused.append(f"{source} names the model {wanted}, which is not on this computer: pick it under Model to have it.")
        wanted = model
    cache = given.get("cache", "dynamic")
    if cache not in ENTRIES:
        return Settings(wanted, "dynamic"), [*refused, f"{source} names the cache {cache!r}; there are {', '.join(ENTRIES)}."]
    parameters, wrong = read_parameters(ENTRIES[cache], given, source)
    return Settings(wanted, cache, parameters), refused + wrong


def read_parameters(entry: Entry, given: Mapping[str, str], source: str) -> tuple[dict[str, Any], list[str]]:
    """The parameters of a cache that a query gives, in their types, and a sentence for each that cannot be."""
    found, wrong = {}, []
    for name, parameter in entry.known(given).items():
        if name in given:
            try:
                value = given[name]
                found[name] = parameter.check({"true": True, "false": False}.get(value.lower(), value) if parameter.kind == "bool" else value)
            except ValueError as error:
                wrong.append(f"{source}: {error}.")
    return found, wrong


# -- in ----------------------------------------------------------------------------------------------------------

def read_file(url: str) -> tuple[Conversation, str]:
    """The conversation in a file that a browser read, a data URL, and what is to be said of it. Raises ValueError with a sentence."""
    if url == "too large" or len(url) > 1.4 * LARGEST:
        raise RecordError(f"The file is larger than {LARGEST // 10**6} MB, the most that is taken.")
    try:
        raw = base64.b64decode(url.partition("base64,")[2], validate=True)
    except (binascii.Error, ValueError) as error:
        raise RecordError("The file could not be read.") from error
    return _from_json(raw) if raw.lstrip()[:1] in (b"{", b"[", b"") else _from_cache_file(raw)


def _from_json(raw: bytes) -> tuple[Conversation, str]:
    found = record.parse(raw.decode("utf-8", "replace"))
    talk = record.restore(found, _model_of(found))
    alike = "" if talk.ids or not talk.messages else " This model's weights are other ones than the file's: its text is tokenised anew."
    return talk, f"The next reply computes its tokens again.{alike}"


def _from_cache_file(raw: bytes) -> tuple[Conversation, str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conversation.safetensors"
        path.write_bytes(raw)
        talk = record.load(path, _model_of(record.check(read_cache_file(path).header.get("conversation"))))
    return talk, f"Its cache holds {len(talk.cached_ids):,} tokens; the next reply says how many of them it reused."


def _model_of(found: Mapping[str, Any]) -> models.LoadedModel:
    """The model a file names, if nothing has to be downloaded for it. Raises ModelError."""
    if found["model"] not in models.STORE.ids() and not models.is_here(found["model"]):
        raise models.ModelError(f"The file is a conversation with {found['model']:.100}, which is not on this computer: pick it under Model first.")
    return models.load(found["model"])


# -- the form ----------------------------------------------------------------------------------------------------

def filled_in(tab: ChatTab, settings: Settings, config: Any) -> dict:
    """Updates that make the Chat tab's form show a model, a cache and its parameters."""
    form, entry = tab.form, ENTRIES[settings.cache]
    chosen = settings.parameters.get(entry.parameters[0].name, entry.parameters[0].default) if entry.parts else None
    shown = {tab.model: settings.model, form.cache: settings.cache, **form.chosen(settings.cache, config)}
    for key, widget in form.widgets.items():
        if key[0] == settings.cache and key[-1] in settings.parameters and (len(key) == 2 or key[1] == chosen):
            shown[widget] = settings.parameters[key[-1]]
    return shown | {column: gr.update(visible=part == chosen) for (cache, part), column in form.parts.items() if cache == settings.cache}


def form_outputs(tab: ChatTab) -> list:
    return list(dict.fromkeys([tab.model, *tab.form.outputs, *tab.form.widgets.values(), *tab.form.parts.values()]))


# -- wiring ------------------------------------------------------------------------------------------------------

def kept_names(tab: ChatTab) -> dict[str, Any]:
    """The widgets of the form by the names under which a browser keeps their values."""
    sampling = {f"sampling {name}": widget for name, widget in vars(tab.sampling).items()}
    return {"model": tab.model, "system": tab.system, "cache": tab.form.cache, **sampling, **{" ".join(key): widget for key, widget in tab.form.widgets.items()}}


def kept_form(tab: ChatTab, found: Mapping[str, Any]) -> tuple[dict[str, str], dict]:
    """(model, cache and parameters as a link would name them, updates of the other widgets) from what a browser kept."""
    names = kept_names(tab)
    values = {widget: found.get(name, widget.value) for name, widget in names.items()}
    cache, parameters = tab.form.read(values)
    sampling = kept.sound_sampling(tab.sampling.read(values))
    given = {name: str(value) for name, value in {**parameters, "model": values[tab.model], "cache": cache}.items()}
    return given, {tab.system: str(values[tab.system]), **{widget: sampling[name] for name, widget in vars(tab.sampling).items() if name in sampling}}


def on_load(tab: ChatTab, tabs: gr.Tabs, page: gr.Blocks, model: str, registry: Registry):
    """The event that fills in what the page's address asks for, and what this browser kept, before anything else is read; others follow it."""
    def arrive(text, request: gr.Request):
        given = {name: str(value) for name, value in (request.query_params or {}).items()} if request else {}
        before = kept.read_values(text)
        found = kept.read_values(before.get("form"))
        wanted, shown = kept_form(tab, found) if found else ({}, {})
        chosen = next((each for each in (given.get("tab"), before.get("tab")) if each in TABS), None)
        shown |= {tabs: gr.Tabs(selected=chosen)} if chosen else {}
        shown |= {tab.message: str(before["draft"])} if before.get("draft") else {}
        by_link = bool({"model", "cache"} & set(given))
        if not (by_link or found):
            return shown or gr.skip()
        settings, refused = read_link(given, model) if by_link else read_link(wanted, model, KEPT)
        return shown | filled_in(tab, settings, None) | ({tab.notice: html_parts.notice(" ".join(refused))} if refused else {})

    quick = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    outputs = [tabs, tab.notice, tab.message, tab.system, *vars(tab.sampling).values(), *form_outputs(tab)]
    opened = page.load(arrive, tab.kept, outputs, js="() => window.kvKept.form()", **quick)
    opened.then(None, None, None, js="() => { window.kvKept.ready = true; }", **quick)
    wire_kept(tab, tabs, opened, model, registry)
    return opened


def wire_kept(tab: ChatTab, tabs: gr.Tabs, opened, model: str, registry: Registry) -> None:
    """Have the browser keep the form and the tab as they change, and take up the chat that it kept."""
    quick = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    names = kept_names(tab)

    def take_up(text, request: gr.Request):
        session = registry.get(key_of(request))
        if not text:
            return gr.skip()
        try:
            sentence = kept.take_up(session, text, session.showing or model)
        except ValueError as error:
            return {tab.kept_notice: html_parts.notice(str(error))}
        return {tab.kept_notice: html_parts.notice(sentence, "info"), tab.chatbot: view.chat_messages(session)}

    opened.then(take_up, tab.kept, [tab.kept_notice, tab.chatbot], js="() => window.kvKept.read('chat')", concurrency_id="fetch", concurrency_limit=8,
                show_progress="minimal", show_progress_on=[tab.chatbot], api_visibility="private")
    gr.on([widget.change for widget in names.values()], None, list(names.values()), None, js=f"(...values) => window.kvKept.keepForm({json.dumps(list(names))}, values)", **quick)
    for each in tabs.children:
        each.select(None, None, None, js=f"() => window.kvKept.write('tab', '{each.id}')", **quick)


def wire_share(tab: ChatTab, header: gr.HTML, registry: Registry) -> None:
    """Connect the buttons. What a browser must do, it does with what the server answers."""
    form = tab.share
    quick = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": 4, "concurrency_id": "share"}
    local = {"show_progress": "hidden", "api_visibility": "private", "queue": False}

    def said(work):
        """What `work(session)` returns, or its sentence in the notice and nothing to copy or download."""
        def answer(values, request: gr.Request):
            try:
                return work(registry.find(key_of(request)), values)
            except ValueError as error:
                return {form.notice: html_parts.notice(str(error), "error"), form.text: ""}

        return answer

    def python(session, values):
        text = python_of(session, read_settings(tab, values))
        return {form.code: gr.update(value=text, visible=True), form.text: text, form.notice: html_parts.notice(COPIED, "info")}

    def link(session, values):
        text = query(read_settings(tab, values))
        return {form.text: text, form.address: gr.update(visible=True), form.notice: html_parts.notice(COPIED, "info")}

    def export(session, values):
        return {form.text: record.to_json(ready(session)), form.notice: html_parts.notice(DOWNLOADED, "info")}

    def export_cache(session, values):
        return {form.text: with_cache(ready(session)), form.notice: html_parts.notice(DOWNLOADED, "info")}

    def take_in(text, request: gr.Request):
        if not text:
            return gr.skip()
        session = registry.get(key_of(request))
        try:
            return _taken_in(tab, header, registry, session, text)
        except (ValueError, OSError) as error:
            return {form.notice: html_parts.notice(str(error), "error"), form.text: ""}

    outputs = [form.notice, form.text, form.code, form.address]
    form.python.click(said(python), tab.settings, outputs, **quick).then(None, form.text, None, js=COPY, **local)
    form.link.click(said(link), tab.settings, outputs, **quick).then(None, form.text, form.address, js=COPY_LINK, **local)
    for button, work in ((form.export, export), (form.export_cache, export_cache)):
        button.click(said(work), tab.settings, outputs, **quick).then(None, form.text, None, js=DOWNLOAD, **local)
    painted = [form.notice, form.text, header, tab.system, tab.chatbot, tab.memory, tab.history, tab.fates, *tab.sampling.inputs, *form_outputs(tab)]
    keep_after(form.load.click(take_in, form.text, painted, js=PICK, **quick), tab, registry)


def _taken_in(tab: ChatTab, header: gr.HTML, registry: Registry, session: Session, url: str) -> dict:
    if session.chat_box.occupied:
        raise ValueError(IN_USE)
    talk, words = read_file(url)
    settings = settings_of(talk)
    session.adopt(talk, settings)
    registry.make_room(keep=session)
    session.showing = settings.model
    sampling = {widget: settings.sampling[name] for name, widget in vars(tab.sampling).items()}
    notice = html_parts.notice(f"Took in {len(talk.messages)} messages. {words}", "info")
    return {tab.share.notice: notice, tab.share.text: "", header: layout.header_html(view.model_status(talk.loaded)), tab.system: settings.system, tab.chatbot: view.chat_messages(session),
            **dict(zip((tab.memory, tab.history, tab.fates), view.charts_at_rest(session))), **sampling, **filled_in(tab, settings, talk.loaded.config)}
