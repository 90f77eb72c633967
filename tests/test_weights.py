"""A model whose weights accelerate keeps elsewhere between forwards is the model it was: for a cache, a file and a reply."""

from types import SimpleNamespace

import accelerate
import pytest
import torch
import transformers
from architectures import model_of, tiny, token_ids
from tiny_chat import make_model, some_ids

import kvcache
from kvcache.chat import models
from kvcache.chat.engine import Done, Sampling, Token, generate_tokens
from kvcache.saving import fingerprint
from kvcache.weights import device_of

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
