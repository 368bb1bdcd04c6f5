"""Three machines, as network namespaces, under mutual TLS: a link is cut, nobody is told, and restored."""

import signal

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def apart(scenes, aparts, warm, tmp_path_factory):
    """A scene of three machines, and their network."""
    if why := aparts.refused("net"):
        pytest.skip(f"no networks of their own: {why}")
    with aparts.Network(scenes.PARTIES) as network:
        machines = network.apart | {"coordinator": network.coordinator}
        folder = tmp_path_factory.mktemp("networks") / "scene"
        with scenes.Scene(folder, warm=warm, apart=machines, hosts=network.hosts) as scene:
            yield scene, network


def test_a_link_that_is_cut_and_restored_costs_time_alone(scenes, apart, undisturbed):
    scene, network = apart
    node, _ = scene.serve_all({"north": ("party.store.runs:Run.keep_block", "before", "4", "--signal", "STOP")})
    coordinator = scene.run(scene.plan(deadline=1))
    scenes.until(lambda: scenes.stopped(node), "north stands still")
    network.cut("north")
    node.send_signal(signal.SIGCONT)
    scenes.until(lambda: "north retrying" in scene.said(coordinator.called), "north is missed", 30)
    network.restore("north")
    code, said = scene.outcome(coordinator)
    assert code == 0, said
    assert scene.student() == undisturbed.student
    assert "Traceback" not in said
    scene.stop()
    assert scene.left() == []


def test_a_link_that_stays_cut_ends_the_run_with_the_partys_name_and_the_command_that_goes_on(
    scenes, apart, undisturbed
):
    scene, network = apart
    node, _ = scene.serve_all({"north": ("party.store.runs:Run.keep_block", "before", "4", "--signal", "STOP")})
    coordinator = scene.run(scene.plan(deadline=1, retry=1), output="cut")
    scenes.until(lambda: scenes.stopped(node), "north stands still")
    network.cut("north")
    node.send_signal(signal.SIGCONT)
    code, said = scene.outcome(coordinator)
    assert code == 1, said
    assert "party north was lost" in said
    assert "Traceback" not in said
    run = scenes.next_command(said)
    network.restore("north")
    code, said = scene.outcome(scene.resume(run))
    assert code == 0, said
    assert scene.differs(undisturbed, run, "cut") == []
    scene.stop()
    assert scene.left() == []
