"""Slow obvious formulas of what each lossy cache forgets: keep everything, and work out at each forward what is attended to.

A reference for whole caches, through any model and through `generate`: nothing here evicts, packs, or writes in place.
"""

import math
from collections.abc import Callable

import torch
import transformers
from transformers.cache_utils import CacheLayerMixin

from kvcache.attention import hand_over
from kvcache.caches.evicting import EVERY, PolicyLayer, RoundedPolicyLayer
from kvcache.caches.quantized import QuantizedLayer, QuantizedWindowLayer
from kvcache.caches.sink import QuantizedSinkLayer, SinkLayer
from kvcache.window import Windowed, WindowLayer

Past = Callable[[torch.Tensor, str], torch.Tensor]


class SlowLayer(CacheLayerMixin):
    """All keys and values that came; `past(rows, side)` is what of them the next tokens attend to, besides themselves."""

    is_croppable = True

    def __init__(self, past: Past):
        super().__init__()
        self.past = past

    def lazy_initialization(self, key_states, value_states):
        self.keys, self.values, self.is_initialized = key_states[:, :, :0], value_states[:, :, :0], True

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        attended = torch.cat([self.past(self.keys, "key"), key_states], dim=2), torch.cat([self.past(self.values, "value"), value_states], dim=2)
        self.keys, self.values = torch.cat([self.keys, key_states], dim=2), torch.cat([self.values, value_states], dim=2)
        return attended

    def get_seq_length(self):
        return self.keys.shape[2] if self.is_initialized else 0

    def get_max_length(self):
        return -1

    def get_mask_sizes(self, query_length):
        attended = query_length + (self.past(self.keys, "key").shape[2] if self.is_initialized else 0)
        return attended, self.get_seq_length() + query_length - attended

    def crop(self, tokens):
        length = tokens if tokens > 0 else self.get_seq_length() + tokens
        self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]


def window(layer: Windowed) -> Past:
    """The latest window_length - 1 tokens."""
    return lambda rows, side: rows[:, :, -(layer.window_length - 1) :]


def sinks(layer: SinkLayer | QuantizedSinkLayer) -> Past:
    """The first tokens and the latest, window_length - 1 in all, the first ones' keys rotated by what lies between."""
    count, room = layer.num_sink_tokens, layer.window_length - 1 - layer.num_sink_tokens

    def past(rows, side):
        gap = rows.shape[2] - count - room
        if gap <= 0:
            return rows
        first = rows[:, :, :count]
        return torch.cat([layer.rope.rotate(first, gap) if side == "key" else first, rows[:, :, -room:]], dim=2)

    return past


