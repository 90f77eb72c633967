"""How much a model recalls: `python -m kvcache.bundled.evaluate [--model FOLDER] [--questions 200]`.

Greedy answers to questions about facts told 128 to 1,500 tokens earlier: values and ways of speaking that training never used
(`new_ways`; `trained_ways` for training's own), `passages` held out from training, of several people, days or things at once, sentences written by hand (`hand_written`; `verdict` and `third` to `sixth`, whose rows no
data was made by), and things never told (`never_told` and the like, which should be declined). Prints a table and writes JSON beside the model.
"""

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch

from ..architecture import cache_argument
from ..catalog import create
from ..weights import LOADING
from . import MODELS, dialogues, environment, hand_written, marks, passages, path, texts
from .tokenizer import stretch

DISTANCES = (128, 512, 1024, 1500)
DECLINE = "not told me"
UNKNOWN = "I do not know that"  # as the model answers questions about the world: honest too, but no sign that it knows what it was asked for


@dataclass(frozen=True)
class Case:
    """A conversation that ends with a question, and what the answer must contain ("" for a thing never told)."""

    messages: list[dict[str, str]]
    expected: str


def generated(count: int, distance: int, new_ways: bool = False) -> list[Case]:
    """Questions about values that training never used, asked in training's ways or, if `new_ways`, in ways held out from it."""
    cases = (dialogues.question_at(number, distance, new_ways) for number in range(count))
    return [Case(clean(messages), fact.value) for messages, fact in cases]


def about_passages(count: int, distance: int) -> list[Case]:
    """Questions about passages held out from training: which of the people, days or things in it, or none that was told."""
    cases: list[Case] = []
    for number in range(count):
        rng = Random(f"passage {number} {distance}")
        talk = dialogues.Conversation(rng, distance, held=True)
        system, told, asked, expected = _asked_about(rng)
        if system:
            talk.say("system", system)
        for turn in told:
            talk.turn(*turn)
        dialogues.pad(talk, distance, kind="open")
        talk.say("user", asked)
        cases.append(Case(clean(talk.messages), expected))
    return cases


def _asked_about(rng: Random) -> tuple[str, passages.Turns, str, str]:
    """A held-out passage's system message and turns, a question of it, and the one value that the answer recalls and the question does not say, or "" where it declines."""
    found: list[tuple[str, str]] = []
    while not found:
        system, told, questions = rng.choice(passages.passages(True)).draw(rng, held=True)
        first = [(asked, marks.REFUSING in reply, marks.recalls(reply)) for (asked, reply), *_ in questions]
        found = [(asked, "" if declined else values[0]) for asked, declined, values in first if declined or len(values) == 1 and not contains(asked, values[0])]
    return system, told, *rng.choice(found)


def by_hand(distance: int, pairs=hand_written.PAIRS) -> list[Case]:
    """The hand-written facts and questions with generated talk in between."""
    cases = []
    for number, (told, asked, expected) in enumerate(pairs):
        talk = dialogues.Conversation(Random(f"by hand {number} {distance}"), distance, held=True)
        talk.turn(told, "Okay.")
        dialogues.pad(talk, distance, kind="open")
        talk.say("user", asked)
        cases.append(Case(clean(talk.messages), expected))
    return cases


def never_told(distance: int, questions=hand_written.NEVER_TOLD) -> list[Case]:
    """Hand-written questions after talk in which nothing of the kind was told."""
    cases = []
    for number, asked in enumerate(questions):
        talk = dialogues.Conversation(Random(f"never told {number} {distance}"), distance, held=True)
        talk.turn("hello", "Hello! How can I help you?")
        dialogues.pad(talk, distance, kind="open")
        talk.say("user", asked)
        cases.append(Case(clean(talk.messages), ""))
    return cases


def tokens(distance: int, tokenizer) -> int:
    """A distance in a model's tokens as the data maker counts it."""
    return round(distance * stretch(tokenizer))


