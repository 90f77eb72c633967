"""What leans on transformers' private parts: the frames of its functions, which know what a cache is never told. Seen in 5.23 and 5.24.

transformers gives a cache keys, values and lengths. That a forward has a padding mask, or that `generate` feeds again what the cache has seen,
stands in the local variables of the functions that call it, and there it is looked up. Nothing cleaner comes before the last forward: a hook would have
to be put on the model, which most caches never meet, and keys do not tell. tests/test_upstream_quirks.py fails where a later version names these things otherwise.
"""

import functools
import sys
import weakref
from types import FrameType
from typing import Any

import torch

from .architecture import CACHE_ARGUMENTS

MASKS, GENERATION = "transformers.masking_utils", "transformers.generation.utils"
STEPS = 6  # from a cache's `get_mask_sizes` to the function that asks: containers and wrappers lie between
# The loops of `generate`, and itself for those that a user gives it. Each has `input_ids`, `model_kwargs` and `generation_config`.
LOOPS = frozenset({"_prefill", "_sample", "_beam_search", "_assisted_decoding", "generate"})
PREPARE = "prepare_inputs_for_generation"


def mask_of_forward() -> torch.Tensor | None:
    """The attention mask [B, seen + n] of the forward that asks for mask sizes right now; None where there is none.

    None too where another module asks: the few models that make masks of their own.
    """
    frame = sys._getframe(1)
    for _ in range(STEPS):
        if frame is None:
            return None
        if frame.f_globals.get("__name__") == MASKS:
            mask = frame.f_locals.get("attention_mask")
            return mask if isinstance(mask, torch.Tensor) and mask.dim() == 2 else None
        frame = frame.f_back
    return None


def asked_for_mask() -> bool:
    """Was the method that asks this called by the functions that make masks? 5.23 asks `get_seq_length` there, as models do for their positions."""
    return sys._getframe(2).f_globals.get("__name__") == MASKS


class Loop:
    """The loop of `generate` that gives `cache` its tokens right now, by its frame."""

    def __init__(self, frame: FrameType):
        self.name, self.local = frame.f_code.co_name, frame.f_locals

    @classmethod
    def found(cls, names: frozenset[str] = LOOPS) -> "Loop | None":
        """The innermost one among the callers; None outside of generate, and where that one is none of `names`."""
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_name in LOOPS and frame.f_globals.get("__name__") == GENERATION:
                return cls(frame) if frame.f_code.co_name in names else None
            frame = frame.f_back
        return None

    @property
    def kwargs(self) -> dict[str, Any]:
        return self.local.get("model_kwargs") or {}

    @property
    def cache(self) -> Any:
        """What the caller gave; the decoder's own of a pair."""
        return next((self.kwargs[name] for name in CACHE_ARGUMENTS if self.kwargs.get(name) is not None), None)

    def gives(self, cache: Any) -> bool:
        """Is it this one, or a pair of which it is the decoder's?"""
        return self.cache is cache or getattr(self.cache, "self_attention_cache", None) is cache

    @property
    def ids(self) -> torch.Tensor:
        """[B, n], or embeddings [B, n, D]: of the whole conversation or of what is new."""
        embeds = self.kwargs.get("inputs_embeds")
        return self.local["input_ids"] if embeds is None or self.has_encoder else embeds

    @property
    def has_encoder(self) -> bool:
        return bool(self.local["self"].config.is_encoder_decoder)

    @property
    def whole(self) -> int | None:
        """Tokens of the conversation by its mask, which counts those seen, too; None where nobody says."""
        mask = self.kwargs.get("decoder_attention_mask" if self.has_encoder else "attention_mask")
        return getattr(self.local["generation_config"], "_mask_length", None) if mask is None else mask.shape[1]

    def refuse_repetition(self, tokens: int, seen: int) -> None:
        """Raise ValueError where this loop is about to give its cache, which has `seen` tokens, some of them again among `tokens`."""
        if not self.kwargs.get("use_cache", True):
            raise ValueError(
                "generate was given a cache and use_cache=False, by the call, its generation config or the model's own, which may have kept it from a training: every step would give the cache "
                "all tokens again; call generate with use_cache=True, or without the cache"
            )
        if seen and (reason := self._why_not(tokens, seen)):
            raise ValueError(f"generate gives this cache, which has seen {seen} tokens, {tokens} at once, as it does {reason}")

    def _why_not(self, tokens: int, seen: int) -> str | None:
        """Why so many tokens are not those that follow the `seen` ones, and what would be; None where they are, or where nothing tells."""
        given, whole = self.ids.shape[1], self.whole
        if self.name == "generate":  # by a function of the user's, which may give what it will, but not what it was given
            return _AGAIN if tokens == given == whole and self._feeds_all() else None
        if self.name == "_prefill" and all(self.cache.is_linear):
            return _OF_STATES if given == tokens > seen else None
        if self.name != "_prefill" and not self.local.get("is_first_iteration"):
            return None
        if self.has_encoder and given != whole and (whole is None or self._starts()):
            return _WITH_ENCODER
        drafts = self.local["candidate_input_ids"].shape[1] - given if self.name == "_assisted_decoding" else 0
        return _OF_OTHERS.format(given=given, whole=whole, seen=seen) if whole is not None and seen + tokens > whole + drafts else None

    def _starts(self) -> bool:
        """Do the decoder's ids begin with its start token? generate puts it before those that do not, of new ones alone too, on most models."""
        return bool((self.ids[:, 0] == self.local["generation_config"]._decoder_start_token_tensor).any())

    def _feeds_all(self) -> bool:
        """Are the ids of the forward at hand those that generate was given?"""
        frame = sys._getframe(1)
        while not isinstance(ids := frame.f_locals.get("input_ids"), torch.Tensor):
            frame = frame.f_back
        return ids.shape == self.ids.shape and torch.equal(ids, self.ids)


