"""A conversation as a file: what is read back goes on with the true ids and the same cache, what is damaged is refused in a sentence; and replay."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_chat import make_model, make_reader, make_tokenizer, tiny

from kvcache import load_cache
from kvcache.chat import models, record
from kvcache.chat.conversation import Conversation
from kvcache.chat.engine import Sampling
from kvcache.chat.program import program
from kvcache.chat.record import RecordError
from kvcache.measure import __main__ as measure
from kvcache.measure import replay
from kvcache.memory import measure_memory
from kvcache.saving import CacheFileError

WORDS = "The keeper counts the ships that pass before dawn. "
DRAWN = Sampling(0.9, top_k=30, seed=5, max_new_tokens=12)


def talked(loaded=None, cache="sink", sampling=DRAWN, turns=2, **parameters):
    """A chat of so many turns."""
    talk = Conversation(loaded or tiny(), cache, parameters or ({"window_length": 32} if cache == "sink" else {}), "Be brief.", sampling)
    for number in range(turns):
        say(talk, f"{WORDS}{number}")
    return talk


def say(talk, text):
    *_, done = talk.send(text)
    return done.stats


def test_what_is_read_back_is_what_was_written_and_goes_on_alike():
    talk = talked()
    other = record.restore(record.parse(record.to_json(talk)), tiny())
    assert other.messages == talk.messages and other.ids == talk.ids and other.stats == talk.stats
    assert (other.cache_name, other.parameters, other.system, other.sampling) == (talk.cache_name, talk.parameters, talk.system, talk.sampling)
    stats = say(other, "and then")
    assert stats.reused == 0 and "recomputed all" in stats.note


@pytest.mark.parametrize("cache, parameters", [("dynamic", {}), ("sink", {"window_length": 32}), ("quantized", {"nbits": 2, "residual_length": 8}), ("static", {"max_cache_len": 512})])
def test_conversation_and_cache_go_on_as_if_they_had_never_been_away(tmp_path, cache, parameters):
    talk = talked(cache=cache, **parameters)
    record.save(talk, tmp_path / "talk.safetensors")
    other = record.load(tmp_path / "talk.safetensors", tiny())
    assert load_cache(tmp_path / "talk.safetensors", tiny().model).token_ids == talk.cached_ids
    stats, wanted = say(other, "and then"), say(talk, "and then")
    assert stats.reused == wanted.reused > 50 and other.messages == talk.messages and stats.note == ""
    assert measure_memory(other.cache).used == measure_memory(talk.cache).used


def test_what_an_encoder_has_read_comes_back_too(tmp_path):
    loaded = make_reader()
    talk = talked(loaded, "encoder_decoder")
    record.save(talk, tmp_path / "talk.safetensors")
    other = record.load(tmp_path / "talk.safetensors", loaded)
    assert other.heard_ids == talk.heard_ids and say(other, "and then").reused == say(talk, "and then").reused > 0
    assert other.messages == talk.messages


def test_other_weights_get_the_messages_and_not_the_ids():
    talk = talked()
    loaded = make_model()
    with torch.no_grad():
        next(loaded.model.parameters()).add_(0.5)
    other = record.restore(record.record(talk), loaded)
    assert other.messages == talk.messages and other.ids == []


def changed(found, **changes):
    """A record with other values and the digest that belongs to them, as somebody might write one."""
    found = {**found, **changes}
    return {**found, "digest": record._digest(found)}


@pytest.mark.parametrize("text, words", [("", "no whole JSON"), ("[" * 99_999, "no whole JSON"), ("[1]", "no conversation"), ('{"format": 7}', "no conversation"),
                                         (json.dumps({"format": record.FORMAT, "digest": "x"}), "was changed after")])
def test_what_is_no_record_is_a_sentence(text, words):
    with pytest.raises(RecordError, match=words):
        record.parse(text)


def test_versions_of_a_reply_are_kept_and_a_made_up_one_is_refused():
    talk = talked(turns=1)
    list(talk.regenerate())
    talk.show_version(0)
    found = record.record(talk)
    other = record.restore(record.parse(record.to_json(talk)), tiny())
    assert other.turns == talk.turns and len(other.turns[0].versions) == 2
    other.show_version(1)
    assert other.messages != talk.messages
    (turn,) = found["turns"]
    for wrong in ({"version": 1}, {"version": 7}, {"versions": [{**turn, "version": 0}]}, {"versions": [{}]}, {"versions": 5}):
        with pytest.raises(RecordError, match="Turn 1"):
            record.restore(record.check(changed(found, turns=[{**turn, **wrong}])), tiny())
    assert [each.differs for each in replay.replay(found, tiny())] == [None]


def test_a_reply_that_went_on_is_replayed_at_once():
    talk = talked(turns=1)
    list(talk.extend())
    assert len(talk.turns[0].reply_ids) == 24 and [each.differs for each in replay.replay(record.record(talk), tiny())] == [None]


def test_a_damaged_record_is_a_sentence():
    text = record.to_json(talked(turns=1))
    with pytest.raises(RecordError, match="no whole JSON"):
        record.parse(text[: len(text) // 2])
    with pytest.raises(RecordError, match="was changed after"):
        record.parse(text.replace("Be brief.", "Be loud."))


@pytest.mark.parametrize("changes, words", [({"turns": 5}, "turns must be a list"), ({"turns": [5]}, "Turn 1"), ({"turns": [{}]}, "Turn 1"), ({"parameters": {"colour": 1}}, "no parameter 'colour'"),
                                            ({"cache": "nonsense"}, "no cache is called"), ({"sampling": {"heat": 1}}, "heat"), ({"model": None}, "model must be a str")])
def test_a_record_somebody_made_up_is_a_sentence(changes, words):
    with pytest.raises(RecordError, match=words):
        record.restore(record.check(changed(record.record(talked(turns=1)), **changes)), tiny())


@pytest.mark.parametrize("ids", [[10**9], [-1], ["1"], [1.5], [True]])
def test_ids_that_are_no_tokens_are_refused(ids):
    found = record.record(talked(turns=1))
    turn = {**found["turns"][0], "prompt_ids": ids}
    with pytest.raises(RecordError, match="not all tokens"):
        record.restore(record.check(changed(found, turns=[turn])), tiny())


def test_a_damaged_cache_file_and_one_without_a_conversation_are_sentences(tmp_path):
    path, talk = tmp_path / "talk.safetensors", talked(turns=1)
    record.save(talk, path)
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 255
    path.write_bytes(raw)
    with pytest.raises(CacheFileError, match="was changed"):
        record.load(path, tiny())
    talk.cache.save(path)
    with pytest.raises(RecordError, match="no conversation"):
        record.load(path, tiny())


# -- branches ------------------------------------------------------------------------------------------------------

def test_a_branch_goes_on_from_an_earlier_turn_and_its_parent_from_its_own():
    talk, twin = talked(cache="dynamic", turns=3), talked(cache="dynamic", turns=1)
    branch = talk.fork(1)
    assert measure_memory(branch.cache).total == measure_memory(talk.cache).total
    assert [branch.messages, talk.messages[:2]] == [twin.messages, twin.messages]
    stats = say(branch, "and then")
    say(twin, "and then")
    assert branch.messages == twin.messages and stats.reused > 0 and len(talk.messages) == 6
    assert say(talk, "and then").reused == len(talk.turns[-2].prompt_ids) + len(talk.turns[-2].reply_ids) - 1


# -- replay --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("sampling", [Sampling(max_new_tokens=12), DRAWN])
def test_replay_says_every_token_again(sampling):
    talk = talked(sampling=sampling)
    again = list(replay.replay(record.record(talk), tiny()))
    assert [each.differs for each in again] == [None, None] and all(before == now for before, now in (each.nbytes for each in again))
    assert "the same 12 tokens" in replay.words(again[0], tiny().tokenizer)


def test_replay_says_where_a_token_differs_and_stops_there():
    found = record.record(talked())
    turn = found["turns"][0]
    turn["reply_ids"][4] += 1
    again = list(replay.replay(changed(found), tiny()))
    assert len(again) == 1 and again[0].differs == 4 and not again[0].in_prompt
    assert "turn 1 differs at token 5 of its reply: recorded" in replay.words(again[0], tiny().tokenizer)
    turn["prompt_ids"][2] += 1
    assert "differs at token 3 of its prompt" in replay.words(next(replay.replay(changed(found), tiny())), tiny().tokenizer)


def test_a_stopped_reply_and_one_with_another_seed_are_replayed_as_they_were():
    talk = talked(turns=1)
    for _ in talk.regenerate():
        pass
    events = talk.send("and then")
    for _ in range(4):
        next(events)
    events.close()
    assert 0 < len(talk.turns[-1].reply_ids) < 12 and talk.turns[0].seed == 6
    assert [each.differs for each in replay.replay(record.record(talk), tiny())] == [None, None]


def test_turns_that_came_as_text_are_what_the_others_go_on_from():
    talk = Conversation.from_messages(tiny(), "dynamic", {}, [{"role": "user", "content": WORDS}, {"role": "assistant", "content": "Yes."}], None, replace(DRAWN))
    say(talk, "and then")
    assert [(each.number, each.differs) for each in replay.replay(record.record(talk), tiny())] == [(2, None)]


def test_the_command_prints_a_line_a_turn_and_exits_by_what_it_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(replay.models, "load", lambda name: tiny())
    talk, path = talked(), tmp_path / "run.json"
    path.write_text(record.to_json(talk))
    record.save(talk, tmp_path / "run.safetensors")
    for name in ("run.json", "run.safetensors"):
        with pytest.raises(SystemExit) as left:
            measure.main(["replay", str(tmp_path / name)])
        assert left.value.code == 0 and "every token is the same" in capsys.readouterr().out
    found = record.record(talk)
    found["turns"][1]["reply_ids"][0] += 1
    path.write_text(json.dumps(changed(found)))
    with pytest.raises(SystemExit) as left:
        measure.main(["replay", str(path)])
    assert left.value.code == 1 and "turn 2 differs at token 1" in capsys.readouterr().out
    for bad in (tmp_path / "none.json", tmp_path):
        with pytest.raises(SystemExit) as left:
            measure.main(["replay", str(bad)])
        assert left.value.code == 2 and "replay: " in capsys.readouterr().err


# -- a set-up as Python --------------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parent.parent
MESSAGE = "Hi, my name is Ada.\nThe \"box\" opens with {7}-'3'-1 \\ ok?"


def run(text):
    """What a program prints, run by itself."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", text], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *reply, nbytes = done.stdout.rstrip("\n").split("\n")
    return "\n".join(reply), int(nbytes.split()[0])


