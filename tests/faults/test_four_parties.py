"""Four parties, of which some die or stand still: with dropouts to spare the run goes on without asking anybody."""

import json
import signal

import pytest

pytestmark = pytest.mark.slow

PARTIES = ("east", "north", "south", "west")


@pytest.fixture
def four(scenes, tmp_path):
    with scenes.Scene(tmp_path / "scene", PARTIES) as scene:
        yield scene


def plan(scene, **settings):
    """A plan that can do without one of the four."""
    path = scene.plan(signals='signals = ["counts"]', **settings)
    path.write_text(path.read_text().replace("delta = 1e-6", "delta = 1e-6\ndropouts = 1"))
    return path


def in_the_sum(scene, output="run"):
    privacy = json.loads((scene.folder / output / "student/privacy.json").read_text())
    return [release["parties"] for release in privacy["releases"]]


def test_two_of_four_that_die_and_come_back_are_in_the_undisturbed_sum(scenes, four):
    four.serve_all()
    undisturbed = four.undisturbed(plan(four), "undisturbed")
    four.stop()
    dying = [four.serve(name, "party.runs:Run.keep_block", "before", "4") for name in ("north", "west")]
    for name in ("east", "south"):
        four.serve(name)
    coordinator = four.run(plan(four))
    for node in dying:
        assert node.wait(scenes.SECONDS) == -signal.SIGKILL
    four.serve("north")
    four.serve("west")
    code, said = four.outcome(coordinator)
    assert code == 0, said
    assert four.differs(undisturbed, scenes.last_json(said)["run"]) == []
    assert in_the_sum(four) == [list(PARTIES)]
    four.stop()
    assert four.left() == []


def test_one_that_stands_still_is_dropped_as_a_straggler_and_the_run_goes_on(scenes, four):
    standing = four.serve("north", "party.runs:Run.keep_block", "before", "4", "--signal", "STOP")
    for name in ("east", "south", "west"):
        four.serve(name)
    path = plan(four, deadline=1, retry=2)
    path.write_text(path.read_text().replace("retry_seconds", "stragglers = { drop_after = 2 }\nretry_seconds"))
    code, said = four.outcome(four.run(path))
    assert code == 0, said
    assert "party north was lost" in said
    assert in_the_sum(four) == [["east", "south", "west"]]
    assert "verify: ok" in said
    standing.send_signal(signal.SIGCONT)
    four.stop()
    assert four.left() == []


def securely(scene, **settings):
    """The same plan, under the secure sum."""
    path = plan(scene, **settings)
    path.write_text(path.read_text().replace("delta = 1e-6", 'delta = 1e-6\ntrust = "secure-sum"'))
    return path


COORDINATOR = {
    "when all have advertised": ("coordinator.summing:SumRun._vectors", "before"),
    "when the survivors are stored, before any is asked to agree": ("coordinator.summing:SumRun._survivors", "after"),
    "when the sum could be unmasked, before it is stored": ("coordinator.federation:Federation._store_rows", "before"),
    "when it is stored": ("coordinator.federation:Federation._store_rows", "after"),
}


@pytest.fixture(scope="module")
def secure(scenes, tmp_path_factory):
    """Four parties that serve, and what a secure sum of theirs comes to."""
    with scenes.Scene(tmp_path_factory.mktemp("secure") / "scene", PARTIES) as scene:
        scene.serve_all()
        undisturbed = scene.undisturbed(securely(scene), "undisturbed")
        yield scene, undisturbed
        scene.stop()
        assert scene.left() == []


def test_a_secure_sum_gives_the_student_of_the_clear_one(scenes, secure):
    scene, undisturbed = secure
    code, said = scene.outcome(scene.run(plan(scene), output="clear"))
    assert code == 0, said
    assert scene.student("clear") == undisturbed.student


@pytest.mark.parametrize("when", COORDINATOR)
def test_a_coordinator_that_is_killed_in_a_secure_sum_goes_on_with_the_same_attempt(scenes, secure, when, request):
    scene, undisturbed = secure
    output = f"run-{list(COORDINATOR).index(when)}"
    where, side = COORDINATOR[when]
    assert scene.run(securely(scene), where, side, "1", output=output).wait(scenes.SECONDS) == -signal.SIGKILL
    code, said = scene.outcome(scene.resume(scene.started(output)))
    assert code == 0, said
    assert scene.student(output) == undisturbed.student
    run = scenes.last_json(said)["run"]
    assert all(len(charges) == 1 for charges in scene.charged(run).values()), "no attempt but the first"
    assert not list((scene.folder / output).glob("masked/*")), "no masked vector is kept"


def test_a_party_that_dies_when_it_has_promised_its_shares_is_in_the_sum_nonetheless(scenes, four):
    dying = four.serve("north", "party.ledger:Ledger.reveal", "after", "1")
    for name in ("east", "south", "west"):
        four.serve(name)
    coordinator = four.run(securely(four))
    assert dying.wait(scenes.SECONDS) == -signal.SIGKILL
    four.serve("north")
    code, said = four.outcome(coordinator)
    assert code == 0, said
    assert in_the_sum(four) == [list(PARTIES)]
    assert "verify: ok" in said
    four.stop()
    assert four.left() == []


def test_a_party_that_dies_with_its_vector_half_sent_is_left_out_and_nobody_begins_anew(scenes, four):
    dying = four.serve("north", "party.ledger:Ledger.reserve", "after", "1")
    for name in ("east", "south", "west"):
        four.serve(name)
    coordinator = four.run(securely(four, retry=3))
    assert dying.wait(scenes.SECONDS) == -signal.SIGKILL
    four.serve("north")
    code, said = four.outcome(coordinator)
    assert code == 0, said
    assert in_the_sum(four) == [["east", "south", "west"]]
    run = scenes.last_json(said)["run"]
    assert all(len(charges) == 1 for charges in four.charged(run).values())
    four.stop()
    assert four.left() == []
