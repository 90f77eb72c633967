"""What is read from the frames of transformers' functions: if a later version names them otherwise, these tests fail, and a cache would be silently wrong again."""

import pairs
import pytest
import torch
import transformers
from architectures import model_of, token_ids

import kvcache
from kvcache import upstream_quirks
from kvcache.architecture import cache_argument

GREEDY = dict(max_new_tokens=8, do_sample=False)
GROWING = ("dynamic", "static", "offloaded", "offloaded_static", "quantized")
ROOM = {"static": dict(max_cache_len=128), "offloaded_static": dict(max_cache_len=128)}
MODES = {"prompt lookup": lambda: dict(prompt_lookup_num_tokens=4), "an assistant": lambda: dict(assistant_model=model_of("llama", 1)), "early exit": lambda: dict(assistant_early_exit=1)}


def taking(model, cache):
    """As the transformers at hand calls it."""
    return {cache_argument(model): cache}


def a_turn_later(model, name, **parameters):
    """A cache that holds a conversation, and the ids of the conversation and what is said next."""
    cache = kvcache.create(name, model, **{**ROOM.get(name, {}), **parameters})
    said = model.generate(token_ids(1, 10).repeat(1, 3), **taking(model, cache), **GREEDY)
    return cache, torch.cat([said, token_ids(1, 6)], dim=1)


def test_the_frames_are_those_seen_in_these_versions():
    """5.23 and 5.24 were read; a later one is to be read before its number is let in here."""
    assert transformers.__version__.startswith(("5.23.", "5.24."))
    assert all(hasattr(transformers.GenerationMixin, name) for name in upstream_quirks.LOOPS)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", GROWING)
def test_drafts_on_a_filled_cache_say_what_plain_decoding_says(name, mode):
    model = model_of("llama")
    cache, ids = a_turn_later(model, name)
    plain = model.generate(ids, **taking(model, cache.fork()), **GREEDY)
    assert torch.equal(model.generate(ids, **taking(model, cache), **GREEDY, **MODES[mode]()), plain)
    assert cache.tokens_seen == plain.shape[1] - 1
    assert upstream_quirks.PREPARE not in vars(model)


def test_the_new_ids_alone_with_the_mask_of_all_may_be_drafted_too():
    model = model_of("llama")
    cache, ids = a_turn_later(model, "dynamic")
    plain, seen = model.generate(ids, **taking(model, cache.fork()), **GREEDY), cache.tokens_seen
    new = model.generate(ids[:, seen:], attention_mask=torch.ones_like(ids), **taking(model, cache), prompt_lookup_num_tokens=4, **GREEDY)
    assert torch.equal(new, plain[:, seen:])


def test_a_preparation_that_was_there_before_is_there_afterwards(monkeypatch):
    """PEFT puts one of its own on the model."""
    model = model_of("llama")
    own = model.prepare_inputs_for_generation
    monkeypatch.setattr(model, upstream_quirks.PREPARE, own)
    cache, ids = a_turn_later(model, "dynamic")
    model.generate(ids, **taking(model, cache), prompt_lookup_num_tokens=4, **GREEDY)
    assert vars(model)[upstream_quirks.PREPARE] is own


def again(model, input_ids, logits_processor=None, stopping_criteria=None, generation_config=None, **kwargs):
    """A decoding of the user's that gives the model all it was given, as those once in transformers do."""
    return model(**model.prepare_inputs_for_generation(input_ids, **kwargs)).logits


@pytest.mark.parametrize("name", [*GROWING, "sink", "sliding_window"])
@pytest.mark.parametrize(
    "how,message",
    [
        (dict(use_cache=False), "use_cache=False, by the call"),
        (dict(custom_generate=again), "whole conversation: its decoding, by custom_generate"),
        (dict(all_seen=True), "more of them than were seen"),
    ],
)
def test_what_would_be_given_again_is_refused_and_nothing_is_lost(name, how, message):
    model, how = model_of("llama"), dict(how)
    cache, ids = a_turn_later(model, name)
    seen = cache.tokens_seen
    given = ids[:, :seen] if how.pop("all_seen", False) else ids
    plain = model.generate(ids, **taking(model, cache.fork()), **GREEDY)
    with pytest.raises(ValueError, match=message):
        model.generate(given, **taking(model, cache), **GREEDY, **how)
    assert cache.tokens_seen == seen and torch.equal(model.generate(ids, **taking(model, cache), **GREEDY), plain)


