"""A run as another process sees it, from its store alone, without asking the coordinator that drives it.

The driver wraps its progress in `Recorded`, which stores what a person at its terminal sees; `look` reads this. The
store may be on another disk than the watcher's home, and the driver may be dead: `look` shows what was last written,
and how long ago.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from aggregation.mechanisms.mechanism import HEURISTIC
from coordinator.errors import RunError
from coordinator.progress.drawing import duration, figures, money_of
from coordinator.progress.followed import warning_in
from coordinator.progress.progress import Progress
from coordinator.store.faults import sound
from coordinator.store.store import FINISHED, RESUMABLE, RUNNING, RunStore

Value = TypeVar("Value")

SIGN_SECONDS: Final = 5.0
"""Seconds between the driver's signs of life when nothing changes."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage and how many seconds it took, or has taken so far; a run at rest may have one unfinished stage."""

    name: str
    seconds: float
    finished: bool


@dataclass(frozen=True, slots=True)
class Part:
    """How far something is: a release in blocks on disk, the student in percent. total: None when it is unknown."""

    label: str
    done: int
    total: int | None
    note: str


@dataclass(frozen=True, slots=True)
class View:
    """The content of a run's store, to be shown.

    quiet: seconds since the driver's last sign of life; None before the first. epsilon: of the published student, None
    before. heuristic: whether no proof covers what the run releases. error: why a run at rest stopped. spent: epsilon
    so far, at most, of `budget`; None before it is known. warning: the last. expected: seconds of each stage, whole: of
    the run, as it began. elapsed: seconds since it was last begun.
    """

    run: str
    status: str
    stages: tuple[Stage, ...]
    parts: tuple[Part, ...]
    parties: dict[str, str]
    lost: tuple[str, ...]
    epsilon: float | None
    heuristic: bool
    quiet: float | None
    error: str | None
    spent: float | None = None
    budget: float | None = None
    warning: str = ""
    expected: dict[str, float] = field(default_factory=dict)
    whole: float | None = None
    elapsed: float = 0.0

    @property
    def at_rest(self) -> bool:
        """Whether nothing more will happen until somebody starts the run again."""
        return self.status != RUNNING


