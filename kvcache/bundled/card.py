"""Write a model's card from what was measured: `python -m kvcache.bundled.card [--model FOLDER]`.

Reads training.json and evaluation.json beside the weights; run it after every training and evaluation.
"""

import argparse
import json
from pathlib import Path

from . import hand_written, path

TEXT = """---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# {name}

A very small chat model that remembers what it is told in a conversation, made to show what key-value caches keep and lose. A plain
Llama in transformers format: `AutoModelForCausalLM.from_pretrained(folder)` loads it, no other code needed.

| | |
|---|---|
| size | {parameters:,} parameters, {megabytes:.1f} MB in fp16 |
| shape | hidden {hidden_size}, {num_hidden_layers} layers, {num_attention_heads} heads and {num_key_value_heads} KV heads of {head_dim}, feed-forward {intermediate_size}, RoPE theta {theta:.0e}, tied embeddings |
| tokens | byte-level BPE of {vocab_size:,}, single digits; trained on up to 2,048 tokens, positions up to {max_position_embeddings:,} |
| training | {steps:,} steps, {tokens:,} tokens, {minutes} minutes on two shared CPU cores, last weighted loss {loss}, seed {seed} |
| licence | Apache-2.0 |

## What it was trained to do
How well it does it so far is in the table below: it often fails, and beyond a few hundred tokens it mostly does. Greet and make small talk, remember facts (names, codes, places, pets, favourites, who did what where), take corrections, say
"You have not told me ..." about things it was never told, follow a system message that gives it a name, tell three-sentence stories, make
short lists, add up to 10. It knows nothing of the world and speaks only simple English.

## Recall
Greedy, full cache, float32. *generated*: values that training never told, in ways of speaking that it never used. *by hand*: {pairs} facts and
questions written by hand, apart from the data maker. *never told*: questions that should be declined.

{table}

## Data
Conversations made by `kvcache/bundled/dialogues.py`, nothing else: no text of other people. A fixed sixth of all values and a tenth of
all ways of speaking are held out for the tests.

## Rebuild
```
python -m kvcache.bundled.train --minutes {round_minutes} --work build/llama
python -m kvcache.bundled.evaluate --model build/llama/export
```
{honest}
"""
HONEST = """The committed weights come from one run on two cores shared with other work, so they saw fewer tokens than the same minutes give on idle
cores (about 3,300 tokens a second). Its first 51 minutes used earlier versions of the data maker and of the curriculum (at first fewer kinds of
sentences; more drills; longer rows earlier), its last 31 minutes those of the committed scripts (but for
fewer questions about things never told), as a second run of the whole schedule on
the weights so far. The scripts have not been run from nothing to the end in one go yet."""


def card(folder: Path) -> str:
    """The card's text."""
    config = json.loads((folder / "config.json").read_text())
    training = json.loads((folder / "training.json").read_text())
    return TEXT.format(**{**config, **training}, name=folder.name, parameters=parameters(config), megabytes=(folder / "model.safetensors").stat().st_size / 1e6,
                       theta=config["rope_parameters"]["rope_theta"], pairs=len(hand_written.PAIRS), round_minutes=round(training["minutes"]),
                       table=table(json.loads((folder / "evaluation.json").read_text())), honest=HONEST)


def parameters(config: dict) -> int:
    """How many parameters a Llama of this configuration has, embeddings counted once."""
    d, heads, e, ff = config["hidden_size"], config["num_attention_heads"], config["head_dim"], config["intermediate_size"]
    layer = 2 * d * heads * e + 2 * d * config["num_key_value_heads"] * e + 3 * d * ff + 2 * d
    return config["vocab_size"] * d + config["num_hidden_layers"] * layer + d


def table(results: dict) -> str:
    """A Markdown table: a row per distance."""
    lines = ["| tokens between | questions | generated: recalled | by hand: recalled | by hand: declined though told | never told: declined |", "|---|---|---|---|---|---|"]
    for distance, cell in results["generated"].items():
        hand, never = results["hand_written"][distance], results["never_told"][distance]
        lines.append(f"| {int(distance):,} | {cell['questions']} + {hand['questions']} + {never['questions']} | {cell['recalled']:.1%} | {hand['recalled']:.1%} | {hand['told but declined']:.1%} | {never['declined']:.1%} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Write README.md into the model's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=path())
    folder = parser.parse_args(arguments).model
    (folder / "README.md").write_text(card(folder))


if __name__ == "__main__":
    main()
