"""Hand-written conversations, answered by a model and printed, to be read and judged: `python -m kvcache.bundled.talks [--set seventh]`.

Eleven sets of a hundred turns as a visitor might type them; "System: " begins a system message. All but the first were written by language models
that had seen nothing of the project. What was answered wrong in the first six and in the ninth showed which kinds of turns the data maker lacked, so they
are no verdict any more. The tenth gave the verdict on the weights that ship, whose data were made by nobody who had read it, as the seventh did on those before;
so did the eleventh, whose writer had read what the page says that the model can do. The misses of all three have been read since, and two who wrote lists had opened the eighth.
The next verdict needs a twelfth.
`--loss` prints in a minute how likely the replies of held-out chats are, which says of two trainings of the same data which one talks better;
`--remarks` in two how many of the held-out remarks get a reply of their kind, a lower bound of those that fit, `--reactions` the same of held-out reactions, `--conversations` of the turns of held-out conversations of stock replies, `--situations` how many of the
details told in held-out situations are recalled, and how many of those not told declined; `--lists` how many questions about lists and numbers of the user's own are answered.
"""

import argparse
from pathlib import Path
from random import Random

import torch

from . import chats, compared, environment, evaluate, games, marks, own_lists, path, reactions, remarks, repertoire, situations

FOLDER = Path(__file__).parent / "talk_lists"


def talks(name: str) -> list[list[str]]:
    """The lines of each talk in a set."""
    return [talk.split("\n") for talk in (FOLDER / f"{name}.txt").read_text().strip().split("\n\n")]


def answered(model, tokenizer, name: str) -> list[list[dict[str, str]]]:
    """Every talk of a set with the model's greedy replies, each given what it said before."""
    done = []
    for lines in talks(name):
        messages: list[dict[str, str]] = []
        for line in lines:
            if line.startswith("System: "):
                messages.append({"role": "system", "content": line.removeprefix("System: ")})
                continue
            messages.append({"role": "user", "content": line})
            messages.append({"role": "assistant", "content": evaluate.replies(model, tokenizer, [messages], max_new_tokens=64)[0]})
        done.append(messages)
    return done


@torch.inference_mode()
def loss(model, tokenizer, held: tuple[chats.Chat, ...]) -> float:
    """Nats per token of the first replies in `held`, each given the chat before it, such as `chats.chats(True)`, which no training sees."""
    total, count = 0.0, 0
    for chat in held:
        messages: list[dict[str, str]] = []
        for (said, *_), (reply, *_) in chat:
            messages.append({"role": "user", "content": said})
            prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            messages.append({"role": "assistant", "content": reply})
            ids = torch.tensor([tokenizer.apply_chat_template(messages, return_dict=False)], device=model.device)
            logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
            total += torch.nn.functional.cross_entropy(logits.float(), ids[0, len(prompt) :], reduction="sum").item()
            count += ids.shape[1] - len(prompt)
    return total / count


Found = dict[str, list[bool]]  # for each kind, whether each of those asked got a reply of its kind


def in_kind(model, tokenizer) -> Found:
    """For each kind of remarks, which of those held out from training get a reply that `remarks` has for its kind."""
    found = {}
    for kind in remarks.KINDS:
        said = [remarks.worded(Random(line), kind, line, held=True)[0] for line in remarks.lines(kind, True)]
        replies = evaluate.replies(model, tokenizer, [[{"role": "user", "content": text}] for text in said], max_new_tokens=24)
        found[kind] = [reply.strip() in remarks.fitting(kind) for reply in replies]
    return found


def reacted(model, tokenizer) -> Found:
    """For each kind of reactions, which of those held out from training get a reply that `reactions` has for its kind."""
    found = {}
    for kind in reactions.REPLIES:
        asked = [reactions.turns(Random(f"{kind} {seed}"), kind, held=True, alone=True) for seed in range(len(reactions.lines(kind, True)))]
        replies = evaluate.replies(model, tokenizer, [before(turns) for turns in asked], max_new_tokens=72)
        found[kind] = [reply.strip() in reactions.fitting(kind, turns) for reply, turns in zip(replies, asked)]
    return found


