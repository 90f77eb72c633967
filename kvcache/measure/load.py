"""`python -m kvcache.measure load`: people who chat at once through the API of the playground, beside the same people served one at a time.

Everybody tells a secret of their own, asks for other things, and asks for it back. Both servers are processes of their own, started one after the other,
so that what clients cost is in both figures. Memory is the server's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

CACHES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("dynamic", {}),
    ("quantized", {"nbits": 4}),
    ("sink", {"window_length": 128}),
    ("static", {"max_cache_len": 1024}),
    ("sliding_window", {"window_length": 256}),
)
BETWEEN = ("Hello, how are you?", "Tell me a story about a fox.", "What can you do?", "Tell me a story about a robot.")
SILENT_SECONDS = 15  # until a server of this measurement takes a client for gone
PREFIX_BYTES = 16_000_000  # that a server keeps of what it has read, though all have left: not to be taken for a leak
STARTING_SECONDS = 5  # from the first answer until a server is taken for started
PATIENCE = 120  # seconds for one answer


@dataclass
class Figures:
    """What was seen of one server."""

    turns: list[dict[str, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    recalled: int = 0
    asked: int = 0
    leaked: list[str] = field(default_factory=list)  # replies with another's secret
    seconds: float = 0.0
    rss: dict[str, float] = field(default_factory=dict)  # MB: before, peak, after

    def record(self) -> dict[str, Any]:
        """As JSON: rates over all people, waits in seconds."""
        waits = sorted(turn["first_token"] for turn in self.turns)
        return {
            "turns": len(self.turns),
            "turns_per_second": round(len(self.turns) / self.seconds, 3),
            "tokens_per_second": round(sum(turn["tokens"] for turn in self.turns) / self.seconds, 1),
            "first_token_p50_seconds": round(quantile(waits, 0.5), 3),
            "first_token_p95_seconds": round(quantile(waits, 0.95), 3),
            "errors": len(self.errors),
            "secrets_of_others_said": len(self.leaked),
            "secrets_recalled": f"{self.recalled} of {self.asked}",
            **{f"rss_mb_{name}": round(value, 1) for name, value in self.rss.items()},
        }


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of the ordered ones is at most; 0 of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


# ----------------------------------------------------------------------------------------------------------- the server


class Server:
    """The playground in a process of its own; `people`: whose replies it writes at once."""

    def __init__(self, people: int, model: str | None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        root = Path(__file__).resolve().parents[2]
        if not (root / "app.py").is_file():
            raise RuntimeError(f"the playground's app.py is not in {root}: run this in a clone")
        settings = {"KVCACHE_PEOPLE_AT_ONCE": str(people), "KVCACHE_API_SECONDS": str(SILENT_SECONDS), "KVCACHE_PREFIX_BYTES": str(PREFIX_BYTES), "PYTHONFAULTHANDLER": "1"}
        command = [sys.executable, "app.py", "--port", str(port), *(["--model", model] if model else [])]
        self.words = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, cwd=root, env=os.environ | settings, stdout=subprocess.DEVNULL, stderr=self.words)
        self.address = f"http://127.0.0.1:{port}/gradio_api/call/chat"
        self.page = f"http://127.0.0.1:{port}"

    def wait(self, patience: float = 600.0) -> None:
        """Until it answers. Raises RuntimeError with its words where it does not."""
        end = time.monotonic() + patience
        while time.monotonic() < end and self.process.poll() is None:
            try:
                urllib.request.urlopen(self.page, timeout=10).read()
                return
            except OSError:
                time.sleep(0.3)
        self.close()
        raise RuntimeError(f"the playground did not start: {self.last_words()}")

    def last_words(self) -> str:
        """How its log ends, and its exit status, if it has one."""
        self.words.seek(0)
        return f"{self.words.read().decode()[-2000:]} (exit status {self.process.poll()})"

    def rss(self) -> float:
        """Resident memory in MB. Raises RuntimeError with its last words where it has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the playground ended: {self.last_words()}")
        return psutil.Process(self.process.pid).memory_info().rss / 1e6

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def ask(self, session: str, data: list) -> tuple[dict[str, Any], float]:
        """One answer of /chat, and the seconds until its first words were there. Raises RuntimeError with what the server says."""
        begun, first = time.monotonic(), 0.0
        body = json.dumps({"data": data, "session_hash": session}).encode()
        asked = urllib.request.Request(self.address, body, {"Content-Type": "application/json"})
        event = json.load(urllib.request.urlopen(asked, timeout=PATIENCE))["event_id"]
        kind = ""
        for line in urllib.request.urlopen(f"{self.address}/{event}", timeout=PATIENCE):
            name, _, said = line.decode().strip().partition(": ")
            kind = said if name == "event" else kind
            if name == "data" and kind == "error":
                raise RuntimeError(said)
            if name == "data" and kind in ("generating", "complete"):
                answer = json.loads(said)[0]
                first = first or (time.monotonic() - begun if answer["reply"] or kind == "complete" else 0.0)
                if kind == "complete":
                    return answer, first
        raise RuntimeError("the answer broke off")


# ------------------------------------------------------------------------------------------------------------ the people


