"""Give a Llama's keys the outlier channels that large models' keys have, and leave what it says as it is: `python -m kvcache.bundled.outliers FOLDER`.

Keys of large models are loud in a few channels, the same ones for every token; what rounds whole tokens in few bits loses the others beside them, what rounds
each channel by itself does not care. The keys of the 20m were evener, so that a crude cache looked better on it than it is. Here the loudest pair of channels
that turns together, of each key head, is multiplied by a power of two and the queries that meet it are divided by it: the same scores, to the bit.
Source: Liu et al. 2024, KIVI, arXiv 2402.02750, section 3.
"""

import argparse
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from . import evaluate, family

FACTOR = 2.0
LENGTH = 512  # tokens of the conversation by which the loudest channels are found


def loudness(model: PreTrainedModel, ids: torch.Tensor) -> list[torch.Tensor]:
    """Root mean square of each layer's keys over the tokens of `ids` [1, T], by channel: [H, D] for each layer."""
    cache = transformers.DynamicCache()
    with torch.no_grad():
        model(ids, past_key_values=cache)
    return [layer.keys[0].float().square().mean(dim=1).sqrt() for layer in cache.layers]


def loudest(loud: torch.Tensor) -> torch.Tensor:
    """Of each key head, the two channels that rotary positions turn together and that are loudest together: a mask like `loud` [H, D]."""
    pairs = loud.square().unflatten(1, (2, -1)).sum(dim=1)  # [H, D / 2]: channel d turns with d + D / 2
    return torch.nn.functional.one_hot(pairs.argmax(dim=1), pairs.shape[1]).repeat(1, 2).bool()


def factors(model: PreTrainedModel, ids: torch.Tensor, factor: float) -> dict[str, torch.Tensor]:
    """By what the rows of which weights are multiplied, [rows, 1] each by the weight's name. Raises ValueError for another model than a Llama, and another factor than a power of two."""
    if model.config.model_type != "llama" or model.config.attention_bias:
        raise ValueError(f"only a Llama without biases is scaled here, got a {model.config.model_type}")
    if torch.frexp(torch.tensor(factor)).mantissa != 0.5:
        raise ValueError(f"factor must be a power of two, or scores would be rounded anew, got {factor}")
    queries = model.config.num_attention_heads // model.config.num_key_value_heads
    found = {}
    for index, loud in enumerate(loudness(model, ids)):
        scale = torch.where(loudest(loud), factor, 1.0)
        found[f"model.layers.{index}.self_attn.k_proj.weight"] = scale.reshape(-1, 1)
        found[f"model.layers.{index}.self_attn.q_proj.weight"] = 1 / scale.repeat_interleave(queries, dim=0).reshape(-1, 1)
    return found


def lift(folder: Path, factor: float = FACTOR) -> None:
    """Scale the weights in a folder's files, by how loud the channels are in a conversation that is always the same."""
    model, tok = evaluate.load(folder)
    messages = evaluate.generated(1, LENGTH)[0].messages
    scales = factors(model, torch.tensor([tok.apply_chat_template(messages, return_dict=False)]), factor)
    for file in family.files(folder):
        weights = load_file(file)
        save_file({name: (p * scales[name]).to(p.dtype) if name in scales else p for name, p in weights.items()}, file, {"format": "pt"})


def main(arguments: list[str] | None = None) -> None:
    """Scale the weights of one folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--factor", type=float, default=FACTOR)
    options = parser.parse_args(arguments)
    lift(options.folder, options.factor)


if __name__ == "__main__":
    main()
