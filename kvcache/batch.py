"""A batch of caches: one forward over rows that each keep a cache of their own, of any kinds and lengths.

Rows take a token each, [B, 1], or pieces of different lengths, which lie one behind the other in one row of ids, [1, N]: a chunk of a prompt beside others' single tokens. A batch hands each row its part of the new keys, values and states, and attention is each row's own, through the seam: no padding, no mask, and no bytes
are copied when rows join or leave. This is continuous batching for every cache there is. Sources of the ideas: Yu et al. 2022, Orca, OSDI; Agrawal et al. 2024, Sarathi-Serve, OSDI.
"""

import contextlib
import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import transformers
from transformers.cache_utils import CacheLayerMixin, DummyLayer, get_layer_types_and_kwargs

from . import kernels
from .architecture import cache_argument, counts_from_zero, decoder_config, why_not_cached
from .attention import EACH_HEAD_AGAIN, METADATA, SDPA, SIZES, CachedStates, attend
from .cache import Cache, row_count
from .catalog import create, first_fitting
from .feed import all_or_nothing, feed
from .kernels.packed import Packed
from .layer import Stored
from .mrope import counts_pictures
from .recurrent import State, States, has_states_alone
from .rope import FIXED_TYPES
from .upstream_quirks import asked_for_mask
from .weights import device_of

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}  # of logits in a batch against those alone, where a model is tried; wrong positions are far above
TOLERANCE_ELSEWHERE = 0.1  # dtypes of half precision round other shapes of products otherwise
TRIED = ((5, 3, 7, 2, 9, 4), (8, 6))  # token ids of two rows of different lengths
SDPA_ONLY = "a batch of caches attends row by row in scaled_dot_product_attention alone: load the model with attn_implementation='sdpa', or model.set_attn_implementation('sdpa'), and ask for no attention weights"


