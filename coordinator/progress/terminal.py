"""Shows a run to the person who follows it: one part of the screen that is drawn again, elsewhere a few plain lines."""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from coordinator.progress.drawing import BAR, NARROW, bar, drawn, duration, money, spoken
from coordinator.progress.followed import MANY, Followed, warning_in

QUIET_SECONDS: Final = 8.0
"""The most seconds without a line where the display is not drawn; a person who waits for ten wonders what happened."""
_DRAWN_EVERY, _LOOKED_EVERY = 0.2, 0.5
_TOLD: Final = 1.0
"""Stages that took less, in seconds, have no line of their own."""

Given = ParamSpec("Given")


def _harmless(
    method: Callable[Concatenate["Terminal", Given], None],
) -> Callable[Concatenate["Terminal", Given], None]:
    """The method, which ends the display where it fails: a closed terminal must not end a run."""

    @wraps(method)
    def called(self: "Terminal", /, *given: Given.args, **named: Given.kwargs) -> None:
        if self.dark:
            return
        try:
            with self.lock:
                method(self, *given, **named)
        except Exception:  # noqa: BLE001 - whatever a terminal does, the run goes on without it
            self.dark = True

    return called


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise what it is, and leave standard output alone: rich would end the process here, and the run with it."""
        raise


class Terminal:
    """Follows a run as its progress and as an observer of its events.

    A terminal shows one part that is drawn again, below the lines that stay. Anything else, a terminal of under 40
    columns, `TERM=dumb` and `NO_COLOR` get plain lines: when something begins or ends, and after eight seconds without
    a line what goes on now. Of more than `MANY` parties there is a line when all have come to a state. It never raises.

    clock: seconds that only go forward. dark: whether showing failed, after which nothing is shown.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.dark = False
        self.lock = threading.RLock()
        self._clock = clock
        self._console = _Console(file=stream or sys.stderr, highlight=False)
        self._seen = Followed(clock())
        self._met: list[str] = []
        self._crowd = ""
        self._full: set[str] = set()
        self._printed = clock()
        self._blocks = "utf" in self._console.encoding.lower()
        self._live: Live | None = None
        if self._drawable():
            self._live = Live(console=self._console, get_renderable=self._drawing, auto_refresh=False, transient=True)
        self._closed = threading.Event()
        self._ticking = threading.Thread(target=self._tick, name="display", daemon=True)
        self._open()

    @_harmless
    def _open(self) -> None:
        if self._live is not None:
            self._live.start()
        self._ticking.start()

    @_harmless
    def say(self, line: str) -> None:
        self._introduce()
        self._print(line)
        self._seen.warning = warning_in(line) or self._seen.warning

    @_harmless
    def party(self, name: str, state: str) -> None:
        was = self._seen.parties.get(name, "")
        if was:
            self._introduce()
        self._seen.parties[name] = state
        if self._live is not None or was.split(" ")[0] == state.split(" ")[0]:
            return
        if not was:  # how many there are shows when all are met
            self._met.append(name)
        elif len(self._seen.parties) > MANY:
            self._say_of_all()
        else:
            self._print(f"  {name} {state}")

    @_harmless
    def bar(self, label: str, done: int, total: int, note: str = "") -> None:
        self._seen.bar(label, done, total, note)
        if done < total:
            self._full.discard(label)
        elif label not in self._full:
            self._full.add(label)
            self._introduce()
            room = max(4, min(BAR, self._console.width - 32)) if self._console.is_terminal else BAR
            self._print(f"  {bar(label, done, total, note, room=room, blocks=self._blocks)}")

    @_harmless
    def doing(self, what: str) -> None:
        for name in [each.name for each in self._seen.stages.values()]:
            del self._seen.stages[name]
        if what:
            self._seen.stage(what, "began", self._clock())
            if self._live is None:
                self._print(f"  {what}")

    @_harmless
    def expect(self, stages: Mapping[str, float], whole: float | None) -> None:
        self._seen.expect(stages, whole)

    def named(self, run: str) -> None: ...

    @_harmless
    def opened(self, run: str, epsilon: float | None, budget: float | None) -> None:
        self._seen.budget = budget

    @_harmless
    def stage(self, name: str, state: str) -> None:
        now = self._clock()
        self._seen.stage(name, state, now)
        self._tell(name, state, now)

    @_harmless
    def at(self, name: str, seconds: float, *, finished: bool) -> None:
        """A stage as somebody sees it who looks now and then: how long it has taken, and whether it is over."""
        now, known = self._clock(), self._seen.stages.get(name)
        fresh = known is None or (known.ended is None) != (not finished)
        if fresh and known is None:
            self._seen.stage(name, "began", now, seconds)
        if fresh and finished:
            self._seen.stage(name, "finished", now)
            self._seen.stages[name].began = now - seconds
        if fresh:
            self._tell(name, "finished" if finished else "began", now)

    @_harmless
    def since(self, seconds: float) -> None:
        """That what is followed began so many seconds ago."""
        self._seen.began = self._clock() - seconds

    @_harmless
    def warn(self, what: str) -> None:
        """The last warning, as somebody sees it who looks now and then."""
        if what and what != self._seen.warning:
            self._seen.warning = what
            if self._live is None:
                self._print(f"  {what}")

    def _tell(self, name: str, state: str, now: float) -> None:
        found = self._seen.stages.get(name)
        if self._live is not None or found is None:
            return
        expected = self._seen.foreseen(name, now)
        if state == "began" and expected is not None and expected > QUIET_SECONDS:
            self._print(f"  {name}, about {duration(expected)}")
        if state == "finished" and (took := found.seconds(now)) >= _TOLD:
            words = [f"{name} took {duration(took)}"] + ([money(self._seen)] if self._seen.spent else [])
            self._introduce()
            self._print(f"  {'; '.join(words)}")

    def block(self, release: str, party: str, seconds: float, size: int) -> None: ...

    def stored(self, release: str, done: int, total: int) -> None: ...

    @_harmless
    def retry(self, party: str, doing: str, why: str) -> None:
        self._seen.warning = f"{party} is asked again to {doing}: {why}"

    @_harmless
    def lost(self, party: str, why: str) -> None:
        self._seen.warning = f"{party} was lost: {why}"

    @_harmless
    def spent(self, epsilon: float) -> None:
        self._seen.spent = epsilon

    def close(self) -> None:
        """End the display; nothing is shown afterwards."""
        self._closed.set()
        try:
            if self._ticking.is_alive():
                self._ticking.join()
        finally:  # an interrupt while it waits must not leave a terminal without its cursor
            self._end()
            self.dark = True

    @_harmless
    def _end(self) -> None:
        self._introduce()
        if self._live is not None:
            self._live.stop()

    def _drawable(self) -> bool:
        console = self._console
        plain = os.environ.get("NO_COLOR") or console.is_dumb_terminal or not console.is_terminal
        return not plain and console.width >= NARROW

    def _tick(self) -> None:
        """Draw again, or say what goes on where nothing was said for long; until it is closed, on its own thread."""
        while not self._closed.wait(_LOOKED_EVERY if self._live is None else _DRAWN_EVERY):
            self._beat()

    @_harmless
    def _beat(self) -> None:
        if self._live is not None:
            self._live.refresh()
        elif self._clock() - self._printed >= QUIET_SECONDS:
            self._introduce()
            words = spoken(self._seen, self._clock())
            self._print(f"  {words or f'{duration(self._clock() - self._seen.began)} so far'}")

    def _print(self, line: str) -> None:
        self._printed = self._clock()
        # A terminal breaks lines at spaces; a file has each in one.
        self._console.print(Text(line), soft_wrap=not self._console.is_terminal)

    def _introduce(self) -> None:
        """Print a line of each party that was met since, or one of all."""
        met, self._met = self._met, []
        if len(self._seen.parties) > MANY:
            if met:
                self._say_of_all()
            return
        for name in met:
            self._print(f"  {name} {self._seen.parties[name]}")

    def _say_of_all(self) -> None:
        """Print the state that all parties are in, once."""
        counts = self._seen.counts()
        if len(counts) == 1 and (state := next(iter(counts))) != self._crowd:
            self._crowd = state
            self._print(f"  {len(self._seen.parties):,} parties {state}")

    def _drawing(self) -> Group:
        """The part below the lines that stay."""
        width, height = self._console.size
        rows = drawn(self._seen, self._clock(), width, max(1, height - 2), blocks=self._blocks)
        return Group(*(Text(row, no_wrap=True, overflow="crop") for row in rows))