class Recorded:
    """A progress that passes everything on to another, and also stores the parties' states and the bars.

    A thread of its own writes at most once every `every` seconds, so that neither the event loop nor training waits for
    the disk; with nothing new it still writes a sign of life. Failed writes are ignored: the record is only for looking
    at, and the run does not need it.
    """

    def __init__(self, progress: Progress, store: RunStore, *, every: float = 1.0) -> None:
        self._progress = progress
        self._store = store
        self._every = every
        self._parties: dict[str, str] = {}
        # A resumed run keeps the totals of the releases that it need not ask for again.
        self._bars: dict[str, tuple[int, int, str]] = dict(store.fact("bars") or {})
        self._warning = str(store.fact("warning") or "")
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write_on, name="recorded", daemon=True)

    def __enter__(self) -> Self:
        self._writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write what is left and stop writing, before the store is closed; the other progress stays open."""
        self._ended.set()
        self._changed.set()
        self._writer.join()

    def say(self, line: str) -> None:
        self._progress.say(line)
        if warning := warning_in(line):
            with self._lock:
                self._warning = warning
            self._changed.set()

    def party(self, name: str, state: str) -> None:
        self._progress.party(name, state)
        with self._lock:
            self._parties[name] = state
        self._changed.set()

    def bar(self, label: str, done: int, total: int, note: str = "") -> None:
        self._progress.bar(label, done, total, note)
        with self._lock:
            self._bars[label] = (done, total, note)
        self._changed.set()

    def doing(self, what: str) -> None:
        self._progress.doing(what)

    def expect(self, stages: Mapping[str, float], whole: float | None) -> None:
        self._progress.expect(stages, whole)

    def close(self) -> None:
        self._progress.close()

    def _write_on(self) -> None:
        ended = False
        while not ended:
            self._changed.wait(SIGN_SECONDS)
            self._changed.clear()  # before anything is read, or news that comes meanwhile could wait for the next sign
            ended = self._ended.is_set()
            self._write()
            self._ended.wait(self._every)

    def _write(self) -> None:
        with self._lock:
            parties, bars, warning = dict(self._parties), dict(self._bars), self._warning
        try:
            self._store.note(parties=parties, bars=bars, warning=warning, seen=time.time())
        except RunError:
            # The run's own writes report a full disk; this one is tried again soon.
            return


def look(store: RunStore) -> View:
    """What the store shows of its run now. Raises `RunError` where stored data is damaged."""
    with sound(store.folder):
        return _look(store)


def _look(store: RunStore) -> View:
    now, status = time.time(), store.status()
    written = _or_none(_finite, store.fact("seen"))
    # A stopped run ended at its last sign of life: a stage that was cut off did not last until now.
    last = now if status == RUNNING else (written or now)
    kept = store.stages()
    stages = tuple(
        Stage(str(name), _finite(max(0.0, (last if end is None else end) - start)), end is not None)
        for name, (start, end, _) in kept.items()
        if end is not None or status != FINISHED  # what a kill cut off, and a finished run never needed
    )
    stored = store.block_counts()
    bars: dict[str, tuple[int, int, str]] = store.fact("bars") or {}
    parts = [
        Part(label, stored.get(label, int(done)), int(total), str(note)) for label, (done, total, note) in bars.items()
    ]
    parts += [Part(label, count, None, "") for label, count in stored.items() if label not in bars]
    plan, foreseen = store.fact("plan") or {}, store.fact("expected") or {}
    begun = kept["prepare"][0] if "prepare" in kept else min((start for start, *_ in kept.values()), default=now)
    parties = {name: str(state) for name, state in (store.fact("parties") or {}).items()}
    return View(
        run=store.id,
        status=status,
        stages=stages,
        parts=tuple(parts),
        parties=parties,
        lost=tuple(name for name, state in parties.items() if state.startswith("lost")),
        epsilon=_or_none(_finite, store.fact("epsilon")),
        heuristic=store.heuristic(),
        quiet=None if written is None else max(0.0, now - written),
        error=store.why(),
        spent=_or_none(_finite, store.fact("spent")),
        budget=_or_none(_finite, plan.get("privacy", {}).get("epsilon")),
        warning=str(store.fact("warning") or ""),
        expected={str(name): _finite(seconds) for name, seconds in foreseen.get("stages", {}).items()},
        whole=_or_none(_finite, foreseen.get("whole")),
        elapsed=_finite(max(0.0, last - begun)),
    )


def _finite(kept: Any) -> float:
    """A number. Raises ValueError for one that is not finite."""
    if not math.isfinite(kept):
        raise ValueError(f"{kept} is no time and no epsilon")
    return float(kept)


def _or_none(kind: Callable[[Any], Value], kept: Any) -> Value | None:
    """A stored fact of this type, or None; a damaged store may hold anything in its place. Raises as the type does."""
    return None if kept is None else kind(kept)


def render(view: View) -> list[str]:
    """The lines a person sees; the first names the run."""
    lines = [f"run {view.run}  {view.status}"]
    if view.parties:
        lines.append("  parties   " + " · ".join(f"{name} {state}" for name, state in view.parties.items()))
    if view.stages:
        lines.append("  stages    " + " · ".join(_stage(each, view.at_rest) for each in view.stages))
    for each in view.parts:
        far = f"{each.done:,}" if each.total is None else figures(each.done, each.total, each.note)
        lines.append(f"  {each.label:<9} {far}")
    if view.heuristic:
        lines.append(f"  {HEURISTIC}")
    if view.epsilon is not None:
        from coordinator.pricing.release import rounded_up

        lines.append(f"  epsilon   {rounded_up(view.epsilon, 2)}")
    elif view.spent is not None:
        lines.append(f"  {money_of(view.spent, view.budget)}")
    if view.quiet is not None and view.status in (RUNNING, RESUMABLE):
        lines.append(f"  last sign of life {duration(view.quiet)} ago")
    if view.error:
        lines.append(f"  {view.error}")
    return lines


def _stage(stage: Stage, at_rest: bool) -> str:
    unfinished = "unfinished" if at_rest else "so far"
    return f"{stage.name} {duration(stage.seconds)}" + ("" if stage.finished else f" {unfinished}")
