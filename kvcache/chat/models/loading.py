"""A folder of safetensors becomes a `LoadedModel`. A repository's own Python code is never run."""

from __future__ import annotations

import inspect
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

from ... import bundled
from ...architecture import (
    CACHE_ARGUMENTS,
    RECURRENT_TYPES,
    cache_argument,
    counts_from_zero,
    layer_types,
    tokens_at_once,
    usual_cache_argument,
    why_not_cached,
)
from ...recurrent import CARRIES
from ...weights import LOADING, device_of
from ..decode_step import CompiledStep
from .hub import download, require_safetensors
from .menu import ModelChoice, ModelError, Progress, find_folder, first_line, report
from .room import require_memory, weights_in

# Model types whose encoder reads text and whose decoder goes on from a cache: measured, see tests/test_seq2seq.py.
TEXT_TO_TEXT = ("bart", "blenderbot", "blenderbot-small", "longt5", "m2m_100", "marian", "mbart", "mt5", "mvp", "pegasus", "plbart", "t5", "umt5")


@dataclass
class LoadedModel:
    """A model ready to generate, with what the token loop has to know about it. Weights are shared: read only.

    `context_length` is in tokens, None where the model sets no limit. `cache_argument` is the name under which
    `forward` takes a cache. `step` decodes single tokens, compiled or not.
    """

    id: str
    model: Any
    tokenizer: Any
    config: Any
    device: torch.device
    dtype: torch.dtype
    context_length: int | None
    eos_ids: frozenset[int] = frozenset()
    cache_argument: str = field(default_factory=usual_cache_argument)
    keeps_last_logits: bool = True  # forward takes logits_to_keep
    takes_positions: bool = False  # forward takes position_ids: some models count anew in each forward without
    continues_in_chunks: bool = True  # a filled cache can be fed several tokens at once
    rotary: bool = True  # positions are relative: a bounded cache may run past context_length
    is_encoder_decoder: bool = False  # an encoder reads a text first, see `engine.hear`; the tokens fed are the decoder's
    decoder_start_id: int | None = None  # what the decoder of such a model begins with
    title: str = ""
    forward_lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    step: CompiledStep = field(init=False, repr=False, compare=False)
    prefixes: Any = field(default=None, init=False, repr=False, compare=False)  # what conversations have read, see `prefixes.store_of`
    scheduler: Any = field(default=None, init=False, repr=False, compare=False)  # of the replies that are written at once, see `scheduler.scheduler_of`

    def __post_init__(self) -> None:
        self.step = CompiledStep(self.model)

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer brings a chat template; without one a plain "User: ... Assistant:" is used."""
        return bool(getattr(self.tokenizer, "chat_template", None))


@dataclass(frozen=True)
class Spread:
    """How accelerate is to spread a model's layers: what `from_pretrained` takes."""

    device_map: str | dict[str, int | str]
    max_memory: dict[int | str, int | str] | None = None
    offload_folder: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        given = {"device_map": self.device_map, "max_memory": self.max_memory, "offload_folder": self.offload_folder}
        return {name: value for name, value in given.items() if value is not None}


def spread_of(device: str | torch.device | None, device_map: str | dict | None, max_memory: dict | None, offload_folder: str | os.PathLike | None) -> Spread | None:
    """None where the model is to be on one device. Raises ModelError for settings that contradict each other, or without accelerate."""
    if device_map is None:
        if max_memory is not None or offload_folder is not None:
            raise ModelError('max_memory and offload_folder are for a model that is spread: add device_map="auto".')
        return None
    if device is not None:
        raise ModelError(f"device={str(device)!r} puts the model in one place and device_map={device_map!r} spreads it: give one of the two.")
    try:
        import accelerate  # noqa: F401
    except ImportError as error:
        raise ModelError("device_map spreads a model by accelerate, which is not installed: pip install accelerate.") from error
    return Spread(device_map, max_memory, None if offload_folder is None else str(offload_folder))


def pick_device(device: str | torch.device | None = None) -> torch.device:
    """The device asked for, or the best present: cuda, then mps, then cpu."""
    if device is not None:
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def pick_dtype(device: torch.device, dtype: str | torch.dtype | None = None) -> torch.dtype:
    """The dtype asked for, or 16 bits on a GPU (bf16 where it has it) and fp32 on a CPU."""
    if dtype is not None:
        return getattr(torch, dtype) if isinstance(dtype, str) else dtype
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.float16 if device.type == "mps" else torch.float32


def _folder_of(choice: ModelChoice, device: torch.device, dtype: torch.dtype, progress: Progress | None) -> Path:
    if choice.source == "hub":
        return download(choice, device, dtype, progress)
    folder = bundled_folder(choice.id) if choice.source == "bundled" else find_folder(choice.id)
    if not (folder / "config.json").is_file():
        raise ModelError(f"The folder {choice.id!r} has no config.json: point to a model in transformers' format.")
    require_safetensors(choice, [path.name for path in folder.iterdir()])
    require_memory(choice, weights_in(folder) * dtype.itemsize, device)
    return folder