class RoundedLayer(SlowLayer):
    """Every token; whole blocks behind the `first_tokens`, once they are behind the latest `residual_length` too, as they come back from their codes.

    What is rounded stays so when others go: of a block that a `crop` cuts, the kept tokens keep their rounded values.
    `seen`: what of all those the next tokens attend to.
    """

    def __init__(self, layer: QuantizedLayer, seen: Past = lambda rows, side: rows):
        super().__init__(lambda rows, side: seen(self.rounded(rows, side, self.due()), side))
        self.layer, self.coded, self.is_recording = layer, 0, False

    def activate_past_recording(self):
        self.is_recording = True

    def due(self) -> int:
        """Tokens that the next ones see rounded."""
        return max(self.coded, (self.get_seq_length() - self.layer.first_tokens - self.layer.residual_length) // self.layer.block * self.layer.block)

    def rounded(self, rows, side, coded):
        scheme, first = self.layer.scheme(side, rows.shape[3]), self.layer.first_tokens
        blocks = [scheme.decode(scheme.encode(block), self.layer.block, rows.dtype) for block in rows[:, :, first : first + coded].split(self.layer.block, dim=2) if coded]
        return torch.cat([rows[:, :, :first], *blocks, rows[:, :, first + coded :]], dim=2)

    def update(self, key_states, value_states, *args, **kwargs):
        self.coded = self.due()
        return super().update(key_states, value_states, *args, **kwargs)

    def crop(self, tokens):
        length = tokens if tokens > 0 else self.get_seq_length() + tokens
        coded = self.coded if self.is_recording else self.due()
        self.coded = max(0, min(coded, length - self.layer.first_tokens)) // self.layer.block * self.layer.block
        kept = self.layer.first_tokens + self.coded if self.coded else 0
        self.keys, self.values = (
            torch.cat([rows[:, :, :kept], self.rounded(rows, side, coded)[:, :, kept:length]], dim=2)
            for rows, side in ((self.keys, "key"), (self.values, "value"))
        )


class EvictedLayer(SlowLayer):
    """Every token, and which of them each key head still sees; every query's attention, from which the tokens that stay are chosen, head by head, row by row.

    It is given masks over all tokens, so that padding is what the last query does not see.
    """

    needs_query, why_query = True, "is an oracle"

    def __init__(self, layer: PolicyLayer):
        super().__init__(lambda rows, side: rows)
        self.layer, self.kept, self.got, self.queries = layer, None, None, None

    def lazy_initialization(self, key_states, value_states):
        super().lazy_initialization(key_states, value_states)
        self.kept = torch.ones(*key_states.shape[:2], 0, dtype=torch.bool)

    def update(self, key_states, value_states, *args, **kwargs):
        keys, values = super().update(key_states, value_states)
        self.kept = torch.cat([self.kept, torch.ones(*key_states.shape[:3], dtype=torch.bool)], dim=2)
        return hand_over(self, keys, values, key_states.shape[2])

    def attend(self, query, keys, values, mask, scale, is_causal):
        batch, heads, tokens, _ = keys.shape
        groups, new = query.shape[1] // heads, query.shape[2]
        seen = mask if mask is not None else torch.ones(new, tokens, dtype=torch.bool).tril(tokens - new)[None, None]
        seen = seen.expand(batch, 1, new, tokens) & self.kept[:, :, None]  # [B, H, n, T]
        scaled = query * (scale or query.shape[3] ** -0.5)
        self.queries = scaled if self.queries is None else torch.cat([self.queries, scaled], dim=2)
        keys, values, seen = (each.repeat_interleave(groups, dim=1) for each in (keys, values, seen))
        scores = scaled.float() @ keys.float().transpose(2, 3)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1).nan_to_num()
        before = torch.zeros(*weights.shape[:2], 0, tokens) if self.got is None else torch.nn.functional.pad(self.got, (0, new))
        self.got = torch.cat([before, weights], dim=2)  # [B, Hq, tokens, tokens]
        self.settle([int((~seen[row, :, -1].any(dim=0) & (self.kept[row].all(dim=0))).sum()) for row in range(batch)], new)
        return (weights @ values.float()).to(query.dtype)

    def settle(self, padding, new):
        for row, count in enumerate(padding):
            self.evict(row, count, new)

    @property
    def latest(self):
        """The latest tokens that stay."""
        return self.layer.last_tokens

    def due(self, row, padding, new):
        """Has this row to evict, and down to what?"""
        target = self.layer.target(self.get_seq_length() - padding)
        return int(self.kept[row, 0, padding:].sum()) > target + (0 if new > 1 else EVERY - 1), target

    def evict(self, row, padding, new):
        """`padding`: tokens of this row, its first, that are none."""
        layer, (due, target) = self.layer, self.due(row, padding, new)
        self.target = target
        for head in range(self.kept.shape[1]) if due else ():
            places = [place for place in self.kept[row, head].nonzero().flatten().tolist() if place >= padding]
            scores = SCORES[layer.policy.name](self, layer.policy, row, head, places)
            last = len(places) - self.latest
            ranked = sorted(range(len(places)), key=lambda i: (-(torch.inf if i < layer.first_tokens or i >= last else float(scores[i])), i))
            self.kept[row, head, padding:] = False
            self.kept[row, head, [places[i] for i in ranked[:target]]] = True

    def group(self, row, head):
        """[G, queries, keys]: the attention of the heads that share this key head."""
        groups = self.got.shape[1] // self.kept.shape[1]
        return self.got[row, head * groups : (head + 1) * groups]

    def reorder_cache(self, beams):
        self.keys, self.values, self.kept, self.got, self.queries = (each[beams] for each in (self.keys, self.values, self.kept, self.got, self.queries))