def said(loaded, name, parameters, system, sampling):
    """The first reply of a chat on this set-up and the bytes of its cache then."""
    talk = Conversation(loaded, name, parameters, system, sampling)
    *_, done = talk.send(MESSAGE)
    return talk.messages[-1]["content"], done.snapshot.total


@pytest.mark.slow
@pytest.mark.parametrize("model, cache, parameters, system", [
    (models.DEFAULT, "sink", {"window_length": 48}, "Be brief."),
    (models.DEFAULT, "quantized", {"nbits": 2, "residual_length": 16}, ""),
    ("kvlab-mamba2-5m", "mamba", {}, ""),
    ("kvlab-umt5-5m", "encoder_decoder", {}, "The red box opens with 5-5-5."),
    ("kvlab-umt5-5m", "encoder_decoder", {"self_cache": "static", "max_cache_len": 256}, ""),
])
def test_a_program_prints_the_reply_of_the_chat(model, cache, parameters, system):
    loaded, sampling = models.load(model), Sampling(max_new_tokens=24)
    reply, nbytes = run(program(loaded, cache, parameters, MESSAGE, system, sampling))
    wanted, held = said(loaded, cache, parameters, system, sampling)
    assert reply.strip() == wanted.strip() and reply.strip() and nbytes == held


def answered(loaded, text):
    """A program's reply on a model in memory: its first lines, which load one, are left out."""
    names = {"model": loaded.model, "tokenizer": loaded.tokenizer, "print": lambda *words: printed.append(words[0])}
    printed = []
    lines = [line for line in text.split("\n") if not line.startswith(("name =", "tokenizer =", "model ="))]
    exec("\n".join(lines), names)
    return whole(printed[0])


