"""QuantizedCache: old tokens at 8, 4, 3, 2 or 1 bits, the first few and recent ones in full precision."""

import functools
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig

from ..architecture import FULL_TYPES, WINDOWED_TYPES, decoder_config, layer_types, other_types
from ..attention import hand_over
from ..cache import Cache, build_layers
from ..configs import (
    AXIS_WORDS,
    FIRST_TOKENS,
    GROUP,
    NBITS,
    QuantizedCacheConfig,
    bits_of,
    bits_word,
    check_backend,
    grouping,
    listed,
    rotates,
    why_not_axis,
    why_not_bits,
    why_not_rotated,
)
from ..entry import Entry, Parameter, all_but
from ..extras import why_not_imported
from ..kernels import LOOPS, decode_attention, encode, reader
from ..kernels.cpu import why_not_loops
from ..kernels.packed import Packed, unhidden
from ..layer import Buffer, D, Layer, T, append_both, capacity_for
from ..legacy import QuantizedNames
from ..predict import Shape, shapes_of
from ..quantize import QUANTIZERS, Encoded, Scheme, native_keys, native_values, rotated_keys, rotated_values
from ..read_only import read_only
from ..window import Windowed, WindowLayer
from .dynamic import windowed

PACKAGES = {"quanto": "optimum.quanto"}  # that a backend needs
GROUPS = (32, 64, 128)
AXIS_NUMBERS = (0, 1, -1)  # as 4.48 has them; each backend knows two
ATTENTION = LOOPS
BITS = ("nbits", "key_bits", "value_bits")
SIDES = ("key", "value")
FULL = 16  # "bits" of what is not rounded
EDITS = (
    "keys and values that a cache has rounded are codes, and what is read of them is decoded for the reader: they cannot be edited or assigned. crop(), reorder_cache(), "
    "batch_select_indices() and batch_repeat_interleave() change the cache; DynamicCache.from_legacy_cache(cache.to_legacy_cache()) makes one that can be edited"
)


