"""The page in a real browser: Debian's Chromium, driven by Playwright, on the tiny model. Nothing leaves this computer."""

import json
import os
import re
import shutil
import threading
import time

import pytest
from axe_playwright_python.sync_playwright import Axe
from started import started_page

from kvcache.chat import models
from ui import events, layout

CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.browser
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]
WORDS = "The keeper counts the ships."
WAIT = 30_000  # ms: two busy cores
DESK, PHONE = {"width": 1440, "height": 930}, {"width": 390, "height": 844}

if CHROMIUM is None and os.environ.get("CI") != "true":
    pytest.skip("the browser tests need Chromium: none was found on PATH or in CHROMIUM", allow_module_level=True)

from playwright.sync_api import expect, sync_playwright  # noqa: E402

expect.set_options(timeout=WAIT)
CUT_OFF = ("BodyStreamBuffer was aborted", "Connection errored out", "signal is aborted without reason")  # what Gradio's page says of a stream that a reload has cut off


@pytest.fixture(scope="module")
def server():
    with started_page() as (address, registry):
        yield address, registry


@pytest.fixture(scope="module")
def browser():
    assert CHROMIUM, "CI must have Chromium: apt-get install chromium, or set CHROMIUM"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, server):
    """A function that opens the page; afterwards nothing may have gone wrong in the console or left this computer."""
    contexts, wrong = [], []

    def visit(size=DESK, scheme="light", query="", ready=True):
        context = browser.new_context(viewport=size, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" and not any(words in message.text for words in CUT_OFF) else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: None if is_here(request.url) else wrong.append(request.url))
        page.goto(server[0] + query)
        if ready:
            expect(page.locator("#kv-predicted table")).to_be_attached()
        return page

    yield visit
    for context in contexts:
        context.close()
    assert wrong == []


def is_here(url):
    return re.match(r"(https?|wss?)://(127\.0\.0\.1|localhost)[:/]|data:|blob:", url) is not None


@pytest.fixture
def unhurried(monkeypatch):
    """Replies of ten tokens a second: what happens during one has time to happen."""
    plain = events.batches

    def slowly(items, stop):
        for item in items:
            yield item
            stop.wait(0.1)

    monkeypatch.setattr(events, "batches", lambda items, stop, seconds: plain(slowly(items, stop), stop, seconds))


def longest_reply(page, tokens):
    page.get_by_text("Sampling", exact=True).click()
    field = page.get_by_label("Longest reply, in tokens")
    for _ in range(10):  # the page's own first answer may come after the typing and put its settings back
        field.fill(str(tokens))
        page.keyboard.press("Tab")
        page.wait_for_timeout(500)
        if field.input_value() == str(tokens):
            return
    raise AssertionError(f"the longest reply stays at {field.input_value()}")


def send(page, text, box="#kv-message"):
    page.locator(f"{box} textarea").fill(text)
    page.keyboard.press("Enter")


def finished(page, replies):
    """Wait until that many replies are complete; returns the last line of statistics."""
    expect(page.locator("#kv-chatbot details.kv-stats")).to_have_count(replies)
    expect(page.locator("#kv-message .submit-button")).to_be_visible()
    return page.locator("#kv-chatbot details.kv-stats").last.text_content()


def test_two_turns_of_chat_reuse_what_the_cache_has_seen(visit):
    page = visit()
    longest_reply(page, 12)
    send(page, WORDS)
    assert finished(page, 1).find("reused 0 ·") >= 0
    expect(page.locator("#kv-message textarea")).to_have_value("")
    send(page, "And then?")
    reused = int(re.search(r"reused (\d+) · .*computed (\d+) ", finished(page, 2)).group(1))
    assert reused > 12
    expect(page.locator("#kv-fates .kv-legend")).to_contain_text("not yet cached 1")
    expect(page.locator("#kv-history .kv-facts")).to_contain_text("DynamicCache would use")


def test_a_cache_picked_while_the_model_is_still_read_stays(visit, monkeypatch):
    read = threading.Event()
    load = models.load
    monkeypatch.setattr(models, "load", lambda *given, **options: read.wait(WAIT / 1000) and load(*given, **options))
    page = visit(ready=False)
    cache = page.get_by_label("Cache", exact=True).first
    cache.click()
    page.get_by_role("option", name="Sink").first.click()
    read.set()
    expect(page.locator("#kv-predicted table")).to_contain_text("Sink")
    page.wait_for_timeout(1000)  # an answer that puts it back would come with the table or right after it
    expect(cache).to_have_value("Sink")
    expect(page.locator("#kv-predicted table")).to_contain_text("Sink")
    expect(page.locator("#kv-chat-form-sink-window-length")).to_be_visible()


def test_zoom_and_legend_choices_survive_an_update(visit):
    page = visit()
    longest_reply(page, 12)
    send(page, WORDS)
    finished(page, 1)
    node = page.locator("#kv-history .kv-plot")
    expect(node).to_have_attribute("data-draws", re.compile(r"\d"))
    page.evaluate("""async () => {
        const node = document.querySelector('#kv-history .kv-plot'); node.mine = true;
        await Plotly.relayout(node, {'xaxis.range[0]': 3, 'xaxis.range[1]': 9});
    }""")
    page.locator("#kv-memory .kv-legend button", has_text="reserved").click()
    send(page, "And then?")
    finished(page, 2)
    page.wait_for_function("document.querySelector('#kv-history .kv-plot').data[1].x.at(-1) > 30")
    state = page.evaluate("""() => { const node = document.querySelector('#kv-history .kv-plot');
        const hidden = document.querySelector('#kv-memory .kv-plot').data.find((trace) => trace.name === 'reserved');
        return [node.mine, node.layout.xaxis.range, hidden.visible] }""")
    assert state == [True, [3, 9], False]


def test_escape_stops_a_reply_and_the_chat_goes_on(visit, unhurried):
    page = visit()
    longest_reply(page, 500)
    send(page, WORDS)
    expect(page.locator("#kv-message .stop-button")).to_be_visible()
    expect(page.locator("#kv-chatbot .kv-stats")).to_contain_text("tok/s")
    page.keyboard.press("Escape")
    finished(page, 1)
    page.get_by_label("Longest reply, in tokens").fill("5")
    page.keyboard.press("Tab")
    send(page, "And then?")
    expect(page.locator("#kv-chatbot .kv-ending").first).to_have_text("stopped")
    assert re.search(r"reused (\d+)", finished(page, 2)).group(1) != "0"


def test_an_empty_message_gets_a_sentence_and_bad_settings_do_not_lose_the_text(visit):
    page = visit()
    send(page, "")
    expect(page.get_by_role("alert").filter(has_text="empty")).to_be_visible()
    page.locator("#kv-chat-form-cache input").click()
    page.get_by_role("option", name="Sink", exact=True).click()
    page.locator("#kv-chat-form-sink-window-length input").fill("4")
    page.keyboard.press("Tab")
    send(page, WORDS)
    expect(page.locator("#kv-notice")).to_contain_text("window_length must be")
    expect(page.locator("#kv-message textarea")).to_have_value(WORDS)
    assert page.locator("#kv-chatbot .message.bot").count() == 0


def test_undo_gives_the_message_back_and_clear_empties_the_page(visit):
    page = visit()
    longest_reply(page, 5)
    send(page, WORDS)
    finished(page, 1)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#kv-message textarea")).to_have_value(WORDS)
    expect(page.locator("#kv-chatbot .message")).to_have_count(0)
    send(page, WORDS)
    finished(page, 1)
    send(page, "the second message")
    finished(page, 2)
    for message in ("the second message", WORDS):
        page.get_by_role("button", name="Undo").click()
        expect(page.locator("#kv-message textarea")).to_have_value(message)
    send(page, WORDS)
    finished(page, 1)
    page.locator("#kv-clear").click()
    expect(page.locator("#kv-chatbot .message")).to_have_count(0)


def test_closing_the_tab_frees_its_cache(visit, server):
    page = visit()
    send(page, WORDS)
    finished(page, 1)
    session = max(server[1]._sessions.values(), key=lambda each: each.last_used)
    assert session.nbytes > 0
    page.close()
    wait_until(lambda: session.gone and session.nbytes == 0)
    assert session.holds_messages


def test_escape_closes_an_open_menu_and_the_reply_goes_on(visit, unhurried):
    page = visit()
    longest_reply(page, 500)
    send(page, WORDS)
    expect(page.locator("#kv-chatbot .kv-stats")).to_contain_text("tok/s")
    menu = page.locator("#kv-chat-form-cache input")
    menu.click()
    expect(menu).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Escape")
    page.wait_for_timeout(300)
    expect(page.locator("#kv-message .stop-button")).to_be_visible(timeout=100)
    menu.blur()
    page.keyboard.press("Escape")
    finished(page, 1)


def test_what_is_typed_stays_through_regenerate_undo_and_a_stop(visit, unhurried):
    page = visit()
    longest_reply(page, 500)
    box = page.locator("#kv-message textarea")
    send(page, WORDS)
    expect(page.locator("#kv-chatbot .kv-stats")).to_contain_text("tok/s")
    page.locator("#kv-message .stop-button").click()
    finished(page, 1)
    box.fill("a draft")
    page.get_by_role("button", name="Regenerate").click()
    page.locator("#kv-message .stop-button").click()
    finished(page, 1)
    expect(box).to_have_value("a draft")
    page.get_by_role("button", name="Undo").click()
    expect(box).to_have_value(f"{WORDS}\na draft")


def test_enter_while_a_reply_is_written_keeps_the_next_message_in_its_box(visit, unhurried):
    page = visit()
    longest_reply(page, 500)
    send(page, WORDS)
    expect(page.locator("#kv-chatbot .kv-stats")).to_contain_text("computed")
    send(page, "the next one")
    page.wait_for_timeout(500)
    expect(page.locator("#kv-message textarea")).to_have_value("the next one")
    page.locator("#kv-message .stop-button").click()
    finished(page, 1)
    expect(page.locator("#kv-message textarea")).to_have_value("the next one")


def test_a_message_is_shown_as_it_was_typed(visit):
    page = visit()
    longest_reply(page, 5)
    text = "What does <section> do?\n\nif a<b and c>d: x*y*z\n# title"
    page.locator("#kv-message textarea").fill(text)
    page.locator("#kv-message .submit-button").click()
    finished(page, 1)
    assert page.locator("#kv-chatbot .kv-typed").inner_text() == text


def held_up(page, monkeypatch):
    """Send from this page, and have the reply, and all that wait behind it, go on only when what is returned is set."""
    plain, begun, go_on = events.batches, threading.Event(), threading.Event()

    def held(*arguments):
        begun.set()
        go_on.wait(WAIT / 1000)
        yield from plain(*arguments)

    monkeypatch.setattr(events, "batches", held)
    send(page, WORDS)
    wait_until(begun.is_set)
    return go_on


def test_a_message_that_waits_for_its_turn_leaves_its_box_and_can_be_taken_back(visit, monkeypatch):
    first, second = visit(), visit()
    longest_reply(first, 12)
    go_on = held_up(first, monkeypatch)
    send(second, "my turn?")
    expect(second.locator("#kv-message textarea")).to_have_value("")
    expect(second.locator("#kv-chatbot .message.user")).to_have_text("my turn?")
    second.locator("#kv-message textarea").fill("and more")
    second.locator("#kv-message .stop-button").click()
    go_on.set()
    expect(second.locator("#kv-message textarea")).to_have_value("my turn?\nand more")
    expect(second.locator("#kv-chatbot .message")).to_have_count(0)
    finished(first, 1)


def test_what_is_sent_after_clear_is_answered_with_what_is_set_by_then(visit, server):
    """A message that waits for memory, and says so, is cleared, and the next one is to be shorter."""
    page, go_on = visit(), threading.Event()
    longest_reply(page, 40)
    for session in server[1]._sessions.values():
        session.has_room = lambda session: go_on.is_set()
    send(page, "the first")
    expect(page.locator("#kv-chatbot")).to_contain_text("waiting for memory")
    page.locator("#kv-clear").click()
    expect(page.locator("#kv-message textarea")).to_have_value("the first")
    page.get_by_label("Longest reply, in tokens").fill("5")
    page.keyboard.press("Tab")
    page.wait_for_timeout(500)
    send(page, WORDS)
    expect(page.locator("#kv-message textarea")).to_have_value("")
    page.wait_for_timeout(500)
    go_on.set()
    finished(page, 1)
    assert 5 in {session.stats[-1].generated for session in server[1]._sessions.values() if session.stats}


def test_a_model_that_can_not_be_had_leaves_the_one_that_was_showing(visit):
    page = visit()
    picker = page.locator("#kv-model input")
    pick_model(page, "kvlab-mistral-5m")
    expect(picker).to_have_value(re.compile("kvlab-mistral-5m"))
    picker.fill("no/such-model")
    picker.press("Enter")
    expect(page.locator("#kv-model-note")).to_contain_text("no/such-model")
    expect(page.locator("#kv-model-note")).to_contain_text(" stays.")
    expect(picker).to_have_value(re.compile("kvlab-mistral-5m"))


def test_an_emptied_model_box_gets_its_model_back_and_the_chat_goes_on(visit):
    page = visit()
    box = page.locator("#kv-model input")
    before = box.input_value()
    box.fill("")
    page.keyboard.press("Tab")  # at Enter Gradio takes it back by itself
    expect(box).to_have_value(before)
    send(page, WORDS)
    finished(page, 1)


def test_of_two_models_picked_in_haste_the_page_shows_the_second(visit, monkeypatch):
    page, plain, asked, go_on = visit(), models.load, [], threading.Event()

    def slow(model_id="tiny", *arguments, **options):
        asked.extend([model_id] * ("progress" in options))  # by the step that fits the whole page to a model
        go_on.wait(WAIT / 1000)
        return plain(model_id, *arguments, **options)

    monkeypatch.setattr(models, "load", slow)
    pick_model(page, "kvlab-mistral-5m")
    wait_until(lambda: any("mistral" in name for name in asked))
    pick_model(page, "kvlab-granite-5m")
    go_on.set()
    wait_until(lambda: any("granite" in name for name in asked))
    expect(page.locator("#kv-model input")).to_have_value(re.compile("kvlab-granite-5m"))


def pick_model(page, name):
    picker = page.locator("#kv-model input")
    picker.click()
    picker.fill(name)
    page.get_by_role("option", name=re.compile(name)).click()


def test_a_model_picked_while_another_can_not_be_had_is_read(visit, server, monkeypatch):
    page, plain, asked, go_on = visit(), models.load, [], threading.Event()

    def slow(model_id="tiny", *arguments, **options):
        if model_id.startswith("no/"):
            asked.append(model_id)
            go_on.wait(WAIT / 1000)
        return plain(model_id, *arguments, **options)

    monkeypatch.setattr(models, "load", slow)
    page.locator("#kv-model input").fill("no/such-model")
    page.keyboard.press("Enter")
    wait_until(lambda: asked)
    pick_model(page, "kvlab-granite-5m")
    go_on.set()
    wait_until(lambda: any("granite" in session.showing for session in server[1]._sessions.values()))
    expect(page.locator("#kv-model input")).to_have_value(re.compile("kvlab-granite-5m"))


def test_a_first_model_that_comes_late_leaves_what_was_picked_since(visit, server, monkeypatch):
    plain, begun, go_on, late = models.load, threading.Event(), threading.Event(), threading.Event()

    def slow(model_id="tiny", *arguments, **options):
        if "progress" in options and model_id == models.DEFAULT:
            begun.set()
            go_on.wait(WAIT / 1000)
            late.set()
        return plain(model_id, *arguments, **options)

    monkeypatch.setattr(models, "load", slow)
    before = set(server[1]._sessions)
    page = visit(ready=False)
    wait_until(begun.is_set)
    pick_model(page, "kvlab-umt5-5m")
    mine = lambda: [session for key, session in server[1]._sessions.items() if key not in before]  # noqa: E731
    wait_until(lambda: any("umt5" in session.showing for session in mine()))
    go_on.set()
    wait_until(late.is_set)
    page.wait_for_timeout(1000)
    assert all("umt5" in session.showing and session.conversation is None for session in mine())
    expect(page.locator("#kv-model input")).to_have_value(re.compile("kvlab-umt5-5m"))


def test_a_chat_that_begins_before_the_first_model_is_read_stays_and_gets_its_header(visit, monkeypatch):
    plain, go_on = models.load, threading.Event()

    def slow(model_id="tiny", *arguments, **options):
        if "progress" in options:
            go_on.wait(WAIT / 1000)
        return plain(model_id, *arguments, **options)

    monkeypatch.setattr(models, "load", slow)
    page = visit(ready=False)
    send(page, WORDS)
    finished(page, 1)
    expect(page.locator("#kv-header")).not_to_contain_text("tiny-llama")
    go_on.set()
    expect(page.locator("#kv-header")).to_contain_text("tiny-llama")
    expect(page.locator("#kv-predicted table")).to_be_visible()
    expect(page.locator("#kv-chatbot details.kv-stats")).to_have_count(1)


def test_a_chart_that_changed_while_another_tab_was_open_is_drawn_on_the_way_back(visit):
    page = visit()
    longest_reply(page, 16)
    send(page, WORDS)
    page.get_by_role("tab", name="Learn").click()
    expect(page.locator("#kv-chatbot details.kv-stats")).to_contain_text("tok/s")
    page.wait_for_function("document.querySelector('#kv-history .kv-words').textContent.includes('tokens processed')")
    page.wait_for_timeout(1000)
    page.get_by_role("tab", name="Chat").click()
    page.wait_for_function("document.querySelector('#kv-history .kv-plot').data.some((trace) => Math.max(...trace.x) > 16)")


def test_a_conversation_that_the_server_lost_goes_on_from_the_browser(visit, server, monkeypatch):
    monkeypatch.setattr(models, "is_here", lambda model_id: True)
    page = visit()
    longest_reply(page, 5)
    send(page, WORDS)
    finished(page, 1)
    kept(page)
    server[1]._sessions.clear()
    send(page, "still there?")
    finished(page, 2)
    expect(page.locator("#kv-notice")).to_contain_text("goes on as this browser kept it")
    expect(page.locator("#kv-chatbot .message.user").first).to_contain_text(WORDS)


def test_a_conversation_that_nobody_kept_is_said_to_be_lost(visit, server):
    page = visit()
    longest_reply(page, 5)
    send(page, WORDS)
    finished(page, 1)
    kept(page)
    page.evaluate("sessionStorage.clear(); localStorage.clear()")
    server[1]._sessions.clear()
    send(page, "still there?")
    finished(page, 1)
    expect(page.locator("#kv-notice")).to_contain_text("no longer has this conversation")


# -- kept by the browser -------------------------------------------------------------------------------------------

def kept(page, turns=1):
    """Wait until the browser keeps so many turns."""
    page.wait_for_function("turns => (JSON.parse(sessionStorage.getItem('kvcache.chat') || '{}').record?.turns.length ?? 0) === turns", arg=turns)


@pytest.fixture
def all_here(monkeypatch):
    """No model would have to be downloaded."""
    monkeypatch.setattr(models, "is_here", lambda model_id: True)


def test_a_reload_keeps_thread_settings_tab_and_draft_and_the_next_reply_says_what_it_reused(visit, all_here):
    page = visit()
    longest_reply(page, 7)
    page.locator("#kv-chat-form-cache input").click()
    page.get_by_role("option", name="Sink", exact=True).click()
    page.locator("#kv-chat-form-sink-window-length input").first.fill("96")
    page.keyboard.press("Tab")
    page.get_by_label("System prompt").fill("Be brief & <b>kind</b>.")
    page.keyboard.press("Tab")
    send(page, "<i>x</i> " + WORDS)
    finished(page, 1)
    kept(page)
    thread = page.locator("#kv-chatbot .message").all_inner_texts()
    page.locator("#kv-message textarea").fill("a draft")
    page.get_by_role("tab", name="Learn").click()
    page.reload()
    expect(page.get_by_role("tab", name="Learn")).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="Chat").click()
    expect(page.locator("#kv-chatbot .message")).to_have_count(len(thread))
    assert page.locator("#kv-chatbot .message").all_inner_texts() == thread
    assert page.locator("#kv-chatbot i").count() == 0  # what was typed is text
    expect(page.locator("#kv-chat-form-cache input")).to_have_value("Sink")
    expect(page.locator("#kv-chat-form-sink-window-length input").first).to_have_value("96")
    expect(page.get_by_label("System prompt")).to_have_value("Be brief & <b>kind</b>.")
    expect(page.locator("#kv-message textarea")).to_have_value("a draft")
    page.keyboard.press("Escape")
    send(page, "And then?")
    line = finished(page, 2)
    assert "written 7" in line and "reused 0 ·" in line
    expect(page.locator("#kv-chatbot .kv-why")).to_contain_text("the page was opened anew")
    expect(page.locator("#kv-notice")).to_have_text("The reply has reached its longest length: Continue, under it, goes on from there.")  # and no word of other settings


