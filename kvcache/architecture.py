"""What an architecture does with a cache it is given, as far as its config and its code tell: why none, or only some, suit it."""

import copy
import functools
import importlib
import inspect
import sys
from types import ModuleType

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import STATIC_LAYER_TYPE_MAPPING, get_layer_types_and_kwargs
from transformers.distributed.tensor_parallel import get_kv_heads_per_rank
from transformers.masking_utils import create_causal_mask

CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params")  # the first from transformers 5.24 on, the others before
OWN_CACHE = frozenset({"flaubert", "minimax", "xlm", "xlstm"})  # made and kept by their modeling files, unlike anything in transformers' cache_utils
# Wrong in transformers 5.23 and 5.24 with every cache, its own too: measured, see tests/test_architecture.py.
BROKEN = {
    "cpmant": "fails at the second forward on any cache",
    "prophetnet": "computes other logits with a cache than without, whatever the cache",
    "recurrent_gemma": "keeps its recurrent states in the model and not in the cache, so one conversation would go on from another's",
}
# Attention that takes the number of keys for the number of tokens seen: measured, logits off by 10 to 70 % with room for more.
COUNTS_KEYS = frozenset({"fsmt", "gpt_neo", "imagegpt", "kosmos_2_text_model", "led"})
NO_ENCODERS = frozenset({"evolla", "trocr"})  # whose is_decoder=False says nothing of their text
FULL_TYPES = frozenset({"full_attention", "hybrid"})  # hybrid: full attention with a state beside it
RECURRENT_TYPES = frozenset({"linear_attention", "conv", "hybrid", "hybrid_sliding"})  # with a state
WINDOWED_TYPES = ("sliding_attention", "chunked_attention")
IGNORES_WINDOW = frozenset({"moshi", "qwen3_omni_moe_text"})  # whose config has a sliding_window, and whose mask has none
ONE_BY_ONE = frozenset({"fsmt"})  # whose decoder, given a cache, hides no token from those before it


def whole_config(model_or_config: torch.nn.Module | PreTrainedConfig) -> PreTrainedConfig:
    """The config of a model, or the config itself. Raises TypeError for anything else."""
    config = getattr(model_or_config, "config", model_or_config)
    if not isinstance(config, PreTrainedConfig):
        raise TypeError(f"expected a transformers model or config, got {type(model_or_config).__name__}")
    return config


def cache_argument(model: torch.nn.Module) -> str:
    """The argument by which a model's forward takes its cache. A wrapper that names none hands on what its model takes."""
    takes = inspect.signature(model.forward).parameters
    return next((name for name in CACHE_ARGUMENTS if name in takes), usual_cache_argument())


@functools.cache
def usual_cache_argument() -> str:
    """What models of the transformers at hand call their cache, states alone left out."""
    return next(name for name in CACHE_ARGUMENTS if name in inspect.signature(create_causal_mask).parameters)


def decoder_config(model_or_config: torch.nn.Module | PreTrainedConfig) -> PreTrainedConfig:
    """The text decoder's config of a model or a config. Raises TypeError for anything else."""
    whole = whole_config(model_or_config)
    alone = not whole.is_encoder_decoder and getattr(whole, "decoder_layers", None)  # of a BART's decoder without its encoder
    config = whole.get_text_config(decoder=True)
    if (split := getattr(whole, "distributed_config", None)) is not None and config is not whole:
        config = copy.copy(config)
        config.distributed_config = split
    if config.model_type in IGNORES_WINDOW:
        config = copy.copy(config)
        config.layer_types = ["full_attention"] * config.num_hidden_layers
    if getattr(config, "recurrent_kv_cache_mode", None) == "per_loop":
        config = _unrolled(config)
    layers = alone or getattr(config, "num_decoder_layers", None)  # T5's, which may have more or fewer than its encoder
    if layers not in (None, config.num_hidden_layers):
        config = copy.copy(config)
        config.num_hidden_layers = layers
    return config


