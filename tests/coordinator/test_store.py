"""The run store gives back what was put into it, says so when it cannot, and never shows half a file."""

import os
import sqlite3

import numpy as np
import pytest

from coordinator.errors import RunError
from coordinator.store import RunIndex, RunStore


@pytest.fixture
def index(tmp_path):
    return RunIndex(tmp_path / "home")


@pytest.fixture
def store(index):
    return index.add("demo", b"h" * 32, None)


def test_a_run_has_a_random_id_and_a_folder_of_its_own(index):
    one, other = (index.add("demo", b"h" * 32, None) for _ in range(2))
    assert one.id != other.id
    assert one.id.endswith("-demo")
    assert one.folder != other.folder


def test_runs_are_listed_newest_first_with_their_state(index, store):
    other = index.add("second", b"g" * 32, None)
    other.note(status="finished", epsilon=3.5)
    listed = index.entries()
    assert [entry.name for entry in listed] == ["second", "demo"]
    assert (listed[0].status, listed[0].epsilon) == ("finished", 3.5)
    assert (listed[1].status, listed[1].epsilon) == ("running", None)


def test_a_run_whose_process_is_gone_is_not_said_to_run(index, store):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    store.note(process=child)
    assert index.entries()[0].status == "interrupted"


def test_a_run_is_found_by_its_id_the_beginning_of_it_and_its_folder(index, store):
    for name in (store.id, store.id[:5], str(store.folder)):
        assert index.find(name).id == store.id
    with pytest.raises(RunError, match='no run "nothing"'):
        index.find("nothing")


def test_a_beginning_that_two_runs_share_is_not_guessed(index):
    index.add("demo", b"", None)
    index.add("demo", b"", None)
    with pytest.raises(RunError, match="Write more of it"):
        index.find("")


def test_a_folder_that_holds_a_run_takes_no_other(index, tmp_path):
    first = index.add("demo", b"", tmp_path / "out")
    with pytest.raises(RunError, match=f"holds a run already \\({first.id}\\)"):
        index.add("demo", b"", tmp_path / "out")


def test_a_folder_that_cannot_be_made_is_named(index, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file"):
        index.add("demo", b"", tmp_path / "file" / "run")


def test_an_index_that_is_no_database_is_named(tmp_path):
    (tmp_path / "runs.sqlite").write_text("this is not a database, and it is long enough to be noticed as none")
    with pytest.raises(RunError, match=r"runs.sqlite cannot be opened"):
        RunIndex(tmp_path).entries()


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
