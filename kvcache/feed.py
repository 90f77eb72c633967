"""Continue a cache by token ids, on any model that transformers has."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers.cache_utils import CacheLayerMixin

from .architecture import cache_argument, counts_from_zero, decoder_config, tokens_at_once, why_not_prompted
from .layer import Stored
from .mrope import counts_pictures, keep, place, refuse_types
from .recurrent import NOWHERE_TO_GO_BACK, States
from .refusals import as_long_as_keys, refuse_overflow


def feed(model: torch.nn.Module, input_ids: torch.Tensor, cache: transformers.Cache, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
    """Continue a cache, filled or new, by input_ids [B, T] on any model; returns the logits [B, T, V].

    In one forward where that is right, else token by token: what comes after a model's first forward, if that reads all
    it gets in both directions, is read as what follows a prompt. Positions are given where the model takes them, since
    Bamba starts them anew in each forward, and since Qwen2-VL and kin count pictures of later turns as if they were text:
    pictures come in one piece with their text, each with all that the model's processor returns; Gemma 3's token types
    cover what the cache has seen, too, as does `attention_mask` [B, seen + T]. To a model with an encoder the ids are its decoder's, `decoder_attention_mask` is their mask, and `attention_mask` and
    `encoder_outputs` are the encoder's, which a filled cache goes on attending to as it read them first: another length is refused, another text of that length is not noticed.

    All or nothing: after an error the cache is as it was (but what was rounded meanwhile stays rounded) or, where it cannot go back, refuses every forward until `reset()`.
    """
    _check_fed(model, input_ids, cache)
    side, alone = "", not kwargs  # a picture goes with all of its text
    if model.config.is_encoder_decoder:
        side, kwargs["attention_mask"], attention_mask = "decoder_", attention_mask, kwargs.pop("decoder_attention_mask", None)
        _refuse_other_source(cache, kwargs.get("encoder_outputs"))
    kwargs[cache_argument(model)] = cache
    total = input_ids.shape[1]
    counted = _seen(cache)
    seen = (counted or 0) if attention_mask is None else attention_mask.shape[1] - total
    layers = getattr(cache, "self_attention_cache", cache).layers
    has_attention = not layers or any(isinstance(layer, CacheLayerMixin) for layer in layers)
    states = [layer for layer in layers if isinstance(layer, States)]
    if states and attention_mask is not None and bool((attention_mask[:, 1:] < attention_mask[:, :-1]).any()):
        raise ValueError(f"{side}attention_mask {tuple(attention_mask.shape)} leaves out tokens behind others; a recurrent state can only do without those before a row's first")
    if has_attention and counted is not None and seen != counted:
        raise ValueError(
            f"{side}attention_mask {tuple(attention_mask.shape)} must cover the {counted} tokens that the cache has seen and the {total} new ones: "
            f"[B, {counted + total}]"
        )
    refuse_types(model, kwargs, seen, total)
    part = counts_pictures(model)
    positions, shift = place(part, cache, input_ids, attention_mask, seen, kwargs) if part else (_positions(attention_mask, seen, input_ids), None)
    refuse_overflow(layers, total)
    forgets = any(not layer.carries and layer.crop_floor for layer in states)
    size = 1 if forgets or total == 1 else tokens_at_once(decoder_config(model), filled=seen > 0) or total
    if alone and tokens_at_once(decoder_config(model), filled=True) is None:
        size = min(size, getattr(cache, "at_once", None) or total)
    logits = []
    with all_or_nothing(cache):
        for start in range(0, total, size):
            stop = min(total, start + size)
            if attention_mask is not None:  # a recurrent model takes the new tokens' part alone
                mask = attention_mask[:, 0 if has_attention else seen + start : seen + stop]
                kwargs[f"{side}attention_mask"] = as_long_as_keys(mask, layers, stop - start)
            if positions is not None and counts_from_zero(type(model)):
                kwargs["position_ids"] = positions[..., start:stop]
            logits.append(model(**{f"{side}input_ids": input_ids[:, start:stop]}, use_cache=True, **kwargs).logits)
            if states and attention_mask is not None and stop - start == 1:
                _forget_padding(states, attention_mask[:, seen + start] == 0)
    if shift is not None:
        keep(part, cache, shift)
    return torch.cat(logits, dim=1)


def _check_fed(model: torch.nn.Module, input_ids: Any, cache: Any) -> None:
    """Raise ValueError for what is not ids [B, T], for what is not a cache, and for a model that takes none."""
    if reason := why_not_prompted(model):
        raise ValueError(reason)
    if not isinstance(input_ids, torch.Tensor) or input_ids.dim() != 2 or not input_ids.shape[1]:
        got = tuple(input_ids.shape) if isinstance(input_ids, torch.Tensor) else type(input_ids).__name__
        raise ValueError(f"input_ids must be a LongTensor [rows, tokens], with at least one token to feed, got {got}")
    if not isinstance(cache, transformers.Cache):
        raise ValueError(f"feed goes on from a cache, got {type(cache).__name__}: kvcache.create('dynamic', model) makes a new one")


@contextlib.contextmanager
def all_or_nothing(cache: Any) -> Iterator[None]:
    """What was begun in here and did not end is taken back; a cache of ours that cannot go back refuses all further forwards."""
    parts = [getattr(cache, "self_attention_cache", cache), *([cache.cross_attention_cache] if hasattr(cache, "cross_attention_cache") else [])]
    before = [_counts(part) for part in parts]
    try:
        yield
    except BaseException as error:
        if hasattr(parts[0], "torn") and not parts[0].torn and [_counts(part) for part in parts] != before:
            parts[0].torn = f"a forward ended half-way on this {type(parts[0]).__name__}, by {type(error).__name__}"
            if not any(map(any, before)):
                cache.reset()
            elif getattr(cache, "crop_floor", NOWHERE_TO_GO_BACK) <= (seen := max(before[0])):
                cache.crop(seen)
                parts[0].torn = ""
        raise


def _counts(cache: Any) -> list[int]:
    """Tokens seen by each layer that counts them, ours or native."""
    return [int(layer.get_seq_length()) if isinstance(layer, CacheLayerMixin) else layer.seen for layer in cache.layers if isinstance(layer, (Stored, CacheLayerMixin))]


def _refuse_other_source(cache: Any, encoder_outputs: Any) -> None:
    """Raise ValueError for what an encoder gave ([B, S, ...] first) of another length than the cache has read: it would go on with the old."""
    read = cache.cross_attention_cache.get_seq_length() if hasattr(cache, "cross_attention_cache") else 0
    if encoder_outputs is not None and read and encoder_outputs[0].shape[1] != read:
        raise ValueError(f"this cache has read {read} tokens of an encoder and was given encoder_outputs of {encoder_outputs[0].shape[1]}; reset() it, or make a new cache")


def _forget_padding(states: list[States], padded: torch.Tensor) -> None:
    """Have rows begin anew that were given padding [B] as a single token: there transformers hands no mask to recurrent layers."""
    if bool(padded.any()):
        for layer in states:
            for name, kind in layer.stores.items():
                if kind == "state":
                    getattr(layer, name).forget(padded)


def _seen(cache: Any) -> int | None:
    """Tokens that a cache has seen; None without attention layers, where nobody counts, nor asks for positions."""
    try:
        return int(cache.get_seq_length())
    except ValueError:
        return None


def _positions(attention_mask: torch.Tensor | None, seen: int, ids: torch.Tensor) -> torch.Tensor:
    """[B or 1, T] positions of `ids`, padding not counted."""
    if attention_mask is None:
        return torch.arange(seen, seen + ids.shape[1], device=ids.device)[None]
    return (attention_mask.long().cumsum(-1) - 1).clamp_min(0)[:, seen:]