def _unrolled(config: PreTrainedConfig) -> PreTrainedConfig:
    """Of a model that runs some of its layers several times: a layer more for each further time, behind all others, where Dory puts the keys of those."""
    first, count = config.n_input_layers, config.n_recurrent_layers
    if config.num_hidden_layers != first + count + config.n_output_layers:
        return config  # unrolled already
    config = copy.copy(config)
    config.layer_types = config.layer_types + config.layer_types[first : first + count] * (config.n_recurrent_loops - 1)
    config.num_hidden_layers = len(config.layer_types)
    return config


def processes_of(config: PreTrainedConfig) -> int:
    """How many processes share the key heads of a tensor parallel model, each with as many; 1 where a process has them all. Raises ValueError where they cannot be shared evenly.

    What `from_pretrained` notes in the config of such a model says so.
    """
    split = getattr(config, "distributed_config", None)
    if split is None or split.tp_size in (None, 1):
        return 1
    given = split.tp_plan if isinstance(split.tp_plan, dict) else {}
    own = {} if split.tp_plan == {} else config.base_model_tp_plan or {}
    plan = {name: style for name, style in own.items() if not any(other.endswith(name) for other in given)} | given
    return split.tp_size // get_kv_heads_per_rank(plan, split.tp_size, split.tp_size)


def layer_types(config: PreTrainedConfig) -> list[str]:
    """transformers' type of each layer: full_attention, sliding_attention, linear_attention ..."""
    return get_layer_types_and_kwargs(config)[0]


def other_types(config: PreTrainedConfig) -> list[str]:
    """Types of layers that are neither full attention nor windows nor states: transformers' own serve them in every cache, whole."""
    return sorted(set(layer_types(config)) - {"full_attention", "dummy", *WINDOWED_TYPES, *RECURRENT_TYPES})


def modeling_module(config: PreTrainedConfig) -> ModuleType:
    """The file of the language model that transformers makes of a config. Raises ImportError where there is none, or where it needs what is not installed."""
    if made := _language_model(config):
        return sys.modules[next((cls.__module__ for cls in made.__mro__ if cls.__module__.startswith("transformers.models.")), made.__module__)]
    package, _, name = type(config).__module__.rpartition(".")
    if not package or not name.startswith("configuration_"):
        raise ImportError(f"no modeling file lies beside {type(config).__name__} in {type(config).__module__}")
    return importlib.import_module(f"{package}.{name.replace('configuration_', 'modeling_')}")


def why_not_cached(model_or_config: torch.nn.Module | PreTrainedConfig) -> str | None:
    """Why no cache of this library suits a model, or None: it takes none, has a kind of its own, or reads its tokens in both directions."""
    config = whole_config(model_or_config)
    if reason := why_not_prompted(model_or_config):
        return reason
    text = config.get_text_config(decoder=True).model_type
    made = _language_model(config)  # and not the model at hand, whose forward may be wrapped
    takes = inspect.signature(made.forward).parameters if made else {}
    if "input_ids" in takes and not set(CACHE_ARGUMENTS) & set(takes):
        return f"{config.model_type} takes no cache: its forward has none of {', '.join(CACHE_ARGUMENTS)}"
    if not hasattr(config.get_text_config(decoder=True), "num_hidden_layers"):
        return f"the config of {config.model_type} has no num_hidden_layers: it is of several models, of which each takes a cache of its own"
    if text in OWN_CACHE:
        return f"{text} keeps a cache of a kind of its own, which its modeling file makes"
    if getattr(config.get_text_config(decoder=True), "recurrent_kv_cache_mode", None) == "last_loop":
        return f"{text} with recurrent_kv_cache_mode='last_loop' keeps the keys of one of its loops for all of them, so it says other things than without a cache; load it with 'per_loop'"
    if text in BROKEN:
        return f"{text} {BROKEN[text]}"
    if not config.is_encoder_decoder and not getattr(config, "is_decoder", True) and text not in NO_ENCODERS and _has(config, "create_bidirectional_mask"):
        return f"this {config.model_type} is an encoder by its config: tokens attend to later ones, which a cache can not know; load it with is_decoder=True"
    return None


