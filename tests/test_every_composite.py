"""Every kind of model around a language model (pictures to text, encoder-decoders, speech), fed text: right with every cache to the last token, or refused.

Tiny random models, see tiny_models.py. Prompts come in pieces, but to the kinds in WHOLE, which read their first forward in a way of its own.
"""

from collections import Counter

import pytest
import tiny_models
import torch
import transformers
from transformers.models.auto import modeling_auto

import kvcache

CACHES = {"dynamic": {}, "static": {"max_cache_len": 64}, "offloaded": {}, "quantized": {"residual_length": 64}, "sliding_window": {"window_length": 64}, "sink": {"window_length": 64}, "hybrid": {"max_cache_len": 64}}
KINDS = {
    "AutoModelForImageTextToText": (modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, 60),
    "AutoModelForSeq2SeqLM": (modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, 30),
    "AutoModelForSpeechSeq2Seq": (modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES, 11),
}
WHOLE = {"paligemma", "unlimited-ocr", "unlimited_ocr"}
APART = {"fsmt"}  # which without a cache hides later tokens only where it is given what its encoder reads, not what that made of it
TOKENS, PIECES = 40, (7, 9, 1, 1, 12)  # then one by one
IDS = torch.randint(3, tiny_models.SIZES["vocab_size"] - 2, (1, TOKENS), generator=torch.Generator().manual_seed(1))


def created(model: transformers.PreTrainedModel, name: str) -> transformers.Cache:
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


@pytest.mark.parametrize("auto", KINDS)
def test_every_kind_is_right_with_every_cache_or_refused(auto):
    kinds, least = KINDS[auto]
    models = tiny_models.built(getattr(transformers, auto), tuple(kinds))
    found = {(model_type, name): outcome(model, name) for model_type, model in models.items() if model_type not in APART for name in CACHES}
    print(auto, len(models), "of", len(kinds), "kinds;", Counter(name for (_, name), what in found.items() if what == "exact"))
    assert not (wrong := {where: what for where, what in found.items() if what not in ("exact", "refused")}), wrong
    assert len(models) >= least


@torch.no_grad()
@pytest.mark.parametrize("name", ["dynamic", "offloaded", "quantized"])
def test_fsmt_is_right_in_pieces(name):
    model = tiny_models.build("fsmt", transformers.AutoModelForSeq2SeqLM)
    read = torch.arange(5, 14)[None]
    exact = model(input_ids=read, decoder_input_ids=IDS, use_cache=False).logits
    heard = model.get_encoder()(read)
    cache = created(model, name)
    ours = torch.cat([kvcache.feed(model, piece, cache, encoder_outputs=heard) for piece in IDS.split((7, 9, 24), dim=1)], dim=1)
    assert (ours - exact).norm() < 1e-4 * exact.norm()


@torch.no_grad()
@pytest.mark.parametrize("name", ["dynamic", "offloaded"])
def test_what_follows_a_prompt_that_is_read_in_both_directions_is_read_as_such(name):
    """In one piece or in several: each later token sees the prompt and those before it."""
    model, prompt = tiny_models.build("paligemma", transformers.AutoModelForImageTextToText), 16
    one, several = created(model, name), created(model, name)
    pieces = [torch.cat([kvcache.feed(model, piece, cache) for piece in IDS.split(sizes, dim=1)], dim=1) for cache, sizes in ((one, (prompt, TOKENS - prompt)), (several, (prompt, 5, 1, 1, TOKENS - prompt - 7)))]
    assert torch.equal(pieces[0], pieces[1])
    seen = torch.ones(TOKENS, TOKENS).tril().bool()
    seen[:, :prompt] = True
    mask = torch.zeros(1, 1, TOKENS, TOKENS).masked_fill(~seen, torch.finfo(torch.float32).min)
    exact = model.model.language_model(input_ids=IDS, attention_mask=mask, use_cache=False).last_hidden_state
    exact = model.lm_head(exact)
    assert (pieces[0] - exact).norm() < 1e-4 * exact.norm()