def in_conversation(model, tokenizer) -> Found:
    """For each kind of replies, which of the turns of the conversations of stock replies held out from training get one of them, given those before."""
    found: Found = {}
    for number, conversation in enumerate(repertoire.conversations(True)):
        turns = repertoire.said(Random(number), conversation)
        replies = evaluate.replies(model, tokenizer, [before(turns[: at + 1]) for at in range(len(turns))], max_new_tokens=72)
        for (_, kind), reply in zip(conversation, replies):
            found.setdefault(kind, []).append(reply.strip() in repertoire.fitting(kind))
    return found


def in_situation(model, tokenizer) -> Found:
    """Of the turns of held-out situations, which of those that ask for what was told are answered with all of it ("recalled"), which of those that ask for what was not are declined ("declined"), which of those with a stock reply get one of its kind ("in kind")."""
    found: Found = {"recalled": [], "declined": [], "in kind": []}
    for number, situation in enumerate(situations.situations(True)):
        system, turns = situation.begin(Random(number), held=True)
        first = [{"role": "system", "content": system}] if system else []
        answers = evaluate.replies(model, tokenizer, [first + before(turns[: at + 1]) for at in range(len(turns))], max_new_tokens=72)
        for (_, kinds), (_, expected), reply in zip(situation.chat, turns, answers):
            if kinds[0].startswith("="):
                found["in kind"].append(reply.strip() in repertoire.fitting(kinds[0][1:]))
            elif marks.REFUSING in expected:
                found["declined"].append(evaluate.DECLINE in reply)
            elif marks.recalls(expected):
                found["recalled"].append(all(evaluate.contains(reply, value) for value in marks.recalls(expected)))
    return found


def listed(model, tokenizer, count: int = 100) -> Found:
    """Of so many talks each about a list of the user's own, numbers compared and games, with values held out from training: which last turns are answered word for word as they should be: a lower bound, as one of three wordings counts where an item is added."""
    found: Found = {}
    for module in (own_lists, compared, games):
        asked = [module.turns(Random(f"listed {seed}"), True) for seed in range(count)]
        replies = evaluate.replies(model, tokenizer, [before(turns) for turns in asked], max_new_tokens=72)
        found[module.__name__.rpartition(".")[2]] = [reply.strip() == marks.strip(turns[-1][1]) for reply, turns in zip(replies, asked)]
    return found


def share(found: list[bool]) -> float:
    """How many of them are right, 0 to 1."""
    return sum(found) / len(found)


def before(turns: list[tuple[str, str]]) -> list[dict[str, str]]:
    """Turns as messages, up to the last reply."""
    messages = [m for said, reply in turns for m in ({"role": "user", "content": said}, {"role": "assistant", "content": marks.strip(reply)})]
    return messages[:-1]


def main(arguments: list[str] | None = None) -> None:
    """Print the talks, replies numbered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=path())
    parser.add_argument("--set", default="first", choices=sorted(file.stem for file in FOLDER.glob("*.txt")))
    parser.add_argument("--loss", action="store_true", help="only the loss on the replies of held-out chats")
    parser.add_argument("--remarks", action="store_true", help="only how many of the held-out remarks get a reply of their kind")
    parser.add_argument("--reactions", action="store_true", help="only how many of the held-out reactions get a reply of their kind")
    parser.add_argument("--conversations", action="store_true", help="only how many of the turns of held-out conversations of stock replies get a reply of their kind")
    parser.add_argument("--situations", action="store_true", help="only how many of the details of held-out situations are recalled, and of those not told declined")
    parser.add_argument("--lists", action="store_true", help="only how many questions about lists and numbers of the user's own, and turns of games, are answered as they should be")
    options, number = parser.parse_args(arguments), 0
    if options.loss:
        print(f"{loss(*evaluate.load(options.model), chats.chats(True)):.3f} nats per token of a held-out chat's replies")
        return
    for asked, measure in ((options.remarks, in_kind), (options.reactions, reacted), (options.conversations, in_conversation), (options.situations, in_situation), (options.lists, listed)):
        if asked:
            found = measure(*evaluate.load(options.model))
            print("\n".join(f"{kind:>17} {share(rights):.0%} of {len(rights)}" for kind, rights in found.items() if rights))
            every = [right for kind in found.values() for right in kind]
            print(f"{share(every):.1%} of all {len(every)}")
            return
    for messages in answered(*evaluate.load(options.model), options.set):
        for message in messages:
            number += message["role"] == "assistant"
            print(f"{number:3}. {message['content']}" if message["role"] == "assistant" else f"{message['role']:>9}: {message['content']}")
        print()


if __name__ == "__main__":
    environment.restart("kvcache.bundled.talks")
    main()
