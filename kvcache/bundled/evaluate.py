"""How much a model recalls: `python -m kvcache.bundled.evaluate [--model FOLDER] [--questions 40]`.

Greedy answers, with the model's own full cache, to the questions of `questions`, asked as many of the model's tokens after the telling as the
frozen ones are. Prints a share for each set and distance, then a table; `--json` writes what evaluations.json holds of a model.
"""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..architecture import cache_argument
from ..catalog import create
from ..weights import LOADING
from . import MODELS, card, environment, path, questions
from .questions import Case

FILE = Path(__file__).parent / "evaluations.json"  # by model
DISTANCES = (128, 512, 1024, 1500)
DECLINE = "not told me"
UNKNOWN = "I do not know that"  # as the model answers questions about the world: honest too, but no sign that it knows what it was asked for


@torch.inference_mode()
def replies(model: Any, tokenizer: Any, conversations: list[list[dict[str, str]]], batch_size: int = 8, make_cache: Callable | None = None, max_new_tokens: int = 32, use_cache: bool = True) -> list[str]:
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


def read_replies(model: Any, tokenizer: Any, conversations: list[list[dict[str, str]]], max_new_tokens: int) -> list[str]:
    """Greedy replies of an encoder-decoder: it reads what the user says first as a text, and the conversation goes on from there."""
    found = []
    for messages in conversations:
        text = messages[0]["content"] if len(messages) > 1 else ""
        source = tokenizer.apply_chat_template([{"role": "system", "content": text}], tokenize=False) if text else ""
        read = tokenizer(source, add_special_tokens=False, return_tensors="pt")
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


def load(folder: Path) -> tuple:
    """Model in float32 and tokenizer of a folder."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    with LOADING:
        kind = AutoModelForSeq2SeqLM if AutoConfig.from_pretrained(folder).is_encoder_decoder else AutoModelForCausalLM
        model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), AutoTokenizer.from_pretrained(folder)


def shipped() -> dict[str, dict]:
    """What was found of every model that is here, by its name."""
    return {name: found for name, found in json.loads(FILE.read_text()).items() if MODELS[name].is_dir()}


def main(arguments: list[str] | None = None) -> dict:
    """Evaluate and print; returns shares by set and distance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=None, help="folder; the default model's by default")
    parser.add_argument("--questions", type=int, default=None, help="of each set at each distance at most; all by default")
    parser.add_argument("--distances", type=int, nargs="+", default=list(DISTANCES), help="tokens between fact and question")
    parser.add_argument("--json", type=Path, default=None, help="where to write what is returned")
    options = parser.parse_args(arguments)
    model, tokenizer = load(options.model or path())
    found: dict[str, dict[str, dict[str, float]]] = {}
    for distance in options.distances:
        far = questions.tokens(distance, tokenizer)
        for kind in questions.kinds(far):
            cases = questions.cases(kind, far)[:options.questions]
            found.setdefault(kind, {})[str(distance)] = cell = score(cases, replies(model, tokenizer, [c.messages for c in cases]))
            print(f"{kind:18} at {distance:5} tokens: " + ", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{v} {k}" for k, v in cell.items()), flush=True)
    print(card.table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return found


if __name__ == "__main__":
    environment.restart("kvcache.bundled.evaluate")
    main()
