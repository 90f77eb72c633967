"""What an operator asks a running server: /health, and one line in the log for each turn, without anyone's words."""
from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable

import psutil
from fastapi import FastAPI
from fastapi.routing import APIRoute

from kvcache.chat import models, prefixes

from .state import Registry

TURNS = logging.getLogger("kvcache.turns")


def report(registry: Registry, model: str, began: float) -> dict:
    """status ("ok", or "loading" until the model that is opened with is in memory), models in memory, people, bytes and seconds."""
    loaded = models.STORE.ids()
    return {"status": "ok" if model in loaded else "loading", "model": model, "models_in_memory": loaded, **registry.counts(),
            "prefix_nbytes": prefixes.nbytes(), "budget_nbytes": registry.budget, "resident_nbytes": psutil.Process().memory_info().rss,
            "uptime_seconds": round(time.monotonic() - began, 1)}


def serve(app: FastAPI, registry: Registry, model: str) -> None:
    """Answer GET /health, before the page's own routes, which take every other path."""
    began = time.monotonic()
    answer: Callable[[], dict] = lambda: report(registry, model, began)  # noqa: E731
    app.router.routes.insert(0, APIRoute("/health", answer, methods=["GET"], include_in_schema=False))


def log_turn(session, reason: str) -> None:
    """One line of JSON for the last turn: figures, model and cache, and nothing that was written."""
    stats = session.stats[-1] if session.stats else None
    if stats is None or not TURNS.isEnabledFor(logging.INFO):
        return
    figures = {name: getattr(stats, name) for name in ("reused", "kept", "computed", "generated", "cache_nbytes")}
    times = {name: round(getattr(stats, name), 3) for name in ("time_to_first_token", "decode_tokens_per_second")}
    TURNS.info(json.dumps({"event": "turn", "model": session.settings.model, "cache": session.settings.cache, "reason": reason, **figures, **times}))
