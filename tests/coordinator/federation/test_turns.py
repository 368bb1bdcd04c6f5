"""Parties that share a process are asked some at a time; what ends a round ends it whoever's turn it is."""

import asyncio
import gc
import warnings
from collections import Counter
from types import SimpleNamespace

import pytest

from coordinator.errors import PartyRefused, RunStopped
from coordinator.federation.attendance import Attendance
from coordinator.federation.participants import AT_ONCE, Participants
from coordinator.progress.progress import Silent
from coordinator.transport.link import Answered, Lost, Refused
from protos.refusal import Reason, Refusal

pytestmark = pytest.mark.slow

COUNT = 3 * AT_ONCE


def parties(processes, minimum=1):
    links = [SimpleNamespace(name=f"party-{number:03}") for number in range(COUNT)]
    shared = {link.name: processes(number) for number, link in enumerate(links) if processes(number)}
    return Participants(links, minimum, Attendance(Silent(), None, 0.0), shared)


@pytest.fixture(autouse=True)
def nothing_is_left_unawaited():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert not [each for each in said if "never awaited" in str(each.message)]


class Asked:
    """Answers a little later; counts how many are asked at the same time, of each process and of all."""

    def __init__(self, process_of):
        self.process_of, self.now, self.most, self.all = process_of, Counter(), Counter(), 0

    async def __call__(self, link):
        process = self.process_of(link.name)
        self.now[process] += 1
        self.most[process] = max(self.most[process], self.now[process])
        self.all = max(self.all, self.now.total())
        await asyncio.sleep(0.01)
        self.now[process] -= 1
        return Answered(link.name)


async def test_so_many_of_each_process_are_asked_at_a_time_and_all_answer():
    found = parties(lambda number: f"process {number % 2}")
    asked = Asked(lambda name: int(name[-3:]) % 2)
    assert list(await found.ask("train", asked)) == list(found.names)
    assert asked.most == {0: AT_ONCE, 1: AT_ONCE}
    assert asked.all == 2 * AT_ONCE


async def test_parties_with_processes_of_their_own_are_all_asked_at_once():
    found = parties(lambda number: "")
    asked = Asked(lambda name: "")
    await found.ask("train", asked)
    assert asked.all == COUNT


async def test_a_refusal_ends_the_round_for_those_whose_turn_did_not_come():
    found, asked = parties(lambda number: "one"), []

    async def refuses(link):
        asked.append(link.name)
        if len(asked) == 5:
            return Refused(Refusal(Reason.POLICY, "not with these peers"))
        await asyncio.sleep(60)
        return Answered(link.name)

    with pytest.raises(PartyRefused, match="not with these peers"):
        await found.ask("join", refuses)
    assert len(asked) <= AT_ONCE + 1


async def test_a_stop_ends_it_too():
    found = parties(lambda number: "one")
    found.spent = True

    async def waits(link):
        found.attendance.stop()
        await asyncio.sleep(60)

    with pytest.raises(RunStopped):
        await found.ask("train", waits)


async def test_who_is_lost_gives_its_turn_to_the_next():
    found = parties(lambda number: "one")
    found.spent = True

    async def loses(link):
        return Lost("no answer", passing=False) if int(link.name[-3:]) % 2 else Answered(link.name)

    assert len(await found.ask("train", loses)) == COUNT // 2
    assert len(found.lost) == COUNT // 2
