"""A recurrent layer's cache: the last inputs of its convolution and the state of its scan, of a size that never grows.

Which models carry that state over several tokens at once is known here by name. The others (Mamba, FalconMamba and Jamba,
which start the scan of a multi-token forward from zero, and every model not yet checked) are given their tokens one by one
by `feed`, and a forward of several on a filled state is refused.
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin, get_layer_types_and_kwargs

from .architecture import cache_argument, counts_from_zero, decoder_config, tokens_at_once, why_not_prompted
from .layer import B, CropError, Layer, Stored, target_length
from .padding import as_long_as_keys
from .pictures import counts_pictures, keep, place, refuse_types

# Model types whose several tokens on a filled state equal one forward over everything: measured, see tests/test_every_architecture.py.
CARRIES = frozenset(
    {
        "bailing_hybrid", "bamba", "falcon_h1", "granitemoehybrid", "inkling2_loop_text", "inkling2_text", "inkling_text", "kimi_linear", "lara_mini",
        "lfm2", "lfm2_moe", "lfm3", "mamba2", "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "zamba2", "zaya",
    }
)  # fmt: skip
UNCOUNTED = frozenset({"bailing_hybrid", "kimi_linear"})  # whose recurrent layers take single tokens without a word to the cache
NOWHERE_TO_GO_BACK = 1 << 62  # the crop floor of a recurrent state: above every length
GONE = "a recurrent state cannot go back to an earlier token; reset() and feed the tokens again, or keep a copy"


class State:
    """One tensor [B, ...] of fixed shape, rewritten in place at one address. Same verbs as a Buffer.

    `dtype` None follows what is written. `filled` is False for storage that is only allocated.
    """

    def __init__(self, dtype: torch.dtype | None = None):
        self.data: torch.Tensor | None = None
        self.filled, self.dtype = False, dtype

    def view(self) -> torch.Tensor | None:
        """What is held, sharing storage: no rows before the first write; None without storage."""
        return self.data if self.filled or self.data is None else self.data[:0]

    def allocate(self, shape: tuple[int, ...], like: torch.Tensor) -> None:
        """Zeros of this shape, on the device and, unless it was chosen, of the dtype of `like`."""
        with torch.inference_mode(False):
            self.data = torch.zeros(shape, dtype=self.dtype or like.dtype, device=like.device)
        self.filled = False
        if not torch.compiler.is_compiling():
            torch._dynamo.mark_static_address(self.data)

    def write(self, new: torch.Tensor) -> None:
        """Hold `new` [B, ...]. Raises ValueError when it has another shape than what is held."""
        if torch.is_grad_enabled() and new.requires_grad:
            self.data, self.filled = new, True  # in place, autograd would lose what earlier tokens computed with
            return
        if self.data is None or not self.filled and (self.data.shape != new.shape or self.data.device != new.device):
            self.allocate(tuple(new.shape), new)
        self.refuse(new.shape)
        self.data.copy_(new)
        self.filled = True

    def refuse(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError for states of another shape than those held."""
        if self.filled and self.data.shape != shape:
            raise ValueError(f"this cache holds states {tuple(self.data.shape)} and was given {tuple(shape)}; reset() it, or make a new cache")

    def forget(self, rows: torch.Tensor) -> None:
        """Let the batch rows where `rows` [B] is True be as before their first token."""
        if self.filled:
            self.write(self.data.masked_fill(rows.to(self.data.device).view(-1, *[1] * (self.data.dim() - 1)), 0))

    def replace(self, rows: torch.Tensor) -> None:
        """Hold `rows`, of whatever shape."""
        self.filled = False
        self.write(rows)

    def clear(self) -> None:
        """Forget what is held; the storage stays where it is, for compiled graphs."""
        if self.data is not None:
            self.data = None if self.data.requires_grad else self.data.zero_()
        self.filled = False

    def select(self, index: torch.Tensor) -> None:
        """Keep the batch rows `index` (LongTensor or BoolTensor), in that order, repeats allowed."""
        if self.filled:
            self._set_rows(self.data[index.to(self.data.device)])

    def repeat(self, repeats: int) -> None:
        """Repeat each batch row: a, b -> a, a, b, b."""
        if self.filled:
            self._set_rows(self.data.repeat_interleave(repeats, dim=B))

    def _set_rows(self, rows: torch.Tensor) -> None:
        if rows.shape != self.data.shape:
            self.allocate(tuple(rows.shape), rows)
        self.write(rows)

    def to(self, device: torch.device | str) -> None:
        if self.data is not None:
            self.data = self.data.to(device)

    def fork(self) -> "State":
        """A copy: models write states in place, so nothing can be shared."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo) -> "State":
        other = State(self.dtype)
        if self.filled:
            other.write(self.data.detach())
        return other

    @property
    def nbytes(self) -> int:
        """Bytes of what is held."""
        return self._allocated if self.filled else 0

    @property
    def reserved_nbytes(self) -> int:
        """Bytes allocated and not held."""
        return 0 if self.filled else self._allocated

    @property
    def _allocated(self) -> int:
        return 0 if self.data is None else self.data.numel() * self.data.element_size()


class States(Stored, LinearAttentionCacheLayerMixin):
    """What a layer with a convolution and a scan stores, alone or beside an attention layer's keys and values.

    Stores, for each of `number_of_states`, the convolution's last inputs [B, channels, kernel] and the scan's state
    [B, ...], of the dtype in which the model computes them (float32 for the scans there are).
    """

    # Models then announce every forward through `update_conv_state`; without it they write single tokens by themselves.
    record_past = True
    is_compileable = True  # else a static layer beside it would lose its mask from transformers 5.24 on
    is_croppable = False
    taken = 0  # tokens whose states are in: beside attention, which counts its own in `seen`

    def add_states(self, number_of_states: int, carries: bool, dtype: torch.dtype | None = None) -> None:
        """Make room. `carries`: does the model carry the state over several tokens at once?"""
        self.number_of_states, self.carries = number_of_states, carries
        self.stores = dict(type(self).stores)
        for name in [f"{kind}_{index}" for index in range(number_of_states) for kind in ("conv", "recurrent")]:
            self.stores[name] = "state"
            setattr(self, name, State(dtype))

    def update_conv_state(self, conv_states: torch.Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs) -> torch.Tensor:
        """Take the convolution's new inputs [B, channels, n]; return them behind those held, at least a kernel's width.

        Raises ValueError, before anything changes, for several tokens on a filled state that the model would drop.
        """
        held, new = getattr(self, f"conv_{state_idx}"), conv_states.shape[-1]
        self.refuse_jump(new, held.filled)
        if held.filled:
            width = held.data.shape[-1]
            held.refuse((*conv_states.shape[:-1], width))
            full = torch.cat([held.data.to(conv_states.dtype), conv_states], dim=-1)
        else:
            width = conv_kernel_size or (held.data.shape[-1] if held.data is not None else new)
            full = torch.nn.functional.pad(conv_states, (max(0, width - new), 0))
        held.write(full[..., -width:])
        self._filled_by(conv_states, new if state_idx == 0 else 0)
        return full

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs) -> torch.Tensor:
        """Hold the scan's new state [B, ...]; return it as held."""
        held = getattr(self, f"recurrent_{state_idx}")
        held.write(recurrent_states)
        return held.data

    def refuse_jump(self, tokens: int, filled: bool) -> None:
        """Raise ValueError if this many tokens at once, on a state that is `filled`, would be computed as if nothing had come before."""
        if tokens > 1 and not self.carries and filled:
            raise ValueError(
                f"this model is not known to carry its state over several tokens, so {tokens} tokens at once on a filled state might "
                "silently lose all that came before; kvcache.feed(model, ids, cache) gives them one by one"
            )

    def _filled_by(self, states: torch.Tensor, tokens: int) -> None:
        """Called after `tokens` more."""
        self.taken += tokens

    def restore(self, rows: dict[str, torch.Tensor], header: dict) -> None:
        super().restore(rows, header)
        self.taken = self.seen

    def reset(self) -> None:
        super().reset()
        self.taken = 0
        for name, kind in self.stores.items():
            if kind == "state":
                getattr(self, name).clear()

    def rows(self) -> dict[str, torch.Tensor]:
        return {name: rows for name, rows in super().rows().items() if self.stores[name] != "state" or rows.shape[B]}

    def crop(self, tokens: int) -> None:
        """0 removes nothing; to go back raises CropError: the state of an earlier token is gone."""
        if self.crop_floor and target_length(self.seen, tokens) != self.seen:
            raise CropError(GONE)

    def activate_past_recording(self) -> None:
        """Nothing to do: a recurrent state cannot go back, and `crop` says so."""

    def predict(self, tokens: int, shape) -> dict[str, int]:
        """Bytes by kind after one prefill of `tokens`: those of the attention beside it, if any, and the state's."""
        beside = super().predict(tokens, shape) if isinstance(self, Layer) else {}
        if not shape.state:
            raise ValueError(f"the state bytes of a {type(self).__name__} are not predicted for this model, only measured")
        dtype = self.conv_0.dtype
        conv, scan = (dtype.itemsize, dtype.itemsize) if dtype else (shape.itemsize, 4)
        return {**beside, "state": shape.batch * (prod(shape.state.conv) * conv + (prod(shape.state.recurrent) * scan if shape.state.recurrent else 0))}

    def why_not_exported(self) -> str | None:
        if not any(self.has_previous_state.values()):
            return "it holds no state yet, and every call of the program would begin anew; feed it a token first"
        return super().why_not_exported() if isinstance(self, Layer) else None

    @property
    def crop_floor(self) -> int:
        return NOWHERE_TO_GO_BACK if any(self.has_previous_state.values()) else 0

    @property
    def has_previous_state(self) -> dict[int, bool]:
        return {index: getattr(self, f"conv_{index}").filled for index in range(self.number_of_states)}

    @property
    def conv_states(self) -> "HeldStates":
        """The last inputs of each convolution [B, channels, kernel]."""
        return HeldStates(self, "conv")

    @property
    def recurrent_states(self) -> "HeldStates":
        """The state of each scan [B, ...]."""
        return HeldStates(self, "recurrent")

    @property
    def is_conv_states_initialized(self) -> dict[int, bool]:
        return {index: state is not None for index, state in self.conv_states.items()}

    @property
    def is_recurrent_states_initialized(self) -> dict[int, bool]:
        return {index: state is not None for index, state in self.recurrent_states.items()}


