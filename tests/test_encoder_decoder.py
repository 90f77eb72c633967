"""An encoder-decoder cache: any cache for the decoder, real tensors for what the encoder gave."""

import copy
import warnings

import pytest
import torch
import transformers
from pairs import CLOSE, MODELS, TOKENS, encoded, fed, heard, ids, logits, model_of, t5gemma

import kvcache
from kvcache import DynamicCache, EncoderDecoderCache, QuantizedCache, SinkCache, SlidingWindowCache, StaticCache

STEPS = [(0, 10), (10, 11), (11, 20), *((i, i + 1) for i in range(20, TOKENS))]
OWN = {
    "dynamic": lambda config: DynamicCache(),
    "dynamic with config": lambda config: DynamicCache(config),
    "static": lambda config: StaticCache(config, max_cache_len=32),
    "quantized": lambda config: QuantizedCache(config, residual_length=32),
    "sliding_window": lambda config: SlidingWindowCache(config, window_length=32),
    "transformers' dynamic": lambda config: transformers.DynamicCache(),
}


def test_copies_know_what_they_were_made_for(tmp_path):
    model = model_of("bart")
    cache = kvcache.create("encoder_decoder", model)
    fed("bart", ids(2, 10), cache, [(0, 10)])
    rows = cache.batch_size
    copies = [cache.fork(), *cache.batch_split(rows, 1), EncoderDecoderCache.from_batch_splits(cache.batch_split(rows, 1))]
    for number, copied in enumerate(copies):
        copied.save(tmp_path / f"{number}.safetensors")
        assert kvcache.load_cache(tmp_path / f"{number}.safetensors", model).get_seq_length() == cache.get_seq_length()


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("name", MODELS)
def test_any_cache_for_self_attention_gives_the_logits_of_a_run_without(name, own):
    if (name, own) == ("t5", "sliding_window"):
        with pytest.raises(ValueError, match="biases by the distance"):
            OWN[own](model_of(name).config)
        return
    cache = EncoderDecoderCache(OWN[own](model_of(name).config), DynamicCache())
    tokens = ids(2, TOKENS)
    torch.testing.assert_close(fed(name, tokens, cache, STEPS), logits(name, tokens), **CLOSE)
    assert cache.get_seq_length() == TOKENS and cache.is_updated == {0: True, 1: True}
    assert cache.batch_size == 2 and cache.is_initialized


@pytest.mark.parametrize("name", ["bart", "whisper"])
def test_a_window_of_the_decoders_tokens_equals_its_mask_without_a_cache(name):
    tokens, bounds, window = ids(1, TOKENS), STEPS, 6
    cache = EncoderDecoderCache(SlidingWindowCache(model_of(name).config, window_length=window), DynamicCache())
    ours = fed(name, tokens, cache, bounds, 1)
    mask = torch.full((TOKENS, TOKENS), torch.finfo(torch.float32).min)
    for start, stop in bounds:
        for query in range(start, stop):
            mask[query, max(0, start - window + 1) : query + 1] = 0
    with torch.no_grad():
        exact = model_of(name)(encoder_outputs=(encoded(name, 3).last_hidden_state[:1],), decoder_input_ids=tokens, decoder_attention_mask=mask[None, None]).logits
    torch.testing.assert_close(ours, exact, **CLOSE)


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_generate_takes_it_greedily_and_with_beams(name, beams):
    settings = dict(max_new_tokens=10, num_beams=beams, do_sample=False)
    inputs = {"input_features": heard(2)} if name == "whisper" else {"input_ids": ids(2, 15, 1), "attention_mask": torch.ones(2, 15, dtype=torch.long)}
    plain = model_of(name).generate(**inputs, use_cache=False, **settings)
    for own in ("dynamic", "static", "quantized"):
        cache = EncoderDecoderCache(OWN[own](model_of(name).config), DynamicCache())
        assert torch.equal(model_of(name).generate(**inputs, past_key_values=cache, **settings), plain), own


@pytest.mark.parametrize("settings", [dict(), dict(condition_on_prev_tokens=True), dict(temperature=(0.0, 0.5), logprob_threshold=0.0)], ids=["windows", "with what was said before", "temperatures"])
@pytest.mark.parametrize("name,config", [("dynamic", {}), ("static", {"max_cache_len": 64}), ("quantized", {})])
def test_whisper_hears_a_long_sound_window_by_window(name, config, settings):
    """Its generate runs once for each window and each temperature with the same cache; each run must find it empty."""
    sizes = dict(vocab_size=200, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64)
    torch.manual_seed(0)
    model = transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(**sizes, num_mel_bins=16, max_source_positions=100, max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3)).eval()
    for tensor in (p for part, p in model.named_parameters() if p.dim() > 1 and "embed" not in part):
        tensor.data.mul_(3)
    given = model.generation_config
    given.no_timestamps_token_id, given.is_multilingual, given.prev_sot_token_id = 150, False, 4
    sound = torch.randn(1, 16, 620)
    settings = dict(return_timestamps=True, do_sample=False, max_new_tokens=6, **settings)
    torch.manual_seed(1)
    exact = model.generate(sound, use_cache=False, **settings)
    torch.manual_seed(1)
    assert exact.shape[1] > 12
    assert torch.equal(kvcache.generate(model, sound, cache_implementation=name, cache_config=config, **settings), exact)


