"""Every operation on every cache: it matches an oracle, or it is refused with a sentence. There is no third kind.

Each operation takes a Case and raises AssertionError where the cache is wrong; a ValueError, RuntimeError or
NotImplementedError that comes with a sentence is a refusal. While a cache has lost nothing the oracle is a run without
a cache; once it has, it is a fresh cache of the same kind, fed the resulting tokens in the same pieces.
`python tests/operations.py` prints the table that stands in the README.
"""

import copy
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from architectures import chunks, logits_without_cache, model_of, token_ids

import kvcache
from kvcache.generate import cache_keyword

CLOSE = dict(atol=2e-4, rtol=1e-4)
REFUSALS = (ValueError, RuntimeError, NotImplementedError)
SETTINGS = dict(max_new_tokens=12, do_sample=False)


@dataclass(frozen=True)
class Case:
    """A cache of the catalog on a model: `wide` parameters lose nothing over 100 tokens, `narrow` ones do."""

    name: str
    architecture: str
    wide: dict
    narrow: dict
    rounds_on_crop: bool = False  # a token cut out of a quantised block keeps its rounding

    @property
    def model(self):
        return model_of(self.architecture)

    def cache(self, narrow: bool = False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "no accelerator: a pass-through" is said once, and is tested elsewhere
            return kvcache.create(self.name, self.model, **(self.narrow if narrow else self.wide))

    def filled(self, ids, bounds=((0, 60), (60, 61))):
        """A cache in its lossy range that has seen ids[:, :61] in these pieces."""
        cache = self.cache(narrow=True)
        self.feed(cache, ids, bounds)
        return cache

    def generate(self, ids, cache=None, **settings):
        """model.generate on `cache`, or without one."""
        how = {"use_cache": False} if cache is None else {cache_keyword(self.model): cache}
        return self.model.generate(ids, **how, **SETTINGS, **settings)

    @torch.no_grad()
    def feed(self, cache, ids, bounds):
        """[B, T, V], the ids fed in these pieces, several tokens to a recurrent state as it takes them."""
        return torch.cat([kvcache.feed(self.model, ids[:, a:b], cache) for a, b in bounds], dim=1)


def as_if_fresh(case, cache, ids, before, after):
    """`cache`, which should have seen the first pieces, goes on like a fresh cache fed the same pieces."""
    expected = case.feed(case.cache(narrow=True), ids, [*before, *after])[:, before[-1][1] :]
    torch.testing.assert_close(case.feed(cache, ids, after), expected, **CLOSE)


BEFORE, AFTER = [(0, 60), (60, 61)], [(61, 62), (62, 63), (63, 70)]


def plain(case):
    ids = token_ids(2, 90)
    torch.testing.assert_close(case.feed(case.cache(), ids, [(0, 90)]), logits_without_cache(case.model, ids), **CLOSE)


def chunked(case):
    for seed in (1, 2):
        ids = token_ids(2, 90, seed)
        torch.testing.assert_close(case.feed(case.cache(), ids, chunks(90, seed)), logits_without_cache(case.model, ids), **CLOSE)


def turns(case):
    """Generate, add a question, generate again on the same cache."""
    ids, cache = token_ids(1, 20), case.cache()
    for turn in range(3):
        with_cache = case.generate(ids, cache, attention_mask=torch.ones_like(ids))
        without = case.generate(ids, attention_mask=torch.ones_like(ids))
        assert torch.equal(with_cache, without)
        ids = torch.cat([with_cache, token_ids(1, 7, seed=turn)], dim=1)


def crop(case):
    ids = token_ids(2, 70)
    cache = case.filled(ids)
    other = torch.cat([ids[:, :40], token_ids(2, 30, seed=8)], dim=1)
    cache.crop(40)
    assert cache.get_seq_length() == 40
    if case.rounds_on_crop:
        expected = case.filled(ids, [(0, 40)])
        relative = (case.feed(cache, other[:, 40:], [(0, 10)]) - case.feed(expected, other[:, 40:], [(0, 10)])).norm()
        assert relative < 0.2 * logits_without_cache(case.model, other)[:, 40:50].norm()
        return
    expected = case.feed(case.cache(narrow=True), other, [(0, 40), (40, 41), (41, 70)])[:, 40:]
    torch.testing.assert_close(case.feed(cache, other[:, 40:], [(0, 1), (1, 30)]), expected, **CLOSE)


def reorder(case):
    ids = token_ids(3, 70)
    cache = case.filled(ids)
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    as_if_fresh(case, cache, ids[[2, 0, 0]], BEFORE, AFTER)


def beams(case):
    ids = token_ids(2, 30)
    for count in (4, 40):
        settings = {"num_beams": count, "attention_mask": torch.ones_like(ids)}
        assert torch.equal(case.generate(ids, case.cache(), **settings), case.generate(ids, **settings))


def batch(case):
    ids = token_ids(2, 70)
    cache = case.filled(ids)
    cache.batch_repeat_interleave(3)
    cache.batch_select_indices(torch.tensor([0, 4]))
    as_if_fresh(case, cache, ids, BEFORE, AFTER)


def split(case):
    ids = token_ids(4, 70)
    parts = case.filled(ids).batch_split(4, 2)
    for part, rows in zip(parts, (ids[:2], ids[2:])):
        as_if_fresh(case, part.fork(), rows, BEFORE, AFTER)
    as_if_fresh(case, type(parts[0]).from_batch_splits(parts), ids, BEFORE, AFTER)


def deep_copy(case):
    ids = token_ids(2, 70)
    cache = case.filled(ids)
    twin = copy.deepcopy(cache)
    case.feed(cache, token_ids(2, 9, seed=5), [(0, 9)])
    as_if_fresh(case, twin, ids, BEFORE, AFTER)


def fork(case):
    ids = token_ids(2, 70)
    cache = case.filled(ids)
    first, second = cache.fork(), cache.fork()
    case.feed(first, token_ids(2, 9, seed=5), [(0, 1), (1, 9)])
    as_if_fresh(case, cache, ids, BEFORE, AFTER)
    as_if_fresh(case, second, ids, BEFORE, AFTER)


def save(case):
    ids = token_ids(2, 70)
    cache = case.filled(ids)
    with tempfile.TemporaryDirectory() as folder:
        cache.save(Path(folder) / "cache", case.model)
        loaded = kvcache.load(Path(folder) / "cache", case.model)
    as_if_fresh(case, loaded, ids, BEFORE, AFTER)


def reset(case):
    ids = token_ids(2, 70)
    cache = case.filled(token_ids(2, 70, seed=6))
    cache.reset()
    case.feed(cache, ids, BEFORE)
    as_if_fresh(case, cache, ids, BEFORE, AFTER)


def drafts(case):
    """Prompt lookup and an assistant model propose; wrong proposals are taken back."""
    ids = token_ids(1, 10).repeat(1, 3)
    settings = {"attention_mask": torch.ones_like(ids)}
    expected = case.generate(ids, **settings)
    for how in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": model_of("llama", layers=1)}):
        assert torch.equal(case.generate(ids, case.cache(), **how, **settings), expected)


def padded(case):
    ids = token_ids(2, 30)
    mask = torch.ones_like(ids)
    ids[0, :13], mask[0, :13] = 0, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = kvcache.generate(case.model, ids, cache_implementation=case.name, cache_config=case.wide, attention_mask=mask, **SETTINGS)
    assert torch.equal(ours, case.generate(ids, attention_mask=mask))


def alone(case):
    """Row 0's logits do not depend on row 1."""
    ids = token_ids(2, 70)
    together = case.feed(case.filled(ids), ids[:, 61:], [(0, 1), (1, 9)])[:1]
    torch.testing.assert_close(case.feed(case.filled(ids[:1]), ids[:1, 61:], [(0, 1), (1, 9)]), together, **CLOSE)


def compiled(case):
    ids, cache = token_ids(1, 40), case.cache()
    if not cache.is_compileable:
        raise NotImplementedError("is_compileable is False: its shapes change as it fills")
    case.feed(cache, ids, [(0, 30)])
    model, keyword = case.model, cache_keyword(case.model)
    step = torch.compile(lambda piece: model(piece, **{keyword: cache}).logits, fullgraph=True, backend="eager")
    with torch.no_grad():
        ours = torch.cat([step(ids[:, i : i + 1]) for i in range(30, 36)], dim=1)
    torch.testing.assert_close(ours, logits_without_cache(case.model, ids)[:, 30:36], **CLOSE)


class Step(torch.nn.Module):
    """One decoding step whose state is the cache's tensors, registered as buffers, as transformers' export recipe does."""

    def __init__(self, model, cache):
        super().__init__()
        self.model, self.cache = model, cache
        for index, layer in enumerate(cache.layers):
            held = {name: store.data for name, store in layer.buffers().items()}
            counters = {name: value for name, value in vars(layer).items() if isinstance(value, torch.Tensor)}
            for name, tensor in {**held, **counters}.items():
                self.register_buffer(f"{name}_{index}", tensor, persistent=False)

    def forward(self, input_ids):
        return self.model(input_ids, **{cache_keyword(self.model): self.cache}, use_cache=True).logits


def exported(case):
    ids, cache = token_ids(1, 40), case.cache()
    if not cache.is_compileable:
        raise NotImplementedError("is_compileable is False: its shapes change as it fills")
    case.feed(cache, ids, [(0, 30)])
    with torch.no_grad():
        program = torch.export.export(Step(case.model, cache), (ids[:, 30:31],), strict=True).module()
        ours = torch.cat([program(ids[:, i : i + 1]) for i in range(30, 36)], dim=1)
    torch.testing.assert_close(ours, logits_without_cache(case.model, ids)[:, 30:36], **CLOSE)


def offload(case):
    """Every layer leaves for the CPU and comes back; on any device its storage is where it was sent."""
    ids = token_ids(2, 70)
    cache = case.filled(ids)
    for layer in cache.layers:
        layer.offload()
        layer.prefetch()
    as_if_fresh(case, cache, ids, BEFORE, AFTER)


def move(case):
    cache = case.filled(token_ids(2, 70))
    for layer in cache.layers:
        layer.to("meta")
    assert set(kvcache.measure_memory(cache).devices) <= {"meta"}


def half(case):
    for dtype in (torch.bfloat16, torch.float16):
        model = copy.deepcopy(case.model).to(dtype)
        for parameter in model.parameters():  # float16 ends at 65,504, which large random weights would pass
            parameter.data.mul_(0.5 if parameter.dim() > 1 else 1.0)
        ids, bounds = token_ids(1, 40), [(0, 30), *((i, i + 1) for i in range(30, 40))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            caches = kvcache.create(case.name, model, **case.wide), transformers.DynamicCache(config=model.config)
        ours, theirs = (step_by_step(model, ids, cache, bounds) for cache in caches)
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, theirs, atol=0.15, rtol=0.05)  # bf16 keeps 8 bits: logits of about 10 move by 0.05


@torch.no_grad()
def step_by_step(model, ids, cache, bounds):
    """The plain forwards of a user's own loop."""
    return torch.cat([model(ids[:, a:b], **{cache_keyword(model): cache}).logits for a, b in bounds], dim=1)


OPERATIONS: dict[str, Callable[[Case], None]] = {
    "plain": plain, "chunked prefill": chunked, "turns": turns, "crop": crop, "reorder": reorder, "beams": beams, "batch": batch,
    "split": split, "deepcopy": deep_copy, "fork": fork, "save": save, "reset": reset, "drafts": drafts, "left padding": padded,
    "row alone": alone, "compile": compiled, "export": exported, "offload": offload, "move": move, "half": half,
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """One cell: `refused` is the sentence, or None where the oracle was matched."""

    refused: str | None


def try_operation(case: Case, operation: str) -> Outcome:
    """Run one cell. AssertionError, or any error without a sentence, comes through: that is a bug."""
    torch.manual_seed(0)
    try:
        OPERATIONS[operation](case)
    except AssertionError:
        raise
    except REFUSALS as error:
        sentence = str(error).strip()
        if len(sentence.split()) < 5:
            raise
        return Outcome(sentence)
    return Outcome(None)


CASES = {
    "dynamic": Case("dynamic", "llama", {}, {}),
    "static": Case("static", "llama", {"max_cache_len": 128}, {"max_cache_len": 96}),
    "hybrid": Case("hybrid", "gemma3", {"max_cache_len": 128}, {"max_cache_len": 96}),
    "offloaded": Case("offloaded", "llama", {}, {}),
    "offloaded_static": Case("offloaded_static", "llama", {"max_cache_len": 128}, {"max_cache_len": 96}),
    "sliding_window": Case("sliding_window", "llama", {"window_length": 512}, {"window_length": 24}),
    "sink": Case("sink", "llama", {"window_length": 512}, {"window_length": 24}),
    "quantized": Case("quantized", "llama", {"residual_length": 512}, {"residual_length": 16, "q_group_size": 32}, rounds_on_crop=True),
    "mamba": Case("mamba", "mamba", {}, {}),
    "hybrid_mamba": Case("hybrid_mamba", "jamba", {}, {}),
}
