"""The models on offer, bundled, from the hub or from a folder, and how they are loaded.

`load` answers with a `LoadedModel` or raises `ModelError`, whose text is one sentence saying what to do. Only
safetensors weights are read and a repository's own Python code is never run.
"""

from __future__ import annotations

import inspect
import json
import os
import queue
import re
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub import errors as hub_errors
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.utils import filter_repo_objects
from safetensors import SafetensorError, safe_open
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

from . import bundled
from .architecture import (
    CACHE_ARGUMENTS,
    RECURRENT_TYPES,
    cache_argument,
    counts_from_zero,
    layer_types,
    misfit,
    tokens_at_once,
    usual_cache_argument,
)
from .state import CARRIES
from .step import CompiledStep
from .weights import LOADING, device_of

# Model types whose encoder reads text and whose decoder goes on from a cache: measured, see tests/test_seq2seq.py.
TEXT_TO_TEXT = ("bart", "blenderbot", "blenderbot-small", "longt5", "m2m_100", "marian", "mbart", "mt5", "mvp", "pegasus", "plbart", "t5", "umt5")

Progress = Callable[[float, str], None]  # (fraction of the work done, what is being done)


class ModelError(ValueError):
    """A model can't be had; the text is one sentence on what to do."""


@dataclass(frozen=True)
class ModelChoice:
    """One line of the model list. `source` is "bundled", "hub" or "local"; `note` gives size and licence."""

    id: str
    title: str
    source: str
    note: str
    gated: bool = False
    license_url: str | None = None

    @property
    def label(self) -> str:
        """Title and note in one line, for a drop-down."""
        return f"{self.title} · {self.note}" if self.note else self.title


@dataclass
class LoadedModel:
    """A model ready to generate, with what the token loop has to know about it. Weights are shared: read only.

    `context_length` is in tokens, None where the model sets no limit. `cache_argument` is the name under which
    `forward` takes a cache. `step` decodes single tokens, compiled or not. `lock` is for callers that want a model to themselves: nothing in `kvcache` takes it.
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
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    forward_lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    step: CompiledStep = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.step = CompiledStep(self.model)

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer brings a chat template; without one a plain "User: ... Assistant:" is used."""
        return bool(getattr(self.tokenizer, "chat_template", None))


def _hub(model_id: str, title: str, note: str, gated: bool = False) -> ModelChoice:
    return ModelChoice(model_id, title, "hub", note, gated, f"https://huggingface.co/{model_id}" if gated else None)


HUB_CHOICES: tuple[ModelChoice, ...] = (
    _hub("HuggingFaceTB/SmolLM2-135M-Instruct", "SmolLM2 135M Instruct", "135M parameters, 0.3 GB, Apache 2.0"),
    _hub("HuggingFaceTB/SmolLM2-360M-Instruct", "SmolLM2 360M Instruct", "360M parameters, 0.7 GB, Apache 2.0"),
    _hub("HuggingFaceTB/SmolLM2-1.7B-Instruct", "SmolLM2 1.7B Instruct", "1.7B parameters, 3.4 GB, Apache 2.0"),
    _hub("Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5 0.5B Instruct", "0.5B parameters, 1 GB, Apache 2.0"),
    _hub("Qwen/Qwen2.5-1.5B-Instruct", "Qwen2.5 1.5B Instruct", "1.5B parameters, 3.1 GB, Apache 2.0"),
    _hub("Qwen/Qwen3-0.6B", "Qwen3 0.6B", "0.6B parameters, 1.5 GB, Apache 2.0"),
    _hub("meta-llama/Llama-3.2-1B-Instruct", "Llama 3.2 1B Instruct", "1.2B parameters, 2.5 GB, Llama 3.2 licence", True),
    _hub("google/gemma-3-270m-it", "Gemma 3 270M it", "270M parameters, 0.5 GB, Gemma licence, sliding layers", True),
    _hub("google/gemma-3-1b-it", "Gemma 3 1B it", "1B parameters, 2 GB, Gemma licence, sliding layers", True),
    _hub("mistralai/Mistral-7B-Instruct-v0.3", "Mistral 7B Instruct v0.3", "7.2B parameters, 14.5 GB, Apache 2.0", True),
    _hub("google/flan-t5-small", "Flan-T5 small", "77M parameters, 0.3 GB, Apache 2.0, encoder-decoder, takes each message by itself"),
    _hub("state-spaces/mamba-130m-hf", "Mamba 130M", "129M parameters, 0.5 GB, no attention layers, not tuned for chat"),
)


