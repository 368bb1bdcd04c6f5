"""The ledger: on disk before it says so, charged once, never past the cap, and rows never noised twice."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap

import pytest
from dp_accounting import GaussianDpEvent

from party.errors import PartyError
from party.ledger.accounts import open_account, read_account
from party.ledger.ledger import Ledger
from party.ledger.protection import Protection
from protos.refusal import Reason, Refusal

EVENT = GaussianDpEvent(1.0)
PLAN = b"p" * 32


@pytest.fixture
async def opened(tmp_path):
    """`await opened(...)`: a ledger below `tmp_path`, its account opened before; closed by itself."""
    ledgers = []

    async def opens(lineage="north", *, epsilon=20.0, delta=1e-6, simulation=False, unit="document"):
        cap = {"epsilon": epsilon, "delta": delta, "simulation": simulation, "protection": Protection(unit)}
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
    await ledger.mask("run", "counts", EVENT, 0)
    await ledger.mask("run", "counts", EVENT, 1)
    await ledger.reveal("run", "counts", 0, b"one" * 8)
    await ledger.reveal("run", "counts", 0, b"one" * 8)
    await ledger.close()
    ledger = await opened()
    refusal = await refused(ledger.reveal("run", "counts", 0, b"two" * 8))
    assert (refusal.reason, "another list of survivors" in refusal.sentence) == (Reason.CONFLICT, True)
    await ledger.reveal("run", "counts", 1, b"two" * 8)


async def test_nothing_is_revealed_of_an_attempt_that_masked_nothing_or_has_ended(opened):
    ledger = await joined(opened)
    assert (await refused(ledger.reveal("run", "counts", 0, b"l" * 32))).reason == Reason.NOT_JOINED
    await ledger.reserve("run", "counts", EVENT)
    assert (await refused(ledger.reveal("run", "counts", 0, b"l" * 32))).reason == Reason.NOT_JOINED
    await ledger.mask("run", "counts", EVENT, 0)
    await ledger.leave("run")
    assert (await refused(ledger.reveal("run", "counts", 0, b"l" * 32))).reason == Reason.NOT_JOINED


async def test_what_is_disclaimed_is_never_revealed_also_after_a_restart(opened):
    ledger = await joined(opened)
    await ledger.mask("run", "counts", EVENT, 0)
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
    await ledger.mask("run", "counts", EVENT, 0)
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
    await ledger.mask("run", "counts", EVENT, 0)
    assert (await refused(ledger.refund("run", "counts", 0))).reason == Reason.SECURE_SUM  # not disclaimed
    assert (await refused(ledger.reserve("run", "counts", EVENT, attempt=1))).reason == Reason.BUDGET
    await ledger.disclaim("run", "counts", 0)
    assert await ledger.refund("run", "counts", 0)
    assert not await ledger.refund("run", "counts", 0)
    await ledger.close()
    ledger = await opened(epsilon=6.0)
    assert (await ledger.budget()).spent == 0
    assert await ledger.attempted("run", "counts") == await ledger.charged("run") == ()
    assert (await refused(ledger.mask("run", "counts", EVENT, 0))).reason == Reason.SECURE_SUM
    assert await ledger.used("run", "counts", 0)
    await ledger.join("run", PLAN, [("counts", EVENT)])
    await ledger.mask("run", "counts", EVENT, 1)
    assert [(attempt, event) for _, attempt, event in await ledger.charged("run")] == [(1, EVENT)]
    kept = read_account(tmp_path / "ledger.sqlite", "north").reservations
    assert [(each.attempt, each.stands) for each in kept] == [(0, False), (1, True)]


async def test_a_refund_that_disclaims_does_both_or_neither(opened):
    ledger = await joined(opened)
    for attempt in (0, 1):
        await ledger.mask("run", "counts", EVENT, attempt)
    await ledger.reveal("run", "counts", 1, b"l" * 32)
    assert await ledger.refund("run", "counts", 0, disclaims=True)
    assert "never reveal" in (await refused(ledger.reveal("run", "counts", 0, b"l" * 32))).sentence
    assert "revealed shares" in (await refused(ledger.refund("run", "counts", 1, disclaims=True))).sentence
    await ledger.reveal("run", "counts", 1, b"l" * 32)  # so it was not disclaimed
    assert await ledger.attempted("run", "counts") == (1,)


async def test_a_charge_for_anything_but_a_masked_vector_is_never_taken_back(opened):
    ledger = await joined(opened)
    await ledger.claim("run", "counts", EVENT, 0, b"d", (0, 5))
    await ledger.mask("run", "counts", EVENT, 0)
    await ledger.disclaim("run", "counts", 0)
    refusal = await refused(ledger.refund("run", "counts", 0))
    assert (refusal.reason, "for a masked vector alone" in refusal.sentence) == (Reason.SECURE_SUM, True)
    assert await ledger.attempted("run", "counts") == (0,)


async def charges(ledger):
    return [(attempt, event) for _, attempt, event in await ledger.charged("run")]


@pytest.mark.parametrize("attempt", [0, 1, 7])
async def test_a_masked_vector_takes_over_what_was_charged_before_the_training(opened, attempt):
    ledger = await joined(opened)
    key = await ledger.reserve("run", "counts", EVENT)
    assert not await ledger.sent("run", "counts")
    for _ in range(2):
        assert await ledger.mask("run", "counts", EVENT, attempt) == key
        assert await charges(ledger) == [(attempt, EVENT)]
        assert await ledger.sent("run", "counts")
        await ledger.close()
        ledger = await opened()
    await ledger.disclaim("run", "counts", attempt)
    assert await ledger.refund("run", "counts", attempt)
    assert await charges(ledger) == []


async def test_a_masked_vector_is_charged_anew_where_every_charge_of_the_release_has_sent_something(opened):
    ledger = await joined(opened)
    await ledger.reserve("run", "counts", EVENT)
    first = await ledger.mask("run", "counts", EVENT, 0)
    second = await ledger.mask("run", "counts", EVENT, 1)
    assert first != second
    assert await charges(ledger) == [(0, EVENT), (1, EVENT)]
    await ledger.disclaim("run", "counts", 1)
    assert await ledger.refund("run", "counts", 1)
    await ledger.mask("run", "counts", EVENT, 2)
    assert await charges(ledger) == [(0, EVENT), (2, EVENT)]


async def test_a_masked_vector_takes_over_its_own_attempt_s_charge_before_another_s(opened):
    ledger = await joined(opened)
    keys = [await ledger.reserve("run", "counts", EVENT, attempt=attempt) for attempt in (0, 1)]
    assert await ledger.mask("run", "counts", EVENT, 1) == keys[1]
    assert await ledger.mask("run", "counts", EVENT, 2) == keys[0]
    assert await charges(ledger) == [(2, EVENT), (1, EVENT)]


async def test_rows_that_were_claimed_keep_their_charge_to_themselves(opened):
    ledger = await joined(opened)
    await ledger.reserve("run", "counts", EVENT)
    await ledger.claim("run", "counts", EVENT, 0, b"d", (0, 5))
    assert await ledger.sent("run", "counts")
    assert not await ledger.move("run", "counts", 0, 1)
    await ledger.mask("run", "counts", EVENT, 1)
    assert await charges(ledger) == [(0, EVENT), (1, EVENT)]


async def test_masked_vectors_stop_where_the_plan_no_longer_pays(opened):
    ledger = await joined(opened)
    await ledger.reserve("run", "counts", EVENT)
    await ledger.mask("run", "counts", EVENT, 3, most=1)
    await ledger.mask("run", "counts", EVENT, 3, most=1)
    refusal = await refused(ledger.mask("run", "counts", EVENT, 4, most=1))
    assert (refusal.reason, "pays for 1 attempt at counts" in refusal.sentence) == (Reason.BUDGET, True)
    await ledger.mask("run", "counts", EVENT, 4, most=2)


async def test_a_masked_vector_is_refused_as_a_reservation_is_and_takes_nothing_over(opened):
    ledger = await joined(opened, epsilon=6.0)
    assert (await refused(ledger.mask("stranger", "counts", EVENT, 0))).reason == Reason.NOT_JOINED
    await ledger.reserve("run", "counts", EVENT)
    await ledger.disclaim("run", "counts", 1)
    assert (await refused(ledger.mask("run", "counts", EVENT, 1))).reason == Reason.SECURE_SUM
    assert await charges(ledger) == [(0, EVENT)]
    await ledger.mask("run", "counts", EVENT, 2)
    assert (await refused(ledger.mask("run", "counts", EVENT, 3))).reason == Reason.BUDGET
    await ledger.leave("run")
    assert (await refused(ledger.mask("run", "counts", EVENT, 2))).reason == Reason.NOT_JOINED


async def test_a_charge_of_a_run_that_ended_is_not_taken_over(opened):
    ledger = await joined(opened)
    await ledger.reserve("run", "counts", EVENT)
    await ledger.leave("run")
    assert (await refused(ledger.mask("run", "counts", EVENT, 1))).reason == Reason.NOT_JOINED
    assert not await ledger.move("run", "counts", 0, 1)
    assert await charges(ledger) == [(0, EVENT)]


async def test_an_unsent_charge_goes_over_to_another_attempt(opened):
    ledger = await joined(opened)
    assert not await ledger.move("run", "counts", 0, 1)
    key = await ledger.reserve("run", "counts", EVENT)
    await ledger.disclaim("run", "counts", 0)  # it sent nothing, and never will
    assert not await ledger.refund("run", "counts", 0), "the text was opened for it"
    assert await ledger.move("run", "counts", 0, 1)
    assert not await ledger.move("run", "counts", 0, 1)
    await ledger.close()
    ledger = await opened()
    assert await charges(ledger) == [(1, EVENT)]
    assert await ledger.reserve("run", "counts", EVENT, attempt=1) == key
    await ledger.reserve("run", "counts", EVENT, attempt=2)
    assert not await ledger.move("run", "counts", 1, 2), "attempt 2 has a charge of its own"
    await ledger.disclaim("run", "counts", 3)
    assert not await ledger.move("run", "counts", 1, 3)
    await ledger.mask("run", "counts", EVENT, 1)
    assert not await ledger.move("run", "counts", 1, 4)


async def test_an_attempt_that_sent_nothing_may_begin_again_also_after_its_charge(opened):
    ledger = await joined(opened)
    await ledger.reserve("run", "counts", EVENT)
    assert not await ledger.used("run", "counts", 0)
    await ledger.mask("run", "counts", EVENT, 0)
    assert await ledger.used("run", "counts", 0)


async def test_a_charge_from_before_it_was_known_what_left_is_never_taken_over(opened, tmp_path):
    ledger = await joined(opened)
    await ledger.reserve("run", "counts", EVENT)
    await ledger.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)) as sql:
        for table, column in [
            ("reservations", "unsent"), ("reservations", "blank"), ("reservations", "request"), ("runs", "blank"),
            ("accounts", "unit"), ("accounts", "relation"),
        ]:  # fmt: skip
            sql.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        sql.execute("PRAGMA user_version = 4")
    open_account(tmp_path, "north", epsilon=20.0, delta=1e-6, simulation=False)
    ledger = await opened()
    assert await ledger.used("run", "counts", 0)
    assert not await ledger.move("run", "counts", 0, 1)
    await ledger.mask("run", "counts", EVENT, 1)
    assert await charges(ledger) == [(0, EVENT), (1, EVENT)]


async def test_one_charge_is_for_one_request(opened):
    ledger = await joined(opened)
    key = await ledger.reserve("run", "counts", EVENT, request=b"one")
    assert await ledger.reserve("run", "counts", EVENT, request=b"one") == key
    with pytest.raises(Refusal, match="charged for another training") as refusal:
        await ledger.reserve("run", "counts", EVENT, request=b"another")
    assert refusal.value.reason == Reason.CONFLICT
    assert await charges(ledger) == [(0, EVENT)]


async def test_a_release_is_opened_no_more_often_than_the_plan_pays_for(opened):
    ledger = await joined(opened)
    for attempt in (0, 1):
        await ledger.reserve("run", "counts", EVENT, attempt=attempt, most=2)
    with pytest.raises(Refusal, match="the plan pays for 2 attempts at counts") as refusal:
        await ledger.reserve("run", "counts", EVENT, attempt=2, most=2)
    assert refusal.value.reason == Reason.BUDGET
    await ledger.reserve("run", "counts", EVENT, attempt=1, most=2)


KILLED_IN = """
import asyncio, os, signal, sys
from pathlib import Path
from dp_accounting import GaussianDpEvent
from party.ledger import attempts
from party.ledger.ledger import Ledger
async def main():
    ledger = await Ledger.open(Path(sys.argv[1]), "north", epsilon=20.0, delta=1e-6, simulation=False)
    take_over = attempts.take_over
    def dies(*given):
        take_over(*given)
        os.kill(os.getpid(), signal.SIGKILL)
    attempts.take_over = dies
    await ledger.mask("run", "counts", GaussianDpEvent(1.0), 1)
asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_kill_within_a_take_over_leaves_the_charge_as_it_was(opened, tmp_path):
    ledger = await joined(opened)
    key = await ledger.reserve("run", "counts", EVENT)
    await ledger.close()
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED_IN), str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    ledger = await opened()
    assert (await charges(ledger), await ledger.sent("run", "counts")) == ([(0, EVENT)], False)
    assert await ledger.mask("run", "counts", EVENT, 1) == key
    assert await charges(ledger) == [(1, EVENT)]


async def test_past_the_cap_it_refuses_and_says_what_the_cap_is_about(opened):
    ledger = await opened(epsilon=6.0)
    await ledger.join("one", PLAN, [])
    await ledger.join("two", PLAN, [])
    await ledger.reserve("one", "counts", EVENT)
    refusal = await refused(ledger.reserve("two", "counts", EVENT))
    assert refusal.reason == Reason.BUDGET
    assert "cap of epsilon 6 (delta 1e-06) for a document, added or removed" in refusal.sentence


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
    assert await ledger.attempted("run", "counts") == (0,)


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


@pytest.mark.parametrize("change", [{"epsilon": 21.0}, {"delta": 1e-5}, {"simulation": True}, {"unit": "user"}])
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
from party.ledger.accounts import open_account
from party.ledger.ledger import Ledger
async def main():
    open_account(Path(sys.argv[1]), "north", epsilon=20.0, delta=1e-6, simulation=False)
    ledger = await Ledger.open(Path(sys.argv[1]), "north", epsilon=20.0, delta=1e-6, simulation=False)
    await ledger.join("run", b"p" * 32, [])
    claim = await ledger.claim("run", "counts", GaussianDpEvent(1.0), 0, b"d", (0, 5))
    print(claim.noise_key.hex(), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.slow
async def test_what_was_reserved_survives_a_kill(opened, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        key = bytes.fromhex(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
    ledger = await opened()
    assert await ledger.attempted("run", "counts") == (0,)
    claim = await ledger.claim("run", "counts", EVENT, 0, b"d", (0, 5))
    assert (claim.noise_key, claim.fresh) == (key, False)
