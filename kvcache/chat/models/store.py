"""Loaded models, kept for whoever asks next."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

import torch

from ...validation import whole_number
from .loading import LoadedModel, Spread, from_files, pick_device, pick_dtype, spread_of
from .menu import DEFAULT, Progress, find_choice, report


class ModelStore:
    """Loaded models, the least recently used dropped. Safe to use from several threads.

    A model still held by a conversation stays in memory until that lets go. Two threads that ask for the same model
    load it once; a slow download holds up nobody who asks for another. Downloaded or not, folders are read one at a
    time in the whole process; see `weights.LOADING` for what else in it loads models.
    """

    def __init__(self, max_models: int = 2) -> None:
        self.max_models = whole_number("max_models", max_models, 1)
        self._models: OrderedDict[tuple[str, str, str], LoadedModel] = OrderedDict()
        self._loading: dict[tuple[str, str, str], threading.Lock] = {}
        self._guard = threading.Lock()

    def load(
        self,
        model_id: str,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        progress: Progress | None = None,
        spread: Spread | None = None,
    ) -> LoadedModel:
        """The model, from memory where it is there. Raises ModelError with one sentence on what to do."""
        choice = find_choice(model_id)
        device = pick_device(device)
        dtype = pick_dtype(device, dtype)
        key = (choice.id, str(spread or device), str(dtype))
        with self._guard:
            loading = self._loading.setdefault(key, threading.Lock())
        with loading:
            loaded = self._get(key)
            if loaded is None:
                loaded = from_files(choice, device, dtype, progress, spread)
                self._put(key, loaded)
        report(progress, 1.0, f"{loaded.title} is ready")
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
    device_map: str | dict[str, int | str] | None = None,
    max_memory: dict[int | str, int | str] | None = None,
    offload_folder: str | os.PathLike | None = None,
) -> LoadedModel:
    """Load a bundled model, a hub model or a local folder, or take it from the models kept in memory.

    `device_map`: let accelerate spread the layers over devices, the CPU and a disk, "auto" or a device by module, as `from_pretrained`
    does; `max_memory` by device, and `offload_folder` for what goes to a disk. A cache's layers are where the model's compute.

    `progress(fraction, text)` is called from the loading thread. Raises ModelError: gated, unknown, no network, no
    safetensors, no tokenizer, not a causal language model, too large.
    """
    return STORE.load(model_id, device, dtype, progress, spread_of(device, device_map, max_memory, offload_folder))
