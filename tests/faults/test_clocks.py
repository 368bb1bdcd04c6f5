"""Clocks that jump amid a run, or are years off: nobody hangs, nothing is paid twice, and certificates say so.

What is shifted is what the product reads the time of day from; TLS itself goes by the system's.
"""

import pytest

pytestmark = pytest.mark.slow

HOUR, DAY = 3600, 86400


def test_clocks_that_jump_ahead_amid_a_run_change_nothing(scenes, scene, undisturbed):
    scene.serve_all({"north": ("party.store.runs:Run.keep_block", "before", "4", "--shift", str(HOUR))})
    ahead = ("coordinator.store.store:RunStore.put_block", "before", "6", "--shift", str(DAY))
    code, said = scene.outcome(scene.run(scene.plan(), *ahead))
    assert code == 0, said
    assert "retrying" not in said
    assert "verify: ok" in said
    assert scene.differs(undisturbed, scenes.last_json(said)["run"]) == []
    scene.stop()
    assert scene.left() == []


@pytest.mark.parametrize("whose", ["the coordinator's", "a party's"])
def test_a_clock_that_is_put_back_amid_a_run_ends_it_with_the_command_that_goes_on(scenes, scene, undisturbed, whose):
    back = {
        "the coordinator's": ("coordinator.store.store:RunStore.put_block", "before", "6", "--shift", str(-DAY)),
        "a party's": ("party.store.runs:Run.keep_block", "before", "6", "--shift", str(-HOUR)),
    }
    scene.serve_all({"north": back[whose]} if whose == "a party's" else {})
    coordinator = scene.run(scene.plan(), *(() if whose == "a party's" else back[whose]))
    code, said = scene.outcome(coordinator)
    assert code == 1, said
    assert "party north" in said
    assert "One of the clocks may be wrong" in said
    assert "Traceback" not in said
    run = scenes.next_command(said)
    scene.kill("north")
    scene.serve("north")
    code, said = scene.outcome(scene.resume(run))
    assert code == 0, said
    assert "verify: ok" in said
    assert scene.differs(undisturbed, run) == []
    scene.stop()
    assert scene.left() == []


@pytest.mark.parametrize(("years", "says"), [(3, "expired"), (-3, "not valid before")])
def test_a_clock_that_is_years_off_is_named_where_certificates_are_looked_at(scenes, warm, tmp_path, years, says):
    with scenes.Scene(tmp_path / "scene", warm=warm, hosts={}) as scene:
        shift = ("party.config:read_config", "after", "1", "--shift", str(years * 365 * DAY))
        said = scene.fails_to_serve("north", *shift)
        assert says in said
        assert "clock" in said
        assert "Traceback" not in said
        assert scene.left() == []
