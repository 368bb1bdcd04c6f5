"""The run store after damage: its index, its database, its facts and its blocks are read, or refused in a sentence."""

import hashlib
import json
import shutil
import sqlite3
import time
from contextlib import closing
from io import BytesIO

import numpy as np
import pytest

from coordinator import api
from coordinator.errors import PlanError, RunError
from coordinator.store.index import RunIndex
from coordinator.store.store import RunStore, holds_run
from coordinator.store.watching import look, render
from coordinator.systems.registry import plan_of

BLOCKS = np.arange(12, dtype=np.int64).reshape(4, 3)
PLAN = {
    "run": {"name": "demo", "recipe": "dped", "seed": 7},
    "privacy": {"epsilon": 6.0, "delta": 1e-6},
    "federation": {"launch": "connect", "parties": [{"name": "north", "address": "127.0.0.1:7443"}]},
    "vocabulary": {"source": "public.jsonl", "size": 30},
}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run's folder with a little of everything in it, one file of it."""
    folder = tmp_path_factory.mktemp("store") / "run"
    index = RunIndex(folder.parent / "home")
    with closing(index.add("demo", b"h" * 32, folder)) as store:
        store.note(plan=plan_of(PLAN).model_dump(mode="json"), document="{}", base=str(folder), path=None)
        store.note(parties={"north": "trained"}, bars={"counts": [1, 2, "rows"]}, seen=1.0, epsilon=3.5, error="none")
        with store.stage("train") as result:
            result["parties"] = ["north"]
        store.begin_sum("counts", ["north", "south"])
        store.put_block("counts", 0, 0, 2, BLOCKS[:2])
        store.put_block("counts", 1, 2, 4, BLOCKS[2:])
        store.take("somebody", 1000.0)
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")
    return folder


def looked_at(hostile, folder):
    """All that is read of a run, each thing by itself: what there is, or a sentence."""
    tried(hostile, lambda: holds_run(folder))
    try:
        store = RunStore(folder)
    except RunError as error:
        hostile.check_sentence(error)
        return
    with closing(store):
        for act in (
            lambda: store.id,
            store.status,
            store.driver,
            store.stages,
            store.block_counts,
            lambda: store.finished("train"),
            lambda: store.summed("counts"),
            lambda: [store.fact(key) for key in ("plan", "bars", "parties", "seen", "epsilon", "base")],
            lambda: blocks_of(store),
            lambda: render(look(store)),
            lambda: store.renew(10.0),
            lambda: store.begin_sum("counts", ["north", "south"]),
        ):
            tried(hostile, act)
    for act in (api.report, api.cancel, api.resume):
        tried(hostile, lambda act=act: act(folder))


def tried(hostile, act):
    try:
        return act()
    except (RunError, PlanError) as error:
        hostile.check_sentence(error)


def blocks_of(store):
    for start, stop, block in store.blocks("counts"):
        assert block.dtype == np.int64
        assert len(block) == stop - start


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """No run goes on anywhere: whatever would contact a party stops before it."""
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))

    def nothing(*given, **named):
        raise RunError("this is as far as the tests go.")

    for name in ("own_identity", "prepared", "cancelled"):
        monkeypatch.setattr(api, name, nothing)


@pytest.mark.slow
def test_a_damaged_database_is_read_or_said_to_be_damaged(fuzz, hostile, original, tmp_path, alone):
    content = (original / "run.sqlite").read_bytes()
    folder = shutil.copytree(original, tmp_path / "run")

    @fuzz(hostile.damaged(content), share=0.5)
    def _(damaged):
        for each in folder.glob("run.sqlite*"):
            each.unlink()
        (folder / "run.sqlite").write_bytes(damaged)
        looked_at(hostile, folder)


@pytest.mark.slow
def test_damaged_rows_are_read_or_said_to_be_damaged(fuzz, hostile, original, tmp_path, alone):
    folder = shutil.copytree(original, tmp_path / "run")
    content = (original / "run.sqlite").read_bytes()
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection:
        facts = [json.loads(value) for (value,) in connection.execute("SELECT value FROM facts ORDER BY key")]
        columns = [
            (table, column[1])
            for table in ("facts", "stages", "blocks", "sums", "lease")
            for column in connection.execute(f"PRAGMA table_info({table})")
        ]

    def make(rng):
        changes = []
        for _ in range(rng.randint(1, 3)):
            table, column = rng.choice(columns)
            value = rng.choice(
                [
                    None,
                    b"\xff\xfe",
                    rng.choice(hostile.NUMBERS[:12]),
                    rng.choice(hostile.FLOATS + hostile.ODD_FLOATS),
                    rng.choice([name for name in hostile.NAMES if "\udc80" not in name]),
                    hostile.as_text(hostile.odd_value(rng.randrange(1000))).decode(),
                    "[" * 100_000,
                    hostile.as_text(hostile.damage_json(rng, *facts)).decode(),
                ]
            )
            changes.append((table, column, value, rng.randrange(20)))
        return changes

    @fuzz(hostile.made(make), share=0.3)
    def _(changes):
        for each in folder.glob("run.sqlite*"):
            each.unlink()
        (folder / "run.sqlite").write_bytes(content)
        with closing(sqlite3.connect(folder / "run.sqlite")) as connection, connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            for table, column, value, place in changes:
                try:
                    connection.execute(
                        f"UPDATE {table} SET {column} = ? WHERE rowid = "
                        f"(SELECT rowid FROM {table} LIMIT 1 OFFSET ? % (SELECT COUNT(*) FROM {table}))",
                        (value, place),
                    )
                except sqlite3.IntegrityError:
                    continue
        looked_at(hostile, folder)