def bundled_folder(name: str) -> Path:
    try:
        return bundled.path(name)
    except FileNotFoundError as error:
        raise ModelError(str(error)) from error


def _read_folder(
    choice: ModelChoice, folder: Path, device: torch.device, dtype: torch.dtype, progress: Progress | None, spread: Spread | None
) -> LoadedModel:
    report(progress, 0.8, f"Reading {choice.title}: configuration and tokenizer")
    config = read_config(choice, folder)
    tokenizer = _read_tokenizer(choice, folder)
    report(progress, 0.85, f"Reading {choice.title}: weights")
    maker = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    try:
        placed = spread.arguments if spread else {}
        model = maker.from_pretrained(folder, config=config, dtype=dtype, use_safetensors=True, trust_remote_code=False, local_files_only=True, **placed)
        model = model.eval() if spread else model.to(device).eval()
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelError(f"{choice.id} does not fit into {device.type} memory: pick a smaller model.") from error
    except Exception as error:
        raise ModelError(f"{choice.id} can't be read ({first_line(error)}): pick another model.") from error
    return wrap(choice.id, model, tokenizer, title=choice.title)


def from_files(choice: ModelChoice, device: torch.device, dtype: torch.dtype, progress: Progress | None, spread: Spread | None = None) -> LoadedModel:
    """The model from its folder, found or downloaded. Whatever goes wrong is a ModelError: files may be broken in ways nobody thought of."""
    try:
        folder = _folder_of(choice, torch.device("meta") if spread else device, dtype, progress)
        with LOADING:
            return _read_folder(choice, folder, device, dtype, progress, spread)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{choice.id} can't be read ({type(error).__name__}: {first_line(error)}): pick another model.") from error


def read_config(choice: ModelChoice, folder: Path) -> Any:
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"{choice.id} needs Python code of its own, which is never run here: pick a model that transformers "
                "supports by itself."
            ) from error
        raise ModelError(
            f"{choice.id} is of a kind that this version of transformers does not know ({first_line(error)}): "
            "pick another model."
        ) from error
    writers = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if config.is_encoder_decoder:
        writers = {kind: MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES[kind] for kind in TEXT_TO_TEXT}
    known = {name for names in writers.values() for name in _as_tuple(names)}
    built = config.architectures or []
    if built and not known.intersection(built):
        raise ModelError(f"{choice.id} is a {built[0]}, not a causal language model: pick one made to write text.")
    return config


def _as_tuple(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _read_tokenizer(choice: ModelChoice, folder: Path) -> Any:
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise ModelError(
            f"{choice.id} has no tokenizer that can be read ({first_line(error)}): pick a model that brings one."
        ) from error


def wrap(model_id: str, model: Any, tokenizer: Any, title: str = "") -> LoadedModel:
    """A model and a tokenizer already in memory as a LoadedModel. Raises ModelError for a model without a cache."""
    arguments = inspect.signature(model.forward).parameters
    if not set(CACHE_ARGUMENTS) & set(arguments):
        raise ModelError(f"{model_id} keeps no cache between tokens: pick another model.")
    if reason := why_not_cached(model.config):
        raise ModelError(f"{model_id} can not go on from a cache: {reason}. Pick another model.")
    text_config = model.config.get_text_config(decoder=True)
    has_encoder = bool(model.config.is_encoder_decoder)
    return LoadedModel(
        id=model_id,
        model=model,
        tokenizer=tokenizer,
        config=model.config,
        device=device_of(model),
        dtype=next(model.parameters()).dtype,
        context_length=_context_length(text_config),
        eos_ids=_eos_ids(model, tokenizer),
        cache_argument=cache_argument(model),
        keeps_last_logits="logits_to_keep" in arguments,
        takes_positions=counts_from_zero(type(model)),
        continues_in_chunks=_continues_in_chunks(text_config),
        rotary=getattr(text_config, "rope_parameters", None) is not None,
        is_encoder_decoder=has_encoder,
        decoder_start_id=_decoder_start_id(model) if has_encoder else None,
        title=title or model_id,
    )


def _context_length(text_config: Any) -> int | None:
    """Tokens that the model was made for, at most those of the environment's KVCACHE_CONTEXT; None where nothing sets a limit."""
    limits = (_trained_length(text_config), int(os.environ.get("KVCACHE_CONTEXT") or 0))
    return min((limit for limit in limits if limit), default=None)


def _trained_length(text_config: Any) -> int | None:
    for name in ("max_position_embeddings", "max_sequence_length", "max_seq_len", "n_positions"):
        length = getattr(text_config, name, None)
        if isinstance(length, int) and length > 0:
            return length
    return None


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if ids is None:
        ids = getattr(tokenizer, "eos_token_id", None)
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)


def _decoder_start_id(model: Any) -> int | None:
    ids = (getattr(source, "decoder_start_token_id", None) for source in (model.config, model.generation_config))
    return next((start for start in ids if start is not None), None)


def _continues_in_chunks(text_config: Any) -> bool:
    recurrent = RECURRENT_TYPES.intersection(layer_types(text_config)) and text_config.model_type not in CARRIES
    return not recurrent and tokens_at_once(text_config, filled=True) is None
