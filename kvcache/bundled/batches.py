"""Conversations and drills as batches of token ids and loss weights, made ahead by a background process.

A batch is a pure function of (seed, number, length), so a resumed training sees the same data.
"""

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, cycle
from queue import Empty, Full
from random import Random

import torch
from transformers import PreTrainedTokenizerFast

from . import dialogues, drills, marks, tokenizer, trees

USER, ASSISTANT, DECISIVE, RECALLED, UNGUESSABLE = 0.05, 0.7, 3.0, 4.0, 0.1  # loss weights; with 0.2 and 1 most of the loss was guessing what users say and how thanks are worded; with 1 for 447 million tokens, in the latter half of which nothing was left out, chats were learnt by heart (4.4 nats per token of a held-out one's replies, from 2.9)
REFUSING, FAR = (0.95, 1.5), 1200  # of a refusal: at the beginning, and after FAR tokens; with 0.8 everywhere a model declined too much after 100 tokens and too little after 1,000, and with (0.75, 1.6) in 5.6 million tokens 5 % too much of what it was told 1,500 tokens before
LEAST = 150  # tokens that a tree is worth beginning for
PATIENCE = 20  # seconds after which one looks whether there is still somebody who makes batches


@dataclass(frozen=True)
class Mix:
    """What rows are made of."""

    drills: dict[int, float]  # their share of rows by length
    kinds: dict[str, float]  # shares of those: "segments" (tokens said again) and the kinds of `drills`
    scenes: float  # share of the other rows that are nothing but scenes, told and asked: conversations have many other turns, and scenes are what takes longest to learn
    situations: float  # share that are situations and small talk
    amid: float  # share that are small talk with a fact here and there
    trees: float  # share of batches that are trees, for models that take them


# Of 491 lists a model knew half of the 47 plainest and none of the rest while they came up in small talk alone. With trees as 0.6 of the batches small talk fell (79 to 71
# of a hundred turns), and with 0.4 in 5.6 million tokens it did not come back. Situations and small talk as 0.45 and small talk with facts as 0.17, with more trees, made a model decline
# 4 to 7 % more of what it was never told, recall 0.5 to 0.8 % less and name worse lists.
EVEN = Mix({128: 0.2, 256: 0.32, 512: 0.25, 1024: 0.2, 2048: 0.12}, {"segments": 0.06, "key_values": 0.09, "listing": 0.24, "storytelling": 0.16, "reckoning": 0.19, "chatting": 0.26}, 0.23, 0.5, 0.08, 0.36)
TALK = Mix({256: 0.6, 512: 0.5, 1024: 0.5}, {"segments": 0.01, "key_values": 0.02, "listing": 0.17, "storytelling": 0.15, "reckoning": 0.06, "chatting": 0.59}, 0.2, 0.52, 0.12, 0.33)  # the same, for the last part of a training: more talk, and more of what is learnt by heart
_BY_MARK = {"": ASSISTANT, marks.DECISIVE: DECISIVE, marks.REFUSING: REFUSING[0], marks.RECALLED: RECALLED, marks.UNGUESSABLE: UNGUESSABLE}


def weighted(messages: list[dict[str, str]]) -> tuple[str, list[float]]:
    """The rendered conversation and a loss weight for each of its characters."""
    text, weights = [tokenizer.BOS], [0.0] * len(tokenizer.BOS)
    for message in messages:
        content, under = marks.spans(message["content"])
        piece = f"<|{message['role']}|> "
        assistant = message["role"] == "assistant"
        text += [piece, content, tokenizer.END]
        weights += [USER] * len(piece)
        weights += [_BY_MARK[mark] for mark in under] if assistant else [USER] * len(content)
        weights += [ASSISTANT if assistant else USER] * len(tokenizer.END)
    return "".join(text), weights


