"""A model whose weights accelerate keeps elsewhere between forwards, or that two processes share, is the model it was: for a cache, a file and a reply.

As a script this is one of the two processes.
"""

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import accelerate
import pytest
import torch
import transformers
from architectures import ALTERNATING, COMMON, RECURRENT, chunks, logits_with_cache, model_of, tiny, token_ids
from pairs import t5gemma
from tiny_chat import make_model, some_ids
from transformers.distributed import DistributedConfig

import kvcache
from kvcache.architecture import processes_of
from kvcache.chat import models
from kvcache.chat.decode_step import CompiledStep
from kvcache.chat.engine import Done, Sampling, Token, generate_tokens
from kvcache.policies import POLICIES
from kvcache.saving import CacheFileError, fingerprint
from kvcache.weights import device_of, is_offloaded, layer_devices, shard_of

CPU = torch.device("cpu")
HALF_ON_DISK = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "disk", "lm_head": "disk", "model.rotary_emb": "cpu"}
WAYS = {
    "to the CPU": lambda model, folder: accelerate.cpu_offload(model, CPU),
    "to the CPU, whole layers at once": lambda model, folder: accelerate.cpu_offload(model, CPU, preload_module_classes=["LlamaDecoderLayer"]),
    "to a disk": lambda model, folder: accelerate.disk_offload(model, folder, CPU),
    "to a disk, from a checkpoint": lambda model, folder: from_checkpoint(model, folder, {"": "disk"}),
    "half of it to a disk": lambda model, folder: from_checkpoint(model, folder, HALF_ON_DISK),
}


def from_checkpoint(model, folder, device_map):
    model.save_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, device_map=device_map, offload_folder=folder / "weights")


@pytest.fixture(params=WAYS)
def offloaded(request, tmp_path):
    """The tiny Llama, offloaded; `model_of("llama")` is the same one at home."""
    model = WAYS[request.param](model_of.__wrapped__("llama"), tmp_path)
    assert any(parameter.is_meta for parameter in model.parameters())
    return model


def generated(model, ids, cache):
    return model.generate(ids, cache=cache, max_new_tokens=8, do_sample=False)


def test_every_cache_that_suits_an_offloaded_model_generates_what_it_does_at_home(offloaded):
    home, ids = model_of("llama"), token_ids(1, 300)  # more than windows hold
    suited = [name for name, entry in kvcache.ENTRIES.items() if not entry.why_not_alone(home)]
    for name in suited:
        expected = generated(home, ids, kvcache.create(name, home))
        assert torch.equal(generated(offloaded, ids, kvcache.create(name, offloaded)), expected), name


@torch.no_grad()
def test_a_cache_is_saved_by_an_offloaded_model_and_goes_on_with_the_one_at_home_and_the_other_way_round(offloaded, tmp_path):
    home, ids, path = model_of("llama"), token_ids(1, 60), tmp_path / "it.safetensors"
    for filler, goes_on in ((offloaded, home), (home, offloaded)):
        cache = kvcache.create("sink", filler, window_length=32)
        filler(ids[:, :59], cache=cache)
        cache.save(path)
        assert torch.equal(goes_on(ids[:, 59:], cache=kvcache.load_cache(path, goes_on)).logits, filler(ids[:, 59:], cache=cache).logits)


@pytest.mark.parametrize("offload", [WAYS["to the CPU"], WAYS["to a disk"]], ids=["CPU", "disk"])
def test_tied_weights_which_offloading_parts_count_once_in_a_fingerprint(offload, tmp_path):
    tied, other = (tiny("LlamaConfig", tie_word_embeddings=True) for _ in range(2))
    assert fingerprint(offload(other, tmp_path)) == fingerprint(tied) != fingerprint(tiny("LlamaConfig"))


@torch.no_grad()
def test_another_value_of_an_offloaded_weight_is_another_model():
    other = model_of.__wrapped__("llama")
    other.model.layers[1].mlp.up_proj.weight[0, 0] += 1
    assert fingerprint(accelerate.cpu_offload(other, CPU)) != fingerprint(model_of("llama"))


def test_an_offloaded_model_chats_and_its_step_is_eager_with_the_reason(tmp_path):
    home, ids = make_model(), some_ids(20)
    away = models.wrap("away", accelerate.disk_offload(make_model().model, tmp_path, CPU), home.tokenizer)
    assert "its weights are offloaded" in away.step.why_not(kvcache.create("dynamic", away.model))
    replies = [reply(loaded, kvcache.create("dynamic", loaded.model), ids) for loaded in (away, home)]
    assert replies[0] == replies[1] and away.device == CPU