class QuantizedLayer(Layer):
    """Packed blocks of old tokens, between the first few and a residual of recent ones.

    At least the latest `residual_length` tokens stay in full precision; whenever a further `q_group_size` have come,
    the oldest block of that many is quantised, once: no history is quantised twice. The `first_tokens` stored, of rows
    padded on the left their padding, are never: attention leans on the first of all, which are unlike any others.
    Stores, for keys (by default grouped per channel) and for values (per token), codes [B, H, held, D * nbits / 8],
    float16 scales and minima, float32 block gains, the residual [B, H, residual, D] and, once there are codes, the
    first tokens. Groups along a token are the largest divisor of D that is at most `token_group`. Raises ValueError at the
    first tokens, before any is stored, if D is not a multiple of 8. Sources: KIVI, Liu et al. 2024, arXiv 2402.02750;
    first tokens: Xiao et al. 2023, arXiv 2309.17453, and KVQuant, Hooper et al. 2024, arXiv 2401.18079. `rotate`: states are
    rotated by Hadamard before they are rounded (`hadamard`), and the query and the output where attention reads codes.
    """

    stores = {
        "key_codes": "keys", "key_scales": "scales", "key_minima": "scales", "key_gains": "scales",
        "value_codes": "values", "value_scales": "scales", "value_minima": "scales", "value_gains": "scales",
        "key_residual": "residual", "value_residual": "residual", "key_first": "residual", "value_first": "residual",
    }  # fmt: skip
    settings = ("backend", "bits", "block", "residual_length", "token_group", "axes", "compute_dtype", "first_tokens", "rotate")
    is_croppable = True
    drafting = False  # may what comes be taken back? (`record_past` is the states' where a layer has both)
    dropped = 0  # tokens of blocks behind the first ones that were let go of, as windows do
    keeps_first = True  # do the first tokens stay whatever is let go of?
    read_by: str | None = None  # what read the codes for the last attention

    def __init__(
        self,
        backend: str,
        nbits: int,
        q_group_size: int,
        residual_length: int,
        token_group: int | None = None,
        axis_key: int | str = "auto",
        axis_value: int | str = "auto",
        compute_dtype: torch.dtype = torch.float32,
        attention: str = "auto",
        key_bits: int | str = "auto",
        value_bits: int | str = "auto",
        first_tokens: int = 0,
        rotate: bool = False,
    ):
        super().__init__()
        self.attention, self.first_tokens, self.rotate = attention, first_tokens, rotate
        self.backend, self.nbits, self.compute_dtype = backend, nbits, compute_dtype
        self.block, self.residual_length, self.token_group = q_group_size, residual_length, token_group or q_group_size
        self.bits = {"key": bits_of(key_bits, nbits), "value": bits_of(value_bits, nbits)}
        self.axes = {"key": grouping(backend, axis_key, "channel"), "value": grouping(backend, axis_value, "token")}
        self.tight = residual_length < q_group_size  # what is reserved for tokens in full precision would be most of what a short chat holds
        self.key_first, self.value_first = Buffer(exact=self.tight), Buffer(exact=self.tight)

    def scheme(self, side: str, dim: int) -> Scheme:
        """How "key" or "value" states of `dim` channels are quantised."""
        return scheme_of(self.backend, self.bits[side], side, self.axes[side], self.block, self.token_group, dim, self.rotate)

    def _scheme(self, side: str) -> Scheme:
        return self.scheme(side, getattr(self, f"{side}_residual").data.shape[D])

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        reason = why_not_packed(key_states.shape[D]) or why_not_packed(value_states.shape[D])
        if reason:
            raise ValueError(f"{type(self).__name__}: {reason}")
        super().lazy_initialization(key_states, value_states)

    @property
    def quantized(self) -> int:
        """Tokens held as codes."""
        return len(self.key_codes)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [B, H, n, D]; return all tokens [B, H, seen, D], the quantised ones decoded, the others as they came.

        Behind codes that is handed over packed, and decoded where anything but attention touches it.
        """
        if torch.compiler.is_compiling():
            from ..uncompiled import update_outside

            return update_outside(self, key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        drafting = self._drafting(key_states.shape[T])
        self._flush()
        fills = key_states.shape[T] > 1 and not drafting and self._due(key_states.shape[T])
        attended = (self._update_past_a_block if fills else self._update)(key_states, value_states)
        if not drafting:
            self._flush()
        return attended

    def _update(self, key_states: torch.Tensor, value_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.quantized and not len(self.key_residual):  # an empty buffer would take rows of any shape
            self._refuse(key_states, value_states)
        append_both(self.key_residual, self.value_residual, key_states, value_states)
        self.seen += key_states.shape[T]
        return self._attended(key_states.shape[T])

    def _update_past_a_block(self, key_states: torch.Tensor, value_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `_update`, for so many tokens that blocks get full: they are quantised where they lie, and only what is left is copied."""
        new = key_states.shape[T]
        self._refuse(key_states, value_states)
        rows = {"key": self._with_residual("key", key_states), "value": self._with_residual("value", value_states)}
        attended = self._attended(new, rows)
        tokens, ahead = self._due(new), self._not_first_yet()
        self.seen += new
        self._settle(rows, tokens)
        for side, states in rows.items():
            residual = getattr(self, f"{side}_residual")
            residual.clear()
            kept = states.shape[T] - ahead - tokens
            room = self._room_for(kept)
            residual.append(states[:, :, states.shape[T] - room :])
            residual.drop_front(room - kept)
        return attended

    def _refuse(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.key_residual.refuse(key_states)
        self.value_residual.refuse(value_states)

    def _with_residual(self, side: str, states: torch.Tensor) -> torch.Tensor:
        """The residual of one side with new states behind it [B, H, T, D]."""
        residual = getattr(self, f"{side}_residual")
        return torch.cat([residual.view(), states], dim=T) if len(residual) else states

    def _due(self, new: int = 0) -> int:
        """Tokens that are to be quantised once `new` ones have come: whole blocks of those beyond the first ones and the residual."""
        return max(0, len(self.key_residual) + new - self._not_first_yet() - self.residual_length) // self.block * self.block

    def _not_first_yet(self) -> int:
        """Tokens at the front of the residual that will be put beside it, as the first, when the next block is quantised."""
        return 0 if self.dropped else self.first_tokens - len(self.key_first)

    @property
    def until_due(self) -> int:
        """Tokens that can still come before one more fills a block."""
        return self._not_first_yet() + self.residual_length + self.block - 1 - len(self.key_residual)

    @property
    def origin(self) -> int:
        """Position of the first token held as a code."""
        return self.first_tokens + self.dropped if self.dropped else len(self.key_first)

    def activate_past_recording(self) -> None:
        """From now on round tokens one `update` or `crop` later, so that a draft which is taken back has rounded nothing."""
        self.drafting = True

    def _drafting(self, n: int) -> bool:
        """Are the next `n` tokens a draft's, which may be taken back?"""
        return self.drafting

    def reset(self) -> None:
        super().reset()
        self.drafting = False

    def trim(self) -> None:
        self._flush()

    def _attended(self, new: int, rows: dict[str, torch.Tensor] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """What the latest `new` tokens attend to; `rows`: what there is in full precision, where that is not the residual yet."""
        recent = rows or {side: None for side in SIDES}
        if not self.quantized or self.compute_dtype != torch.float32:
            keys, values = (self._all(side, recent[side]) for side in SIDES)
            return keys, values
        return hand_over(self, *(self._packed(side, recent[side]) for side in SIDES), new)

    def _packed(self, side: str, rows: torch.Tensor | None = None) -> Packed:
        residual = getattr(self, f"{side}_residual")
        encoded = Encoded(*(getattr(self, f"{side}_{part}").onwards() for part in Encoded._fields))
        recent = (residual.data, residual.start, residual.stop) if rows is None else (rows, 0, rows.shape[T])
        return Packed(self._scheme(side), self.block, self.quantized, encoded, *recent, getattr(self, f"{side}_first").data, len(self.key_first))

    def attend(self, query: torch.Tensor, keys: Packed, values: Packed, mask: torch.Tensor | None, scale: float | None, is_causal: bool) -> torch.Tensor | None:
        """Over the codes as they are; `read_by` then says by what: compiled loops ("numba"), a GPU's kernel ("triton") or "torch"."""
        scale = query.shape[3] ** -0.5 if scale is None else scale
        self.read_by = reader(query, keys, values, mask, scale, is_causal, self.attention)
        return decode_attention(query, keys, values, mask, scale, is_causal, self.attention, self.read_by)

    def _flush(self) -> None:
        """Quantise the blocks that are due."""
        tokens, ahead = self._due(), self._not_first_yet()
        if not tokens:
            return
        self._settle({side: getattr(self, f"{side}_residual").view() for side in SIDES}, tokens)
        for side in SIDES:
            residual = getattr(self, f"{side}_residual")
            residual.drop_front(ahead + tokens)
            residual.shrink(self._room_for(len(residual)))

    def _room_for(self, residual: int) -> int:
        """Tokens in full precision to have storage for once there are codes, while `residual` are held: as many as there will be, or no more than that."""
        return residual if self.tight else self.residual_length + self.block

    def _settle(self, rows: dict[str, torch.Tensor], tokens: int, passed: int = 0) -> None:
        """Of each side's rows [B, H, some, D] behind what is quantised, keep the first ones if they are not kept yet, and quantise `tokens` behind them but for those `passed` over."""
        ahead = self._not_first_yet()
        for side, states in rows.items():
            if ahead:
                getattr(self, f"{side}_first").append(states[:, :, :ahead])
            if passed < tokens:
                encoded = encode(self.scheme(side, states.shape[D]), states[:, :, ahead + passed : ahead + tokens], self.block)
                for part, its_rows in encoded._asdict().items():
                    getattr(self, f"{side}_{part}").append(its_rows)

    def _decoded(self, side: str) -> torch.Tensor:
        """The quantised tokens of one side [B, H, quantized, D]."""
        codes, scales, minima, gains = (getattr(self, f"{side}_{part}").view() for part in ("codes", "scales", "minima", "gains"))
        dtype = getattr(self, f"{side}_residual").data.dtype  # under autocast the two sides differ
        if self.compute_dtype == torch.float32:
            return self._scheme(side).decode(Encoded(codes, scales, minima, gains), self.block, dtype)
        # Before the gain everything is in [-1, 1], so that no dtype is too narrow: float16 would end at 65,504.
        unit = self._scheme(side).decode(Encoded(codes, scales, minima, torch.ones_like(gains)), self.block, self.compute_dtype)
        return (unit.unflatten(T, (-1, self.block)) * gains.unsqueeze(-1)).flatten(T, T + 1).to(dtype)

    def _all(self, side: str, recent: torch.Tensor | None = None) -> torch.Tensor | None:
        """All tokens of one side [B, H, T, D], decoded; `recent`: what there is in full precision, where that is not the residual yet."""
        recent = getattr(self, f"{side}_residual").view() if recent is None else recent
        parts = [*self._first(side), *([self._decoded(side)] if self.quantized else []), recent]
        return torch.cat(parts, dim=T) if len(parts) > 1 else recent

    def _first(self, side: str) -> list[torch.Tensor]:
        """The first tokens [B, H, first_tokens, D], of a cache that has codes behind them and keeps any."""
        first = getattr(self, f"{side}_first").view()
        return [] if first is None else [first]

    def sides(self) -> tuple[Buffer, Buffer]:
        return self.key_residual, self.value_residual

    def readable(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """All keys and values [B, H, seen, D], decoded."""
        return self._all("key"), self._all("value")

    def editable(self, side: int) -> torch.Tensor | None:
        """Decoded ones to be read: codes do not change with them."""
        if not self.quantized:
            return super().editable(side)
        with torch.inference_mode(False):
            return read_only(self._all(("key", "value")[side]), EDITS)

    def check_assigned(self, side: str, rows: torch.Tensor) -> None:
        super().check_assigned(side, rows)
        if self.quantized:
            raise ValueError(EDITS)

    @property
    def exact_crop_floor(self) -> int:
        """Before it fewer tokens were held as codes."""
        return max(self.crop_floor, self.origin + self.quantized + self.residual_length if self.quantized else 0)

    def _crop_to(self, length: int) -> None:
        """Drop blocks; of a block that is cut in two, the kept tokens come back to the residual as they decode, and of the first block of all the first tokens too."""
        kept = max(0, min(self.quantized, length - self.origin)) // self.block * self.block
        joins = not kept and not self.dropped
        for side in SIDES:
            residual = getattr(self, f"{side}_residual")
            if length >= self.origin + self.quantized:
                residual.drop_back(self.seen - length)
            else:
                back = torch.cat([*self._first(side), self._decoded(side)], dim=T) if joins else self._decoded(side)[:, :, kept:]
                residual.replace(back[:, :, : length - (0 if joins else self.origin + kept)].clone())
        if length < self.origin + self.quantized:
            self._drop_blocks((self.quantized - kept) // self.block)
            if joins:
                self.key_first.clear()
                self.value_first.clear()

    def _drop_blocks(self, blocks: int) -> None:
        for buffer, rows in self._code_rows():
            buffer.drop_back(blocks * rows)

    def _code_rows(self) -> Iterator[tuple[Buffer, int]]:
        """Each buffer of what is quantised, and its rows to a block."""
        for side, axis in self.axes.items():
            scales = 1 if axis == "channel" else self.block
            for part, rows in (("codes", self.block), ("scales", scales), ("minima", scales), ("gains", 1)):
                yield getattr(self, f"{side}_{part}"), rows

    def predict(self, tokens: int, shape: Shape) -> dict[str, int]:
        """Bytes by kind after one prefill of `tokens`."""
        due = max(0, tokens - self.first_tokens - self.residual_length) // self.block
        blocks = due - self._predicted_loss(tokens)
        first = self.first_tokens if due and (blocks == due or self.keeps_first) else 0
        residual = tokens - due * self.block - (self.first_tokens if due else 0)
        room = capacity_for(self._room_for(residual) if due else tokens) if tokens else 0
        room += first if self.tight else capacity_for(first) if first else 0
        amounts = {"residual": (residual + first) * shape.token_nbytes, "scales": 0}
        reserved = (room - residual - first) * shape.token_nbytes
        coded = blocks * self.block
        for side, dim in (("key", shape.key_dim), ("value", shape.value_dim)):
            scheme, heads = self.scheme(side, dim), shape.batch * shape.heads
            rows = (coded // scheme.group, dim) if scheme.axis == "channel" else (coded, dim // scheme.group)
            parts = [(coded, dim * scheme.nbits // 8, f"{side}s"), (*(rows), "scales"), (*(rows), "scales"), (blocks, 1, "scales")]
            for (count, width, kind), itemsize in zip(parts, (1, 2, 2, 4)):
                amounts[kind] = amounts.get(kind, 0) + heads * count * width * itemsize
                reserved += heads * (capacity_for(count) - count) * width * itemsize if blocks else 0
        return {**amounts, "reserved": reserved}

    def _predicted_loss(self, tokens: int) -> int:
        """Blocks of `tokens` in one prefill that are let go of."""
        return 0

    def token_fates(self) -> list[tuple[str, int]]:
        first = len(self.key_first)
        fates = (("full", first), ("quantized", self.quantized), ("full", self.seen - self.quantized - first))
        return [(fate, count) for fate, count in fates if count]


class QuantizedWindowLayer(Windowed, QuantizedLayer):
    """The last `window_length` tokens, of which blocks are codes once they are behind the latest `residual_length`, which are fewer.

    As `WindowLayer` and `QuantizedLayer` in one: a block stays as it was rounded until the window has left it whole, and then its bytes go; of a block that the
    window has left in part, and of the first tokens before it, the rest is stored and not seen. `arguments` are QuantizedLayer's.
    """

    settings = (*QuantizedLayer.settings, "window_length")
    keeps_first = False

    def __init__(self, *arguments: Any, window_length: int, is_sliding: bool = False, **named: Any):
        super().__init__(*arguments, **named)
        self.is_sliding = is_sliding
        self.keep_latest(window_length)

    @property
    def room(self) -> int:
        """Tokens of the window beside those that stay for ever."""
        return self.window_length - self.first_tokens * self.keeps_first

    @property
    def gone(self) -> int:
        return self.dropped + self.first_tokens * (not self.keeps_first) if self.dropped else 0

    @property
    def held(self) -> int:
        return min(self.seen - self.gone, self.window_length)

    # ------------------------------------------------------------------------------------------------ blocks come and go

    def trim(self) -> None:
        super()._flush()
        self._let_go()
        self.unsettled = None

    def _flush(self) -> None:
        super()._flush()
        if not self.record_past:
            self._let_go()

    def _settle(self, rows: dict[str, torch.Tensor], tokens: int, passed: int = 0) -> None:
        """As QuantizedLayer's: what the window has left already is passed over."""
        if not self.record_past:
            self._let_go()
            passed = min(tokens, self._left())
        super()._settle(rows, tokens, passed)
        self._count_dropped(passed)

    def _left(self) -> int:
        """Tokens behind the first ones, of whole blocks, that are still counted as stored and that the window has left."""
        return max(0, self.seen - self.room - self.first_tokens - self.dropped) // self.block * self.block

    def _let_go(self) -> None:
        """Drop the blocks that the window has left."""
        tokens = min(self._left(), self.quantized)
        for buffer, rows in self._code_rows() if tokens else ():
            buffer.let_go(tokens // self.block * rows)
        self._count_dropped(tokens)

    def _count_dropped(self, tokens: int) -> None:
        self.dropped += tokens
        if tokens and not self.keeps_first:
            self.key_first.clear()
            self.value_first.clear()

    def reset(self) -> None:
        super().reset()
        self.dropped = 0

    def restore(self, rows: dict[str, torch.Tensor], header: dict) -> None:
        super().restore(rows, header)
        gone = self.seen - len(self.key_first) - self.quantized - len(self.key_residual)
        self.dropped = gone - self.first_tokens * (not self.keeps_first) if gone else 0

    # ------------------------------------------------------------------------------------------------ what is seen of them

    def _attended(self, new: int, rows: dict[str, torch.Tensor] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        recent = rows or {side: None for side in SIDES}
        if self.quantized and self.compute_dtype == torch.float32:
            packed = [self._shown(side, self._packed(side, recent[side]), new) for side in SIDES]
            if packed[0].packed:
                return hand_over(self, *packed, new)
        keys, values = (self._shown_rows(side, self._all(side, recent[side]), new) for side in SIDES)
        return keys, values

    def _hidden(self, stored: int, new: int) -> int:
        """Of so many tokens stored, those that the latest `new` ones do not see."""
        return max(0, stored - new - self.window_length + 1)

    def _shown(self, side: str, states: Packed, new: int) -> Packed:
        """What the latest `new` tokens see of what is stored."""
        hidden = self._hidden(states.shape[T], new)
        ahead = min(hidden, states.ahead)
        if ahead:
            first = states.first[:, :, ahead : states.ahead] if ahead < states.ahead else None
            states = states._replace(first=first, ahead=states.ahead - ahead)
        return states.without(hidden - ahead)

    def _shown_rows(self, side: str, rows: torch.Tensor, new: int) -> torch.Tensor:
        """As `_shown`, of all rows stored [B, H, T, D]."""
        return rows[:, :, self._hidden(rows.shape[T], new) :]

    def attend(self, query: torch.Tensor, keys: Packed, values: Packed, mask: torch.Tensor | None, scale: float | None, is_causal: bool) -> torch.Tensor | None:
        """As QuantizedLayer's. What is hidden of a block is so by the mask: the loops know no beginning but a block's."""
        if keys.hidden and is_causal:
            return None
        return super().attend(query, *unhidden(keys, values, mask), scale, is_causal)

    def readable(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """All keys and values held [B, H, held, D], decoded."""
        keys, values = (None if (rows := self._all(side)) is None else self._shown_rows(side, rows, 1) for side in SIDES)
        return keys, values

    def editable(self, side: int) -> torch.Tensor | None:
        if not self.quantized and self.held == self.seen:
            return super().editable(side)
        with torch.inference_mode(False):
            return read_only(self.readable()[side], EDITS)

    def check_assigned(self, side: str, rows: torch.Tensor) -> None:
        super().check_assigned(side, rows)
        if self.held < self.seen:
            raise ValueError(EDITS)

    def _predicted_loss(self, tokens: int) -> int:
        return max(0, tokens - self.room - self.first_tokens) // self.block

    def token_fates(self) -> list[tuple[str, int]]:
        first = max(0, len(self.key_first) - self.evicted)
        coded = max(0, self.origin + self.quantized - max(self.origin, self.evicted))
        fates = (("evicted", self.evicted), ("full", first), ("quantized", coded), ("full", self.held - first - coded))
        return [(fate, count) for fate, count in fates if count]


class QuantizedCache(QuantizedNames, Cache):
    """Hold old tokens as `nbits`-bit codes (`key_bits`, `value_bits` for one side alone), and the `first_tokens` and at least the latest `residual_length` tokens in full precision.

    `backend` chooses scales and codes: "native" (uniform levels), "hqq" or "quanto"; storage is ours for all three,
    append-only. `axis_key`, `axis_value`: group "channel" (one channel over the tokens of a block), "token"
    (neighbouring channels of a token) or the backend's own number for it; "auto" is channel for keys, token for
    values. `q_group_size`: tokens to a block and, at most, channels to a token's group ("auto": 64). `rotate`: spread loud channels over
    the head (Hadamard, of heads of no power of two in blocks of the largest that divides them) before rounding; "auto" does
    so for native, True is refused for others. `compute_dtype`: what decoded tensors are rounded to. `attention`: "fused" reads the codes without decoding them where it can (one
    token, CPU, 8, 4 or 2 bits, auto axes), after seconds of compiling on its first use on a machine; "auto" does so
    once a thread beside has compiled; "decode" never does: torch decodes piece by piece. `cache_config` says all but `attention` instead. Lossy once
    seen >= first_tokens + residual_length + q_group_size. `round_windows`: the model's own sliding windows are rounded as well, where they are longer than
    `residual_length`; "auto" does so where it has no other attention, False leaves them in full precision. Under drafts (prompt lookup, an assistant) a draft's tokens, fed at once, see
    unrounded the block that is rounded while they come: what is held after each round is the same, the text may differ
    from plain decoding's. Without a model `config` every layer is quantised. Raises ValueError on values that cannot be held.
    """

    name = "quantized"

    def __init__(
        self,
        config: PreTrainedConfig | QuantizedCacheConfig | str | None = None,
        backend: str | PreTrainedConfig = "native",
        nbits: int = 4,
        residual_length: int = 64,
        q_group_size: int | str = "auto",
        axis_key: int | str = "auto",
        axis_value: int | str = "auto",
        compute_dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
        *,
        key_bits: int | str = "auto",
        value_bits: int | str = "auto",
        first_tokens: int = FIRST_TOKENS,
        rotate: bool | str = "auto",
        round_windows: bool | str = "auto",
        attention: str = "auto",
        cache_config: QuantizedCacheConfig | dict | None = None,
    ):
        if isinstance(config, QuantizedCacheConfig):  # as 4.48 had it: QuantizedCache(cache_config)
            config, cache_config = None, config
        elif isinstance(config, str):  # as 5.x has it: QuantizedCache("quanto", config)
            config, backend = None if isinstance(backend, str) else backend, config
        beside = dict(key_bits=key_bits, value_bits=value_bits, first_tokens=first_tokens, rotate=rotate, round_windows=round_windows)
        given = QuantizedCacheConfig(check_backend(backend), nbits, axis_key, axis_value, q_group_size, residual_length, compute_dtype, device, **beside)
        if cache_config is not None:
            cache_config = QuantizedCacheConfig.from_dict(dict(cache_config))  # a copy, checked again
            _refuse_both(given)
        self.cache_config = cache_config or given
        super().__init__(*_layers(config, self.cache_config, attention))


class QuantoQuantizedCache(QuantizedCache):
    """QuantizedCache as quanto chooses its scales: 4 or 2 bits, axis 0 (per token) or -1 (per channel); `attention` as there."""

    name = "quanto"

    def __init__(self, cache_config: QuantizedCacheConfig | dict | None = None, config: PreTrainedConfig | None = None, *, attention: str = "auto"):
        super().__init__(config, attention=attention, cache_config=_for_backend("quanto", cache_config))


class HQQQuantizedCache(QuantizedCache):
    """QuantizedCache as HQQ chooses its scales: 8, 4, 3, 2 or 1 bits, axis 0 (per channel) or 1 (per token); `attention` as there."""

    name = "hqq"

    def __init__(self, cache_config: QuantizedCacheConfig | dict | None = None, config: PreTrainedConfig | None = None, *, attention: str = "auto"):
        super().__init__(config, attention=attention, cache_config=_for_backend("hqq", cache_config))


def class_of(backend: str) -> type[QuantizedCache]:
    """The class that has a backend's name; QuantizedCache for our own."""
    return {"quanto": QuantoQuantizedCache, "hqq": HQQQuantizedCache}.get(backend, QuantizedCache)


def make(config: PreTrainedConfig, backend: str, attention: str, **parameters: Any) -> QuantizedCache:
    """The quantised cache of a backend by its name."""
    settings = {**parameters, "backend": backend, "compute_dtype": torch.float32}
    return class_of(backend)(cache_config=settings, config=config, attention=attention)


def _for_backend(backend: str, cache_config: QuantizedCacheConfig | dict | None) -> dict:
    """The settings of a config with this backend: the class decides, as a config's default backend is quanto."""
    return {**dict(cache_config or {}), "backend": backend}


def _refuse_both(given: QuantizedCacheConfig) -> None:
    """A setting beside `cache_config` would be ignored in silence."""
    default = QuantizedCacheConfig("native", 4, "auto", "auto", "auto", 64, torch.float32)
    both = [name for name, value in given if value != getattr(default, name)]
    if both:
        raise ValueError(f"QuantizedCache was given cache_config and also {', '.join(both)}; put everything into cache_config")


def _layers(config: PreTrainedConfig | None, settings: QuantizedCacheConfig, attention: str) -> tuple:
    """The layers of a model's config, or None and what makes each layer, once it is known that they can be."""
    config = None if config is None else decoder_config(config)
    reason = (why_not(config) or why_not_windows(config, settings.round_windows) if config else None) or _missing(settings.backend) or why_not_attention(attention, *widths(**settings))
    if reason:
        raise ValueError(f"QuantizedCache: {reason}")
    rounding: dict[str, Any] = dict(
        backend=settings.backend,
        nbits=settings.nbits,
        q_group_size=GROUP if settings.q_group_size == "auto" else settings.q_group_size,
        residual_length=settings.residual_length,
        axis_key=settings.axis_key,
        axis_value=settings.axis_value,
        compute_dtype=settings.compute_dtype,
        attention=attention,
        key_bits=settings.key_bits,
        value_bits=settings.value_bits,
        first_tokens=settings.first_tokens,
        rotate=rotates(settings.backend, settings.rotate),
    )
    if config is None:
        return None, functools.partial(QuantizedLayer, **rounding)
    own_window = (lambda sliding_window, **_: window_of(sliding_window, True, rounding)) if _rounds_windows(config, settings.round_windows) else windowed
    return build_layers(config, {"full_attention": lambda **_: QuantizedLayer(**rounding), **dict.fromkeys(WINDOWED_TYPES, own_window)}), None


def window_of(window_length: int, is_sliding: bool, rounding: Mapping[str, Any]) -> WindowLayer | QuantizedWindowLayer:
    """The layer of a window, rounded where it is longer than what stays in full precision; `rounding`: QuantizedLayer's arguments."""
    if window_length <= rounding["residual_length"]:
        return WindowLayer(window_length, is_sliding)
    return QuantizedWindowLayer(**rounding, window_length=window_length, is_sliding=is_sliding)


def rounding_of(window_length: int, key_bits: int, value_bits: int, residual_length: int, first_tokens: int = FIRST_TOKENS) -> dict[str, Any]:
    """QuantizedLayer's arguments for a window: our own levels, in blocks that are small beside it."""
    block = GROUP if window_length >= 4 * GROUP else GROUP // 2
    return dict(backend="native", nbits=4, q_group_size=block, residual_length=residual_length, key_bits=key_bits, value_bits=value_bits, first_tokens=first_tokens, rotate=True)


def why_not_window_bits(config: PreTrainedConfig | None, key_bits: int, value_bits: int, residual_length: int, room: int) -> str | None:
    """Why a window of so many tokens beside its first ones cannot be rounded so, or None; 16 bits are what is not rounded."""
    if key_bits == value_bits == FULL:
        return None
    if FULL in (key_bits, value_bits):
        return f"key_bits and value_bits must be {FULL} both, or {listed(NBITS['native'])} each, got {key_bits} and {value_bits}"
    if reason := why_not_bits("native", key_bits, key_bits, value_bits):
        return reason
    if residual_length >= room:
        return f"nothing of a window of {room} tokens would be rounded whose latest {residual_length} stay in full precision: residual_length must be below {room}"
    return next(filter(None, map(why_not_packed, value_dims(config))), None) if config else None


def _rounds_windows(config: PreTrainedConfig, round_windows: bool | str) -> bool:
    return not FULL_TYPES & set(layer_types(config)) if round_windows == "auto" else bool(round_windows)


@functools.cache
def scheme_of(backend: str, nbits: int, side: str, axis: str, block: int, token_group: int, dim: int, rotated: bool = False) -> Scheme:
    """How "key" or "value" states of `dim` channels are quantised. Kept: every layer asks at every token."""
    group = block if axis == "channel" else largest_divisor(dim, token_group)
    fitted = rotated and (side, axis) in (("key", "channel"), ("value", "token"))  # as it was measured
    ours = {"key": rotated_keys, "value": rotated_values} if fitted else {"key": native_keys, "value": native_values}
    quantizer = ours[side] if backend == "native" else QUANTIZERS[backend]
    return Scheme(nbits, axis, group, quantizer, rotated)


@functools.cache
def largest_divisor(number: int, at_most: int) -> int:
    """The largest divisor of `number` that is no larger than asked: every head dim is held exactly."""
    return max(size for size in range(1, at_most + 1) if number % size == 0)


def why_not_packed(head_dim: int) -> str | None:
    return f"head_dim {head_dim} is not a multiple of 8, which packing needs" if head_dim % 8 else None


def widths(nbits: int, key_bits: int | str = "auto", value_bits: int | str = "auto", **_: Any) -> tuple[int, int]:
    """Bits of keys and of values."""
    return bits_of(key_bits, nbits), bits_of(value_bits, nbits)


def why_not_attention(attention: str, *nbits: int) -> str | None:
    if attention not in ATTENTION:
        return f"attention must be one of {', '.join(ATTENTION)}, got {attention!r}"
    return next(filter(None, map(why_not_loops, nbits)), None) if attention == "fused" else None


def value_dims(config: PreTrainedConfig) -> set[int]:
    """Elements of a head's values, of every layer."""
    return {shape.value_dim for shape in shapes_of(config, 1, 1) if shape.value_dim}


def why_not(config: PreTrainedConfig) -> str | None:
    """Why quantising does not suit this model, or None."""
    if odd := other_types(config):
        return f"{config.model_type} has layers of type {', '.join(odd)}, which are not quantised"
    if not {*FULL_TYPES, *WINDOWED_TYPES} & set(layer_types(config)):
        return f"{config.model_type} has no full-attention layer, and its states are small already"
    return next(filter(None, map(why_not_packed, value_dims(config))), None)


def why_not_windows(config: PreTrainedConfig, round_windows: bool | str) -> str | None:
    """Why nothing would be rounded of a model with nothing but windows, or None."""
    if round_windows is not False or FULL_TYPES & set(layer_types(config)):
        return None
    return f"{config.model_type} has no full-attention layer, so that with round_windows=False nothing would be rounded"


def _why_not_values(config: PreTrainedConfig, parameters: Mapping[str, Any]) -> str | None:
    backend, axes = parameters["backend"], ("axis_key", "axis_value")
    reasons = (why_not_bits(backend, *(parameters[name] for name in BITS)), *(why_not_axis(backend, name, parameters[name]) for name in axes))
    return next(filter(None, reasons), None) or why_not_rotated(backend, parameters["rotate"]) or why_not_windows(config, parameters["round_windows"]) or why_not_attention(parameters["attention"], *widths(**parameters))


@functools.cache
def _missing(backend: str) -> str | None:
    """Try the backend once on a small block; the reason why it cannot be used, or None."""
    if backend == "native":
        return None
    try:
        if backend in PACKAGES:
            importlib.import_module(PACKAGES[backend])
        grouped = torch.linspace(-1, 1, 128, dtype=torch.float32, device="cpu").view(1, 1, 2, 64)
        codes, scale, minimum = QUANTIZERS[backend](grouped, 4)
    except Exception as error:  # whatever a broken installation raises is the answer
        return f"backend {backend} unavailable because {why_not_imported(error)}"
    worst = (codes * scale + minimum - grouped).abs().max().item()
    return None if worst < 0.2 else f"backend {backend} unavailable because its self-test is off by {worst:.2f}"


def _choice_reasons(parameter: str, config: PreTrainedConfig, values: Mapping[str, Any]) -> dict:
    if parameter == "backend":
        return {backend: reason for backend in NBITS if (reason := _missing(backend))}
    if parameter == "rotate" and (reason := why_not_rotated(values["backend"], True)):
        return {True: reason}
    if parameter in BITS:
        backend = values["backend"]
        return {nbits: f"{backend} takes {listed(NBITS[backend])} bits" for nbits in (8, 4, 3, 2, 1) if nbits not in NBITS[backend]}
    return {}


def _why_not_values_or_missing(config: PreTrainedConfig, parameters: Mapping[str, Any]) -> str | None:
    return _why_not_values(config, parameters) or _missing(parameters["backend"])


def bits_suffix(key_bits: int, value_bits: int) -> str:
    """", 4-bit" behind the label of a window that is rounded."""
    return "" if key_bits == FULL else f", {bits_word(key_bits, value_bits)}-bit"


def _label(backend: str, axis_key: str, **bits: Any) -> str:
    title = "HQQ" if backend == "hqq" else backend.capitalize()
    return f"{title} {bits_word(*widths(**bits))}-bit" + (", keys by token" if grouping(backend, axis_key, "channel") == "token" else "")


# Of caches that round where they are asked to.
WINDOW_BITS = (
    Parameter("key_bits", "Key bits", "choice", FULL, f"Bits of an element of keys behind the latest; {FULL}: nothing is rounded.", choices=(FULL, *NBITS["native"])),
    Parameter("value_bits", "Value bits", "choice", FULL, f"Bits of an element of values, {FULL} where those of keys are.", choices=(FULL, *NBITS["native"])),
    Parameter("residual_length", "Residual", "int", 64, "Latest tokens that are not rounded, at least.", minimum=0, maximum=4096, step=16),
)

ENTRY = Entry(
    name="quantized",
    title="Quantized",
    summary="Rounds old tokens to a few bits each and keeps the latest in full precision: all is remembered, a little blurred.",
    cache_class=QuantizedCache,
    make=make,
    parameters=(
        Parameter("backend", "Backend", "choice", "native", "What chooses the rounding: our own levels, HQQ's solver or quanto.", choices=tuple(NBITS)),
        Parameter("nbits", "Bits", "choice", 4, "Bits an element: native 8, 4, 2; hqq also 3 and 1; quanto 4, 2.", choices=(8, 4, 3, 2, 1)),
        Parameter("key_bits", "Key bits", "choice", "auto", "Bits of an element of the keys, where not those of both.", choices=("auto", 8, 4, 3, 2, 1)),
        Parameter("value_bits", "Value bits", "choice", "auto", "Bits of an element of the values, which bear fewer than keys do.", choices=("auto", 8, 4, 3, 2, 1)),
        Parameter("residual_length", "Residual", "int", 64, "Latest tokens kept in full precision, at least.", minimum=0, maximum=4096, step=16),
        Parameter("first_tokens", "First", "int", FIRST_TOKENS, "First tokens kept in full precision, which attention leans on most.", minimum=0, maximum=64, unsaved=0),
        Parameter("rotate", "Rotate", "choice", "auto", "Spread loud channels over the head (Hadamard) before rounding: auto does for native.", choices=("auto", True, False), unsaved=False),
        Parameter("round_windows", "Windows", "choice", "auto", "Round the model's own sliding windows too: auto does where it has no other attention.", choices=("auto", True, False)),
        Parameter("q_group_size", "Group", "choice", "auto", "Elements that share a scale; also the tokens to a block.", choices=("auto", *GROUPS)),
        Parameter("axis_key", "Key groups", "choice", "auto", "What shares a scale in keys: auto is channel, a channel over a block's tokens.", choices=AXIS_WORDS, also=AXIS_NUMBERS),
        Parameter("axis_value", "Value groups", "choice", "auto", "What shares a scale in values: auto is token, one token's channels.", choices=AXIS_WORDS, also=AXIS_NUMBERS),
        Parameter("attention", "Attention", "choice", "auto", "Fused reads the codes as they are; decode turns them into floats for every token.", choices=ATTENTION),
    ),
    lossy=True,
    can=all_but("compile", "export"),
    paper="https://arxiv.org/abs/2402.02750",
    why_not_model=why_not,
    why_not_values=_why_not_values_or_missing,
    choice_reasons=_choice_reasons,
    label=_label,
)