_AGAIN = "with the whole conversation: its decoding, by custom_generate, does not leave out what was seen; kvcache.feed(model, new_ids, cache) takes the new ones, or give it an empty cache"
_OF_STATES = (
    "with a whole conversation: it leaves out what was seen for caches with attention only; kvcache.feed(model, new_ids, cache) takes the new ones, and generate then the last of them"
)
_WITH_ENCODER = (
    "with decoder_input_ids that no decoder_attention_mask of their length says to be the whole conversation: it leaves out what was seen from those only; give decoder_input_ids of the whole, which begin with "
    "the start token, and decoder_attention_mask=torch.ones_like(decoder_input_ids), or reset() the cache for another text"
)
_OF_OTHERS = (
    "with {given} ids and a mask of {whole}: give it the ids of the whole conversation, more of them than were seen, or the new ones alone with attention_mask [B, {seen} + new]; "
    "crop() takes tokens back that are to be computed again"
)


def loop_that_feeds(cache: Any, tokens: int) -> Loop | None:
    """The loop of `generate` that gives this cache so many tokens right now. Of single tokens the first alone are looked at: those behind follow from it."""
    loop = Loop.found(LOOPS if tokens > 1 else _FIRST)
    return loop if loop is not None and loop.gives(cache) else None


_FIRST, _DRAFTING = frozenset({"_prefill"}), frozenset({"_assisted_decoding"})


def leave_out_seen(cache: Any) -> None:
    """Have decoding with drafts, where it announces itself to a filled cache and holds the whole conversation, begin with what is new, as plain decoding does.

    transformers 5.23 and 5.24 give all of it again: `_assisted_decoding` lacks the `next_sequence_length` of `_prefill`. So the model prepares that one forward otherwise, for this cache.
    """
    loop = Loop.found(_DRAFTING)
    if loop is None or not loop.gives(cache) or not cache.tokens_seen or loop.ids is not loop.local["input_ids"] or loop.whole != loop.ids.shape[1]:
        return
    model, mine = loop.local["self"], weakref.ref(loop.cache)
    prepare, before = getattr(model, PREPARE), vars(model).get(PREPARE)

    @functools.wraps(prepare)
    def prepare_new(ids: torch.Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        given = next((kwargs[name] for name in CACHE_ARGUMENTS if kwargs.get(name) is not None), None)
        if given is mine():
            vars(model).pop(PREPARE, None) if before is None else vars(model).update({PREPARE: before})
            if sys._getframe(1).f_code.co_name in _DRAFTING and (new := ids.shape[1] - given.get_seq_length()) > 0:
                kwargs["next_sequence_length"] = new
        return prepare(ids, *args, **kwargs)

    setattr(model, PREPARE, prepare_new)
