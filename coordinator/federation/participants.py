"""The participants of a run: all are asked at once, and a refusal or a loss ends the run or leaves that party out."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, TypeVar

from coordinator.errors import PartyLost, PartyRefused, RunStopped
from coordinator.federation.attendance import Attendance
from coordinator.transport.link import Answered, Lost, Outcome, PartyLink, Refused
from protos.refusal import Reason
from protos.roster import fewest

Value = TypeVar("Value")

_MENDABLE: Final = frozenset(
    {
        Reason.POLICY,
        Reason.BUDGET,
        Reason.NOT_JOINED,
        Reason.ARTEFACT,
        Reason.SHARD,
        Reason.TRAINING,
        Reason.AUTHENTICATION,
        Reason.STORAGE,
        Reason.MEMORY,
    }
)
"""Refusals after which the same run may get another answer, once somebody has mended the cause."""

AT_ONCE: Final = 32
"""The most parties of one process that are asked at the same time. More would wait for each other there, each with a
call's memory at both ends and a sign of life every second.
"""


class Participants:
    """The parties in a run now, by name in `links`; those that were lost, with the reason, in `lost`.

    A refusal before anything was spent ends the run: it is a decision, and people may agree on another plan. A loss, or
    a refusal after something was `spent`, does not, as long as enough parties stay for the plan's minimum and for the
    noise. all: the links of every party that was ever in the run. minimum: number of parties that the plan needs.
    run_id: of the run that they joined. processes: by name, the process that a party shares with others, which take
    turns; parties that are not in it have one of their own.
    """

    def __init__(
        self,
        links: Sequence[PartyLink],
        minimum: int,
        attendance: Attendance,
        processes: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.all = tuple(links)
        turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))
        self._turns = {name: turns[process] for name, process in processes.items()}
        self._here = {link.name: link for link in links}
        self._some: frozenset[str] | None = None
        self.minimum = minimum
        self.attendance = attendance
        self.run_id = ""
        self.spent = False
        self.lost: dict[str, str] = {}
        self._where: dict[str, str] = {}
        self._codes: dict[str, str] = {}

    @property
    def links(self) -> dict[str, PartyLink]:
        """The links of the parties that take part now; inside `among`, those of the named alone."""
        return {name: link for name, link in self._here.items() if self._some is None or name in self._some}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parties that take part now."""
        return tuple(self.links)

    @property
    def fewest(self) -> int:
        """How many of those that are asked are there at the least, or the run stops."""
        if self._some is None:
            return self.minimum
        return fewest(len(self.all), self.minimum, len(self._some))

    @contextmanager
    def among(self, names: Collection[str]) -> Iterator[None]:
        """Ask some parties alone for as long as this lasts; none named: all."""
        before, self._some = self._some, frozenset(names) or None
        try:
            yield
        finally:
            self._some = before

    @property
    def money(self) -> str:
        """What is added to an error's sentence as long as nothing was spent."""
        return "" if self.spent else " Nothing was spent."

    async def ask(
        self, doing: str, verb: Callable[[PartyLink], Coroutine[Any, Any, Outcome[Value]]]
    ) -> dict[str, Value]:
        """Ask all parties for one thing; returns their answers. Raises as `settle` does. doing: completes "refused to
        ...".
        """
        outcomes = await self.together({name: verb(link) for name, link in self.links.items()}, finish=False)
        return self.settle(outcomes, doing)

    async def together(
        self, calls: dict[str, Coroutine[Any, Any, Outcome[Value]]], *, finish: bool
    ) -> dict[str, Outcome[Value]]:
        """Every party's outcome, or the outcomes so far once they end the run. Raises `RunStopped`."""
        tasks = {name: asyncio.create_task(self._in_turn(name, call)) for name, call in calls.items()}
        stopped = asyncio.create_task(self.attendance.stopped(finish=finish))
        ended: asyncio.Queue[asyncio.Task[Outcome[Value]] | None] = asyncio.Queue()
        for each in tasks.values():
            each.add_done_callback(ended.put_nowait)
        stopped.add_done_callback(lambda _: ended.put_nowait(None))
        left, out, refused = len(tasks), 0, False
        try:
            while left and not (self._short(out) or (refused and not self.spent)):
                task = await ended.get()
                if task is None:
                    if all(each.done() for each in tasks.values()):
                        continue
                    raise RunStopped("stopped")
                outcome = task.result()
                left -= 1
                out += isinstance(outcome, Lost | Refused)
                refused |= isinstance(outcome, Refused)
            return {name: each.result() for name, each in tasks.items() if each.done()}
        finally:
            for each in tasks.values():
                each.cancel()
            stopped.cancel()
            await asyncio.gather(*tasks.values(), stopped, return_exceptions=True)
            for call in calls.values():
                call.close()  # where its turn never came

    async def _in_turn(self, name: str, call: Coroutine[Any, Any, Outcome[Value]]) -> Outcome[Value]:
        """The outcome of a call, made when it is its party's turn."""
        turn = self._turns.get(name)
        if turn is None:
            return await call
        async with turn:
            return await call

    def _short(self, out: int = 0) -> bool:
        """Whether too few parties are left, without so many of those that are asked."""
        asked = len(self._here) if self._some is None else len(self.links)
        return len(self._here) - out < self.minimum or asked - out < self.fewest

    def settle(self, outcomes: Mapping[str, Outcome[Value]], doing: str, at: str = "") -> dict[str, Value]:
        """The answers. Drops lost parties and, once something is spent, parties that refuse.

        Raises when too few parties are left, or when a party refused before anything was spent.
        """
        gone = {name: outcome.why for name, outcome in outcomes.items() if isinstance(outcome, Lost)}
        self._codes |= {name: outcome.code for name, outcome in outcomes.items() if isinstance(outcome, Lost)}
        refused = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Refused)}
        for name, no in refused.items():
            if not self.spent or self._short(len(gone) + len(refused)):
                raise PartyRefused(self._refused(name, doing, no), code=no.refusal.code)
            gone[name] = f"it refused to {doing}"  # the reason for the loss is published, the party's own words are not
        for name, why in gone.items():
            self.lost[name], self._where[name] = why, at
            self._here.pop(name, None)
            self.attendance.gone(name, why)
        if self._short():
            codes = {self._codes.get(name, PartyLost.CODE) for name in self.lost}
            raise PartyLost(self._too_few(), code=codes.pop() if len(codes) == 1 else "")
        for name in gone:
            words = f": {refused[name].refusal.sentence}" if name in refused else ""
            self.attendance.say(f"  {self._loss(name)}{words}; the run goes on without it")
        return {name: outcome.value for name, outcome in outcomes.items() if isinstance(outcome, Answered)}

    def disbelieve(self, odd: Mapping[str, str]) -> None:
        """Go on without parties whose attestation is not valid. odd: why, one sentence each.

        Raises `PartyLost` where too few are left.
        """
        for name, why in odd.items():
            self.lost[name], self._where[name] = "it signed nothing that counts about the run's cost", ""
            self._here.pop(name, None)
            self.attendance.gone(name, why)
        if odd and self._short():
            raise PartyLost("\n  ".join([*odd.values(), self._too_few()]))
        for why in odd.values():
            self.attendance.say(f"  {why} The run goes on without it")

    def _refused(self, name: str, doing: str, refused: Refused) -> str:
        said = f"party {name} refused to {doing}: {refused.refusal.sentence}{self.money}"
        if not self.spent or refused.refusal.reason not in _MENDABLE:
            return said
        return f"{said} The run is stored. When that is mended:  coordinator resume {self.run_id}"

    def _too_few(self) -> str:
        reasons = "; ".join(self._loss(name) for name in self.lost)
        *others, last = self.lost
        back = f"{', '.join(others)} and {last} are" if others else f"{last} is"
        needed, left = f"{self.minimum} of its parties", f"{len(self._here)} are"
        if len(self._here) >= self.minimum and self._some is not None:
            needed = f"{self.fewest} of {', '.join(sorted(self._some))}"
            left = f"{len(self.links) or 'none'} of them are"
        kept = "The run is stored and nothing was paid twice." if self.spent else "Nothing was spent."
        return (
            f"{reasons}. The plan needs {needed} and {left} left.\n"
            f"  {kept} When {back} back (`party serve`):  coordinator resume {self.run_id}"
        )

    def _loss(self, name: str) -> str:
        why, at = self.lost[name], self._where[name]
        return f"party {name} was lost{at} ({why})" if at else f"party {name} was lost: {why}"
