"""Cache files: plain tensors in safetensors, and a JSON header that says whose they are. No pickle, ever.

The header names the cache's class and parameters, the token ids it has seen, the model by fingerprint, and versions;
a digest over header and tensors catches truncation and damage.
"""

import hashlib
import json
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
import transformers
from safetensors.torch import load_file, save_file

from .architecture import decoder_config
from .weights import named_weights

FORMAT = 1
HEADER_KEY = "kvcache"


class CacheFileError(ValueError):
    """The file is not a cache file, is damaged, or belongs to another model."""


@dataclass(frozen=True)
class CacheFile:
    """What a file holds: the JSON `header` and `tensors` by "layer.store"."""

    header: dict
    tensors: dict[str, torch.Tensor]


def own_path(path: str | os.PathLike, shard: tuple[int, int] | None) -> Path:
    """Where a process writes and reads: of a tensor parallel model each its own part, so talk-00001-of-00002.safetensors for talk.safetensors."""
    path = Path(path)
    return path if shard is None else path.with_name(f"{path.stem}-{shard[0]:05}-of-{shard[1]:05}{path.suffix}")


def write(path: str | os.PathLike, header: Mapping, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a cache file at once or not at all: an existing file is replaced only by a complete one. Raises FileNotFoundError without a folder to write into."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; a cache is written to a file")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"format": FORMAT, "versions": versions(), **header}
    text = json.dumps({**header, "digest": digest(header, tensors)})
    partial = path.with_name(f"{path.name}.partial-{uuid.uuid4().hex}")
    try:
        save_file(tensors, partial, metadata={HEADER_KEY: text})
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: str | os.PathLike) -> CacheFile:
    """Read and check a cache file. Raises CacheFileError, or FileNotFoundError where there is none."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no cache file at {path}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(HEADER_KEY)
        tensors = load_file(path)
    except safetensors.SafetensorError as error:
        raise CacheFileError(f"{path.name} is not a whole safetensors file: {error}") from error
    if text is None:
        raise CacheFileError(f"{path.name} holds tensors but no cache: the header {HEADER_KEY!r} is missing")
    return CacheFile(_checked(path.name, text, tensors), tensors)


def _checked(name: str, text: str, tensors: Mapping[str, torch.Tensor]) -> dict:
    try:
        header = json.loads(text)
        found, version = header.pop("digest"), header["format"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CacheFileError(f"the header of {name} cannot be read: {error}") from error
    if version != FORMAT:
        raise CacheFileError(f"{name} has format {version}; this version reads format {FORMAT}")
    if found != digest(header, tensors):
        raise CacheFileError(f"{name} was changed after it was written: its digest does not match")
    return header


def digest(header: Mapping, tensors: Mapping[str, torch.Tensor]) -> str:
    """sha256 over the header and every tensor's name, dtype, shape and bytes."""
    total = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


# Of a config, what changes no logits in evaluation, or is known from the parameters: two loadings of one model may differ in it.
IRRELEVANT = re.compile(r"_name_or_path|transformers_version|architectures|dtype|torch_dtype|use_cache|(bos|eos|sep|decoder_start|forced_bos|forced_eos)_token_id|.*drop.*|initializer.*|id2label|label2id|problem_type|output_(attentions|hidden_states|router_logits)|return_dict|pretraining_tp|.*vocab_size|.*loss.*|_?attn_implementation.*|experts_implementation.*|tokenizer_class|task_specific_params|prefix|num_beams|max_length|temperature|torchscript|auto_map|keys_to_ignore_at_inference|gradient_checkpointing|chunk_size_feed_forward|.*jitter.*")


def fingerprint(model: torch.nn.Module) -> str:
    """What tells one model from another: its decoder's config (rotation, windows, ...) and 16 elements spread over each parameter, in its own dtype, wherever it is kept.
    Of a tensor parallel model every process has one of its own."""
    config = _relevant(decoder_config(model).to_dict())
    total = hashlib.sha256(model.config.model_type.encode() + json.dumps(config, sort_keys=True, default=str).encode())
    for name, weight in named_weights(model):
        flat = weight.reshape(-1)
        places = [i * (len(flat) - 1) // 15 for i in range(16)]  # as integers: float32 has no places beyond 2**24
        sample = flat[torch.tensor(places, device=flat.device)] if len(flat) else flat
        total.update(f"{name.removeprefix('_orig_mod.')} {tuple(weight.shape)} {weight.dtype}".encode())
        total.update(sample.float().cpu().numpy().tobytes())
    return total.hexdigest()


def _relevant(config: dict) -> dict:
    """A config without what is IRRELEVANT, at any depth."""
    return {name: _relevant(value) if isinstance(value, dict) else value for name, value in config.items() if not IRRELEVANT.fullmatch(str(name))}


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, "transformers": transformers.__version__}
