"""The models that ship with the project: folders in plain transformers format. Importing this loads nothing heavy."""

from pathlib import Path

DEFAULT = "kvlab-llama-20m"
NAMES = (DEFAULT, "kvlab-llama-15m", "kvlab-llama-11m", "kvlab-llama-9m", "kvlab-llama-7m", "kvlab-llama-4m", "kvlab-ministral-7m", "kvlab-mistral-5m", "kvlab-mamba2-5m", "kvlab-granite-5m", "kvlab-umt5-5m")  # that can be trained
ABOUT = f"{DEFAULT} is very small: it remembers what you tell it, makes small talk, tells jokes, facts and short stories, makes lists and does small sums. It knows nothing of the world."
MODELS: dict[str, Path] = {name: folder for name in NAMES if (folder := Path(__file__).parent / name).is_dir()}  # that are here


def path(name: str = DEFAULT) -> Path:
    """The folder of a bundled model, for `from_pretrained`. Raises KeyError naming those there are."""
    if name not in MODELS:
        raise KeyError(f"no bundled model {name!r}; there are {', '.join(MODELS)}")
    return MODELS[name]
