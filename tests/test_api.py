"""The named endpoints without a browser, as gradio_client sees them."""

import itertools
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from started import started_page

import app
import kvcache
from kvcache.chat import models, scheduler

ROOT = Path(__file__).resolve().parent.parent
WORDS = "The keeper counts the ships and remembers the code. "


@pytest.fixture(scope="module")
def server():
    with started_page() as (address, registry):
        yield address, registry


@pytest.fixture
def client(server):
    return Client(server[0], verbose=False)


def test_a_conversation_stays_with_its_client(client, server):
    first = client.predict(WORDS, max_new_tokens=5, api_name="/chat")
    second = client.predict("and then", max_new_tokens=5, api_name="/chat")
    assert first["stats"]["reused"] == 0 and second["stats"]["reused"] > first["stats"]["computed"]
    assert [message["role"] for message in second["messages"]] == ["user", "assistant"] * 2
    other = Client(server[0], verbose=False).predict(WORDS, max_new_tokens=5, api_name="/chat")
    assert other["stats"]["reused"] == 0 and other["reply"] == first["reply"]


def test_changing_the_cache_keeps_the_messages_and_says_so(client):
    client.predict(WORDS, max_new_tokens=5, api_name="/chat")
    answer = client.predict("and then", cache="sink", parameters={"window_length": 64}, max_new_tokens=5, api_name="/chat")
    assert len(answer["messages"]) == 4 and "recomputed all" in answer["stats"]["note"]
    assert answer["changed"].startswith("Changed the cache")


def test_a_reply_streams_and_its_last_frame_is_the_whole_answer(client):
    job = client.submit(WORDS * 3, max_new_tokens=120, api_name="/chat")
    whole = job.result()
    frames = job.outputs()
    assert len(frames) > 2 and frames[-1] == whole and whole["stats"]["generated"] == 120
    texts = [frame["reply"] for frame in frames[:-1]]
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:])) and texts[-1] and frames[-2]["cache_nbytes"] > 0


def test_every_sampling_setting_is_taken(client):
    say = lambda **sampling: client.predict(WORDS, max_new_tokens=60, reset=True, api_name="/chat", **sampling)["reply"]  # noqa: E731
    greedy = say()
    assert say(repetition_penalty=50) != greedy == say(temperature=1.5, top_k=1) == say(temperature=1.5, top_p=0.001) == say(temperature=1.5, min_p=1.0)
    assert say(temperature=1.5, seed=1) == say(temperature=1.5, seed=1) != greedy


def test_a_reset_begins_a_new_conversation(client):
    first = client.predict(WORDS, max_new_tokens=5, api_name="/chat")
    again = client.predict(WORDS, max_new_tokens=5, reset=True, api_name="/chat")
    assert again["messages"] == first["messages"] and again["stats"]["reused"] == 0 and again["changed"] == ""


@pytest.mark.parametrize("bad, words", [
    ({"message": ""}, "empty"),
    ({"message": "x" * 1_000_000}, "1,000,000 characters"),
    ({"message": "zq " * 1500}, "tokens"),
    ({"message": "a", "cache": "nonsense"}, "no cache is called 'nonsense'"),
    ({"message": "a", "cache": "quantized", "parameters": {"nbits": 5}}, "nbits must be one of"),
    ({"message": "a", "cache": "sink", "parameters": {"window_length": 8, "num_sink_tokens": 8}}, "num_sink_tokens must be below"),
    ({"message": "a", "cache": "sink", "parameters": {"colour": "red"}}, "no parameter 'colour'"),
    ({"message": "a", "model": "no/such-model"}, "no/such-model"),
    ({"message": "a", "model": "HuggingFaceTB/SmolLM2-135M-Instruct"}, "not in memory: call /catalog with model='HuggingFaceTB/SmolLM2-135M-Instruct' first"),
    ({"message": "a", "model": ["tiny"]}, r"model must be a text, got \['tiny'\]"),
    ({"message": "a", "temperature": -1.0}, "temperature"),
    ({"message": "a", "parameters": [1]}, r"parameters must be a dictionary such as .*, got \[1\]"),
    ({"message": "a", "cache": ["sink"]}, r"cache must be a text, got \['sink'\]"),
    ({"message": 5}, "message must be a text, got 5"),
    ({"message": "a", "top_p": 0}, "top_p must be a number above 0"),
    ({"message": "a", "top_k": -1}, "top_k must be"),
    ({"message": "a", "reset": "yes"}, "reset must be true or false"),
    ({"message": "", "reset": True}, "empty"),
])
def test_bad_input_is_a_sentence_and_the_conversation_goes_on(client, bad, words):
    client.predict(WORDS, max_new_tokens=5, api_name="/chat")
    with pytest.raises(AppError, match=words):
        client.predict(**bad, api_name="/chat")
    answer = client.predict("and then", max_new_tokens=5, api_name="/chat")
    assert answer["stats"]["reused"] > 0 and len(answer["messages"]) == 4


def test_compare_answers_with_every_columns_figures(client):
    run = client.predict([WORDS * 8, "and then"], [{"cache": "dynamic"}, {"cache": "sink", "parameters": {"window_length": 32}}],
                         max_new_tokens=12, api_name="/compare")
    first, other = run["columns"]
    assert first["agreement"] == 1 and first["mean_kl"] == 0 and other["mean_kl"] > 0
    assert other["tokens_held"] == 32 < first["tokens_held"] and other["nbytes"] < first["nbytes"]
    assert run["messages"] == [WORDS * 8, "and then"] and len(other["replies"]) == 2


@pytest.mark.parametrize("caches, words", [([{"cache": "dynamic"}], "two to four"), ([{"name": "dynamic"}] * 2, "caches must be a list"),
                                           ([{"cache": "dynamic"}, {"cache": "static", "parameters": {"max_cache_len": 1}}], "Cache 2")])
