"""`python -m kvcache.measure quality`: run with a bar, print tables and one line of JSON, save JSON, CSV and a page.

`accelerate launch -m kvcache.measure quality` shares the work between processes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from ... import bundled
from ...chat import models
from . import figures, results, texts
from .answers import MODES
from .run import Event, Plan, Progress, joined, parts, run, units_of
from .spec import parse, usual
from .tasks import TASKS, offered

if TYPE_CHECKING:
    from accelerate import PartialState

SIZES = {False: {"tokens": 1024, "forced": 128, "passages": 3, "cases": 12}, True: {"tokens": 512, "forced": 32, "passages": 1, "cases": 4}}  # quick or not
SAVED_EVERY = 60  # seconds
OF_BUNDLED = ("facts",)  # what a model so small can answer at all


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m kvcache.measure quality",
        description="How far each cache drifts from the full one in a text, and what is still answered from long prompts: quality over bytes. The last line is JSON.",
    )
    made.add_argument("--model", default=bundled.DEFAULT, help="bundled model, hub id or folder (default: %(default)s)")
    made.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="of the model and so of its full cache (default: float32 on a CPU, else 16 bits)")
    made.add_argument("--caches", nargs="+", metavar="CACHE", help='as in "quantized:key_bits=4,value_bits=2" "sink:window_length=256"; the full cache is always there (default: bits, windows and every lossy cache)')
    made.add_argument("--text", type=Path, metavar="FILE", help="text to read, UTF-8 (default: three novels' parts; to bundled models conversations)")
    made.add_argument("--tokens", type=int, metavar="N", help="of a passage that is read at once (default: 1024)")
    made.add_argument("--forced", type=int, metavar="N", help="of how it goes on, fed one by one (default: 128)")
    made.add_argument("--passages", type=int, metavar="N", help="from different places of the text; 0 measures no drift (default: 3)")
    made.add_argument("--tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; none asks nothing (default: all, of bundled models facts)")
    made.add_argument("--modes", nargs="+", choices=tuple(MODES), default=tuple(MODES), help="whether the question is part of the prompt that a cache compresses, or comes afterwards (default: both)")
    made.add_argument("--lengths", type=int, nargs="+", metavar="N", help="of the prompts, in tokens (default: as --tokens)")
    made.add_argument("--cases", type=int, metavar="N", help="prompts of each task at each length (default: 12)")
    made.add_argument("--seed", type=int, default=0, help="which passages and cases (default: 0)")
    made.add_argument("--chunk", type=int, metavar="N", help="tokens of a prompt fed in one forward (default: all, as generate does)")
    made.add_argument("--quick", action="store_true", help="short and few: about a minute on the bundled model, to see that it works")
    made.add_argument("--json", type=Path, metavar="FILE", help="everything, every reply too")
    made.add_argument("--csv", type=Path, metavar="FILE", help="one line a cache")
    made.add_argument("--html", type=Path, metavar="FILE", help="a page with charts of quality over bytes")
    return made


def plan_of(given: argparse.Namespace, loaded: models.LoadedModel) -> Plan:
    """What the arguments ask for. Raises ValueError for caches that nobody knows."""
    sizes = {name: getattr(given, name) if getattr(given, name) is not None else value for name, value in SIZES[given.quick].items()}
    caches = [parse(text).check(loaded.model) for text in given.caches] if given.caches else usual(loaded, sizes["tokens"])
    tasks = given.tasks if given.tasks is not None else OF_BUNDLED if loaded.id in bundled.MODELS else offered()
    lengths = tuple(dict.fromkeys(given.lengths or [sizes["tokens"]]))
    return Plan(tuple(caches), tasks=tuple(dict.fromkeys(tasks)), modes=tuple(dict.fromkeys(given.modes)), lengths=lengths, seed=given.seed, chunk=given.chunk, **sizes)


def settings_of(plan: Plan, loaded: models.LoadedModel, text: texts.Text) -> dict[str, Any]:
    """What a report says about its run."""
    found = {name: getattr(plan, name) for name in ("tokens", "forced", "passages", "tasks", "modes", "lengths", "cases", "seed", "chunk")}
    return {"model": loaded.id, "dtype": str(loaded.dtype).removeprefix("torch."), "text": text.title, **found}


def processes() -> PartialState | None:
    """The processes that `accelerate launch` or torchrun has started, as accelerate knows them; None where this is the only one."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    from accelerate import PartialState

    return PartialState()


def shared(loaded: models.LoadedModel, plan: Plan, text: texts.Text, together: PartialState) -> Iterator[Event]:
    """As `run`, by several processes: each measures every so many-th unit of the plan, with its own progress, and in the end all know what all have found."""
    from accelerate.utils import gather_object

    units = units_of(plan)
    dealt = [unit for first in range(together.num_processes) for unit in units[first :: together.num_processes]]
    found = []
    with together.split_between_processes(dealt) as mine:
        for unit, event in parts(loaded, plan, text, mine):
            if isinstance(event, Progress):
                yield event
            else:
                found.append((unit, event))
    yield from joined(plan, gather_object(found))


def measure(loaded: models.LoadedModel, plan: Plan, text: texts.Text, path: Path | None = None, together: PartialState | None = None) -> results.Report:
    """Run the plan under a bar, with what is known saved as JSON now and then. Ctrl-C ends it with what there is, of several processes nothing."""
    report = results.Report(settings=settings_of(plan, loaded, text))
    events, saved = run(loaded, plan, text) if together is None else shared(loaded, plan, text, together), time.monotonic()
    with tqdm(unit="piece", file=sys.stderr, dynamic_ncols=True, disable=together is not None and not together.is_main_process) as bar:
        try:
            for event in events:
                report.add(event)
                if path is not None and time.monotonic() - saved > SAVED_EVERY:
                    _write(path, report.to_json())
                    saved = time.monotonic()
                if isinstance(event, Progress):
                    bar.total = event.total
                    bar.set_description_str(event.words, refresh=False)
                    bar.update(event.done - bar.n)
        except KeyboardInterrupt:
            report.settings["stopped"] = True
        bar.n = bar.n if report.settings.get("stopped") else bar.total
    return report


def save(report: results.Report, given: argparse.Namespace) -> None:
    """Write the files that are asked for. Raises ImportError for a page without plotly, OSError where nothing can be written."""
    for path, text in ((given.json, report.to_json), (given.csv, report.to_csv), (given.html, lambda: figures.html(report))):
        if path is not None:
            _write(path, text())
            print(f"saved {path}", file=sys.stderr)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    made = parser()
    given = made.parse_args(arguments)
    try:
        for text in given.caches or ():
            parse(text)  # before a model is loaded
        together = processes()  # before the model is loaded: it says which GPU is this process's
        loaded = models.load(given.model, dtype=given.dtype)
        text = texts.read(given.text, loaded.tokenizer) if given.text else texts.usual(loaded.id, loaded.tokenizer)
        plan = plan_of(given, loaded)
        report = measure(loaded, plan, text, None if together else given.json, together)
    except (ValueError, OSError, models.ModelError) as error:
        made.error(str(error))
    if together is not None and not together.is_main_process:
        return
    print(results.words(report), end="\n\n")
    try:
        save(report, given)
    except (ImportError, OSError) as error:
        print(f"not all was saved: {error}", file=sys.stderr)
    print(json.dumps(report.summary()))
