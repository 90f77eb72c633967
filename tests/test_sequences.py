"""Whole caches under random operations, against plain lists of tokens: a fresh cache of the kind is fed what is left, in the same pieces.

What a quantised cache has rounded stays rounded when other tokens go, so there it is the slow formula that lives through the same.
"""

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import pairs
import pytest
import torch
from architectures import model_of, token_ids
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from slow import slow

import kvcache
from kvcache.caches.quantized import QuantizedLayer

CLOSE = dict(atol=2e-4, rtol=1e-4)
QUANTIZED = {"residual_length": 0, "q_group_size": 32, "nbits": 4}
ROUNDED = {"residual_length": 0, "key_bits": 4, "value_bits": 4}
KINDS = {
    "dynamic": {},
    "static": {"max_cache_len": 96},
    "offloaded": {},
    "offloaded_static": {"max_cache_len": 96},
    "sliding_window": {"window_length": 8},
    "sink": {"window_length": 8, "num_sink_tokens": 2},
    "sliding_window of codes": {"window_length": 40, **ROUNDED},
    "sink of codes": {"window_length": 40, "num_sink_tokens": 2, **ROUNDED},
    "quantized": QUANTIZED,
    "hqq": QUANTIZED,
    "encoder_decoder": {"self_cache": "quantized", **QUANTIZED},
}
ROOM = 90
STEP = st.one_of(
    st.tuples(st.just("feed"), st.integers(1, 20)),
    st.tuples(st.just("feed"), st.just(40)),
    st.tuples(st.just("crop"), st.integers(-12, 40)),
    st.tuples(st.sampled_from(["fork", "reorder", "repeat", "select", "save", "reset"]), st.integers(0, 3)),
)


class Story:
    """A cache and what has happened to it: tokens [B, n] that came, and lengths that it was taken back to."""

    def __init__(self, name: str):
        self.name, self.parameters, self.model = name.split()[0], KINDS[name], pairs.model_of("t5") if name == "encoder_decoder" else model_of("llama", layers=2)
        self.cache = self.fresh()
        self.history: list[torch.Tensor | int] = []
        self.heard = pairs.ids(2, 15)  # what an encoder, where there is one, is given for each row
        self.others = []  # forks with what has happened to them
        self.seed = 0

    def fresh(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "moves nothing" on a machine without accelerator
            return kvcache.create(self.name, self.model, **self.parameters)

    @property
    def own(self):
        """The cache, or its side that the decoder's tokens are in."""
        return getattr(self.cache, "self_attention_cache", self.cache)

    @property
    def rounds(self) -> bool:
        return isinstance(self.own.layers[0], QuantizedLayer) if self.own.layers else False

    @property
    def pieces(self) -> list[torch.Tensor]:
        """The tokens that are left, in the pieces in which they came."""
        pieces = []
        for each in self.history:
            if isinstance(each, torch.Tensor):
                pieces.append(each)
                continue
            while sum(piece.shape[1] for piece in pieces) > each:
                last = pieces.pop()
                kept = each - sum(piece.shape[1] for piece in pieces)
                pieces += [last[:, :kept]] if kept > 0 else []
        return pieces

    @property
    def seen(self) -> int:
        return sum(piece.shape[1] for piece in self.pieces)

    @torch.no_grad()
    def logits(self, cache, tokens: torch.Tensor) -> torch.Tensor:
        beside = {"encoder_outputs": (self.model.get_encoder()(self.heard).last_hidden_state,)} if self.model.config.is_encoder_decoder else {}
        return kvcache.feed(self.model, tokens, cache, **beside)

    def expected(self) -> torch.Tensor:
        """The logits of the last piece."""
        oracle = slow(self.fresh()) if self.rounds else self.fresh()
        for each in self.history if self.rounds else self.pieces:
            if isinstance(each, torch.Tensor):
                logits = self.logits(oracle, each)
            else:
                oracle.crop(each - oracle.get_seq_length())
        return logits

    def feed(self, n: int) -> None:
        """New tokens: the logits are those of what is left."""
        if self.seen + n > ROOM:
            return
        self.seed += 1
        self.history = [*self.history, token_ids(len(self.heard), n, self.seed)]
        torch.testing.assert_close(self.logits(self.cache, self.history[-1]), self.expected(), **CLOSE)

    def crop(self, amount: int) -> None:
        """Taken back as a list would be, or refused with the cache unchanged; blocks that stay whole stay codes."""
        length = min(amount, self.seen) if amount > 0 else self.seen + amount
        if length < 0 or length < min(self.own.crop_floor, self.seen):
            with pytest.raises(kvcache.CropError):
                self.cache.crop(amount)
            return
        codes = self.own.layers[0].quantized if self.rounds else 0
        behind = max(0, length - self.own.layers[0].first_tokens - self.own.layers[0].dropped) if self.rounds else 0
        self.cache.crop(amount)
        self.history = [*self.history, length] if length else []
        assert not self.rounds or self.own.layers[0].quantized == min(codes, behind) // 32 * 32

    def on_rows(self, index: torch.Tensor) -> None:
        """The rows that an operation has left, everywhere."""
        self.history = [each[index] if isinstance(each, torch.Tensor) else each for each in self.history]
        self.heard = self.heard[index]

    def fork(self, which: int) -> None:
        other = self.cache.fork()
        mine, theirs = (self.cache, other) if which % 2 else (other, self.cache)
        self.cache = mine
        self.others.append((theirs, self.history, self.heard))

    def reorder(self, seed: int) -> None:
        if not self.seen:
            return
        index = torch.randint(0, len(self.heard), (len(self.heard),), generator=torch.Generator().manual_seed(seed))
        self.cache.reorder_cache(index)
        self.on_rows(index)

    def repeat(self, times: int) -> None:
        if self.seen and len(self.heard) * (times + 1) <= 4:
            self.cache.batch_repeat_interleave(times + 1)
            self.on_rows(torch.arange(len(self.heard)).repeat_interleave(times + 1))

    def select(self, row: int) -> None:
        if self.seen:
            keep = torch.tensor([row % len(self.heard)])
            self.cache.batch_select_indices(keep)
            self.on_rows(keep)

    def save(self, _) -> None:
        if self.seen:
            with TemporaryDirectory() as folder:
                self.cache.save(Path(folder) / "it", self.model)
                self.cache = kvcache.load_cache(Path(folder) / "it", self.model)

    def reset(self, _) -> None:
        self.cache.reset()
        self.history = []

    def check(self) -> None:
        assert self.cache.get_seq_length() == self.cache.tokens_seen == self.seen
        assert not self.seen or sum(count for _, count in self.own.token_fates()) == self.seen


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(STEP, min_size=5, max_size=9))
@example([("feed", 20), ("crop", 40), ("feed", 20), ("crop", 20), ("fork", 1), ("feed", 40), ("crop", -30), ("save", 0)])  # into two blocks
def test_any_sequence_of_operations_leaves_what_a_list_would_hold(name, steps):
    story = Story(name)
    story.feed(25)
    for operation, amount in steps:
        getattr(story, operation)(amount)
        story.check()
    story.feed(1)
    story.feed(5)
    for cache, history, heard in story.others:  # no fork has noticed anything
        story.cache, story.history, story.heard = cache, history, heard
        story.check()
        story.feed(2)
