"""The index finds every run of this user, whatever it is called by, and gives no folder away twice."""

import re

import pytest

from coordinator.errors import RunError
from coordinator.store.index import RunIndex


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


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("Ward 3: Notes", "-ward-3-notes"),
        ("Prüfung (2)", "-prufung-2"),
        ("病院", "-run"),
        ("x" * 80, "-" + "x" * 40),
    ],
)
def test_a_run_is_called_as_people_write_it_and_its_id_fits_a_folder_and_the_wire(index, name, end):
    store = index.add(name, b"h" * 32, None)
    assert store.id.endswith(end)
    assert re.fullmatch(r"[a-z0-9-]{1,64}", store.id)
    assert index.entries()[0].name == name


def test_runs_are_listed_newest_first_with_their_state(index, store):
    other = index.add("second", b"g" * 32, None)
    other.note(status="finished", epsilon=3.5)
    listed = index.entries()
    assert [entry.name for entry in listed] == ["second", "demo"]
    assert (listed[0].status, listed[0].epsilon) == ("finished", 3.5)
    assert (listed[1].status, listed[1].epsilon) == ("resumable", None)


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
