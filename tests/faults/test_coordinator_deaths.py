"""The coordinator dies: `coordinator resume RUN` comes to the undisturbed run's student; nothing is paid twice."""

import os
import signal
import subprocess
import time
from contextlib import suppress

import numpy as np
import pytest

pytestmark = pytest.mark.slow

POINTS = int(os.environ.get("CONCLAVE_FAULT_POINTS", "1"))
"""How many random points of each kind."""
BEFORE = ("prepare", "price", "start")
STAGES = ("join", "provide", "train", "aggregate", "attest", "distil", "evaluate", "publish")


@pytest.fixture
def output(request):
    """A folder of this test's own for its run."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


@pytest.fixture
def checked(scenes, calm, undisturbed, output):
    """Checks that a run finished as the undisturbed one, and left nothing."""

    def check(coordinator):
        code, said = calm.outcome(coordinator)
        assert code == 0, said
        run = scenes.last_json(said)["run"]
        assert calm.differs(undisturbed, run, output) == []
        assert calm.left() == []
        assert "Traceback" not in said

    return check


def killed(scenes, coordinator):
    assert coordinator.wait(scenes.SECONDS) == -signal.SIGKILL


def test_the_stages_of_a_run_are_those_that_it_is_killed_at(calm, undisturbed):
    """But for those before the run has a store: killed there, nothing was asked, and the run starts anew."""
    assert tuple(each for each in calm.stages("undisturbed") if each not in BEFORE) == STAGES


@pytest.mark.parametrize("stage", STAGES)
def test_killed_when_a_stage_begins_and_again_when_it_ends(scenes, calm, checked, output, stage):
    began = ("coordinator.store.store:RunStore._begin", "after", "1", "--given", stage)
    ended = ("coordinator.store.store:RunStore._finish", "before", "1", "--given", stage)
    passed = ("coordinator.store.store:RunStore._finish", "after", "1", "--given", stage)
    killed(scenes, calm.run(calm.plan(), *began, output=output))
    run = calm.started(output)
    killed(scenes, calm.resume(run, *ended))
    killed(scenes, calm.resume(run, *passed))
    checked(calm.resume(run))


BLOCKS = {
    "before a block is written": ("coordinator.store.store:RunStore.put_block", "before", 4),
    "when a block is written, before it is noted": ("coordinator.store.store:RunStore.write", "after", 7),
    "after a block is stored": ("coordinator.store.store:RunStore.put_block", "after", 8),
}


@pytest.mark.parametrize("when", BLOCKS)
def test_killed_between_blocks(scenes, calm, checked, output, when):
    killed(scenes, calm.run(calm.plan(), *map(str, BLOCKS[when]), output=output))
    stored = calm.stored(output)
    run = calm.started(output)
    assert 0 < stored < scenes.BLOCKS
    checked(calm.resume(run))


def test_killed_while_the_student_is_written(scenes, calm, checked, output):
    killed(scenes, calm.run(calm.plan(), "coordinator.systems.dped.student:_parameters", "before", "1", output=output))
    checked(calm.resume(calm.started(output)))


@pytest.mark.parametrize("when", ["in training", "between blocks"])
def test_interrupted_once_it_stops_and_says_how_to_go_on(scenes, calm, checked, output, when):
    where = {
        "in training": ("coordinator.federation.federation:Federation.train", "before", "1", "--signal", "INT"),
        "between blocks": ("coordinator.store.store:RunStore.put_block", "before", "4", "--signal", "INT"),
    }
    code, said = calm.outcome(calm.run(calm.plan(), *where[when], output=output))
    assert code in (1, 130), said
    run = scenes.next_command(said)
    assert calm.started(output) == run
    assert calm.stored(output) == (4 if when == "between blocks" else 0), "the block in hand is finished"
    assert calm.left() == []
    checked(calm.resume(run))


def test_one_that_stands_still_drives_its_run_nonetheless(scenes, calm, checked, output):
    stop = ("coordinator.store.store:RunStore.put_block", "before", "4", "--signal", "STOP")
    standing = calm.run(calm.plan(), *stop, output=output)
    scenes.until(lambda: scenes.stopped(standing), "the coordinator stands still")
    run = calm.started(output)
    code, said = calm.outcome(calm.resume(run))
    assert code == 1, said
    assert f"run {run} is driven by process {standing.pid}" in said
    standing.send_signal(signal.SIGCONT)
    checked(standing)


def finish(scenes, calm, undisturbed, output, kill):
    """Start a run, go on with it wherever `kill` left it, and check that it came to the undisturbed run's end."""
    kill(lambda *dying: calm.run(calm.plan(), *dying, output=output))
    run = calm.started(output)
    if run is None:  # killed before anything was asked
        coordinator = calm.coordinator("run", calm.plan(), "--output", output, "--replace", "--json")
    else:
        kill(lambda *dying: calm.resume(run, *dying))
        coordinator = calm.resume(run)
    code, said = calm.outcome(coordinator)  # a run may be finished before it is killed; to resume it says so
    assert code == 0 or (code == 1 and f"run {run} is finished" in said), said
    assert calm.differs(undisturbed, calm.started(output), output) == []
    assert calm.left() == []
    assert "Traceback" not in said


@pytest.fixture(scope="module")
def seconds(scenes, calm):
    """How long a run takes."""
    began = time.monotonic()
    assert calm.run(calm.plan(), output="usual").wait(scenes.SECONDS) == 0
    return time.monotonic() - began


@pytest.mark.parametrize("point", range(POINTS))
def test_killed_twice_at_a_random_moment(scenes, calm, undisturbed, output, seed, point, seconds):
    rng = np.random.default_rng([seed, point, 0])

    def kill(start):
        process = start()
        moment = rng.uniform(0.1, seconds)
        with suppress(subprocess.TimeoutExpired):
            process.wait(moment)
        process.kill()
        process.wait(scenes.SECONDS)

    finish(scenes, calm, undisturbed, output, kill)


@pytest.mark.parametrize("point", range(POINTS))
@pytest.mark.parametrize("side", ["before", "after"])
def test_killed_twice_at_a_random_write(scenes, calm, undisturbed, output, seed, point, side):
    rng = np.random.default_rng([seed, point, side == "after", 1])

    def kill(start):
        start("os:fsync", side, str(rng.integers(1, 21))).wait(scenes.SECONDS)

    finish(scenes, calm, undisturbed, output, kill)