def test_clear_then_reload_is_empty_and_a_new_tab_begins_with_the_latest(visit, all_here):
    page = visit()
    longest_reply(page, 5)
    send(page, WORDS)
    finished(page, 1)
    kept(page)
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator("#kv-chatbot .message.user")).to_have_text(WORDS)
    page.locator("#kv-clear").click()
    kept(page, 0)
    for tab, messages in ((page, 0), (other, 1)):
        tab.reload()
        expect(tab.locator("#kv-predicted table")).to_be_attached()
        tab.wait_for_timeout(1000)
        expect(tab.locator("#kv-chatbot .message.user")).to_have_count(messages)


def test_a_message_that_was_being_answered_is_back_in_its_box_after_a_reload(browser, server, all_here, unhurried):
    page = browser.new_page(viewport=DESK)  # whose console may say that Gradio's stream was cut off
    page.set_default_timeout(WAIT)
    page.goto(server[0])
    expect(page.locator("#kv-predicted table")).to_be_attached()
    longest_reply(page, 500)
    send(page, WORDS)
    expect(page.locator("#kv-chatbot .kv-stats")).to_contain_text("tok/s")
    page.reload()
    expect(page.locator("#kv-message textarea")).to_have_value(WORDS)
    expect(page.locator("#kv-chatbot .message")).to_have_count(0)
    page.close()