def _bundled(name: str) -> ModelChoice:
    nbytes = bundled.nbytes(name)
    return ModelChoice(name, name, "bundled", f"{nbytes / 1e6:.0f} MB, ships with the project, works offline" if nbytes else "not here: clone the project to have it")


DEFAULT = bundled.DEFAULT
CHOICES: list[ModelChoice] = [*(_bundled(name) for name in bundled.MODELS), *HUB_CHOICES]


# ---------------------------------------------------------------------------------------------------- what was asked

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_FOLDER_STARTS = ("/", "./", "../", "~", ".\\")


def find_choice(model_id: str) -> ModelChoice:
    """The listed choice of that id, or a new one for a hub id or a folder typed in. Raises ModelError."""
    text = str(model_id or "").strip()
    for choice in CHOICES:
        if choice.id == text:
            return choice
    if text.startswith(_FOLDER_STARTS):
        if for_strangers():
            raise ModelError("Folders of this server cannot be opened: pick a model from the list, or type a hub id.")
        return ModelChoice(text, Path(text).name or text, "local", "local folder")
    if not for_strangers() and text and _is_folder(text):
        return ModelChoice(text, Path(text).name or text, "local", "local folder")
    if not _HUB_ID.fullmatch(text) or "--" in text or ".." in text or text.endswith((".git", ".ipynb")):
        folders = "" if for_strangers() else ", or a folder that starts with '/', './' or '~'"
        raise ModelError(f"{_shortened(text)!r} is not a model id: type one like 'HuggingFaceTB/SmolLM2-135M-Instruct'{folders}.")
    return ModelChoice(text, text.split("/")[-1], "hub", "from the hub")


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "..."


def _is_folder(text: str) -> bool:
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):  # too long, not to be read, a zero byte
        return False


def _folder_called(text: str) -> Path:
    """The folder of that path. Raises ModelError where there is none, or none that may be opened."""
    try:
        folder = Path(text).expanduser()
        if folder.is_dir():
            os.listdir(folder)
            return folder
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelError(f"{_shortened(text)!r} cannot be opened ({_first_line(error)}): check the path, or pick a model from the list.") from error
    raise ModelError(f"There is no folder {_shortened(text)!r}: check the path, or pick a model from the list.")


_strangers = False


def serve_strangers() -> None:
    """Say that whoever picks models is not the owner of this computer: folders and private repositories stay shut from now on."""
    global _strangers
    _strangers = True


def for_strangers() -> bool:
    """Whether others than the owner pick models: after `serve_strangers`, and on a Space."""
    return _strangers or "SPACE_ID" in os.environ


def offer(model_id: str) -> None:
    """List a model, and so leave it open to everybody. Raises ModelError as `find_choice` does."""
    choice = find_choice(model_id)
    if choice not in CHOICES:
        CHOICES.insert(0, choice)


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


# --------------------------------------------------------------------------------------------------- folder of files


def _report(progress: Progress | None, fraction: float, text: str) -> None:
    if progress is not None:
        progress(min(max(fraction, 0.0), 1.0), text)


def _folder_of(choice: ModelChoice, device: torch.device, dtype: torch.dtype, progress: Progress | None) -> Path:
    if choice.source == "hub":
        return _download(choice, device, dtype, progress)
    folder = _bundled_folder(choice.id) if choice.source == "bundled" else _folder_called(choice.id)
    if not (folder / "config.json").is_file():
        raise ModelError(f"The folder {choice.id!r} has no config.json: point to a model in transformers' format.")
    _require_safetensors(choice, [path.name for path in folder.iterdir()])
    _require_memory(choice, _weights_in(folder) * dtype.itemsize, device)
    return folder


def _bundled_folder(name: str) -> Path:
    try:
        return bundled.path(name)
    except FileNotFoundError as error:
        raise ModelError(str(error)) from error


