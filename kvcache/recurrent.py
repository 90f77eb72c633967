"""A recurrent layer's cache: the last inputs of its convolution and the state of its scan, of a size that never grows.

Which models carry that state over several tokens at once is known here by name. The others (Mamba, FalconMamba and Jamba,
which start the scan of a multi-token forward from zero, and every model not yet checked) are given their tokens one by one
by `feed`, and a forward of several on a filled state is refused.
"""

import copy
import functools
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NoReturn

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import LinearAttentionCacheLayerMixin, get_layer_types_and_kwargs

from .layer import B, CropError, Layer, Stored, target_length

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

    def __deepcopy__(self, memo: dict) -> "State":
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

    def update_conv_state(self, conv_states: torch.Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs: Any) -> torch.Tensor:
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

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs: Any) -> torch.Tensor:
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

    def predict(self, tokens: int, shape: Any) -> dict[str, int]:
        """Bytes by kind after one prefill of `tokens`: those of the attention beside it, if any, and the state's."""
        beside = super().predict(tokens, shape) if isinstance(self, Layer) else {}
        if not shape.state:
            raise ValueError(f"the state bytes of a {type(self).__name__} are not predicted for this model, only measured")
        dtype = self.conv_0.dtype
        conv, scan = (dtype.itemsize, dtype.itemsize) if dtype else (shape.itemsize, 4)
        states = shape.batch * (prod(shape.state.conv) * conv + (prod(shape.state.recurrent) * scan if shape.state.recurrent else 0))
        return {**beside, "state": beside.get("state", 0) + states}

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

    def lazy_initialization(self, conv_states: torch.Tensor | None = None, recurrent_states: torch.Tensor | None = None, state_idx: int = 0, **kwargs: Any) -> None:
        """Allocate storage like these tensors, without holding anything."""
        for name, like in (("conv", conv_states), ("recurrent", recurrent_states)):
            if like is not None:
                getattr(self, f"{name}_{state_idx}").allocate(tuple(like.shape), like)

    def update(self, *args: Any, **kwargs: Any) -> NoReturn:
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

    def alone(number_of_states: int = 1, **kwargs: Any) -> StateLayer:
        layer = StateLayer(number_of_states, carries)
        layer.skippable = config.model_type in UNCOUNTED
        return layer

    hybrids = {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
    ours = {name: beside(table[attention]) for name, attention in hybrids.items() if attention in table}
    return {"linear_attention": alone, "conv": alone, **ours}


def has_states_alone(config: PreTrainedConfig) -> bool:
    """Is this a model without attention?"""
    return set(get_layer_types_and_kwargs(config)[0]) <= {"linear_attention", "conv", "dummy"}
