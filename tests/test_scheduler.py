"""Replies of one model written at once: each as it is alone, nobody waiting for another's whole reply, and whoever fails or stops leaves alone."""

import threading
import time

import pytest
from tiny_chat import make_model, some_ids, tiny

import kvcache
from kvcache.chat import decode_step, engine, scheduler
from kvcache.chat.conversation import Conversation
from kvcache.chat.engine import Done, Prefill, Reply, Sampling, Token, Waiting
from kvcache.chat.scheduler import Row, Scheduler, scheduler_of

KINDS = (("dynamic", {}), ("quantized", {"nbits": 4, "residual_length": 16, "q_group_size": 32}), ("sink", {"window_length": 24}), ("static", {"max_cache_len": 300}), ("sliding_window", {"window_length": 24}))


def cache_of(loaded, n):
    name, parameters = KINDS[n % len(KINDS)]
    if kvcache.ENTRIES[name].why_not(loaded.model):
        name, parameters = "dynamic", {}
    return kvcache.create(name, loaded.model, **parameters)


def ids_of(events):
    return [event.id for event in events if isinstance(event, Token)]


def sampling_of(n, tokens=12):
    return Sampling(max_new_tokens=tokens) if n % 2 else Sampling(temperature=0.8, top_p=0.9, seed=n, max_new_tokens=tokens)


def alone(loaded, n, prompt, tokens=12):
    return ids_of(engine.generate_tokens(loaded, cache_of(loaded, n), prompt, sampling=sampling_of(n, tokens), decode="eager"))


def all_at_once(loaded, many, prompts, tokens=12):
    """The replies' ids, written at once by threads of their own."""
    found = [None] * many

    def write(n):
        found[n] = ids_of(scheduler.generate_tokens(loaded, cache_of(loaded, n), prompts[n], sampling=sampling_of(n, tokens), decode="eager"))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def row_of(loaded, n, prompt, stop=None, tokens=12, may_begin=lambda: True):
    return Row(Reply(loaded, cache_of(loaded, n), prompt, sampling=sampling_of(n, tokens), stop=stop or threading.Event(), prefill_chunk=16, decode="eager"), may_begin)


def by_hand(loaded, *rows):
    """A scheduler whose ticks the test makes."""
    made = Scheduler(loaded)
    made.waiting.extend(rows)
    return made


def events_of(row):
    found = []
    while not row.events.empty():
        found.append(row.events.get())
    return [event for event in found if event is not scheduler._END]


def finish(made, ticks=200):
    for _ in range(ticks):
        if not (made.is_busy or made.waiting):
            return
        made.tick()
    raise AssertionError("replies did not end")


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3"])
def test_replies_written_at_once_are_those_written_alone(kind):
    """Seven replies on five kinds of caches, half of them drawn with a seed."""
    loaded = tiny(kind)
    prompts = [some_ids(20 + 9 * n, seed=n) for n in range(7)]
    assert all_at_once(loaded, 7, prompts) == [alone(loaded, n, prompt) for n, prompt in enumerate(prompts)]