class Batch(transformers.Cache):
    """A cache for one forward over `caches` of one row each, of one new token a row: `kvcache.decode(model, batch, token_ids)`, which takes longer pieces, too.

    Or `model(ids, cache=batch, position_ids=batch.positions())`, ids [B, 1]: a model that is not told the positions of rows of different lengths is refused. `model` need not be given if
    `kvcache.create` was given it. A row is filled alone, by `kvcache.feed(model, prompt, row)`, and may go on alone, be cropped, forked or saved between two forwards.
    Raises ValueError, with the reason, for a model that is wrong in a batch (tried once, on a few tokens), for an encoder-decoder pair and for layers that are not ours.
    """

    is_compileable = False
    layer_class_to_replicate = None
    offloading = False
    placed = False  # was the forward at hand told where each row stands?
    pieces: Sequence[int] | None = None  # new tokens of each row, in a forward in which they lie one behind the other
    _masks: dict[tuple, torch.Tensor] = {}  # of that forward

    def __init__(self, caches: Sequence[Cache] = (), model: torch.nn.Module | None = None):
        caches = list(caches)
        made = next((cache.made_for() for cache in caches if getattr(cache, "made_for", None) and cache.made_for()), None)
        if (model := model if model is not None else made) is None:
            raise ValueError("a batch of caches is tried on its model first: give model=, or make the caches with kvcache.create(name, model)")
        self.model, self.rows = model, []
        if reason := why_not_batched(model):
            raise ValueError(f"{model.config.model_type} cannot take a batch of caches: {reason}")
        self._begin_with(caches)

    def _begin_with(self, caches: Sequence[Cache]) -> None:
        self.first_attended, self.attends = first_attended(decoder_config(self.model)), not has_states_alone(decoder_config(self.model))
        for cache in caches:
            self.join(cache)

    @property
    def layers(self) -> list:
        """Those of the first row, which say what is of which type; what rows hold is asked of `rows`."""
        return self.rows[0].layers if self.rows else []

    @property
    def batch_size(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def join(self, cache: Cache) -> int:
        """Take `cache` as one more row, the last; returns its number. Nothing is copied. Raises ValueError for one that cannot be a row, with the reason."""
        if reason := self._why_no_row(cache):
            raise ValueError(f"a {type(cache).__name__} cannot be a row of this batch: {reason}")
        self.rows.append(cache)
        return len(self.rows) - 1

    def leave(self, row: int) -> Cache:
        """Take row number `row` out, and give back its cache, as it is; later rows move up. Raises IndexError for one that is not there."""
        if not isinstance(row, int) or not 0 <= row < len(self.rows):
            raise IndexError(f"this batch has {len(self.rows)} rows, counted from 0, asked for row {row!r}")
        cache = self.rows.pop(row)
        for layer in cache.layers:
            if isinstance(layer, States):
                _apart(layer)
        return cache

    def _why_no_row(self, cache: Any) -> str | None:
        if isinstance(cache, transformers.EncoderDecoderCache):
            return "a decoder's rows beside texts of an encoder of different lengths are not batched; run it alone"
        if not isinstance(cache, Cache):
            return "it is none of kvcache's; kvcache.create('dynamic', model) makes one"
        if any(cache is row for row in self.rows):
            return "it is one already; fork() it for a second"
        if not cache.layers or cache.layer_class_to_replicate is not None:
            return "it was made without a config, and does not know the model's layers; make it with kvcache.create(name, model), or with config="
        if (made := cache.made_for and cache.made_for()) and made is not self.model:
            return f"it was made for another model, a {made.config.model_type}"
        if odd := next((layer for layer in cache.layers if not isinstance(layer, (Stored, DummyLayer))), None):
            return f"it has a layer of transformers' own, {type(odd).__name__}, which knows nothing of rows of different lengths"
        if len(cache.layers) != len(self.first_attended):
            return f"it has {len(cache.layers)} layers and the model {len(self.first_attended)}"
        held = max((row_count(layer) or 0 for layer in cache.layers), default=0)
        return f"it holds {held} rows; batch_split({held}, 1) makes caches of one each" if held > 1 else None

    # ------------------------------------------------------------------------------------------------- what a forward asks

    def lengths(self) -> list[int]:
        """Tokens seen by each row."""
        return [max((int(layer.seen) for layer in row.layers if isinstance(layer, Stored)), default=0) for row in self.rows]

    def positions(self) -> torch.Tensor:
        """[B, 1] of where the next token of each row stands: `position_ids` of the forward."""
        return torch.tensor(self.lengths(), device=device_of(self.model))[:, None]

    def check(self) -> None:
        """Raise ValueError, naming the row, where one cannot take another token: a full one, or one that a forward left in parts. Nothing has changed then."""
        if not self.rows:
            raise ValueError("this batch has no rows: join() a cache first")
        if self.attends and implementation_of(self.model) != "sdpa":
            raise ValueError(SDPA_ONLY)
        for number, (row, new) in enumerate(zip(self.rows, self._new())):
            with _named(number):
                _check_row(row, new)

    def _new(self) -> Sequence[int]:
        """New tokens of each row in the forward at hand."""
        return self.pieces or [1] * len(self.rows)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Of a token each (1, 0), for which no model makes a mask; the mask of pieces is not heard: each row attends to its own tokens, and to no other's."""
        self._check_shape(1 if self.pieces else len(self.rows), query_length)
        self.check()
        return query_length, 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens seen, where all rows have seen as many. Raises ValueError where they have not."""
        if self.placed or asked_for_mask():
            return 0
        lengths = sorted(set(self.lengths()))
        if len(lengths) > 1:
            raise ValueError(f"rows of this batch have seen from {lengths[0]} to {lengths[-1]} tokens: give the forward position_ids=batch.positions(), [B, 1], or ask each row")
        return lengths[0] if lengths else 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        lengths = [row.get_max_length(layer_idx) for row in self.rows]
        return -1 if -1 in lengths else min(lengths, default=-1)

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return bool(self.rows) and all(row.has_previous_state(layer_idx, state_idx) for row in self.rows)

    @property
    def is_linear(self) -> list[bool]:
        return self.rows[0].is_linear if self.rows else []

    @property
    def is_croppable(self) -> bool:
        return False

    # ------------------------------------------------------------------------------------------------ what a forward brings

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> "tuple[BatchStates, BatchStates]":
        """Give each row its part of keys and values [B, H, 1, D], or [1, H, N, D] of pieces; returns what the rows attend to, for scaled_dot_product_attention alone."""
        self._check_shape(key_states.shape[0], key_states.shape[2])
        attended: list[Row] = []
        parts = [states.split(self.pieces, 2) if self.pieces else states.split(1) for states in (key_states, value_states)]
        try:
            for row, new, keys, values in zip(self.rows, self._new(), *parts):
                layer = row.layers[layer_idx]
                span = self._span(layer, layer_idx) if new == 1 else (0, 0, self._mask(layer, layer_idx, new))
                attended.append(Row(*row.update(keys, values, layer_idx), *span))
        except ValueError as error:
            raise ValueError(f"row {len(attended)}: {error}") from error
        return BatchStates.of(attended, "keys"), BatchStates.of(attended, "values")

    def _span(self, layer: CacheLayerMixin, layer_idx: int) -> tuple[int, int]:
        """First and last + 1 of the tokens that a row's layer will hand over for the next one, which the model's own mask would leave: all but empty room, and old ones of a window."""
        _, offset = layer.get_mask_sizes(1)
        seen = layer.seen
        return max(0, self.first_attended[layer_idx](seen) - int(offset)), seen + 1 - int(offset)

    def _mask(self, layer: CacheLayerMixin, layer_idx: int, new: int) -> torch.Tensor:
        """What each of a row's new tokens sees of what its layer will hand over, as the model's own mask: booleans [1, 1, new, T]."""
        length, offset = layer.get_mask_sizes(new)
        key = (layer.seen, new, length, int(offset), first := self.first_attended[layer_idx])
        if key not in self._masks:
            places, own = torch.arange(length, device=device_of(self.model)) + int(offset), torch.arange(layer.seen, layer.seen + new, device=device_of(self.model))[:, None]
            self._masks[key] = ((places <= own) & (places >= first(own)))[None, None]
        return self._masks[key]

    def update_conv_state(self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> torch.Tensor:
        """As transformers' own, each row's beside the other: inputs [B, channels, 1], behind those held."""
        self._check_shape(conv_states.shape[0], conv_states.shape[-1])
        if layer_idx == state_idx == 0:
            self.check()
        return self._each(lambda row, states: row.update_conv_state(states, layer_idx, state_idx, **kwargs), conv_states)

    def update_recurrent_state(self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> torch.Tensor:
        """As transformers' own, each row's beside the other: [B, ...]."""
        self._check_shape(recurrent_states.shape[0], 1)
        return self._each(lambda row, states: row.update_recurrent_state(states, layer_idx, state_idx, **kwargs), recurrent_states)

    def _each(self, update: Callable, states: torch.Tensor) -> torch.Tensor:
        given = []
        for number, row in enumerate(self.rows):
            with _named(number):
                given.append(update(row, states[number : number + 1]))
        return torch.cat(given)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return side_by_side([getattr(row.layers[layer_idx], f"conv_{state_idx}") for row in self.rows])

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return side_by_side([getattr(row.layers[layer_idx], f"recurrent_{state_idx}") for row in self.rows])

    def _check_shape(self, rows: int, tokens: int) -> None:
        if self.pieces:
            if (rows, tokens) != (1, sum(self.pieces)):
                raise ValueError(f"pieces of {sum(self.pieces)} tokens lie one behind the other, [1, {sum(self.pieces)}], got [{rows}, {tokens}]")
        elif rows != len(self.rows) or tokens != 1:
            raise ValueError(f"this batch takes one token for each of its {len(self.rows)} rows, [{len(self.rows)}, 1], got [{rows}, {tokens}]; kvcache.feed(model, prompt, row) fills a row")

    def _of_rows(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError("a batch has no storage of its own: call this on one of batch.rows, join() another, or leave(row)")

    crop = reset = reorder_cache = batch_select_indices = batch_repeat_interleave = activate_past_recording = early_initialization = _of_rows


@contextlib.contextmanager
def _named(number: int) -> Iterator[None]:
    """A row's refusal, with its number before it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"row {number}: {error}") from error


def _check_row(row: Cache, new: int) -> None:
    """Raise ValueError where a row cannot take so many new tokens."""
    first = next((index for index, layer in enumerate(row.layers) if isinstance(layer, CacheLayerMixin) and not isinstance(layer, DummyLayer)), None)
    if first is None:
        row.refuse_torn()
    else:
        row.get_mask_sizes(new, first)  # where a cache refuses what it cannot take
    for layer in row.layers:
        if hasattr(layer, "check_room"):
            layer.check_room(new)
        if isinstance(layer, States) and not any(layer.has_previous_state.values()) and not layer.seen:
            raise ValueError("it has seen no token, and its recurrent states cannot begin beside others': kvcache.feed(model, prompt, row) fills it")


def side_by_side(states: list[State]) -> torch.Tensor | None:
    """What rows hold, [B, ...], in one storage of which each row keeps its part from then on: models write there in place. None where a row holds nothing."""
    if not states or not all(state.filled for state in states):
        return None
    first = states[0].data
    size = first.numel() * first.element_size()
    if all(state.data.data_ptr() == first.data_ptr() + number * size for number, state in enumerate(states)) and _shares(states):
        return first.as_strided((len(states), *first.shape[1:]), first.stride())
    with torch.inference_mode(False):
        joined = torch.cat([state.data for state in states])
    for number, state in enumerate(states):
        state.data = joined[number : number + 1]
    return joined


def _shares(states: list[State]) -> bool:
    """Do they lie in one storage?"""
    return len({state.data.untyped_storage().data_ptr() for state in states}) == 1


def _apart(layer: States) -> None:
    """Let a layer's states have storage of their own."""
    for name in (name for name, kind in layer.stores.items() if kind == "state"):
        if (state := getattr(layer, name)).data is not None:
            state.data = state.data.clone()


def first_attended(config: Any) -> list[Callable]:
    """By layer, from the position of a token, or positions of several, that of the first one that the model's own mask lets it see."""
    rules = {"sliding_attention": lambda window: lambda at: at - window + 1, "hybrid_sliding": lambda window: lambda at: at - window + 1, "chunked_attention": lambda chunk: lambda at: at // chunk * chunk}
    types, kwargs = get_layer_types_and_kwargs(config)
    return [rules[name](given["sliding_window"]) if name in rules else lambda at: 0 for name, given in zip(types, kwargs)]


# ----------------------------------------------------------------------------------------------------------------- attention


class Row(NamedTuple):
    """What a row's layer handed over: keys and values [1, H, T, D], of which for one new token `start` to `stop` count, and for several what `mask` [1, 1, n, T] says of each."""

    keys: torch.Tensor
    values: torch.Tensor
    start: int
    stop: int
    mask: torch.Tensor | None = None

    @property
    def new(self) -> int:
        """New tokens."""
        return 1 if self.mask is None else self.mask.shape[2]

    def plain(self) -> "Row | None":
        """The same of the tensors that attention may read as they are; None where the layer has to be asked."""
        keys, values = self.keys, self.values
        if not isinstance(keys, CachedStates) and not isinstance(values, CachedStates):
            return self
        if not isinstance(keys, CachedStates) or not isinstance(values, CachedStates) or keys.layer.needs_query:
            return None
        return None if isinstance(keys.held, Packed) or isinstance(values.held, Packed) else self._replace(keys=keys.held, values=values.held)

    def attend(self, query: torch.Tensor, scale: float | None) -> torch.Tensor:
        """The row's own attention: query [1, H, G, D], of G query heads a key head; [1, H, G, value D]."""
        out = self._by_layer(query, scale) if isinstance(self.keys, CachedStates) else None
        if out is not None:
            return out
        keys, values = (states.plain() if isinstance(states, CachedStates) else states for states in (self.keys, self.values))
        return SDPA(query, keys[:, :, self.start : self.stop], values[:, :, self.start : self.stop], scale=scale)

    def attend_many(self, query: torch.Tensor, scale: float | None) -> torch.Tensor:
        """The attention of several new tokens, as in a forward of their own: query [1, Hq, n, D]; [1, Hq, n, value D]."""
        return SDPA(query, self.keys, self.values, attn_mask=self.mask, scale=scale, enable_gqa=True)

    def _by_layer(self, query: torch.Tensor, scale: float | None) -> torch.Tensor | None:
        held, layer, heads = self.keys.held, self.keys.layer, query.reshape(1, -1, 1, query.shape[3])
        if (self.start, self.stop) == (0, held.shape[2]):
            out = attend(heads, self.keys, self.values, scale=scale)
        elif isinstance(held, Packed) or layer.needs_query:
            places = torch.arange(held.shape[2], device=query.device)
            out = attend(heads, self.keys, self.values, ((places >= self.start) & (places < self.stop))[None, None, None], scale=scale)
        else:
            out = attend(heads, *(CachedStates.of(layer, states.held[:, :, self.start : self.stop], 1) for states in (self.keys, self.values)), scale=scale)
        return None if out is None else out.view(*query.shape[:3], -1)


class BatchStates(torch.Tensor):
    """Keys or values of `rows`, each its own tokens: a shape [B, H, most tokens, D], or [1, H, N, D] of pieces, to whatever asks, and attention row by row. Anything else is refused: there is no such tensor."""

    rows: list[Row]
    side: str

    @staticmethod
    def of(rows: list[Row], side: str, shape: Sequence[int] | None = None) -> "BatchStates":
        """`side`: "keys" or "values"; `shape`: where transformers has repeated heads, which nothing is copied for."""
        first = getattr(rows[0], side)
        if shape is None:
            new = sum(row.new for row in rows)
            shape = (len(rows), first.shape[1], max(row.stop - row.start for row in rows), first.shape[3]) if new == len(rows) else (1, first.shape[1], new, first.shape[3])
        states = torch.Tensor._make_wrapper_subclass(BatchStates, tuple(shape), dtype=first.dtype, device=first.device)
        states.rows, states.side = rows, side
        return states

    @property
    def heads(self) -> int:
        return getattr(self.rows[0], self.side).shape[1]

    def __repr__(self, *args: Any, **kwargs: Any) -> str:
        return f"BatchStates(shape={tuple(self.shape)}, side={self.side!r})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is SDPA:
            return attend_by_row(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            if func in METADATA or func in SIZES:
                return func(*args, **kwargs)
            return _same(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise ValueError(SDPA_ONLY)


def _same(func: Any, args: tuple, kwargs: dict) -> BatchStates:
    """What changes nothing, and the steps of transformers' `repeat_kv`. Raises ValueError for all else."""
    states = args[0] if args else None
    if not isinstance(states, BatchStates) or kwargs:
        raise ValueError(SDPA_ONLY)
    if func is torch.Tensor.contiguous:
        return states
    sizes = tuple(args[1]) if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
    batch, _, tokens, dim = shape = (*states.shape[:2], *states.shape[-2:])
    if func is torch.Tensor.__getitem__ and states.dim() == 4 and args[1] == EACH_HEAD_AGAIN:
        return BatchStates.of(states.rows, states.side, (*shape[:2], 1, tokens, dim))
    if func is torch.Tensor.expand and states.dim() == 5 and len(sizes) == 5 and (*sizes[:2], *sizes[3:]) == shape:
        return BatchStates.of(states.rows, states.side, sizes)
    if func is torch.Tensor.reshape and states.dim() == 5 and sizes == (batch, states.shape[1] * states.shape[2], tokens, dim):
        return BatchStates.of(states.rows, states.side, sizes)
    raise ValueError(SDPA_ONLY)


def attend_by_row(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False
) -> torch.Tensor:
    """scaled_dot_product_attention of one token a row: query [B, Hq, 1, D], or [B, H, Hq / H, D] as transformers packs grouped heads; or of pieces, [1, Hq, N, D]. In the query's shape."""
    if not (isinstance(key, BatchStates) and isinstance(value, BatchStates)) or isinstance(query, BatchStates):
        raise ValueError(SDPA_ONLY)
    pairs = [keys._replace(values=values.values) for keys, values in zip(key.rows, value.rows)]
    if any(row.mask is not None for row in pairs):
        return attend_by_piece(pairs, query, scale)
    if attn_mask is not None or dropout_p or is_causal:
        raise ValueError("rows of a batch attend to all tokens of their own: give the forward no attention_mask; a model that adds a bias by position, or hides tokens by a mask of its own, runs row by row")
    heads = query.reshape(query.shape[0], key.heads, -1, query.shape[3])  # (B, H, G, D)
    if heads.shape[0] != len(key.rows) or heads.shape[2] * key.heads != query.shape[1] * query.shape[2]:
        raise ValueError(f"a query {tuple(query.shape)} does not fit {len(key.rows)} rows of {key.heads} key heads")
    return _attended(pairs, heads, scale).reshape(*query.shape[:3], -1)


def attend_by_piece(rows: list[Row], query: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Attention of the rows' pieces, query [1, Hq, N, D]: [1, Hq, N, value D]. Single tokens together, longer ones row by row."""
    pieces = query.split([row.new for row in rows], 2)
    singles = [number for number, row in enumerate(rows) if row.new == 1]
    found: dict[int, torch.Tensor] = {number: row.attend_many(pieces[number], scale) for number, row in enumerate(rows) if row.new > 1}
    if singles:
        heads = torch.cat([pieces[number].reshape(1, rows[number].keys.shape[1], -1, query.shape[3]) for number in singles])
        out = _attended([rows[number] for number in singles], heads, scale)
        found |= {number: each.reshape(1, query.shape[1], 1, -1) for number, each in zip(singles, out.split(1))}
    return torch.cat([found[number] for number in range(len(rows))], dim=2)


def _attended(rows: list[Row], heads: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Each row's attention, heads [B, H, G, D] -> [B, H, G, value D]: rows that attend to plain tensors in one call of the loops, where there are, and the others one by one."""
    plain = [row.plain() for row in rows]
    together = [number for number, pair in enumerate(plain) if pair is not None]
    found = _by_loops([plain[number] for number in together], heads if len(together) == len(rows) else heads[together], scale) if len(together) > 1 else None
    if found is not None and len(together) == len(rows):
        return found
    given = dict(zip(together, found.split(1))) if found is not None else {}
    return torch.cat([given[number] if number in given else row.attend(heads[number : number + 1], scale) for number, row in enumerate(rows)])


def _by_loops(rows: "list[Row]", heads: torch.Tensor, scale: float | None) -> torch.Tensor | None:
    spans = [(row.start, row.stop) for row in rows]
    return kernels.attention_apart(heads, [row.keys for row in rows], [row.values for row in rows], spans, heads.shape[3] ** -0.5 if scale is None else scale)


# ------------------------------------------------------------------------------------------------------- one step, and models


@torch.no_grad()
def decode(model: torch.nn.Module, batch: Batch, token_ids: Sequence[int] | Sequence[Sequence[int]] | torch.Tensor, forward: Callable | None = None) -> torch.Tensor:
    """Give each row of the batch its next token, in one forward: token_ids of B rows; returns the logits [B, V] behind them. `forward`: a compiled form of the model's own.

    Or its next tokens, a list of each row's, such as a chunk of one's prompt beside others' single tokens: where `why_no_pieces(model)` is None, else that is raised. All or nothing: after an error every row is as it was or, where it cannot go back, refuses every forward until its `reset()`. Raises ValueError, naming the row, before
    anything changes where one cannot take a token: `batch.leave(row)` lets the others go on.
    """
    if model is not batch.model:
        raise ValueError(f"this batch is of caches for another model, a {batch.model.config.model_type}")
    if pieces := _lengths_of_pieces(token_ids):
        return _decode_pieces(model, batch, [token for piece in token_ids for token in piece], pieces)
    ids = torch.as_tensor(token_ids, dtype=torch.long, device=device_of(model)).reshape(-1, 1)
    batch._check_shape(len(ids), 1)
    batch.check()
    return _forward(model, batch, ids, forward or model)


def _forward(model: torch.nn.Module, batch: Batch, ids: torch.Tensor, forward: Callable) -> torch.Tensor:
    positions = {"position_ids": batch.positions()} if counts_from_zero(type(model)) else {}
    with _at_work(batch, placed=bool(positions)):
        return forward(input_ids=ids, use_cache=True, **{cache_argument(model): batch}, **positions).logits[:, -1]


@contextlib.contextmanager
def _at_work(batch: Batch, placed: bool) -> Iterator[None]:
    """A forward of the batch: all or nothing of each row."""
    with contextlib.ExitStack() as stack:
        for row in batch.rows:
            stack.enter_context(all_or_nothing(row))
        stack.callback(setattr, batch, "placed", False)
        batch.placed = placed
        yield


def _lengths_of_pieces(token_ids: Any) -> list[int] | None:
    """Tokens of each row; None where there is one of each."""
    if isinstance(token_ids, torch.Tensor) or not any(isinstance(each, Sequence) for each in token_ids):
        return None
    lengths = [len(piece) for piece in token_ids]
    if not all(lengths):
        raise ValueError(f"each row takes one token at least, got pieces of {lengths}: leave(row) lets one pause")
    return lengths if any(length > 1 for length in lengths) else None


def _decode_pieces(model: torch.nn.Module, batch: Batch, ids: list[int], pieces: list[int]) -> torch.Tensor:
    """One forward of pieces of these lengths, ids one behind the other: the logits [B, V] behind each."""
    if reason := why_no_pieces(model):
        raise ValueError(f"{model.config.model_type} takes one token a row in a batch: {reason}")
    if len(pieces) != len(batch.rows):
        raise ValueError(f"this batch has {len(batch.rows)} rows, and was given tokens for {len(pieces)}")
    return _forward_of_pieces(model, batch, ids, pieces)


def _forward_of_pieces(model: torch.nn.Module, batch: Batch, ids: list[int], pieces: list[int]) -> torch.Tensor:
    device, seen = device_of(model), batch.lengths()
    places = torch.cat([torch.arange(first, first + new, device=device) for first, new in zip(seen, pieces)])[None]
    ends = torch.tensor(pieces, device=device).cumsum(0) - 1
    keeps_some = "logits_to_keep" in inspect.signature(model.forward).parameters
    batch.pieces, batch._masks = pieces, {}
    try:
        batch.check()
        with _at_work(batch, placed=True):
            arguments = {cache_argument(model): batch, "position_ids": places, **({"logits_to_keep": ends} if keeps_some else {})}
            logits = model(input_ids=torch.tensor([ids], device=device), use_cache=True, **arguments).logits[0]
        return logits if keeps_some else logits[ends]
    finally:
        batch.pieces, batch._masks = None, {}


def changing_rope(config: Any) -> list[str]:
    """RoPE types of a config, of any layer type, whose frequencies transformers takes from the longest row."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = {each.get("rope_type", "default") for each in (parameters, *parameters.values()) if isinstance(each, dict)}
    return sorted(kinds - set(FIXED_TYPES))


def implementation_of(model: torch.nn.Module) -> str | None:
    return getattr(decoder_config(model), "_attn_implementation", None)


_REASONS: "weakref.WeakKeyDictionary[torch.nn.Module, tuple[str | None, str | None]]" = weakref.WeakKeyDictionary()
_NO_PIECES: "weakref.WeakKeyDictionary[torch.nn.Module, tuple[str | None, str | None]]" = weakref.WeakKeyDictionary()


def why_not_batched(model: torch.nn.Module) -> str | None:
    """Why rows of different caches cannot share this model's forward, or None. Said by a few tokens, once for each model and its attention."""
    return _known(_REASONS, model, _why_not_batched)


def why_no_pieces(model: torch.nn.Module) -> str | None:
    """Why rows of this model take one token each in a forward, and no longer pieces, or None. Said by a few tokens, once for each model and its attention."""
    return _known(_NO_PIECES, model, _why_no_pieces)


def _known(reasons: Any, model: torch.nn.Module, find: Callable) -> str | None:
    attention = implementation_of(model)
    known = reasons.get(model)
    if known is None or known[0] != attention:
        known = reasons[model] = attention, find(model, attention)
    return known[1]


def _why_no_pieces(model: torch.nn.Module, attention: str | None) -> str | None:
    if reason := _why_not_batched(model, attention):
        return reason
    if any(isinstance(layer, States) for layer in create(first_fitting(model), model).layers):
        return "its recurrent layers would carry one row's state into the next"
    return _tried_in(model, _pieces_as_alone)


def _why_not_batched(model: torch.nn.Module, attention: str | None) -> str | None:
    if model.config.is_encoder_decoder:
        return "it has an encoder, and rows would attend to texts of different lengths"
    if counts_pictures(model) is not None:
        return "it counts positions among pictures, which differ from row to row"
    if reason := why_not_cached(model):
        return reason
    if kinds := changing_rope(decoder_config(model)):
        return f"its rotation ({', '.join(kinds)}) changes with the longest row of a forward, so a long row would change what a short one says"
    attends = not has_states_alone(decoder_config(model))
    if attends and attention != "sdpa":
        return f"its attention is {attention!r}; {SDPA_ONLY}"
    if attends and not counts_from_zero(type(model)):
        return "its forward takes no position_ids that count from 0, so it would place all rows alike"
    return _tried_in(model, _tokens_as_alone)


@torch.no_grad()
def _tried_in(model: torch.nn.Module, run: Callable) -> str | None:
    """Two rows together against each alone: what differs, or None. `run(model, batch, alone)` yields logits [B, V] of both."""
    device, size, name = device_of(model), decoder_config(model).vocab_size, first_fitting(model)
    prompts = [torch.tensor([row], device=device) % size for row in TRIED]
    alone, together = ([create(name, model) for _ in TRIED] for _ in range(2))
    batch = object.__new__(Batch)
    batch.model, batch.rows = model, []
    training = model.training
    try:
        model.eval()
        for cache, prompt in [*zip(alone, prompts), *zip(together, prompts)]:
            feed(model, prompt, cache)
        batch._begin_with(together)
        for found, expected in run(model, batch, alone):
            allowed = TOLERANCE.get(found.dtype, TOLERANCE_ELSEWHERE) * float(expected.abs().max())
            if not bool(((found - expected).abs() <= allowed).all()):
                return "tried on a few tokens, it gave rows together other logits than each alone; run it row by row"
    except Exception as error:
        return f"tried on a few tokens, it failed: {error}"
    finally:
        model.train(training)
    return None


def _tokens_as_alone(model: torch.nn.Module, batch: Batch, alone: list[Cache]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Two steps of a token each: the second tells whether the first was kept."""
    device, size = device_of(model), decoder_config(model).vocab_size
    for step in (torch.tensor([[1], [2]], device=device) % size, torch.tensor([[3], [1]], device=device) % size):
        yield _forward(model, batch, step, model), torch.cat([feed(model, ids[None], cache)[:, -1] for ids, cache in zip(step, alone)])


def _pieces_as_alone(model: torch.nn.Module, batch: Batch, alone: list[Cache]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A piece beside a token, and the other way round."""
    size = decoder_config(model).vocab_size
    for step in ([[1, 4, 6], [2]], [[3], [1, 5]]):
        step = [[token % size for token in piece] for piece in step]
        found = _forward_of_pieces(model, batch, sum(step, []), [len(piece) for piece in step])
        yield found, torch.cat([feed(model, torch.tensor([piece], device=device_of(model)), cache)[:, -1] for piece, cache in zip(step, alone)])
