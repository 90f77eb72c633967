"""Masks that a cache cannot take: of left-padded rows whose padding it would take for tokens, and of another length than its keys on BLOOM."""

from typing import Any

import torch


def refuse_padding(cache: Any, mask: torch.Tensor | None) -> None:
    """Raise ValueError, with the cache's own reason, if any row of a mask [B, T] leaves a token out."""
    if mask is None or bool(mask.all()):
        return
    left = not bool((mask[:, 1:] < mask[:, :-1]).any())
    rows = "left-padded rows" if left else "rows with padding behind tokens"
    raise ValueError(f"{type(cache).__name__} cannot take {rows}: {cache.why_no_padding(left)}; give it one row at a time, or rows of one length")


def refuse_other_length(name: str, mask: torch.Tensor | None, length: int) -> None:
    """Raise ValueError for a mask [B, T] on BLOOM, whose position bias is as long as its mask, where the keys of a cache called `name` are of another `length`."""
    if mask is not None and mask.shape[1] != length:
        fill = f", or fill it with zeros to [{len(mask)}, {length}]" if mask.shape[1] < length else ""
        raise ValueError(f"BLOOM's position bias is as long as attention_mask, {list(mask.shape)}, and the keys of this {name} are {length}: leave the mask out where nothing is padded{fill}")


def as_long_as_keys(mask: torch.Tensor, layers: list, tokens: int) -> torch.Tensor:
    """A mask [B, T] of all tokens up to the next `tokens`: on BLOOM filled with zeros to the length of the keys that `layers` will give."""
    if not layers or not getattr(layers[-1], "biased_by_mask", False):
        return mask
    return torch.nn.functional.pad(mask, (0, max(0, layers[0].get_mask_sizes(tokens)[0] - mask.shape[1])))
