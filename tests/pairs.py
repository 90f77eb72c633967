"""Tiny random models with an encoder, what their encoders are given, and the decoder's logits with a cache and without."""

from functools import cache

import numpy
import torch
import transformers

CLOSE = dict(atol=2e-4, rtol=1e-4)
SIZES = dict(vocab_size=97, d_model=64, pad_token_id=0, eos_token_id=None, bos_token_id=None, decoder_start_token_id=0)
LAYERS = dict(encoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64)
MODELS = ("t5", "bart", "whisper")
TOKENS = 24


@cache
def model_of(name, layers=2):
    torch.manual_seed(3)
    if name == "t5":
        config = transformers.T5Config(d_kv=16, d_ff=64, num_layers=layers, num_heads=4, **SIZES)
        model = transformers.T5ForConditionalGeneration(config)
    elif name == "bart":
        model = transformers.BartForConditionalGeneration(transformers.BartConfig(decoder_layers=layers, max_position_embeddings=128, forced_eos_token_id=None, **LAYERS, **SIZES))
    else:
        config = transformers.WhisperConfig(decoder_layers=layers, num_mel_bins=80, max_source_positions=1500, max_target_positions=96, **LAYERS, **SIZES)
        model = transformers.WhisperForConditionalGeneration(config)
    with torch.no_grad():
        for where, parameter in model.named_parameters():
            if parameter.dim() > 1 and ("attn" in where or "Attention" in where) and "bias" not in where:
                parameter.mul_(3.0 if name == "t5" else 6.0)  # T5 does not divide by the root of head_dim
    return model.eval()


@cache
def heard(rows=2):
    """What Whisper's own feature extractor makes of a second of two tones: [rows, 80, 3000]."""
    time = numpy.arange(16000) / 16000
    audio = [numpy.sin(2 * numpy.pi * tone * time).astype(numpy.float32) for tone in (220, 330, 495)[:rows]]
    return transformers.WhisperFeatureExtractor()(audio, sampling_rate=16000, return_tensors="pt").input_features


@cache
@torch.no_grad()
def encoded(name, rows=2):
    """The encoder's output, computed once."""
    model = model_of(name)
    inputs = {"input_features": heard(rows)} if name == "whisper" else {"input_ids": ids(rows, 15, 1)}
    return model.get_encoder()(**inputs)


def sources(tokens):
    """[B, 15], for each row of the decoder's tokens an encoder's input of its own, told by the first that is no padding."""
    first = tokens.gather(1, (tokens != 0).long().argmax(1, keepdim=True))
    return (first * torch.arange(1, 16)) % 94 + 3


def ids(rows, tokens, seed=0):
    return torch.randint(3, 97, (rows, tokens), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits(name, tokens, cache=None, rows=2):
    state = encoded(name, 3).last_hidden_state[:rows] if isinstance(rows, int) else encoded(name, 3).last_hidden_state[rows]
    return model_of(name)(encoder_outputs=(state,), decoder_input_ids=tokens, past_key_values=cache, use_cache=cache is not None).logits


def fed(name, tokens, cache, bounds, rows=2):
    return torch.cat([logits(name, tokens[:, a:b], cache, rows) for a, b in bounds], dim=1)


def t5gemma():
    """A random model whose layers have windows or not, in float64. Other models with an encoder have no plan by which processes share them."""
    torch.manual_seed(2)
    side = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, sliding_window=24, layer_types=["sliding_attention", "full_attention"], num_attention_heads=8, num_key_value_heads=4, head_dim=16)
    config = transformers.T5GemmaConfig(encoder=dict(side), decoder=dict(side, cross_attention_hidden_size=64), vocab_size=97, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    return transformers.T5GemmaForConditionalGeneration(config).double().eval()
