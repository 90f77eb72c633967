"""What one conversation has read is found by the next that begins with the same text: the same reply, fewer tokens computed, and nothing of anybody else's."""

import threading

import pytest
from test_conversation import CACHES, SMALL, count_fed, say, stopped_at
from tiny_chat import make_model, reader, tiny

import kvcache
from kvcache.chat import prefixes, scheduler
from kvcache.chat.conversation import Conversation
from kvcache.chat.engine import Sampling, Token

TEXT = "The keeper counts the ships and remembers the code. " * 60  # some 700 tokens
GREEDY = Sampling(max_new_tokens=8)
CHUNK = prefixes.PREFILL_CHUNK
SMALLER = {**SMALL, "static": dict(max_cache_len=2048), "offloaded_static": dict(max_cache_len=2048), "hybrid": dict(max_cache_len=2048)}


@pytest.fixture
def store_of():
    """A store for each model of one test, as the playground has one for each."""
    stores = {}
    return lambda loaded: stores.setdefault(loaded.id, kvcache.PrefixStore(loaded.model, 2**28, granularity=CHUNK, exact=True))


def chat(loaded, name="dynamic", prefixes=lambda loaded: None, **options):
    return Conversation(loaded, name, SMALLER.get(name, {}), sampling=GREEDY, prefixes=prefixes, **options)


@pytest.mark.parametrize("generate", [None, scheduler.generate_tokens], ids=["alone", "scheduled"])
@pytest.mark.parametrize("name", CACHES)
def test_a_second_person_with_the_same_text_gets_the_same_reply_for_fewer_tokens(name, generate, store_of):
    loaded, options = tiny("llama"), {"generate": generate} if generate else {}
    first = say(chat(loaded, name, store_of, **options), TEXT + "Who counts?")
    assert (first.stats.reused, first.stats.kept) == (0, 0)
    alone, together = chat(loaded, name), chat(loaded, name, store_of, **options)
    expected, done = say(alone, TEXT + "What is remembered?"), say(together, TEXT + "What is remembered?")
    assert together.ids == alone.ids
    assert done.stats.kept == done.stats.reused >= 2 * CHUNK and done.stats.reused % CHUNK == 0
    assert done.stats.reused + done.stats.computed == expected.stats.computed
    assert together.cached_ids == together.ids[:-1]
    again, told = say(together, "And then?"), say(alone, "And then?")
    assert (together.ids, again.stats.kept, again.stats.reused) == (alone.ids, 0, told.stats.reused)


@pytest.mark.parametrize("kind", ["mistral", "gemma3", "mamba"])
def test_models_with_windows_and_states_too(kind, store_of):
    loaded = tiny(kind)
    name = "mamba" if kind == "mamba" else "dynamic"
    say(chat(loaded, name, store_of), TEXT + "Who counts?")
    alone, together = chat(loaded, name), chat(loaded, name, store_of)
    say(alone, TEXT + "What is remembered?")
    done = say(together, TEXT + "What is remembered?")
    assert together.ids == alone.ids
    assert done.stats.kept >= (2 * CHUNK if loaded.continues_in_chunks else 0)


def test_a_long_system_prompt_is_found_again(store_of):
    loaded = tiny()
    say(chat(loaded, prefixes=store_of, system=TEXT), "Hi")
    done = say(chat(loaded, prefixes=store_of, system=TEXT), "What is your name?")
    assert done.stats.kept >= 2 * CHUNK


def test_a_whole_conversation_goes_on_elsewhere_from_its_end(store_of):
    """The same messages on another conversation with the same ids: a column beside, or a conversation whose cache was freed."""
    loaded = tiny()
    talk = chat(loaded, prefixes=store_of)
    say(talk, TEXT)
    other = talk.with_cache("dynamic")
    assert say(other, "And then?").stats.kept == len(talk.cached_ids)
    talk.release()
    done = say(talk, "And then?")
    assert done.stats.kept == len(other._turns[0].prompt_ids) + 7
    assert done.stats.note.startswith("recomputed ") and "more of" in done.stats.note
    assert talk.ids == other.ids