@pytest.mark.parametrize("name", ["gemma2", "mistral", "bamba", "jamba", "mamba", "mamba2", "granitemoehybrid"])
@pytest.mark.parametrize("tokens", [1, 9])
def test_use_cache_false_in_the_models_own_settings_is_refused_before_the_first_token(name, tokens, monkeypatch):
    model = model_of(name)
    cache = kvcache.create(kvcache.catalog.first_fitting(model), model)
    monkeypatch.setattr(model.generation_config, "use_cache", False)
    with pytest.raises(ValueError, match="use_cache=False"):
        model.generate(token_ids(1, tokens), **taking(model, cache), **GREEDY)
    assert cache.tokens_seen == 0


@pytest.mark.parametrize("name", ["llama", "mistral", "mamba"])
@torch.no_grad()
def test_a_forward_takes_a_cache_beside_use_cache_false(name):
    """There it says only that none is to be made."""
    model, ids = model_of(name), token_ids(1, 12)
    cache = kvcache.create(kvcache.catalog.first_fitting(model), model)
    pieces = [model(part, **taking(model, cache), use_cache=False).logits for part in (ids[:, :8], *ids[:, 8:].split(1, dim=1))]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(ids, use_cache=False).logits, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("own", ["dynamic", "static"])
def test_a_decoder_is_given_what_is_new_where_its_mask_says_what_is_old_and_else_refused(name, own):
    model, source = pairs.model_of(name), pairs.ids(1, 15, 1)
    cache = kvcache.create("encoder_decoder", model, self_cache=own, **ROOM.get(own, {}))
    said = model.generate(source, **taking(model, cache), **GREEDY)
    whole, seen = torch.cat([said, pairs.ids(1, 4, 5)], dim=1), cache.tokens_seen
    ones = torch.ones_like(whole)
    new = dict(decoder_input_ids=whole[:, seen:], decoder_attention_mask=ones)  # before which generate puts the start token
    for how in (dict(decoder_input_ids=whole), dict(decoder_input_ids=whole, prompt_lookup_num_tokens=3), {}, new):
        with pytest.raises(ValueError, match="give decoder_input_ids of the whole"):
            model.generate(source, **taking(model, cache), **GREEDY, **how)
        assert cache.tokens_seen == seen
    with pytest.raises(ValueError, match="use_cache=False"):
        model.generate(source, **taking(model, cache), use_cache=False, **GREEDY)
    plain = model.generate(source, decoder_input_ids=whole, **GREEDY)
    for how in ({}, dict(prompt_lookup_num_tokens=3)):
        assert torch.equal(model.generate(source, **taking(model, cache.fork()), decoder_input_ids=whole, decoder_attention_mask=ones, **GREEDY, **how), plain)


def test_a_forward_within_anothers_loop_is_not_taken_for_it():
    """Such as a guiding model's, asked by a logits processor of a generate without a cache."""
    model, ids = model_of("llama"), token_ids(1, 12)
    guide = lambda given, scores: scores + 0 * model(ids, **taking(model, kvcache.create("dynamic", model))).logits[:, -1]  # noqa: E731
    plain = model.generate(ids, use_cache=False, **GREEDY)
    assert torch.equal(model.generate(ids, use_cache=False, logits_processor=[guide], **GREEDY), plain)


def test_at_single_tokens_behind_the_first_no_variables_are_read(monkeypatch):
    """They are copied to be read, which takes longer than finding out whose they are."""
    made, init = [], upstream_quirks.Loop.__init__
    monkeypatch.setattr(upstream_quirks.Loop, "__init__", lambda self, frame: made.append(frame.f_code.co_name) or init(self, frame))
    model = model_of("llama")
    model.generate(token_ids(1, 12), **taking(model, kvcache.create("dynamic", model)), **GREEDY)
    assert made == ["_prefill"]