def row(tok: PreTrainedTokenizerFast, seed: str, length: int, mix: Mix = EVEN) -> tuple[list[int], list[float]]:
    """Exactly length + 1 ids and their weights."""
    rng, size = Random(seed), length + 1
    wanted = round((size + 40) * tokenizer.stretch(tok))
    if rng.random() < mix.drills.get(length, 0.05):
        kind = rng.choices(tuple(mix.kinds), tuple(mix.kinds.values()))[0]
        if kind == "segments":
            return drills.repeated_segment(rng, size, len(tok))
        messages = drills.KINDS[kind](seed, wanted)
    elif (roll := rng.random()) < mix.scenes:
        messages = drills.told_and_asked(seed, wanted)
    elif roll < mix.scenes + mix.situations:
        messages = drills.talked_over(seed, wanted)
    elif roll < mix.scenes + mix.situations + mix.amid:
        messages = drills.told_amid_talk(seed, wanted)
    else:
        messages = dialogues.conversation(seed, wanted)
    while True:
        ids, weights = encoded(tok, messages)
        if len(ids) >= size:
            return ids[:size], thinned(rng, weights[:size])
        messages = messages + dialogues.conversation(seed + "+", round(2 * (size - len(ids)) * tokenizer.stretch(tok)) + 40)


def thinned(rng: Random, weights: list[float]) -> list[float]:
    """A quarter of what users say with four times its weight, the rest with none: the same on average, and fewer logits to compute."""
    return [w if w != USER else 4 * USER if rng.random() < 0.25 else 0.0 for w in weights]


def encoded(tok: PreTrainedTokenizerFast, messages: list[dict[str, str]], before: int = 0) -> tuple[list[int], list[float]]:
    """The ids of a rendered conversation that goes on from `before` tokens, and their loss weights."""
    text, by_char = weighted(messages)
    encoding = tok.backend_tokenizer.encode(text, add_special_tokens=False)
    weights = [by_char[end - 1] if end > start else 0.0 for start, end in encoding.offsets]
    return encoding.ids, [refusing(before + number) if w == REFUSING[0] else w for number, w in enumerate(weights)]


def refusing(position: int) -> float:
    """The weight of a refusal: the more was said, the likelier is a model to answer with something of it."""
    first, last = REFUSING
    return first + (last - first) * min(1, position / FAR)


def batch(tok: PreTrainedTokenizerFast, seed: int, number: int, rows: int, length: int, mix: Mix = EVEN) -> tuple[torch.Tensor, torch.Tensor]:
    """ids and weights, both [rows, length + 1]."""
    made = [row(tok, f"{seed} {number} {i}", length, mix) for i in range(rows)]
    return torch.tensor([ids for ids, _ in made], dtype=torch.int16), torch.tensor([w for _, w in made], dtype=torch.float32)


def with_trees(tok: PreTrainedTokenizerFast, seed: int, number: int, rows: int, length: int, mix: Mix = EVEN) -> tuple[torch.Tensor, ...]:
    """As `batch`, or rows of trees with the places of their tokens as a third: tree, branch (0 for the trunk) and position, [rows, length + 1, 3]."""
    if Random(f"{seed} {number}").random() >= mix.trees:
        return batch(tok, seed, number, rows, length, mix)
    ids, weights, places = zip(*(row_of_trees(tok, f"{seed} {number} {i}", length) for i in range(rows)))
    return torch.tensor(ids, dtype=torch.int16), torch.tensor(weights, dtype=torch.float32), torch.tensor(places, dtype=torch.int16)


def row_of_trees(tok: PreTrainedTokenizerFast, seed: str, length: int) -> tuple[list[int], list[float], list[tuple[int, int, int]]]:
    """Exactly length + 1 ids, their weights and their places."""
    rng, size = Random(seed), length + 1
    ids, weights, places = [], [], []
    for number in count(1):
        if len(ids) >= size:
            return ids[:size], thinned(rng, weights[:size]), places[:size]
        made = trees.tree(f"{seed} {number}", round(max(LEAST, size - len(ids)) * tokenizer.stretch(tok)))
        trunk, by_id = encoded(tok, made.trunk)
        parts = [(trunk, by_id, [(number, 0, position) for position in range(len(trunk))])]
        for branch, messages in enumerate(made.branches, 1):
            new, by_id = (found[1:] for found in encoded(tok, messages, len(trunk) - 1))  # a branch has no beginning of its own
            parts.append((new, [0.0, *by_id[1:]], [(number, branch, len(trunk) + at) for at in range(len(new))]))
        for more_ids, more_weights, more_places in parts:
            ids += more_ids
            weights += more_weights
            places += more_places


