"""Copy as Python: the program runs as it is, on every bundled model, and prints the reply of the chat."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_chat import make_model, make_tokenizer

from kvcache.chat import models
from kvcache.chat.conversation import Conversation
from kvcache.chat.engine import Sampling
from kvcache.chat.program import program

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
