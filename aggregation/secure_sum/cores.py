"""Runs pieces of work on all cores: the caller's thread takes them one by one, and so does each free helper thread.

Helpers are useful where the work releases the interpreter's lock, as ciphers and numpy do. They are optional: a caller
that gets none does everything itself and waits for nobody, so that callers can neither block each other nor hang in a
forked process, where no helper exists.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import TypeVar, cast

Given = TypeVar("Given")
Made = TypeVar("Made")

MOST = 8  # threads for one caller: with more, they would mostly wait for the interpreter's lock


def hands() -> int:
    """The number of threads that may work at once: the cores this process may use, at most `MOST`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST)


def spread(work: Callable[[int], None], pieces: int, *, alone: bool = False) -> None:
    """Call work(0) .. work(pieces - 1), each once, in any order, and return when all have ended.

    alone: use no helper. On a busy machine a helper may be suspended in the middle of a piece for milliseconds, so less
    work than that is not worth sharing.

    Raises what a piece raised, once the pieces that were begun have ended; no other is begun then.
    """
    left: deque[Callable[[], None]] = deque(partial(work, piece) for piece in range(pieces))
    helpers = [] if alone else _asked(left, min(pieces, hands()) - 1)
    try:
        _take(left)
    finally:
        errors = [helper.exception() for helper in helpers if not helper.cancel()]  # waits for those that have begun
    for error in errors:
        if error is not None:
            raise error


def each(work: Callable[[Given], Made], items: Sequence[Given]) -> list[Made]:
    """`work` of every item, in order; raises as `spread` does."""
    made: list[Made | None] = [None] * len(items)

    def piece(at: int) -> None:
        made[at] = work(items[at])

    spread(piece, len(items))
    return cast(list[Made], made)


def _take(left: deque[Callable[[], None]]) -> None:
    """Do pieces until none is left. A helper that starts too late only holds the empty list."""
    try:
        while True:
            try:
                piece = left.popleft()
            except IndexError:
                return
            piece()
    except BaseException:
        left.clear()
        raise


def _asked(left: deque[Callable[[], None]], count: int) -> list[Future[None]]:
    asked: list[Future[None]] = []
    try:
        for _ in range(count):
            asked.append(_helpers(os.getpid()).submit(_take, left))
    except RuntimeError:  # the process is ending or may start no more threads: those that were asked are enough
        pass
    return asked


@cache
def _helpers(process: int) -> ThreadPoolExecutor:
    """One pool per process id: after a fork the parent's pool may be locked for ever, and is not used."""
    return ThreadPoolExecutor(max(1, hands() - 1), thread_name_prefix="secure-sum")