def clean(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Messages without marks."""
    return [{"role": m["role"], "content": marks.strip(m["content"])} for m in messages]


@torch.inference_mode()
def replies(model, tokenizer, conversations: list[list[dict[str, str]]], batch_size: int = 8, make_cache: Callable | None = None, max_new_tokens: int = 32, use_cache: bool = True) -> list[str]:
    """Greedy replies, batches of similar length padded on the left. `make_cache()` gives each batch its cache (default: the model's own)."""
    if model.config.is_encoder_decoder:
        return read_replies(model, tokenizer, conversations, max_new_tokens)
    prompts = [tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=False) for c in conversations]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    found = [""] * len(prompts)
    for start in range(0, len(order), batch_size):
        rows = order[start:start + batch_size]
        longest = max(len(prompts[i]) for i in rows)
        ids = torch.tensor([[tokenizer.pad_token_id] * (longest - len(prompts[i])) + prompts[i] for i in rows], device=model.device)
        mask = torch.tensor([[0] * (longest - len(prompts[i])) + [1] * len(prompts[i]) for i in rows], device=model.device)
        cache = {cache_argument(model): make_cache()} if make_cache else {}
        out = model.generate(input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=max_new_tokens, use_cache=use_cache, **cache)
        for i, row in zip(rows, out[:, longest:]):
            found[i] = tokenizer.decode(row, skip_special_tokens=True).strip()
    return found


def read_replies(model, tokenizer, conversations: list[list[dict[str, str]]], max_new_tokens: int) -> list[str]:
    """Greedy replies of an encoder-decoder: it reads what the user says first as a text, and the conversation goes on from there."""
    found = []
    for messages in conversations:
        text = messages[0]["content"] if len(messages) > 1 else ""
        read = tokenizer(texts.source(text), add_special_tokens=False, return_tensors="pt")
        prompt = tokenizer.apply_chat_template(messages[2:] or messages, add_generation_prompt=True, return_dict=False, return_tensors="pt")
        cache = create("encoder_decoder", model)  # transformers' own has as many layers as the encoder, and fails
        out = model.generate(**read, decoder_input_ids=prompt, do_sample=False, max_new_tokens=max_new_tokens, **{cache_argument(model): cache})
        found.append(tokenizer.decode(out[0, prompt.shape[1]:], skip_special_tokens=True).strip())
    return found


def contains(reply: str, expected: str) -> bool:
    """True where the reply has the expected words, whatever their case."""
    return re.search(rf"(?<!\w){re.escape(expected.lower())}(?!\w)", reply.lower()) is not None


def score(cases: list[Case], answers: list[str]) -> dict[str, float]:
    """Shares of cases: recalled, told but declined; of those never told, declined, and that or said not to be known; and how many there were."""
    told = [(c, a) for c, a in zip(cases, answers) if c.expected]
    never = [a for c, a in zip(cases, answers) if not c.expected]
    result: dict[str, float] = {"questions": len(cases)}
    if told:
        result["recalled"] = sum(contains(a, c.expected) for c, a in told) / len(told)
        result["told but declined"] = sum(DECLINE in a for _, a in told) / len(told)
    if never:
        result["declined"] = sum(DECLINE in a for a in never) / len(never)
        result["declined or unknown"] = sum(DECLINE in a or UNKNOWN in a for a in never) / len(never)
    return result


def load(folder: Path):
    """Model in float32 and tokenizer of a folder."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    with LOADING:
        kind = AutoModelForSeq2SeqLM if AutoConfig.from_pretrained(folder).is_encoder_decoder else AutoModelForCausalLM
        model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), AutoTokenizer.from_pretrained(folder)


def shipped() -> dict[str, dict]:
    """What was found of every model that ships, by its name."""
    return {name: json.loads((folder / "evaluation.json").read_text()) for name, folder in MODELS.items()}


def main(arguments: list[str] | None = None) -> dict:
    """Evaluate, print, write JSON; returns what was written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=path())
    parser.add_argument("--questions", type=int, default=200, help="generated questions a cell")
    parser.add_argument("--distances", type=int, nargs="+", default=list(DISTANCES), help="tokens between fact and question")
    parser.add_argument("--json", type=Path, default=None, help="default: evaluation.json in the model's folder")
    parser.add_argument("--wrong", action="store_true", help="print what was answered wrong, but for the later hand-written sets")
    parser.add_argument("--verdict", action=argparse.BooleanOptionalAction, default=True, help="also the later hand-written sets")
    options = parser.parse_args(arguments)
    model, tokenizer = load(options.model)
    table: dict[str, dict[str, dict[str, float]]] = {}
    for distance in options.distances:
        far = tokens(distance, tokenizer)
        made = [("trained_ways", generated(options.questions, far)), ("new_ways", generated(options.questions, far, new_ways=True))]
        hand = []
        for name, (pairs, questions) in hand_written.SETS.items():
            if options.verdict or name == "hand_written":
                never = "never_told" if name == "hand_written" else f"{name}_never_told"
                hand += [(name, by_hand(far, pairs)), (never, never_told(far, questions))]
        if not model.config.is_encoder_decoder:  # whose text is the first message alone
            made.append(("passages", about_passages(options.questions, far)))
        for name, cases in (*made, *hand):
            answers = replies(model, tokenizer, [c.messages for c in cases])
            table.setdefault(name, {})[str(distance)] = cell = score(cases, answers)
            print(f"{name:18} at {distance:5} tokens: " + ", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{v} {k}" for k, v in cell.items()), flush=True)
            if options.wrong and not name.startswith(tuple(hand_written.SETS)[1:]):
                show_wrong(cases, answers)
    target = options.json or options.model / "evaluation.json"
    target.write_text(json.dumps(table, indent=1) + "\n")
    return table


def show_wrong(cases: list[Case], answers: list[str]) -> None:
    """Print the cases answered wrong: what was told, asked, expected and said."""
    for case, answer in zip(cases, answers):
        if not (contains(answer, case.expected) if case.expected else DECLINE in answer):
            print(f"    {case.messages[0]['content']!r} {case.messages[-1]['content']!r} wanted {case.expected!r} got {answer!r}")


if __name__ == "__main__":
    environment.restart("kvcache.bundled.evaluate")
    main()