def reply(loaded, cache, ids):
    events = list(generate_tokens(loaded, cache, ids, sampling=Sampling(max_new_tokens=8), decode="auto"))
    assert isinstance(events[-1], Done)
    return [event.id for event in events if isinstance(event, Token)]


def test_an_offloaded_model_takes_its_inputs_where_its_first_weights_go_for_a_forward():
    with torch.device("meta"):
        model = tiny("LlamaConfig")
    model.model.embed_tokens._hf_hook = SimpleNamespace(offload=True, execution_device="cuda:1")
    assert device_of(model) == torch.device("cuda:1")


@pytest.mark.parametrize("attempt", [lambda model: kvcache.create("sink", model), lambda model: kvcache.create("dynamic", model).save("unwritten")])
def test_a_model_without_weights_is_said_so(attempt):
    with torch.device("meta"):
        empty = tiny("LlamaConfig")
    with pytest.raises(ValueError, match="model.embed_tokens.weight of this LlamaForCausalLM is on the meta device and has no values"):
        attempt(empty)


# ---------------------------------------------------------------------------------------------------------- spread by `load`


@pytest.fixture(scope="module")
def bundled_home():
    return models.load("kvlab-mistral-5m", "cpu")


@pytest.fixture(scope="module", params=["auto", "half to a disk"])
def spread(request, tmp_path_factory):
    """A bundled model as `load` spreads it: all where it fits, or what is beyond a limit on a disk."""
    folder = tmp_path_factory.mktemp("weights")
    limit = {"max_memory": {"cpu": "9MB"}} if request.param != "auto" else {}
    return models.load("kvlab-mistral-5m", dtype="float32", device_map="auto", offload_folder=folder, **limit), request.param


def test_load_spreads_a_model_and_every_cache_says_what_it_says_at_home(spread, bundled_home):
    loaded, how = spread
    assert is_offloaded(loaded.model) == (how != "auto")
    ids = torch.tensor([bundled_home.tokenizer.encode("The house by the sea had a name that nobody knew. " * 6)])
    for name in [name for name, entry in kvcache.ENTRIES.items() if not entry.why_not_alone(bundled_home.model)]:
        expected = generated(bundled_home.model, ids, kvcache.create(name, bundled_home.model))
        assert torch.equal(generated(loaded.model, ids, kvcache.create(name, loaded.model)), expected), name


def test_what_contradicts_a_spread_is_refused():
    with pytest.raises(models.ModelError, match="give one of the two"):
        models.load("kvlab-mistral-5m", "cpu", device_map="auto")
    with pytest.raises(models.ModelError, match='add device_map="auto"'):
        models.load("kvlab-mistral-5m", max_memory={"cpu": "1GB"})


@torch.no_grad()
def test_a_cache_of_a_spread_model_is_forked_and_saved_and_goes_on(spread, bundled_home, tmp_path):
    loaded, ids = spread[0].model, torch.arange(40)[None]
    cache = kvcache.create("dynamic", loaded)
    loaded(ids, cache=cache)
    cache.save(tmp_path / "it.safetensors", loaded)
    expected = loaded(ids[:, :1], cache=cache.fork()).logits
    for model in (loaded, bundled_home.model):
        assert torch.equal(model(ids[:, :1], cache=kvcache.load_cache(tmp_path / "it.safetensors", model)).logits, expected)


def spread_over(model, devices):
    """Marks a model as accelerate marks one whose layers are on these devices; "meta" stands for an accelerator."""
    model.hf_device_map = {f"model.layers.{i}": device for i, device in enumerate(devices)}
    for layer, device in zip(model.model.layers, devices):
        layer._hf_hook = SimpleNamespace(execution_device=device)
    return model


@torch.no_grad()
def test_each_layer_of_a_loaded_cache_is_where_the_models_layer_computes(tmp_path):
    model, ids, path = model_of.__wrapped__("llama"), token_ids(1, 100), tmp_path / "it.safetensors"
    cache = kvcache.create("quantized", model)
    model(ids, cache=cache)
    cache.save(path, model)
    assert layer_devices(model) == []
    spread_over(model, ["cpu", "meta"])
    assert layer_devices(model) == [torch.device("cpu"), torch.device("meta")]
    loaded = kvcache.load_cache(path, model)
    for layer, where in zip(loaded.layers, ("cpu", "meta")):
        assert {buffer.data.device.type for buffer in layer.buffers().values() if buffer.data is not None} == {where} == {layer.device.type}