def _weights_in(folder: Path) -> int:
    """How many numbers the weights are, by their files' headers. A file that is broken counts nothing: reading it says so."""
    count = 0
    for path in folder.glob("*.safetensors"):
        with suppress(SafetensorError):
            if not path.name.startswith("consolidated"):  # which repeats the weights
                with safe_open(path, "pt") as weights:
                    count += sum(prod(weights.get_slice(name).get_shape()) for name in weights.keys())
    return count


def _require_safetensors(choice: ModelChoice, names: list[str]) -> None:
    if not any(name.endswith(".safetensors") for name in names):
        raise ModelError(
            f"{choice.id} has no .safetensors weights, and no other format is read here: "
            "pick a model that has them, or convert it with save_pretrained()."
        )


# Weights in subfolders are other formats (onnx, original); consolidated.* repeats the weights in Mistral's own layout.
_WANTED = dict(
    allow_patterns=["*.json", "*.jinja", "*.safetensors", "*.model", "*.txt"],
    ignore_patterns=["*/*", "consolidated*"],
)
ANSWER_WITHIN = 8.0  # seconds for the hub to say that it is there and what the repository holds


def _download(choice: ModelChoice, device: torch.device, dtype: torch.dtype, progress: Progress | None) -> Path:
    """The folder of a hub model: the copy on this disk where it is whole, with no look at the network, or a new one."""
    _report(progress, 0.0, f"Looking for {choice.id}")
    folder = _on_disk(choice)
    if folder is not None:
        _require_memory(choice, _weights_in(folder) * dtype.itemsize, device)
        if choice in CHOICES or not for_strangers():
            return folder
    try:
        sizes = _within(ANSWER_WITHIN, lambda: _ask_hub(choice))
        if folder is not None:  # that it is no private one is known now
            return folder
        _require_safetensors(choice, list(sizes))
        _require_room(choice, sizes, device, dtype)
        bar = _silent_bar(progress, sum(sizes.values()), f"Downloading {choice.id}")
        return Path(snapshot_download(choice.id, etag_timeout=5, tqdm_class=bar, **_WANTED))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(_explain_download(choice, error)) from error


def _on_disk(choice: ModelChoice) -> Path | None:
    try:
        folder = Path(snapshot_download(choice.id, local_files_only=True, **_WANTED))
    except (OSError, ValueError):  # not there, not whole, or no id of the hub's
        return None
    names = {path.name for path in folder.iterdir()}
    shards = {name for index in folder.glob("*.safetensors.index.json") for name in _shards(index)}
    whole = "config.json" in names and any(name.endswith(".safetensors") for name in names) and shards <= names
    return folder if whole else None


def _shards(index: Path) -> set[str]:
    return set(json.loads(index.read_text()).get("weight_map", {}).values())


def _ask_hub(choice: ModelChoice) -> dict[str, int]:
    """File name -> bytes of what would be downloaded. Raises what huggingface_hub raises."""
    api = HfApi()
    info = api.model_info(choice.id, files_metadata=True, timeout=ANSWER_WITHIN)
    if info.private and for_strangers():
        raise ModelError(f"The hub has no public model {choice.id!r}: check the spelling.")
    if info.gated:
        api.auth_check(choice.id)
    files = {file.rfilename: file.size or 0 for file in info.siblings or []}
    return {name: files[name] for name in filter_repo_objects(files, **_WANTED)}


def _within(seconds: float, ask: Callable[[], Any]) -> Any:
    """What `ask()` returns, or TimeoutError: looking up a name or a silent network may hang far beyond any timeout."""
    answers: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()

    def work() -> None:
        try:
            answers.put((ask(), None))
        except Exception as error:
            answers.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return answer


def _silent_bar(progress: Progress | None = None, total: int = 0, text: str = "") -> type[tqdm]:
    """A tqdm class that prints nothing and reports the bytes written so far, of `total`, to `progress`."""

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts_bytes = str(kwargs.get("desc", "")).startswith("Reconstructing")
            kwargs.update(file=_NOWHERE, disable=False)
            kwargs.pop("name", None)
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> bool | None:
            shown = super().update(n)
            if self._counts_bytes and total:
                _report(progress, 0.8 * self.n / total, f"{text}: {self.n / 1e6:.0f} of {total / 1e6:.0f} MB")
            return shown

    return Bar


