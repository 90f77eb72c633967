"""Whole caches under random operations, against a plain list of tokens and a fresh cache that is fed the same pieces."""

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from architectures import logits_with_cache, model_of, token_ids
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvcache

CLOSE = dict(atol=2e-4, rtol=1e-4)
MODEL = model_of("llama", layers=2)
KINDS = {
    "dynamic": {},
    "static": {"max_cache_len": 96},
    "offloaded": {},
    "offloaded_static": {"max_cache_len": 96},
    "sliding_window": {"window_length": 8},
    "sink": {"window_length": 8, "num_sink_tokens": 2},
    "quantized": {"residual_length": 0, "q_group_size": 32, "nbits": 8},
    "hqq": {"residual_length": 0, "q_group_size": 32, "nbits": 8},
}
ROOM = 90
STEP = st.one_of(
    st.tuples(st.just("feed"), st.integers(1, 20)),
    st.tuples(st.just("feed"), st.just(40)),
    st.tuples(st.just("crop"), st.integers(-12, 40)),
    st.tuples(st.sampled_from(["fork", "reorder", "repeat", "select", "save", "reset"]), st.integers(0, 3)),
)


class Story:
    """A cache and what should be in it: rows of tokens, and the pieces in which those that are left came."""

    def __init__(self, name: str):
        self.name, self.cache = name, self.fresh(name)
        self.rows, self.pieces = torch.zeros(2, 0, dtype=torch.long), []
        self.others = []  # forks with what should be in them
        self.seed = 0

    def fresh(self, name: str):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "moves nothing" on a machine without accelerator
            return kvcache.create(name, MODEL, **KINDS[name])

    @property
    def seen(self) -> int:
        return self.rows.shape[1]

    def feed(self, n: int, _=None) -> None:
        """New tokens: the logits are those of a fresh cache fed all that is left, in the same pieces."""
        if self.seen + n > ROOM:
            return
        self.seed += 1
        new = token_ids(self.rows.shape[0], n, self.seed)
        self.rows, self.pieces = torch.cat([self.rows, new], dim=1), [*self.pieces, (self.seen, self.seen + n)]
        ours = logits_with_cache(MODEL, new, self.cache, [(0, n)])
        torch.testing.assert_close(ours, logits_with_cache(MODEL, self.rows, self.fresh(self.name), self.pieces)[:, -n:], **CLOSE)

    def crop(self, amount: int) -> None:
        """Taken back as a list would be, or refused with the cache unchanged."""
        length = min(amount, self.seen) if amount > 0 else self.seen + amount
        if length < 0 or length < min(self.cache.crop_floor, self.seen):
            with pytest.raises(kvcache.CropError):
                self.cache.crop(amount)
            return
        if self.name in ("quantized", "hqq") and length < self.cache.layers[0].quantized:
            return  # a token cut out of a block keeps its rounding: tests/test_caches.py measures that
        self.cache.crop(amount)
        self.rows = self.rows[:, :length]
        self.pieces = [(a, min(b, length)) for a, b in self.pieces if a < length]

    def fork(self, which: int) -> None:
        other = self.cache.fork()
        mine, theirs = (self.cache, other) if which % 2 else (other, self.cache)
        self.cache = mine
        self.others.append((theirs, self.rows, list(self.pieces)))

    def reorder(self, seed: int) -> None:
        if not self.seen:
            return
        index = torch.randint(0, len(self.rows), (len(self.rows),), generator=torch.Generator().manual_seed(seed))
        self.cache.reorder_cache(index)
        self.rows = self.rows[index]

    def repeat(self, times: int) -> None:
        if self.seen and len(self.rows) * (times + 1) <= 4:
            self.cache.batch_repeat_interleave(times + 1)
            self.rows = self.rows.repeat_interleave(times + 1, dim=0)

    def select(self, row: int) -> None:
        if self.seen:
            keep = torch.tensor([row % len(self.rows)])
            self.cache.batch_select_indices(keep)
            self.rows = self.rows[keep]

    def save(self, _) -> None:
        if self.seen:
            with TemporaryDirectory() as folder:
                self.cache.save(Path(folder) / "it", MODEL)
                self.cache = kvcache.load(Path(folder) / "it", MODEL)

    def reset(self, _) -> None:
        self.cache.reset()
        self.rows, self.pieces = self.rows[:, :0], []

    def check(self) -> None:
        assert self.cache.get_seq_length() == self.cache.tokens_seen == self.seen
        assert not self.seen or sum(count for _, count in self.cache.token_fates()) == self.seen


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(STEP, min_size=5, max_size=9))
def test_any_sequence_of_operations_leaves_what_a_list_would_hold(name, steps):
    story = Story(name)
    story.feed(25)
    for operation, amount in steps:
        getattr(story, operation)(amount)
        story.check()
    story.feed(1)
    story.feed(5)
    for cache, rows, pieces in story.others:  # no fork has noticed anything
        story.cache, story.rows, story.pieces = cache, rows, pieces
        story.check()
        story.feed(2)