def test_a_restart_of_the_server_keeps_the_chat_with_a_reload_and_without(browser, all_here):
    context = browser.new_context(viewport=DESK)
    page = context.new_page()
    page.set_default_timeout(WAIT)
    with started_page() as (address, _):
        page.goto(address)
        expect(page.locator("#kv-predicted table")).to_be_attached()
        longest_reply(page, 6)
        send(page, WORDS)
        finished(page, 1)
        kept(page)
    port = int(address.rstrip("/").rpartition(":")[2])
    with started_page(port=port):
        page.reload()
        expect(page.locator("#kv-chatbot .message.user")).to_have_text(WORDS)
        send(page, "And then?")
        assert "written 6" in finished(page, 2)
        kept(page, 2)
    with started_page(port=port):
        send(page, "still there?")
        finished(page, 3)
        expect(page.locator("#kv-chatbot .message.user").first).to_contain_text(WORDS)
    context.close()


def test_a_links_settings_win_over_what_was_kept(visit, all_here):
    page = visit()
    longest_reply(page, 9)
    send(page, WORDS)
    finished(page, 1)
    kept(page)
    page.goto(page.url.split("?")[0] + "?cache=sink&window_length=80&tab=chat")
    expect(page.locator("#kv-chat-form-cache input")).to_have_value("Sink")
    expect(page.locator("#kv-chat-form-sink-window-length input").first).to_have_value("80")
    expect(page.locator("#kv-chatbot .message.user")).to_have_text(WORDS)
    page.get_by_text("Sampling", exact=True).click()
    expect(page.get_by_label("Longest reply, in tokens")).to_have_value("9")


