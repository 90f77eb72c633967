"""Whether a model fits on the disk and into memory, asked before it is downloaded or read."""

from __future__ import annotations

import shutil
from contextlib import suppress
from math import prod
from pathlib import Path

import torch
from huggingface_hub.constants import HF_HUB_CACHE
from safetensors import SafetensorError, safe_open

from ...extras import free_memory
from .menu import ModelChoice, ModelError


def weights_in(folder: Path) -> int:
    """How many numbers the weights are, by their files' headers. A file that is broken counts nothing: reading it says so."""
    count = 0
    for path in folder.glob("*.safetensors"):
        with suppress(SafetensorError):
            if not path.name.startswith("consolidated"):  # which repeats the weights
                with safe_open(path, "pt") as weights:
                    count += sum(prod(weights.get_slice(name).get_shape()) for name in weights.keys())
    return count


def require_room(choice: ModelChoice, sizes: dict[str, int], device: torch.device, dtype: torch.dtype) -> None:
    """Refuse before downloading what the disk or the memory can't take. Sizes in bytes."""
    weights = sum(size for name, size in sizes.items() if name.endswith(".safetensors"))
    whole = sum(sizes.values())
    free_disk = _free_disk()
    if free_disk is not None and whole > free_disk:
        raise ModelError(
            f"{choice.id} is a download of {whole / 1e9:.1f} GB and {free_disk / 1e9:.1f} GB of disk are free: "
            "free some space or pick a smaller model."
        )
    require_memory(choice, weights * (2 if dtype == torch.float32 else 1), device)  # nearly every hub model is stored in 16 bits


def require_memory(choice: ModelChoice, needed: int, device: torch.device) -> None:
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
    """Bytes; None where nobody knows, as on "meta", which is said for a model that is spread: what does not fit in one place goes to another."""
    if device.type == "meta":
        return None
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()
