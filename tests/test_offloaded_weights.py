"""A model whose weights accelerate keeps on the CPU or on disk is like any other to a cache; and models are read from disk one at a time."""

import threading

import accelerate
import pytest
import torch
from architectures import COMMON, token_ids
from transformers import LlamaConfig, LlamaForCausalLM

import kvcache
from kvcache import bundled, catalog, models, weights
from kvcache.files import fingerprint

PARAMETERS = {"static": dict(max_cache_len=64), "offloaded_static": dict(max_cache_len=64), "sink": dict(window_length=24), "sliding_window": dict(window_length=24)}


def plain(**changes):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**COMMON, **changes})).eval()


@pytest.fixture
def offloaded(tmp_path):
    """Makes the model with its weights kept elsewhere; those of a device map are read from its files whenever they are needed."""

    def make(how, **changes):
        model = plain(**changes)
        if how == "cpu":
            accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
        elif how == "disk":
            accelerate.disk_offload(model, str(tmp_path / "disk"), execution_device=torch.device("cpu"))
        else:
            model.save_pretrained(tmp_path / "model")
            places = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu", "model.norm": "disk", "lm_head": "cpu"}
            with models.READING:
                model = LlamaForCausalLM.from_pretrained(tmp_path / "model", device_map=places, offload_folder=tmp_path / "disk").eval()
        assert any(parameter.is_meta for parameter in model.parameters())
        return model

    return make


@pytest.mark.parametrize("how", ["cpu", "disk", "device_map"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_model_has_one_fingerprint_wherever_its_weights_are(how, tied, offloaded):
    model = offloaded(how, tie_word_embeddings=tied)
    assert fingerprint(model) == fingerprint(plain(tie_word_embeddings=tied)) and weights.device_of(model) == torch.device("cpu")


@pytest.mark.parametrize("how", ["cpu", "disk", "device_map"])
def test_every_cache_goes_on_from_a_file_on_a_model_with_offloaded_weights(how, offloaded, tmp_path):
    model, reference, ids = offloaded(how), plain(), token_ids(1, 40)
    fitting = [name for name, entry in catalog.ENTRIES.items() if not entry.fits_alone(model)]
    assert {"dynamic", "sink", "quantized"} <= set(fitting)
    for name in fitting:
        cache, expected = (kvcache.create(name, each, **PARAMETERS.get(name, {})) for each in (model, reference))
        with torch.no_grad():
            kvcache.feed(model, ids[:, :30], cache), kvcache.feed(reference, ids[:, :30], expected)
            cache.save(tmp_path / name)
            found = kvcache.feed(model, ids[:, 30:], kvcache.load(tmp_path / name, model))
            torch.testing.assert_close(found, kvcache.feed(reference, ids[:, 30:], expected), atol=1e-5, rtol=1e-5)
    settings = dict(max_new_tokens=6, do_sample=False)
    assert torch.equal(kvcache.resilient_generate(model, ids, **settings), reference.generate(ids, **settings))


def test_weights_that_are_nowhere_are_said_to_be_nowhere(tmp_path):
    with accelerate.init_empty_weights():
        model = plain()
    with pytest.raises(ValueError, match="model.embed_tokens.weight is on the meta device"):
        kvcache.create("dynamic", model).save(tmp_path / "cache")


def test_models_that_are_asked_for_at_once_are_read_one_after_the_other():
    names, found, store = list(bundled.MODELS)[:3], {}, models.ModelStore(8)
    threads = [threading.Thread(target=lambda name=name: found.update({name: store.load(name)})) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == set(names)
    for loaded in found.values():
        assert not any(parameter.is_meta or torch.isnan(parameter).any() for parameter in loaded.model.parameters())
    alone = models.ModelStore(1).load(names[0])
    assert all(torch.equal(a, b) for a, b in zip(found[names[0]].model.parameters(), alone.model.parameters()))


def test_a_reply_is_right_while_a_bfloat16_model_is_read_beside():
    """Reading one sets torch's default dtype for the whole process."""
    model, ids, stop = plain(), token_ids(1, 60), threading.Event()

    def read():
        while not stop.is_set():
            models.ModelStore(1).load(bundled.DEFAULT, dtype="bfloat16")

    def reply():
        cache = kvcache.create("quantized", model, residual_length=8, q_group_size=32, attention="fused")
        with torch.no_grad():
            return torch.cat([kvcache.feed(model, piece, cache) for piece in (ids[:, :50], *ids[:, 50:].split(1, dim=1))], dim=1)

    expected, thread = reply(), threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(20):
            torch.testing.assert_close(reply(), expected, atol=1e-4, rtol=1e-3)
    finally:
        stop.set(), thread.join()