@torch.no_grad()
def test_predictions_know_the_devices_and_what_is_measured_agrees():
    model, ids = model_of.__wrapped__("llama"), token_ids(1, 100)
    assert kvcache.predict_memory("dynamic", model, 100).devices == {}
    spread_over(model, ["cpu", "cuda:1"])
    predicted = kvcache.predict_memory("dynamic", model, 100)
    cache = kvcache.create("dynamic", model_of("llama"))
    model_of("llama")(ids, cache=cache)
    assert predicted.devices == dict(zip(("cpu", "cuda:1"), (layer.total for layer in kvcache.measure_memory(cache).layers)))


# ------------------------------------------------------------------------------------------------------------- tensor parallel

# Heads that two processes can share, so that each has several.
HEADS = dict(num_attention_heads=8, num_key_value_heads=4, head_dim=16)
SHARED = {
    "llama": ("LlamaConfig", HEADS),
    "gemma3": ("Gemma3TextConfig", {**ALTERNATING, **HEADS}),
    "qwen3_5_text": (RECURRENT["qwen3_5_text"][0], {**RECURRENT["qwen3_5_text"][1], **HEADS}),
    "bamba": (RECURRENT["bamba"][0], RECURRENT["bamba"][1]),  # whose plan leaves its heads whole
}
SETTINGS = {
    "static": [{"max_cache_len": 128}], "offloaded_static": [{"max_cache_len": 128}], "hybrid": [{"max_cache_len": 128}], "sliding_window": [{"window_length": 32}], "sink": [{"window_length": 32}],
    "evicting": [{"policy": policy, "budget": 64} for policy in POLICIES],
    "quantized": [{"nbits": nbits, "residual_length": 16, "q_group_size": 32} for nbits in (8, 4, 2)] + [{"backend": "hqq", "residual_length": 16, "q_group_size": 32}],
}  # fmt: skip


def whole_model(architecture):
    """A random model whose attention matters, in float64, so that another order of summing rounds no code and evicts no token otherwise."""
    config_class, changes = SHARED[architecture]
    torch.manual_seed(2)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config_class)(**{**COMMON, **changes})).eval()
    with torch.no_grad():
        for where, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in where and "A_log" not in where:
                parameter.mul_(4.0)
    return model.double()


