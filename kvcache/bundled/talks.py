"""Hand-written conversations, answered by a model and printed, to be read and judged: `python -m kvcache.bundled.talks [--set third]`.

Three sets of a hundred turns as a visitor might type them; "System: " begins a system message. What was answered wrong in the first two
showed which kinds of turns the data maker lacked, so they are no verdict any more. Second and third were written by language models that
had seen nothing of the project; the third was written while the weights that ship were trained and gave their verdict, and nobody who made data has read it.
"""

import argparse
from pathlib import Path

from . import environment, evaluate, path

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


def main(arguments: list[str] | None = None) -> None:
    """Print the talks, replies numbered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=path())
    parser.add_argument("--set", default="first", choices=sorted(file.stem for file in FOLDER.glob("*.txt")))
    options, number = parser.parse_args(arguments), 0
    for messages in answered(*evaluate.load(options.model), options.set):
        for message in messages:
            number += message["role"] == "assistant"
            print(f"{number:3}. {message['content']}" if message["role"] == "assistant" else f"{message['role']:>9}: {message['content']}")
        print()


if __name__ == "__main__":
    environment.restart("kvcache.bundled.talks")
    main()
