"""What becomes of a submission when its process ends, however it ends."""

import os
import signal
import sys
from contextlib import closing

import pytest

from coordinator.errors import RunError
from coordinator.serving import child as children
from coordinator.serving.child import LOG, RUN, Child, alive, last_words, process_of, told
from coordinator.serving.outcome import MOST_TRIES, outcome, spent
from coordinator.serving.submissions import CANCELLED, FAILED, FINISHED, QUEUED, STOPPED
from coordinator.store import store as runs
from coordinator.store.store import RunStore
from protos.console.explaining import divided


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    return tmp_path / "sub"


@pytest.fixture
def store(folder):
    """The store of a run that began."""
    with closing(RunStore.create(folder / RUN, "1a2b-letters", "letters", b"\1" * 32)) as made:
        made.note(plan={})
        yield made


def became(folder, code, tries=0, reached=0, draining=False):
    return outcome(folder, code, tries, reached, draining=draining, hidden=(folder.parent,))


@pytest.mark.parametrize(
    ("status", "state"), [(runs.FINISHED, FINISHED), (runs.CANCELLED, CANCELLED), (runs.RESUMABLE, STOPPED)]
)
def test_the_runs_own_word_counts(folder, store, status, state):
    store.note(status=status, error=None)
    assert became(folder, 1).state == state


def test_a_run_that_failed_before_anything_was_spent_has_failed_and_another_can_go_on(folder, store):
    store.note(status=runs.FAILED, error="party north refused to join: its policy")
    assert became(folder, 1).state == FAILED
    assert not spent(folder)
    with store.stage("train"):
        pass
    assert spent(folder)
    found = became(folder, 1)
    assert (found.state, found.why) == (STOPPED, "party north refused to join: its policy")
    store.note(code="C505")
    assert divided(became(folder, 1).why) == ("party north refused to join: its policy", "C505")


def test_a_process_that_is_killed_is_started_again_a_few_times(folder, store):
    store.note(status=runs.RUNNING)
    found = became(folder, None)
    for _ in range(MOST_TRIES - 2):
        found = became(folder, -signal.SIGKILL, found.tries, found.reached)
        assert found.state == QUEUED
    ended = became(folder, -signal.SIGKILL, found.tries, found.reached)
    assert ended.state == STOPPED
    assert "ended 3 times on its own" in ended.why
    with store.stage("train"):
        pass
    further = became(folder, -signal.SIGKILL, found.tries, found.reached)
    assert (further.state, further.tries) == (QUEUED, 1), "one that gets further is started again without end"
    assert became(folder, None).state == QUEUED, "one of an earlier coordinator, whose exit nobody saw"


def test_a_run_that_this_coordinators_end_stopped_goes_on_later(folder, store):
    store.note(status=runs.RESUMABLE, error="stopped by its user")
    assert became(folder, 130, draining=True).state == QUEUED
    assert became(folder, -signal.SIGKILL, draining=True).state == QUEUED
    assert became(folder, 130).state == STOPPED
    store.note(status=runs.RESUMABLE, error="party north was lost: it does not answer")
    assert became(folder, 1, draining=True).state == STOPPED, "it stopped by itself, and says why"


def test_a_process_without_a_run_spent_nothing_and_its_last_words_say_why(folder):
    (folder / LOG).write_text(f"one\n\nplan.toml: {folder.parent}/x is wrong.\n\x1b[31m")
    found = became(folder, 2)
    assert found.state == FAILED
    assert "plan.toml: x is wrong." in found.why
    assert str(folder.parent) not in found.why
    assert "\x1b" not in found.why
    assert became(folder, -signal.SIGKILL).state == QUEUED
    assert "nothing was spent" in became(folder, -signal.SIGKILL, MOST_TRIES - 1).why


def test_a_damaged_store_stops_a_submission_and_nothing_else(folder, store):
    store.note(status=runs.RUNNING)
    store.close()
    path = folder / RUN / "run.sqlite"
    path.write_bytes(b"no database" * 500)
    assert became(folder, 1).state == STOPPED


def test_sentences_say_what_a_submitter_can_do_and_no_path_of_this_machine(folder):
    said = told(f"see {folder}/run. When it is back:  coordinator resume 7f3a-x", folder)
    assert said == "see run. When it is back: submit the plan again"


def test_last_words_of_a_huge_log_are_its_last(folder):
    (folder / LOG).write_bytes(b"x" * 100_000 + b"\nthe end.\n")
    assert last_words(folder).endswith("the end.")
    assert len(last_words(folder)) < 9_000


SLEEPER = "import time; time.sleep(60)"


@pytest.fixture
def sleeping(monkeypatch):
    monkeypatch.setattr(children, "COMMAND", (sys.executable, "-c", SLEEPER))


def test_a_submission_has_one_process_whoever_asks(folder, sleeping, tmp_path):
    first = children.start(folder, tmp_path, [])
    try:
        assert alive(folder)
        assert process_of(folder) == first.own.pid
        with pytest.raises(RunError, match="has a process already"):
            children.start(folder, tmp_path, [])
        adopted = Child(folder)
        assert not adopted.ended
        adopted.kill()
        first.own.wait()
        assert adopted.ended
        assert adopted.code is None
        assert process_of(folder) is None
    finally:
        first.own.kill()
        first.own.wait()
    assert not alive(folder)


def test_the_process_holds_its_lock_when_its_coordinator_is_killed(folder, sleeping, tmp_path):
    coordinator = os.fork()
    if not coordinator:
        children.start(folder, tmp_path, [])
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(coordinator, 0)[1] == signal.SIGKILL
    assert alive(folder)
    Child(folder).kill()
    while alive(folder):
        pass


def test_the_folder_that_a_process_works_in_is_empty(folder, sleeping, tmp_path):
    child = children.start(folder, tmp_path, [])
    child.kill()
    child.own.wait()
    assert list((folder / "work").iterdir()) == []
