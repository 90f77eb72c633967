"""EvictingCache: a budget of tokens a layer and key head, and a policy that chooses which stay."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig

from ..architecture import FULL_TYPES, WINDOWED_TYPES, decoder_config, layer_types, processes_of
from ..cache import Cache, build_layers
from ..configs import bits_word
from ..entry import Entry, Parameter, all_but
from ..kernels import attention
from ..kernels.packed import Packed
from ..kernels.weights import attention_and_shares, latest_shares
from ..layer import Buffer, D, EvictingLayer, T, capacity_for
from ..policies import COMPACTING, POLICIES, Held, Policy, policy_of
from ..predict import Shape, predicted_rows
from ..quantize import Encoded, Scheme, ones
from ..read_only import read_only
from ..refusals import refuse_padding
from ..upstream_quirks import mask_of_forward
from . import sliding_window
from .dynamic import windowed
from .quantized import EDITS, scheme_of, value_dims, why_not_packed

EVERY = 32  # tokens decoded between two evictions: each looks at all that is held
QUEUE = 8  # queries that wait to have their attention added up, which many together take little longer for than one
UNROUNDED = 16  # bits that mean the model's own dtype
BITS = (UNROUNDED, 8, 4, 2)
AT_ONCE = 4096  # tokens that `feed` gives it in one forward
BIASED = ("bloom", "mpt")  # by the distance between the places of tokens
AROUND = ("diffllama", "jetmoe")  # which split or repeat what a cache hands over before they attend: measured


class PolicyLayer(EvictingLayer):
    """At most `budget` tokens a key head after a prompt's forward, and up to EVERY more while decoding. Which stay, `policy` says, for each key head apart.

    `budget`: a number of tokens, or the share of those seen. The first `first_tokens` and the latest `last_tokens` stay in any case. Keys keep their rotation. Stores
    keys, values [B, H, held, D]; where the policy asks for it, the attention that each key got and its position [B, H, held, 1], and the latest queries
    [B, Hq, n, D]; in a padded batch, for each row how many of its first places are empty, and how much padding it began with [B, 1, 1, 2].
    """

    stores = {**EvictingLayer.stores, "attention": "state", "positions": "state", "queries": "state", "padding": "state"}
    settings = ("policy", "budget", "first_tokens", "last_tokens")
    attention: Buffer
    positions: Buffer
    queries: Buffer
    padding: Buffer
    coded = 0  # tokens held as codes
    attended = True  # has `attend` been asked since the last update? Where layers share keys it is asked again.

    def __init__(self, policy: Policy, budget: int | float, first_tokens: int = 4, last_tokens: int = 32):
        super().__init__()
        self.policy, self.budget, self.first_tokens, self.last_tokens = policy, budget, first_tokens, max(last_tokens, policy.queries)
        self.per_token = (*EvictingLayer.per_token, *["attention"] * self.adds_up, *["positions"] * policy.counts)
        self.bounded = policy.evicts and isinstance(budget, int)

    @property
    def adds_up(self) -> bool:
        """Does the policy go by the attention of all queries?"""
        return self.policy.decay is not None

    @property
    def padded(self) -> bool:
        return self.padding.data is not None

    @property
    def needs_query(self) -> bool:
        """Padded rows need a mask of their own once tokens are evicted, which `attend` alone can give them."""
        return self.policy.needs_query or self.padded

    @property
    def why_query(self) -> str:
        return f"chooses by the query what it keeps ({self.policy.name})" if self.policy.needs_query else "knows which of its rows are padding"

    def target(self, seen: int) -> int:
        """Tokens to keep of so many."""
        if not self.policy.evicts:
            return seen
        share = self.budget if isinstance(self.budget, int) else math.ceil(self.budget * seen)
        return max(share, self.first_tokens + self.last_tokens)

    def pad(self, padding: torch.Tensor) -> None:
        """Know that of the tokens seen, those of the next update among them, so many are padding [B], the first of each row."""
        if not self.padded:
            self.padding.append(torch.zeros(len(padding), 1, 1, 2, dtype=torch.int32, device=padding.device))
        counts = self.padding.own()[:, 0, 0]
        counts += (padding.to(counts) - counts[:, 1])[:, None]

    @property
    def ahead(self) -> int:
        """Tokens before the places that are empty in padded rows."""
        return 0

    @property
    def latest(self) -> int:
        """The latest tokens that stay now."""
        return self.last_tokens

    @property
    def empty(self) -> torch.Tensor:
        """[B]: places of each row that hold none of its tokens, the first behind those `ahead`."""
        return self.padding.view()[:, 0, 0, 0]

    def _present(self, tokens: int) -> torch.Tensor:
        """[B, tokens]: which places hold a token of their row."""
        places = torch.arange(tokens, device=self.device)
        return (places < self.ahead) | (places >= self.ahead + self.empty[:, None])

    # --------------------------------------------------------------------------------------------------------- a forward

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [B, H, n, D]; hand over all that is held, [B, H, held + n, D]. A policy that asks for no query has evicted when this returns."""
        batch, heads, new, _ = key_states.shape
        if self.policy.needs_query and not self.attended:
            raise ValueError(f"{type(self).__name__} was given tokens of which it saw no query, and cannot tell what they attended to; {self.policy.name} needs a model's own forwards, lagkv and keydiff do not")
        if new > 1:
            self._add_up()
        handed = super().update(key_states, value_states)
        if self.adds_up:
            self.attention.append(key_states.new_zeros(batch, heads, new, 1, dtype=torch.float32))
        if self.policy.counts:
            places = torch.arange(self.seen - new, self.seen, dtype=torch.int32, device=key_states.device)
            self.positions.append(places[:, None].expand(batch, heads, new, 1))
        self.attended = False
        if not self.needs_query:
            self._evict(new)
        return handed

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float | None, is_causal: bool) -> torch.Tensor:
        """Attention over all that is held, and then the eviction."""
        scale, new = query.shape[3] ** -0.5 if scale is None else scale, query.shape[2]
        refuse_bias(mask, new)
        if self.padded and (self.held < self.seen or self.ahead):
            mask, is_causal = self._mask(new, keys.shape[T]), False
        again, self.attended = self.attended, True
        if again or not self.needs_query:
            return attention(query, keys, values, mask, scale, is_causal)
        if self.adds_up and new > 1:
            out = self._add_up_many(query, keys, values, mask, scale, is_causal)
        else:
            out = attention(query, keys, values, mask, scale, is_causal)
            self._note(query.detach() * scale)
        self._evict(new)
        return out

    def _mask(self, new: int, tokens: int) -> torch.Tensor:
        """[B, 1, new, tokens]: what the latest tokens see, once the model's own mask no longer fits."""
        present, places = self._present(tokens)[:, None, None], torch.arange(tokens, device=self.device)
        return present if new == 1 else present & (places <= torch.arange(tokens - new, tokens, device=self.device)[:, None])

    def _add_up_many(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float, is_causal: bool) -> torch.Tensor:
        """As `attention`, what each key gets added to what it got; padding's queries count for nothing."""
        if self.padded and mask is not None and mask.dtype == torch.bool:
            mask = mask & self._mask(query.shape[2], keys.shape[T]).any(dim=-1, keepdim=True)
        out, shares = attention_and_shares(query, keys, values, mask, scale, is_causal, self.policy.decay)
        self._add(shares.detach(), query.shape[2])
        return out

    def _note(self, queries: torch.Tensor) -> None:
        """Keep the latest of scaled queries [B, Hq, n, D]: as many as the policy goes by, or as wait to be added up."""
        if self.adds_up:
            self.queries.append(queries)
            return self._add_up() if len(self.queries) >= QUEUE else None
        if wanted := self.policy.queries:
            self.queries.append(queries[:, :, -wanted:])
            self.queries.drop_front(max(0, len(self.queries) - wanted))

    @torch.no_grad()
    def _add_up(self) -> None:
        """Add what keys got of the queries that wait."""
        if self.adds_up and (waiting := len(self.queries)):
            self._add(latest_shares(self.queries.view(), self.stored()[0], self.policy.decay, self._present(self.held) if self.padded else None), waiting)
            self.queries.drop_front(waiting)

    def _add(self, shares: torch.Tensor, queries: int) -> None:
        got = self.attention.own()
        got.mul_(self.policy.decay**queries).add_(shares[..., None])

    # ---------------------------------------------------------------------------------------------------------- eviction

    @torch.no_grad()
    def _evict(self, new: int) -> None:
        """Down to the target after several tokens, and once EVERY more are held after single ones."""
        spare, rounds = 0 if new > 1 else EVERY - 1, self.coded > 0
        if rounds:
            self.round(spare)
        evicts = self._evict_rows(spare) if self.padded else self._evict_all(spare)
        if not rounds:  # then what stays is the first to be rounded
            self.round(0 if evicts else spare)

    def _evict_all(self, spare: int) -> bool:
        target = self.target(self.seen)
        if self.held <= target + spare:
            return False
        self.make_room(target)
        self._add_up()
        self.keep(self.best(self._shown(slice(None), 0, self.seen, target)))
        return True

    def round(self, spare: int = 0) -> None:
        """Round all but the first and the latest tokens, where they are more than `spare`: none here."""

    def make_room(self, target: int) -> None:
        """See to it that no more than `target` tokens have to stay."""

    def _evict_rows(self, spare: int) -> bool:
        """As `_evict_all`, of padded rows, each of which evicts when it would alone: rows that hold fewer tokens than others have empty places before them."""
        counts = self.padding.view()[:, 0, 0].tolist()
        held = [self.held - empty for empty, _ in counts]
        targets = [min(own, self.target(self.seen - padding)) for own, (_, padding) in zip(held, counts)]
        due = [own > target + spare for own, target in zip(held, targets)]
        if not any(due):
            return False
        self.make_room(min(target for target, evicts in zip(targets, due) if evicts))
        self._add_up()
        stay = [target if evicts else own for own, target, evicts in zip(held, targets, due)]
        chosen = [self._chosen(row, empty, self.seen - padding, count, evicts) for row, ((empty, padding), count, evicts) in enumerate(zip(counts, stay, due))]
        self.keep(torch.cat([self._places(kept, empty, max(stay)) for kept, (empty, _) in zip(chosen, counts)]))
        self.padding.own()[:, 0, 0, 0] = torch.tensor([max(stay) - count for count in stay])
        return True

    def _chosen(self, row: int, empty: int, seen: int, count: int, evicts: bool) -> torch.Tensor:
        """[1, H, count]: what one row of a padded batch keeps, counted over its own tokens."""
        if evicts:
            return self.best(self._shown(slice(row, row + 1), empty, seen, count)).expand(1, self.key_rows.data.shape[1], -1)
        return torch.arange(count, device=self.device).expand(1, self.key_rows.data.shape[1], -1)

    def _places(self, chosen: torch.Tensor, empty: int, room: int) -> torch.Tensor:
        """[1, H, room]: where what a row has chosen [1, H, count] lies, and before those behind the first `ahead` whatever lies there, as often as fills the room."""
        filling = chosen.new_full((*chosen.shape[:2], room - chosen.shape[2]), self.ahead)
        return torch.cat([filling, chosen + empty * (chosen >= self.ahead)], dim=-1)

    def _shown(self, rows: slice, empty: int, seen: int, target: int) -> Held:
        """What a policy is shown of some rows, their `empty` places left out."""
        def own(held: torch.Tensor) -> torch.Tensor:
            return held[rows] if not empty else torch.cat([held[rows, :, : self.ahead], held[rows, :, self.ahead + empty :]], dim=T)

        keys, values = (own(side.dense() if isinstance(side, Packed) else side) for side in self.stored())
        queries = self.queries.view()[rows] if self.policy.queries else None
        attention = None if self.attention.data is None else own(self.attention.view()).squeeze(-1)
        positions = own(self.positions.view()).squeeze(-1) - (self.seen - seen) if self.policy.counts else None  # counted without padding
        return Held(keys, values, seen, target, self.first_tokens, self.latest, queries, attention, positions)

    def holders(self) -> torch.Tensor | None:
        """[seen]: how many of the first row's key heads still hold each token; None where the policy does not go by positions."""
        positions = self.positions.view()
        return None if positions is None else torch.bincount(positions[0].flatten().long(), minlength=self.seen)

    def best(self, held: Held) -> torch.Tensor:
        """[B, H or 1, target]: the places of the highest scores, the first and the latest tokens before all; of equal ones the older."""
        scores = self.policy.score(held).float().clone()
        scores[..., : held.first] = scores[..., scores.shape[-1] - held.last :] = float("inf")
        return scores.argsort(dim=-1, descending=True, stable=True)[..., : held.budget]

    # -------------------------------------------------------------------------------------------------------- operations

    def reset(self) -> None:
        super().reset()
        self.attended = True

    @property
    def crop_floor(self) -> int:
        """Where queries count, those of tokens that are taken back would go on counting."""
        return self.seen if self.needs_query else super().crop_floor

    def check_assigned(self, side: str, rows: torch.Tensor) -> None:
        if self.needs_query or self.held < self.seen:
            raise ValueError(f"{side} cannot be assigned to a {type(self).__name__} that goes by queries or has evicted tokens: it could not tell what they are; reset() it and feed the tokens again")
        super().check_assigned(side, rows)

    def predict(self, tokens: int, shape: Shape) -> dict[str, int]:
        """Bytes by kind after one prefill of `tokens`."""
        held = min(tokens, self.target(tokens)) if tokens > 1 else tokens
        amounts, waiting = self._predict_rows(held, tokens, shape), min(tokens, self.policy.queries or (1 if self.adds_up and tokens == 1 else 0))
        token, query = 4 * shape.batch * shape.heads * (self.adds_up + self.policy.counts), shape.batch * shape.query_heads * shape.key_dim * shape.itemsize
        amounts["state"] = held * token + waiting * query
        amounts["reserved"] += _spare(held) * token + _spare(waiting) * query
        return amounts

    def _predict_rows(self, held: int, tokens: int, shape: Shape) -> dict[str, int]:
        """Bytes by kind of the keys and values held after one prefill of `tokens`."""
        return predicted_rows(held, shape)