def test_an_encoders_output_of_another_length_is_refused_by_a_filled_cache():
    cache, tokens = EncoderDecoderCache(DynamicCache(), DynamicCache()), ids(1, 6)
    read = encoded("t5", 3).last_hidden_state[:1]
    with torch.no_grad():
        kvcache.feed(model_of("t5"), tokens[:, :4], cache, encoder_outputs=(read,))
        with pytest.raises(ValueError, match=f"has read {read.shape[1]} tokens of an encoder and was given encoder_outputs of {read.shape[1] - 2}"):
            kvcache.feed(model_of("t5"), tokens[:, 4:], cache, encoder_outputs=(read[:, 2:],))
        more = kvcache.feed(model_of("t5"), tokens[:, 4:], cache, encoder_outputs=(read,))
        exact = model_of("t5")(encoder_outputs=(read,), decoder_input_ids=tokens, use_cache=False).logits
    torch.testing.assert_close(more, exact[:, 4:], **CLOSE)


def test_the_guides_whisper_example_runs():
    """Two DynamicCaches, the features of an audio, a forward: the cache comes back filled, and goes on."""
    model, features = model_of("whisper"), heard(1)
    past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
    start = torch.full((1, 1), model.config.decoder_start_token_id)
    with torch.no_grad():
        outputs = model(input_features=features, decoder_input_ids=start, past_key_values=past_key_values, use_cache=True)
        assert outputs.past_key_values is past_key_values
        new = outputs.logits[:, -1:].argmax(-1)
        more = model(encoder_outputs=(outputs.encoder_last_hidden_state,), decoder_input_ids=new, past_key_values=past_key_values).logits
        exact = model(input_features=features, decoder_input_ids=torch.cat([start, new], dim=1), use_cache=False).logits
    torch.testing.assert_close(more[:, -1], exact[:, -1], **CLOSE)
    assert past_key_values[0][2].shape == (1, 4, 1500, 16) and past_key_values.get_seq_length() == 2
    generated = model.generate(features, past_key_values=EncoderDecoderCache(DynamicCache(), DynamicCache()), max_new_tokens=6)
    assert torch.equal(generated, model.generate(features, max_new_tokens=6))


@pytest.mark.parametrize("own", ["dynamic", "static", "quantized", "transformers' dynamic"])
def test_crop_takes_back_the_decoders_tokens_and_leaves_the_encoders(own):
    cache, tokens = EncoderDecoderCache(OWN[own](model_of("bart").config), DynamicCache()), ids(2, TOKENS)
    fed("bart", tokens, cache, [(0, TOKENS)])
    for amount, left in ((0, 24), (-6, 18), (12, 12), (30, 12)):
        cache.crop(amount)
        assert cache.get_seq_length() == left and cache.cross_attention_cache.get_seq_length() == 15
    other = torch.cat([tokens[:, :12], ids(2, 5, 9)], dim=1)
    torch.testing.assert_close(fed("bart", other[:, 12:], cache, [(0, 5)]), logits("bart", other)[:, 12:], **CLOSE)
    with pytest.raises(kvcache.CropError, match="cannot remove 99 tokens"):
        cache.crop(-99)


@pytest.mark.parametrize("own", ["dynamic", "static", "quantized"])
@pytest.mark.parametrize("name", MODELS)
def test_rows_can_be_reordered_repeated_selected_copied_and_forked(name, own):
    cache, tokens, exact = EncoderDecoderCache(OWN[own](model_of(name).config), DynamicCache()), ids(3, TOKENS), None
    exact = logits(name, tokens, rows=3)
    fed(name, tokens[:, :20], cache, [(0, 20)], 3)
    copied, fork = copy.deepcopy(cache), cache.fork()
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 3]))
    rows = torch.tensor([2, 0])
    assert cache.batch_size == 2
    torch.testing.assert_close(fed(name, tokens[rows, 20:], cache, [(0, 1), (1, 4)], rows), exact[rows, 20:], **CLOSE)
    for other in (copied, fork):
        torch.testing.assert_close(fed(name, tokens[:, 20:], other, [(0, 4)], 3), exact[:, 20:], **CLOSE)


