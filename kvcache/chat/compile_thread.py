"""torch.compile in a thread beside: one at a time in a process, at low priority, kept apart from the forwards that other threads run meanwhile.

While it traces, torch 2.13 tells every thread that it is compiling, and lends `torch.nn.Module` methods that know only the modules being traced: an eager forward in
another thread then skips checks, or raises NameError. `kept_apart` leaves both to the thread that compiles.
Source: torch/fx/_symbolic_trace.py, Tracer.trace; torch/compiler/__init__.py, _compile_session_context.
"""

import atexit
import contextlib
import ctypes
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import _symbolic_trace

log = logging.getLogger(__name__)

LOWEST = 19  # Linux' priority for what takes what others leave
TURN_SECONDS = 5e-5  # that the thread keeps Python's lock while others want it. Each of the hundreds of operations of an eager step waits for a turn: 2.9 s a token at Python's 5 ms, 0.3 s at this
AT_EXIT_SECONDS = 1.0  # that a process waits for its compiler to give up
_one = threading.Lock()  # held by whoever compiles
_running: threading.Thread | None = None


class _ThisThread:
    """True in the thread that made it, False in every other."""

    def __init__(self) -> None:
        self._ident = threading.get_ident()

    def __bool__(self) -> bool:
        return threading.get_ident() == self._ident


@contextlib.contextmanager
def _session() -> Iterator[None]:
    """torch's mark that a compiler is at work, for this thread alone."""
    before, torch.compiler._is_compiling_flag = torch.compiler._is_compiling_flag, _ThisThread()
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def _patching(patch: Callable) -> Callable:
    """torch.fx's way to lend a class a method, lent to this thread alone."""

    @functools.wraps(patch)
    def patch_method(self: Any, cls: type, name: str, lent: Callable, *args: Any, **kwargs: Any) -> None:
        own, here = getattr(cls, name), _ThisThread()
        if _symbolic_trace._is_fx_tracing_flag:
            _symbolic_trace._is_fx_tracing_flag = here  # or calls of what is compiled already would be refused elsewhere

        @functools.wraps(lent)
        def method(*given: Any, **named: Any) -> Any:
            return (lent if here else own)(*given, **named)

        patch(self, cls, name, method, *args, **kwargs)

    return patch_method


@contextlib.contextmanager
def kept_apart() -> Iterator[None]:
    """Compile inside: what torch changes about a whole process meanwhile is seen by this thread alone. Others who want to compile by this wait."""
    with _one, contextlib.ExitStack() as undo:
        for owner, name, mine in ((torch.compiler, "_compile_session_context", _session), (_symbolic_trace._Patcher, "patch_method", None)):
            if (theirs := getattr(owner, name, None)) is not None:  # torch before 2.13 marks no session
                setattr(owner, name, mine or _patching(theirs))
                undo.callback(setattr, owner, name, theirs)
        yield


def is_busy() -> bool:
    """Is a compiler at work already?"""
    return _one.locked() or (_running is not None and _running.is_alive())


def start(work: Callable[[], None]) -> bool:
    """Run `work` in a thread of low priority; False, and nothing is done, where a compiler is at work already."""
    global _running
    if is_busy():
        return False
    _running = threading.Thread(target=_work, args=(work,), name="kvcache-torch-compile", daemon=True)
    _running.start()
    return True


def _work(work: Callable[[], None]) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST)  # of this thread and the compilers it starts
    turn = sys.getswitchinterval()
    sys.setswitchinterval(min(turn, TURN_SECONDS))
    try:
        work()
    except SystemExit:  # the process ends
        pass
    finally:
        sys.setswitchinterval(turn)


@atexit.register
def _give_up() -> None:
    """A thread that is still in torch's C++ when the interpreter goes would abort the process."""
    thread = _running
    if thread is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
        thread.join(AT_EXIT_SECONDS)
