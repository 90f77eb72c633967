"""`python -m kvcache.measure WHAT`: the measurements that have a command of their own."""

import importlib
import os
import sys
from collections.abc import Sequence

# What is asked -> the module whose main() takes the other arguments.
COMMANDS = {"speed": "kvcache.measure.speed.command", "quality": "kvcache.measure.quality.command", "load": "kvcache.measure.load", "replay": "kvcache.measure.replay"}
SHARED = ("quality",)  # by the processes of `accelerate launch`


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of COMMANDS. Exits with 2 for any other, and where several processes would each run the whole of one."""
    what, *rest = (sys.argv[1:] if arguments is None else list(arguments)) or [""]
    if what in COMMANDS and what not in SHARED and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        print(f"{what} is measured by one process: times of several at once would say nothing of either; {', '.join(SHARED)} can be shared by them", file=sys.stderr)
        raise SystemExit(2)
    if what in COMMANDS:
        importlib.import_module(COMMANDS[what]).main(rest)
        return
    asked = what in ("-h", "--help")
    named = "" if asked or not what else f", not {what!r}"
    print(f"usage: python -m kvcache.measure {'|'.join(COMMANDS)} [options]{named}; python -m kvcache.measure speed --help, say, lists them", file=sys.stderr)
    raise SystemExit(0 if asked else 2)


if __name__ == "__main__":
    main()
