"""The Chat tab's wiring: what happens on each click, as generators that yield {widget: value}."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gradio as gr

from kvcache.chat import models
from kvcache.chat.conversation import chats
from kvcache.chat.engine import Done

from . import branches, html_parts, kept, layout, view
from .forms import CacheForm
from .health import log_turn
from .layout import ChatTab
from .pending import AGAIN, MORE, Outbox
from .state import Registry, Session, Settings, whole_setting
from .stream import batches

PEOPLE = whole_setting("KVCACHE_PEOPLE_AT_ONCE", 64)  # whose replies are written at once; more stand in a queue
CHAT_QUEUE = {"concurrency_id": "chat", "concurrency_limit": PEOPLE}
COMPARE_QUEUE = {"concurrency_id": "compare", "concurrency_limit": 2}  # each takes turns, forward by forward, with the chats on its model
LOST = "The server no longer has this conversation: it was started again, or the page was away for too long. This message begins a new one."
FOUND = "The server no longer had this conversation: it goes on as this browser kept it."
ASK = "lost"  # what has the browser send the chat that it kept, before the turn comes
PAINT_SECONDS = 0.15
CHART_SECONDS = 0.5


def read_settings(tab: ChatTab, values: Mapping) -> Settings:
    cache, parameters = tab.form.read(values)
    return Settings(values[tab.model] or "", cache, parameters, values[tab.system] or "", tab.sampling.read(values))


def key_of(request: gr.Request | None) -> str:
    """The key of the tab or client that asks. Raises gr.Error where there is none: nobody shares a conversation with strangers."""
    if request is None or not request.session_hash:
        raise gr.Error("A request needs a session_hash: use the page, gradio_client, or the calls under /gradio_api/call.", print_exception=False)
    return request.session_hash


# -- one reply ---------------------------------------------------------------------------------------------------

def reply(tab: ChatTab, registry: Registry, session: Session, wanted: Settings, ask: Callable, typed: str = "", note: str = ""
          ) -> Iterator[dict]:
    """Answer and paint: about seven times a second the text, twice the charts.

    `ask(conversation, stop)` starts the reply. `typed` is the message to give back if it is refused; `note` is said above the box.
    """
    stop = session.chat_box.stop
    try:
        changed = session.prepare(wanted) or note
        former = session.conversation.turns[-1] if ask in UNCHANGED and session.holds_messages else None
        earlier, user, events = _start(session, ask, stop)
    except Exception as error:
        session.chat_box.give_back(typed)
        yield refused(tab, reason(error)) | _at_rest(tab, session)
        return
    try:
        with session.at_work():
            written = view.Reply(former.reply if ask is more else "")
            yield {tab.chatbot: earlier + written.messages(user), tab.notice: html_parts.notice(changed, "info"),
                   tab.message: layout.STOP_BUTTON}
            for charts_too in paint_times(events, written, session, stop):
                frame = {tab.chatbot: earlier + written.messages(user)}
                yield frame | (_charts(tab, session, written) if charts_too else {})
    except Exception as error:
        session.chat_box.give_back(typed)
        yield refused(tab, f"The reply broke off: {error}") | _at_rest(tab, session)
        return
    finally:
        registry.make_room(keep=session)
    log_turn(session, written.reason)
    the_same = written.tokens and ask is again and former.reply_ids == session.conversation.turns[-1].reply_ids
    sentence = " ".join(filter(None, (changed, view.THE_SAME if the_same else "", view.ending(written, UNCHANGED.get(ask, view.TAKEN_BACK)))))
    if written.reason == "stopped" and not written.tokens:
        session.chat_box.give_back(typed)
        if ask not in UNCHANGED:
            session.history.turns.pop()
    yield {tab.notice: html_parts.notice(sentence, "info"), **_at_rest(tab, session), **_charts(tab, session, written)}


def reason(error: Exception) -> str:
    """Why something could not begin: our own errors say it in a sentence."""
    return str(error) if isinstance(error, ValueError) else f"That did not begin: {type(error).__name__}: {error}"


def _start(session: Session, ask: Callable, stop: threading.Event) -> tuple[list[dict], str, Iterator]:
    """(messages before the reply, the user's message, the engine's events); ValueError where it is refused."""
    shown = view.chat_messages(session)
    user, events = ask(session.conversation, stop)
    session.history.start_turn(again=ask in UNCHANGED)
    return (shown[:_last_user(shown)] if ask in UNCHANGED else shown), user, events


def _last_user(shown: list[dict]) -> int:
    return max(n for n, message in enumerate(shown) if message["role"] == "user")


def paint_times(events: Iterator, written: view.Reply, session: Session, stop: threading.Event) -> Iterator[bool]:
    """Take in events as they come; yield when it is time to paint, True when the charts are due as well."""
    charted = time.perf_counter()
    for batch in batches(with_fates(events, session), stop, PAINT_SECONDS):
        for event, ribbon in batch:
            written.add(event)
            session.history.add(event)
            written.fates = ribbon or written.fates
        charts_too = time.perf_counter() - charted >= CHART_SECONDS
        yield charts_too
        charted = time.perf_counter() if charts_too else charted


def with_fates(events: Iterator, session: Session) -> Iterator[tuple]:
    """(event, every token's fate or None): the cache is asked in the thread that fills it, as often as charts are due."""
    asked = time.perf_counter()
    for event in events:
        due = isinstance(event, Done) or time.perf_counter() - asked >= CHART_SECONDS / 2
        yield event, view.fates_of(session) if due else None
        asked = time.perf_counter() if due else asked


def _charts(tab: ChatTab, session: Session, written: view.Reply) -> dict:
    if written.snapshot is None:
        return {}
    pending = 1 if written.stats.generated else 0
    return {tab.memory: view.memory_chart(written.snapshot), tab.history: view.history_chart(session, written.snapshot),
            tab.fates: view.ribbon(session, written.fates, pending)}


def _charts_at_rest(tab: ChatTab, session: Session) -> dict:
    return dict(zip((tab.memory, tab.history, tab.fates), view.charts_at_rest(session)))


def _at_rest(tab: ChatTab, session: Session) -> dict:
    """The messages there are, and a box that takes another. What was typed into it meanwhile stays."""
    return {tab.chatbot: view.chat_messages(session), tab.message: layout.SEND_BUTTON, **branches.shown(tab.branches, session)}


def refused(tab: ChatTab, sentence: str) -> dict:
    """The sentence above the message box."""
    return {tab.notice: html_parts.notice(sentence, "error")}


def in_turn(box: Outbox, answer: Callable[[Any], Iterator[dict]], taken_back: Callable[[str], dict], ticket: int | None = None) -> Iterator[dict]:
    """Answer what has its turn, if the ticket is its own. What was stopped while it waited is taken back, a message into its box, with `taken_back(sentence)`."""
    wanted = box.next(ticket)
    if wanted is None:
        yield gr.skip()  # without a word, Gradio would empty what the event paints
        return
    try:
        if box.stop.is_set():
            box.give_back(wanted)
            yield taken_back(html_parts.notice("Taken back before its turn came" + (": all stays as it was." if wanted is AGAIN else "."), "info"))
        else:
            yield from answer(wanted)
    finally:
        box.done()


def buttons(tab: Any, registry: Registry, box_of: Callable[[Session], Outbox]) -> Callable:
    """For what is wanted without a message, the handler of its button, which has it wait for its turn in a tab's box."""
    def pressed(wanted):
        def accept(request: gr.Request):
            box = box_of(registry.get(key_of(request)))
            return {tab.message: layout.STOP_BUTTON, tab.ticket: box.ticket} if box.take(wanted) else gr.skip()

        return accept

    return pressed


def stops(registry: Registry, box_of: Callable[[Session], Outbox]) -> Callable:
    """A handler that stops what waits or runs in one tab."""
    def stop(request: gr.Request):
        session = registry.find(key_of(request))
        if session:
            box_of(session).stop.set()

    return stop


def give_back_after(event, widget: gr.Textbox, registry: Registry, box_of: Callable[[Session], Outbox]) -> None:
    """Once the event is over, put a message that was not answered back into its widget, before what was typed since."""
    def give_back(draft, request: gr.Request):
        session = registry.find(key_of(request))
        text = box_of(session).into(draft) if session else None
        return gr.skip() if text is None else text

    event.then(give_back, widget, widget, queue=False, show_progress="hidden", api_visibility="private")


KEEP = "(text, said) => [text, window.kvKept.chat(text) || said]"


def keep_after(event, tab: ChatTab, registry: Registry) -> None:
    """Once the event is over, have the browser keep the chat as it is now."""
    def current(request: gr.Request):
        text, sentence = kept.write(registry.find(key_of(request)))
        return text, html_parts.notice(sentence, "info")

    quick = {"queue": False, "show_progress": "hidden", "api_visibility": "private", "trigger_mode": "multiple"}
    both = [tab.kept, tab.kept_notice]
    event.then(current, None, both, **quick).then(None, both, both, js=KEEP, **quick)


def found_again(event, tab: ChatTab, registry: Registry):
    """After the event, have the chat that was lost from the browser that kept it."""
    def take_up(text, request: gr.Request):
        session = registry.get(key_of(request))
        if text:
            with suppress(ValueError):  # then the message begins a new one, and LOST says so
                kept.take_up(session, text, session.showing or models.DEFAULT)
                session.chat_box.note = FOUND
        return ""

    return event.then(take_up, tab.kept, tab.kept, js=f"(asked) => asked === '{ASK}' ? window.kvKept.own() : ''", queue=False, show_progress="hidden", api_visibility="private", trigger_mode="multiple")


def fetched(event, model: gr.Dropdown):
    """After the event, read a model that isn't in memory before the turn comes: nobody else waits for a download."""
    def fetch(model_id):
        loaded_or_none(model_id)

    return event.then(fetch, model, None, concurrency_id="fetch", concurrency_limit=8, show_progress="hidden", api_visibility="private", trigger_mode="multiple")


def loaded_or_none(model: str):
    """The model if it can be had, else None: forms are shown either way."""
    try:
        return models.load(model)
    except models.ModelError:
        return None


def again(conversation, stop) -> tuple[str, Iterator]:
    """Ask for the last reply once more."""
    events = conversation.regenerate(stop)
    return conversation.turns[-1].user, events


def more(conversation, stop) -> tuple[str, Iterator]:
    """Ask for the last reply, which was cut, to go on."""
    events = conversation.extend(stop)
    return conversation.turns[-1].user, events


UNCHANGED: dict[Callable, str] = {again: view.FORMER_STAYS, more: "Stopped before it went on: the reply stays as it was."}  # what stays where nothing was written


# -- wiring ------------------------------------------------------------------------------------------------------

def wire_chat(tab: ChatTab, header: gr.HTML, registry: Registry, page: gr.Blocks, forms: Sequence[CacheForm], opened=None) -> None:
    """Connect the widgets of the Chat tab to one session per browser tab. `forms`: others that follow the model chosen here; `opened`: the event that comes first."""
    painted = [tab.chatbot, tab.notice, tab.message, tab.memory, tab.history, tab.fates, tab.branches.list]
    compute = {**CHAT_QUEUE, "show_progress": "minimal",
               "show_progress_on": [tab.chatbot], "api_visibility": "private", "trigger_mode": "multiple"}  # a cleared one may still wait
    quick = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}

    def accept(text, shown, request: gr.Request):
        """Take the message out of its box at once: its turn may be long in coming, and the next one can be typed."""
        session = registry.get(key_of(request))
        lost = shown and not session.holds_messages
        if not session.chat_box.take(text, LOST if lost else ""):
            return gr.skip()
        waiting = [view.user_message(session.chat_box.waiting)] if text.strip() else []
        return {tab.message: layout.STOP_BUTTON | {"value": ""}, tab.chatbot: view.chat_messages(session) + waiting, tab.ticket: session.chat_box.ticket, tab.kept: ASK if lost else ""}

    def accept_example(shown, picked: gr.SelectData, request: gr.Request):
        taken = accept(picked.value["text"], shown, request)
        if tab.message in taken:
            taken[tab.message] = layout.STOP_BUTTON  # what is being typed stays
        return taken

    pressed = buttons(tab, registry, lambda session: session.chat_box)

    def accept_retry(turn, request: gr.Request):
        """Take the message of a turn again; the replies since stay as a branch."""
        session = registry.get(key_of(request))
        if session.chat_box.occupied:
            return gr.skip()
        try:
            text = session.branches.retry(session, turn)
        except ValueError as error:
            return refused(tab, str(error))
        shown = {tab.branches.turn: "", **branches.shown(tab.branches, session)}
        session.chat_box.take(AGAIN if text is None else text, "" if text is None else "The replies that there were stay as a branch.")
        return {tab.message: layout.STOP_BUTTON, tab.ticket: session.chat_box.ticket, **shown}

    def send(values, request: gr.Request):
        session = registry.get(key_of(request))
        yield from in_turn(session.chat_box, lambda wanted: answer(values, session, wanted),
                           lambda notice: {tab.notice: notice, **_at_rest(tab, session)}, values[tab.ticket])

    def answer(values, session, wanted):
        if wanted in (AGAIN, MORE):
            return reply(tab, registry, session, read_settings(tab, values), again if wanted is AGAIN else more)
        ask = lambda talk, stop: (wanted, talk.send(wanted, stop))  # noqa: E731
        return reply(tab, registry, session, read_settings(tab, values), ask, wanted, session.chat_box.note)

    def undo(request: gr.Request):
        session = registry.get(key_of(request))
        if session.chat_box.occupied:
            return refused(tab, "A reply is being written: press Stop, then Undo.")
        try:
            text = session.undo()
        except ValueError as error:
            return refused(tab, str(error))
        if not text:
            return refused(tab, "There is nothing to undo: the conversation is empty.")
        session.chat_box.undo(text)
        sentence = "Took back the last message and its reply." + view.after_undo(session)
        return {tab.chatbot: view.chat_messages(session), tab.notice: html_parts.notice(sentence, "info"), **_charts_at_rest(tab, session)}

    def step(by):
        def show(request: gr.Request):
            session = registry.get(key_of(request))
            if session.chat_box.occupied:
                return refused(tab, "A reply is being written: press Stop first.")
            try:
                words = session.show_version(by)
            except ValueError as error:
                return refused(tab, str(error))
            sentence = f"This is {words}, and what you say next goes on from it." + view.after_undo(session)
            return {tab.chatbot: view.chat_messages(session), tab.notice: html_parts.notice(sentence, "info"), **_charts_at_rest(tab, session)}

        return show

    def clear(request: gr.Request):
        session = registry.get(key_of(request))
        if not session.chat_box.settle():
            return refused(tab, "The reply has not stopped yet: press Clear again in a moment.")
        if session.conversation and session.conversation.loaded:
            session.conversation.clear()
        else:
            session.conversation = None
        session.history = type(session.history)()
        session.branches.forget()
        return {tab.chatbot: [], tab.notice: "", tab.message: layout.SEND_BUTTON, **branches.shown(tab.branches, session), **_charts_at_rest(tab, session)}

    def gone(request: gr.Request):
        registry.leave(key_of(request))

    accepted = [tab.message, tab.chatbot, tab.ticket, tab.kept]
    taken = (tab.message.submit(accept, [tab.message, tab.chatbot], accepted, **quick),
             tab.chatbot.example_select(accept_example, tab.chatbot, accepted, **quick),
             tab.regenerate.click(pressed(AGAIN), None, accepted, **quick),
             tab.more.click(pressed(MORE), None, accepted, **quick),
             tab.branches.retry.click(accept_retry, tab.branches.turn, [*accepted, tab.notice, tab.branches.turn, tab.branches.list], **quick))
    answered = [fetched(found_again(event, tab, registry), tab.model).then(send, tab.settings | {tab.ticket}, painted, **compute) for event in taken]
    stepped = [button.click(step(by), None, painted, **quick) for button, by in ((tab.older, -1), (tab.newer, 1))]
    undone = tab.undo.click(undo, None, painted, **quick)
    cleared = tab.clear.click(clear, None, painted, **quick)
    for event in (*answered, undone, cleared):
        give_back_after(event, tab.message, registry, lambda session: session.chat_box)
    for event in (*answered, *stepped, undone, cleared):
        keep_after(event, tab, registry)
    tab.message.stop(stops(registry, lambda session: session.chat_box), None, None, **quick)
    wire_setup(tab, header, registry, page, forms, opened)
    page.unload(gone)


