"""Every party's state during a run, shown to people, and whether the run is to stop."""

import asyncio

from coordinator.progress.events import Observer, Unobserved
from coordinator.progress.progress import Progress


class Attendance:
    """Every party's state; a link reports its troubles through `slow`, `away` and `back`."""

    def __init__(self, progress: Progress, observer: Observer | None, retry_seconds: float) -> None:
        self._progress = progress
        self._observer = observer or Unobserved()
        self._retry_seconds = retry_seconds
        self._states: dict[str, str] = {}
        self._troubled: dict[str, str] = {}
        self._told_slow: set[str] = set()
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    def say(self, line: str) -> None:
        """Print a line that stays on the screen."""
        self._progress.say(line)

    def state(self, party: str, state: str) -> None:
        """A party's state in a word or two."""
        self._states[party] = state
        self._progress.party(party, state)

    def slow(self, party: str, seconds: float) -> None:
        """Say once a run that a party is slow and is being waited for."""
        self._trouble(party, "slow")
        # Said once: a party that is slow now is likely to be slow for every block.
        if party not in self._told_slow:
            self._told_slow.add(party)
            self.say(f"  party {party} is slow (nothing for {seconds:g} s, but its node serves); it is waited for")

    def away(self, party: str, doing: str, why: str) -> None:
        """Say once per absence that a party is asked again, and for how long."""
        self._observer.retry(party, doing, why)
        if self._troubled.get(party) != "retrying":
            self.say(f"  party {party} is away ({why}); it is asked again for up to {self._retry_seconds:g} s")
        self._trouble(party, "retrying")

    def back(self, party: str) -> None:
        """Show again what a party was doing before its trouble."""
        if self._troubled.pop(party, None) is not None:
            self._progress.party(party, self._states.get(party, "back"))

    def gone(self, party: str, why: str) -> None:
        """Record that a party was given up."""
        self._troubled.pop(party, None)
        self._observer.lost(party, why)
        self._progress.party(party, "lost")

    def block(self, release: str, party: str, seconds: float, size: int) -> None:
        """Count a block that came from a party."""
        self._observer.block(release, party, seconds, size)

    def stored(self, release: str, done: int, total: int, note: str) -> None:
        """Show how many blocks of a release's sum are stored."""
        self._observer.stored(release, done, total)
        self._progress.bar(release, done, total, note)

    @property
    def stopping(self) -> bool:
        """Whether the run is to stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Ask the run to stop."""
        self._stop.set()
        if self._troubled:
            self._stop_now.set()

    async def stopped(self, *, finish: bool) -> None:
        """Return when the run is to stop; if it may finish the block in hand, only once a party in trouble delays
        it.
        """
        await (self._stop_now if finish else self._stop).wait()

    def _trouble(self, party: str, state: str) -> None:
        self._troubled[party] = state
        self._progress.party(party, state)
        if self.stopping:
            self._stop_now.set()