class _Nowhere:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


_NOWHERE = _Nowhere()


def _require_room(choice: ModelChoice, sizes: dict[str, int], device: torch.device, dtype: torch.dtype) -> None:
    """Refuse before downloading what the disk or the memory can't take. Sizes in bytes."""
    weights = sum(size for name, size in sizes.items() if name.endswith(".safetensors"))
    whole = sum(sizes.values())
    free_disk = _free_disk()
    if free_disk is not None and whole > free_disk:
        raise ModelError(
            f"{choice.id} is a download of {whole / 1e9:.1f} GB and {free_disk / 1e9:.1f} GB of disk are free: "
            "free some space or pick a smaller model."
        )
    _require_memory(choice, weights * (2 if dtype == torch.float32 else 1), device)  # nearly every hub model is stored in 16 bits


def _require_memory(choice: ModelChoice, needed: int, device: torch.device) -> None:
    free = _free_memory(device)
    if free is not None and needed > free:
        raise ModelError(
            f"{choice.id} needs about {needed / 1e9:.1f} GB of {device.type} memory and {free / 1e9:.1f} GB are free: "
            "pick a smaller model."
        )


def _free_disk() -> int | None:
    folder = Path(HF_HUB_CACHE)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _free_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        import psutil

        return psutil.virtual_memory().available
    except ImportError:
        return None


_OFFLINE = "check the network; the bundled models work offline."


def _explain_download(choice: ModelChoice, error: Exception) -> str:
    """One sentence for whatever `snapshot_download` raised."""
    name, page = choice.id, f"https://huggingface.co/{choice.id}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, hub_errors.GatedRepoError):
        return (
            f"{name} is gated: accept its licence at {page}, then set HF_TOKEN to a token of that account and start again."
        )
    if isinstance(error, hub_errors.RepositoryNotFoundError):
        return f"The hub has no public model {name!r}: check the spelling, or set HF_TOKEN if it is private."
    if isinstance(error, hub_errors.HFValidationError):
        return f"{name!r} is not a model id: type one like 'HuggingFaceTB/SmolLM2-135M-Instruct'."
    if isinstance(error, hub_errors.DisabledRepoError):
        return f"The hub has disabled {name}: pick another model."
    if isinstance(error, hub_errors.OfflineModeIsEnabled) or os.environ.get("HF_HUB_OFFLINE", "0") in ("1", "true"):
        return f"{name} is not on this computer and HF_HUB_OFFLINE is set: unset it, or pick a bundled model."
    if status is not None:
        return f"The hub answered {status} for {name}: try again later; the bundled models work offline."
    if isinstance(error, hub_errors.LocalEntryNotFoundError) or _is_network_error(error):
        return f"No network: {name} can't be downloaded and is not on this computer; {_OFFLINE}"
    return f"{name} can't be downloaded ({_first_line(error)}); {_OFFLINE}"


def _is_network_error(error: BaseException | None) -> bool:
    while error is not None:
        words = type(error).__name__
        if isinstance(error, (ConnectionError, TimeoutError)) or "Connect" in words or "Timeout" in words:
            return True
        error = error.__cause__ or error.__context__
    return False


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = lines[0] if lines else type(error).__name__
    return line if len(line) <= 200 else line[:200] + "..."


# ------------------------------------------------------------------------------------------------- folder -> model


def _read_folder(
    choice: ModelChoice, folder: Path, device: torch.device, dtype: torch.dtype, progress: Progress | None
) -> LoadedModel:
    _report(progress, 0.8, f"Reading {choice.title}: configuration and tokenizer")
    config = _read_config(choice, folder)
    tokenizer = _read_tokenizer(choice, folder)
    _report(progress, 0.85, f"Reading {choice.title}: weights")
    maker = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    try:
        model = maker.from_pretrained(folder, config=config, dtype=dtype, use_safetensors=True, trust_remote_code=False, local_files_only=True)
        model = model.to(device).eval()
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelError(f"{choice.id} does not fit into {device.type} memory: pick a smaller model.") from error
    except Exception as error:
        raise ModelError(f"{choice.id} can't be read ({_first_line(error)}): pick another model.") from error
    return wrap(choice.id, model, tokenizer, title=choice.title)


