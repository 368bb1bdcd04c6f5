"""Work on small models in several processes: each has one thread, for which a small model is large enough.

Processes are forked from this one, so that they hold what it holds without reading it again. Not for trainings of
parties: these are processes of their own, and share nothing.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from learning.errors import ComputeError

Made = TypeVar("Made")

PARENT_ENDED: Final = 1
"""`PR_SET_PDEATHSIG`: the signal that a process is sent when the one that forked it ends."""

_make: Callable[[int], Any] | None = None
_allowed: ContextVar[int] = ContextVar("processes", default=1)


@contextmanager
def allowing(processes: int) -> Iterator[None]:
    """Let what is called in the block work in so many processes where it can, as `allowed` says there.

    For a process that nothing but this work goes on in: a fork copies no other thread, and what these held stays held.
    """
    token = _allowed.set(processes)
    try:
        yield
    finally:
        _allowed.reset(token)


def allowed() -> int:
    """How many processes may be forked here: 1, which is none, outside `allowing`."""
    return _allowed.get()


def in_processes(make: Callable[[int], Made], places: Sequence[int], processes: int) -> Iterator[tuple[int, Made]]:
    """Yield every place with what `make` gives for it, in the order in which they are ready.

    With more than one process, `make` runs in forked ones: what it changes is not seen here, and what it gives is
    copied. Where nothing may be forked, because this is not Linux or there is an accelerator, whose threads automatic
    differentiation starts and a fork loses, or for fewer than two places, it runs here. Raises what `make` raises;
    `ComputeError` where the system ended a process.
    """
    import torch  # its import takes seconds, and whoever imports this module may never fork

    processes = min(processes, len(places))
    if processes < 2 or sys.platform != "linux" or torch.accelerator.is_available():
        for place in places:
            yield place, make(place)
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, context, _begin, (make, os.getpid())) as pool:
        asked: dict[Future[Made], int] = {pool.submit(_made, place): place for place in places}
        try:
            for future in as_completed(asked):
                yield asked.pop(future), future.result()
        except BrokenProcessPool:
            raise ComputeError(
                "A process that works on models was ended by the system, most often because memory was exhausted. Use "
                "a machine with more memory, or fewer processors (taskset -c 0).",
                code="C304",
            ) from None
        finally:
            for future in asked:
                future.cancel()


def _begin(make: Callable[[int], Any], parent: int) -> None:
    """In a process that was just forked."""
    global _make
    import torch

    _make = make
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, too, and ends this one
    ctypes.CDLL(None).prctl(PARENT_ENDED, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    torch.set_num_threads(1)


def _made(place: int) -> Any:
    assert _make is not None
    return _make(place)
