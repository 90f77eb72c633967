"""Write a model's card from what was measured: `python -m kvcache.bundled.card [--model FOLDER]`.

Reads training.json and evaluation.json beside the weights; run it after every training and evaluation.
"""

import argparse
import json
from pathlib import Path

from . import hand_written, path, separation

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
How well it does it so far is in the table below. Greet and make small talk, remember facts (names, codes, places, pets, favourites, who did what where), take corrections, say
"You have not told me ..." about things it was never told, follow a system message that gives it a name, tell three-sentence stories, make
short lists, add up to 10. It knows nothing of the world and speaks only simple English.

## Recall
Greedy, full cache, float32; values that training never told, always. *trained ways*: told and asked in ways of speaking that training used;
*new ways*: in ways that it never used, open facts made by grammar among them. *by hand*: {pairs} facts and questions written by hand, apart
from the data maker. *never told*: questions that should be declined.

{table}

## With each cache
{separation}

## Data
Conversations made by `kvcache/bundled/dialogues.py`, nothing else: no text of other people. A fixed sixth of all values and a tenth of
all ways of speaking are held out for the tests.

## Rebuild
```
python -m kvcache.bundled.train --minutes {round_minutes} --work build/llama
python -m kvcache.bundled.evaluate --model build/llama/export
python -m kvcache.bundled.separation --model build/llama/export
```
{honest}
"""
HONEST = """The committed weights were not made in one go, but in parts, each from the weights before, while the data maker was being found (minutes added by hand,
on cores shared with other work):

{parts}

The scripts have not been run from nothing to the end in one go.

*by hand, second set* was written before its author saw the data maker's templates and is used for verdicts only. Its author then widened the templates,
and someone who had seen neither set widened them again: now 9 of its {verdict_pairs} rows and 3 of the first set's {pairs} match a template on both sides."""


def card(folder: Path) -> str:
    """The card's text."""
    config = json.loads((folder / "config.json").read_text())
    training = json.loads((folder / "training.json").read_text())
    return TEXT.format(**{**config, **training}, name=folder.name, parameters=parameters(config), megabytes=(folder / "model.safetensors").stat().st_size / 1e6,
                       theta=config["rope_parameters"]["rope_theta"], pairs=len(hand_written.PAIRS), round_minutes=round(training["minutes"]),
                       table=table(json.loads((folder / "evaluation.json").read_text())), separation=with_each_cache(folder), honest=how_it_was(training))


def how_it_was(training: dict) -> str:
    """In which parts the training was done; "" where it was done in one go."""
    if "parts" not in training:
        return ""
    return HONEST.format(parts=_parts(training), pairs=len(hand_written.PAIRS), verdict_pairs=len(hand_written.VERDICT_PAIRS))


def _parts(training: dict) -> str:
    return "\n".join(f"- {part['minutes']:g} minutes, {part['tokens']:,} tokens: {part['what']}" for part in training["parts"])


def with_each_cache(folder: Path) -> str:
    """What `separation` measured, in words and a table."""
    measured = separation.read(folder)
    if measured is None:
        return "Not measured."
    return (f"The same questions in training's ways, {measured['questions']} for each distance, answered greedily with each cache: the share right by tokens between the\n"
            f"telling and the question, and how many answers are word for word the full cache's.\n\n{separation.table(measured)}")


def parameters(config: dict) -> int:
    """How many parameters a Llama of this configuration has, embeddings counted once."""
    d, heads, e, ff = config["hidden_size"], config["num_attention_heads"], config["head_dim"], config["intermediate_size"]
    layer = 2 * d * heads * e + 2 * d * config["num_key_value_heads"] * e + 3 * d * ff + 2 * d
    return config["vocab_size"] * d + config["num_hidden_layers"] * layer + d


def table(results: dict) -> str:
    """A Markdown table: a row per distance."""
    heads = ("tokens between", "questions", "trained ways: recalled", "new ways: recalled", "by hand: recalled", "by hand: declined though told", "never told: declined",
             "by hand, second set: recalled", "second set, never told: declined")
    columns = ("trained_ways", "new_ways", "hand_written", "never_told", "verdict", "verdict_never_told")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for distance in results["trained_ways"]:
        trained, new, hand, never, verdict, verdict_never = cells = [results[name][distance] for name in columns]
        shares = (trained["recalled"], new["recalled"], hand["recalled"], hand["told but declined"], never["declined"], verdict["recalled"], verdict_never["declined"])
        lines.append(f"| {int(distance):,} | {' + '.join(str(cell['questions']) for cell in cells)} | {' | '.join(f'{share:.1%}' for share in shares)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Write README.md into the model's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=path())
    folder = parser.parse_args(arguments).model
    (folder / "README.md").write_text(card(folder))


if __name__ == "__main__":
    main()