class HeldStates(dict):
    """The states of one kind that a layer holds, by number; one that is assigned is held from then on."""

    def __init__(self, layer: States, kind: str):
        super().__init__({index: getattr(layer, f"{kind}_{index}").data for index in range(layer.number_of_states)})
        self.layer, self.kind = layer, kind

    def __setitem__(self, index: int, state: torch.Tensor) -> None:
        held = getattr(self.layer, f"{self.kind}_{index}")
        held.write(state.clone())  # with a gradient it would be held as it is, and another cache's with it
        self.layer._filled_by(state, 0)
        super().__setitem__(index, held.data)

    def __reduce__(self) -> tuple:
        return dict, (dict(self),)


class StateLayer(States):
    """A layer with a recurrent state and no keys: Mamba's, a gated delta rule's, or a convolution alone."""

    supports_early_init = False

    def __init__(self, number_of_states: int = 1, carries: bool = False, dtype: torch.dtype | None = None):
        self.device = self.dtype = None
        self.add_states(number_of_states, carries, dtype)

    def lazy_initialization(self, conv_states: torch.Tensor | None = None, recurrent_states: torch.Tensor | None = None, state_idx: int = 0, **kwargs) -> None:
        """Allocate storage like these tensors, without holding anything."""
        for name, like in (("conv", conv_states), ("recurrent", recurrent_states)):
            if like is not None:
                getattr(self, f"{name}_{state_idx}").allocate(tuple(like.shape), like)

    def update(self, *args, **kwargs):
        """Raises TypeError: there are no keys and values here."""
        raise TypeError("this layer has a recurrent state and takes no keys and values; for a model with attention use DynamicCache(config)")

    def push_conv_inputs(self, inputs: torch.Tensor) -> torch.Tensor:
        """Hold the convolution's newest inputs, from [B, channels] or [B, channels, n]; return all that are held."""
        inputs = inputs.unsqueeze(-1) if inputs.dim() == 2 else inputs
        held = self.conv_0
        width = inputs.shape[-1] if held.data is None else held.data.shape[-1]
        past = inputs[..., :0] if held.data is None else held.data
        held.write(torch.cat([past, inputs.to(past)], dim=-1)[..., -width:])
        self._filled_by(inputs, 0)
        return held.data

    def _filled_by(self, states: torch.Tensor, tokens: int) -> None:
        super()._filled_by(states, tokens)
        self.dtype, self.device, self.batch_size, self.is_initialized = states.dtype, states.device, states.shape[B], True
        self.seen += tokens