@pytest.mark.parametrize("own", ["dynamic", "quantized"])
def test_a_batch_is_split_and_joined_again(own):
    cache, tokens = EncoderDecoderCache(OWN[own](model_of("bart").config), DynamicCache()), ids(3, TOKENS)
    fed("bart", tokens[:, :20], cache, [(0, 20)], 3)
    first, last = cache.batch_split(3, 2)
    exact = logits("bart", tokens, rows=3)
    torch.testing.assert_close(fed("bart", tokens[2:, 20:], last, [(0, 4)], torch.tensor([2])), exact[2:, 20:], **CLOSE)
    joined = EncoderDecoderCache.from_batch_splits([first, cache.batch_split(3, 2)[1]])
    torch.testing.assert_close(fed("bart", tokens[:, 20:], joined, [(0, 4)], 3), exact[:, 20:], **CLOSE)
    with pytest.raises(ValueError, match="full_batch_size is 4 and this cache holds 3 rows"):
        cache.batch_split(4, 2)


def test_legacy_tuples_go_both_ways():
    cache, tokens = EncoderDecoderCache(DynamicCache(), DynamicCache()), ids(2, TOKENS)
    fed("t5", tokens[:, :20], cache, [(0, 20)])
    legacy = cache.to_legacy_cache()
    assert [tensor.shape[2] for tensor in legacy[0]] == [20, 20, 15, 15] and len(legacy) == len(cache) == 2
    assert all(torch.equal(a, b) for layer, held in zip(legacy, cache) for a, b in zip(layer, held))
    exact = logits("t5", tokens)[:, 20:]
    for again in (EncoderDecoderCache.from_legacy_cache(legacy), EncoderDecoderCache(legacy)):
        assert again.is_updated == {0: True, 1: True}
        torch.testing.assert_close(fed("t5", tokens[:, 20:], again, [(0, 4)]), exact, **CLOSE)
    half = EncoderDecoderCache.from_legacy_cache([layer[:2] for layer in legacy])
    assert half.is_updated == {} and not half.is_initialized and len(half.to_legacy_cache()[0]) == 2
    torch.testing.assert_close(fed("t5", tokens[:, 20:], half, [(0, 4)]), exact, **CLOSE)
    with pytest.raises(ValueError, match="layer 0 has 3 tensors; it takes 2"):
        EncoderDecoderCache([legacy[0][:3]])
    assert len(EncoderDecoderCache.from_legacy_cache()) == 0


def test_a_reset_cache_hears_the_encoder_anew():
    cache, tokens = EncoderDecoderCache(DynamicCache(), DynamicCache()), ids(2, TOKENS)
    with torch.inference_mode():
        logits("bart", ids(3, 9, 5), cache, 3)
    cache.reset()
    assert cache.get_seq_length() == 0 and not any(cache.is_updated.values()) and cache.batch_size == -1
    torch.testing.assert_close(fed("bart", tokens, cache, STEPS), logits("bart", tokens), **CLOSE)


@pytest.mark.parametrize("name", MODELS)
def test_bytes_are_measured_and_predicted_by_side(name):
    source = encoded(name, 3).last_hidden_state.shape[1]
    for own in ("dynamic", "dynamic with config", "static", "quantized"):
        cache = EncoderDecoderCache(OWN[own](model_of(name).config), DynamicCache())
        fed(name, ids(2, TOKENS), cache, [(0, TOKENS)])
        measured = cache.memory_by_side()
        assert measured["cross"].used == 2 * 2 * 2 * 4 * source * 16 * 4  # layers, keys and values, rows, heads, tokens, dim, bytes
        assert measured["self"].total + measured["cross"].total == kvcache.measure_memory(cache).total
        predicted = cache.predict_memory(model_of(name).config, TOKENS, source, batch_size=2)
        assert {side: memory.layers for side, memory in predicted.items()} == {side: memory.layers for side, memory in measured.items()}


@pytest.mark.parametrize(
    "make,reason",
    [
        (lambda c: QuantizedCache(c), "QuantizedLayer holds codes"),
        (lambda c: transformers.QuantizedCache("hqq", c), "HQQQuantizedLayer holds codes"),
        (lambda c: SlidingWindowCache(c, window_length=8), "would evict the encoder's tokens"),
        (lambda c: StaticCache(c, max_cache_len=32), "more, or less, than the encoder gave"),
        (lambda c: kvcache.OffloadedCache(c), "OffloadedCache for cross-attention"),
        (lambda c: EncoderDecoderCache(DynamicCache(), DynamicCache()), "is itself an EncoderDecoderCache"),
    ],
)
def test_what_cannot_hold_the_encoders_tensors_is_refused_with_the_reason(make, reason):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cross = make(model_of("bart").config)
    with pytest.raises(ValueError, match=reason):
        EncoderDecoderCache(DynamicCache(), cross)


