"""Every kind of model that transformers has: fed text, each cache of the catalog is right with it to the last token, or refused.

Tiny random models of one generic shape, see tiny_models.py. Prompts come in pieces, but to the kinds in WHOLE, which read their first forward in a way of its own.
"""

import re
from pathlib import Path

import pytest
import tiny_models
import torch
import transformers

import kvcache
from kvcache.architecture import RECURRENT_TYPES, cache_argument, counts_from_zero, decoder_config, layer_types, why_not_cached
from kvcache.recurrent import CARRIES, UNCOUNTED, States

CACHES = {"dynamic": {}, "static": {"max_cache_len": 64}, "offloaded": {}, "quantized": {"residual_length": 64}, "sliding_window": {"window_length": 64}, "sink": {"window_length": 64}, "evicting": {"budget": 64}, "hybrid": {"max_cache_len": 64}, "mamba": {}, "hybrid_mamba": {}}
KINDS = {"causal language models": "AutoModelForCausalLM", "pictures to text": "AutoModelForImageTextToText", "encoder-decoders": "AutoModelForSeq2SeqLM", "speech to text": "AutoModelForSpeechSeq2Seq"}
WHOLE = {"paligemma", "unlimited_ocr"}
APART = {"fsmt"}  # which without a cache hides later tokens only where it is given what its encoder reads, not what that made of it
TOKENS, PIECES = 40, (7, 9, 1, 1, 12)  # then one by one
IDS = torch.randint(3, tiny_models.SIZES["vocab_size"] - 2, (1, TOKENS), generator=torch.Generator().manual_seed(1))
PAGE = (Path(__file__).parents[1] / "docs" / "caches.md").read_text()
COUNTED = re.search(r"every kind in transformers (\d+\.\d+)", PAGE)[1]  # other versions have other kinds


def created(model: transformers.PreTrainedModel, name: str) -> transformers.Cache:
    """A cache of the catalog; that of the decoder's tokens, in a model with an encoder."""
    if model.config.is_encoder_decoder:
        return kvcache.create("encoder_decoder", model, self_cache=name, **CACHES[name])
    return kvcache.create(name, model, **CACHES[name])


@torch.no_grad()
def error(model: transformers.PreTrainedModel, cache: transformers.Cache, pieces: tuple[int, ...]) -> float:
    """Of the logits [1, T, V] computed piece by piece, relative to those of one forward without a cache."""
    exact = tiny_models.exact_logits(model, IDS)
    ours = torch.cat([kvcache.feed(model, piece, cache, **tiny_models.heard(model)) for piece in IDS.split(pieces, dim=1)], dim=1)
    return ((ours - exact).norm() / exact.norm()).item()


def outcome(model: transformers.PreTrainedModel, name: str) -> str:
    """ "exact", "refused", or what was wrong."""
    try:
        cache = created(model, name)
    except ValueError as refusal:
        poor = len(str(refusal).split()) < 5 or "specify exactly one" in str(refusal)
        return f"a poor refusal: {refusal}" if poor else "refused"
    try:
        off = error(model, cache, (TOKENS,) if model.config.model_type in WHOLE else (*PIECES, *[1] * (TOKENS - sum(PIECES))))
    except Exception as failure:
        return f"{type(failure).__name__} in a forward: {failure}"[:200]
    return "exact" if off < 1e-4 else f"off by {off:.1e}"


@pytest.mark.slow
@pytest.mark.parametrize("what", KINDS)
def test_every_kind_is_right_with_every_cache_or_refused_and_the_page_counts_them(what):
    models = tiny_models.built(KINDS[what])
    found = {(model_type, name): outcome(model, name) for model_type, model in models.items() if model_type not in APART for name in CACHES}
    assert not (wrong := {where: said for where, said in found.items() if said not in ("exact", "refused")}), wrong
    counts = [sum(said == "exact" for (_, cache), said in found.items() if cache == name) for name in CACHES]
    row = " | ".join(map(str, [what, f"{len(models)} of {len(tiny_models.KINDS[KINDS[what]])}", *counts]))
    if transformers.__version__.startswith(f"{COUNTED}."):
        assert f"| {row} |" in PAGE, f"| {row} |"


@pytest.mark.parametrize("name", ["dynamic", "static", "quantized", "evicting", "mamba"])
def test_the_memory_of_every_kind_is_predicted_or_said_to_be_unknown(name):
    right = 0
    for model_type, model in tiny_models.built("AutoModelForCausalLM").items():
        try:
            cache, predicted = created(model, name), kvcache.predict_memory(name, model, TOKENS, **CACHES[name])
        except ValueError:
            continue
        count = len(cache.layers)
        with torch.no_grad():
            kvcache.feed(model, IDS, cache)
        assert len(cache.layers) == count, f"{model_type} added layers of its own, as Dory does where its loops have none"
        measured = kvcache.measure_memory(cache)
        assert (predicted.used, predicted.total) == (measured.used, measured.total), model_type
        right += 1
    assert right >= {"mamba": 3, "evicting": 90}.get(name, 115)


