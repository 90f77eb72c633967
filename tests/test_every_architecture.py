"""Every kind of causal language model that transformers has: with every cache of the catalog it is right to the last token, or the cache is refused.

Tiny random models of one generic shape, see tiny_models.py. Prompts come in pieces.
"""

import inspect

import pytest
import tiny_models
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import kvcache
from kvcache.architecture import RECURRENT_TYPES, counts_from_zero, decoder_config, layer_types, misfit
from kvcache.state import CARRIES

CACHES = {"dynamic": {}, "static": {"max_cache_len": 64}, "offloaded": {}, "quantized": {}, "sliding_window": {"window_length": 64}, "sink": {"window_length": 64}, "hybrid": {"max_cache_len": 64}, "mamba": {}, "hybrid_mamba": {}}
TOKENS, PIECES = 40, (7, 9, 1, 1, 12)  # then one by one
IDS = torch.randint(1, tiny_models.SIZES["vocab_size"], (1, TOKENS), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def error(model: transformers.PreTrainedModel, cache: kvcache.Cache, ids: torch.Tensor) -> float:
    """Of the logits [1, T, V] computed piece by piece, relative to those of one forward without a cache."""
    exact = model(ids, use_cache=False).logits
    pieces = [*PIECES, *[1] * (TOKENS - sum(PIECES))]
    ours = torch.cat([kvcache.feed(model, piece, cache) for piece in ids.split(pieces, dim=1)], dim=1)
    return ((ours - exact).norm() / exact.norm()).item()


def outcome(model: transformers.PreTrainedModel, name: str, ids: torch.Tensor) -> str:
    """ "exact", "refused", or what was wrong."""
    try:
        cache = kvcache.create(name, model, **CACHES[name])
    except ValueError as refusal:
        return "refused" if len(str(refusal).split()) >= 5 else f"a poor refusal: {refusal}"
    try:
        off = error(model, cache, ids)
    except Exception as failure:
        return f"{type(failure).__name__} in a forward: {failure}"[:200]
    return "exact" if off < 1e-4 else f"off by {off:.1e}"


def built() -> dict[str, transformers.PreTrainedModel]:
    """All that can be built, by model type."""
    return tiny_models.built(transformers.AutoModelForCausalLM, tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))


def test_every_kind_is_right_with_every_cache_or_refused():
    found = {(model_type, name): outcome(model, name, IDS) for model_type, model in built().items() for name in CACHES}
    counts = {name: sum(what == "exact" for (_, cache), what in found.items() if cache == name) for name in CACHES}
    print(len(built()), "kinds;", counts)
    assert not (wrong := {where: what for where, what in found.items() if what not in ("exact", "refused")}), wrong
    assert len(built()) >= 150 and counts["dynamic"] >= 140 and min(counts.values()) >= 3


@pytest.mark.parametrize("name", ["dynamic", "static", "quantized", "mamba"])
def test_the_memory_of_every_kind_is_predicted_or_said_to_be_unknown(name):
    right = 0
    for model_type, model in built().items():
        try:
            cache, predicted = kvcache.create(name, model, **CACHES[name]), kvcache.predict_memory(name, model, TOKENS, **CACHES[name])
        except ValueError:
            continue
        with torch.no_grad():
            kvcache.feed(model, IDS, cache)
        measured = kvcache.measure_memory(cache)
        assert (predicted.used, predicted.total) == (measured.used, measured.total), model_type
        right += 1
    assert right >= {"mamba": 3}.get(name, 115)


@torch.no_grad()
def test_the_kinds_that_carry_their_state_over_several_tokens_are_those_that_were_measured():
    """With transformers' own cache, whose layers refuse nothing."""
    carrying = set()
    for model_type, model in built().items():
        if RECURRENT_TYPES & set(layer_types(decoder_config(model))) and misfit(model) is None:
            key = "past_key_values" if "past_key_values" in inspect.signature(model.forward).parameters else "cache_params"
            cache, at, logits = transformers.DynamicCache(config=model.config), 0, []
            for piece in IDS.split([20, 1, 1, TOKENS - 22], dim=1):
                where = {"position_ids": torch.arange(at, at + piece.shape[1])[None]} if counts_from_zero(type(model)) else {}
                logits.append(model(piece, **{key: cache}, use_cache=True, **where).logits)
                at += piece.shape[1]
            exact = model(IDS, use_cache=False).logits
            carrying |= {model_type} if (torch.cat(logits, dim=1) - exact).norm() < 1e-4 * exact.norm() else set()
    assert CARRIES <= carrying and not {"mamba", "falcon_mamba", "jamba"} & carrying