@functools.cache
def _with_states(attention: type[Layer]) -> type[Layer]:
    beside = {"supports_early_init": False, "is_compileable": attention.is_compileable, "__reduce__": lambda layer: (_unpickled, (attention, layer.__getstate__()))}
    return type(f"{attention.__name__}WithStates", (States, attention), beside)


def _unpickled(attention: type[Layer], state: dict[str, Any]) -> Layer:
    """A layer with states as it was pickled: no module has its class by name."""
    layer = object.__new__(_with_states(attention))
    layer.__setstate__(state)
    return layer


def with_states(layer: Layer, number_of_states: int, carries: bool) -> Layer:
    """An empty attention layer that also holds recurrent states, for models that run both side by side in one layer."""
    layer.__class__ = _with_states(type(layer))
    layer.add_states(number_of_states, carries)
    return layer


def state_layers(config: PreTrainedConfig, table: Mapping[str, Callable]) -> dict[str, Callable]:
    """Our layers for the recurrent layer types, the hybrid ones made of what `table` has for their attention."""
    carries = config.model_type in CARRIES

    def beside(attention: Callable) -> Callable:
        return lambda number_of_states=1, **kwargs: with_states(attention(**kwargs), number_of_states, carries)

    def alone(number_of_states: int = 1, **kwargs) -> StateLayer:
        layer = StateLayer(number_of_states, carries)
        layer.skippable = config.model_type in UNCOUNTED
        return layer

    hybrids = {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
    ours = {name: beside(table[attention]) for name, attention in hybrids.items() if attention in table}
    return {"linear_attention": alone, "conv": alone, **ours}


def has_states_alone(config: PreTrainedConfig) -> bool:
    """Is this a model without attention?"""
    return set(get_layer_types_and_kwargs(config)[0]) <= {"linear_attention", "conv", "dummy"}


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


def feed(model, input_ids: torch.Tensor, cache, attention_mask: torch.Tensor | None = None, **kwargs) -> torch.Tensor:
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
    side = ""
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
    logits = []
    with _all_or_nothing(cache):
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


def _check_fed(model, input_ids: Any, cache: Any) -> None:
    """Raise ValueError for what is not ids [B, T], for what is not a cache, and for a model that takes none."""
    if reason := why_not_prompted(model):
        raise ValueError(reason)
    if not isinstance(input_ids, torch.Tensor) or input_ids.dim() != 2 or not input_ids.shape[1]:
        got = tuple(input_ids.shape) if isinstance(input_ids, torch.Tensor) else type(input_ids).__name__
        raise ValueError(f"input_ids must be a LongTensor [rows, tokens], with at least one token to feed, got {got}")
    if not isinstance(cache, transformers.Cache):
        raise ValueError(f"feed goes on from a cache, got {type(cache).__name__}: kvcache.create('dynamic', model) makes a new one")


@contextlib.contextmanager
def _all_or_nothing(cache) -> Iterator[None]:
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


def _counts(cache) -> list[int]:
    """Tokens seen by each layer that counts them, ours or native."""
    return [int(layer.get_seq_length()) if isinstance(layer, CacheLayerMixin) else layer.seen for layer in cache.layers if isinstance(layer, (Stored, CacheLayerMixin))]


def _refuse_other_source(cache, encoder_outputs) -> None:
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


def _seen(cache) -> int | None:
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


@dataclass(frozen=True)
class StateShape:
    """What one layer holds for one batch row: the convolution's `conv` (channels, kernel), the scan's `recurrent`."""

    conv: tuple[int, ...]
    recurrent: tuple[int, ...] = ()


def state_shape(config: PreTrainedConfig) -> StateShape | None:
    """The states of this model's recurrent layers, from the config; None for a model whose form is not known here."""
    form = _FORMS.get(config.model_type)
    return None if form is None else form(config)


def _selective(inner: str, state: str, kernel: str) -> Callable:
    """Mamba: one state vector per channel. `inner` names the channels, or "expand" for mamba_expand * hidden_size."""

    def form(c) -> StateShape:
        channels = c.mamba_expand * c.hidden_size if inner == "expand" else getattr(c, inner)
        return StateShape((channels, getattr(c, kernel)), (channels, getattr(c, state)))

    return form


def _grouped(heads: str, dim: str, groups: str, state: str, kernel: str) -> Callable:
    """Mamba-2: a state matrix per head; the convolution also runs over the groups' inputs and outputs."""

    def form(c) -> StateShape:
        h, d, n = getattr(c, heads), getattr(c, dim), getattr(c, state)
        return StateShape((h * d + 2 * getattr(c, groups) * n, getattr(c, kernel)), (h, d, n))

    return form


def _delta_rule(c) -> StateShape:
    keys, values = c.linear_num_key_heads * c.linear_key_head_dim, c.linear_num_value_heads * c.linear_value_head_dim
    return StateShape((2 * keys + values, c.linear_conv_kernel_dim), (c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim))


def _short(c) -> StateShape:
    return StateShape((c.hidden_size, c.conv_L_cache))


def _kimi(c) -> StateShape:
    return StateShape((3 * c.linear_num_heads * c.linear_head_dim, c.linear_conv_kernel_dim), (c.linear_num_heads, c.linear_head_dim, c.linear_head_dim))


def _zamba(c) -> StateShape:
    channels = c.mamba_expand * c.hidden_size
    return StateShape((channels, c.mamba_d_conv), (c.n_mamba_heads, channels // c.n_mamba_heads, c.mamba_d_state))


_mamba = _selective("intermediate_size", "state_size", "conv_kernel")
_bamba = _grouped("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
_FORMS: dict[str, Callable[[PreTrainedConfig], StateShape]] = {
    "mamba": _mamba,
    "falcon_mamba": _mamba,
    "mamba2": _grouped("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel"),
    "jamba": _selective("expand", "mamba_d_state", "mamba_d_conv"),
    "zamba": _zamba,
    "bamba": _bamba,
    "falcon_h1": _bamba,
    "granitemoehybrid": _bamba,
    "zamba2": _grouped("n_mamba_heads", "mamba_headdim", "mamba_ngroups", "mamba_d_state", "mamba_d_conv"),
    "nemotron_h": _grouped("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"),
    "lfm2": _short,
    "lfm2_moe": _short,
    "qwen3_next": _delta_rule,
    "qwen3_5_text": _delta_rule,
    "qwen3_5_moe_text": _delta_rule,
    "olmo_hybrid": _delta_rule,
    "kimi_linear": _kimi,
}
