"""What earlier versions stored is read by this one: ledgers and runs of each version lie here for ever.

A new version of either adds its files to `stored`, and takes none away. `plans` has the first plan of every system.
"""

import contextlib
import hashlib
import json
import re
import shutil
import sqlite3
import stat
from pathlib import Path

import numpy as np
import pytest

from coordinator.errors import PlanError, RunError
from coordinator.publishing.report import statement_of
from coordinator.store import index as indexes
from coordinator.store import output
from coordinator.store import store as stores
from coordinator.store.index import RunIndex
from coordinator.store.store import RunStore
from coordinator.store.versions import backup_of
from coordinator.systems.registry import read_plan
from party.errors import PartyError
from party.ledger import database
from party.ledger.accounts import read_account
from protos.conclave.v1 import party_pb2
from protos.dialling.frames import fields_of
from protos.dialling.greeting import hello_of

STORED = Path(__file__).parent / "stored"
LEDGERS = sorted(STORED.glob("ledger-*.sqlite"))
RUNS = sorted(STORED.glob("run-*"))
INDEXES = sorted(STORED.glob("index-*.sqlite"))
PLANS = sorted((Path(__file__).parent / "plans").glob("*.toml"))


def number(path):
    return int(re.fullmatch(r".*-(\d+)", path.stem)[1])


def version(path):
    with contextlib.closing(sqlite3.connect(path)) as sql:
        return int(sql.execute("PRAGMA user_version").fetchone()[0])


def test_a_ledger_a_run_and_an_index_of_this_version_are_stored():
    assert max(map(number, LEDGERS)) == database.VERSION
    assert max(map(number, RUNS)) == stores.VERSION
    assert max(map(number, INDEXES)) == indexes.VERSION


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
    assert version(backup_of(folder / "run.sqlite", 0)) == 0


LATER = (*stores._STEPS, "ALTER TABLE sums ADD COLUMN later TEXT; UPDATE sums SET later = release")
"""The steps of a version to come."""