class RoundedEvictedLayer(EvictedLayer):
    """As EvictedLayer; what lies between a row's first and latest tokens is rounded, for the first time behind an eviction, and then as EVERY tokens have come: each token once, and alone.

    From then on none that is not rounded goes.
    """

    def __init__(self, layer: RoundedPolicyLayer):
        super().__init__(layer)
        self.centre, self.rounded, self.padding, self.has_evicted = None, 0, [], False

    @property
    def latest(self):
        return max(self.layer.last_tokens, self.get_seq_length() - self.rounded) if self.rounded else self.layer.last_tokens

    def settle(self, padding, new):
        self.padding, spare, began = padding, 0 if new > 1 else EVERY - 1, self.rounded > 0
        if began:
            self.round(spare)
        targets = [target for due, target in (self.due(row, count, new) for row, count in enumerate(padding)) if due]
        if targets and began and self.layer.first_tokens + self.latest > min(targets):
            self.round(0)
        super().settle(padding, new)
        self.has_evicted |= bool(targets)
        if not began:
            self.round(0 if targets else spare)
        elif targets and max(self.own()) == self.layer.first_tokens + self.layer.last_tokens:
            self.rounded = 0  # no code is left

    def own(self):
        return [int(self.kept[row, 0, padding:].sum()) for row, padding in enumerate(self.padding)]

    def round(self, spare):
        first, last, now = self.layer.first_tokens, self.layer.last_tokens, self.get_seq_length()
        full = now - self.rounded if self.rounded else (max(self.own()) if self.has_evicted else now) - first
        if full - last <= spare or not self.rounded and min(self.own()) <= first + last:
            return
        if not self.rounded:
            means = [[rows[self.kept[row, head]][padding + first :][: -last or None].mean(0, keepdim=True) for head, rows in enumerate(self.keys[row].float())] for row, padding in enumerate(self.padding)]
            self.centre = torch.stack([torch.stack(heads) for heads in means])
        for row, padding in enumerate(self.padding):
            places = slice(max(self.rounded, padding + first), now - last)
            self.keys[row, :, places] = self.decoded("key", self.keys[row, :, places].float() - self.centre[row]) + self.centre[row]
            self.values[row, :, places] = self.decoded("value", self.values[row, :, places])
        self.rounded = now - last

    def decoded(self, side, rows):
        scheme = self.layer.scheme(side, rows.shape[2])
        return scheme.decode(scheme.encode_each(rows[None]), 1, torch.float32)[0]

    def reorder_cache(self, beams):
        super().reorder_cache(beams)
        self.centre = None if self.centre is None else self.centre[beams]


def mean_attention(layer, policy, row, head, places):
    """The attention that each key got of the queries that saw it, which count 1 / e less every `horizon` queries, times the norm of its value."""
    got, now = layer.group(row, head).mean(0), layer.get_seq_length()
    fading = [math.exp(-(now - 1 - query) / policy.horizon) for query in range(now)]
    means = [sum(fading[query] * got[query, place] for query in range(place, now)) / sum(fading[place:]) for place in places]
    return [mean * layer.values[row, head, place].float().norm() for mean, place in zip(means, places)]


def h2o(layer, policy, row, head, places):
    return layer.group(row, head).mean(0).sum(0)[places]