def whole(text):
    """Without the half character that random tokens may end with, which a chat holds back."""
    return text.rstrip("\ufffd")


@pytest.mark.parametrize("kind, cache", [("llama", "dynamic"), ("qwen3", "static"), ("gemma3", "hybrid"), ("mamba", "mamba")])
@pytest.mark.parametrize("sampling", [Sampling(max_new_tokens=12), Sampling(max_new_tokens=12, repetition_penalty=1.3), Sampling(0.8, top_k=40, top_p=0.9, min_p=0.01, seed=3, max_new_tokens=12)])
def test_every_sampling_is_taken_over(kind, cache, sampling):
    loaded = make_model(kind)
    assert answered(loaded, program(loaded, cache, {}, MESSAGE, "", sampling)) == whole(said(loaded, cache, {}, "", sampling)[0])


def test_a_model_without_a_chat_template_gets_the_plain_prompt_and_its_stop():
    loaded = make_model("llama", make_tokenizer(None))
    text = program(loaded, "dynamic", {}, MESSAGE, "Be brief.", Sampling(max_new_tokens=12))
    assert "stop_strings" in text and answered(loaded, text) == whole(said(loaded, "dynamic", {}, "Be brief.", Sampling(max_new_tokens=12))[0])


def test_only_what_was_changed_is_written_and_nonsense_is_refused():
    loaded = make_model("llama")
    text = program(loaded, "sink", {"window_length": 64, "num_sink_tokens": 4}, MESSAGE)
    assert "kvcache.create('sink', model, window_length=64)" in text
    with pytest.raises(ValueError, match="num_sink_tokens must be below"):
        program(loaded, "sink", {"window_length": 8, "num_sink_tokens": 8}, MESSAGE)