def _from_files(choice: ModelChoice, device: torch.device, dtype: torch.dtype, progress: Progress | None) -> LoadedModel:
    """The model from its folder, found or downloaded. Whatever goes wrong is a ModelError: files may be broken in ways nobody thought of."""
    try:
        folder = _folder_of(choice, device, dtype, progress)
        with LOADING:
            return _read_folder(choice, folder, device, dtype, progress)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{choice.id} can't be read ({type(error).__name__}: {_first_line(error)}): pick another model.") from error


def _read_config(choice: ModelChoice, folder: Path) -> Any:
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"{choice.id} needs Python code of its own, which is never run here: pick a model that transformers "
                "supports by itself."
            ) from error
        raise ModelError(
            f"{choice.id} is of a kind that this version of transformers does not know ({_first_line(error)}): "
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
            f"{choice.id} has no tokenizer that can be read ({_first_line(error)}): pick a model that brings one."
        ) from error


def wrap(model_id: str, model: Any, tokenizer: Any, title: str = "") -> LoadedModel:
    """A model and a tokenizer already in memory as a LoadedModel. Raises ModelError for a model without a cache."""
    arguments = inspect.signature(model.forward).parameters
    if not set(CACHE_ARGUMENTS) & set(arguments):
        raise ModelError(f"{model_id} keeps no cache between tokens: pick another model.")
    if reason := misfit(model.config):
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


# ------------------------------------------------------------------------------------------------- loaded models kept


class ModelStore:
    """Loaded models, the least recently used dropped. Safe to use from several threads.

    A model still held by a conversation stays in memory until that lets go. Two threads that ask for the same model
    load it once; a slow download holds up nobody who asks for another. Downloaded or not, folders are read one at a
    time in the whole process; see `weights.LOADING` for what else in it loads models.
    """

    def __init__(self, max_models: int = 2) -> None:
        if max_models < 1:
            raise ValueError(f"max_models must be at least 1, got {max_models}")
        self.max_models = max_models
        self._models: OrderedDict[tuple[str, str, str], LoadedModel] = OrderedDict()
        self._loading: dict[tuple[str, str, str], threading.Lock] = {}
        self._guard = threading.Lock()

    def load(
        self,
        model_id: str,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        progress: Progress | None = None,
    ) -> LoadedModel:
        """The model, from memory where it is there. Raises ModelError with one sentence on what to do."""
        choice = find_choice(model_id)
        device = pick_device(device)
        dtype = pick_dtype(device, dtype)
        key = (choice.id, str(device), str(dtype))
        with self._guard:
            loading = self._loading.setdefault(key, threading.Lock())
        with loading:
            loaded = self._get(key)
            if loaded is None:
                loaded = _from_files(choice, device, dtype, progress)
                self._put(key, loaded)
        _report(progress, 1.0, f"{loaded.title} is ready")
        return loaded

    def ids(self) -> list[str]:
        """Ids of the models in memory, least recently used first."""
        with self._guard:
            return [key[0] for key in self._models]

    def clear(self) -> None:
        """Forget every model."""
        with self._guard:
            self._models.clear()

    def _get(self, key: tuple[str, str, str]) -> LoadedModel | None:
        with self._guard:
            if key in self._models:
                self._models.move_to_end(key)
            return self._models.get(key)

    def _put(self, key: tuple[str, str, str], loaded: LoadedModel) -> None:
        with self._guard:
            self._models[key] = loaded
            self._models.move_to_end(key)
            while len(self._models) > self.max_models:
                self._models.popitem(last=False)


STORE = ModelStore()


def load(
    model_id: str = DEFAULT,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a bundled model, a hub model or a local folder, or take it from the models kept in memory.

    `progress(fraction, text)` is called from the loading thread. Raises ModelError: gated, unknown, no network, no
    safetensors, no tokenizer, not a causal language model, too large.
    """
    return STORE.load(model_id, device, dtype, progress)
