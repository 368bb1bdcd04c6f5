"""Simulated parties of one process receive a file once; each has it in its own folder, under its own limits."""

import asyncio

import pytest

from party.config import LimitsTable
from party.store.artefacts import Artefacts, Intake
from party.store.shelf import Shelf
from protos.conclave.v1 import party_pb2
from protos.digest import artefact_digest
from protos.refusal import Reason, Refusal

CONTENT = b"a model" * 1000


@pytest.fixture
def receives(tmp_path):
    """`receives(party, shelf, ...)`: whether a party had a file, and how many parts of it were read."""

    async def takes(party, shelf, content=CONTENT, *, run="run-1", gate=None, limits=None, claimed=None):
        folder = tmp_path / party / run
        folder.mkdir(parents=True, exist_ok=True)
        header = party_pb2.ArtefactHeader(
            kind="model", sha256=artefact_digest(claimed or content), size=len(content)
        )  # fmt: skip
        read = []

        async def parts():
            for start in range(0, len(content), 1000):
                if gate is not None:
                    await gate.wait()
                read.append(start)
                yield party_pb2.ProvideRequest(data=content[start : start + 1000])

        known = await Intake(limits or LimitsTable(), 2**30, shelf).take(header, parts(), folder)
        path = Artefacts(folder).path(header.sha256)
        assert path.read_bytes() == content
        return known, len(read), path

    return takes


async def test_a_file_that_one_received_is_linked_for_the_others(receives):
    shelf = Shelf()
    known, read, first = await receives("north", shelf)
    assert (known, read) == (False, 7)
    known, read, second = await receives("south", shelf)
    assert (known, read) == (True, 0)
    assert first.samefile(second)
    assert (await receives("south", shelf))[:2] == (True, 0), "again"


async def test_of_several_at_once_one_receives(receives):
    shelf, gate = Shelf(), asyncio.Event()
    several = [asyncio.ensure_future(receives(f"party-{number}", shelf, gate=gate)) for number in range(5)]
    await asyncio.sleep(0.05)
    gate.set()
    found = await asyncio.gather(*several)
    assert sorted(read for _, read, _ in found) == [0, 0, 0, 0, 7]
    assert len({path.stat().st_ino for *_, path in found}) == 1


async def test_who_gives_up_receiving_leaves_it_to_the_next(receives):
    shelf, never = Shelf(), asyncio.Event()
    slow = asyncio.ensure_future(receives("north", shelf, gate=never))
    await asyncio.sleep(0.05)
    next_one = asyncio.ensure_future(receives("south", shelf))
    await asyncio.sleep(0.05)
    assert not next_one.done()
    slow.cancel()
    assert (await asyncio.wait_for(next_one, 10))[:2] == (False, 7)


async def test_a_file_of_which_nothing_is_left_is_received_again(receives):
    shelf = Shelf()
    *_, path = await receives("north", shelf)
    path.unlink()
    assert (await receives("south", shelf))[:2] == (False, 7)


async def test_a_file_that_is_not_what_its_name_says_is_no_ones(receives):
    shelf = Shelf()
    for party in ("north", "south"):
        with pytest.raises(Refusal, match="not the one its SHA-256 names"):
            await receives(party, shelf, claimed=b"another")


async def test_another_runs_file_is_not_there(receives):
    shelf = Shelf()
    await receives("north", shelf)
    assert (await receives("south", shelf, run="run-2"))[:2] == (False, 7)


@pytest.mark.slow
async def test_each_partys_own_limits_hold_for_linked_files_too(receives):
    shelf = Shelf()
    await receives("north", shelf, bytes(2**21))
    with pytest.raises(Refusal) as refusal:
        await receives("south", shelf, bytes(2**21), limits=LimitsTable(run_artefacts_mib=1))
    assert refusal.value.reason == Reason.ARTEFACT


async def test_without_a_shelf_every_party_receives(receives):
    for party in ("north", "south"):
        assert (await receives(party, None))[:2] == (False, 7)