@pytest.mark.parametrize("chat, form, words", [("{", "{", "damaged or of another version"), ('{"format": "kvcache page 0"}', '["x"]', "damaged or of another version"),
                                               ("", '{"model": "gone/away", "cache": "nonsense", "sampling seed": -1}', "gone/away, which is not on this computer")])
def test_storage_that_can_not_be_read_is_a_sentence_on_a_fresh_page(visit, chat, form, words):
    page = visit()
    page.evaluate("([chat, form]) => { for (const store of [sessionStorage, localStorage]) { store.setItem('kvcache.chat', chat); store.setItem('kvcache.form', form); } }", [chat, form])
    page.reload()
    expect(page.locator("#kv-talk")).to_contain_text(words)
    longest_reply(page, 5)
    send(page, WORDS)
    finished(page, 1)


def test_a_browser_without_room_says_so(visit):
    page = visit()
    longest_reply(page, 5)
    page.evaluate("() => { Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError') } }")
    send(page, WORDS)
    finished(page, 1)
    expect(page.locator("#kv-kept")).to_contain_text("after a reload it is gone")


def test_starting_over_empties_the_chart_too(visit):
    page = visit()
    longest_reply(page, 16)
    page.get_by_role("tab", name="Compare").click()
    send(page, WORDS, "#kv-compare-message")
    expect(page.locator("#kv-compare-chart .kv-drawn")).to_have_count(1)
    expect(page.locator("#kv-compare-message .submit-button")).to_be_visible()
    page.locator("#kv-compare-regenerate").click()
    expect(page.locator("#kv-compare-notice")).to_contain_text("At temperature 0")
    expect(page.locator("#kv-compare-message .submit-button")).to_be_visible()
    page.locator("#kv-restart").click()
    expect(page.locator(":is(#kv-compare-chart, #kv-compare-quality, #kv-compare-kl) .kv-drawn")).to_have_count(0)
    expect(page.locator("#kv-compare-chart .kv-legend li")).to_have_count(0)