def test_a_comparison_that_can_not_be_is_a_sentence(client, caches, words):
    with pytest.raises(AppError, match=words):
        client.predict(["Hello"], caches, api_name="/compare")


@pytest.mark.parametrize("messages, words", [("Hi", "messages must be a list of texts"), ([5], "each of messages must be a text"), ([], "messages is empty")])
def test_messages_that_are_no_list_of_texts_are_said_so(client, messages, words):
    with pytest.raises(AppError, match=words):
        client.predict(messages, [{"cache": "dynamic"}, {"cache": "sink"}], api_name="/compare")


def test_nobody_passes_by_the_queue_or_joins_a_conversation_without_a_session(server):
    asked = urllib.request.Request(server[0] + "gradio_api/run/chat", json.dumps({"data": ["Hi", "", "dynamic", {}, "", 0, 20, 0]}).encode(),
                                   {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked, timeout=20)
    assert refused.value.code == 404 and server[1].find("") is None


def test_nothing_can_be_uploaded(server):
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n\r\n' + b"a" * 100_000 + b"\r\n--x--\r\n"
    asked = urllib.request.Request(server[0] + "gradio_api/upload", body, {"Content-Type": "multipart/form-data; boundary=x"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked, timeout=20)
    assert refused.value.code == 413


@pytest.mark.parametrize("host, local", [(None, True), ("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False), ("192.168.1.5", False)])
def test_who_may_open_folders_follows_from_where_the_page_listens(host, local):
    assert app.is_local(host) is local


def test_the_catalog_lists_models_and_caches_with_their_parameters(client):
    listed = client.predict(api_name="/catalog")
    names = [cache["name"] for cache in listed["caches"]]
    assert {"dynamic", "static", "sliding_window", "sink", "quantized"} <= set(names)
    sink = listed["caches"][names.index("sink")]
    assert {parameter["name"] for parameter in sink["parameters"]} == {*kvcache.ENTRIES["sink"].defaults()} > {"window_length", "num_sink_tokens"}
    assert any(model["id"] == listed["default_model"] for model in listed["models"])
    json.dumps(listed)


def test_nothing_but_the_three_endpoints_is_on_offer(client):
    named = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert sorted(named) == ["/catalog", "/chat", "/compare"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_app_py_serves_the_page():
    port = free_port()
    process = subprocess.Popen([sys.executable, "app.py", "--port", str(port)], cwd=ROOT, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    try:
        assert "KV cache playground" in when_it_answers(f"http://127.0.0.1:{port}", process)
    finally:
        process.terminate()
        process.wait(20)


def when_it_answers(address, process, patience=90):
    """The text of the page as soon as it is there."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        assert process.poll() is None, process.stderr.read().decode()
        try:
            return urllib.request.urlopen(address, timeout=10).read().decode()
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no answer within {patience} s")


def test_without_a_model_the_calls_are_answered_by_the_pages_own():
    """As `python app.py --model` chose it."""
    own = next(choice.id for choice in models.CHOICES if choice.source == "bundled" and choice.id != models.DEFAULT)
    with started_page(own) as (address, registry):
        client = Client(address, verbose=False)
        assert client.predict(api_name="/catalog")["default_model"] == own
        client.predict(WORDS, max_new_tokens=2, api_name="/chat")
        assert registry.find(client.session_hash).settings.model == own


def test_replies_of_two_clients_are_written_at_once(server):
    """Both are in the midst of theirs together, and each is what it is alone."""
    alone = Client(server[0], verbose=False).predict(WORDS, max_new_tokens=150, api_name="/chat")["reply"]
    jobs = [Client(server[0], verbose=False).submit(WORDS, max_new_tokens=150, api_name="/chat") for _ in range(2)]
    together = 0
    while not all(job.done() for job in jobs):
        together = max([together, *(len(each.writing) for each in list(scheduler._made))])
        time.sleep(0.001)
    assert together == 2 and [job.result()["reply"] for job in jobs] == [alone] * 2


def test_who_hangs_up_in_mid_reply_leaves_no_reply_running_and_may_come_back(server):
    """A neighbour's reply is what it is alone, and the next message of who hung up is answered."""
    alone = Client(server[0], verbose=False).predict(WORDS, max_new_tokens=150, api_name="/chat")["reply"]
    neighbour = Client(server[0], verbose=False).submit(WORDS, max_new_tokens=150, api_name="/chat")
    with begun(server[0], "hangs-up", WORDS, 400) as answer:
        assert any(b"reply" in line for line in answer)
    assert neighbour.result()["reply"] == alone
    session = server[1].find("hangs-up")
    for _ in range(200):
        if not (session.busy or session.chat_box.occupied):
            break
        time.sleep(0.05)
    with begun(server[0], "hangs-up", "And then?", 4) as answer:
        said = [json.loads(line[6:]) for line in itertools.takewhile(lambda line: line != b"event: complete\n", answer) if line.startswith(b"data: [")]
        whole = json.loads(next(answer)[6:])[0]
    assert said and whole["stats"]["generated"] == 4


def begun(address, session, message, tokens):
    """The stream of an answer of /chat to a client of that session."""
    data = [message, "", "dynamic", {}, "", 0.0, tokens, 0, 1.0, 0, 0.0, 1.0, False]
    call = f"{address}gradio_api/call/chat"
    asked = urllib.request.Request(call, json.dumps({"data": data, "session_hash": session}).encode(), {"Content-Type": "application/json"})
    event = json.load(urllib.request.urlopen(asked, timeout=30))["event_id"]
    return urllib.request.urlopen(f"{call}/{event}", timeout=60)
