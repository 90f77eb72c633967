"""Models load from a folder or a hub without running anyone's code, and every failure is one sentence on what to do."""

import hashlib
import inspect
import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from huggingface_hub import constants
from tiny_chat import make_model, some_ids, tiny
from transformers import LlamaForCausalLM

import kvcache
from kvcache import bundled
from kvcache.architecture import usual_cache_argument
from kvcache.bundled import evaluate, separation
from kvcache.chat import models
from kvcache.chat.engine import Sampling, Token, forward, generate_tokens
from kvcache.chat.models import CHOICES, ModelError, ModelStore, find_choice, menu, pick_device, pick_dtype, room
from kvcache.chat.models import hub as hub_models
from kvcache.measure.speed.rigs import ModelRig


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model saved as anyone would save one."""
    path = tmp_path_factory.mktemp("models") / "tiny-llama"
    loaded = make_model()
    loaded.model.save_pretrained(path)
    loaded.tokenizer.save_pretrained(path)
    return path


def copy_of(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "model")


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def refusal(model_id, store=None):
    with pytest.raises(ModelError) as caught:
        (store or ModelStore()).load(str(model_id), device="cpu")
    text = str(caught.value)
    assert "\n" not in text and text.endswith(".") and len(text) < 500
    return text


# ------------------------------------------------------------------------------------------------------------ choices


def test_the_default_is_on_the_list_and_every_id_is_there_once():
    ids = [choice.id for choice in CHOICES]
    assert models.DEFAULT in ids and len(ids) == len(set(ids))
    assert all(choice.title and choice.note and choice.source in ("bundled", "hub") for choice in CHOICES)


def test_hub_ids_on_the_list_are_ids_that_can_be_typed():
    for choice in CHOICES:
        assert find_choice(f"  {choice.id} ") is choice


def test_any_hub_id_and_any_folder_can_be_typed(tmp_path):
    assert find_choice("someone/some-model_1.5B").source == "hub"
    assert find_choice("gpt2").source == "hub"
    assert find_choice(str(tmp_path)).source == "local"
    assert find_choice("~/models/mine").source == "local"


@pytest.mark.parametrize(
    "text", ["", "  ", None, "a b", "a/b/c", "../x y", "http://x.org/a", "a/b?c=d", "a--b", "-a", "x" * 5000, "a/..b\n"]
)
def test_odd_strings_are_refused_in_a_sentence(text):
    with pytest.raises(ModelError, match="not a model id|no folder|no config.json"):
        choice = find_choice(text)
        if choice.source == "local":
            ModelStore().load(choice.id)


def test_a_spaces_own_folders_are_not_its_visitors(monkeypatch, tmp_path):
    monkeypatch.setenv("SPACE_ID", "someone/playground")
    with pytest.raises(ModelError, match="cannot be opened"):
        models.find_choice(str(tmp_path))
    assert models.find_choice("kvcache").source == "hub"


def test_strangers_open_no_folders_but_the_one_that_is_offered(monkeypatch, tmp_path):
    monkeypatch.setattr(menu, "CHOICES", list(menu.CHOICES))
    monkeypatch.setattr(menu, "_strangers", False)
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir(), other.mkdir()
    models.offer(str(mine))
    models.offer(str(mine))
    models.serve_strangers()
    assert models.find_choice(str(mine)) is menu.CHOICES[0] and menu.CHOICES[1].id != str(mine)
    with pytest.raises(ModelError, match="Folders of this server cannot be opened"):
        models.find_choice(str(other))


@pytest.mark.parametrize("text", ["~nosuchuser/x", "/" + 300 * "a", "./\0"])
def test_a_path_that_can_not_be_looked_up_is_said_so(text):
    with pytest.raises(ModelError, match="(cannot be opened|no folder).* pick a model from the list"):
        ModelStore().load(text)


def test_a_folder_larger_than_the_memory_is_refused(folder, monkeypatch):
    monkeypatch.setattr(room, "_free_memory", lambda device: 1000)
    with pytest.raises(ModelError, match="needs about .* and 0.0 GB are free"):
        ModelStore().load(str(folder))


# -------------------------------------------------------------------------------------------------------- from a folder


def test_a_folder_loads_with_what_the_token_loop_needs_to_know(folder):
    steps = []
    loaded = ModelStore().load(str(folder), device="cpu", progress=lambda fraction, text: steps.append((fraction, text)))
    assert (loaded.context_length, loaded.eos_ids, loaded.cache_argument) == (2048, {2}, usual_cache_argument())
    assert loaded.device.type == "cpu" and loaded.dtype == torch.float32 and not loaded.model.training
    assert loaded.has_chat_template and loaded.rotary and loaded.continues_in_chunks and loaded.keeps_last_logits
    fractions = [fraction for fraction, _ in steps]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0 and "tiny-llama" in steps[0][1]


def test_a_loaded_folder_says_the_same_as_the_model_it_was_saved_from(folder):
    loaded, ids = ModelStore().load(str(folder), device="cpu"), torch.tensor([[5, 9, 30]])
    with torch.no_grad():
        assert torch.equal(loaded.model(ids).logits, tiny("llama").model(ids).logits)


def test_a_recurrent_model_takes_its_cache_under_its_own_name_and_has_no_context_limit():
    loaded = tiny("mamba")
    assert loaded.cache_argument in inspect.signature(loaded.model.forward).parameters and loaded.cache_argument != "past_key_values"
    assert (loaded.context_length, loaded.continues_in_chunks) == (None, False)
    assert not loaded.rotary


def test_a_dtype_can_be_asked_for_by_name(folder):
    assert ModelStore().load(str(folder), device="cpu", dtype="bfloat16").model.dtype == torch.bfloat16


def test_the_best_device_is_picked_and_half_precision_is_for_gpus(monkeypatch):
    assert pick_device("cpu").type == "cpu" and pick_dtype(torch.device("cpu")) == torch.float32
    assert pick_dtype(torch.device("mps")) == torch.float16
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert pick_device().type == "cuda" and pick_dtype(pick_device()) == torch.bfloat16


def test_the_default_model_loads_without_a_network_and_knows_its_limits(monkeypatch):
    monkeypatch.setattr(hub_models, "ask_hub", lambda choice: pytest.fail("asked the hub"))
    loaded = ModelStore().load(models.DEFAULT, device="cpu")
    assert loaded.has_chat_template and loaded.eos_ids and loaded.rotary and loaded.context_length >= 2048


def test_a_bundled_model_that_was_not_installed_is_said_so(monkeypatch, tmp_path):
    for name in bundled.MODELS:
        monkeypatch.setitem(bundled.MODELS, name, tmp_path / name)
    with pytest.raises(ModelError, match="kvlab-llama-20m is not here: .* Clone the project to have them, or pick a model from the hub or a folder."):
        ModelStore().load(models.DEFAULT)
    with pytest.raises(FileNotFoundError, match="kvlab-umt5-5m is not here"):
        bundled.path("kvlab-umt5-5m")
    assert "not here" in menu._bundled(bundled.DEFAULT).note and separation.read() is None and evaluate.shipped() == {}


def test_a_missing_folder_and_one_without_a_model_are_said_so(tmp_path):
    assert "no folder" in refusal(tmp_path / "nowhere")
    assert "no config.json" in refusal(tmp_path)


def test_weights_in_a_format_that_can_run_code_are_not_read(folder, tmp_path):
    path = copy_of(folder, tmp_path)
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    assert "no .safetensors weights" in refusal(path)


def test_a_folder_that_brings_its_own_code_is_refused_and_the_code_does_not_run(folder, tmp_path):
    path = copy_of(folder, tmp_path)
    (path / "modeling_own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    edit_config(path, model_type="own", auto_map={"AutoConfig": "modeling_own.C", "AutoModelForCausalLM": "modeling_own.M"})
    assert "code of its own" in refusal(path)
    assert not (tmp_path / "ran").exists()


def test_an_unknown_kind_of_model_is_said_so(folder, tmp_path):
    path = copy_of(folder, tmp_path)
    edit_config(path, model_type="of-the-future")
    assert "does not know" in refusal(path)


def test_a_model_that_does_not_write_text_is_said_so(folder, tmp_path):
    path = copy_of(folder, tmp_path)
    edit_config(path, architectures=["BertForMaskedLM"], model_type="bert")
    assert "is a BertForMaskedLM, not a causal language model" in refusal(path)


def test_a_model_without_a_tokenizer_is_said_so(folder, tmp_path):
    path = copy_of(folder, tmp_path)
    for file in path.glob("tokenizer*"):
        file.unlink()
    assert "no tokenizer" in refusal(path)


def test_weights_that_are_a_dangling_link_are_said_so(folder, tmp_path):
    path = copy_of(folder, tmp_path)
    weights = next(path.glob("*.safetensors"))
    weights.unlink()
    weights.symlink_to(path / "nowhere")
    assert "can't be read" in refusal(path) and "pick another model" in refusal(path)


def test_broken_weights_are_said_so(folder, tmp_path):
    path = copy_of(folder, tmp_path)
    (path / "model.safetensors").write_bytes(b"not weights at all")
    assert "can't be read" in refusal(path)


# ---------------------------------------------------------------------------------------------------- kept in memory


def test_a_model_is_loaded_once_and_the_least_recently_used_is_dropped(folder, tmp_path):
    store, others = ModelStore(max_models=2), [shutil.copytree(folder, tmp_path / name) for name in "ab"]
    first = store.load(str(folder), device="cpu")
    store.load(str(others[0]), device="cpu")
    assert store.load(str(folder), device="cpu") is first
    store.load(str(others[1]), device="cpu")
    assert store.ids() == [str(folder), str(others[1])]
    store.clear()
    assert store.ids() == []


def test_threads_that_ask_for_the_same_model_get_the_same_one(folder):
    store, got = ModelStore(), []
    threads = [threading.Thread(target=lambda: got.append(store.load(str(folder), device="cpu"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 4 and len(set(map(id, got))) == 1


def while_a_llama_is_made(monkeypatch, act):
    """Have `act()` called in the middle of each load, where transformers has changed the whole process."""
    make = LlamaForCausalLM.__init__

    def made(self, config):
        make(self, config)
        act()

    monkeypatch.setattr(LlamaForCausalLM, "__init__", made)


def test_models_are_loaded_and_made_one_at_a_time_in_the_whole_process(folder, tmp_path, monkeypatch):
    """Two at once leave transformers unable to load anything, or weights newly initialised."""
    folders, busy, most, loaded = [shutil.copytree(folder, tmp_path / name) for name in "abc"], [], [], []
    while_a_llama_is_made(monkeypatch, lambda: (busy.append(1), most.append(len(busy)), time.sleep(0.02), busy.pop()))
    ways = [partial(ModelStore().load, str(each), device="cpu") for each in folders[:2]] + [partial(evaluate.load, folders[2])]
    ways.append(partial(ModelRig, hidden_size=32, num_hidden_layers=1, num_attention_heads=1, intermediate_size=32))
    threads = [threading.Thread(target=lambda way=way: loaded.append(way())) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4 and len(loaded) == 4


def test_a_reply_beside_the_load_of_a_bfloat16_model_is_what_it_is_alone(folder, monkeypatch):
    """transformers makes bfloat16 the default dtype of every thread meanwhile."""
    alone, beside = replies(), []
    while_a_llama_is_made(monkeypatch, lambda: beside.append((torch.get_default_dtype(), in_a_thread(replies))))
    assert ModelStore().load(str(folder), device="cpu", dtype="bfloat16").dtype == torch.bfloat16
    (default, found), = beside
    assert default == torch.bfloat16 and found.keys() == alone.keys()
    for name, (ids, logits) in alone.items():
        assert found[name][0] == ids and torch.equal(found[name][1], logits), name


def replies():
    """Of every cache that suits the model, sampled tokens and the logits after them."""
    loaded, caches = tiny("llama"), {name: kvcache.create(name, tiny("llama").model) for name, entry in kvcache.ENTRIES.items() if not entry.why_not_alone(tiny("llama").config)}
    return {name: reply(loaded, cache) for name, cache in caches.items()}


def reply(loaded, cache):
    events = generate_tokens(loaded, cache, some_ids(300), sampling=Sampling(max_new_tokens=4, temperature=1.0))
    ids = [event.id for event in events if isinstance(event, Token)]
    return ids, forward(loaded, cache, ids[-1:])


def in_a_thread(act):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()


def test_a_failed_load_leaves_what_was_there_and_can_be_tried_again(folder, tmp_path):
    store, path = ModelStore(), tmp_path / "late"
    first = store.load(str(folder), device="cpu")
    refusal(path, store)
    shutil.copytree(folder, path)
    assert store.load(str(path), device="cpu").id == str(path) and store.load(str(folder), device="cpu") is first


# ------------------------------------------------------------------------------------------------------- from the hub


SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Just enough of the hub's API: some-one/public, some-one/gated, some-one/no-weights; everything else is unknown."""

    folder = None
    requests: list = []

    def files(self):
        files = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        files["consolidated.safetensors"] = b"the same again"
        files["onnx/model.onnx"] = b"the same in another format"
        if "no-weights" in self.path:
            files = {name: content for name, content in files.items() if not name.endswith(".safetensors")}
        return files

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        self.requests.append(self.path)
        path = self.path.split("?")[0]
        if "some-one/" not in path:
            return self.answer(401, b"{}", X_Error_Code="RepoNotFound")
        if "some-one/down" in path:
            return self.answer(503, b"{}")
        gated = "some-one/gated" in path
        if gated and ("auth-check" in path or "/resolve/" in path):
            return self.answer(403, b"{}", X_Error_Code="GatedRepo")
        if "/tree/" in path:
            return self.answer(200, json.dumps([self.entry(*item) for item in self.files().items()]).encode())
        if path.startswith("/api/models/"):
            siblings = [{"rfilename": name, "size": len(content)} for name, content in self.files().items()]
            info = {"id": "some-one/x", "sha": SHA, "gated": "manual" if gated else False, "private": "private" in self.path}
            return self.answer(200, json.dumps(info | {"siblings": siblings, "tags": [], "downloads": 0}).encode())
        content = self.files()[path.split(f"/resolve/{SHA}/")[1]]
        return self.answer(200, content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=SHA)

    do_HEAD = do_GET

    def entry(self, name, content):
        return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(folder, tmp_path, monkeypatch):
    """huggingface_hub talks to a hub on this machine and starts with an empty disk."""
    handler = type("ThisHub", (Hub,), {"folder": folder, "requests": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "disk"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield handler
    server.shutdown()
    server.server_close()


def test_a_hub_model_is_downloaded_with_progress_and_no_more_of_it_than_is_needed(hub, tmp_path):
    steps = []
    loaded = ModelStore().load("some-one/public", device="cpu", progress=lambda *step: steps.append(step))
    assert loaded.id == "some-one/public" and loaded.title == "public"
    names = {path.name for path in (tmp_path / "disk").rglob("snapshots/*/*")}
    assert "model.safetensors" in names and not names & {"consolidated.safetensors", "onnx"}
    assert any("Downloading some-one/public" in text and " MB" in text for _, text in steps)
    assert [fraction for fraction, _ in steps] == sorted(fraction for fraction, _ in steps) and steps[-1][0] == 1.0


def test_a_model_that_would_be_downloaded_is_offered_with_a_reason_offline_and_without_one_online(monkeypatch):
    first, second = (menu.find_choice(model_id) for model_id in menu.WORLDLY)
    assert first.size in first.note and second.size in second.note
    monkeypatch.setattr(hub_models, "is_offline", lambda: True)
    assert "HF_HUB_OFFLINE" in hub_models.why_not_fetched(first) and hub_models.why_not_fetched(menu.find_choice(menu.DEFAULT)) is None
    monkeypatch.setattr(hub_models, "on_disk", lambda choice: "a folder")
    assert hub_models.why_not_fetched(first) is None
    monkeypatch.undo()
    monkeypatch.setattr(hub_models, "is_offline", lambda: False)
    assert hub_models.why_not_fetched(second) is None


def test_a_model_on_the_disk_is_read_without_asking_the_hub(hub):
    ModelStore().load("some-one/public", device="cpu")
    hub.requests.clear()
    ModelStore().load("some-one/public", device="cpu")
    assert hub.requests == []


def test_strangers_get_no_private_model_not_even_one_that_is_on_the_disk(hub, monkeypatch):
    for name in ("some-one/private", "some-one/public"):
        ModelStore().load(name, device="cpu")
    monkeypatch.setattr(menu, "_strangers", True)
    with pytest.raises(ModelError, match="no public model 'some-one/private'"):
        ModelStore().load("some-one/private", device="cpu")
    assert ModelStore().load("some-one/public", device="cpu").id == "some-one/public"


def test_a_half_finished_download_is_finished(hub, tmp_path):
    ModelStore().load("some-one/public", device="cpu")
    for path in (tmp_path / "disk").rglob("snapshots/*/model.safetensors"):
        path.resolve().unlink()
        path.unlink()
    ModelStore().load("some-one/public", device="cpu")
    assert any(path.endswith("model.safetensors") for path in hub.requests)


def test_a_gated_model_names_the_licence_page_and_the_token(hub):
    text = refusal("some-one/gated")
    assert "is gated: accept its licence at https://huggingface.co/some-one/gated, then set HF_TOKEN" in text


def test_an_unknown_model_is_said_so(hub):
    assert "no public model 'no-one/nothing'" in refusal("no-one/nothing")


def test_a_hub_model_without_safetensors_is_refused_before_it_is_downloaded(hub, tmp_path):
    assert "no .safetensors weights" in refusal("some-one/no-weights")
    assert not list((tmp_path / "disk").rglob("snapshots/*/*"))


def test_a_hub_out_of_order_is_said_so(hub):
    assert "The hub answered 503" in refusal("some-one/down")


def test_a_model_larger_than_the_memory_or_the_disk_is_refused_before_it_is_downloaded(hub, monkeypatch):
    monkeypatch.setattr(room, "_free_memory", lambda device: 1000)
    assert "GB of cpu memory" in refusal("some-one/public")
    monkeypatch.setattr(room, "_free_disk", lambda: 1000)
    assert "GB of disk are free" in refusal("some-one/public")


def test_without_a_network_the_answer_comes_at_once_and_names_the_bundled_models(hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    start = time.monotonic()
    assert "No network" in (text := refusal("some-one/public")) and "bundled models work offline" in text
    assert time.monotonic() - start < 5


def test_a_network_that_never_answers_is_given_up_on(hub, monkeypatch):
    monkeypatch.setattr(hub_models, "ANSWER_WITHIN", 0.3)
    monkeypatch.setattr(hub_models, "ask_hub", lambda choice: time.sleep(3))
    start = time.monotonic()
    assert "No network" in refusal("some-one/public")
    assert time.monotonic() - start < 2


def test_offline_by_choice_is_said_so(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in refusal("some-one/public")
