"""Forwards that a cache cannot take: masks that it would read wrongly, and tokens behind a forward that ended half-way."""

from typing import Any

import torch

from .layer import Layer, Stored
from .recurrent import StateLayer, States


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


def refuse_jump(layers: list, query_length: int) -> None:
    """Raise ValueError before a forward of several tokens that would forget what recurrent layers hold, or attend as a prompt does.

    Some models ask within their first forward too: then the last layer has seen nothing yet, and nothing is refused.
    """
    if query_length > 1 and layers and getattr(layers[-1], "one_by_one", False) and layers[-1].get_seq_length():
        raise ValueError(
            f"this model reads several tokens at once as it reads a prompt, so {query_length} on a filled cache would be read otherwise than "
            "what follows one; kvcache.feed(model, ids, cache) gives them one by one"
        )
    states = [layer for layer in layers if isinstance(layer, States)]
    if all(layer.seen if isinstance(layer, Layer) else any(layer.has_previous_state.values()) for layer in states):
        for layer in states:
            layer.refuse_jump(query_length, filled=True)


def refuse_halved(layers: list, query_length: int = 0, layer_idx: int = 0) -> None:
    """Raise ValueError before a forward on layers that the one before left with different numbers of tokens, as an error or an interruption does.

    Layers take a forward's tokens in turn, so the first and the last tell.
    Inkling's, which keep states beside keys, ask within a forward too: then those before this one are `query_length` tokens ahead of it and of the last,
    and its own states, several, have taken those already (single tokens they take without a word to the cache).
    """
    counted = [layer for layer in layers if isinstance(layer, Stored) and not layer.skippable]
    ahead = next((layer for layer in counted if layer.number_of_states == 1 and layer.taken > layer.seen), None)
    if ahead is not None:
        raise ValueError(f"a forward ended half-way on this cache: a recurrent state has taken {ahead.taken} tokens and the attention beside it {ahead.seen}; reset() it and feed all tokens again")
    if [layer for layer in counted if layer.assigned]:
        _refuse_uneven([layer for layer in counted if isinstance(layer, Layer)])
    if not counted or counted[0].seen <= counted[-1].seen:
        return
    first, last = counted[0].seen, counted[-1].seen
    asking = layers[layer_idx] if layer_idx < len(layers) else None
    if layer_idx and isinstance(asking, States) and asking.seen == last == first - query_length:
        return
    repair = "reset() it and feed all tokens again"
    if 0 < last < first and all(layer.crop_floor <= last for layer in counted):
        repair = f"crop({last}) takes back what it left"
    raise ValueError(f"a forward ended half-way on this cache: the first layer has seen {first} tokens and the last {last}; {repair}")


def _refuse_uneven(layers: list[Layer]) -> None:
    """Raise ValueError where keys and values were assigned to layers so that they differ in the tokens they have seen."""
    for layer in layers:
        layer.check_sides()
    lengths = sorted({layer.seen for layer in layers if layer.is_initialized})
    if len(lengths) > 1:
        raise ValueError(f"keys and values were assigned to some layers of this cache, so that layers have seen {' and '.join(map(str, lengths))} tokens: assign those of every layer")
    for layer in layers:
        layer.assigned = False


def went_ahead(layers: list, layer_idx: int) -> bool:
    """Have recurrent layers taken tokens that the attention layer `layer_idx` has not? Layers with both at once keep one count: those before it and itself may have."""
    seen = getattr(layers[layer_idx], "seen", None) if layer_idx < len(layers) else None
    ahead = seen is not None and any(isinstance(layer, StateLayer) and layer.seen > seen for layer in layers)
    return ahead or any(isinstance(layer, States) and not isinstance(layer, StateLayer) and layer.crop_floor for layer in layers[: layer_idx + 1])


def refuse_overflow(layers: list, tokens: int) -> None:
    """Raise ValueError before `tokens` more that static layers have no room for, where recurrent layers would have taken them first."""
    if torch.compiler.is_compiling() or not any(isinstance(layer, States) for layer in layers):
        return
    limited = [layer for layer in layers if getattr(layer, "limit", None) is not None]
    if limited:
        limited[-1].check_room(tokens)  # the last: some models ask when the first have their tokens
