"""Left-padded rows, for caches that would take the padding for tokens: how such a cache sees the mask, and what it says.

transformers gives a cache keys, values and lengths, and never the attention mask. It does ask the cache for the sizes of
a forward's mask from a function that holds the 2-D mask as `attention_mask`, and there it is looked up. Before the last
forward nothing is cleaner: a hook would have to be put on the model, which most caches never meet, and keys do not tell.
"""

import sys
from typing import Any

import torch

ASKING_MODULE = "transformers.masking_utils"
STEPS = 6  # from a cache's `get_mask_sizes` to the function that asks: containers and wrappers lie between


def mask_of_forward() -> torch.Tensor | None:
    """The attention mask [B, seen + n] of the forward that asks for mask sizes right now; None where there is none.

    None too where another module asks: the few models that make masks of their own.
    """
    frame = sys._getframe(1)
    for _ in range(STEPS):
        if frame is None:
            return None
        if frame.f_globals.get("__name__") == ASKING_MODULE:
            mask = frame.f_locals.get("attention_mask")
            return mask if isinstance(mask, torch.Tensor) and mask.dim() == 2 else None
        frame = frame.f_back
    return None


def refuse_padding(cache: Any, mask: torch.Tensor | None) -> None:
    """Raise ValueError, with the cache's own reason, if any row of a mask [B, T] leaves a token out."""
    if mask is None or bool(mask.all()):
        return
    left = not bool((mask[:, 1:] < mask[:, :-1]).any())
    rows = "left-padded rows" if left else "rows with padding behind tokens"
    raise ValueError(f"{type(cache).__name__} cannot take {rows}: {cache.why_no_padding(left)}; give it one row at a time, or rows of one length")
