"""The run store gives back what was put into it, says so when it cannot, and never shows half a file."""

import os
import resource
import signal
import sqlite3
import subprocess
import time

import numpy as np
import pytest

from coordinator.errors import RunError
from coordinator.store import lease
from coordinator.store.index import RunIndex
from coordinator.store.store import RunStore


@pytest.fixture
def index(tmp_path):
    return RunIndex(tmp_path / "home")


@pytest.fixture
def store(index):
    return index.add("demo", b"h" * 32, None)


def in_a_child(act):
    """Run in a process of its own, which then dies at once."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os.kill(os.getpid(), 9)
    os.waitpid(child, 0)


def test_a_run_is_said_to_run_while_somebody_drives_it_and_no_longer(index, store):
    with lease.held(store):
        assert index.entries()[0].status == "running"
        assert str(os.getpid()) in store.driver()
    assert index.entries()[0].status == "resumable"


def test_two_cannot_drive_one_run_and_the_first_is_named(store):
    other = RunStore(store.folder)
    with lease.held(store):
        with pytest.raises(RunError, match=f"driven by process {os.getpid()} .*already"), lease.held(other):
            pass
        store.note(still="mine")
    with lease.held(other):
        other.note(still="the other's")


def test_a_killed_driver_is_followed_at_once_and_one_that_hangs_when_its_lease_ran_out(store):
    in_a_child(lambda: RunStore(store.folder).take("killed", 1000.0))
    store.take("next", -1.0)
    other = RunStore(store.folder)
    other.take("last", 1000.0)
    assert not store.renew(10.0)
    assert other.renew(10.0)


def test_a_killed_driver_is_followed_though_its_parent_has_not_asked_how_it_ended(store):
    child = os.fork()
    if child == 0:
        RunStore(store.folder).take("killed", 1000.0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        assert store.status() == "resumable"
        store.take("next", 1000.0)
    finally:
        os.waitpid(child, 0)


def test_a_driver_that_was_overtaken_writes_nothing_more(store):
    store.take("first", -1.0)
    other = RunStore(store.folder)
    other.take("second", 1000.0)
    with pytest.raises(RunError, match="another coordinator took this run over"):
        store.note(status="finished")
    with pytest.raises(RunError, match="took this run over"):
        store.put_block("counts", 0, 0, 1, np.zeros((1, 1), np.int64))
    store.let_go()
    assert other.fact("status") == "running"
    assert "process" in other.driver()


def test_a_lease_is_renewed_while_it_is_held(store, monkeypatch):
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.02)
    with lease.held(store), sqlite3.connect(store.folder / "run.sqlite") as connection:
        first = connection.execute("SELECT expires FROM lease").fetchone()

        def renewed():
            time.sleep(0.01)
            return connection.execute("SELECT expires FROM lease").fetchone() > first

        assert any(renewed() for _ in range(2000)), "it was not renewed in twenty seconds"


def test_a_run_that_was_killed_while_it_was_made_is_no_run(index, tmp_path, monkeypatch):
    def make():
        monkeypatch.setattr(RunStore, "note", lambda *_, **__: os.kill(os.getpid(), 9))
        index.add("demo", b"", tmp_path / "out")

    in_a_child(make)
    assert (tmp_path / "out/run.sqlite").exists()
    assert index.entries() == []
    assert index.add("demo", b"", tmp_path / "out").id == index.entries()[0].id


def test_a_sum_knows_its_parties_and_drops_the_blocks_of_others(store):
    block = np.zeros((1, 3), np.int64)
    assert store.begin_sum("counts", ["north", "south"]) == frozenset()
    store.put_block("counts", 4, 0, 1, block)
    assert store.begin_sum("counts", ["south", "north"]) == {4}
    assert store.summed("counts") == ("north", "south")
    assert store.begin_sum("counts", ["north"]) == frozenset()
    assert store.block_counts() == {}


def test_a_disk_that_takes_no_more_is_said_in_a_sentence_and_nothing_is_lost(store):
    store.note(before="kept")

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        filled = RunStore(store.folder)
        with pytest.raises(RunError, match=r"cannot be written: .*resume") as sentence:
            filled.note(large="x" * 100_000)
        with pytest.raises(RunError, match=r"cannot be written: File too large"):
            filled.put_block("counts", 0, 0, 9000, np.zeros((9000, 3), np.int64))
        (store.folder / "said").write_text(str(sentence.value))

    in_a_child(fill)
    assert "sound" in (store.folder / "said").read_text()
    assert store.fact("before") == "kept"
    assert store.fact("large") is None
    assert not list((store.folder / "blocks/counts").iterdir())
    store.note(large="x" * 100_000)


def test_blocks_come_back_in_row_order_and_a_batch_stored_again_replaces_itself(store):
    blocks = np.arange(12, dtype=np.int64).reshape(4, 3)
    store.put_block("counts", 1, 2, 4, blocks[2:])
    store.put_block("counts", 0, 0, 2, blocks[:2] + 100)
    store.put_block("counts", 0, 0, 2, blocks[:2])
    found = list(store.blocks("counts"))
    assert [(start, stop) for start, stop, _ in found] == [(0, 2), (2, 4)]
    assert np.array_equal(np.vstack([block for _, _, block in found]), blocks)


def test_a_damaged_block_is_noticed(store):
    store.put_block("counts", 0, 0, 1, np.zeros((1, 3), np.int64))
    path = store.folder / "blocks/counts/000000.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(RunError, match=r"000000.npy is damaged"):
        list(store.blocks("counts"))


def test_a_stage_that_raises_stays_unfinished(store):
    with store.stage("one") as result:
        result["x"] = 1
    with pytest.raises(ZeroDivisionError), store.stage("two"):
        1 / 0  # noqa: B018
    (_, end_one, result_one), (_, end_two, result_two) = store.stages().values()
    assert end_one is not None
    assert result_one == {"x": 1}
    assert end_two is None
    assert result_two is None


def test_facts_survive_another_opening(store):
    store.note(metrics={"perplexity": 1.5}, nothing=None)
    store.close()
    again = RunStore(store.folder)
    assert again.fact("metrics") == {"perplexity": 1.5}
    assert again.fact("nothing") is None
    assert again.fact("never written") is None


def test_a_file_that_cannot_be_written_leaves_nothing_behind(store):
    (store.folder / "taken").mkdir()
    with pytest.raises(RunError, match=r"taken cannot be written"):
        store.write("taken", b"x")
    assert [path.name for path in store.folder.iterdir() if "part" in path.name] == []


def test_two_that_write_one_file_at_once_never_write_into_each_others(store, monkeypatch):
    inner = os.fsync

    def meanwhile(descriptor):
        monkeypatch.setattr(os, "fsync", inner)
        assert store.write("blocks/both", b"of the other, and longer").read_bytes() == b"of the other, and longer"
        inner(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    path = store.write("blocks/both", b"of the one")
    assert path.read_bytes() == b"of the one"
    assert [each.name for each in path.parent.iterdir()] == ["both"]


def test_what_a_killed_driver_was_writing_goes_when_the_run_is_driven_again(store):
    store.put_block("answers", 0, 0, 1, np.zeros((1, 2), np.int64))
    beside = store.folder / "blocks/answers/.000001.npy.0123456789abcdef.part"
    beside.write_bytes(b"half a blo")
    with lease.held(store):
        assert not beside.exists()
        assert len(list(store.blocks("answers"))) == 1


def test_the_database_survives_a_writer_that_was_killed_in_a_transaction(store):
    child = os.fork()
    if child == 0:
        connection = sqlite3.connect(store.folder / "run.sqlite")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO facts VALUES ('half', '1')")
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    store.note(whole=1)
    assert store.fact("half") is None
    assert store.fact("whole") == 1


def test_a_disk_that_is_read_only_is_said_in_a_sentence(store, tmp_path):
    store.note(before="kept")
    store.close()
    place = tmp_path / "mounted"
    place.mkdir()
    bound = subprocess.run(["mount", "--bind", "-o", "ro", store.folder, place], capture_output=True)
    if bound.returncode:
        pytest.skip("a folder cannot be mounted read-only here")
    try:
        with pytest.raises(RunError, match=r"cannot be written: .*(readonly|unable to open).*resume"):
            RunStore(place).note(after="lost")
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
    assert RunStore(store.folder).fact("before") == "kept"


def test_a_sum_that_is_dropped_is_gone_and_whose_it_was_stays_known(store):
    for release in ("steps.0", "steps.1"):
        store.begin_sum(release, ["north", "south"])
        store.put_block(release, 0, 0, 1, np.full((1, 3), 7, np.int64))
    store.drop_blocks("steps.0")
    store.drop_blocks("steps.0")
    assert list(store.blocks("steps.0")) == []
    assert store.block_counts() == {"steps.1": 1}
    assert store.summed("steps.0") == ("north", "south")
    assert [path.parent.name for path in store.folder.rglob("*.npy")] == ["steps.1"]
    assert store.begin_sum("steps.0", ["north", "south"]) == frozenset()
    store.drop_blocks("unknown")


def test_a_dropped_sum_whose_file_is_gone_already_is_no_matter(store):
    store.begin_sum("steps.0", ["north"])
    store.put_block("steps.0", 0, 0, 1, np.zeros((1, 3), np.int64))
    (path,) = store.folder.rglob("*.npy")
    path.unlink()
    store.drop_blocks("steps.0")
    assert store.block_counts() == {}
