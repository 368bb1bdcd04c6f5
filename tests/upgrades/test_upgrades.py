"""What earlier versions stored is read by this one: ledgers and runs of each version lie here for ever.

A new version of either adds its files to `stored`, and takes none away.
"""

import contextlib
import re
import shutil
import sqlite3
import stat
from pathlib import Path

import numpy as np
import pytest

from coordinator.errors import RunError
from coordinator.publishing.report import statement_of
from coordinator.store import store as stores
from coordinator.store.store import RunStore
from party.errors import PartyError
from party.ledger import database
from party.ledger.accounts import read_account

STORED = Path(__file__).parent / "stored"
LEDGERS = sorted(STORED.glob("ledger-*.sqlite"))
RUNS = sorted(STORED.glob("run-*"))


def number(path):
    return int(re.fullmatch(r".*-(\d+)", path.stem)[1])


def version(path):
    with contextlib.closing(sqlite3.connect(path)) as sql:
        return int(sql.execute("PRAGMA user_version").fetchone()[0])


def test_a_ledger_and_a_run_of_this_version_are_stored():
    assert max(map(number, LEDGERS)) == database.VERSION
    assert max(map(number, RUNS)) == stores.VERSION


@pytest.mark.parametrize("stored", LEDGERS, ids=lambda path: path.stem)
def test_a_stored_ledger_says_what_was_spent_and_goes_on(stored, tmp_path):
    path = Path(shutil.copy(stored, tmp_path / "ledger.sqlite"))
    account = read_account(path, "party-1")
    assert [(each.release, each.attempt) for each in account.reservations] == [("counts", 0)]
    assert account.epsilon == 16.0
    database.connect(path).close()
    assert version(path) == database.VERSION
    assert read_account(path, "party-1").reservations == account.reservations
    assert database.backup_of(path, number(stored)).exists() == (number(stored) < database.VERSION)


def older(path, have):
    """A ledger as version `have` made it, with one account that was charged, and the charge's noise key."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as sql:
        for step in database._STEPS[:have]:
            sql.executescript(step)
        more = ", number" if have >= database.COUNTING_UNITS else ""
        sql.execute(
            f"INSERT INTO accounts (id, lineage, epsilon, delta, simulation, opened_at{more}) "
            f"VALUES ('a', 'north', 8.0, 1e-6, 0, 1.0{', 1' if more else ''})"
        )
        sql.execute("INSERT INTO runs (id, plan_hash, joined_at) VALUES ('run', x'00', 1.0)")
        sql.execute(
            "INSERT INTO reservations (account, run, release, attempt, event, noise_key, reserved_at) VALUES "
            """('a', 'run', 'counts', 0, '{"kind": "gaussian", "noise_multiplier": 2.0}', ?, 1.0)""",
            (b"secret noise key of 32 bytes!!!!",),
        )
        if have >= database.COUNTING_UNITS:
            sql.execute("INSERT INTO secret VALUES (x'00')")
        sql.execute(f"PRAGMA user_version = {have}")
    path.chmod(0o600)


@pytest.mark.parametrize("have", range(1, database.VERSION))
def test_a_ledger_is_copied_before_it_is_migrated_and_the_copy_has_no_noise_key(tmp_path, have):
    path = tmp_path / "ledger.sqlite"
    older(path, have)
    database.connect(path).close()
    assert version(path) == database.VERSION
    kept = database.backup_of(path, have)
    assert version(kept) == have
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert b"secret noise key" not in kept.read_bytes()
    with contextlib.closing(sqlite3.connect(path)) as sql:
        assert b"secret" in sql.execute("SELECT noise_key FROM reservations").fetchone()[0]
    assert not list(tmp_path.glob(".*part*"))
    again = Path(shutil.copy(kept, tmp_path / "again.sqlite"))
    database.connect(again).close()
    assert read_account(again, "north").reservations == read_account(path, "north").reservations


def test_a_ledger_that_is_up_to_date_or_new_is_not_copied(tmp_path):
    for _ in range(2):
        database.connect(tmp_path / "ledger.sqlite").close()
        assert not list(tmp_path.glob("*version*"))


def test_a_ledger_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "ledger.sqlite"
    database.connect(path).close()
    with contextlib.closing(sqlite3.connect(path)) as sql:
        sql.execute(f"PRAGMA user_version = {database.VERSION + 1}")
    with pytest.raises(PartyError, match=r"newer version of Conclave\. Install that one"):
        database.connect(path)
    assert version(path) == database.VERSION + 1
    assert not list(tmp_path.glob("*version*"))


@pytest.mark.parametrize("stored", RUNS, ids=lambda path: path.name)
def test_a_stored_run_is_read_whole(stored, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(stored, folder)
    with contextlib.closing(RunStore(folder)) as store:
        assert store.id == "c4169e6e-stored"
        assert store.status() == "finished"
        assert store.summed("counts") == ("party-1", "party-2")
        blocks = np.concatenate([block for *_, block in store.blocks("counts")])
        assert blocks.shape == (6, 6)
        said = statement_of(store)
        assert said["privacy"]["epsilon"] == pytest.approx(7.9994, abs=1e-4)
    assert version(folder / "run.sqlite") == stores.VERSION


def test_a_run_from_before_versions_were_stored_is_read_and_has_one_then(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(RUNS[0], folder)
    with contextlib.closing(sqlite3.connect(folder / "run.sqlite")) as sql:
        sql.execute("PRAGMA user_version = 0")
    with contextlib.closing(RunStore(folder)) as store:
        assert store.status() == "finished"
    assert version(folder / "run.sqlite") == stores.VERSION


def test_a_run_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(RUNS[0], folder)
    with contextlib.closing(sqlite3.connect(folder / "run.sqlite")) as sql:
        sql.execute(f"PRAGMA user_version = {stores.VERSION + 1}")
    with pytest.raises(RunError, match="newer version of Conclave"):
        RunStore(folder)
    assert version(folder / "run.sqlite") == stores.VERSION + 1