def test_a_run_is_copied_before_it_is_migrated_and_the_copy_is_the_runs_own(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(RUNS[0], folder)
    monkeypatch.setattr(stores, "_STEPS", LATER)
    for _ in range(2):
        with contextlib.closing(RunStore(folder)) as store:
            assert store.summed("counts") == ("party-1", "party-2")
            assert store._connection.execute("SELECT later FROM sums").fetchone() == ("counts",)
    kept = backup_of(folder / "run.sqlite", stores.VERSION)
    assert version(kept) == stores.VERSION
    assert version(folder / "run.sqlite") == stores.VERSION + 1
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert not list(folder.glob(".*part*"))
    (folder / ".run-version-1.sqlite.part").touch()  # what a kill may leave of a copy
    assert output.strangers(folder) == []
    monkeypatch.undo()
    with pytest.raises(RunError, match=r"newer version of Conclave \(store 2, here 1\)"):
        RunStore(folder)
    shutil.copy(kept, folder / "run.sqlite")  # the way back
    with contextlib.closing(RunStore(folder)) as store:
        assert store.summed("counts") == ("party-1", "party-2")


def test_a_migration_that_fails_leaves_the_run_as_it_was(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(RUNS[0], folder)
    monkeypatch.setattr(stores, "_STEPS", (*stores._STEPS, "ALTER TABLE sums ADD COLUMN later TEXT; SELECT nonsense"))
    with pytest.raises(RunError, match="cannot be written: no such column: nonsense"):
        RunStore(folder)
    monkeypatch.undo()
    with contextlib.closing(RunStore(folder)) as store:
        assert store.status() == "finished"
    assert version(folder / "run.sqlite") == stores.VERSION
    monkeypatch.setattr(stores, "_STEPS", LATER)  # which would not find a column that is there already
    with contextlib.closing(RunStore(folder)) as store:
        assert store.summed("counts") == ("party-1", "party-2")


def test_a_new_run_is_not_copied(tmp_path):
    for _ in range(2):
        RunIndex(tmp_path / "home").add("demo", b"hash", tmp_path / f"run-{_}").close()
    assert not list(tmp_path.rglob("*version*"))


def test_a_run_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(RUNS[0], folder)
    with contextlib.closing(sqlite3.connect(folder / "run.sqlite")) as sql:
        sql.execute(f"PRAGMA user_version = {stores.VERSION + 1}")
    with pytest.raises(RunError, match="newer version of Conclave"):
        RunStore(folder)
    assert version(folder / "run.sqlite") == stores.VERSION + 1


@pytest.mark.parametrize("stored", INDEXES, ids=lambda path: path.stem)
def test_a_stored_index_of_runs_is_read(stored, tmp_path):
    path = Path(shutil.copy(stored, tmp_path / "runs.sqlite"))
    folder = tmp_path / "run"
    shutil.copytree(RUNS[0], folder)
    with contextlib.closing(sqlite3.connect(path)) as sql, sql:
        assert sql.execute("UPDATE runs SET folder = ?", (str(folder),)).rowcount == 1
    (entry,) = RunIndex(tmp_path).entries()
    assert (entry.id, entry.name, entry.status) == ("c4169e6e-stored", "stored", "finished")
    assert version(path) == indexes.VERSION
    assert backup_of(path, number(stored)).exists() == (number(stored) < indexes.VERSION)


def test_an_index_from_before_versions_were_stored_has_one_then_and_a_newer_one_is_refused(tmp_path):
    path = Path(shutil.copy(INDEXES[0], tmp_path / "runs.sqlite"))
    for stored in (0, indexes.VERSION + 1):
        with contextlib.closing(sqlite3.connect(path)) as sql:
            sql.execute(f"PRAGMA user_version = {stored}")
        if stored:
            with pytest.raises(RunError, match="newer version of Conclave"):
                RunIndex(tmp_path).entries()
            assert version(path) == stored
        else:
            assert RunIndex(tmp_path).entries() == []
            assert version(path) == indexes.VERSION
            assert version(backup_of(path, 0)) == 0


MESSAGES = json.loads((STORED / "protocol-3.json").read_text())


def test_what_names_the_versions_of_two_ends_is_where_earlier_ends_look_for_it():
    """Two ends of different versions can say so as long as these messages keep their form, whatever else changes."""
    told = party_pb2.DescribeResponse.FromString(bytes.fromhex(MESSAGES["DescribeResponse"]))
    assert (told.name, told.protocol_version, told.software_version) == ("north", 3, "0.1.0")
    asked = party_pb2.JoinRequest.FromString(bytes.fromhex(MESSAGES["JoinRequest"]))
    assert (asked.protocol_version, asked.run.run_id, asked.check_only) == (3, "run-1", True)
    hello = hello_of(fields_of(bytes.fromhex(MESSAGES["HELLO"])))
    assert (hello.name, hello.version, hello.process) == ("north", 1, "ab" * 16)
    refused = fields_of(bytes.fromhex(MESSAGES["REFUSED"]))
    assert "another version" in refused["why"]
    assert party_pb2.DESCRIPTOR.services_by_name["Party"].full_name == MESSAGES["service"]


@pytest.mark.parametrize("path", PLANS, ids=[path.stem for path in PLANS])
def test_a_plan_of_before_is_read_and_is_the_same_plan(path):
    """The first plans of every system: no key of theirs is gone, and what parties are bound by has kept its bytes."""
    documents = json.loads((path.parent / "documents.json").read_bytes())
    assert hashlib.sha256(read_plan(path).document().encode()).hexdigest() == documents[path.name]


def test_a_key_that_this_version_does_not_know_is_named_with_the_nearest(tmp_path):
    text = PLANS[0].read_text().replace("[privacy]", "[privacy]\nepsilom = 3", 1)
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(PlanError, match=r'there is no key \[privacy\] epsilom. Did you mean "epsilon"'):
        read_plan(tmp_path / "plan.toml")
