"""Where tokens stand among pictures: with M-RoPE (Qwen2-VL and kin) those of a picture take rows and columns, so that text behind it stands elsewhere than at its number.

transformers 5.23 keeps the difference in the model, one for all caches, and counts a later turn's pictures as if they were text. Here each cache has its own.
Source: Wang et al. 2024, arXiv 2409.12191.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .architecture import written_with

GRIDS = ("image_grid_thw", "video_grid_thw")
SEEN = (*GRIDS, "pixel_values", "pixel_values_videos", "input_features", "feature_attention_mask")


@dataclass(frozen=True)
class Shift:
    """How far behind its number the next token of each row stands: `by` [B], from the token `end` on."""

    end: int
    by: torch.Tensor

    def rows(self, indices: torch.Tensor) -> "Shift":
        """That of some rows."""
        return Shift(self.end, self.by[indices.to(self.by.device)])

    @property
    def crop_floor(self) -> int:
        """Shortest length that it is known for."""
        return self.end if self.by.any() else 0


def joined_shift(shifts: Sequence[Shift | None]) -> Shift | None:
    """That of all rows, if it is known of each."""
    return None if None in shifts else Shift(max(shift.end for shift in shifts), torch.cat([shift.by for shift in shifts]))


def counts_pictures(model: torch.nn.Module) -> torch.nn.Module | None:
    """The part of a model that places tokens among pictures, or None."""
    return next((part for part in (model, getattr(model, "model", None)) if hasattr(part, "get_rope_index")), None)


def place(part: torch.nn.Module, cache: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor | None, seen: int, given: Mapping[str, Any]) -> tuple[torch.Tensor | None, Shift | None]:
    """Positions [B, T], or [3, B, T] among pictures, of input_ids [B, T] behind `seen` tokens, and the shift behind them; None where only the model knows, which filled the cache without `feed`.

    `attention_mask` [B, seen + T]; `given`, what else the forward is given. Raises ValueError for pictures whose places cannot be told.
    """
    rows, tokens = input_ids.shape
    before = getattr(cache, "shift", None) if seen else Shift(0, torch.zeros(rows, dtype=torch.long, device=input_ids.device))
    pictures = any(given.get(name) is not None for name in SEEN)
    if pictures:
        _refuse(part, cache, given, unknown=before is None)
    if before is None:
        return None, None
    mask = torch.ones(rows, seen + tokens, dtype=torch.long, device=input_ids.device) if attention_mask is None else attention_mask.long()
    first, mask = (mask[:, :seen].sum(-1) + before.by)[:, None], mask[:, seen:]
    if not pictures:
        return first + (mask.cumsum(-1) - 1).clamp_min(0), before
    accepted = {name: given[name] for name in inspect.signature(part.get_rope_index).parameters if name in given}
    places, more = part.get_rope_index(input_ids, attention_mask=mask, **accepted)
    return places + first, Shift(seen + tokens, before.by + more.flatten())


def keep(part: torch.nn.Module, cache: Any, shift: Shift) -> None:
    """Once the tokens are in the cache: their shift too, and in the model for forwards that go on from here without `feed`."""
    cache.shift, part.rope_deltas = shift, shift.by[:, None]


def refuse_types(model: torch.nn.Module, given: Mapping[str, Any], seen: int, tokens: int) -> None:
    """Raise ValueError for token types of the new tokens alone where the model looks up those of all, to have a picture's tokens attend to each other (Gemma 3)."""
    for name in ("token_type_ids", "mm_token_type_ids"):
        types = given.get(name)
        if seen and types is not None and types.shape[1] != seen + tokens and written_with(type(model), "block_sequence_ids"):
            raise ValueError(f"{name} {tuple(types.shape)} must be of all {seen + tokens} tokens, the {seen} in the cache and {tokens} new ones, for a {model.config.model_type}")


def _refuse(part: torch.nn.Module, cache: Any, given: Mapping[str, Any], unknown: bool) -> None:
    """Raise ValueError for pictures that cannot be placed."""
    kind = part.config.model_type
    if "mm_token_type_ids" not in inspect.signature(part.get_rope_index).parameters:
        raise ValueError(f"feed cannot place what a {kind} sees or hears: give it to the model in one forward with its text, and feed what follows")
    if given.get("mm_token_type_ids") is None or not any(given.get(name) is not None for name in GRIDS):
        raise ValueError(f"pictures for a {kind} come with mm_token_type_ids and image_grid_thw or video_grid_thw, as its processor returns them; got {', '.join(sorted(given))}")
    if any(getattr(layer, "rope", None) is not None for layer in cache.layers):
        raise ValueError(f"a sink cache turns keys by the number of tokens evicted, and a picture of a {kind} takes fewer places than it has tokens: use another cache")
    if unknown:
        raise ValueError(f"this cache was filled without kvcache.feed, and only that knows where pictures of a later turn stand for a {kind}: fill it with feed from the beginning")
