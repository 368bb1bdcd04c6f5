"""Pages of unfinished runs, of folders that hold none, and onto places that take none: nothing half-written."""

import errno
import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from aggregation.errors import IntegrityError
from coordinator import api
from coordinator.console.command import main
from coordinator.errors import RunError
from coordinator.page import exhibits, file
from coordinator.page.exhibits import Exhibit, Passage, Passages, shortened
from coordinator.page.file import write_page
from coordinator.store.store import FAILED, FINISHED, RESUMABLE, RunStore


@pytest.fixture
def store(tmp_path, monkeypatch, dped_tables):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    with closing(RunStore.create(tmp_path / "run", "1-demo", "demo", b"\0" * 32)) as found:
        document = {"run": {"recipe": "dped"}, "privacy": {"epsilon": 8.0}, "federation": {"parties": ["north"]}}
        found.note(
            document=json.dumps(document), plan={"run": {"recipe": "dped"}}, student=str(tmp_path / "run/student")
        )
        yield found


def reported(capsys, *arguments):
    code = main(["report", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out + err


def test_a_run_that_stopped_is_shown_as_far_as_it_came(store, tmp_path, capsys):
    with store.stage("join"):
        pass
    store.note(
        status=RESUMABLE, error=f"party north was lost at 10.0.0.1:7443, see {tmp_path}/log", parties={"north": "lost"}
    )
    code, said = reported(capsys, store.folder, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert (code, "page  " in said) == (0, True)
    assert "This run is not finished: it stopped, and can go on." in page
    assert "word embeddings" in page
    assert "coordinator resume 1-demo" in page
    for private in (str(tmp_path), "10.0.0.1"):
        assert private not in page


def test_a_run_that_has_not_begun_and_one_that_failed_have_pages(store, tmp_path):
    assert "No stage has begun." in api.page(store.folder)
    store.note(status=FAILED, error="party north refused: its policy")
    page = api.page(store.folder)
    assert "This run failed: nothing was published." in page
    assert "party north refused" in page
    assert "coordinator verify" not in page


def test_a_student_that_is_gone_is_missed(store):
    privacy = {"epsilon": None}
    store.note(status=FINISHED, metrics={})
    assert privacy["epsilon"] is None
    assert "The student&#39;s folder is no longer where it was published." in api.page(store.folder)


def test_a_folder_that_is_no_run_is_refused_and_nothing_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    code, said = reported(capsys, tmp_path, "--html", tmp_path / "page.html")
    assert code == 1
    assert "There is no run" in said
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("damage", [b"{", b'{"exhibits": 3}', b'{"exhibits": [{"title": "a"}]}', b"\xff"])
def test_damaged_exhibits_are_named_with_what_to_do(store, damage, tmp_path, capsys):
    (store.folder / "artefacts").mkdir(exist_ok=True)
    (store.folder / exhibits.KEPT).write_bytes(damage)
    code, said = reported(capsys, store.folder, "--html", tmp_path / "page.html")
    assert code == 1
    assert "is damaged" in " ".join(said.split())
    assert "Remove it to see the rest of the page." in " ".join(said.split())
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "fact", [{"parties": 3}, {"heard": [{"release": 1}]}, {"started": "long ago"}, {"document": "{"}, {"retries": [1]}]
)
def test_a_damaged_store_is_a_sentence(store, fact, tmp_path):
    store.note(**fact)
    with pytest.raises(RunError, match="damaged"):
        api.page(store.folder, file=tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_page_is_never_written_into_a_runs_or_a_students_folder(store, tmp_path):
    (tmp_path / "link").symlink_to(store.folder)
    for place in (store.folder / "page.html", store.folder / "student/page.html", tmp_path / "link/page.html"):
        with pytest.raises(RunError, match="Name a place outside"):
            api.page(store.folder, file=place)


def test_a_full_disk_leaves_what_was_there_and_nothing_half_written(tmp_path, monkeypatch):
    (tmp_path / "page.html").write_text("before")

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file.os, "fsync", full)
    with pytest.raises(RunError, match=r"No space left on device\. Nothing was left half-written"):
        write_page("x" * 100_000, tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert (tmp_path / "page.html").read_text() == "before"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_device_that_takes_nothing_is_a_sentence():
    with pytest.raises(RunError, match="cannot be written"):
        write_page("page", Path("/proc/page.html"))


def test_a_folder_and_a_missing_folder_are_named(tmp_path):
    with pytest.raises(RunError, match=r"is a folder\. Name a file"):
        write_page("page", tmp_path)
    with pytest.raises(RunError, match=r"is no folder\. Make it first"):
        write_page("page", tmp_path / "missing/page.html")


def test_beside_is_for_pages_and_for_comparisons_of_the_same_plan(store, tmp_path, capsys):
    assert main(["report", str(store.folder), "--beside", str(tmp_path)]) == 2
    assert "--beside needs --html" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_text_of_half_characters_is_kept_without_them(store):
    made = Exhibit(title="t", content=Passages(passages=[Passage(text=shortened("a\ud800b" * 400))]))
    exhibits.keep([made], store)
    (found,) = exhibits.kept(store)
    assert found.content.passages[0].text.startswith("a?ba?b")
    assert len(found.content.passages[0].text) == 600
    with pytest.raises((ValueError, IntegrityError)):
        Passage(text="\ud800")
