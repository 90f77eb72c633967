"""A function by torch.compile, of which one can say that it is to run by the graphs there are and not to compile."""

import contextlib
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

_here = threading.local()  # .ready: only graphs that are there


class NoGraph(Exception):
    """No graph that is there fits a call; nothing has run."""


def graph(forward: Callable, **options: Any) -> Callable:
    """`forward(**arguments)` by torch.compile in one graph, compiled where none fits; inside `graphs_there_are` that raises NoGraph."""

    def traced(**arguments: Any) -> Any:
        if not torch.compiler.is_compiling():  # run without a graph
            raise NoGraph
        return forward(**arguments)

    # Graphs are kept, and counted against a limit, by code object: each function has one of its own.
    own = types.FunctionType(traced.__code__.replace(), traced.__globals__, traced.__name__, None, traced.__closure__)
    compiled = torch.compile(own, fullgraph=True, **options)
    ready = torch._dynamo.run(compiled)

    def run(**arguments: Any) -> Any:
        return (ready if getattr(_here, "ready", False) else compiled)(**arguments)

    return run


@contextlib.contextmanager
def graphs_there_are() -> Iterator[None]:
    """Inside, this thread runs graphs that are there and compiles none."""
    _here.ready = True
    try:
        yield
    finally:
        _here.ready = False