def about(loaded) -> str:
    """What a visitor should know about this kind of model before talking to it."""
    alone = "Each message is answered by itself: the encoder of this model reads one at a time, and the decoder answers it."
    return "" if chats(loaded) else html_parts.notice(alone, "info")


def system_words(loaded) -> dict[str, Any]:
    return layout.TEXT_TO_READ if loaded.is_encoder_decoder and chats(loaded) else layout.SYSTEM_PROMPT


def refitted(session: Session, values: Mapping, config, which: Sequence[CacheForm]) -> dict:
    """What forms side by side show for a model: caches that fit in place of those that don't, each another one if there are as many."""
    wanted = {form.form_id: session.wanted(form.form_id, values[form.cache]) for form in which}
    taken = [name for form in which if form.fits(name := wanted[form.form_id], config)]
    shown = {}
    for form in which:
        name = wanted[form.form_id]
        shown |= form.refit(values[form.cache], config, taken, name)
        new = shown[form.cache].get("value", values[form.cache])
        session.stand_ins[form.form_id] = new, name
        taken += [new, form.part_in(shown)]
    return shown


def wire_setup(tab: ChatTab, header: gr.HTML, registry: Registry, page: gr.Blocks, forms: Sequence[CacheForm], opened=None) -> None:
    """Model, cache and parameters: what fits, what it would cost. Nothing here touches the conversation."""
    quick = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
    inputs = {tab.model} | tab.form.inputs
    menus = {form.cache for form in forms}

    def forecast(values) -> dict:
        cache, parameters = tab.form.read(values)
        loaded = loaded_or_none(values[tab.model])
        return {tab.predicted: view.prediction(cache, parameters, loaded)} if loaded else {}

    def parameters_changed(values):
        return forecast(values) or gr.skip()

    def picked(values, which: Sequence[CacheForm]) -> dict:
        """What forms show for the caches that are picked in them, and the forecast."""
        loaded, shown = loaded_or_none(values[tab.model]), forecast(values)
        for form in which:
            shown |= form.chosen(values[form.cache], loaded and loaded.config)
        return shown

    def cache_changed(values, request: gr.Request):
        registry.get(key_of(request)).picked(tab.form.form_id)
        return picked(values, [tab.form])

    def load_picked(values, progress):
        return models.load(values[tab.model], progress=lambda fraction, text: progress(fraction, desc=text))

    def model_changed(values, request: gr.Request, progress=gr.Progress()):
        session = registry.get(key_of(request))
        session.refused = None
        try:
            loaded = load_picked(values, progress)
        except models.ModelError as error:
            session.refused = values[tab.model] or ""
            return {tab.model_note: html_parts.notice(f"{error} {session.showing or models.DEFAULT} stays.", "error")}
        session.showing = values[tab.model]
        shown = {tab.worldly.box: gr.update(visible=bool(tab.worldly.buttons) and layout.knows_little(values[tab.model])), tab.model_note: about(loaded), header: layout.header_html(view.model_status(loaded)), tab.system: gr.update(**system_words(loaded)),
                 **refitted(session, values, loaded.config, [tab.form]), **refitted(session, values, loaded.config, forms)}
        return shown | forecast(values | {tab.form.cache: shown[tab.form.cache].get("value", values[tab.form.cache])})

    def arrived(values, request: gr.Request, progress=gr.Progress()):
        session = registry.get(key_of(request))
        with suppress(models.ModelError):  # which is said below
            load_picked(values, progress)
        if session.showing:
            return gr.skip()  # another one was picked meanwhile
        return model_changed(values, request, progress)

    def settled(values, request: gr.Request):
        """What was picked while a model was read, with its own settings and reasons; in place of a model that can't be had, the one before."""
        session = registry.get(key_of(request))
        refused = session.refused is not None and (values[tab.model] or "") == session.refused
        back = {tab.model: session.showing or models.DEFAULT} if refused else {}
        return picked(values | back, [tab.form, *forms]) | back

    def choose(model: str):
        return lambda: model

    model_outputs = [tab.model, tab.model_note, tab.worldly.box, header, tab.predicted, tab.system, *(widget for form in (tab.form, *forms) for widget in form.outputs)]
    load = {"show_progress": "minimal", "show_progress_on": [tab.model], "api_visibility": "private", "concurrency_id": "load",
            "concurrency_limit": 2}
    pressed = [button.click(choose(model), None, tab.model, **quick).then(model_changed, inputs | menus, model_outputs, trigger_mode="multiple", **load)
               for model, button in tab.worldly.buttons.items()]
    for read in (*pressed, tab.model.input(model_changed, inputs | menus, model_outputs, trigger_mode="always_last", **load),
                 (opened.then if opened else page.load)(arrived, inputs | menus, model_outputs, **load)):
        read.then(settled, inputs | menus, model_outputs, trigger_mode="multiple", **quick)  # "once", the default, leaves out what follows on a second pick
    tab.form.cache.input(cache_changed, inputs, [*tab.form.outputs, tab.predicted], **quick)
    for form in (tab.form, *forms):
        form.wire_parts()
    gr.on([widget.change for widget in tab.form.widgets.values()], parameters_changed, inputs, tab.predicted,
          trigger_mode="always_last", **quick)
