"""A party's node dies, or stops, in the midst of a run: the run goes on by itself, to the undisturbed run's student."""

import re
import signal
import time

import psutil
import pytest

pytestmark = pytest.mark.slow

DEATHS = {
    "after it took the run's id": ("party.ledger.ledger:Ledger.join", "after", 1),
    "before it keeps the plan": ("party.store.runs:Runs.make", "before", 1),
    "when a training is done, before that is noted": ("party.store.runs:Run.keep_operation", "before", 1),
    "before anything is charged": ("party.ledger.charging:reserve", "before", 1),
    "after the charge, before its text is opened": ("party.ledger.ledger:Ledger.reserve", "after", 1),
    "before anything is claimed": ("party.ledger.charging:claim", "before", 1),
    "after the claim, before the block is on disk": ("party.store.runs:Run.keep_block", "before", 1),
    "after the block is on disk, before it is sent": ("party.store.runs:Run.keep_block", "after", 4),
    "after the block is sent, before that is noted": ("party.ledger.ledger:Ledger.answered", "before", 3),
    "after the last block": ("party.ledger.ledger:Ledger.answered", "after", 10),
    "when it is to sign what the run cost it": ("party.ledger.ledger:Ledger.charged", "after", 1),
    "after it left": ("party.ledger.ledger:Ledger.leave", "after", 1),
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
    dying, _ = scene.serve_all({"north": map(str, DEATHS[when])})
    coordinator = scene.run(scene.plan())
    assert dying.wait(scenes.SECONDS) == -signal.SIGKILL
    scene.serve("north")
    finished(scenes, scene, coordinator, undisturbed)


@pytest.mark.parametrize(("file", "count"), [("an artefact", 6), ("a block", 13)])
def test_a_node_that_is_killed_in_the_midst_of_a_file_leaves_none_of_it(scenes, scene, undisturbed, file, count):
    dying, _ = scene.serve_all({"north": ("os:fsync", "before", str(count))})
    coordinator = scene.run(scene.plan())
    assert dying.wait(scenes.SECONDS) == -signal.SIGKILL
    (part,) = (scene.folder / "north.party").rglob(".*")
    assert (".block." in part.name) == (file == "a block"), "it dies where it is to die"
    scene.serve("north")
    finished(scenes, scene, coordinator, undisturbed)


def killed_in_training(scenes, scene, coordinator, stage):
    """Kill north while it trains; its training goes with it."""
    scenes.until(lambda: f"north {stage}" in scene.said(coordinator.called), f"north is {stage}")
    scenes.until(lambda: scene.training("north"), "north trains")
    (training,) = scene.training("north")
    scene.kill("north")
    training.wait(10)
    assert not training.is_running() or training.status() == psutil.STATUS_ZOMBIE
    scenes.until(lambda: "north retrying" in scene.said(coordinator.called), "north is tried again")


def test_a_node_that_is_killed_while_it_counts_counts_again(scenes, scene, undisturbed):
    scene.serve_all()
    coordinator = scene.run(scene.plan())
    killed_in_training(scenes, scene, coordinator, "counting")
    scene.serve("north")
    finished(scenes, scene, coordinator, undisturbed)


def test_a_node_that_is_killed_while_it_teaches_and_amid_its_second_release_goes_on(scenes, scene, undisturbed_votes):
    scene.serve_all()
    coordinator = scene.run(scene.plan(signals=scenes.VOTES_AND_COUNTS))
    killed_in_training(scenes, scene, coordinator, "teaching")
    dying = scene.serve("north", "party.store.runs:Run.keep_block", "after", str(scenes.BLOCKS + 4))
    assert dying.wait(scenes.SECONDS) == -signal.SIGKILL
    scene.serve("north")
    finished(scenes, scene, coordinator, undisturbed_votes)


@pytest.mark.parametrize("when", ["charged", "trained", "answering"])
def test_a_node_that_is_killed_in_private_training_trains_again_for_free(scenes, scene, undisturbed_training, when):
    where = {
        "charged": ("party.ledger.ledger:Ledger.reserve", "after", 1),
        "trained": ("party.store.runs:Run.keep_operation", "before", 1),
        "answering": ("party.store.runs:Run.keep_block", "after", 3),
    }
    dying, _ = scene.serve_all({"north": map(str, where[when])})
    coordinator = scene.run(scene.plan(**scenes.PRIVATE_TRAINING))
    assert dying.wait(scenes.SECONDS) == -signal.SIGKILL
    scene.serve("north")
    finished(scenes, scene, coordinator, undisturbed_training)


def test_a_node_that_dies_again_and_again_is_found_again_and_again(scenes, scene, undisturbed):
    scene.serve("south")
    node = scene.serve("north", "party.store.runs:Run.keep_block", "after", "2")
    coordinator = scene.run(scene.plan())
    for when, count in (("before", 3), ("after", 3), ("before", 2)):
        assert node.wait(scenes.SECONDS) == -signal.SIGKILL
        node = scene.serve("north", "party.store.runs:Run.keep_block", when, str(count))
    assert node.wait(scenes.SECONDS) == -signal.SIGKILL
    scene.serve("north")
    finished(scenes, scene, coordinator, undisturbed)


def test_both_nodes_may_die_at_once(scenes, scene, undisturbed):
    nodes = scene.serve_all(dict.fromkeys(scene.parties, ("party.store.runs:Run.keep_block", "before", "4")))
    coordinator = scene.run(scene.plan())
    for node in nodes:
        assert node.wait(scenes.SECONDS) == -signal.SIGKILL
    scene.serve_all()
    finished(scenes, scene, coordinator, undisturbed)


STOPS = {
    "before it trains": ("party.node.training:Training.run", "before", 1),
    "before a block": ("party.store.runs:Run.keep_block", "before", 4),
}


@pytest.mark.parametrize("where", STOPS)
def test_a_node_that_is_told_to_end_and_started_again_gets_its_work_again(scenes, scene, undisturbed, where):
    node, _ = scene.serve_all({"north": (*map(str, STOPS[where]), "--signal", "TERM")})
    coordinator = scene.run(scene.plan())
    assert node.wait(scenes.SECONDS) == 0
    scene.serve("north")
    finished(scenes, scene, coordinator, undisturbed)


@pytest.mark.parametrize("when", ["in training", "between blocks"])
def test_a_node_that_stays_away_ends_the_run_with_its_name_and_the_command_that_goes_on(
    scenes, scene, undisturbed, when
):
    where = {
        "in training": ("party.store.runs:Run.keep_operation", "before", "1"),
        "between blocks": ("party.store.runs:Run.keep_block", "before", "4"),
    }
    dying, _ = scene.serve_all({"north": where[when]})
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
    dying, _ = scene.serve_all({"north": ("party.ledger.ledger:Ledger.charged", "before", "1")})
    code, said = scene.outcome(scene.run(scene.plan(retry=3, privacy=["dropouts = 1"])))
    assert dying.wait(scenes.SECONDS) == -signal.SIGKILL
    assert code == 0, said
    assert "north did not sign what the run cost it" in said
    assert "verify: ok" in said
    assert scene.in_the_sum() == [["south"]]
    assert all(charges for charges in scene.charged(scenes.last_json(said)["run"]).values()), "what was charged stays"
    scene.stop()
    assert scene.left() == []


@pytest.mark.parametrize("where", STOPS)
def test_a_node_that_stands_still_longer_than_the_deadline_goes_on_when_it_is_continued(
    scenes, scene, undisturbed, where
):
    node, _ = scene.serve_all({"north": (*map(str, STOPS[where]), "--signal", "STOP")})
    coordinator = scene.run(scene.plan(deadline=1))
    scenes.until(lambda: scenes.stopped(node), "north stands still")
    scenes.until(lambda: "north retrying" in scene.said(coordinator.called), "north is tried again", 30)
    time.sleep(1)
    assert coordinator.poll() is None
    node.send_signal(signal.SIGCONT)
    finished(scenes, scene, coordinator, undisturbed)


def test_a_node_that_stands_still_for_too_long_is_lost_until_the_run_is_resumed(scenes, scene, undisturbed):
    node, _ = scene.serve_all({"north": ("party.store.runs:Run.keep_block", "before", "4", "--signal", "STOP")})
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
    node, _ = scene.serve_all({"north": ("party.store.runs:Run.keep_block", "before", "4", "--signal", "STOP")})
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