def wait_until(happened):
    end = time.monotonic() + WAIT / 1000
    while not happened():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_a_comparison_fills_threads_table_chart_and_files(visit):
    page = visit()
    longest_reply(page, 16)
    page.get_by_role("tab", name="Compare").click()
    send(page, WORDS * 40, "#kv-compare-message")
    expect(page.locator("#kv-downloads a")).to_have_count(2)
    assert page.locator("#kv-columns .kv-thread").count() == 4
    table = page.locator("#kv-table table")
    expect(table.locator("tbody tr")).to_have_count(4)
    expect(table.locator("tbody tr").first).to_contain_text("100%")
    expect(page.locator("#kv-thread-2 mark")).to_have_count(1)
    expect(page.locator("#kv-divergence details[open] .kv-bars")).to_have_count(2)
    for chart in ("quality", "kl"):
        expect(page.locator(f"#kv-compare-{chart} .kv-drawn")).to_be_visible()
    for label in ("Dynamic", "Native 4-bit", "Sink 4 + 124", "Native 2-bit, keys by token"):  # those of points that lie on one another below one another
        expect(page.locator("#kv-compare-quality .textpoint", has_text=label).first).to_be_attached()
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    with open(download.value.path()) as file:
        assert file.read().startswith("cache,name,parameters")


def test_a_new_comparison_leaves_nothing_of_the_one_before(visit):
    page = visit()
    longest_reply(page, 5)
    page.get_by_role("tab", name="Compare").click()
    send(page, "one", "#kv-compare-message")
    expect(page.locator("#kv-downloads a")).to_have_count(2)
    expect(page.locator("#kv-thread-2")).to_contain_text("Answered by Sink")
    page.locator("#kv-count").get_by_text("2 caches").click()
    send(page, "another", "#kv-compare-message")
    for n in (0, 1):  # the columns that stay go on
        expect(page.locator(f"#kv-thread-{n} .kv-user")).to_have_count(2)
    expect(page.locator("#kv-compare-message .submit-button")).to_be_visible()
    page.locator("#kv-count").get_by_text("3 caches").click()
    expect(page.locator("#kv-compare-2-cache")).to_be_visible()
    expect(page.locator("#kv-thread-2")).not_to_contain_text("Answered by")
    send(page, "and now?", "#kv-compare-message")
    expect(page.locator("#kv-compare-notice")).to_contain_text("Cache 3: changed, and answers the earlier messages first")
    expect(page.locator("#kv-thread-2 .kv-user")).to_have_count(3)
    expect(page.locator("#kv-compare-message .submit-button")).to_be_visible()
    page.get_by_role("tab", name="Chat").click()
    page.get_by_label("Longest reply, in tokens").fill("6")
    page.keyboard.press("Tab")
    page.get_by_role("tab", name="Compare").click()
    send(page, "other settings", "#kv-compare-message")
    expect(page.locator("#kv-compare-notice")).to_contain_text("Started over")
    expect(page.locator("#kv-thread-0 .kv-user")).to_have_count(1)


def test_on_a_phone_each_cache_of_a_comparison_has_its_figures_below_one_another(visit):
    page = visit(size=PHONE)
    page.get_by_role("button", name="All settings").click()
    longest_reply(page, 5)
    page.get_by_role("tab", name="Compare").click()
    send(page, WORDS, "#kv-compare-message")
    expect(page.locator("#kv-downloads a")).to_have_count(2)
    expect(page.locator("#kv-table thead")).to_be_hidden()
    tops = [cell.bounding_box()["y"] for cell in page.locator("#kv-table tbody tr").first.locator("th, td").all()]
    assert tops == sorted(set(tops)) and page.locator("#kv-table").evaluate("node => node.scrollWidth <= node.clientWidth")


