"""The submissions on disk, and which of them may start."""

import os
import signal
import sqlite3

import pytest

from coordinator.errors import RunError
from coordinator.serving.admitting import Admitted
from coordinator.serving.scheduling import before, startable
from coordinator.serving.submissions import FAILED, FINISHED, QUEUED, RUNNING, Submissions


def plan_for(*asks, digest="d"):
    return Admitted(digest, "letters", "dped", asks, "", ())


def test_a_submission_is_there_after_the_process_that_made_it_was_killed(located):
    process = os.fork()
    if not process:
        kept = Submissions(located.keep)
        made = kept.add("the plan", plan_for("north"), "ann")
        kept.change(made.id, state=RUNNING)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
    kept = Submissions(located.keep)
    (found,) = kept.in_states(RUNNING)
    assert (found.plan, found.asks, found.submitters) == ("the plan", ("north",), ("ann",))
    kept.close()


def test_files_of_the_queue_are_their_owners_alone(submissions, located):
    submissions.add("the plan", plan_for("north"), "ann")
    assert all(path.stat().st_mode & 0o077 == 0 for path in located.keep.glob("submissions.sqlite*"))


def test_a_store_of_a_newer_version_is_left_alone(located):
    kept = Submissions(located.keep)
    kept.close()
    with sqlite3.connect(located.keep / "submissions.sqlite") as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(RunError, match="newer version of Conclave"):
        Submissions(located.keep)


def test_two_runs_never_ask_one_party_and_nobody_is_overtaken_for_ever(submissions):
    first, second, third, fourth = (
        submissions.add("", plan_for(*asks), "ann")
        for asks in (("north", "south"), ("south", "east"), ("east",), ("west",))
    )
    assert startable([first, second, third, fourth], [], 4) == [first, fourth], "third waits behind second for east"
    assert startable([second, third], [first], 4) == []
    assert startable([second, third], [fourth], 4) == [second]
    assert startable([third], [first], 4) == [third]


def test_no_more_runs_go_on_at_once_than_the_file_says(submissions):
    made = [submissions.add("", plan_for(name), "ann") for name in ("a", "b", "c")]
    assert startable(made, [], 2) == made[:2]
    assert startable(made[2:], made[:2], 2) == []
    assert before(made[2], made) == 2


def test_only_failures_that_had_no_run_are_forgotten(submissions, monkeypatch):
    monkeypatch.setattr("coordinator.serving.submissions.KEPT_FAILURES", 2)
    made = [submissions.add("", plan_for("north"), "ann") for _ in range(6)]
    for each in made[:5]:
        submissions.change(each.id, state=FAILED)
    submissions.change(made[5].id, state=FINISHED)
    assert submissions.forget([made[0].id]) == [made[1].id, made[2].id]
    assert {each.id for each in submissions.latest(10)} == {made[number].id for number in (0, 3, 4, 5)}


def test_a_submitter_sees_its_own(submissions):
    ann = submissions.add("", plan_for("north"), "ann")
    submissions.add("", plan_for("north", digest="e"), "bob")
    assert [each.id for each in submissions.of_submitter("ann", 10)] == [ann.id]
    assert submissions.of_submitter("an", 10) == []
    submissions.join(ann, "bob")
    assert len(submissions.of_submitter("bob", 10)) == 2
    assert submissions.get(ann.id).submitters == ("ann", "bob")
    assert submissions.counts() == {QUEUED: 2}
