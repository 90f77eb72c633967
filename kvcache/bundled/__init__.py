"""The models that ship with the project: folders in plain transformers format. Importing this loads nothing heavy."""

from pathlib import Path

MODELS: dict[str, Path] = {"kvlab-llama-4m": Path(__file__).parent / "kvlab-llama-4m"}
DEFAULT = "kvlab-llama-4m"


def path(name: str = DEFAULT) -> Path:
    """The folder of a bundled model, for `from_pretrained`. Raises KeyError naming those there are."""
    if name not in MODELS:
        raise KeyError(f"no bundled model {name!r}; there are {', '.join(MODELS)}")
    return MODELS[name]