def test_a_measurement_shows_its_progress_and_fills_table_charts_and_file(visit):
    page = visit()
    page.get_by_role("tab", name="Measure").click()
    for label in ("4k", "Native 4-bit, decoded", "Native 4-bit, fused", "Native 2-bit, fused", "Window 1024"):
        page.locator("#kv-measure-ask").get_by_label(label, exact=True).uncheck()
    seen = "() => { window.progress ||= !!document.querySelector('#kv-measure-progress progress') }"  # which a quick machine shows for a moment
    page.evaluate(f"() => new MutationObserver({seen}).observe(document.body, {{ childList: true, subtree: true }})")
    page.locator("#kv-measure-run").click()
    expect(page.locator("#kv-measure-table tbody tr")).to_have_count(2)
    expect(page.locator("#kv-measure-table")).to_contain_text("Measured 20")
    expect(page.locator("#kv-measure-stop")).to_be_hidden()
    assert page.evaluate("() => window.progress")
    expect(page.locator("#kv-measure-time .kv-plot")).to_have_attribute("data-draws", re.compile(r"\d"))
    expect(page.locator("#kv-measure-time .kv-legend button:has(.kv-dash) .kv-swatch")).to_have_count(2)  # the points' marks beside the lines'
    with page.expect_download() as download:
        page.locator("#kv-measure-downloads").get_by_role("link", name="JSON").click()
    with open(download.value.path()) as file:
        assert [row["label"] for row in json.load(file)["rows"]] == ["upstream Dynamic", "Dynamic"]


CONTRAST = """(selectors) => {
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
    const back = (node) => { for (; node; node = node.parentElement) {
        const colour = parse(getComputedStyle(node).backgroundColor); if (colour.length < 4 || colour[3] > .9) return colour; }
        return [255, 255, 255] };
    return selectors.map((selector) => { const node = document.querySelector(selector); const style = getComputedStyle(node);
        const behind = back(node), front = parse(style.fill && node.tagName === 'text' ? style.fill : style.color);
        let opaque = front.length < 4 ? 1 : front[3]; for (let at = node; at; at = at.parentElement) opaque *= getComputedStyle(at).opacity;
        const [a, b] = [light([0, 1, 2].map((i) => front[i] * opaque + behind[i] * (1 - opaque))), light(behind)];
        return [selector, Math.round((Math.max(a, b) + .05) / (Math.min(a, b) + .05) * 10) / 10] }) }"""
READ = ["#kv-header h1", "#kv-header p", "#kv-setup h2", "#kv-chatbot .message.user p", "#kv-chatbot .message.bot p",
        "#kv-chatbot .kv-stats", "#kv-chatbot .kv-stats b", "#kv-fates .kv-legend li", "#kv-history .kv-facts",
        "#kv-setup [data-testid=block-info]", "#kv-history .xtick text", "#kv-message .submit-button", "#kv-undo", ".kv-predicted td", "footer button"]


def test_the_calculator_fills_at_once_and_follows_what_is_typed(visit):
    page = visit()
    page.get_by_role("tab", name="Calculator").click()
    table = page.locator("#kv-calculator-table")
    expect(table.get_by_text("8,192 tokens each")).to_be_visible()
    expect(page.locator("#kv-calculator-chart .kv-drawn")).to_be_visible()
    page.locator("#kv-calculator-users input").fill("4")
    expect(table.get_by_text("4 users")).to_be_visible()
    page.locator("#kv-calculator-config textarea").fill("{}")
    expect(page.locator("#kv-calculator-notice")).to_contain_text("names a model_type")
    expect(table.locator("table")).to_have_count(0)


def test_text_is_readable_in_dark_and_in_light_and_charts_follow(visit):
    page = visit(scheme="dark")
    longest_reply(page, 5)
    send(page, WORDS)
    finished(page, 1)
    page.wait_for_selector("#kv-history .xtick text", state="attached")
    expect(page.locator("#kv-undo")).to_be_enabled()
    all_readable(page)
    page.evaluate("document.body.classList.remove('dark')")
    page.wait_for_function("getComputedStyle(document.querySelector('#kv-history .xtick text')).fill === 'rgb(91, 100, 119)'")
    all_readable(page)


def all_readable(page):
    """No text's contrast with what is behind it is below 4.5, the WCAG's AA, once what fades in or changes colour has done so."""
    page.wait_for_function("!document.getAnimations().some((each) => each instanceof CSSTransition)")
    assert [(what, ratio) for what, ratio in page.evaluate(CONTRAST, READ) if ratio < 4.5] == []


def test_a_phone_has_model_and_cache_above_the_talk_and_no_sideways_scrolling(visit):
    page = visit(size=PHONE)
    tops = [page.locator(selector).bounding_box()["y"] for selector in ("#kv-tour", "#kv-model", "#kv-message")]
    assert tops == sorted(tops)
    assert page.locator("#kv-model").bounding_box()["y"] == page.locator("#kv-chat-form-cache").bounding_box()["y"]
    expect(page.locator("#kv-predicted")).to_be_hidden()
    send(page, WORDS)
    finished(page, 1)
    tops = [page.locator(selector).bounding_box()["y"] for selector in ("#kv-setup", "#kv-talk", "#kv-see")]
    assert tops == sorted(tops)
    page.get_by_role("button", name="All settings").click()
    expect(page.locator("#kv-predicted table")).to_be_visible()
    for name in ("Chat", "Compare", "Measure", "Calculator", "Learn"):
        page.get_by_role("tab", name=name).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], name


