"""What is known of a run that somebody follows, at one moment: its stages and their times, parties, bars and budget."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MANY: Final = 16
"""The most parties that are shown one by one; of more, how many are in which state."""
_SURE: Final = 0.1
"""The part of a stage that has to be done before the rest is reckoned from it."""
_PERCENT: Final = re.compile(r" (\d{1,3})%$")
_LEAST, _MOST = 0.2, 5.0
"""How far a run's pace may correct what is expected of the stages to come."""


def warning_in(line: str) -> str:
    """What a line warns of: of a doubt about the plan, or a party that is slow, away or lost; else empty."""
    words = line.strip()
    return words.removeprefix("warning: ") if words.startswith(("warning: ", "party ")) else ""


@dataclass(slots=True)
class Timed:
    """A stage. began, ended: in seconds of the display's clock; ended is None while it goes on."""

    name: str
    began: float
    ended: float | None = None

    def seconds(self, now: float) -> float:
        """How long it took, or has taken so far."""
        return max(0.0, (now if self.ended is None else self.ended) - self.began)


@dataclass(slots=True)
class Followed:
    """What is known of a run. now and times: seconds of one clock that only goes forward.

    spent: epsilon that was charged so far, at most; None before it is known and where nothing is promised. budget: what
    the plan allows. expected: seconds of each stage; whole: of the run.
    """

    began: float
    parties: dict[str, str] = field(default_factory=dict)
    stages: dict[str, Timed] = field(default_factory=dict)
    bars: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    spent: float | None = None
    budget: float | None = None
    warning: str = ""
    expected: dict[str, float] = field(default_factory=dict)
    whole: float | None = None
    _moved: str = ""

    def stage(self, name: str, state: str, now: float, seconds: float = 0.0) -> None:
        """A stage "began", so many seconds ago, or has "finished"; several may go on, one inside another."""
        if state == "began":
            self.stages.pop(name, None)
            self.stages[name] = Timed(name, now - seconds)
            self._moved = ""
        elif name in self.stages:
            self.stages[name].ended = now

    def bar(self, label: str, done: int, total: int, note: str) -> None:
        """How far something is; what is complete is shown no more."""
        self._moved = label
        if done < total:
            self.bars[label] = (done, total, note)
        else:
            self.bars.pop(label, None)

    def running(self) -> Timed | None:
        """The stage that began last of those that go on."""
        open_ = [each for each in self.stages.values() if each.ended is None]
        return open_[-1] if open_ else None

    def part(self) -> float | None:
        """The part of the running stage that is done, by its bar or by what parties say; None where nobody says."""
        if self._moved in self.bars:
            done, total, _ = self.bars[self._moved]
            return done / max(total, 1)
        said = [found for state in list(self.parties.values()) if (found := _PERCENT.search(state))]
        waiting = sum(" " not in state and state.endswith("ing") for state in list(self.parties.values()))
        return sum(int(each[1]) for each in said) / 100 / (len(said) + waiting) if said else None

    def estimate(self, stage: Timed, now: float) -> float | None:
        """Seconds that a running stage is expected to take altogether; None where nobody knows."""
        so_far, part = stage.seconds(now), self.part()
        if part is not None and part >= _SURE and so_far >= 2:
            return so_far / part
        return self.foreseen(stage.name, now)

    def foreseen(self, name: str, now: float) -> float | None:
        """Seconds that a stage is expected to take, corrected by the pace of the stages that are over."""
        if name not in self.expected:
            return None
        over = [each for each in self.stages.values() if each.ended is not None and each.name in self.expected]
        foreseen = sum(self.expected[each.name] for each in over)
        pace = sum(each.seconds(now) for each in over) / foreseen if foreseen > 1 else 1.0
        return self.expected[name] * min(_MOST, max(_LEAST, pace))

    def altogether(self, now: float) -> float | None:
        """Seconds that the run is expected to take from its beginning; None where nobody knows."""
        elapsed, running = now - self.began, self.running()
        rest = 0.0
        if running is not None:
            rest = max(0.0, (self.estimate(running, now) or 0.0) - running.seconds(now))
        if self.expected:
            coming = [self.foreseen(name, now) or 0.0 for name in self.expected if name not in self.stages]
            return elapsed + rest + sum(coming)
        return None if self.whole is None else max(self.whole, elapsed + rest)

    def counts(self) -> Counter[str]:
        """How many parties are in which state."""
        return Counter(state.split(" ")[0] for state in list(self.parties.values()))

    def expect(self, stages: Mapping[str, float], whole: float | None) -> None:
        """What is expected of stages and of the whole."""
        self.expected, self.whole = dict(stages), whole
