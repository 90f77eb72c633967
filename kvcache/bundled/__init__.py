"""The models that ship with the project, folders in transformers' own format, and the questions that are asked of them. Importing this loads nothing heavy."""

from pathlib import Path

DEFAULT = "kvlab-llama-20m"
ABOUT = (f"{DEFAULT} is very small: it remembers what you tell it, makes small talk, tells jokes, facts and short stories, makes lists and does small sums. "
         "It knows nothing of the world.")
WHAT = {  # they are
    DEFAULT: "a plain Llama: every layer attends to every token, two query heads to a key head; its words began with what they mean",
    "kvlab-ministral-7m": "a Ministral, as Gemma's layers alternate: layers 1 and 3 attend to the latest 256 tokens, layers 2 and 4 to every one",
    "kvlab-mistral-5m": "a Mistral: every layer attends to the latest 256 tokens",
    "kvlab-mamba2-5m": "a Mamba-2: no attention, a state of fixed size in every layer",
    "kvlab-granite-5m": "a dense Granite hybrid, Jamba's idea: attention in the second of four layers, Mamba-2 in the others",
    "kvlab-umt5-5m": "a UMT5: an encoder reads a text, a decoder talks about it",
}
MODELS: dict[str, Path] = {name: Path(__file__).parent / name for name in WHAT}


def path(name: str = DEFAULT) -> Path:
    """The folder of a bundled model, for `from_pretrained`.

    Raises KeyError for a name that none has, and FileNotFoundError where its weights were not installed.
    """
    if name not in MODELS:
        raise KeyError(f"no bundled model {name!r}; there are {', '.join(MODELS)}")
    if missing := why_not_here(name):
        raise FileNotFoundError(missing)
    return MODELS[name]


def nbytes(name: str) -> int:
    """Bytes of a bundled model's weights on disk; 0 where they were not installed."""
    return sum(file.stat().st_size for file in MODELS[name].glob("*.safetensors"))


def why_not_here(name: str) -> str | None:
    """A sentence that says where a bundled model's weights are to be had if they were not installed, or None."""
    if nbytes(name):
        return None
    return f"{name} is not here: the package is installed without the bundled models. Clone the project to have them, or pick a model from the hub or a folder."