def test_the_first_screen_says_what_a_cache_is_and_leads_to_the_demo(visit):
    page = visit()
    expect(page.locator("#kv-intro")).to_contain_text("keeps the keys and values of every past token")
    expect(page.locator("#kv-see .kv-plot")).to_have_count(2)
    expect(page.locator("#kv-see .kv-plot").first).to_be_hidden()
    expect(page.locator("#kv-fates")).to_be_hidden()
    page.locator("#kv-tour").click()
    expect(page.locator("#kv-thread-0 .kv-user").first).to_contain_text("Ada")
    page.keyboard.press("Escape")
    expect(page.locator("#kv-compare-message .submit-button")).to_be_visible()


def test_a_model_that_knows_the_world_is_one_click_away(browser, monkeypatch):
    monkeypatch.setattr(layout, "why_not_fetched", lambda choice: None if "360M" in choice.id else "not on this computer")
    with started_page() as (address, registry):
        page = browser.new_page(viewport=DESK)
        page.set_default_timeout(WAIT)
        page.goto(address)
        expect(page.locator("#kv-predicted table")).to_be_attached()
        expect(page.locator("#kv-worldly")).to_contain_text("Qwen3 0.6B: not on this computer.")
        expect(page.get_by_role("button", name="Qwen3 0.6B (1.5 GB)")).to_be_disabled()
        page.get_by_role("button", name="SmolLM2 360M Instruct (0.7 GB)").click()
        expect(page.locator("#kv-model input")).to_have_value(re.compile("SmolLM2 360M"))
        expect(page.locator("#kv-worldly")).to_be_hidden()
        assert "HuggingFaceTB/SmolLM2-360M-Instruct" in {session.showing for session in registry._sessions.values()}
        page.close()


def test_after_clear_the_charts_have_the_axes_of_what_comes_next(visit):
    page = visit()
    longest_reply(page, 12)
    for _ in range(2):
        send(page, WORDS)
        finished(page, 1)
        page.wait_for_function("document.querySelector('#kv-history .kv-plot').data?.at(-1).x.at(-1) > 20")
        assert page.evaluate("document.querySelector('#kv-history .kv-plot').layout.xaxis.range[1]") > 20
        assert page.evaluate("document.querySelector('#kv-memory .kv-plot').layout.xaxis.range[1]") > 1000
        page.locator("#kv-clear").click()
        expect(page.locator("#kv-see .kv-drawn")).to_have_count(0)
        expect(page.locator("#kv-intro")).to_be_visible()


def test_one_can_scroll_up_while_a_reply_streams(visit, unhurried):
    page = visit(size={"width": 1440, "height": 560})
    longest_reply(page, 400)
    send(page, "line\n" * 60)
    expect(page.locator("#kv-chatbot .kv-stats")).to_contain_text("tok/s")
    box = page.locator("#kv-chatbot .bubble-wrap")
    page.wait_for_function("(box => box.scrollTop > 100)(document.querySelector('#kv-chatbot .bubble-wrap'))")
    box.evaluate("node => { node.scrollTop = 0 }")
    before = page.locator("#kv-chatbot .kv-stats").last.inner_text()
    page.wait_for_timeout(2500)
    assert page.locator("#kv-chatbot .kv-stats").last.inner_text() != before, "the reply goes on"
    assert box.evaluate("node => node.scrollTop") == 0
    page.keyboard.press("Escape")
    finished(page, 1)
    send(page, "and then?")
    page.wait_for_function("(box => box.scrollTop + box.clientHeight > box.scrollHeight - 40)(document.querySelector('#kv-chatbot .bubble-wrap'))")


OF_THE_WRONG_KIND = """() => [...document.querySelectorAll('[role="list"]')].filter((list) => [...list.children].some((each) => each.getAttribute('role') !== 'listitem' && each.tagName !== 'LI'))
    .map((list) => list.className)"""


