"""Ready for strangers: what an operator is told, settings that end the start with a sentence, and damage that ends in one."""

import json
import logging
import os
import random
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from architectures import model_of, token_ids
from tiny_chat import make_model

import kvcache
import ui  # noqa: F401  (before gradio: telemetry off)
from kvcache.chat import models
from kvcache.chat.models.menu import find_choice
from ui import health, page, state, theme
from ui.api import answer, settings_from
from ui.state import Registry

ROOT = Path(__file__).resolve().parent.parent
TIMES = int(os.environ.get("KVCACHE_FUZZ") or 300)
NAMES = (*kvcache.ENTRIES, "quanto", "no such", "", "dynamic ", "__init__", "../dynamic")
VALUES = (None, True, "", "x", "4", 0, -1, 1, 3, 8, 10**30, 2.5, float("nan"), float("inf"), [], {}, "\ud800", b"x")


@pytest.fixture
def tiny_everywhere(monkeypatch):
    tiny = make_model("llama")
    monkeypatch.setattr(models, "load", lambda *arguments, **options: tiny)
    return tiny


def test_health_says_how_the_server_is_and_a_turn_is_logged_without_a_word_of_it(tiny_everywhere, caplog):
    caplog.set_level(logging.INFO, "kvcache.turns")
    registry = Registry()
    list(answer(registry, "someone", "My name is Bram and my code is 395.", settings_from("tiny", "sink", {}, "Be kind.", max_new_tokens=4)))
    line = json.loads(caplog.records[-1].getMessage())
    assert (line["event"], line["model"], line["cache"], line["generated"], line["reason"]) == ("turn", "tiny", "sink", 4, "length")
    assert not any(word in caplog.text for word in ("Bram", "395", "kind"))
    blocks = page.build(registry=registry)
    try:
        app, address, _ = blocks.launch(prevent_thread_lock=True, quiet=True, **theme.launch_options())
        health.serve(app, registry, "tiny")
        with urllib.request.urlopen(f"{address}health", timeout=20) as response:
            told = json.load(response)
    finally:
        blocks.close()
    assert (told["status"], told["people"], told["busy"]) == ("loading", 1, 0)
    assert told["cache_nbytes"] == registry.find("someone").nbytes > 0
    assert told["resident_nbytes"] > 10**7 and told["uptime_seconds"] >= 0


def test_settings_are_whole_numbers_or_end_the_start(monkeypatch):
    monkeypatch.setenv("KVCACHE_PEOPLE_AT_ONCE", "12")
    assert state.whole_setting("KVCACHE_PEOPLE_AT_ONCE", 64) == 12
    assert state.whole_setting("KVCACHE_UNSET", 64) == 64
    for text in ("0", "-3", "many", "1e3", "²"):
        monkeypatch.setenv("KVCACHE_PEOPLE_AT_ONCE", text)
        with pytest.raises(SystemExit, match="KVCACHE_PEOPLE_AT_ONCE must be a whole number from 1 on, got"):
            state.whole_setting("KVCACHE_PEOPLE_AT_ONCE", 64)


def test_only_the_models_that_the_environment_lists_may_be_opened(monkeypatch):
    monkeypatch.setenv("KVCACHE_MODELS", f"{models.DEFAULT}, someone/else")
    assert [find_choice(name).id for name in (models.DEFAULT, "someone/else")] == [models.DEFAULT, "someone/else"]
    for name in ("HuggingFaceTB/SmolLM2-135M-Instruct", "./folder", ""):
        with pytest.raises(models.ModelError, match=f"is not open here: pick one of {models.DEFAULT}"):
            find_choice(name)


def test_the_context_is_at_most_what_the_environment_says(monkeypatch):
    long = make_model("llama").context_length
    for said, expected in (("64", 64), (str(long + 1), long), ("", long)):
        monkeypatch.setenv("KVCACHE_CONTEXT", said)
        assert make_model("llama").context_length == expected


@pytest.mark.slow
def test_a_port_that_is_taken_ends_the_start_with_its_number():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        out = subprocess.run([sys.executable, "app.py", "--port", str(port)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert out.returncode == 1 and str(port) in out.stderr and "cannot listen" in out.stderr
    assert "Traceback" not in out.stderr


def test_damaged_cache_files_end_in_a_sentence(tmp_path):
    """Bytes changed, cut, doubled or made up, anywhere in the file: none is opened, and nothing but a ValueError comes."""
    model, generator, path = model_of("llama"), random.Random(0), tmp_path / "it.safetensors"
    cache = kvcache.create("quantized", model, residual_length=8, q_group_size=32)
    kvcache.feed(model, token_ids(1, 50), cache)
    cache.save(path, token_ids=token_ids(1, 50)[0].tolist())
    whole = path.read_bytes()
    for _ in range(TIMES):
        data = bytearray(whole)
        for _ in range(generator.choice((1, 1, 2, 20))):
            at = generator.randrange(generator.choice((64, 2000, len(data))) if len(data) > 2000 else max(len(data), 1))
            change = generator.randrange(4)
            if change == 0 and data:
                data[at] ^= 1 << generator.randrange(8)
            elif change == 1:
                del data[at : at + generator.choice((1, 7, 1000))]
            elif change == 2:
                data[at:at] = generator.randbytes(generator.choice((1, 9, 300)))
            else:
                data[at : at + 5] = b"12345"[: len(data[at : at + 5])]
        if bytes(data) == whole:
            continue
        path.write_bytes(data)
        with pytest.raises(ValueError) as caught:
            kvcache.load_cache(path, model)
        assert len(str(caught.value)) > 20 and "\n" not in str(caught.value).strip()


def test_calls_with_anything_in_them_end_in_a_reply_or_a_sentence(tiny_everywhere):
    """Every argument at random, right, wrong and absurd; the next right call of the same person is answered."""
    import gradio as gr

    generator, registry, answered = random.Random(1), Registry(), 0
    for turn in range(TIMES // 3):
        entry = kvcache.ENTRIES.get(name := generator.choice(NAMES))
        known = [parameter.name for parameter in entry.parameters] if entry else []
        parameters = {generator.choice([*known, "nbits", "x", ""]): generator.choice(VALUES) for _ in range(generator.randrange(3))}
        sampling = {each: generator.choice(VALUES) for each in ("temperature", "max_new_tokens", "seed") if generator.random() < 0.2}
        message = generator.choice(["Hello", "", " ", "\ud800", "x" * 500_000, "The keeper counts the ships. " * 20])
        wanted = generator.choice([parameters, parameters, None, [], "x"])
        try:
            list(answer(registry, "someone", message, settings_from("tiny", name, wanted, generator.choice(["", "Be kind."]), **{"max_new_tokens": 3, **sampling} if sampling.get("max_new_tokens") != 10**30 else {"max_new_tokens": 2})))
            answered += 1
        except gr.Error as error:
            assert len(str(error.message)) > 15, (name, parameters, sampling)
        session = registry.find("someone")
        assert session is None or not (session.busy or session.chat_box.occupied)
        if turn % 10 == 9:
            registry._sessions.clear()
    assert answered and "reply" in list(answer(registry, "someone", "Hello", settings_from("tiny", "dynamic", {}, "", max_new_tokens=2)))[-1]
