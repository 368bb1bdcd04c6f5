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