def test_a_screen_reader_hears_words_and_tabs_take_arrow_keys(visit):
    page = visit()
    expect(page.get_by_role("group", name="Examples").get_by_role("button")).to_have_count(4)
    assert page.evaluate(OF_THE_WRONG_KIND) == []  # which axe calls critical
    longest_reply(page, 5)
    send(page, "<b>bold</b> words")
    finished(page, 1)
    labels = page.evaluate("[...document.querySelectorAll('#kv-chatbot [aria-label]')].map((node) => node.getAttribute('aria-label'))")
    assert any("bold" in label for label in labels) and not [label for label in labels if "<span" in label or "<div" in label or "<details" in label]
    page.get_by_role("tab", name="Chat").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Compare")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("End")
    expect(page.get_by_role("tab", name="Learn")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Chat")).to_have_attribute("aria-selected", "true")


def faults_that_stay(page, tab):
    """What axe calls serious or critical, looked at again while it finds any: what fades in, or waits for its figures, has too little contrast for a moment."""
    for _ in range(6):
        page.wait_for_timeout(500)
        faults = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
        found = [(tab, fault["id"], fault["nodes"][0]["failureSummary"]) for fault in faults if fault["impact"] in ("serious", "critical")]
        if not found:
            break
    return found


@pytest.mark.parametrize("size,scheme", [(DESK, "dark"), (PHONE, "light")], ids=["desk-dark", "phone-light"])
def test_axe_finds_nothing_serious_on_any_tab(size, scheme, visit):
    page = visit(size, scheme)
    if size is PHONE:
        page.get_by_role("button", name="All settings").click()
    longest_reply(page, 5)
    send(page, WORDS)
    finished(page, 1)
    found = []
    for tab in ("Chat", "Compare", "Measure", "Calculator", "Learn"):
        page.get_by_role("tab", name=tab).click()
        expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
        if tab == "Compare":
            send(page, WORDS, "#kv-compare-message")
            expect(page.locator("#kv-downloads a")).to_have_count(2)
        found += faults_that_stay(page, tab)
    assert not found


def test_fork_is_there_once_there_is_a_turn_and_goes_behind_the_last_by_itself(visit):
    page = visit()
    longest_reply(page, 5)
    expect(page.locator("#kv-fork")).to_be_hidden()
    send(page, WORDS)
    finished(page, 1)
    expect(page.locator("#kv-fork-turn input, #kv-fork-turn textarea")).to_have_value("")
    page.locator("#kv-fork").click()
    expect(page.locator("#kv-notice")).to_contain_text("Forked behind turn 1")
    page.locator("#kv-fork-turn").locator("input, textarea").fill("0")
    page.locator("#kv-fork").click()
    expect(page.locator("#kv-notice")).to_contain_text("from 1 to 1, got '0'")


def test_a_square_says_its_word_and_a_message_marks_its_squares(visit):
    page = visit()
    longest_reply(page, 5)
    send(page, WORDS)
    finished(page, 1)
    square = page.locator("#kv-fates .kv-cells i").nth(5)
    word = square.get_attribute("data-word")
    square.hover()
    expect(page.locator("#kv-fates .kv-picked")).to_contain_text(f"\u201c{word}\u201d \u00b7 token 6: ")
    page.locator("#kv-chatbot .message.bot").first.hover()
    marked = page.locator("#kv-fates .kv-marked")
    expect(marked).to_have_count(page.locator('#kv-fates [data-message="1"]').count())
    assert marked.first.get_attribute("data-message") == "1"


def test_a_cut_reply_goes_on_and_the_versions_of_a_reply_are_stepped_through(visit):
    page = visit()
    longest_reply(page, 5)
    page.get_by_label("Temperature").first.fill("1.5")
    page.keyboard.press("Tab")
    send(page, WORDS)
    assert "written 5" in finished(page, 1)
    page.locator("#kv-chatbot").get_by_role("button", name="Continue").click()
    expect(page.locator("#kv-chatbot details.kv-stats")).to_contain_text("written 10")
    finished(page, 1)
    replies = [page.locator("#kv-chatbot .bot-row").first.inner_text()]
    page.locator("#kv-regenerate").click()
    expect(page.locator("#kv-chatbot .kv-versions")).to_contain_text("2 of 2")
    replies.append(page.locator("#kv-chatbot .bot-row").first.inner_text())
    page.locator("#kv-chatbot").get_by_role("button", name="Previous version").click()
    expect(page.locator("#kv-chatbot .kv-versions")).to_contain_text("1 of 2")
    assert page.locator("#kv-chatbot .bot-row").first.inner_text() == replies[0] != replies[1]
    expect(page.locator("#kv-notice")).to_contain_text("version 1 of 2")
    send(page, "and then?")
    finished(page, 2)
    expect(page.locator("#kv-chatbot .kv-versions")).to_have_count(0)


def test_a_message_is_copied_as_it_was_typed_and_tried_again_as_a_branch(visit):
    page = visit()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    longest_reply(page, 5)
    text = "if a<b:\n\n    x*y*z"
    for number, words in enumerate((text, "second", "third"), 1):
        send(page, words)
        finished(page, number)
    first = page.locator("#kv-chatbot .message-row").nth(2)
    for whose, wanted in (("Copy message", text), ("Copy reply", page.locator("#kv-chatbot .bot-row").first.inner_text().strip())):
        first.get_by_role("button", name=whose).click()
        expect(first.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == wanted
        expect(first.get_by_role("button", name=whose)).to_be_visible()
    page.locator("#kv-chatbot .message-row").nth(5).get_by_role("button", name="Retry").click()
    expect(page.locator("#kv-branch-list label")).to_have_count(2)
    finished(page, 2)
    expect(page.locator("#kv-notice")).to_contain_text("stay as a branch")
    assert [row.inner_text().strip() for row in page.locator("#kv-chatbot .user-row").all()] == [text, "second"]


# -- keep and share ------------------------------------------------------------------------------------------------

def test_a_link_opens_the_page_as_it_was_set_up_and_says_what_it_can_not_have(visit):
    page = visit(query="?cache=sink&window_length=64&num_sink_tokens=9999&model=no/such-model&tab=compare", ready=False)
    expect(page.get_by_role("tab", name="Compare")).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="Chat").click()
    expect(page.locator("#kv-chat-form-cache input")).to_have_value("Sink")
    expect(page.locator("#kv-chat-form-sink-window-length input").first).to_have_value("64")
    expect(page.locator("#kv-notice")).to_contain_text("no/such-model, which is not on this computer")
    expect(page.locator("#kv-notice")).to_contain_text("num_sink_tokens must be")
    expect(page.locator("#kv-predicted table")).to_be_visible()
    page.get_by_text("Keep and share").click()
    page.locator("#kv-link").click()
    expect(page.locator("#kv-address textarea")).to_have_value(re.compile(r".*\?model=.*&cache=sink&window_length=64&residual_length=0&tab=chat"))


def test_a_chat_goes_out_as_a_file_and_comes_in_with_its_cache(visit, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "is_here", lambda model_id: True)
    page = visit()
    longest_reply(page, 12)
    send(page, WORDS)
    finished(page, 1)
    page.get_by_text("Keep and share").click()
    for button in ("#kv-export", "#kv-export-cache"):
        with page.expect_download() as download:
            page.locator(button).click()
        download.value.save_as(tmp_path / download.value.suggested_filename)
    assert json.loads((tmp_path / "conversation.json").read_text())["turns"][0]["user"] == WORDS
    page.locator("#kv-clear").click()
    expect(page.locator("#kv-chatbot .kv-stats")).to_have_count(0)
    (tmp_path / "broken.json").write_text((tmp_path / "conversation.json").read_text()[:200])
    for name, words in (("broken.json", "no whole JSON"), ("conversation.safetensors", "Took in 2 messages")):
        with page.expect_file_chooser() as chooser:
            page.locator("#kv-load").click()
        chooser.value.set_files(tmp_path / name)
        expect(page.locator("#kv-share-notice")).to_contain_text(words)
    send(page, "and then")
    finished(page, 2)
    assert int(re.search(r"reused ([\d,]+)", page.locator("#kv-chatbot details.kv-stats").last.inner_text()).group(1).replace(",", "")) > 10
    page.locator("#kv-python").click()
    expect(page.locator("#kv-code .cm-content")).to_contain_text("kvcache.create('quantized', model")
