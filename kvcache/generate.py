"""Generate with a cache by name, as `cache_implementation=` did, and go on with a smaller one when memory runs out."""

from __future__ import annotations  # transformers.PreTrainedModel takes a second to import

import contextlib
import dataclasses
import gc
import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import transformers

from .architecture import CACHE_ARGUMENTS, cache_argument, decoder_config
from .cache import Cache
from .caches.dynamic import DynamicCache
from .caches.encoder_decoder import EncoderDecoderCache
from .caches.quantized import QuantizedCache, class_of
from .catalog import ENTRIES, OTHERS, create, entry
from .configs import NBITS, CacheConfig, QuantizedCacheConfig, settings_of
from .entry import Entry
from .refusals import refuse_padding
from .weights import device_of

log = logging.getLogger(__name__)

LADDER = ("offloaded", "quantized", "offloaded_static")
# What allocators say, CPU's and accelerators', where they raise a plain RuntimeError.
OUT_OF_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "alloc_failed")


def generate(
    model: transformers.PreTrainedModel,
    inputs: torch.Tensor | None = None,
    *,
    cache_implementation: str | None = None,
    cache_config: CacheConfig | Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """`model.generate(inputs, **kwargs)` with a fresh cache by its name in the catalog, which are 4.48's names too.

    `cache_config`: its parameters, as a dict or a config object; max_cache_len defaults to what this call needs. What is not given here the call's
    `generation_config` says, else the model's own, else it is "dynamic". The cache goes in as `cache`, `past_key_values` or `cache_params`, whichever the model takes. Raises ValueError, before anything
    runs, as `create` does, and for left-padded rows with a cache that would take the padding for tokens.
    """
    keyword = cache_argument(model)
    cache_implementation, cache_config = _asked_for(model, cache_implementation, cache_config, kwargs)
    if given := next((name for name in CACHE_ARGUMENTS if kwargs.get(name) is not None), None):
        raise ValueError(f"generate was given cache_implementation={cache_implementation!r} and also {given}; model.generate takes a cache of yours")
    if kwargs.get("use_cache") is False:
        raise ValueError(f"generate was given use_cache=False and also cache_implementation={cache_implementation!r}; leave use_cache out, or call model.generate(use_cache=False)")
    kwargs["use_cache"] = True  # whatever the model's own settings say: without, each step would give the cache all tokens again
    cache = make_cache(model, cache_implementation, cache_config, _tokens_needed(model, inputs, kwargs))
    if not cache.takes_left_padding:
        refuse_padding(cache, _mask(model, inputs, kwargs))
    if model.config.is_encoder_decoder and not isinstance(cache, EncoderDecoderCache):
        cache = EncoderDecoderCache(cache, DynamicCache())
    configs = (model.generation_config, kwargs.get("generation_config"))
    if any(getattr(config, "cache_implementation", None) for config in configs):
        kwargs["cache_implementation"] = None  # transformers refuses a name beside a cache
    positional = () if inputs is None else (inputs,)  # Whisper's first argument has another name
    with _emptied(model, cache):
        return model.generate(*positional, **{keyword: cache}, **kwargs)


@contextlib.contextmanager
def _emptied(model: transformers.PreTrainedModel, cache: Cache) -> Iterator[None]:
    """While this lasts, what an encoder reads anew meets an empty cache: Whisper's generate runs once for each window of a long sound, and once for each temperature."""
    hook = model.get_encoder().register_forward_pre_hook(lambda *_: cache.reset()) if model.config.is_encoder_decoder else None
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()


def _asked_for(model: transformers.PreTrainedModel, name: str | None, config: CacheConfig | Mapping[str, Any] | None, kwargs: Mapping[str, Any]) -> tuple[str, Any]:
    """(name, cache_config) of the cache for a call: as given, else as its generation config says, else as the model's. A cache_config is for the name beside it alone."""
    name = name or settings_of(config).get("cache_implementation")
    for where, source in (("generation_config", kwargs.get("generation_config")), ("model.generation_config", model.generation_config)):
        its_name, its_config = (getattr(source, field, None) for field in ("cache_implementation", "cache_config"))
        its_name = its_name or settings_of(its_config).get("cache_implementation")
        if name is None and its_name is not None and its_name not in (*ENTRIES, *OTHERS):
            raise ValueError(f"{where} asks for cache_implementation={its_name!r}, which kvcache has not; there are {', '.join([*ENTRIES, *OTHERS])}, to be given as cache_implementation=")
        name = name or its_name
        if config is None and (its_name is None or its_name == name):
            config = its_config
    return name or "dynamic", config


def make_cache(
    model: transformers.PreTrainedModel, name: str, cache_config: CacheConfig | Mapping[str, Any] | None = None, max_cache_len: int | None = None
) -> Cache:
    """A fresh cache for `model` from a name and its parameters; of `max_cache_len` tokens if it has to have a length.

    Beyond the catalog's parameters `cache_config` may hold whatever the class itself takes, such as compute_dtype.
    Raises ValueError, with the reason and what would do.
    """
    offer, settings = entry(name), settings_of(cache_config)
    meant = settings.pop("cache_implementation", None) or name
    if meant != name and not issubclass(offer.cache_class, entry(meant).cache_class):
        raise ValueError(f"cache_config is for {meant!r} and cache_implementation is {name!r}")
    known = offer.known(settings)
    if "max_cache_len" in known and max_cache_len is not None:
        settings.setdefault("max_cache_len", max(max_cache_len, known["max_cache_len"].minimum))
    if issubclass(offer.cache_class, QuantizedCache) and settings:
        return _quantized(offer, model, settings)
    return create(name, model, **settings) if settings.keys() <= known.keys() else _construct(offer, model, settings)


def _quantized(offer: Entry, model: transformers.PreTrainedModel, settings: dict[str, Any]) -> QuantizedCache:
    """A quantised cache from what 4.48's config object holds, its axes as numbers too, and what our class takes beside."""
    _refuse_unfit(offer, model)
    backend = offer.name if offer.name in NBITS else settings.get("backend", offer.defaults().get("backend"))
    if str(settings.get("backend", backend)).lower() != str(backend).lower():
        raise ValueError(f"cache_config is for the backend {settings['backend']!r} and cache_implementation is {offer.name!r}")
    fields = {field.name for field in dataclasses.fields(QuantizedCacheConfig)}
    beside = {name: value for name, value in settings.items() if name in offer.known({}) and name not in fields}
    defaults = {name: value for name, value in offer.defaults().items() if name in fields}
    given = {name: value for name, value in settings.items() if name not in beside}
    checked = QuantizedCacheConfig.from_dict({**defaults, "compute_dtype": torch.float32, **given, "backend": backend})
    return class_of(checked.backend)(config=decoder_config(model), cache_config=checked, **beside)


def _construct(offer: Entry, model: transformers.PreTrainedModel, settings: dict[str, Any]) -> Cache:
    takes = [name for name in inspect.signature(offer.cache_class).parameters if name not in ("config", "cache_config")]
    unknown = [name for name in settings if name not in takes]
    if unknown:
        raise ValueError(f"{offer.name} has no parameter {', '.join(map(repr, unknown))}; it takes {', '.join(takes) or 'no parameters'}")
    _refuse_unfit(offer, model)
    cache = offer.cache_class(config=decoder_config(model), **settings)
    offer.verify(model, cache)
    return cache


def _refuse_unfit(offer: Entry, model: transformers.PreTrainedModel) -> None:
    if reason := offer.why_not_here() or offer.why_not(model):
        raise ValueError(f"{offer.name}: {reason}")


def resilient_generate(
    model: transformers.PreTrainedModel,
    inputs: torch.Tensor | None = None,
    *,
    cache_implementation: str | None = None,
    cache_config: CacheConfig | Mapping[str, Any] | None = None,
    ladder: Iterable[str | tuple[str, CacheConfig | Mapping[str, Any]]] = LADDER,
    **kwargs: Any,
) -> Any:
    """`generate`, and if memory runs out, once more with each smaller cache on the `ladder` until one gets through.

    Rungs are names, or (name, cache_config). What was freed is free before the next attempt, which draws the same
    random numbers. The result's attribute `cache_implementation` says which cache it took, and a warning is logged
    when it is not the first. Raises torch.OutOfMemoryError with all that was tried; any other error at once.
    """
    if kwargs.get("streamer") is not None:
        raise ValueError("resilient_generate takes no streamer: a second attempt would stream its tokens again")
    first = _asked_for(model, cache_implementation, cache_config, kwargs)
    rungs = [first, *((rung, {}) if isinstance(rung, str) else rung for rung in ladder)]
    state, tried = _random_state(device_of(model)), []
    for name, config in rungs:
        failure = _unfit(model, name, config) if tried else None
        if failure is None:
            output, failure = _attempt(model, inputs, cache_implementation=name, cache_config=config, **kwargs)
        if failure is None:
            if tried:
                log.warning("generated with the %s cache after %s", name, "; ".join(tried))
            output.cache_implementation = name
            return output
        tried.append(f"{name}: {failure}")
        _free(device_of(model))
        _restore(state)
    raise torch.OutOfMemoryError(f"out of memory with every cache that was tried: {'; '.join(tried)}")


def _attempt(model: Any, inputs: Any, **kwargs: Any) -> tuple[Any, str | None]:
    """(output, None), or (None, why memory ran out). The error ends here: its traceback would keep the tensors alive."""
    try:
        return generate(model, inputs, **kwargs), None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None, _first_line(error)


def _unfit(model: transformers.PreTrainedModel, name: str, cache_config: Any) -> str | None:
    """Why a rung is no cache for this model, or None. The first cache is asked for by name, so there this is an error."""
    try:
        make_cache(model, name, cache_config)
    except ValueError as error:
        return _first_line(error)
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Is this an allocator, on whatever device, that could not?"""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in OUT_OF_MEMORY_TEXTS)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _free(device: torch.device) -> None:
    """Give memory that nothing refers to back to the device."""
    gc.collect()
    empty = getattr(_module_of(device), "empty_cache", None)
    if empty is not None:
        empty()


def _module_of(device: torch.device) -> Any:
    """torch.cuda, torch.xpu ... of a device; None where torch has none."""
    return getattr(torch, device.type, None)


def _random_state(device: torch.device) -> list[tuple[Any, torch.Tensor]]:
    """(what holds a random state, the state), of the CPU and of the model's device."""
    modules = [torch.random] if device.type == "cpu" else [torch.random, _module_of(device)]
    return [(module, module.get_rng_state()) for module in modules if hasattr(module, "get_rng_state")]


def _restore(states: list[tuple[Any, torch.Tensor]]) -> None:
    for module, state in states:
        module.set_rng_state(state)


def _tokens_needed(model: transformers.PreTrainedModel, inputs: torch.Tensor | None, kwargs: Mapping[str, Any]) -> int:
    """Tokens that a call can come to: its prompt, as many new ones as it may generate (transformers' default is 20), and a draft looked up beside them."""

    def limit(name: str) -> int | None:
        return _setting(model, kwargs, name)

    prompt = 1 if model.config.is_encoder_decoder else 0
    for given in (kwargs.get("decoder_input_ids"), *(() if model.config.is_encoder_decoder else _prompts(inputs, kwargs))):
        prompt = max(prompt, 0 if given is None else given.shape[1])
    draft = limit("prompt_lookup_num_tokens")
    beside = draft + 1 if draft else 0
    wanted = limit("max_cache_len") or 0  # a setting of transformers for static caches
    if limit("max_new_tokens") is not None:
        return max(wanted, prompt + limit("max_new_tokens") + beside)
    return max(wanted, max(prompt + 20, limit("max_length") or 0) + beside)


def _setting(model: transformers.PreTrainedModel, kwargs: Mapping[str, Any], name: str) -> Any:
    """A setting of a call as transformers finds it: the argument, else the given generation config's, else the model's own."""
    found = (kwargs.get(name), *(getattr(config, name, None) for config in (kwargs.get("generation_config"), model.generation_config)))
    return next((value for value in found if value is not None), None)


def _prompts(inputs: torch.Tensor | None, kwargs: Mapping[str, Any]) -> tuple[torch.Tensor | None, ...]:
    return (inputs, kwargs.get("input_ids"), kwargs.get("inputs_embeds"))


def _mask(model: transformers.PreTrainedModel, inputs: torch.Tensor | None, kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The mask of a call's decoder tokens: as given or, without one, by the padding token, as generate infers it."""
    if model.config.is_encoder_decoder:
        return kwargs.get("decoder_attention_mask")
    if kwargs.get("attention_mask") is not None:
        return kwargs["attention_mask"]
    ids = next((given for given in _prompts(inputs, kwargs) if given is not None and given.dim() == 2), None)
    pad, ends = (_setting(model, kwargs, name) for name in ("pad_token_id", "eos_token_id"))
    if ids is None or pad is None or pad in (ends if isinstance(ends, (list, tuple)) else [ends]):
        return None
    return ids != pad