def why_not_prompted(model: torch.nn.Module) -> str | None:
    """Why a PEFT model with prompt or prefix tuning goes wrong on every cache, or None. Measured with PEFT 0.21 and transformers 5.24, on theirs too."""
    tuned = getattr(model, "active_peft_config", None)
    if not getattr(tuned, "is_prompt_learning", False):
        return None
    kind = getattr(tuned.peft_type, "value", tuned.peft_type)
    return f"PEFT's {kind} puts its {tuned.num_virtual_tokens} virtual tokens before every forward, or into a cache of its own, so with any cache it says other things than without one; use_cache=False is right"


@functools.cache
def counts_from_zero(model_class: type) -> bool:
    """Does a model take `position_ids` that begin at 0? RoBERTa's begin behind the padding's, and it counts them right by itself."""
    if "position_ids" not in inspect.signature(model_class.forward).parameters:
        return False
    return not written_with(model_class, "create_position_ids_from_input_ids")


@functools.cache
def written_with(model_class: type, word: str) -> bool:
    """Is a word in transformers' source of a model?"""
    modules = {cls.__module__ for cls in model_class.__mro__ if cls.__module__.startswith("transformers.models.")}
    return any(word in inspect.getsource(sys.modules[module]) for module in modules)


def tokens_at_once(config: PreTrainedConfig, filled: bool) -> int | None:
    """Most tokens that attention reads right in one forward on a cache, filled or empty; None for any number.

    What stands in the first forward alone is read in both directions by PaliGemma, and never forgotten by Unlimited-OCR: later
    tokens come one by one, and the first forward is to have the whole prompt.
    """
    if config.model_type in ONE_BY_ONE:
        return 1
    return 1 if filled and (_both_ways(config) or "reference_sliding_attention" in layer_types(config)) else None


def why_not_static(config: PreTrainedConfig) -> str | None:
    """Why room for tokens that have not come yet would change a model's results, or None."""
    if config.model_type in COUNTS_KEYS:
        return f"{config.model_type} takes every key there is for a token seen, the empty room of static shapes too"
    if _both_ways(config):
        return f"the {config.model_type} of this model reads a prompt in both directions, the empty room of static shapes too"
    if odd := sorted(set(get_layer_types_and_kwargs(config)[0]) - set(STATIC_LAYER_TYPE_MAPPING)):
        return f"{config.model_type} has layers of type {', '.join(odd)}, of which there is no static form"
    return why_not_exact(config)


def why_not_exact(config: PreTrainedConfig) -> str | None:
    """Why a model needs the keys of all tokens seen and no room for more, or None."""
    if config.model_type == "falcon" and getattr(config, "alibi", False):
        return "falcon with alibi adds a bias as long as all tokens seen, so neither a window nor room for later ones fits beside it"
    if layers := getattr(config, "cross_attention_layers", None):
        return f"layers {list(layers)} of {config.model_type} keep the keys of pictures, which neither a window nor room for later tokens fits"
    return None


def _both_ways(config: PreTrainedConfig) -> bool:
    """Does every token of a forward attend to those after it, too?"""
    return getattr(config, "use_bidirectional_attention", None) in (True, "all")


def _language_model(config: PreTrainedConfig) -> type | None:
    """The class that transformers makes of a config to generate text; None where it knows none."""
    from transformers.models.auto.modeling_auto import (  # here, as it takes a third of a second
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    )

    for mapping in (MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING):
        if type(config) in mapping:
            made = mapping[type(config)]
            return made[0] if isinstance(made, tuple) else made
    return None


def _has(config: PreTrainedConfig, name: str) -> bool:
    """Does the modeling file use this function?"""
    try:
        return hasattr(modeling_module(config), name)
    except ImportError:
        return False