def tova(layer, policy, row, head, places):
    """What the latest query of every head, asked again, gives to what is held now, the same tokens in all."""
    groups = layer.queries.shape[1] // layer.keys.shape[1]
    scores = [layer.keys[row, query // groups, places].float() @ layer.queries[row, query, -1].float() for query in range(layer.queries.shape[1])]
    return torch.stack(scores).softmax(-1).mean(0)


def snapkv(layer, policy, row, head, places):
    """What the latest queries, asked again, give to what is held now."""
    now, count = layer.get_seq_length(), len(places) - policy.window
    groups, keys = layer.queries.shape[1] // layer.keys.shape[1], layer.keys[row, head, places].float()
    got = torch.zeros(len(places))
    for query in range(now - policy.window, now):
        scores = layer.queries[row, head * groups : (head + 1) * groups, query].float() @ keys.T  # [G, places]
        got += scores.masked_fill(torch.tensor(places) > query, -torch.inf).softmax(-1).mean(0)
    near = [range(max(0, i - policy.pooling // 2), min(count, i + policy.pooling // 2 + 1)) for i in range(count)]
    return [sum(got[i] for i in some) / len(some) for some in near] + [torch.inf] * policy.window


def keydiff(layer, policy, row, head, places):
    keys = layer.keys[row, head, places].float()
    anchor = sum(key / key.norm() for key in keys) / len(keys)
    return [-(key @ anchor) / key.norm() / anchor.norm() for key in keys]


def lagkv(layer, policy, row, head, places):
    """Ranks within each part of `lag` tokens that has another behind it; what has none stays, the latest first."""
    lag, first = max(1, min(policy.lag, layer.target // 4)), layer.layer.first_tokens
    scores = [1 + i / len(places) for i in range(len(places))]
    for start in range(first, len(places) - 2 * lag + 1, lag):
        spreads = 0
        for rows in (layer.keys[row, head, places].float(), layer.values[row, head, places].float()):
            part, after = rows[start : start + lag], rows[start + lag : start + 2 * lag]
            low, high = after.min(0).values, after.max(0).values
            spreads = spreads + ((part - low) / (high - low)).std(-1).softmax(-1)
        for rank, i in enumerate(spreads.argsort().tolist()):
            scores[start + i] = rank / lag
    return scores


def expected_attention(layer, policy, row, head, places):
    """By the mean and the covariance matrix of each query head's latest queries."""
    groups, keys, total = layer.queries.shape[1] // layer.keys.shape[1], layer.keys[row, head, places].float(), 0
    for group in range(head * groups, (head + 1) * groups):
        latest = layer.queries[row, group, -policy.window :].float()
        mean, covariance = latest.mean(0), torch.cov(latest.T, correction=0)
        total = total + torch.stack([mean @ key + key @ covariance @ key / 2 for key in keys]).softmax(0)
    return total / groups * layer.values[row, head, places].float().norm(dim=-1)


SCORES = {each.__name__: each for each in (mean_attention, h2o, tova, snapkv, keydiff, lagkv, expected_attention)}
FORMULAS = {
    PolicyLayer: EvictedLayer,
    RoundedPolicyLayer: RoundedEvictedLayer,
    SinkLayer: lambda layer: SlowLayer(sinks(layer)),
    WindowLayer: lambda layer: SlowLayer(window(layer)),
    QuantizedLayer: RoundedLayer,
    QuantizedWindowLayer: lambda layer: RoundedLayer(layer, window(layer)),
    QuantizedSinkLayer: lambda layer: RoundedLayer(layer, sinks(layer)),
}


def slow(cache) -> transformers.Cache:
    """A fresh cache that gives what this one, of layers of the kinds above, should give."""
    if isinstance(cache, transformers.EncoderDecoderCache):
        return transformers.EncoderDecoderCache(slow(cache.self_attention_cache), transformers.DynamicCache())
    result = transformers.DynamicCache()
    result.layers = [FORMULAS[type(layer)](layer) for layer in cache.layers]
    for its, layer in zip(result.layers, cache.layers):
        its.is_sliding = layer.is_sliding
    return result
