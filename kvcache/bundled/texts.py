"""Texts to read and conversations about them, for an encoder-decoder: the encoder reads what somebody told, the decoder talks about it."""

from random import Random

import torch
from transformers import PreTrainedTokenizerFast

from . import batches, dialogues, facts, marks, smalltalk, tokenizer

LONGEST = 1024  # tokens of a text
SHORTEST = 12
EMPTY = 0.1  # of the texts tell nothing that is asked for
UNTOLD = 8.0  # times as many questions about what nobody told as other models get: with as many as those a reader made up answers to three in five, with three times as many to half, and with eight to three in ten


def text_and_talk(seed: int | str, text_length: int, length: int, held: bool = False) -> tuple[str, list[dict[str, str]]]:
    """A text of about `text_length` tokens in which facts are told, and the messages of a conversation of about `length` tokens that asks for them."""
    talk = dialogues.Conversation(Random(f"text {seed} {text_length} {length}"), text_length + length, held)
    telling, talk.untold = 0.7 if talk.rng.random() > EMPTY else 0, UNTOLD
    while talk.position < text_length:
        talk.tell_turn() if talk.rng.random() < telling else talk.say("user", facts.finish(talk.rng, smalltalk.remark(talk.rng)).rstrip("?"))
    told = [m["content"] for m in talk.messages if m["role"] == "user"]
    talk.messages.clear()
    talk.said.clear()  # the replies that said them are not part of the text
    talk.position = text_length
    while talk.position < text_length + length:
        talk.step()
    return " ".join(line if line[-1] in ".!?" else line + "." for line in told), talk.messages


def source(text: str) -> str:
    """What the encoder reads: a system message, rendered as the chat template does."""
    return tokenizer.render([{"role": "system", "content": text}] if text else [])


def batch(tok: PreTrainedTokenizerFast, seed: int, number: int, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """ids and weights of conversations, both [rows, length + 1], and the ids of their texts [rows, longest], padded on the right."""
    made = [_row(tok, f"{seed} {number} {i}", length) for i in range(rows)]
    longest = max(len(text) for *_, text in made)
    texts = [text + [tok.pad_token_id] * (longest - len(text)) for *_, text in made]
    return torch.tensor([ids for ids, _, _ in made], dtype=torch.int16), torch.tensor([w for _, w, _ in made], dtype=torch.float32), torch.tensor(texts, dtype=torch.int16)


def _row(tok: PreTrainedTokenizerFast, seed: str, length: int) -> tuple[list[int], list[float], list[int]]:
    """Exactly length + 1 ids, their weights, and the ids of the text."""
    text_length = Random(seed).randint(SHORTEST, min(LONGEST, 3 * length))
    room = length + 40
    while True:
        text, messages = text_and_talk(seed, text_length, room)
        ids, weights = batches.encoded(tok, messages)
        if len(ids) > length:
            break
        room += length + 1 - len(ids) + 40
    return ids[: length + 1], weights[: length + 1], tok.backend_tokenizer.encode(source(marks.strip(text)), add_special_tokens=False).ids
