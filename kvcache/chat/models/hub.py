"""Models of the hub: the copy on this disk where it is whole, or a download that is refused before it fails."""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, constants, snapshot_download, try_to_load_from_cache
from huggingface_hub import errors as hub_errors
from huggingface_hub.utils import filter_repo_objects
from tqdm import tqdm

from . import menu
from .menu import ModelChoice, ModelError, Progress, first_line, for_strangers, report
from .room import require_memory, require_room, weights_in


def require_safetensors(choice: ModelChoice, names: list[str]) -> None:
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


def download(choice: ModelChoice, device: torch.device, dtype: torch.dtype, progress: Progress | None) -> Path:
    """The folder of a hub model: the copy on this disk where it is whole, with no look at the network, or a new one."""
    report(progress, 0.0, f"Looking for {choice.id}")
    folder = on_disk(choice)
    if folder is not None:
        require_memory(choice, weights_in(folder) * dtype.itemsize, device)
        if choice in menu.CHOICES or not for_strangers():
            return folder
    try:
        sizes = within(ANSWER_WITHIN, lambda: ask_hub(choice))
        if folder is not None:  # that it is no private one is known now
            return folder
        require_safetensors(choice, list(sizes))
        require_room(choice, sizes, device, dtype)
        bar = _silent_bar(progress, sum(sizes.values()), f"Downloading {choice.id}")
        return Path(snapshot_download(choice.id, etag_timeout=5, tqdm_class=bar, **_WANTED))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(explain_download(choice, error)) from error


def on_disk(choice: ModelChoice) -> Path | None:
    try:
        folder = Path(snapshot_download(choice.id, local_files_only=True, **_WANTED))
    except (OSError, ValueError):  # not there, not whole, or no id of the hub's
        return None
    names = {path.name for path in folder.iterdir()}
    shards = {name for index in folder.glob("*.safetensors.index.json") for name in _shards(index)}
    whole = "config.json" in names and any(name.endswith(".safetensors") for name in names) and shards <= names
    return folder if whole else None


def on_disk_file(choice: ModelChoice, name: str) -> Path | None:
    """One file of a hub model, where this disk holds it."""
    try:
        found = try_to_load_from_cache(choice.id, name)
    except ValueError:  # no id of the hub's
        return None
    return Path(found) if isinstance(found, str) else None


def is_offline() -> bool:
    """Was this program told to leave the network alone?"""
    return constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "0") in ("1", "true")


def why_not_fetched(choice: ModelChoice) -> str | None:
    """Why a model can't be had, as far as that is known without a look at the network, or None."""
    if choice.source == "hub" and is_offline() and on_disk(choice) is None:
        return "not on this computer, and HF_HUB_OFFLINE is set: unset it to download"
    return None


def _shards(index: Path) -> set[str]:
    return set(json.loads(index.read_text()).get("weight_map", {}).values())


def ask_hub(choice: ModelChoice) -> dict[str, int]:
    """File name -> bytes of what would be downloaded. Raises what huggingface_hub raises."""
    api = HfApi()
    info = api.model_info(choice.id, files_metadata=True, timeout=ANSWER_WITHIN)
    if info.private and for_strangers():
        raise ModelError(f"The hub has no public model {choice.id!r}: check the spelling.")
    if info.gated:
        api.auth_check(choice.id)
    files = {file.rfilename: file.size or 0 for file in info.siblings or []}
    return {name: files[name] for name in filter_repo_objects(files, **_WANTED)}


def within(seconds: float, ask: Callable[[], Any]) -> Any:
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
                report(progress, 0.8 * self.n / total, f"{text}: {self.n / 1e6:.0f} of {total / 1e6:.0f} MB")
            return shown

    return Bar


class _Nowhere:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


_NOWHERE = _Nowhere()


_OFFLINE = "check the network; the bundled models work offline."


def explain_download(choice: ModelChoice, error: Exception) -> str:
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
    if isinstance(error, hub_errors.OfflineModeIsEnabled) or is_offline():
        return f"{name} is not on this computer and HF_HUB_OFFLINE is set: unset it, or pick a bundled model."
    if status is not None:
        return f"The hub answered {status} for {name}: try again later; the bundled models work offline."
    if isinstance(error, hub_errors.LocalEntryNotFoundError) or _is_network_error(error):
        return f"No network: {name} can't be downloaded and is not on this computer; {_OFFLINE}"
    return f"{name} can't be downloaded ({first_line(error)}); {_OFFLINE}"


def _is_network_error(error: BaseException | None) -> bool:
    while error is not None:
        words = type(error).__name__
        if isinstance(error, (ConnectionError, TimeoutError)) or "Connect" in words or "Timeout" in words:
            return True
        error = error.__cause__ or error.__context__
    return False