@pytest.mark.slow
def test_two_processes_that_share_a_model_say_what_one_says_on_every_cache(tmp_path):
    models = {**{name: whole_model(name) for name in SHARED}, "t5gemma": t5gemma()}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name / "model")
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, str(tmp_path)]
    ended = subprocess.run(launched, capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for name, model in models.items():
        suited = {each for each, entry in kvcache.ENTRIES.items() if not entry.why_not_alone(model)}
        for number in (1, 2):
            assert {line.split()[0] for line in (tmp_path / name / f"said by {number}").read_text().splitlines()} == suited, name


def one_of_two(folder):
    """What each of the two processes does: every cache on its part of every model, beside the whole model at home."""
    torch.set_num_threads(1)
    for name in SHARED:
        with_every_cache(folder / name, name)
    with_an_encoder(folder / "t5gemma")


def loaded(maker, folder):
    """The whole model, and this process's part of it."""
    path, parallel = folder / "model", DistributedConfig(tp_plan="auto")
    return maker.from_pretrained(path, dtype=torch.float64).eval(), maker.from_pretrained(path, dtype=torch.float64, distributed_config=parallel).eval()


def note(folder, part, *words):
    """Another cache that is as in one process."""
    with (folder / f"said by {shard_of(part)[0]}").open("a") as file:
        print(*words, file=file)


def with_every_cache(folder, architecture):
    whole, part = loaded(transformers.AutoModelForCausalLM, folder)
    number, count = shard_of(part)
    assert count == 2 and shard_of(whole) is None and processes_of(part.config) == (1 if architecture == "bamba" else 2) and processes_of(whole.config) == 1
    assert "tensor parallel" in CompiledStep(part).why_not(kvcache.create("dynamic", part))
    for name in [name for name, entry in kvcache.ENTRIES.items() if not entry.why_not_alone(whole)]:
        for settings in SETTINGS.get(name, [{}]):
            if settings.get("policy") == "tova" and processes_of(part.config) > 1:
                with pytest.raises(ValueError, match="tova chooses by all heads together"):
                    kvcache.create(name, part, **settings)
                continue
            as_one_process(name, settings, whole, part, number, folder, singly=architecture in RECURRENT)
            note(folder, part, name, settings)


@torch.no_grad()
def with_an_encoder(folder):
    models = whole, part = loaded(transformers.T5GemmaForConditionalGeneration, folder)
    heard, ids = token_ids(1, 40), token_ids(1, 80, seed=1)
    for own in ("dynamic", "static", "sliding_window", "quantized"):
        caches = [kvcache.create("encoder_decoder", model, self_cache=own) for model in models]
        found = []
        for model, cache in zip(models, caches):
            encoded = model.model.encoder(heard)
            pieces = [model(encoder_outputs=encoded, decoder_input_ids=ids[:, a:b], past_key_values=cache).logits for a, b in [(0, 70), *((at, at + 1) for at in range(70, 80))]]
            found.append(torch.cat(pieces, dim=1))
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
        home, mine = (kvcache.measure_memory(cache.self_attention_cache).by_kind() for cache in caches)
        assert all(nbytes == 2 * mine[kind] for kind, nbytes in home.items()), own
        with pytest.raises(ValueError, match="not predicted, only measured"):
            kvcache.predict_memory("encoder_decoder", part, 70, source_tokens=40, self_cache=own)
        note(folder, part, "encoder_decoder", own)


def as_one_process(name, settings, whole, part, number, folder, singly):
    ids, bounds, rest = token_ids(2, 90), chunks(80, 1), [(0, 1), (1, 10)]
    if singly:  # tokens behind a prompt come one by one
        bounds, rest = [(0, 70), *((at, at + 1) for at in range(70, 80))], [(at, at + 1) for at in range(10)]
    ours, expected = kvcache.create(name, part, **settings), kvcache.create(name, whole, **settings)
    assert_alike(ours, expected, ids[:, :80], part, whole, bounds)
    assert_bytes_are_this_processs(name, settings, whole, part)
    for cache in (ours, expected):
        cache.reorder_cache(torch.tensor([1, 0]))
    path = folder / f"{name}.safetensors"
    ours.save(path, part)
    mine = path.with_name(f"{name}-0000{number}-of-00002.safetensors")
    with pytest.raises(CacheFileError, match=f"holds the heads of part {number} of 2 of a tensor parallel one, and the model at hand is a whole model"):
        kvcache.load_cache(mine, whole)
    loaded, fork = kvcache.load_cache(path, part), ours.fork()
    for cache in (loaded, fork, ours):
        assert_alike(cache, expected.fork(), ids[:, 80:], part, whole, rest)
    mine.unlink()
    expected.save(path, whole)
    shutil.copy(path, mine)
    with pytest.raises(CacheFileError, match="holds the heads of a whole model, and the model at hand is part"):
        kvcache.load_cache(path, part)


def assert_alike(ours, expected, ids, part, whole, bounds):
    found, wanted = (logits_with_cache(model, ids, cache, bounds) for model, cache in ((part, ours), (whole, expected)))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)  # codes are decoded in float32; one code that differs moves logits by a thousand times as much
    for mine, theirs in zip(ours.layers, expected.layers):
        assert getattr(mine, "held", None) == getattr(theirs, "held", None)


def assert_bytes_are_this_processs(name, settings, whole, part):
    """As predicted, and where heads are shared the half of all that belongs to them."""
    measured = []
    for model in (part, whole):
        cache = kvcache.create(name, model, **settings)
        logits_with_cache(model, token_ids(1, 70), cache, [(0, 70)])
        measured.append(kvcache.measure_memory(cache))
        assert kvcache.predict_memory(name, model, 70, **settings).by_kind() == measured[-1].by_kind(), name
    mine, all_of_it = (memory.by_kind() for memory in measured)
    for kind in ("keys", "values", "scales", "residual"):  # recurrent states are not shared, see the plans of such models
        assert processes_of(part.config) * mine[kind] == all_of_it[kind], (name, kind)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    one_of_two(Path(sys.argv[1]))
