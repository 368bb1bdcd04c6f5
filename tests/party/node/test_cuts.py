"""A party that dials is cut off again and again amid its answers: each charge stands once, and the bytes are the same.

`CONCLAVE_CUTS=1000` says how often.
"""

import asyncio
import contextlib
import os
import sqlite3

import numpy as np
import pytest

from coordinator.transport.grpc_link import GrpcLink
from coordinator.transport.link import Answered, Batch, Untroubled
from coordinator.transport.retry import PatientLink, Retry
from party.ledger.accounts import read_account

CUTS = int(os.environ.get("CONCLAVE_CUTS", "40"))
BATCHES = [Batch(number, number, number + 1) for number in range(6)]


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.usefixtures("trains_here")
@pytest.mark.parametrize("dials", ["dials"], indirect=True)
async def test_however_often_it_is_cut_a_party_is_charged_once_and_answers_the_same(opened, coordinating, tmp_path):
    caller = await opened()
    await caller.ready()
    place, rng = caller.way.gate.places["north"], np.random.default_rng(0)
    link = GrpcLink("north", caller.way.address, identity=coordinating, way=caller.way, deadline=30)
    link.bind(caller.run.run_id, caller.run.plan_hash)
    patient = PatientLink(link, Retry(600, first=0.01, longest=0.1), Untroubled())
    cut, first = 0, None

    async def cut_soon(seconds):
        nonlocal cut
        await asyncio.sleep(seconds)
        while not place._active:
            await asyncio.sleep(0.002)
        place.cut()
        cut += 1

    async def answered():
        outcomes = [outcome async for outcome in patient.answer("counts", BATCHES, 6)]
        assert all(isinstance(each, Answered) for each in outcomes), outcomes
        return np.vstack([each.value for each in outcomes])

    first = await answered()
    while cut < CUTS:
        cutting = asyncio.ensure_future(caller.way.thread.done(cut_soon(rng.uniform(0, 0.02))))
        assert np.array_equal(await answered(), first)
        await cutting
    assert np.array_equal(await answered(), first)
    await patient.close()
    path = tmp_path / "north.party" / "ledger.sqlite"
    (charge,) = read_account(path, "north").reservations
    assert (charge.run, charge.release, charge.attempt) == (caller.run.run_id, "counts", 0)
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as ledger:
        assert ledger.execute("SELECT batch, start, stop FROM blocks ORDER BY batch").fetchall() == [
            (each.number, each.start, each.stop) for each in BATCHES
        ]
