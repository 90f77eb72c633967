"""Layers that transformers or a model bring themselves, where no layer of ours is for them: indexers, compressors.

Every operation takes along all that such a layer keeps, or is refused; and all of it is counted.
"""

import pytest
import tiny_models
import torch
import transformers

import kvcache
from kvcache.cache import Cache
from kvcache.layer import Stored

KINDS = ("deepseek_v4", "deepseek_v32", "hy_v4", "axk2")
CACHES = {"dynamic": {}, "static": {"max_cache_len": 64}, "offloaded": {}}
IDS = torch.randint(3, 90, (3, 40), generator=torch.Generator().manual_seed(4))
SEEN = 22  # of compressors by 8 and by 4, so both hold made entries and tokens that wait


def filled(model, name: str) -> Cache:
    cache = kvcache.create(name, model, **CACHES[name])
    for piece in IDS[:, :SEEN].split((13, SEEN - 13), dim=1):
        kvcache.feed(model, piece, cache)
    return cache


def selected(cache: Cache) -> Cache:
    cache.batch_select_indices(torch.tensor([2, 0]))
    return cache


def repeated(cache: Cache) -> Cache:
    cache.batch_repeat_interleave(2)
    return cache


def reordered(cache: Cache) -> Cache:
    cache.reorder_cache(torch.tensor([1, 2, 2]))
    return cache


def joined(cache: Cache) -> Cache:
    return type(cache).from_batch_splits(cache.batch_split(3, 2))


OPERATIONS = {selected: [2, 0], repeated: [0, 0, 1, 1, 2, 2], reordered: [1, 2, 2], joined: [0, 1, 2], Cache.fork: [0, 1, 2]}
MADE = [(kind, name) for kind in KINDS for name in CACHES if (kind, name) != ("deepseek_v4", "static")]  # which has no static form


@pytest.fixture(scope="module", params=MADE, ids=lambda made: "-".join(made))
def made(request):
    kind, name = request.param
    model = tiny_models.build(kind)
    return model, name, tiny_models.exact_logits(model, IDS)


def close(found: torch.Tensor, exact: torch.Tensor) -> None:
    assert (found - exact).norm() < 1e-4 * exact.norm()


@torch.no_grad()
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_an_operation_takes_along_all_that_a_native_layer_keeps(made, operation):
    model, name, exact = made
    cache, rows = filled(model, name), OPERATIONS[operation]
    assert not all(isinstance(layer, Stored) for layer in cache.layers)
    cache = operation(cache)
    found = [kvcache.feed(model, piece, cache) for piece in IDS[rows, SEEN:].split((1, 6, 11), dim=1)]
    close(torch.cat(found, dim=1), exact[rows, SEEN:])


@torch.no_grad()
@pytest.mark.parametrize("length", [SEEN - 1, 7, 0])
def test_a_crop_goes_back_rightly_or_is_refused(made, length):
    model, name, exact = made
    cache = filled(model, name)
    assert cache.crop_floor == (0 if cache.is_croppable else SEEN)
    if length < cache.crop_floor:
        with pytest.raises(kvcache.CropError, match=f"cannot go back to {length} of {SEEN} tokens"):
            cache.crop(length or -SEEN)
        length = SEEN
    else:
        cache.crop(length or -SEEN)
    close(kvcache.feed(model, IDS[:, length:], cache), exact[:, length:])


@torch.no_grad()
def test_every_byte_that_a_native_layer_keeps_is_counted(made):
    model, name, _ = made
    cache, storages = filled(model, name), {}
    for layer in cache.layers:
        for value in (part for held in vars(layer).values() for part in (held.values() if isinstance(held, dict) else [held])):
            if isinstance(value, torch.Tensor) and value.dim() > 2:
                storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
    memory = kvcache.measure_memory(cache)
    assert memory.total == sum(storages.values()) and 0 < memory.used <= memory.total


def test_what_grows_beside_a_window_is_not_bounded():
    cache = kvcache.create("dynamic", tiny_models.build("deepseek_v4"))
    assert not cache.bounded and not cache.is_croppable


@torch.no_grad()
def test_a_static_layer_that_cuts_one_storage_in_two_refuses_batch_operations_and_takes_another_prompt():
    model = tiny_models.build("unlimited_ocr", transformers.AutoModelForImageTextToText)
    cache, exact = kvcache.create("static", model, max_cache_len=64), tiny_models.exact_logits(model, IDS)
    kvcache.feed(model, IDS[:, :SEEN], cache)
    for operation in (selected, repeated, reordered, joined):
        with pytest.raises(ValueError, match="cannot be chosen or reordered: its tensors look at one storage"):
            operation(cache)
    close(kvcache.feed(model, IDS[:, SEEN : SEEN + 1], cache), exact[:, SEEN : SEEN + 1])
    cache.reset()
    for length in (9, 30):
        close(kvcache.feed(model, IDS[:, :length], cache), exact[:, :length])
        cache.reset()