def test_a_damaged_block_is_never_believed(fuzz, hostile, original, tmp_path):
    folder = shutil.copytree(original, tmp_path / "run")
    path = folder / "blocks/counts/000000.npy"
    content = path.read_bytes()
    store = RunStore(folder)

    @fuzz(hostile.damaged(content), share=0.5)
    def _(damaged):
        path.write_bytes(damaged)
        found = tried(hostile, lambda: list(store.blocks("counts")))
        assert found is None or np.array_equal(found[0][2], BLOCKS[:2])

    store.close()


def test_a_block_that_is_what_its_row_says_and_yet_no_block_is_refused(fuzz, hostile, original, tmp_path):
    folder = shutil.copytree(original, tmp_path / "run")
    path = folder / "blocks/counts/000000.npy"
    valid = [path.read_bytes()]
    for odd in (
        np.zeros(3),
        np.zeros((2, 3), ">i8"),
        np.zeros((2, 3), "i4"),
        np.array("x" * 99),
        np.zeros((0, 3), int),
    ):
        held = BytesIO()
        np.save(held, odd)
        valid.append(held.getvalue())
    valid += [valid[0].replace(b"(2, 3)", shape) for shape in (b"(2,99999999999)", b"(2, -3)", b"(2, 3,)", b"(((((")]
    store = RunStore(folder)

    @fuzz(hostile.damaged(*valid), share=0.5)
    def _(damaged):
        path.write_bytes(damaged)
        with store.transaction() as transaction:
            transaction.execute("UPDATE blocks SET sha256 = ? WHERE batch = 0", (hashlib.sha256(damaged).hexdigest(),))
        tried(hostile, lambda: blocks_of(store))

    store.close()


@pytest.mark.slow
def test_a_damaged_index_is_read_or_said_to_be_damaged(fuzz, hostile, original, tmp_path):
    home = shutil.copytree(original.parent / "home", tmp_path / "home")
    content = (home / "runs.sqlite").read_bytes()

    def make(rng):
        if rng.random() < 0.6:
            return hostile.damage(rng, content)
        odd = [None, b"\xff\xfe", -1, 1e300, "a\0b", "x" * 5000, "~nobody-here", str(original), "\x1b[2J"]
        return [rng.choice(odd) for _ in range(4)]

    @fuzz(hostile.made(make), share=0.2)
    def _(damaged):
        for each in home.glob("runs.sqlite*"):
            each.unlink()
        (home / "runs.sqlite").write_bytes(content if isinstance(damaged, list) else damaged)
        if isinstance(damaged, list):
            with closing(sqlite3.connect(home / "runs.sqlite")) as connection, connection:
                for column, value in zip(("id", "name", "folder", "plan_hash"), damaged, strict=True):
                    if value is not None:
                        connection.execute(f"UPDATE runs SET {column} = ?", (value,))
        tried(hostile, RunIndex(home).entries)
        for run in ("demo", "", "a\0b", "x" * 5000):
            tried(hostile, lambda run=run: RunIndex(home).find(run).close())
        tried(hostile, lambda: RunIndex(home).add("demo", b"h", tmp_path / f"new-{time.monotonic_ns()}").close())


@pytest.mark.parametrize(
    ("change", "act"),
    [
        ("UPDATE lease SET expires = 'soon'", RunStore.status),
        ("UPDATE lease SET host = x'fffe'", RunStore.driver),
        ("UPDATE facts SET value = '{' WHERE key = 'plan'", api.cancel),
        ("UPDATE facts SET value = '{\"run\": 1}' WHERE key = 'plan'", api.resume),
        ("UPDATE facts SET value = '3' WHERE key = 'base'", api.cancel),
        ("UPDATE facts SET value = '\"\\u001b[2J\"' WHERE key = 'id'", api.report),
        ("UPDATE stages SET result = '['", RunStore.stages),
        ("UPDATE stages SET finished = 9e999", look),
        ("UPDATE facts SET value = '{\"counts\": 1}' WHERE key = 'bars'", look),
        ("UPDATE sums SET parties = '3'", lambda store: store.summed("counts")),
        ("UPDATE sums SET parties = '{'", lambda store: store.begin_sum("counts", ["north"])),
        ("UPDATE blocks SET file = '../nothing'", lambda store: list(store.blocks("counts"))),
        ("UPDATE blocks SET file = 'a' || char(0) || 'b'", lambda store: list(store.blocks("counts"))),
        ("UPDATE blocks SET stop = 'x'", lambda store: list(store.blocks("counts"))),
        ("UPDATE blocks SET stop = 9", lambda store: list(store.blocks("counts"))),
    ],
)
def test_each_kind_of_damage_to_a_row_is_told_in_a_sentence(hostile, original, tmp_path, alone, change, act):
    folder = shutil.copytree(original, tmp_path / "run")
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection, connection:
        connection.execute(change)
    with closing(RunStore(folder)) as store, pytest.raises(RunError, match="damaged") as caught:
        act(folder if act in (api.cancel, api.resume, api.report) else store)
    hostile.check_sentence(caught.value)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "\x1b[2J"])
def test_a_run_of_an_odd_name_is_not_there(hostile, tmp_path, name):
    with pytest.raises(RunError, match="no run") as caught:
        RunIndex(tmp_path).find(name)
    hostile.check_sentence(caught.value)