class RoundedPolicyLayer(PolicyLayer):
    """As PolicyLayer, with codes of a few bits for what lies between the first and the latest tokens, which stay in any case and in full precision.

    A token is rounded once, and alone: rotated by Hadamard, one scale and one minimum a head, a key less the mean of those that were the first to be rounded. So heads may
    evict whichever codes they like, and those that stay are moved as they are. While decoding, EVERY tokens are rounded together, and go no sooner; rows of a padded batch
    round once each has more tokens than stay in any case, and have their first tokens before their empty places from then on.
    Stores, for keys and for values, the first and the latest tokens [B, H, some, D], codes [B, H, coded, D * bits / 8], bfloat16 scales and minima [B, H, coded, 1], the keys' mean
    [B, H, 1, D], and what PolicyLayer does beside. Raises ValueError at the first tokens if D is not a multiple of 8. Source of the rotation: QuaRot, Ashkboos et al. 2024,
    arXiv 2404.00456.
    """

    stores = {
        **PolicyLayer.stores, "key_rows": "residual", "value_rows": "residual", "key_first": "residual", "value_first": "residual",
        "key_codes": "keys", "key_scales": "scales", "key_minima": "scales", "key_centre": "scales",
        "value_codes": "values", "value_scales": "scales", "value_minima": "scales",
    }  # fmt: skip
    settings = (*PolicyLayer.settings, "bits")
    key_first: Buffer
    key_codes: Buffer
    key_centre: Buffer

    def __init__(self, policy: Policy, budget: int | float, first_tokens: int, last_tokens: int, key_bits: int, value_bits: int):
        super().__init__(policy, budget, first_tokens, last_tokens)
        self.bits = {"key": key_bits, "value": value_bits}
        self.key_centre = Buffer(capacity=1)

    def scheme(self, side: str, dim: int) -> Scheme:
        """How "key" or "value" states of `dim` channels are quantised."""
        return scheme_of("native", self.bits[side], side, "token", 1, dim, dim, rotated=True)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        if reason := why_not_packed(key_states.shape[D]) or why_not_packed(value_states.shape[D]):
            raise ValueError(f"{type(self).__name__}: {reason}")
        super().lazy_initialization(key_states, value_states)

    @property
    def ahead(self) -> int:
        return len(self.key_first)

    @property
    def coded(self) -> int:
        """Tokens held as codes."""
        return len(self.key_codes)

    @property
    def latest(self) -> int:
        """Once some are codes, none goes before it is one."""
        return max(self.last_tokens, len(self.key_rows)) if self.coded else self.last_tokens

    @property
    def held(self) -> int:
        return self.ahead + self.coded + len(self.key_rows)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """As PolicyLayer's; what is handed over is packed."""
        if self.coded and not len(self.key_rows):  # an empty buffer would take rows of any shape
            self.key_rows.refuse(key_states)
            self.value_rows.refuse(value_states)
        return super().update(key_states, value_states)

    def stored(self) -> tuple[Any, Any]:
        return (self._packed("key"), self._packed("value")) if self.coded else super().stored()

    def _packed(self, side: str) -> Packed:
        rows, first = getattr(self, f"{side}_rows"), getattr(self, f"{side}_first")
        codes, scales, minima = (getattr(self, f"{side}_{part}").view() for part in ROUNDED)
        centre = self.key_centre.view() if side == "key" else None
        return Packed(self.scheme(side, rows.data.shape[D]), 1, self.coded, Encoded(codes, scales, minima, ones(codes)), rows.data, rows.start, rows.stop, first.data, len(first), centre)

    def keep(self, places: torch.Tensor) -> None:
        """As any evicting layer's, of places the first and the latest of which are among them."""
        if not self.coded:
            return super().keep(places)
        places = places.sort(dim=-1).values
        for name in self.per_token[2:]:  # but keys and values
            getattr(self, name).leave(places)
        codes = places[..., self.ahead : places.shape[-1] - len(self.key_rows)] - self.ahead
        for name in CODES:
            getattr(self, name).leave(codes)
        if not self.coded:
            self._take_back_first()

    # ---------------------------------------------------------------------------------------------------------- rounding

    def round(self, spare: int = 0) -> None:
        due = len(self.key_rows) - (self.first_tokens - self.ahead) - self.last_tokens
        if due <= spare or not self.coded and self._too_few():
            return
        if not self.coded:
            self._begin(due)
        for side in SIDES:
            rows = getattr(self, f"{side}_rows")
            encoded = self._encode(side, rows.view()[:, :, :due])
            for part in ROUNDED:
                getattr(self, f"{side}_{part}").append(getattr(encoded, part))
            rows.drop_front(due)
            rows.shrink(self.last_tokens + EVERY)

    def make_room(self, target: int) -> None:
        if self.first_tokens + self.latest > target:
            self.round()

    def _too_few(self) -> bool:
        """Has some row of a padded batch no more tokens than stay in any case?"""
        return self.padded and self.held - int(self.empty.max()) <= self.first_tokens + self.last_tokens

    def _begin(self, due: int) -> None:
        """Put the first tokens aside, and take the mean of the keys of `due` tokens behind them."""
        if self.padded:
            self._first_ahead()
        for side in SIDES if self.first_tokens else ():
            rows = getattr(self, f"{side}_rows")
            getattr(self, f"{side}_first").append(rows.view()[:, :, : self.first_tokens])
            rows.drop_front(self.first_tokens)
        keys = self.key_rows.view()[:, :, :due].float()
        there = self._present(self.ahead + due)[:, None, self.ahead :, None].float() if self.padded else torch.ones_like(keys[..., :1])
        self.key_centre.append((keys * there).sum(dim=T, keepdim=True) / there.sum(dim=T, keepdim=True))

    def _first_ahead(self) -> None:
        """Order the places of padded rows so that the first tokens of each come before its empty ones."""
        places, empty = torch.arange(self.held, device=self.device), self.empty[:, None]
        first = (places >= empty) & (places < empty + self.first_tokens)
        order = (~first).int().argsort(dim=-1, stable=True)[:, None]
        for name in self.per_token:
            getattr(self, name).leave(order)

    def _encode(self, side: str, rows: torch.Tensor) -> Encoded:
        """Rows [B, H, n, D] of keys or values, each token rounded alone."""
        rows = rows.float() - self.key_centre.view() if side == "key" else rows
        return self.scheme(side, rows.shape[D]).encode_each(rows)

    # -------------------------------------------------------------------------------------------------------- operations

    def readable(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """All keys and values held, decoded, in the order of their positions."""
        if not self.coded:
            return super().readable()
        keys, values = (side.dense() for side in self.stored())
        return (self._in_order(keys), self._in_order(values)) if self.padded else (keys, values)

    def _in_order(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of padded batches [B, H, held, D] with the empty places before the first tokens again."""
        order = self._present(self.held).int().argsort(dim=-1, stable=True)
        return rows.gather(T, order[:, None, :, None].expand_as(rows))

    def editable(self, side: int) -> torch.Tensor | None:
        """Decoded ones to be read: codes do not change with them."""
        if not self.coded:
            return super().editable(side)
        with torch.inference_mode(False):
            return read_only(self.readable()[side].clone(), EDITS)

    def check_assigned(self, side: str, rows: torch.Tensor) -> None:
        super().check_assigned(side, rows)
        if self.coded:
            raise ValueError(EDITS)

    @property
    def exact_crop_floor(self) -> int:
        """Before it fewer tokens were held as codes."""
        return max(self.crop_floor, self.ahead + self.coded + self.last_tokens if self.coded else 0)

    def _crop_to(self, length: int) -> None:
        """Drop the latest tokens, codes among them; without any codes left, the first tokens are as others again."""
        gone = self.seen - length
        full = min(gone, len(self.key_rows))
        codes = min(gone - full, self.coded)
        for name in self.per_token:
            getattr(self, name).drop_back(full if name in EvictingLayer.per_token else gone)
        for name in CODES if codes else ():
            getattr(self, name).drop_back(codes)
        if codes and not self.coded:
            self._take_back_first(gone - full - codes)

    def _take_back_first(self, gone: int = 0) -> None:
        """Without any codes left, hold the first tokens as all others again, but for the last `gone` of them."""
        for side in SIDES:
            rows, first = getattr(self, f"{side}_rows"), getattr(self, f"{side}_first")
            joined = torch.cat([*([] if first.data is None else [first.view()]), rows.view()], dim=T)
            rows.clear()
            rows.append(joined[:, :, : joined.shape[T] - gone])
            first.clear()
        for name in ("key_centre", *CODES):
            getattr(self, name).clear()

    def token_fates(self) -> list[tuple[str, int]]:
        """(fate, count): how many are gone, which differs from head to head, and how many are codes."""
        fates = (("evicted", self.seen - self.held), ("full", self.ahead), ("quantized", self.coded), ("full", len(self.key_rows)))
        return [(fate, count) for fate, count in fates if count]

    def _predict_rows(self, held: int, tokens: int, shape: Shape) -> dict[str, int]:
        coded = max(0, held - self.first_tokens - self.last_tokens) if tokens > 1 else 0
        if not coded:
            return {**predicted_rows(held, shape), **_as_residual(held, shape), "scales": 0}
        room = capacity_for(min(held, self.last_tokens + EVERY)) + (capacity_for(self.first_tokens) if self.first_tokens else 0)
        amounts, heads = _as_residual(held - coded, shape), shape.batch * shape.heads
        amounts |= {"scales": heads * (2 * 2 * 2 * coded + 4 * shape.key_dim), "reserved": (room - held + coded) * shape.token_nbytes + heads * _spare(coded) * 8}
        for side, dim in (("key", shape.key_dim), ("value", shape.value_dim)):
            width = heads * dim * self.bits[side] // 8
            amounts[f"{side}s"] = coded * width
            amounts["reserved"] += _spare(coded) * width
        return amounts


SIDES = ("key", "value")
ROUNDED = ("codes", "scales", "minima")
CODES = tuple(f"{side}_{part}" for side in SIDES for part in ROUNDED)


def _as_residual(tokens: int, shape: Shape) -> dict[str, int]:
    return {"residual": tokens * shape.token_nbytes, "keys": 0, "values": 0}


def _spare(rows: int) -> int:
    return capacity_for(rows) - rows if rows else 0


def refuse_bias(mask: torch.Tensor | None, new: int) -> None:
    """Raise ValueError for a mask of several tokens that adds a bias by position: tokens that are evicted would move those left."""
    if mask is not None and new > 1 and mask.dtype != torch.bool and bool(((mask != 0) & (mask > torch.finfo(mask.dtype).min / 2)).any()):
        raise ValueError("this model adds a bias by position to attention, which would be wrong once tokens between are evicted; use a cache that keeps every token, or a window")


class EvictingCache(Cache):
    """Keep `budget` tokens in each key head of full-attention layers, those that `policy` scores highest; the model's own windows stay its own.

    `budget`: a number of tokens, or the share of those seen, above 0 and below 1. The first `first_tokens` and the latest `last_tokens` tokens stay in any case, and what a
    policy needs as latest. Down to the budget at the end of every forward of several tokens, and every 32 tokens while decoding. Within a forward attention is exact over
    all that is held, so a prompt in one forward needs room for all its tokens, and one in chunks for the budget and a chunk: `kvcache.feed` gives 4,096 at
    once, generate as many as its prefill_chunk_size says. A policy that goes by queries needs a model that attends by sdpa; lagkv and keydiff suit any.
    `policy`: a name of kvcache.policies.POLICIES, or one of those with settings of its own. `key_bits`, `value_bits`: 16 leaves what stays in the model's dtype; with 8, 4 or 2
    all but the first and the latest tokens are rounded to as many bits, once. Raises ValueError on values that cannot be, and on models whose attention adds a bias by position.
    """

    name = "evicting"
    at_once = AT_ONCE

    def __init__(
        self,
        config: PreTrainedConfig,
        policy: str | Policy = "mean_attention",
        budget: int | float = 256,
        first_tokens: int = 4,
        last_tokens: int = 32,
        key_bits: int = 16,
        value_bits: int = 16,
    ):
        config, policy = decoder_config(config), policy_of(policy)
        values = {"policy": policy, "budget": BUDGET.check(budget), "first_tokens": FIRST_TOKENS.check(first_tokens), "last_tokens": LAST_TOKENS.check(last_tokens)}
        bits = {"key_bits": KEY_BITS.check(key_bits), "value_bits": VALUE_BITS.check(value_bits)}
        if reason := why_not(config) or _why_not_values(config, values | bits):
            raise ValueError(f"EvictingCache: {reason}")
        make = functools.partial(PolicyLayer, **values) if bits["key_bits"] == UNROUNDED else functools.partial(RoundedPolicyLayer, **values, **bits)
        super().__init__(build_layers(config, {"full_attention": lambda **_: make(), **dict.fromkeys(WINDOWED_TYPES, windowed)}))

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """As every cache of ours; padding on the left is noted, before any layer has the tokens."""
        sizes = super().get_mask_sizes(query_length, layer_idx)
        if not torch.compiler.is_compiling() and (query_length > 1 or not self.tokens_seen):
            self._note_padding(mask_of_forward())
        return sizes

    def held_shares(self) -> list[float] | None:
        """By token seen, from the oldest, the share of key heads in all evicting layers that still hold it (first row); None where the policy does not go by positions."""
        layers = [layer for layer in self.layers if isinstance(layer, PolicyLayer)]
        holders = [layer.holders() for layer in layers]
        if any(each is None for each in holders):
            return None
        heads = sum(layer.key_rows.data.shape[1] for layer in layers)
        return (sum(each.cpu() for each in holders) / heads).tolist()

    def _note_padding(self, mask: torch.Tensor | None) -> None:
        """Tell the layers how many of the tokens a mask [B, T] covers are padding. Raises ValueError for padding behind tokens."""
        if mask is None or bool(mask.all()):
            return
        padding = mask.logical_not().sum(dim=1)
        layers = [layer for layer in self.layers if isinstance(layer, PolicyLayer)]
        before = layers[0].padding.view()[:, 0, 0, 1] if layers[0].padded else torch.zeros_like(padding)
        if bool((mask[:, 1:] < mask[:, :-1]).any()) or bool(((padding != before) & (before < layers[0].seen)).any()):
            refuse_padding(self, mask.flip(1) if not bool((mask[:, 1:] < mask[:, :-1]).any()) else mask)
        for layer in layers:
            layer.pad(padding)


def why_not(config: PreTrainedConfig) -> str | None:
    """Why evicting does not suit this model, or None."""
    if config.model_type in BIASED:
        return f"{config.model_type} adds a bias by position to attention, which would be wrong once tokens between are evicted"
    if not FULL_TYPES & set(layer_types(config)):
        return f"{config.model_type} has no full-attention layer; its windows and states are small already"
    return sliding_window.why_not(config)


def _why_not_values(config: PreTrainedConfig, parameters: Mapping[str, Any]) -> str | None:
    policy = policy_of(parameters["policy"])
    least = parameters["first_tokens"] + max(parameters["last_tokens"], policy.queries)
    if isinstance(parameters["budget"], int) and parameters["budget"] <= least:
        return f"budget must be above the {least} tokens that stay in any case, got {parameters['budget']}"
    if policy.joins_heads and processes_of(config) > 1:
        return f"{policy.name} chooses by all heads together, and this process has a part of this tensor parallel model's; the other policies choose in each head apart"
    if policy.needs_query and config.model_type in AROUND:
        return f"the attention of {config.model_type} changes what the cache hands over before it attends, so that {policy.name} sees no query; lagkv and keydiff ask for none"
    if policy.needs_query and getattr(config, "qk_nope_head_dim", None) is not None:
        return f"{config.model_type} keeps latents, to which no query attends as they are: {policy.name} cannot score them, lagkv and keydiff can"
    return _why_not_bits(config, parameters["key_bits"], parameters["value_bits"])


def _why_not_bits(config: PreTrainedConfig, key_bits: int, value_bits: int) -> str | None:
    if key_bits == value_bits == UNROUNDED:
        return None
    if UNROUNDED in (key_bits, value_bits):
        return f"key_bits and value_bits are both {UNROUNDED}, which rounds nothing, or both fewer, got {key_bits} and {value_bits}"
    return next(filter(None, map(why_not_packed, sorted(value_dims(config)))), None)


def _verify(model: torch.nn.Module, cache: Cache) -> None:
    layer = next(layer for layer in cache.layers if isinstance(layer, PolicyLayer))
    attends = getattr(decoder_config(model), "_attn_implementation", None)
    if layer.needs_query and attends != "sdpa":
        raise ValueError(f"evicting: {layer.policy.name} chooses by queries, which it sees in scaled_dot_product_attention alone, and this model attends by {attends}: model.set_attn_implementation('sdpa'), or policy='lagkv'")


def _label(policy: str, budget: int | float, key_bits: int, value_bits: int, **_: Any) -> str:
    bits = "" if key_bits == UNROUNDED else f" {bits_word(key_bits, value_bits)}-bit"
    if policy in COMPACTING:
        return policy + bits
    return (f"{policy} {budget:.3g}" if isinstance(budget, float) else f"{policy} {budget:,}") + bits


BUDGET = Parameter("budget", "Budget", "amount", 256, "Tokens each key head keeps; below 1, the share of those seen.", minimum=16, maximum=1 << 20)
FIRST_TOKENS = Parameter("first_tokens", "First tokens", "int", 4, "First tokens that stay in any case, and unrounded.", minimum=0, maximum=64)
LAST_TOKENS = Parameter("last_tokens", "Latest tokens", "int", 32, "Latest tokens that stay in any case, and unrounded.", minimum=0, maximum=4096)
KEY_BITS = Parameter("key_bits", "Key bits", "choice", UNROUNDED, "Bits of an element of the keys that stay; 16 rounds nothing.", choices=BITS)
VALUE_BITS = Parameter("value_bits", "Value bits", "choice", UNROUNDED, "Bits of an element of the values that stay, which bear fewer than keys do.", choices=BITS)
ENTRY = Entry(
    name="evicting",
    title="Evicting",
    summary="Keeps as many tokens as you say in each head, those that a policy takes for the most needed, and forgets the rest.",
    cache_class=EvictingCache,
    make=EvictingCache,
    parameters=(
        Parameter("policy", "Policy", "choice", "mean_attention", "What chooses the tokens that stay: the attention they got, or what keys and values look like.", choices=tuple(POLICIES), also=tuple(COMPACTING)),
        BUDGET,
        FIRST_TOKENS,
        LAST_TOKENS,
        KEY_BITS,
        VALUE_BITS,
    ),
    lossy=True,
    can=all_but("crop", "drafts", "compile", "export"),
    paper="https://arxiv.org/abs/2306.14048",
    why_not_model=why_not,
    why_not_values=_why_not_values,
    verify=_verify,
    label=_label,
)
