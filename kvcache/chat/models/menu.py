"""The models on offer: bundled, from the hub or from a folder, and what may be asked for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ... import bundled

Progress = Callable[[float, str], None]  # (fraction of the work done, what is being done)


class ModelError(ValueError):
    """A model can't be had; the text is one sentence on what to do."""


@dataclass(frozen=True)
class ModelChoice:
    """One line of the model list. `source` is "bundled", "hub" or "local"; `note` gives size and licence, `size` what is downloaded."""

    id: str
    title: str
    source: str
    note: str
    gated: bool = False
    size: str = ""

    @property
    def label(self) -> str:
        """Title and note in one line, for a drop-down."""
        return f"{self.title} · {self.note}" if self.note else self.title


def _hub(model_id: str, title: str, parameters: str, size: str, more: str, gated: bool = False) -> ModelChoice:
    return ModelChoice(model_id, title, "hub", f"{parameters} parameters, a download of {size}, {more}", gated, size)


HUB_CHOICES: tuple[ModelChoice, ...] = (
    _hub("HuggingFaceTB/SmolLM2-135M-Instruct", "SmolLM2 135M Instruct", "135M", "0.3 GB", "Apache 2.0"),
    _hub("HuggingFaceTB/SmolLM2-360M-Instruct", "SmolLM2 360M Instruct", "360M", "0.7 GB", "Apache 2.0"),
    _hub("HuggingFaceTB/SmolLM2-1.7B-Instruct", "SmolLM2 1.7B Instruct", "1.7B", "3.4 GB", "Apache 2.0"),
    _hub("Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5 0.5B Instruct", "0.5B", "1 GB", "Apache 2.0"),
    _hub("Qwen/Qwen2.5-1.5B-Instruct", "Qwen2.5 1.5B Instruct", "1.5B", "3.1 GB", "Apache 2.0"),
    _hub("Qwen/Qwen3-0.6B", "Qwen3 0.6B", "0.6B", "1.5 GB", "Apache 2.0"),
    _hub("meta-llama/Llama-3.2-1B-Instruct", "Llama 3.2 1B Instruct", "1.2B", "2.5 GB", "Llama 3.2 licence", True),
    _hub("google/gemma-3-270m-it", "Gemma 3 270M it", "270M", "0.5 GB", "Gemma licence, sliding layers", True),
    _hub("google/gemma-3-1b-it", "Gemma 3 1B it", "1B", "2 GB", "Gemma licence, sliding layers", True),
    _hub("mistralai/Mistral-7B-Instruct-v0.3", "Mistral 7B Instruct v0.3", "7.2B", "14.5 GB", "Apache 2.0", True),
    _hub("google/flan-t5-small", "Flan-T5 small", "77M", "0.3 GB", "Apache 2.0, encoder-decoder, takes each message by itself"),
    _hub("state-spaces/mamba-130m-hf", "Mamba 130M", "129M", "0.5 GB", "no attention layers, not tuned for chat"),
)

WORLDLY = ("HuggingFaceTB/SmolLM2-360M-Instruct", "Qwen/Qwen3-0.6B")  # the smallest that know something of the world


def _bundled(name: str) -> ModelChoice:
    nbytes = bundled.nbytes(name)
    return ModelChoice(name, name, "bundled", f"{nbytes / 1e6:.0f} MB, ships with the project, works offline" if nbytes else "not here: clone the project to have it")


DEFAULT = bundled.DEFAULT
CHOICES: list[ModelChoice] = [*(_bundled(name) for name in bundled.MODELS), *HUB_CHOICES]


_offered: set[str] = set()  # by whoever started the program
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_FOLDER_STARTS = ("/", "./", "../", "~", ".\\")


def find_choice(model_id: str) -> ModelChoice:
    """The listed choice of that id, or a new one for a hub id or a folder typed in. Raises ModelError."""
    text = str(model_id or "").strip()
    if not is_allowed(text):
        raise ModelError(f"{_shortened(text)!r} is not open here: pick one of {', '.join(choice.id for choice in CHOICES if is_allowed(choice.id))}.")
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


def is_allowed(model_id: str) -> bool:
    """May this model be opened here? All may, unless the environment's KVCACHE_MODELS lists those that may, between commas."""
    listed = [name.strip() for name in os.environ.get("KVCACHE_MODELS", "").split(",") if name.strip()]
    return not listed or model_id in listed or model_id in _offered


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "..."


def _is_folder(text: str) -> bool:
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):  # too long, not to be read, a zero byte
        return False


def find_folder(text: str) -> Path:
    """The folder of that path. Raises ModelError where there is none, or none that may be opened."""
    try:
        folder = Path(text).expanduser()
        if folder.is_dir():
            os.listdir(folder)
            return folder
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelError(f"{_shortened(text)!r} cannot be opened ({first_line(error)}): check the path, or pick a model from the list.") from error
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
    _offered.add(str(model_id).strip())
    choice = find_choice(model_id)
    if choice not in CHOICES:
        CHOICES.insert(0, choice)


def report(progress: Progress | None, fraction: float, text: str) -> None:
    if progress is not None:
        progress(min(max(fraction, 0.0), 1.0), text)


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = " ".join(lines[: 2 if lines[0].endswith(":") else 1]) if lines else type(error).__name__
    return line if len(line) <= 200 else line[:200] + "..."
