"""A party's node dies, or stops, in the midst of a run: the run goes on by itself, to the undisturbed run's student."""

import json
import re
import signal
import time

import psutil
import pytest

pytestmark = pytest.mark.slow

FIRST_VOTES = 11
"""Blocks are counted over both releases, counts first; this is the first of votes."""

DEATHS = {
    "after it took the run's id": ("party.ledger:Ledger.join", "after", 1),
    "before it keeps the plan": ("party.runs:Runs.make", "before", 1),
    "when a training is done, before that is noted": ("party.runs:Run.keep_operation", "before", 1),
    "before anything is charged": ("party.ledger:Ledger._claim", "before", 1),
    "after the charge, before the block is on disk": ("party.runs:Run.keep_block", "before", 1),
    "after the block is on disk, before it is sent": ("party.runs:Run.keep_block", "after", FIRST_VOTES + 3),
    "after the block is sent, before that is noted": ("party.ledger:Ledger.answered", "before", FIRST_VOTES + 2),
    "after the last block": ("party.ledger:Ledger.answered", "after", 20),
    "when it is to sign what the run cost it": ("party.ledger:Ledger.charged", "after", 1),
    "after it left": ("party.ledger:Ledger.leave", "after", 1),
}


def finished(scenes, scene, coordinator, undisturbed, output="run"):
    """Wait for a run, check that it is the undisturbed one, and that nothing of it is left; what was said."""
    code, said = scene.outcome(coordinator)
    assert code == 0, said
    assert scene.differs(undisturbed, scenes.last_json(said)["run"], output) == []
    scene.stop()
    assert scene.left() == []
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("when", DEATHS)
def test_a_node_that_is_killed_and_started_again_gets_its_work_again(scenes, scene, undisturbed, when):
    dying = scene.serve("north", *map(str, DEATHS[when]))
    scene.serve("south")
    coordinator = scene.run(scene.plan())
    assert dying.wait(scenes.SECONDS) == -signal.SIGKILL
    scene.serve("north")
    finished(scenes, scene, coordinator, undisturbed)


@pytest.mark.parametrize(("file", "count"), [("an artefact", 7), ("a block", 16)])
def test_a_node_that_is_killed_in_the_midst_of_a_file_leaves_none_of_it(scenes, scene, undisturbed, file, count):
    dying = scene.serve("north", "os:fsync", "before", str(count))
    scene.serve("south")
    coordinator = scene.run(scene.plan())
    assert dying.wait(scenes.SECONDS) == -signal.SIGKILL
    (part,) = (scene.folder / "north.party").rglob(".*")
    assert (".block." in part.name) == (file == "a block"), "it dies where it is to die"
    scene.serve("north")
    finished(scenes, scene, coordinator, undisturbed)


@pytest.mark.parametrize("stage", ["counting", "teaching"])
def test_a_node_that_is_killed_in_training_takes_its_training_with_it_and_trains_again(
    scenes, scene, undisturbed, stage
):
    scene.serve_all()
    coordinator = scene.run(scene.plan())
    scenes.until(lambda: f"north {stage}" in scene.said(coordinator.called), f"north is {stage}")
    scenes.until(lambda: scene.training("north"), "north trains")
    (training,) = scene.training("north")
    scene.kill("north")
    training.wait(10)
    assert not training.is_running() or training.status() == psutil.STATUS_ZOMBIE
    time.sleep(1.5)
    scene.serve("north")
    said = finished(scenes, scene, coordinator, undisturbed)
    assert "north retrying" in said


@pytest.mark.parametrize("when", ["charged", "trained", "answering"])
def test_a_node_that_is_killed_in_private_training_trains_again_for_free(scenes, scene, undisturbed_training, when):
    where = {
        "charged": ("party.ledger:Ledger.reserve", "after", 1),
        "trained": ("party.runs:Run.keep_operation", "before", 1),
        "answering": ("party.runs:Run.keep_block", "after", 3),
    }
    dying = scene.serve("north", *map(str, where[when]))
    scene.serve("south")
    coordinator = scene.run(scene.plan(signals=scenes.PRIVATE_TRAINING))
    assert dying.wait(scenes.SECONDS) == -signal.SIGKILL
    scene.serve("north")
    finished(scenes, scene, coordinator, undisturbed_training)


def test_a_node_that_dies_again_and_again_is_found_again_and_again(scenes, scene, undisturbed):
    scene.serve("south")
    node = scene.serve("north", "party.runs:Run.keep_block", "after", "2")
    coordinator = scene.run(scene.plan())
    for when, count in (("before", 4), ("after", 5), ("before", 3)):
        assert node.wait(scenes.SECONDS) == -signal.SIGKILL
        node = scene.serve("north", "party.runs:Run.keep_block", when, str(count))
    assert node.wait(scenes.SECONDS) == -signal.SIGKILL
    scene.serve("north")
    finished(scenes, scene, coordinator, undisturbed)


def test_both_nodes_may_die_at_once(scenes, scene, undisturbed):
    nodes = [scene.serve(name, "party.runs:Run.keep_block", "before", "4") for name in scene.parties]
    coordinator = scene.run(scene.plan())
    for node in nodes:
        assert node.wait(scenes.SECONDS) == -signal.SIGKILL
    scene.serve_all()
    finished(scenes, scene, coordinator, undisturbed)


