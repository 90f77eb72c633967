"""Masks that a cache cannot take: of left-padded rows whose padding it would take for tokens, and of another length than its keys on BLOOM."""

import torch


def refuse_padding(name: str, mask: torch.Tensor | None) -> None:
    """Raise ValueError, for a cache called `name`, if any row of a mask [B, T] leaves a token out."""
    if mask is not None and not bool(mask.all()):
        raise ValueError(
            f"{name} cannot take left-padded rows: their padding would be kept as their first tokens; give it one "
            f"row at a time, or rows of one length"
        )


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
