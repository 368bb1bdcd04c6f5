"""`coordinator report` of runs that failed, stopped or were cancelled: why, and no student that was never made."""

import json
from contextlib import closing
from types import SimpleNamespace

import pytest

from coordinator.console import shown
from coordinator.console.command import main
from coordinator.publishing.report import render, statement_of
from coordinator.run.cancelling import cancelled
from coordinator.store.index import RunIndex


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def store(home):
    with closing(RunIndex().add("demo", b"h" * 32, None, run_id="7f3a-demo")) as store:
        store.note(student=str(home / "published"), base=str(home))
        with store.stage("prepare"):
            pass
        yield store


def reported(capsys):
    assert main(["report", "7f3a", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    return "\n".join(lines), json.loads(last)


@pytest.mark.parametrize("status", ["failed", "resumable", "cancelled"])
def test_a_run_that_did_not_finish_says_why_and_names_no_student(store, status, capsys, home):
    (home / "published").mkdir()  # somebody else's: this run published none
    store.note(status=status, error="party east was lost: no answer for 60 s")
    text, found = reported(capsys)
    assert "party east was lost: no answer for 60 s" in text
    assert "student" not in text
    assert (found["error"], found["student"]) == ("party east was lost: no answer for 60 s", None)


def test_a_run_that_was_killed_says_so(store, capsys):
    text, _ = reported(capsys)
    assert "run 7f3a-demo  resumable" in text
    assert (
        "its process ended without a word: it was killed, or its machine. Go on:  coordinator resume 7f3a-demo" in text
    )


def test_a_finished_run_names_its_student_where_it_is(store, capsys, home):
    store.note(status="finished")
    assert "student    no longer where it was published" in render(statement_of(store))
    (home / "published").mkdir()
    text, found = reported(capsys)
    assert f"student    {home / 'published'}" in text
    assert found["student"] == str(home / "published")
    assert found["error"] is None


@pytest.mark.parametrize("error", ["party east was lost", None])
def test_cancelling_keeps_why_a_run_had_stopped(store, capsys, error, monkeypatch):
    monkeypatch.setattr("coordinator.run.cancelling.leave", lambda *given: [])
    store.note(status="resumable", error=error)
    cancelled(store, None, None)
    text, found = reported(capsys)
    assert found["status"] == "cancelled"
    assert (error or "cancelled by its user.") in text


def test_lines_that_people_copy_are_quoted_for_a_shell(home, capsys, monkeypatch):
    assert main(["init", "my plan.toml"]) == 0
    assert "next: coordinator run 'my plan.toml'" in capsys.readouterr().out
    monkeypatch.setattr("coordinator.publishing.verdict.headline", lambda *given: "Better.")
    monkeypatch.setattr("coordinator.publishing.report.promise", lambda statement: "Nothing.")
    result = SimpleNamespace(
        run="7f3a-demo", student=home / "a student", authority=home / "it's.pem", neighbours={}, metrics={},
        verdict=SimpleNamespace(ok=True), statement=SimpleNamespace(privacy={"trust_means": []}),
    )  # fmt: skip
    shown._summary(result)
    *_, last = capsys.readouterr().out.splitlines()
    assert last == (
        f"next: coordinator report 7f3a-demo · coordinator verify '{home}/a student' --trust '{home}/it'\"'\"'s.pem'"
    )
