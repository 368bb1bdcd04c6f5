"""The processes of submissions: started, taken up again after a death, and never in each other's way."""

import asyncio
import sys

import pytest

from coordinator.errors import RunError
from coordinator.serving import child as children
from coordinator.serving import runner as runners
from coordinator.serving.admitting import admitted
from coordinator.serving.runner import Runner
from coordinator.serving.submissions import CANCELLED, FAILED, QUEUED, RUNNING


@pytest.fixture
async def runner(config, located, submissions):
    made = Runner(config(), located, submissions)
    yield made
    for child in made._children.values():
        child.kill()
    await made.close()


@pytest.fixture
def sleeping(monkeypatch):
    monkeypatch.setattr(children, "COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))


@pytest.fixture
def add(plan, config, located, submissions):
    """`add(*parties, seed)`: a submission in the queue."""

    def adds(*parties, seed=1):
        text = plan(*parties, seed=seed)
        return submissions.add(text, admitted(text, config(), located), "ann")

    return adds


async def until(true, seconds=120.0):
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.02)


async def test_a_bug_that_one_plan_shows_keeps_no_other_from_starting(runner, add, submissions, sleeping, monkeypatch):
    first, second = add("north"), add("south", seed=2)

    def admits(text, config, located):
        if text == first.plan:
            raise ZeroDivisionError
        return admitted(text, config, located)

    monkeypatch.setattr(runners, "admitted", admits)
    await runner._start_some()
    assert (submissions.get(first.id).state, submissions.get(second.id).state) == (FAILED, RUNNING)
    assert "its own log says why" in submissions.get(first.id).why


async def test_a_plan_that_the_file_takes_no_more_fails_in_words(runner, add, submissions, located):
    made = add("north")
    (located.public / "public.jsonl").unlink()
    await runner._start_some()
    found = submissions.get(made.id)
    assert found.state == FAILED
    assert "takes this plan no more: [vocabulary] source" in found.why


async def test_what_lives_is_followed_again_and_what_died_is_queued(runner, add, submissions, located, sleeping):
    lives, died = add("north"), add("south", seed=2)
    for each in (lives, died):
        submissions.change(each.id, state=RUNNING)
    child = children.start(runner.folder(lives), located.keep, [])
    runner.recover()
    assert (submissions.get(lives.id).state, submissions.get(died.id).state) == (RUNNING, QUEUED)
    assert submissions.get(died.id).tries == 0, "its coordinator's death is not its own"
    await runner._start_some()
    assert submissions.get(lives.id).state == RUNNING
    assert children.process_of(runner.folder(lives)) == child.own.pid
    child.kill()
    child.own.wait()
    await until(lambda: submissions.get(lives.id).state == QUEUED)
    assert submissions.get(lives.id).tries == 1


async def test_a_cancellation_that_is_on_disk_is_carried_out_at_the_next_start(runner, add, submissions):
    made = add("north")
    submissions.change(made.id, cancelling=1)
    await runner._start_some()
    assert submissions.get(made.id).state == QUEUED, "it is not started meanwhile"
    runner.recover()
    assert submissions.get(made.id).state == CANCELLED


async def test_one_that_runs_and_asked_nobody_yet_is_cancelled(runner, add, submissions, sleeping):
    made = add("north")
    await runner._start_some()
    runner.cancel(submissions.get(made.id))
    assert submissions.get(made.id).cancelling
    await until(lambda: submissions.get(made.id).state == CANCELLED)
    assert "nothing was spent" in submissions.get(made.id).why
    await until(lambda: not runner._children)


async def test_a_drain_that_is_hurried_kills_what_does_not_stop(runner, add, submissions, monkeypatch):
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    stubborn = f"{deaf}; print('up', flush=True); time.sleep(60)"
    monkeypatch.setattr(children, "COMMAND", (sys.executable, "-c", stubborn))
    monkeypatch.setattr(runners, "AT_ONCE_SECONDS", 0.5)
    made = add("north")
    await runner._start_some()
    await until(lambda: "up" in (runner.folder(made) / children.LOG).read_text())
    draining = asyncio.create_task(runner.drain())
    await asyncio.sleep(0.1)
    runner.at_once()
    await asyncio.wait_for(draining, 10)
    assert submissions.get(made.id).state == QUEUED, "it goes on at the next start"
    assert not children.alive(runner.folder(made))


async def test_where_the_disk_takes_no_word_the_outcome_is_written_later(
    runner, add, submissions, sleeping, monkeypatch
):
    monkeypatch.setattr(runners, "QUEUE_SECONDS", 0.05)
    made = add("north")
    await runner._start_some()
    change, refused = submissions.change, []

    def full(*given, **columns):
        refused.append(columns)
        raise RunError("the disk is full.")

    monkeypatch.setattr(submissions, "change", full)
    runner._children[made.id].kill()
    await until(lambda: len(refused) > 2)
    monkeypatch.setattr(submissions, "change", change)
    await until(lambda: submissions.get(made.id).state == QUEUED)
