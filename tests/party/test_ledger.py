"""The ledger: on disk before it says so, charged once, never past the cap, and rows never noised twice."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import textwrap

import pytest
from dp_accounting import GaussianDpEvent

from party.accounts import open_account, read_account
from party.errors import PartyError
from party.ledger import Ledger
from protos.refusal import Reason, Refusal

EVENT = GaussianDpEvent(1.0)
PLAN = b"p" * 32


@pytest.fixture
async def opened(tmp_path):
    """`await opened(...)`: a ledger below `tmp_path`, its account opened before; closed by itself."""
    ledgers = []

    async def opens(lineage="north", *, epsilon=20.0, delta=1e-6, simulation=False):
        cap = {"epsilon": epsilon, "delta": delta, "simulation": simulation}
        if read_account(tmp_path / "ledger.sqlite", lineage) is None:
            open_account(tmp_path, lineage, **cap)
        ledger = await Ledger.open(tmp_path, lineage, **cap)
        ledgers.append(ledger)
        return ledger

    yield opens
    for ledger in ledgers:
        await ledger.close()


async def joined(opened, **settings):
    ledger = await opened(**settings)
    await ledger.join("run", PLAN, [("counts", EVENT)])
    return ledger


async def refused(waiting):
    with pytest.raises(Refusal) as refusal:
        await waiting
    return refusal.value


async def test_a_reservation_is_charged_once(opened, tmp_path):
    ledger = await joined(opened)
    await ledger.reserve("run", "counts", EVENT)
    await ledger.reserve("run", "counts", EVENT)
    account = read_account(tmp_path / "ledger.sqlite", "north")
    assert [(each.release, each.event, each.answered_at) for each in account.reservations] == [("counts", EVENT, None)]
    await ledger.answered("run", "counts")
    assert read_account(tmp_path / "ledger.sqlite", "north").reservations[0].answered_at is not None


async def test_another_attempt_is_charged_again(opened, tmp_path):
    ledger = await joined(opened)
    await ledger.reserve("run", "counts", EVENT)
    await ledger.reserve("run", "counts", EVENT, attempt=1)
    assert len(read_account(tmp_path / "ledger.sqlite", "north").reservations) == 2


async def test_a_run_that_may_charge_a_release_twice_must_be_able_to_pay_twice(opened):
    ledger = await opened(epsilon=6.0)
    assert (await refused(ledger.join("run", PLAN, [("counts", EVENT)] * 2))).reason == Reason.BUDGET
    await ledger.join("run", PLAN, [("counts", EVENT)])
    await ledger.reserve("run", "counts", EVENT)
    await ledger.join("run", PLAN, [("counts", EVENT)])  # what was charged is not asked for again
    assert (await refused(ledger.join("run", PLAN, [("counts", EVENT)] * 2))).reason == Reason.BUDGET
    assert await ledger.attempted("run", "counts") == (0,)


async def test_shares_of_an_attempt_are_revealed_to_one_list_of_survivors_also_after_a_restart(opened):
    ledger = await joined(opened)
    await ledger.reserve("run", "counts", EVENT)
    await ledger.reserve("run", "counts", EVENT, attempt=1)
    await ledger.reveal("run", "counts", 0, b"one" * 8)
    await ledger.reveal("run", "counts", 0, b"one" * 8)
    await ledger.close()
    ledger = await opened()
    refusal = await refused(ledger.reveal("run", "counts", 0, b"two" * 8))
    assert (refusal.reason, "another list of survivors" in refusal.sentence) == (Reason.CONFLICT, True)
    await ledger.reveal("run", "counts", 1, b"two" * 8)


async def test_nothing_is_revealed_of_an_attempt_that_was_never_charged_or_has_ended(opened):
    ledger = await joined(opened)
    assert (await refused(ledger.reveal("run", "counts", 0, b"l" * 32))).reason == Reason.NOT_JOINED
    await ledger.reserve("run", "counts", EVENT)
    await ledger.leave("run")
    assert (await refused(ledger.reveal("run", "counts", 0, b"l" * 32))).reason == Reason.NOT_JOINED


async def test_what_is_disclaimed_is_never_revealed_also_after_a_restart(opened):
    ledger = await joined(opened)
    await ledger.reserve("run", "counts", EVENT, masked=True)
    await ledger.disclaim("run", "counts", 0)
    await ledger.disclaim("run", "counts", 0)
    await ledger.disclaim("run", "counts", 1)  # shares come before the charge
    for _ in range(2):
        refusal = await refused(ledger.reveal("run", "counts", 0, b"l" * 32))
        assert (refusal.reason, "never reveal" in refusal.sentence) == (Reason.SECURE_SUM, True)
        assert (await refused(ledger.reserve("run", "counts", EVENT, attempt=1))).reason == Reason.SECURE_SUM
        assert [await ledger.used("run", "counts", attempt) for attempt in range(3)] == [True, True, False]
        await ledger.close()
        ledger = await opened()
    assert await ledger.attempted("run", "counts") == (0,), "a disclaimer alone refunds nothing"


async def test_what_was_revealed_is_never_disclaimed_or_refunded_also_after_a_restart(opened):
    ledger = await joined(opened)
    await ledger.reserve("run", "counts", EVENT, masked=True)
    await ledger.reveal("run", "counts", 0, b"l" * 32)
    for _ in range(2):
        for asked in (ledger.disclaim, ledger.refund):
            refusal = await refused(asked("run", "counts", 0))
            assert (refusal.reason, "revealed shares of it" in refusal.sentence) == (Reason.SECURE_SUM, True)
        await ledger.close()
        ledger = await opened()
    assert await ledger.attempted("run", "counts") == (0,)


async def test_a_refunded_attempt_costs_nothing_and_is_used_for_ever(opened, tmp_path):
    ledger = await joined(opened, epsilon=6.0)
    await ledger.reserve("run", "counts", EVENT, masked=True)
    assert (await refused(ledger.refund("run", "counts", 0))).reason == Reason.SECURE_SUM  # not disclaimed
    assert (await refused(ledger.reserve("run", "counts", EVENT, attempt=1))).reason == Reason.BUDGET
    await ledger.disclaim("run", "counts", 0)
    assert await ledger.refund("run", "counts", 0)
    assert not await ledger.refund("run", "counts", 0)
    await ledger.close()
    ledger = await opened(epsilon=6.0)
    assert (await ledger.budget()).spent == 0
    assert await ledger.attempted("run", "counts") == await ledger.charged("run") == ()
    assert (await refused(ledger.reserve("run", "counts", EVENT, masked=True))).reason == Reason.SECURE_SUM
    assert await ledger.used("run", "counts", 0)
    await ledger.join("run", PLAN, [("counts", EVENT)])
    await ledger.reserve("run", "counts", EVENT, attempt=1, masked=True)
    assert [(attempt, event) for _, attempt, event in await ledger.charged("run")] == [(1, EVENT)]
    kept = read_account(tmp_path / "ledger.sqlite", "north").reservations
    assert [(each.attempt, each.stands) for each in kept] == [(0, False), (1, True)]


async def test_a_refund_that_disclaims_does_both_or_neither(opened):
    ledger = await joined(opened)
    for attempt, masked in ((0, True), (1, False)):
        await ledger.reserve("run", "counts", EVENT, attempt=attempt, masked=masked)
    assert await ledger.refund("run", "counts", 0, disclaims=True)
    assert "never reveal" in (await refused(ledger.reveal("run", "counts", 0, b"l" * 32))).sentence
    refusal = await refused(ledger.refund("run", "counts", 1, disclaims=True))
    assert "for a masked vector alone" in refusal.sentence
    await ledger.reveal("run", "counts", 1, b"l" * 32)  # so it was not disclaimed
    assert "revealed shares" in (await refused(ledger.refund("run", "counts", 1, disclaims=True))).sentence
    assert await ledger.attempted("run", "counts") == (1,)


async def test_a_charge_for_anything_but_a_masked_vector_is_never_taken_back(opened):
    ledger = await joined(opened)
    await ledger.reserve("run", "counts", EVENT)
    await ledger.reserve("run", "counts", EVENT, masked=True)
    await ledger.disclaim("run", "counts", 0)
    refusal = await refused(ledger.refund("run", "counts", 0))
    assert (refusal.reason, "for a masked vector alone" in refusal.sentence) == (Reason.SECURE_SUM, True)
    assert await ledger.attempted("run", "counts") == (0,)


async def test_past_the_cap_it_refuses_and_says_what_is_left(opened):
    ledger = await opened(epsilon=6.0)
    await ledger.join("one", PLAN, [])
    await ledger.join("two", PLAN, [])
    await ledger.reserve("one", "counts", EVENT)
    refusal = await refused(ledger.reserve("two", "counts", EVENT))
    assert refusal.reason == Reason.BUDGET
    assert "of the cap of 6" in refusal.sentence


async def test_joining_spends_nothing_but_asks_whether_it_could(opened, tmp_path):
    ledger = await opened(epsilon=6.0)
    wanted = [("one", EVENT), ("two", EVENT)]
    assert (await refused(ledger.join("run", PLAN, wanted))).reason == Reason.BUDGET
    assert await ledger.joined("run") is None
    assert read_account(tmp_path / "ledger.sqlite", "north").reservations == ()


async def test_joining_again_after_paying_is_free(opened):
    ledger = await opened(epsilon=6.0)
    for _ in range(2):
        await ledger.join("run", PLAN, [("counts", EVENT)])
        await ledger.reserve("run", "counts", EVENT)
    assert await ledger.reserved("run", "counts")


async def test_a_run_id_stands_for_one_plan(opened):
    ledger = await joined(opened)
    assert (await refused(ledger.join("run", b"q" * 32, []))).reason == Reason.CONFLICT


async def test_a_run_that_ended_stays_ended_and_charged(opened, tmp_path):
    ledger = await joined(opened)
    await ledger.claim("run", "counts", EVENT, 0, b"d", (0, 5))
    await ledger.leave("run")
    await ledger.leave("run")
    assert (await refused(ledger.join("run", PLAN, []))).reason == Reason.NOT_JOINED
    assert (await refused(ledger.claim("run", "counts", EVENT, 0, b"d", (0, 5)))).reason == Reason.NOT_JOINED
    assert len(read_account(tmp_path / "ledger.sqlite", "north").reservations) == 1


async def test_noise_keys_of_a_run_that_ended_are_in_no_file(opened, tmp_path):
    ledger = await joined(opened)
    key = await ledger.reserve("run", "counts", EVENT)
    assert any(key in file.read_bytes() for file in tmp_path.iterdir())
    await ledger.leave("run")
    assert not any(key in file.read_bytes() for file in tmp_path.iterdir())


async def test_nothing_is_charged_for_a_run_that_never_joined(opened):
    ledger = await opened()
    assert (await refused(ledger.reserve("stranger", "counts", EVENT))).reason == Reason.NOT_JOINED


async def test_a_row_is_claimed_once(opened):
    ledger = await joined(opened)
    first = await ledger.claim("run", "counts", EVENT, 0, b"d", (0, 5))
    again = await ledger.claim("run", "counts", EVENT, 0, b"d", (0, 5))
    assert (first.fresh, again.fresh) == (True, False)
    assert first.noise_key == again.noise_key
    assert len(first.noise_key) == 32
    for batch, digest, rows in [(0, b"e", (0, 5)), (1, b"d", (4, 6)), (2, b"d", (0, 5)), (3, b"d", (1, 2))]:
        assert (await refused(ledger.claim("run", "counts", EVENT, batch, digest, rows))).reason == Reason.CONFLICT
    assert (await ledger.claim("run", "counts", EVENT, 4, b"d", (5, 6))).fresh


async def test_an_account_survives_and_keeps_its_id(opened):
    ledger = await joined(opened)
    await ledger.reserve("run", "counts", EVENT)
    account = ledger.account
    await ledger.close()
    assert (await opened()).account == account


async def test_another_lineage_is_another_account(opened):
    first = await opened()
    account = first.account
    await first.close()
    assert (await opened("other")).account != account


@pytest.mark.parametrize("change", [{"epsilon": 21.0}, {"delta": 1e-5}, {"simulation": True}])
async def test_a_cap_cannot_be_moved_later(opened, change):
    await (await opened()).close()
    with pytest.raises(PartyError, match="account north was opened"):
        await opened(**change)


async def test_a_folder_has_one_writer(opened):
    await opened()
    with pytest.raises(PartyError, match="in use by another node"):
        await opened()


async def test_the_file_is_private(opened, tmp_path):
    await joined(opened)
    for path in tmp_path.glob("ledger.sqlite*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_file_that_is_no_ledger_is_named(tmp_path):
    (tmp_path / "ledger.sqlite").write_text("this is not a database, it is a note of some length" * 40)
    with pytest.raises(PartyError, match=r"ledger\.sqlite is not a ledger"):
        await Ledger.open(tmp_path, "north", epsilon=20.0, delta=1e-6, simulation=False)


async def test_an_account_nobody_opened_is_none(opened, tmp_path):
    assert read_account(tmp_path / "ledger.sqlite", "north") is None
    await opened()
    assert read_account(tmp_path / "ledger.sqlite", "other") is None


async def test_callers_at_once_are_charged_within_the_cap(opened, tmp_path):
    ledger = await opened(epsilon=6.0)
    for number in range(8):
        await ledger.join(f"run-{number}", PLAN, [])
    outcomes = await asyncio.gather(
        *(ledger.reserve(f"run-{n}", "counts", EVENT) for n in range(8)), return_exceptions=True
    )
    assert sum(isinstance(outcome, bytes) for outcome in outcomes) == 1
    assert len(read_account(tmp_path / "ledger.sqlite", "north").reservations) == 1


KILLED = """
import asyncio, os, sys
from pathlib import Path
from dp_accounting import GaussianDpEvent
from party.accounts import open_account
from party.ledger import Ledger
async def main():
    open_account(Path(sys.argv[1]), "north", epsilon=20.0, delta=1e-6, simulation=False)
    ledger = await Ledger.open(Path(sys.argv[1]), "north", epsilon=20.0, delta=1e-6, simulation=False)
    await ledger.join("run", b"p" * 32, [])
    claim = await ledger.claim("run", "counts", GaussianDpEvent(1.0), 0, b"d", (0, 5))
    print(claim.noise_key.hex(), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_what_was_reserved_survives_a_kill(opened, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        key = bytes.fromhex(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
    ledger = await opened()
    assert await ledger.reserved("run", "counts")
    claim = await ledger.claim("run", "counts", EVENT, 0, b"d", (0, 5))
    assert (claim.noise_key, claim.fresh) == (key, False)