STOPS = {
    "before it trains": ("party.training:Training.run", "before", 1),
    "before a block": ("party.runs:Run.keep_block", "before", 4),
}


@pytest.mark.parametrize("where", STOPS)
def test_a_node_that_is_told_to_end_and_started_again_gets_its_work_again(scenes, scene, undisturbed, where):
    node = scene.serve("north", *map(str, STOPS[where]), "--signal", "TERM")
    scene.serve("south")
    coordinator = scene.run(scene.plan())
    assert node.wait(scenes.SECONDS) == 0
    scene.serve("north")
    finished(scenes, scene, coordinator, undisturbed)


@pytest.mark.parametrize("when", ["in training", "between blocks"])
def test_a_node_that_stays_away_ends_the_run_with_its_name_and_the_command_that_goes_on(
    scenes, scene, undisturbed, when
):
    where = {
        "in training": ("party.runs:Run.keep_operation", "before", "2"),
        "between blocks": ("party.runs:Run.keep_block", "before", "4"),
    }
    dying = scene.serve("north", *where[when])
    scene.serve("south")
    coordinator = scene.run(scene.plan(retry=2))
    assert dying.wait(scenes.SECONDS) == -signal.SIGKILL
    code, said = scene.outcome(coordinator)
    assert code == 1, said
    assert "party north was lost" in said
    assert "south was lost" not in said
    assert "Traceback" not in said
    if when == "between blocks":
        assert re.search(r"north was lost at batch \d+ of 10", said), said
        assert "nothing was paid twice" in said
    run = scenes.next_command(said)
    assert scene.started() == run
    scene.serve("north")
    finished(scenes, scene, scene.resume(run), undisturbed)


def test_a_node_that_dies_for_good_before_it_signs_is_left_out_of_the_sums(scenes, scene):
    dying = scene.serve("north", "party.ledger:Ledger.charged", "before", "1")
    scene.serve("south")
    plan = scene.plan(retry=3)
    plan.write_text(plan.read_text().replace("delta = 1e-6", "delta = 1e-6\ndropouts = 1"))
    code, said = scene.outcome(scene.run(plan))
    assert dying.wait(scenes.SECONDS) == -signal.SIGKILL
    assert code == 0, said
    assert "north did not sign what the run cost it" in said
    assert "verify: ok" in said
    privacy = json.loads((scene.folder / "run/student/privacy.json").read_text())
    assert [release["parties"] for release in privacy["releases"]] == [["south"], ["south"]]
    assert all(charges for charges in scene.charged(scenes.last_json(said)["run"]).values()), "what was charged stays"
    scene.stop()
    assert scene.left() == []


@pytest.mark.parametrize("where", STOPS)
def test_a_node_that_stands_still_longer_than_the_deadline_goes_on_when_it_is_continued(
    scenes, scene, undisturbed, where
):
    node = scene.serve("north", *map(str, STOPS[where]), "--signal", "STOP")
    scene.serve("south")
    coordinator = scene.run(scene.plan(deadline=1))
    scenes.until(lambda: scenes.stopped(node), "north stands still")
    scenes.until(lambda: "north retrying" in scene.said(coordinator.called), "north is tried again", 30)
    time.sleep(1)
    assert coordinator.poll() is None
    node.send_signal(signal.SIGCONT)
    finished(scenes, scene, coordinator, undisturbed)


def test_a_node_that_stands_still_for_too_long_is_lost_until_the_run_is_resumed(scenes, scene, undisturbed):
    node = scene.serve("north", "party.runs:Run.keep_block", "before", "4", "--signal", "STOP")
    scene.serve("south")
    coordinator = scene.run(scene.plan(deadline=1, retry=1))
    scenes.until(lambda: scenes.stopped(node), "north stands still")
    code, said = scene.outcome(coordinator)
    assert code == 1, said
    assert "party north was lost" in said
    run = scenes.next_command(said)
    node.send_signal(signal.SIGCONT)
    finished(scenes, scene, scene.resume(run), undisturbed)


def test_interrupted_twice_while_a_party_stands_still_the_run_stops_at_once_and_goes_on_later(
    scenes, scene, undisturbed
):
    node = scene.serve("north", "party.runs:Run.keep_block", "before", "4", "--signal", "STOP")
    scene.serve("south")
    coordinator = scene.run(scene.plan(deadline=30))
    scenes.until(lambda: scenes.stopped(node), "north stands still")
    coordinator.send_signal(signal.SIGINT)
    scenes.until(lambda: "stopping when the block" in scene.said(coordinator.called), "the first interrupt is heard")
    time.sleep(1)
    assert coordinator.poll() is None, "after one interrupt the block in hand is waited for"
    coordinator.send_signal(signal.SIGINT)
    code, said = scene.outcome(coordinator)
    assert code == 130, said
    run = scenes.next_command(said)
    node.send_signal(signal.SIGCONT)
    finished(scenes, scene, scene.resume(run), undisturbed)