def test_a_model_that_shares_no_forward_writes_one_row_after_the_other():
    loaded = make_model("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0})
    prompts = [some_ids(20 + n, seed=n) for n in range(3)]
    assert all_at_once(loaded, 3, prompts) == [alone(loaded, n, prompt) for n, prompt in enumerate(prompts)]
    assert scheduler_of(loaded).batch is None


@pytest.mark.parametrize("tokens, read", [(16, [16, 32, 48, 64]), (256, [16, 32, 48, 64, 80, 96])])
def test_a_tick_is_so_many_tokens_of_prompts_and_one_of_everybody_who_writes(tokens, read, monkeypatch):
    """A prompt of twenty chunks holds up neither who is writing nor whose prompt is short; where a tick takes more than one chunk, they are read side by side."""
    monkeypatch.setattr(scheduler, "TICK_TOKENS", tokens)
    loaded = tiny()
    writer, long, short = row_of(loaded, 0, some_ids(10), tokens=60), row_of(loaded, 1, some_ids(320)), row_of(loaded, 3, some_ids(30))
    made = by_hand(loaded, writer)
    made.tick()
    made.waiting.extend((long, short))
    for _ in range(6):
        events_of(writer)
        made.tick()
        assert len(ids_of(events_of(writer))) == 1
    assert [event.done for event in events_of(long) if isinstance(event, Prefill)] == read
    assert len(ids_of(events_of(short))) >= 2
    finish(made)


def test_prompts_are_read_beside_what_is_written_in_one_forward(monkeypatch):
    """Four prompts at once, and a fifth that comes while they are written: as many forwards as the longest takes."""
    loaded, shapes, decode = tiny(), [], scheduler.decode
    monkeypatch.setattr(scheduler, "decode", lambda model, batch, ids, forward: shapes.append([len(each) for each in ids]) or decode(model, batch, ids, forward))
    monkeypatch.setattr(scheduler, "forward", lambda *_: 1 / 0)
    prompts = [some_ids(12 + n, seed=n) for n in range(5)]
    rows = [row_of(loaded, n, prompt, tokens=6) for n, prompt in enumerate(prompts)]
    made = by_hand(loaded, *rows[:4])
    made.tick()
    made.tick()
    made.waiting.append(rows[4])
    made.tick()
    assert shapes == [[12, 13, 14, 15], [1, 1, 1, 1], [1, 1, 1, 1, 16]]
    monkeypatch.undo()
    finish(made)
    assert [ids_of(events_of(row)) for row in rows] == [alone(loaded, n, prompt, tokens=6) for n, prompt in enumerate(prompts)]


@pytest.mark.parametrize("shares", [True, False])
def test_prompts_of_which_a_tick_takes_one_are_read_though_nobody_shares_its_forward(shares, monkeypatch):
    """Two chunks that are too long for one tick, and beside a writer whose cache stands alone."""
    monkeypatch.setattr(scheduler, "TICK_TOKENS", 16)
    loaded, prompts = tiny(), [some_ids(40 + n, seed=n) for n in range(3)]
    rows = [row_of(loaded, n, prompt) for n, prompt in enumerate(prompts)]
    rows[0].shares = shares
    made = by_hand(loaded, rows[0])
    made.tick()
    made.waiting.extend(rows[1:])
    finish(made)
    assert [ids_of(events_of(row)) for row in rows] == [alone_in_chunks(loaded, n, prompt) for n, prompt in enumerate(prompts)]


@pytest.mark.parametrize("broken", [0, 1, 2, 3])
def test_a_row_that_breaks_while_its_prompt_is_read_beside_others_leaves_alone(broken, monkeypatch):
    """Those whose chunks were in the same forward go on as if they had been read alone; sinks that it left in parts are filled anew."""
    loaded = tiny()
    prompts = [some_ids(70 + n, seed=n) for n in range(4)]
    rows = [row_of(loaded, n, prompt) for n, prompt in enumerate(prompts)]
    made = by_hand(loaded, *rows)
    for _ in range(3):
        made.tick()
    monkeypatch.setattr(rows[broken].reply.cache.layers[1], "update", lambda *_, **__: 1 / 0)
    finish(made)
    found = [events_of(row) for row in rows]
    assert isinstance(found[broken][-1], ZeroDivisionError)
    assert [ids_of(found[n]) for n in range(4) if n != broken] == [alone_in_chunks(loaded, n, prompts[n]) for n in range(4) if n != broken]


@pytest.mark.parametrize("phase, ticks", [("waiting", 1), ("reading", 1), ("writing", 10)])
def test_stop_is_within_a_tick_in_each_phase(phase, ticks):
    loaded, stop = tiny(), threading.Event()
    row, other = row_of(loaded, 0, some_ids(48), stop, may_begin=lambda: phase != "waiting"), row_of(loaded, 1, some_ids(20, seed=3))
    made = by_hand(loaded, row, other)
    for _ in range(ticks):
        made.tick()
    stop.set()
    made.tick()
    made.tick()
    done = events_of(row)[-1]
    assert isinstance(done, Done) and done.reason == "stopped" and row.reply.cache.tokens_seen == done.snapshot.seen
    finish(made)
    assert ids_of(events_of(other)) == alone_in_chunks(loaded, 1, some_ids(20, seed=3))


def test_one_who_writes_alone_takes_the_compiled_step(monkeypatch):
    taken = []
    forward = scheduler.forward
    monkeypatch.setattr(scheduler, "forward", lambda loaded, cache, ids, compiled=False: taken.append((len(ids), compiled)) or forward(loaded, cache, ids))
    loaded = tiny()
    row = Row(Reply(loaded, cache_of(loaded, 0), some_ids(5), sampling=Sampling(max_new_tokens=3), decode="compiled"), lambda: True)
    row.reply.decode = "auto"  # without a compiler's seconds
    monkeypatch.setattr(engine, "compile_beside", lambda *_: True)
    finish(by_hand(loaded, row))
    assert taken == [(5, False), (1, True), (1, True)]


@pytest.mark.parametrize("people, begun", [(3, True), (5, False)])
def test_no_compiler_begins_where_many_wait_for_the_same_interpreter(people, begun, monkeypatch):
    started = []
    monkeypatch.setattr(engine, "compile_beside", lambda *_: started.append("one") or True)
    monkeypatch.setattr(scheduler, "compile_batch_beside", lambda *_: started.append("batch") or True)
    monkeypatch.setattr(decode_step.CompiledStep, "why_not", lambda *_: None)
    loaded = make_model("llama")
    rows = [row_of(loaded, 1, some_ids(5, seed=n)) for n in range(people)]
    for row in rows:
        row.reply.decode = "auto"
    made = by_hand(loaded, *rows)
    for _ in range(people + 3):
        made.tick()
    assert len(made.writing) == people and bool(started) == begun


@pytest.mark.parametrize("kind", ["llama", "mamba"])
def test_a_row_that_breaks_in_mid_forward_leaves_alone_and_no_neighbour_notices(kind, monkeypatch):
    """Sinks and states cannot go back to before that forward: they are filled anew from their ids."""
    loaded = make_model(kind)
    names = ("mamba",) * 4 if kind == "mamba" else ("dynamic", "sink", "quantized", "sliding_window")
    parameters = {"sink": {"window_length": 24}, "sliding_window": {"window_length": 24}}
    prompts = [some_ids(30 + n, seed=n) for n in range(4)]

    def rows():
        return [Row(Reply(loaded, kvcache.create(name, loaded.model, **parameters.get(name, {})), prompt, sampling=Sampling(max_new_tokens=8), decode="eager", prefill_chunk=16), lambda: True)
                for name, prompt in zip(names, prompts)]

    expected = []
    for row in rows():
        finish(by_hand(loaded, row))
        expected.append(ids_of(events_of(row)))
    together = rows()
    made = by_hand(loaded, *together)
    while len(made.writing) < 4:
        made.tick()
    broken = together[2].reply.cache
    method = "update_conv_state" if kind == "mamba" else "update"
    monkeypatch.setattr(broken.layers[1], method, lambda *_, **__: 1 / 0)
    finish(made)
    found = [events_of(row) for row in together]
    assert isinstance(found[2][-1], ZeroDivisionError)
    assert [ids_of(events) for n, events in enumerate(found) if n != 2] == [ids for n, ids in enumerate(expected) if n != 2]


def test_a_full_cache_ends_its_own_reply():
    loaded = tiny()
    full = Row(Reply(loaded, kvcache.create("static", loaded.model, max_cache_len=24), some_ids(20), sampling=Sampling(max_new_tokens=12), decode="eager"), lambda: True)
    other = row_of(loaded, 1, some_ids(20, seed=5))
    finish(by_hand(loaded, full, other))
    assert events_of(full)[-1].reason == "capacity" and ids_of(events_of(other)) == alone(loaded, 1, some_ids(20, seed=5))


def test_where_memory_runs_out_fewer_rows_share_a_forward(monkeypatch):
    loaded, sizes, decode = tiny(), [], scheduler.decode

    def tight(model, batch, ids, forward):
        if len(ids) > 2:
            raise MemoryError("no room for so many rows")
        sizes.append(len(ids))
        return decode(model, batch, ids, forward)

    monkeypatch.setattr(scheduler, "decode", tight)
    prompts = [some_ids(20 + n, seed=n) for n in range(4)]
    rows = [row_of(loaded, n, prompt) for n, prompt in enumerate(prompts)]
    made = by_hand(loaded, *rows)
    finish(made)
    assert made.most == 2 and set(sizes) == {2}
    assert [ids_of(events_of(row)) for row in rows] == [alone_in_chunks(loaded, n, prompt) for n, prompt in enumerate(prompts)]


def alone_in_chunks(loaded, n, prompt):
    return ids_of(engine.generate_tokens(loaded, cache_of(loaded, n), prompt, sampling=sampling_of(n), prefill_chunk=16, decode="eager"))


def test_a_reply_without_room_waits_says_so_and_begins_when_there_is():
    loaded, room = tiny(), []
    row = row_of(loaded, 0, some_ids(10), may_begin=lambda: bool(room))
    made = by_hand(loaded, row)
    made.tick()
    made.tick()
    assert [type(event) for event in events_of(row)] == [Waiting]
    room.append(1)
    finish(made)
    assert len(ids_of(events_of(row))) == 12


def test_an_error_of_the_thread_itself_reaches_everybody_and_the_next_reply_is_written():
    loaded = make_model()
    with pytest.raises(ZeroDivisionError):
        list(scheduler.generate_tokens(loaded, cache_of(loaded, 0), some_ids(5), may_begin=lambda: 1 / 0))
    assert len(ids_of(scheduler.generate_tokens(loaded, cache_of(loaded, 0), some_ids(5), sampling=Sampling(max_new_tokens=4)))) == 4


def test_a_conversation_broken_off_keeps_what_was_written_and_goes_on():
    """Ticks go on while the caller looks away: what was written by the time it leaves is part of the conversation."""
    loaded = tiny()
    talk = Conversation(loaded, "dynamic", sampling=Sampling(max_new_tokens=200), decode="eager", generate=scheduler.generate_tokens)
    events = talk.send("The keeper counts the ships.")
    next(event for event in events if isinstance(event, Token))
    time.sleep(0.1)
    events.close()
    assert talk.cached_ids == talk.ids[:-1] and talk.cache.tokens_seen == len(talk.cached_ids)
    done = list(talk.send("and then"))[-1]
    assert done.stats.reused >= len(talk.cached_ids) - done.stats.computed - done.stats.generated and "recomputed" not in done.stats.note


def test_conversations_answer_at_once_as_one_after_the_other():
    loaded = tiny()
    words = ["The keeper counts.", "Please remember that my name is Bram.", "What is the capital of France?", "Once upon a time"]

    def talks(**options):
        return [Conversation(loaded, *KINDS[n], sampling=Sampling(max_new_tokens=10), decode="eager", **options) for n in range(4)]

    expected = talks()
    for talk, text in zip(expected, words):
        list(talk.send(text))
        list(talk.send("and then"))
    found = talks(generate=scheduler.generate_tokens)

    def chat(talk, text):
        list(talk.send(text))
        list(talk.send("and then"))

    threads = [threading.Thread(target=chat, args=pair) for pair in zip(found, words)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [talk.messages for talk in found] == [talk.messages for talk in expected]