def test_windows_say_why_they_do_not_suit_every_decoder():
    with pytest.raises(ValueError, match="without config= cannot tell a model whose position biases count the tokens held, such as T5"):
        EncoderDecoderCache(SlidingWindowCache(window_length=8), DynamicCache())
    with pytest.raises(ValueError, match="no rotary position embedding"):
        SinkCache(8, 2, model_of("bart").config)


def test_what_is_no_pair_of_caches_is_refused():
    with pytest.raises(TypeError, match=r"takes a self-attention and a cross-attention cache, got \['DynamicCache', 'list'\]"):
        EncoderDecoderCache(DynamicCache(), [])
    assert isinstance(EncoderDecoderCache(DynamicCache(), DynamicCache()), transformers.EncoderDecoderCache)


def test_a_pair_answers_for_the_decoders_tokens():
    cache = EncoderDecoderCache(StaticCache(model_of("bart").config, max_cache_len=32), DynamicCache())
    assert (cache.get_usable_length(3), cache.get_max_cache_shape(), cache.get_max_length()) == (0, 32, 32)
    fed("bart", ids(2, TOKENS), cache, [(0, TOKENS)])
    assert cache.get_usable_length(3) == TOKENS
    with pytest.warns(FutureWarning, match="get_seq_length"):
        assert cache.seen_tokens == TOKENS
    with pytest.raises(ValueError, match="9 more tokens do not fit: 24 of 32 are taken"):
        cache.get_usable_length(9)
    assert EncoderDecoderCache(DynamicCache(), DynamicCache()).get_max_cache_shape() is None
    with pytest.raises(NotImplementedError, match="update its self_attention_cache or its cross_attention_cache"):
        cache.update(torch.zeros(2, 4, 1, 16), torch.zeros(2, 4, 1, 16), 0)


def test_feed_gives_the_decoder_its_tokens_and_the_encoder_its_own():
    """With the decoder's own mask, where a row is padded; on transformers' pair too."""
    tokens, mask = ids(2, TOKENS), torch.ones(2, TOKENS, dtype=torch.long)
    mask[0, :5] = 0
    model, state = model_of("t5"), encoded("t5", 2).last_hidden_state
    own = [EncoderDecoderCache(DynamicCache(), DynamicCache()), transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())]
    with torch.no_grad():
        exact = model(encoder_outputs=(state,), decoder_input_ids=tokens, decoder_attention_mask=mask, use_cache=False).logits
        for cache in own:
            pieces = [kvcache.feed(model, tokens[:, a:b], cache, encoder_outputs=(state,), decoder_attention_mask=mask[:, :b]) for a, b in STEPS]
            torch.testing.assert_close(torch.cat(pieces, dim=1)[1], exact[1], **CLOSE)
            torch.testing.assert_close(torch.cat(pieces, dim=1)[0, 5:], exact[0, 5:], **CLOSE)


@pytest.mark.parametrize("name", MODELS)
def test_a_pair_with_a_static_side_says_that_it_compiles_and_does(name):
    cache, tokens = EncoderDecoderCache(OWN["static"](model_of(name).config), DynamicCache()), ids(2, TOKENS)
    fed(name, tokens[:, :10], cache, [(0, 10)])
    assert cache.is_compileable and not EncoderDecoderCache(DynamicCache(), DynamicCache()).is_compileable
    model, state = model_of(name), encoded(name, 3).last_hidden_state[:2]
    forward = lambda piece: model(encoder_outputs=(state,), decoder_input_ids=piece, past_key_values=cache).logits  # noqa: E731
    step = torch.compile(forward, fullgraph=True, backend="eager")
    with torch.no_grad():
        ours = torch.cat([step(tokens[:, i : i + 1]) for i in range(10, 16)], dim=1)
    torch.testing.assert_close(ours, logits(name, tokens)[:, 10:16], **CLOSE)


@pytest.mark.parametrize("own", ["dynamic", "static", "offloaded", "quantized"])
@pytest.mark.filterwarnings("ignore:.*moves nothing")
def test_t5gemmas_generate_which_makes_its_own_cache_for_cross_attention_takes_ours(own):
    model, tokens = t5gemma(), ids(1, 40)
    expected = model.generate(tokens, max_new_tokens=40, do_sample=False, use_cache=False)
    assert torch.equal(model.generate(tokens, max_new_tokens=40, do_sample=False, past_key_values=kvcache.create("encoder_decoder", model, self_cache=own)), expected)
    with pytest.raises(ValueError, match="OffloadedCache"):
        DynamicCache(offloading=True)