@torch.no_grad()
def test_the_kinds_that_carry_their_state_over_several_tokens_are_those_that_were_measured():
    """With transformers' own cache, whose layers refuse nothing."""
    carrying = set()
    for model_type, model in tiny_models.built("AutoModelForCausalLM").items():
        if RECURRENT_TYPES & set(layer_types(decoder_config(model))) and why_not_cached(model) is None:
            cache, at, logits = transformers.DynamicCache(config=model.config), 0, []
            for piece in IDS.split([20, 1, 1, TOKENS - 22], dim=1):
                where = {"position_ids": torch.arange(at, at + piece.shape[1])[None]} if counts_from_zero(type(model)) else {}
                logits.append(model(piece, **{cache_argument(model): cache}, use_cache=True, **where).logits)
                at += piece.shape[1]
            exact = model(IDS, use_cache=False).logits
            carrying |= {model_type} if (torch.cat(logits, dim=1) - exact).norm() < 1e-4 * exact.norm() else set()
    assert CARRIES & set(tiny_models.built("AutoModelForCausalLM")) <= carrying and not {"mamba", "falcon_mamba", "jamba"} & carrying


@torch.no_grad()
def test_recurrent_layers_count_tokens_as_attention_does_but_those_that_are_said_not_to():
    """Those with one state; Inkling's four beside keys write single tokens by themselves, and `refuse_halved` goes by the keys there."""
    uncounted = set()
    for model_type, model in tiny_models.built("AutoModelForCausalLM").items():
        if why_not_cached(model) is None and RECURRENT_TYPES & set(layer_types(decoder_config(model))):
            cache = kvcache.create("hybrid_mamba" if kvcache.ENTRIES["hybrid_mamba"].why_not(model) is None else "mamba", model)
            for piece in IDS[:, :12].split([5, 1, 1, 2, 1, 2], dim=1):
                kvcache.feed(model, piece, cache)
            states = [layer for layer in cache.layers if isinstance(layer, States) and layer.number_of_states == 1]
            uncounted |= {model_type} if any(not layer.taken == layer.seen == 12 for layer in states) else set()
    assert uncounted == UNCOUNTED


@torch.no_grad()
@pytest.mark.parametrize("name", ["dynamic", "offloaded", "quantized"])
def test_fsmt_is_right_in_pieces(name):
    model = tiny_models.build("fsmt", transformers.AutoModelForSeq2SeqLM)
    read = torch.arange(5, 14)[None]
    exact = model(input_ids=read, decoder_input_ids=IDS, use_cache=False).logits
    heard, cache = model.get_encoder()(read), created(model, name)
    ours = torch.cat([kvcache.feed(model, piece, cache, encoder_outputs=heard) for piece in IDS.split((7, 9, 24), dim=1)], dim=1)
    assert (ours - exact).norm() < 1e-4 * exact.norm()


@torch.no_grad()
@pytest.mark.parametrize("name", ["dynamic", "offloaded"])
def test_what_follows_a_prompt_that_is_read_in_both_directions_is_read_as_such(name):
    """In one piece or in several: each later token sees the prompt and those before it. Several at once, given past `feed`, are refused."""
    model, prompt = tiny_models.build("paligemma", transformers.AutoModelForImageTextToText), 16
    one, several = created(model, name), created(model, name)
    pieces = [torch.cat([kvcache.feed(model, piece, cache) for piece in IDS.split(sizes, dim=1)], dim=1) for cache, sizes in ((one, (prompt, TOKENS - prompt)), (several, (prompt, 5, 1, 1, TOKENS - prompt - 7)))]
    assert torch.equal(pieces[0], pieces[1])
    seen = torch.ones(TOKENS, TOKENS).tril().bool()
    seen[:, :prompt] = True
    mask = torch.zeros(1, 1, TOKENS, TOKENS).masked_fill(~seen, torch.finfo(torch.float32).min)
    exact = model.lm_head(model.model.language_model(input_ids=IDS, attention_mask=mask, use_cache=False).last_hidden_state)
    assert (pieces[0] - exact).norm() < 1e-4 * exact.norm()
    with pytest.raises(ValueError, match="so 3 on a filled cache would be read otherwise"):
        model(IDS[:, :3], past_key_values=one)
    assert one.get_seq_length() == TOKENS
    model(IDS[:, :1], past_key_values=one)


@torch.no_grad()
def test_what_unlimited_ocr_never_forgets_is_its_first_forward_alone():
    """So several tokens at once, given past `feed`, are refused."""
    model = tiny_models.build("unlimited_ocr", transformers.AutoModelForImageTextToText)
    cache = created(model, "dynamic")
    model(IDS[:, :30], past_key_values=cache)
    with pytest.raises(ValueError, match="so 2 on a filled cache would be read otherwise"):
        model(IDS[:, 30:32], past_key_values=cache)