def seen(places: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """Which tokens each token attends to [rows, 1, T, T], of their places [rows, T, 3]: those before it in its tree's trunk and in its own branch; of those the latest `window`."""
    tree, branch, position = places.unbind(-1)
    same_tree = tree[:, :, None] == tree[:, None, :]
    same_branch = branch[:, :, None] == branch[:, None, :]
    in_trunk = branch[:, None, :] == 0
    found = (same_tree & (in_trunk | same_branch)).tril()
    if window is not None:
        found &= position[:, :, None] - position[:, None, :] < window
    return found[:, None]


def masks(places: torch.Tensor, config) -> torch.Tensor | dict[str, torch.Tensor]:
    """What a model of this configuration takes as its attention mask for trees: one mask, or one for each kind of layers where some have a window."""
    kinds, window = set(getattr(config, "layer_types", None) or ()), getattr(config, "sliding_window", None)
    if not kinds:
        return seen(places, window)
    made = {kind: seen(places, window if kind == "sliding_attention" else None) for kind in kinds}
    return made if len(made) > 1 else made.popitem()[1]


Maker = Callable[[PreTrainedTokenizerFast, int, int, int, int], tuple[torch.Tensor, ...]]  # tokenizer, seed, number, rows, length


def _work(make: Maker, folder: str, seed: int, start: int, step: int, shape, queue) -> None:
    torch.set_num_threads(1)
    queue.cancel_join_thread()  # or this process would wait for a killed one to read what it has made
    tok = PreTrainedTokenizerFast.from_pretrained(folder)
    for number in count(start, step):
        rows, length = shape
        made = tuple(t.numpy() for t in make(tok, seed, number, rows, length))
        while True:
            try:
                queue.put(made, timeout=5)
                break
            except Full:
                if not multiprocessing.parent_process().is_alive():
                    return


class Inline:
    """Batches made when asked for: for tests, where a second process costs more than it brings."""

    def __init__(self, make: Maker, folder: str, seed: int, start: int) -> None:
        self.make = make
        self.tok, self.seed, self.number = PreTrainedTokenizerFast.from_pretrained(folder), seed, start

    def next(self, rows: int, length: int) -> tuple[torch.Tensor, ...]:
        self.number += 1
        return self.make(self.tok, self.seed, self.number - 1, rows, length)

    def close(self) -> None:
        """Nothing to stop."""


class Background:
    """Batches from other processes, in turn; `shape` says how many rows of which length they make next."""

    def __init__(self, make: Maker, folder: str, seed: int, start: int, rows: int, length: int, makers: int = 1, ahead: int = 3) -> None:
        context = multiprocessing.get_context("spawn")
        self.shape = context.Array("i", [rows, length])
        self.queues = [context.Queue(ahead) for _ in range(makers)]
        self.processes = [context.Process(target=_work, args=(make, folder, seed, start + number, makers, self.shape, queue), daemon=True) for number, queue in enumerate(self.queues)]
        for process in self.processes:
            process.start()
        self.turn = cycle(zip(self.processes, self.queues))

    def next(self, rows: int, length: int) -> tuple[torch.Tensor, ...]:
        """The next batch; after a change of shape a few of the old shape still come. Raises RuntimeError where the process that makes it has ended."""
        self.shape[0], self.shape[1] = rows, length
        process, queue = next(self.turn)
        while True:
            try:
                return tuple(torch.from_numpy(array) for array in queue.get(timeout=PATIENCE))
            except Empty:
                if not process.is_alive():
                    raise RuntimeError("the process that makes batches has ended: what it printed says why") from None

    def close(self) -> None:
        """Stop them."""
        for process in self.processes:
            process.terminate()
            process.join()
