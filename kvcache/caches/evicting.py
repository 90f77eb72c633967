"""EvictingCache: a budget of tokens a layer and key head, and a policy that chooses which stay."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig

from ..architecture import FULL_TYPES, WINDOWED_TYPES, decoder_config, layer_types
from ..cache import Cache, build_layers
from ..entry import Entry, Parameter, all_but
from ..kernels import attention
from ..kernels.weights import attention_and_shares, latest_shares
from ..layer import Buffer, EvictingLayer, T, capacity_for
from ..policies import COMPACTING, POLICIES, Held, Policy, policy_of
from ..predict import Shape, predicted_rows
from ..refusals import refuse_padding
from ..upstream_quirks import mask_of_forward
from . import sliding_window
from .dynamic import windowed

EVERY = 32  # tokens decoded between two evictions: each looks at all that is held
QUEUE = 8  # queries that wait to have their attention added up, which many together take little longer for than one
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
    def empty(self) -> torch.Tensor:
        """[B]: places of each row that hold none of its tokens, its first."""
        return self.padding.view()[:, 0, 0, 0]

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
        if self.padded and self.held < self.seen:
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
        places = torch.arange(tokens, device=self.device)
        present = (places >= self.empty[:, None])[:, None, None]
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
            self._add(latest_shares(self.queries.view(), self._keys(), self.policy.decay, self.empty if self.padded else None), waiting)
            self.queries.drop_front(waiting)

    def _add(self, shares: torch.Tensor, queries: int) -> None:
        got = self.attention.own()
        got.mul_(self.policy.decay**queries).add_(shares[..., None])

    def _keys(self) -> torch.Tensor:
        return self.key_rows.view()

    def _values(self) -> torch.Tensor:
        return self.value_rows.view()

    # ---------------------------------------------------------------------------------------------------------- eviction

    @torch.no_grad()
    def _evict(self, new: int) -> None:
        """Down to the target after several tokens, and once EVERY more are held after single ones."""
        spare = 0 if new > 1 else EVERY - 1
        if self.padded:
            return self._evict_rows(spare)
        target = self.target(self.seen)
        if self.held > target + spare:
            self._add_up()
            self.keep(self.best(self._shown(slice(None), 0, self.seen, target)))

    def _evict_rows(self, spare: int) -> None:
        """As `_evict`, of padded rows, each of which evicts when it would alone: rows that hold fewer tokens than others have empty places before them."""
        counts = self.padding.view()[:, 0, 0].tolist()
        held = [self.held - empty for empty, _ in counts]
        targets = [min(own, self.target(self.seen - padding)) for own, (_, padding) in zip(held, counts)]
        due = [own > target + spare for own, target in zip(held, targets)]
        if not any(due):
            return
        self._add_up()
        stay = [target if evicts else own for own, target, evicts in zip(held, targets, due)]
        places = [self._places(row, empty, self.seen - padding, count, evicts, max(stay)) for row, ((empty, padding), count, evicts) in enumerate(zip(counts, stay, due))]
        self.keep(torch.cat(places))
        self.padding.own()[:, 0, 0, 0] = torch.tensor([max(stay) - count for count in stay])

    def _places(self, row: int, empty: int, seen: int, count: int, evicts: bool, room: int) -> torch.Tensor:
        """[1, H, room]: what one row of a padded batch keeps, its first places filled with whatever lies first."""
        heads, held = self.key_rows.data.shape[1], self.held
        if evicts:
            kept = self.best(self._shown(slice(row, row + 1), empty, seen, count)) + empty
        else:
            kept = torch.arange(held - count, held, device=self.device)
        return torch.cat([kept.new_zeros(1, heads, room - count), kept.expand(1, heads, -1)], dim=-1)

    def _shown(self, rows: slice, empty: int, seen: int, target: int) -> Held:
        """What a policy is shown of some rows, their first `empty` places left out."""
        def of(buffer: Buffer) -> torch.Tensor | None:
            return None if buffer.data is None else buffer.view()[rows, :, empty:].squeeze(-1)

        queries = self.queries.view()[rows] if self.policy.queries else None
        positions = of(self.positions) - (self.seen - seen) if self.policy.counts else None  # counted without padding
        return Held(self._keys()[rows, :, empty:], self._values()[rows, :, empty:], seen, target, self.first_tokens, self.last_tokens, queries, of(self.attention), positions)

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
        amounts, waiting = predicted_rows(held, shape), min(tokens, self.policy.queries or (1 if self.adds_up and tokens == 1 else 0))
        token, query = 4 * shape.batch * shape.heads * (self.adds_up + self.policy.counts), shape.batch * shape.query_heads * shape.key_dim * shape.itemsize
        amounts["state"] = held * token + waiting * query
        amounts["reserved"] += _spare(held) * token + _spare(waiting) * query
        return amounts


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
    `policy`: a name of kvcache.policies.POLICIES, or one of those with settings of its own. Raises ValueError on values that cannot be, and on models whose
    attention adds a bias by position.
    """

    name = "evicting"
    at_once = AT_ONCE

    def __init__(self, config: PreTrainedConfig, policy: str | Policy = "mean_attention", budget: int | float = 256, first_tokens: int = 4, last_tokens: int = 32):
        config, policy = decoder_config(config), policy_of(policy)
        values = {"policy": policy, "budget": BUDGET.check(budget), "first_tokens": FIRST_TOKENS.check(first_tokens), "last_tokens": LAST_TOKENS.check(last_tokens)}
        if reason := why_not(config) or _why_not_values(config, values):
            raise ValueError(f"EvictingCache: {reason}")
        super().__init__(build_layers(config, {"full_attention": lambda **_: PolicyLayer(**values), **dict.fromkeys(WINDOWED_TYPES, windowed)}))

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
    if policy.needs_query and config.model_type in AROUND:
        return f"the attention of {config.model_type} changes what the cache hands over before it attends, so that {policy.name} sees no query; lagkv and keydiff ask for none"
    if policy.needs_query and getattr(config, "qk_nope_head_dim", None) is not None:
        return f"{config.model_type} keeps latents, to which no query attends as they are: {policy.name} cannot score them, lagkv and keydiff can"
    return None


def _verify(model: torch.nn.Module, cache: Cache) -> None:
    layer = next(layer for layer in cache.layers if isinstance(layer, PolicyLayer))
    attends = getattr(decoder_config(model), "_attn_implementation", None)
    if layer.needs_query and attends != "sdpa":
        raise ValueError(f"evicting: {layer.policy.name} chooses by queries, which it sees in scaled_dot_product_attention alone, and this model attends by {attends}: model.set_attn_implementation('sdpa'), or policy='lagkv'")


def _label(policy: str, budget: int | float, **_: Any) -> str:
    if policy in COMPACTING:
        return policy
    return f"{policy} {budget:.3g}" if isinstance(budget, float) else f"{policy} {budget:,}"


BUDGET = Parameter("budget", "Budget", "amount", 256, "Tokens each key head keeps; below 1, the share of those seen.", minimum=16, maximum=1 << 20)
FIRST_TOKENS = Parameter("first_tokens", "First tokens", "int", 4, "First tokens that stay in any case.", minimum=0, maximum=64)
LAST_TOKENS = Parameter("last_tokens", "Latest tokens", "int", 32, "Latest tokens that stay in any case.", minimum=0, maximum=4096)
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
    ),
    lossy=True,
    can=all_but("crop", "drafts", "compile", "export"),
    paper="https://arxiv.org/abs/2306.14048",
    why_not_model=why_not,
    why_not_values=_why_not_values,
    verify=_verify,
    label=_label,
)
