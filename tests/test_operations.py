"""Every operation on every cache: it matches an oracle, or it is refused with a sentence. There is no third kind.

Each operation takes a Case and raises AssertionError where the cache is wrong; a ValueError that comes with a sentence
is a refusal, and nothing else that is raised. While a cache has lost nothing the oracle is a run without
a cache; once it has, it is the slow obvious formula of what it forgets (tests/slow.py), or a fresh cache of the same
kind, fed the resulting tokens in the same pieces. Every operation is tried in both ranges.
"""

import copy
import io
import pickle
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import architectures
import pairs
import pytest
import torch
import transformers
from architectures import chunks, logits_with_cache, logits_without_cache, token_ids
from slow import FORMULAS, slow
from stand_in import StandIn, parked

import kvcache
from kvcache import catalog
from kvcache.architecture import cache_argument
from kvcache.caches.offloaded import Offloading
from kvcache.caches.quantized import QuantizedLayer
from kvcache.entry import OPERATIONS as CLAIMS

CLOSE = dict(atol=2e-4, rtol=1e-4)
REFUSALS = (ValueError,)
SETTINGS = dict(max_new_tokens=12, do_sample=False)


@dataclass(frozen=True)
class Case:
    """A cache of the catalog on a model: `wide` parameters lose nothing over 100 tokens, `narrow` ones do."""

    name: str
    architecture: str
    wide: dict
    narrow: dict

    @property
    def model(self):
        return model_of(self.architecture)

    @property
    def assistant(self):
        """A smaller model of the kind that may propose tokens to this one."""
        return model_of(self.architecture if self.model.config.is_encoder_decoder else "llama", layers=1)

    def cache(self, narrow: bool = False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "no accelerator: a pass-through" is said once, and is tested elsewhere
            return kvcache.create(self.name, self.model, **(self.narrow if narrow else self.wide))

    @property
    def loses(self) -> bool:
        """Does it evict or round over 60 tokens with its narrow parameters?"""
        return any(type(layer) in FORMULAS for layer in self.cache(narrow=True).layers)

    @property
    def rounds(self) -> bool:
        return any(isinstance(layer, QuantizedLayer) for layer in self.cache().layers)

    @property
    def ranges(self) -> tuple[bool, ...]:
        """Wide parameters, and for a cache that loses something then, narrow ones."""
        return (False, True) if self.loses else (False,)

    def oracle(self, narrow: bool):
        """What the cache should equal: None for a run without a cache, or the slow formula of what it forgets."""
        return slow(self.cache(narrow=True)) if narrow else None

    def expected(self, ids, bounds, narrow: bool):
        """[B, T, V], what feeding the ids in these pieces should give."""
        oracle = self.oracle(narrow)
        return self.exact(ids) if oracle is None else self.feed(oracle, ids, bounds)

    def exact(self, ids):
        """[B, T, V], without a cache."""
        return forward(self.model, ids, use_cache=False)

    def filled(self, ids, bounds=((0, 60), (60, 61))):
        """A cache in its lossy range that has seen ids[:, :61] in these pieces."""
        cache = self.cache(narrow=True)
        self.feed(cache, ids, bounds)
        return cache

    def generate(self, ids, cache=None, mask=None, **settings):
        """model.generate on `cache`, or without one."""
        how = {"use_cache": False} if cache is None else {cache_argument(self.model): cache}
        return self.model.generate(**self.prompt(ids, mask), **how, **{**SETTINGS, **settings})

    def prompt(self, ids, mask=None):
        """What generate is asked with: the ids, with an encoder the decoder's, and beside them what the encoder hears."""
        mask = torch.ones_like(ids) if mask is None else mask
        if not self.model.config.is_encoder_decoder:
            return {"input_ids": ids, "attention_mask": mask}
        starts = ids[:, 0].tolist()  # else generate would put a start token before them
        return {"input_ids": pairs.sources(ids), "decoder_input_ids": ids, "decoder_attention_mask": mask, "decoder_start_token_id": starts}

    def same(self, ids, cache, oracle, **settings):
        """Generate with both; the ids, which must be the same, and so must the logits that led to them."""
        settings = {**settings, "return_dict_in_generate": True, "output_logits": True}
        ours, right = self.generate(ids, cache, **settings), self.generate(ids, oracle, **settings)
        assert torch.equal(ours.sequences, right.sequences)
        torch.testing.assert_close(torch.stack(ours.logits), torch.stack(right.logits), **CLOSE)
        return ours.sequences

    @torch.no_grad()
    def feed(self, cache, ids, bounds):
        """[B, T, V], the ids fed in these pieces, several tokens to a recurrent state as it takes them."""
        return torch.cat([kvcache.feed(self.model, ids[:, a:b], cache, **beside(self.model, ids)) for a, b in bounds], dim=1)


def model_of(architecture, **kwargs):
    return (pairs if architecture in pairs.MODELS else architectures).model_of(architecture, **kwargs)


def beside(model, ids):
    """What a forward is given beside the decoder's ids [B, T]: to a model with an encoder, its output for these rows."""
    return {"encoder_outputs": (model.get_encoder()(pairs.sources(ids)).last_hidden_state,)} if model.config.is_encoder_decoder else {}


@torch.no_grad()
def forward(model, ids, start=0, stop=None, **kwargs):
    """[B, stop - start, V], the model's own forward of a piece of the ids."""
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    return model(**{name: ids[:, start:stop]}, **beside(model, ids), **kwargs).logits


def as_if_fresh(case, cache, ids, before, after):
    """`cache`, which should have seen the first pieces, goes on like a fresh cache fed the same pieces."""
    expected = case.feed(case.cache(narrow=True), ids, [*before, *after])[:, before[-1][1] :]
    torch.testing.assert_close(case.feed(cache, ids, after), expected, **CLOSE)


BEFORE, AFTER = [(0, 60), (60, 61)], [(61, 62), (62, 63), (63, 70)]


def plain(case):
    ids = token_ids(2, 90)
    for narrow in case.ranges:
        torch.testing.assert_close(case.feed(case.cache(narrow), ids, [(0, 90)]), case.exact(ids), **CLOSE)


def chunked(case):
    for narrow in case.ranges:
        for seed in (1, 2):
            ids, bounds = token_ids(2, 90, seed), chunks(90, seed)
            torch.testing.assert_close(case.feed(case.cache(narrow), ids, bounds), case.expected(ids, bounds, narrow), **CLOSE)


def turns(case):
    """Generate, add a question, generate again on the same cache."""
    for narrow in case.ranges:
        ids, cache, oracle = token_ids(1, 30), case.cache(narrow), case.oracle(narrow)
        for turn in range(3):
            ids = torch.cat([case.same(ids, cache, oracle), token_ids(1, 7, seed=turn)], dim=1)


def crop(case):
    """To a token that is held as it came, and into the first tokens, which a quantised cache holds as codes.

    What it has rounded stays so, and the formula says it; any other cache goes on as if the tokens had never come.
    """
    ids = token_ids(2, 70)
    for length in (40, 20):
        cache, oracle = case.filled(ids), case.oracle(narrow=True) if case.loses else case.cache(narrow=True)
        cache.crop(length)
        assert cache.get_seq_length() == length
        case.feed(oracle, ids, BEFORE if case.loses else [(0, length)])
        if case.loses:
            oracle.crop(length)
        other = torch.cat([ids[:, :length], token_ids(2, 70 - length, seed=8)], dim=1)
        pieces = [(length, length + 1), (length + 1, 70)]
        torch.testing.assert_close(case.feed(cache, other, pieces), case.feed(oracle, other, pieces), **CLOSE)


def reorder(case):
    ids = token_ids(3, 70)
    cache = case.filled(ids)
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    as_if_fresh(case, cache, ids[[2, 0, 0]], BEFORE, AFTER)


def beams(case):
    for narrow in case.ranges:
        ids = token_ids(2, 60 if narrow else 30)
        for count in (4, 40):
            ours, right = (case.generate(ids, cache, num_beams=count) for cache in (case.cache(narrow), case.oracle(narrow)))
            assert torch.equal(ours, right)


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


def pickled(case):
    """Filled and empty, by pickle; a fork, by torch.save, its parent left alone."""
    ids = token_ids(2, 70)
    cache, empty = case.filled(ids), pickle.loads(pickle.dumps(case.cache(narrow=True)))
    twin = pickle.loads(pickle.dumps(cache))
    torch.save(cache.fork(), saved := io.BytesIO())
    saved.seek(0)
    again = torch.load(saved, weights_only=False)
    case.feed(empty, ids, BEFORE)
    for each in (empty, twin, again, cache):
        as_if_fresh(case, each, ids, BEFORE, AFTER)


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
        loaded = kvcache.load_cache(Path(folder) / "cache", case.model)
    as_if_fresh(case, loaded, ids, BEFORE, AFTER)


def reset(case):
    ids = token_ids(2, 70)
    cache = case.filled(token_ids(2, 70, seed=6))
    cache.reset()
    case.feed(cache, ids, BEFORE)
    as_if_fresh(case, cache, ids, BEFORE, AFTER)


def drafts(case):
    """Prompt lookup and an assistant model propose; wrong proposals are taken back.

    Once it rounds, a cache is compared with the formula under the same drafts: the tokens of a draft, fed at once, see
    unrounded what plain decoding would have rounded as they came.
    """
    for narrow in case.ranges:
        ids = token_ids(1, 10).repeat(1, 6 if narrow else 3)
        for how in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": case.assistant}):
            oracle = case.oracle(narrow)
            if oracle is None:
                assert torch.equal(case.generate(ids, case.cache(narrow), **how), case.generate(ids))
            else:
                case.same(ids, case.cache(narrow), oracle, **how)


def padded(case):
    """By name and, as a cache of one's own, through plain model.generate: both are right, or both refuse."""
    for narrow in case.ranges:
        tokens = 60 if narrow else 30
        ids = token_ids(2, tokens)
        mask = torch.ones_like(ids)
        ids[0, :13], mask[0, :13] = 0, 0
        right = case.generate(ids, case.oracle(narrow), mask)
        by_name = {"cache_implementation": case.name, "cache_config": case.narrow if narrow else case.wide}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            refused = attempt(right, case.generate, ids, case.cache(narrow), mask)
            named = attempt(right, kvcache.generate, case.model, **case.prompt(ids, mask), **by_name, **SETTINGS)
        assert str(refused) == str(named)
        if refused is not None:
            raise refused
        if not case.rounds:  # rounding shares scales with the padding; else a row says what it says alone
            assert torch.equal(right[:1, tokens:], case.generate(ids[:1, 13:], case.oracle(narrow))[:, tokens - 13 :])


def attempt(right, generate, *args, **kwargs):
    """The refusal that generating raises, or None once it has given what is right."""
    try:
        ours = generate(*args, **kwargs)
    except REFUSALS as error:
        return error
    assert torch.equal(ours, right)
    return None


def alone(case):
    """Row 0's logits do not depend on row 1."""
    ids = token_ids(2, 70)
    together = case.feed(case.filled(ids), ids[:, 61:], [(0, 1), (1, 9)])[:1]
    torch.testing.assert_close(case.feed(case.filled(ids[:1]), ids[:1, 61:], [(0, 1), (1, 9)]), together, **CLOSE)


def compiled(case):
    ids, cache = token_ids(1, 40), case.cache()
    if not cache.is_compileable:
        raise ValueError("is_compileable is False: its shapes change as it fills")
    case.feed(cache, ids, [(0, 30)])
    model, keyword = case.model, cache_argument(case.model)
    step = torch.compile(lambda piece: model(piece, **{keyword: cache}).logits, fullgraph=True, backend="eager")
    with torch.no_grad():
        ours = torch.cat([step(ids[:, i : i + 1]) for i in range(30, 36)], dim=1)
    torch.testing.assert_close(ours, case.exact(ids)[:, 30:36], **CLOSE)


class Step(torch.nn.Module):
    """One decoding step whose state is the cache's tensors, registered as buffers, as transformers' export recipe does."""

    def __init__(self, model, cache, ids):
        super().__init__()
        self.model, self.cache, self.given = model, cache, beside(model, ids)
        self.name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
        for index, layer in enumerate(cache.layers):
            held = {name: store.data for name, store in layer.buffers().items()}
            counters = {name: value for name, value in vars(layer).items() if isinstance(value, torch.Tensor)}
            for name, tensor in {**held, **counters}.items():
                self.register_buffer(f"{name}_{index}", tensor, persistent=False)

    def forward(self, input_ids):
        return self.model(**{self.name: input_ids, cache_argument(self.model): self.cache}, **self.given, use_cache=True).logits


def exported(case):
    ids, cache = token_ids(1, 40), case.cache()
    case.feed(cache, ids, [(0, 30)])
    with torch.no_grad():
        program = torch.export.export(Step(case.model, cache, ids), (ids[:, 30:31],), strict=True).module()
        ours = torch.cat([program(ids[:, i : i + 1]) for i in range(30, 36)], dim=1)
    torch.testing.assert_close(ours, case.exact(ids)[:, 30:36], **CLOSE)


def offload(case):
    """Every stored tensor leaves for the CPU and comes back, and what is away cannot be read; stand-ins for a second device.

    An offloaded cache is fed through a stand-in for the second stream as well, whose copies come late, or early.
    """
    ids = token_ids(2, 70)
    cache = case.filled(ids)
    for layer in cache.layers:
        with parked(layer):
            layer.offload()
            layer.prefetch()
    as_if_fresh(case, cache, ids, BEFORE, AFTER)
    if isinstance(cache, Offloading):
        model = model_of(case.architecture, layers=4)  # of two layers, both would always be on the device
        for late in (True, False):
            moving = type(cache)(model.config, **case.narrow, link=StandIn(late))
            ahead = fetched_ahead(moving)
            torch.testing.assert_close(logits_with_cache(model, ids, moving, [*BEFORE, *AFTER]), logits_without_cache(model, ids), **CLOSE)
            assert len(ahead) == 4 * len(BEFORE + AFTER) and all(ahead[4:]), "a layer was not there before its turn"
            asked = [what for what, _ in moving.only_link.log]
            assert asked.count("evict") >= 4 * len(AFTER) and len(asked) - asked.count("evict") >= 4 * len(AFTER)


def fetched_ahead(cache):
    """A list that says at each update whether the layer was on its device already; the first one may stay, or come last."""
    ahead, update = [], cache.update

    def noted(key_states, value_states, layer_idx, *args, **kwargs):
        ahead.append(layer_idx in cache.here or layer_idx == 0)
        return update(key_states, value_states, layer_idx, *args, **kwargs)

    cache.update = noted
    return ahead


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
        for narrow in case.ranges:
            tokens = 60 if narrow else 30
            ids, bounds = token_ids(1, tokens + 10), [(0, tokens), *((i, i + 1) for i in range(tokens, tokens + 10))]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cache = kvcache.create(case.name, model, **(case.narrow if narrow else case.wide))
            right = slow(cache) if narrow else native(model)
            ours, theirs = step_by_step(model, ids, cache, bounds), step_by_step(model, ids, right, bounds)
            assert ours.isfinite().all()
            torch.testing.assert_close(ours, theirs, atol=0.15, rtol=0.05)  # bf16 keeps 8 bits: logits of about 10 move by 0.05


def native(model):
    """transformers' own cache without loss."""
    caches = [transformers.DynamicCache(config=model.config) for _ in range(1 + model.config.is_encoder_decoder)]
    return transformers.EncoderDecoderCache(*caches) if len(caches) > 1 else caches[0]


def step_by_step(model, ids, cache, bounds):
    """The plain forwards of a user's own loop."""
    return torch.cat([forward(model, ids, a, b, **{cache_argument(model): cache}) for a, b in bounds], dim=1)


OPERATIONS: dict[str, Callable[[Case], None]] = {
    "plain": plain, "chunked prefill": chunked, "turns": turns, "crop": crop, "reorder": reorder, "beams": beams, "batch": batch,
    "split": split, "deepcopy": deep_copy, "pickle": pickled, "fork": fork, "save": save, "reset": reset, "drafts": drafts, "left padding": padded,
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


FOUR, FEW = dict(key_bits=4, value_bits=4), dict(key_bits=4, value_bits=2)
CHOSEN = {
    "dynamic": Case("dynamic", "llama", {}, {}),
    "static": Case("static", "llama", {"max_cache_len": 128}, {"max_cache_len": 96}),
    "hybrid": Case("hybrid", "gemma3", {"max_cache_len": 128}, {"max_cache_len": 96}),
    "offloaded": Case("offloaded", "llama", {}, {}),
    "offloaded_static": Case("offloaded_static", "llama", {"max_cache_len": 128}, {"max_cache_len": 96}),
    "sliding_window": Case("sliding_window", "llama", {"window_length": 512}, {"window_length": 24}),
    "sink": Case("sink", "llama", {"window_length": 512}, {"window_length": 24}),
    "sliding_window at 4 bits": Case("sliding_window", "llama", {"window_length": 512, "residual_length": 256, **FOUR}, {"window_length": 24, "residual_length": 0, **FOUR}),
    "sink at 4 and 2 bits": Case("sink", "llama", {"window_length": 512, "residual_length": 256, **FEW}, {"window_length": 24, "residual_length": 0, **FEW}),
    "evicting": Case("evicting", "llama", {"budget": 512}, {"budget": 24, "last_tokens": 8}),
    "evicting by snapkv": Case("evicting", "llama", {"budget": 512, "policy": "snapkv"}, {"budget": 0.7, "policy": "snapkv", "last_tokens": 8}),
    "evicting by lagkv": Case("evicting", "llama", {"budget": 512, "policy": "lagkv"}, {"budget": 24, "policy": "lagkv", "last_tokens": 8}),
    "evicting over codes": Case(
        "evicting",
        "llama",
        {"budget": 1024, "last_tokens": 512, "key_bits": 4, "value_bits": 4},
        {"budget": 24, "last_tokens": 8, "key_bits": 4, "value_bits": 2},
    ),
    "evicting by lagkv over codes": Case(
        "evicting",
        "llama",
        {"budget": 1024, "last_tokens": 512, "policy": "lagkv", "key_bits": 4, "value_bits": 4},
        {"budget": 0.6, "last_tokens": 8, "policy": "lagkv", "key_bits": 4, "value_bits": 4},
    ),
    "quantized": Case("quantized", "llama", {"residual_length": 512}, {"residual_length": 16, "q_group_size": 32}),
    "mamba": Case("mamba", "mamba", {}, {}),
    "hybrid_mamba": Case("hybrid_mamba", "jamba", {}, {}),
    "quanto": Case("quanto", "llama", {"residual_length": 512}, {"residual_length": 16, "q_group_size": 32}),
    "hqq": Case("hqq", "llama", {"residual_length": 512}, {"residual_length": 16, "q_group_size": 32}),
    "encoder_decoder": Case("encoder_decoder", "t5", {}, {}),
    "encoder_decoder of quantized": Case(
        "encoder_decoder",
        "t5",
        {"self_cache": "quantized", "residual_length": 512},
        {"self_cache": "quantized", "residual_length": 16, "q_group_size": 32},
    ),
}


def smallest(entry) -> dict:
    """A cache's whole numbers at the least that they may be: where it loses something, if it does."""
    return {parameter.name: parameter.minimum for parameter in entry.parameters if parameter.kind == "int"}


# A cache that nobody chose a case for, such as a new file in kvcache/caches, is tried on a Llama.
CASES = {**{name: Case(name, "llama", {}, smallest(entry)) for name, entry in (catalog.ENTRIES | catalog.OTHERS).items() if name not in CHOSEN}, **CHOSEN}


# -- the tests ----------------------------------------------------------------------------------------------------

def test_every_cache_and_every_operation_is_tried():
    assert {case.name for case in CASES.values()} == {*catalog.ENTRIES, *catalog.OTHERS} and set(OPERATIONS) == set(CLAIMS)
    assert all(case.loses for case in CHOSEN.values() if catalog.entry(case.name).lossy)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", CASES)
def test_it_is_right_or_refused_as_the_catalog_says(name, operation):
    outcome = try_operation(CASES[name], operation)
    claimed = operation in catalog.entry(CASES[name].name).can
    assert (outcome.refused is None) == claimed, outcome.refused or "it works, and the catalog does not say so"
