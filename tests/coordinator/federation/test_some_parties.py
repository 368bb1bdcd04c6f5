"""Some parties of a run are asked alone, and the run goes on as long as enough of them, and of all, are left."""

import asyncio
from types import SimpleNamespace

import pytest

from coordinator.errors import PartyLost, PartyRefused
from coordinator.federation.attendance import Attendance
from coordinator.federation.participants import Participants
from coordinator.progress.progress import Silent
from coordinator.transport.link import Answered, Lost, Refused
from protos.refusal import Reason, Refusal

ALL = ("clinic", "east", "north", "south")
TEACHING = ALL[1:]


def parties(minimum=3):
    links = [SimpleNamespace(name=name) for name in ALL]
    found = Participants(links, minimum, Attendance(Silent(), None, 0.0))
    found.run_id, found.spent = "7f3a", True
    return found


def ask(found, lost=(), refusing=()):
    """Ask everybody who is asked now; returns who answered."""

    async def verb(link):
        if link.name in refusing:
            return Refused(Refusal(Reason.POLICY, "No.", "weights"))
        return Lost("no answer for 60 s", passing=False) if link.name in lost else Answered(link.name)

    return list(asyncio.run(found.ask("train", verb)))


def test_others_are_not_asked_and_are_there_again_afterwards():
    found = parties()
    with found.among(TEACHING):
        assert found.names == TEACHING
        assert ask(found) == list(TEACHING)
        with found.among(("clinic",)):
            assert ask(found, lost=TEACHING) == ["clinic"]
        assert found.names == TEACHING
    assert ask(found) == list(ALL)
    with found.among(()):
        assert found.names == ALL


def test_one_of_them_may_be_lost_where_one_of_all_may():
    found = parties()
    with found.among(TEACHING):
        assert found.fewest == 2
        assert ask(found, lost=("south",)) == ["east", "north"]
    assert found.names == ("clinic", "east", "north")
    with found.among(("clinic",)):
        assert ask(found) == ["clinic"]


def test_too_few_of_them_end_the_run_and_it_is_said_of_whom():
    found = parties(minimum=2)
    with found.among(("clinic",)), pytest.raises(PartyLost) as lost:
        ask(found, lost=("clinic",))
    assert "The plan needs 1 of clinic and none of them are left." in str(lost.value)
    assert "When clinic is back (`party serve`):  coordinator resume 7f3a" in str(lost.value)


def test_one_that_was_lost_among_all_is_missed_when_it_alone_is_asked():
    found = parties(minimum=2)
    assert ask(found, lost=("clinic",)) == list(TEACHING)
    with found.among(("clinic",)), pytest.raises(PartyLost, match="1 of clinic and none of them are left"):
        ask(found)


def test_too_few_of_all_end_the_run_though_enough_of_them_are_left():
    found = parties()
    assert ask(found, lost=("clinic",)) == list(TEACHING)
    with found.among(TEACHING), pytest.raises(PartyLost, match="needs 3 of its parties and 2 are left"):
        ask(found, lost=("east",))


def test_the_only_one_that_is_asked_ends_the_run_where_it_refuses():
    found = parties(minimum=1)
    with found.among(("clinic",)), pytest.raises(PartyRefused, match="party clinic refused to train: No"):
        ask(found, refusing=("clinic",))