def test_nothing_short_is_kept_or_found_and_nothing_without_a_store(store_of):
    loaded = tiny()
    say(chat(loaded, prefixes=store_of), "Hello there")
    assert len(store_of(loaded)) == 0
    say(chat(loaded), TEXT)
    assert len(store_of(loaded)) == 0
    say(chat(loaded, prefixes=store_of), TEXT)
    assert say(chat(loaded, prefixes=store_of), TEXT[: CHUNK // 2]).stats.kept == 0
    assert say(chat(loaded, "quantized", store_of), TEXT).stats.kept == 0
    assert say(chat(loaded, prefixes=store_of), "x" + TEXT).stats.kept == 0


def test_an_encoders_text_must_be_the_same(store_of):
    loaded = reader()
    name = "encoder_decoder"
    said = TEXT
    texts = ("The fox met a crow. " * 3, "The crow met a fox. " * 3)
    first = chat(loaded, name, store_of, system=texts[0])
    say(first, said)
    alone, other = chat(loaded, name, system=texts[1]), chat(loaded, name, store_of, system=texts[1])
    say(alone, said)
    assert (say(other, said).stats.kept, other.ids) == (0, alone.ids)
    same = chat(loaded, name, store_of, system=texts[0])
    assert say(same, said).stats.kept >= CHUNK and same.ids == first.ids


@pytest.mark.parametrize("name", ["dynamic", "quantized", "sink", "static"])
def test_what_the_first_does_next_changes_nothing_for_the_second(name, store_of):
    loaded = tiny()
    first = chat(loaded, name, store_of)
    say(first, TEXT + "Who counts?")
    second, alone = chat(loaded, name, store_of), chat(loaded, name)
    events = second.send(TEXT + "What is remembered?")
    next(events)  # it has begun from the store's
    say(first, "Tell me more. " * 20)
    first.undo()
    first.clear()
    list(events)
    say(alone, TEXT + "What is remembered?")
    assert second.ids == alone.ids


def test_a_reply_that_broke_off_or_failed_leaves_only_what_is_right(store_of):
    loaded = make_model()
    talk = chat(loaded, "quantized", store_of)
    stopped_at(talk, TEXT + "Who?", chunk_tokens=2 * CHUNK)
    assert talk.messages == []
    events = talk.send(TEXT + "Who?")
    for event in events:
        if isinstance(event, Token) and event.index == 3:
            break
    events.close()
    fed = count_fed(loaded)

    def fail(module, inputs, output):
        if len(fed) > 1:
            raise RuntimeError("the forward failed")

    hook = loaded.model.register_forward_hook(fail)
    broken = chat(loaded, "quantized", store_of)
    with pytest.raises(RuntimeError, match="the forward failed"):
        list(broken.send(TEXT + "What? " * 300))
    hook.remove()
    assert broken.messages == [] and broken.cached_ids == []
    for question in ("Who?", "What?"):
        alone, together = chat(loaded, "quantized"), chat(loaded, "quantized", store_of)
        say(alone, TEXT + question)
        assert say(together, TEXT + question).stats.kept >= 2 * CHUNK
        assert together.ids == alone.ids


def test_a_folder_that_is_full_loses_a_prefix_and_no_reply(tmp_path, monkeypatch, caplog):
    loaded = make_model()
    store = kvcache.PrefixStore(loaded.model, 1000, tmp_path, granularity=CHUNK, exact=True)
    monkeypatch.setattr("kvcache.saving.save_file", lambda *arguments, **named: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert say(chat(loaded, prefixes=lambda loaded: store), TEXT).reason == "length"
    assert "a prefix is not kept" in caplog.text and "keeper" not in caplog.text
    assert len(store) == 0


def test_threads_that_share_a_store_say_what_each_says_alone(store_of):
    loaded, texts = tiny(), [TEXT + question for question in ("Who?", "What?", "Why?", "Where?")]
    expected = []
    for text in texts:
        say(alone := chat(loaded, "sink"), text)
        expected.append(alone.ids)
    found = {}

    def work(n):
        for round in range(2):
            talk = chat(loaded, "sink", store_of, generate=scheduler.generate_tokens)
            say(talk, texts[n])
            found[n, round] = talk.ids

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {(n, round): expected[n] for n in range(4) for round in range(2)}


def test_the_settings_of_the_environment(monkeypatch, tmp_path):
    loaded = make_model()
    monkeypatch.setenv("KVCACHE_PREFIX_BYTES", "0")
    assert prefixes.store_of(loaded) is None
    monkeypatch.setenv("KVCACHE_PREFIX_BYTES", "a lot")
    with pytest.raises(ValueError, match="KVCACHE_PREFIX_BYTES must be a whole number of bytes, 0 to keep no prefixes, got 'a lot'"):
        prefixes.store_of(loaded)
    monkeypatch.setenv("KVCACHE_PREFIX_BYTES", "123456789")
    monkeypatch.setenv("KVCACHE_PREFIX_FOLDER", str(tmp_path / "kept"))
    store = prefixes.store_of(loaded)
    assert store.max_nbytes == 123456789 and store is prefixes.store_of(loaded)
    say(chat(loaded, prefixes=prefixes.store_of), TEXT)
    assert prefixes.nbytes() >= store.nbytes > 0
    prefixes.flush()
    again = make_model()  # a server started again
    assert say(chat(again, prefixes=prefixes.store_of), TEXT + "Who?").stats.kept >= 2 * CHUNK
