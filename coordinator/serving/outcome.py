"""What became of a submission's process: its next state, from its run's store and how the process ended."""

import signal
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aggregation.errors import ConclaveError
from coordinator.serving.child import RUN, last_words, told
from coordinator.serving.submissions import CANCELLED, FAILED, FINISHED, QUEUED, STOPPED
from coordinator.store import store as runs
from coordinator.store.store import RunStore, holds_run
from protos.console.command_line import INTERRUPTED

MOST_TRIES: Final = 3
"""How often a process that ended on its own (a signal, no memory) is started again, without getting further."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """state, why: of the submission from now on. tries: how often its process ended on its own since it last got
    further; reached: how far it has got, a number that grows.
    """

    state: str
    why: str = ""
    tries: int = 0
    reached: int = 0


def opened(folder: Path) -> RunStore | None:
    """The store of a submission's run; None where it has none that could go on. Raises `RunError` for a damaged one."""
    if not holds_run(folder / RUN):
        return None
    store = RunStore(folder / RUN)
    if store.fact("plan") is None:  # killed before anything could be asked
        store.close()
        return None
    return store


def begun(folder: Path) -> bool:
    """Whether a submission has a run that can go on, or has ended. Raises `RunError` for a damaged one."""
    store = opened(folder)
    if store is not None:
        store.close()
    return store is not None


def spent(folder: Path) -> bool:
    """Whether a party may have been charged for a submission's run."""
    store = opened(folder)
    if store is None:
        return False
    with closing(store):
        return not {"train", "aggregate"}.isdisjoint(store.stages())


def outcome(
    folder: Path, code: int | None, tries: int = 0, reached: int = 0, *, draining: bool, hidden: tuple[Path, ...]
) -> Outcome:
    """The outcome of a process that ended. code: its exit code, None where nobody knows. tries, reached: as they were.
    draining: whether it was asked to stop by this coordinator's end. hidden: paths of this machine that no submitter
    reads.
    """
    try:
        return _outcome(folder, code, (tries, reached), draining, hidden)
    except ConclaveError as error:
        return Outcome(STOPPED, told(str(error), *hidden))


def _outcome(
    folder: Path, code: int | None, before: tuple[int, int], draining: bool, hidden: tuple[Path, ...]
) -> Outcome:
    asked = draining and code in (None, INTERRUPTED, -signal.SIGTERM, -signal.SIGKILL)
    on_its_own = code is None or code < 0
    store = opened(folder)
    if store is None:
        if asked:
            return Outcome(QUEUED)
        if on_its_own:
            return _again(before, 0, FAILED, "before it asked anybody; nothing was spent")
        return Outcome(FAILED, last_words(folder, *hidden) or "its process ended before it asked anybody.")
    with closing(store):
        status, error = store.status(), told(str(store.fact("error") or ""), *hidden)
        page = store.fact("code")
        error = f"{error} [{page}]" if page else error
        reached = _reached(store)
    if status == runs.FINISHED:
        return Outcome(FINISHED)
    if status == runs.CANCELLED:
        return Outcome(CANCELLED)
    if status == runs.FAILED:
        return Outcome(STOPPED if spent(folder) else FAILED, error)
    if asked:
        return Outcome(QUEUED)
    if on_its_own:
        return _again(before, reached, STOPPED, "and got no further. What was answered is stored")
    return Outcome(STOPPED, error or last_words(folder, *hidden))


def _reached(store: RunStore) -> int:
    """How far a run has got: its finished stages and stored blocks, and one more for being there."""
    finished = sum(end is not None for _, end, _ in store.stages().values())
    return 1 + finished + sum(store.block_counts().values())


def _again(before: tuple[int, int], reached: int, otherwise: str, said: str) -> Outcome:
    tries, was = before
    tries = 1 if reached > was else tries + 1
    if tries < MOST_TRIES:
        return Outcome(QUEUED, tries=tries, reached=max(was, reached))
    return Outcome(otherwise, f"its process ended {tries} times on its own (no memory?) {said}.", tries, reached)
