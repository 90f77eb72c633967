"""`python -m kvcache.measure speed`: run, print, save JSON and a page."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from . import figures, results
from .contenders import CONTENDERS
from .rigs import Setup
from .run import (
    GROWTH_CONTENDERS,
    LAYER_CONTENDERS,
    MODEL_CONTENDERS,
    TINY_CONTENDERS,
    Level,
    Plan,
    Progress,
    growth,
    layer,
    on_device,
    run,
    small,
    tiny,
)

CONTEXTS = (1024, 4096, 16384)
QUICK_CONTEXTS = (256, 1024)
DEVICE_CONTEXTS = (1024, 4096, 16384, 32768, 131072)
LEVELS, DEVICE_LEVELS = tuple(results.LEVELS), tuple(results.DEVICE_LEVELS)
MINUTES = 8.0  # that a run on a device takes at most
JSON_NAME, PAGE_NAME = "speed.json", "speed.html"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m kvcache.measure speed",
        description="Time and bytes of a token for our caches and transformers' own: ratios from one run, medians of interleaved rounds.",
    )
    made.add_argument("--out", type=Path, default=Path("kvcache-speed"), help=f"folder for {JSON_NAME} and {PAGE_NAME} (default: %(default)s)")
    made.add_argument("--contexts", type=int, nargs="+", metavar="N", help="tokens of context for the one layer (default: 1024 4096 16384)")
    made.add_argument("--threads", type=int, nargs="+", metavar="N", help="numbers of threads (default: 1 2)")
    made.add_argument("--levels", nargs="+", choices=(*LEVELS, *DEVICE_LEVELS), help="what to measure (default: all for a CPU, or all for the device)")
    made.add_argument("--device", help="measure on cuda, cuda:1, xpu ... in 16 bits, synchronised: a layer with one row and with eight, and a whole model, 1,024 to 131,072 tokens")
    made.add_argument("--minutes", type=float, default=MINUTES, help="with --device: end after so many, with what there is, the short contexts first (default: %(default)g)")
    made.add_argument("--contenders", nargs="+", metavar="NAME", help=f"only these, beside upstream's DynamicCache; of {', '.join(CONTENDERS)}")
    made.add_argument("--rounds", type=int, help="interleaved repeats of every step (default: 21)")
    made.add_argument("--slow", action="store_true", help="also what must be compiled first, such as upstream's quanto")
    made.add_argument("--quick", action="store_true", help="short contexts, few rounds, one thread: under a minute, to see that it works")
    return made


def plan_of(given: argparse.Namespace) -> Plan:
    """The plan that the arguments ask for. Raises ValueError for contenders that nobody knows."""
    if given.device is not None:
        return _device_plan(given)
    if wrong := [level for level in given.levels or () if level in DEVICE_LEVELS]:
        raise ValueError(f"{wrong[0]} is measured on a device: add --device cuda")
    threads = tuple(dict.fromkeys(given.threads or ([1] if given.quick else [1, 2])))
    contexts = tuple(sorted(set(given.contexts or (QUICK_CONTEXTS if given.quick else CONTEXTS))))
    made = {
        "layer": [layer(heads, contexts, _chosen(given, LAYER_CONTENDERS)) for heads in ((8,) if given.quick else (8, 32))],
        "tiny": [tiny((1024,) if given.quick else (8192,), _chosen(given, TINY_CONTENDERS))],
        "135m": [small((256,) if given.quick else (1024, 4096), _chosen(given, MODEL_CONTENDERS))],
        "growth": [growth((256, 1024, 2048) if given.quick else (1024, 4096, 16384, 32768, 65536), threads[:1], _chosen(given, GROWTH_CONTENDERS))],
    }  # fmt: skip
    levels: list[Level] = [level for name in LEVELS if name in (given.levels or LEVELS) for level in made[name]]
    rounds = given.rounds if given.rounds is not None else (5 if given.quick else 21)
    return Plan(tuple(levels), threads, rounds, patient=not given.quick or given.slow, slow=given.slow)


def _device_plan(given: argparse.Namespace) -> Plan:
    """What is measured on a device. Raises ValueError for one that is not there."""
    setup, wanted = device_setup(given.device), given.levels or DEVICE_LEVELS
    if wrong := [level for level in wanted if level in LEVELS]:
        raise ValueError(f"{wrong[0]} is measured on the CPU, without --device; on a device there are {', '.join(DEVICE_LEVELS)}")
    contexts = tuple(sorted(set(given.contexts or (QUICK_CONTEXTS if given.quick else DEVICE_CONTEXTS))))
    threads = (given.threads or [torch.get_num_threads()])[0]
    levels = [level for level in on_device(setup.device, setup.dtype, contexts, threads, None if given.contenders is None else tuple(given.contenders)) if level.name in wanted]
    return Plan(tuple(levels), (threads,), given.rounds if given.rounds is not None else (5 if given.quick else 11), patient=False, slow=given.slow, prefills=False)


def device_setup(name: str) -> Setup:
    """A device by its name, with the 16 bits that it is good at. Raises ValueError for one that is not there."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"there is no device {name!r} here: {str(error).splitlines()[0]}") from error
    if device.type == "meta":
        raise ValueError("on the device 'meta' nothing is computed, so nothing takes time: name one that computes")
    poor = device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
    return Setup(device, torch.float16 if poor or device.type == "mps" else torch.bfloat16)


