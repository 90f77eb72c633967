"""The models that ship with the project: folders in plain transformers format. Importing this loads nothing heavy."""

from pathlib import Path

DEFAULT = "kvlab-llama-4m"
MODELS: dict[str, Path] = {
    name: Path(__file__).parent / name for name in (DEFAULT, "kvlab-ministral-4m", "kvlab-mistral-4m", "kvlab-mamba2-5m", "kvlab-granite-5m", "kvlab-umt5-5m")
}


def path(name: str = DEFAULT) -> Path:
    """The folder of a bundled model, for `from_pretrained`. Raises KeyError naming those there are."""
    if name not in MODELS:
        raise KeyError(f"no bundled model {name!r}; there are {', '.join(MODELS)}")
    return MODELS[name]