def secrets(people: int) -> list[str]:
    """A code for each, none in another."""
    return [f"{n // 10 % 10}-{n % 10}-{(7 * n + 3) % 10}" for n in range(people)]


def visit(server: Server, figures: Figures, number: int, code: str, others: set[str], tokens: int, end: float) -> None:
    """One person's visits, each a conversation of its own, until the end."""
    chance, visits = random.Random(number), 0
    cache, parameters = CACHES[number % len(CACHES)]
    while time.monotonic() < end:
        visits += 1
        said = [f"Hi, the red box opens with {code}.", *chance.sample(BETWEEN, 2), "Which code opens the red box?"]
        for turn, message in enumerate(said):
            if time.monotonic() >= end:
                return
            try:
                answer, first = server.ask(f"person{number}visit{visits}", [message, "", cache, parameters, "", 0.0, tokens, 0, 1.0, 0, 0.0, 1.0, False])
            except Exception as error:
                figures.errors.append(f"{type(error).__name__}: {error}")
                if server.process.poll() is not None:
                    return
                time.sleep(1.0)
                break  # to the next visit
            figures.turns.append({"tokens": answer["stats"]["generated"], "first_token": first})
            check(figures, answer["reply"], code if turn == len(said) - 1 else None, others)


def check(figures: Figures, reply: str, code: str | None, others: set[str]) -> None:
    """Is a secret of another's in a reply? And is one's own said when it is asked for: caches that forget may not."""
    figures.leaked += [reply] if any(other in reply for other in others) else []
    if code is not None:
        figures.asked += 1
        figures.recalled += code in reply


def run(people: int, at_once: int, seconds: float, warm: float, tokens: int, model: str | None) -> Figures:
    """Start a server that writes so many replies at once, have people chat on it, and wait until all have left."""
    server, figures = started(at_once, model), Figures()
    try:
        crowd(server, Figures(), min(people, len(CACHES)), warm, tokens)
        time.sleep(1.5 * SILENT_SECONDS)
        figures.rss = {"before": server.rss(), "peak": server.rss()}
        figures.seconds = crowd(server, figures, people, seconds, tokens)
        time.sleep(1.5 * SILENT_SECONDS)
        figures.rss["after"] = server.rss()
    finally:
        server.close()
    return figures


def started(at_once: int, model: str | None, tries: int = 3) -> Server:
    """A server that answers, and goes on doing so: on a machine with much other work Gradio may give up as it starts."""
    for _ in range(tries):
        server = Server(at_once, model)
        server.wait()
        time.sleep(STARTING_SECONDS)
        if server.process.poll() is None:
            return server
    raise RuntimeError(f"the playground ended as it started: {server.last_words()}")


def crowd(server: Server, figures: Figures, people: int, seconds: float, tokens: int) -> float:
    """So many people, for so long; returns the seconds until the last had an answer."""
    codes, begun = secrets(people), time.monotonic()
    threads = [
        threading.Thread(target=visit, args=(server, figures, n, code, {*codes} - {code}, tokens, begun + seconds)) for n, code in enumerate(codes)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.5)
        figures.rss["peak"] = max(figures.rss.get("peak", 0.0), server.rss())
    return time.monotonic() - begun


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m kvcache.measure load",
        description="People who chat at once through the playground's API on five kinds of caches, beside the same people served one at a time. The last line is JSON.",
    )
    made.add_argument("--people", type=int, default=20, metavar="N", help="who chat at once, at most 100 (default: 20)")
    made.add_argument("--seconds", type=float, default=60, metavar="S", help="that each of the two servers is asked for (default: 60)")
    made.add_argument("--warm", type=float, default=30, metavar="S", help="that it is asked before, for its compilers to be done (default: 30)")
    made.add_argument("--tokens", type=int, default=32, metavar="N", help="of a reply at most (default: 32)")
    made.add_argument("--model", help="bundled name or folder (default: the playground's)")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both and print; exits with 1 where there was an error, or somebody was told another's secret."""
    given = parser().parse_args(arguments)
    if not 1 <= given.people <= 100:
        raise SystemExit(f"--people must be from 1 to 100, got {given.people}")
    found = {}
    for name, at_once in (("one at a time", 1), ("all at once", given.people)):
        try:
            figures = run(given.people, at_once, given.seconds, given.warm, given.tokens, given.model)
        except RuntimeError as error:
            raise SystemExit(f"load: {error}") from error
        found[name] = figures
        print(f"{name}: {json.dumps(figures.record())}", flush=True)
        for error in sorted(set(figures.errors))[:5]:
            print(f"  {error}", file=sys.stderr)
    one, all_ = (found[name].record() for name in ("one at a time", "all at once"))
    ratio = all_["turns_per_second"] / one["turns_per_second"] if one["turns_per_second"] else 0.0
    print(json.dumps({"people": given.people, **all_, "turns_per_second_one_at_a_time": one["turns_per_second"], "first_token_p95_seconds_one_at_a_time": one["first_token_p95_seconds"], "times_the_turns": round(ratio, 2)}))
    if any(figures.errors or figures.leaked for figures in found.values()):
        raise SystemExit(1)