def card(device: torch.device) -> str:
    """The name of a device with its memory, for those who read figures of it."""
    if device.type != "cuda":
        return str(device)
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} with {properties.total_memory / 2**30:.0f} GiB"


def _chosen(given: argparse.Namespace, usual: tuple[str, ...]) -> tuple[str, ...]:
    return usual if given.contenders is None else tuple(given.contenders)


def measure(plan: Plan, folder: Path, quick: bool = False, setup: Setup | None = None, seconds: float = float("inf")) -> results.Report:
    """Run the plan, with a line for every piece of work. What is known is saved as JSON after each row; Ctrl-C ends the run with that, and so does the end of so many seconds."""
    report = results.Report(settings={"rounds": plan.rounds, "quick": quick, "slow": plan.slow, "threads": list(plan.threads)})
    if setup is not None:
        report.settings |= {"device": card(setup.device), "dtype": str(setup.dtype).removeprefix("torch.")}
    start, last = time.monotonic(), ""
    try:
        for event in run(plan):
            report.add(event)
            report.settings["seconds"] = round(time.monotonic() - start, 1)
            if isinstance(event, results.Row):
                _save_json(report, folder)
            line = _line(event)
            if line and line != last:
                print(f"[{time.monotonic() - start:6.1f} s] {line}", file=sys.stderr, flush=True)
                last = line
            if time.monotonic() - start > seconds:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        print("stopped before its end; this is what was measured", file=sys.stderr)
        report.settings["stopped"] = True
    return report


def _line(event: object) -> str:
    if isinstance(event, Progress):
        return f"{event.done + 1}/{event.total} {event.words}"
    if isinstance(event, results.Row):
        return f"    {event.label} at {event.context:,} tokens: {results.ms_text(event.seconds)} ms a token, {event.nbytes:,} bytes"
    return f"    {event.label} at {event.context:,} tokens: not measured because {event.reason}"


def save(report: results.Report, folder: Path) -> tuple[Path, Path]:
    """Write both files, and say where. Raises ImportError without plotly, when the first is written."""
    page = folder / PAGE_NAME
    json = _save_json(report, folder)
    page.write_text(figures.html(report), encoding="utf-8")
    return json, page


def _save_json(report: results.Report, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / JSON_NAME
    path.write_text(report.to_json(), encoding="utf-8")
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    made = parser()
    given = made.parse_args(arguments)
    try:
        plan = plan_of(given)
        plan.check()
    except ValueError as error:
        made.error(str(error))
    if given.out.exists() and not given.out.is_dir():
        made.error(f"--out must be a folder, and {str(given.out)!r} is a file")
    report = measure(plan, given.out, given.quick, *((device_setup(given.device), 60 * given.minutes) if given.device else ()))
    print(results.words(report))
    try:
        paths = save(report, given.out)
    except ImportError as error:
        raise SystemExit(f"\nsaved {given.out / JSON_NAME}; {error}") from error
    print(f"\nsaved {paths[0]} and {paths[1]}")
