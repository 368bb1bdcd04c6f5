"""What a network does between a coordinator and a party: it delays, cuts, ends one half, or swallows."""

import time

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def proxy(scene, proxies):
    """Between the coordinator and north."""
    scene.serve_all()
    with proxies.Proxy(scene.ports["north"]) as proxy:
        yield proxy


def finished(scenes, scene, coordinator, undisturbed):
    """Wait for a run, and check that it is the undisturbed one and that nothing of it is left."""
    code, said = scene.outcome(coordinator)
    assert code == 0, said
    assert scene.differs(undisturbed, scenes.last_json(said)["run"]) == []
    scene.stop()
    assert scene.left() == []
    assert "Traceback" not in said
    return said


def test_a_slow_wire_makes_a_slow_run(scenes, scene, proxy, undisturbed):
    proxy.delay(0.05)
    coordinator = scene.run(scene.plan({"north": proxy.address}))
    said = finished(scenes, scene, coordinator, undisturbed)
    assert "retrying" not in said
    assert "lost" not in said


def test_a_wire_that_is_slower_than_the_deadline_for_a_while(scenes, scene, proxy, undisturbed):
    coordinator = scene.run(scene.plan({"north": proxy.address}, deadline=1))
    scenes.until(lambda: scene.stored() >= 2, "two blocks are stored")
    proxy.delay(1.5)
    time.sleep(5)
    proxy.passing()
    finished(scenes, scene, coordinator, undisturbed)


def test_a_wire_that_is_cut_often(scenes, scene, proxy, undisturbed, seed):
    proxy.cut(after=1500 + 37 * (seed % 40), times=8)
    coordinator = scene.run(scene.plan({"north": proxy.address}))
    finished(scenes, scene, coordinator, undisturbed)
    assert proxy.struck >= 3  # how often depends on how much is said again each time


@pytest.mark.parametrize("towards", ["client", "target"])
@pytest.mark.parametrize("blocks", [0, 3])
def test_a_wire_of_which_one_half_ends(scenes, scene, proxy, undisturbed, towards, blocks):
    coordinator = scene.run(scene.plan({"north": proxy.address}, deadline=2))
    if blocks:
        scenes.until(lambda: scene.stored() >= blocks, "some blocks are stored")
    else:
        scenes.until(lambda: scene.training("north"), "north trains")
    proxy.half_close(towards=towards)
    finished(scenes, scene, coordinator, undisturbed)
    assert proxy.struck == 1
    assert proxy.connections > 1


@pytest.mark.parametrize("blocks", [0, 3])
def test_a_wire_that_swallows_everything_for_longer_than_the_deadline(scenes, scene, proxy, undisturbed, blocks):
    coordinator = scene.run(scene.plan({"north": proxy.address}, deadline=1))
    if blocks:
        scenes.until(lambda: scene.stored() >= blocks, "some blocks are stored")
    else:
        scenes.until(lambda: scene.training("north"), "north trains")
    proxy.black_hole()
    scenes.until(lambda: "north retrying" in scene.said(coordinator.called), "north is tried again", 30)
    proxy.passing()
    finished(scenes, scene, coordinator, undisturbed)


def test_a_wire_that_stays_cut_ends_the_run_with_the_partys_name_and_the_command_that_goes_on(
    scenes, scene, proxy, undisturbed
):
    plan = scene.plan({"north": proxy.address}, deadline=1, retry=2)
    coordinator = scene.run(plan)
    scenes.until(lambda: scene.stored() >= 3, "some blocks are stored")
    proxy.black_hole()
    code, said = scene.outcome(coordinator)
    assert code == 1, said
    assert "party north was lost" in said
    run = scenes.next_command(said)
    proxy.passing()
    finished(scenes, scene, scene.resume(run), undisturbed)


@pytest.fixture
def sealed(scenes, warm, tmp_path):
    """A scene under mutual TLS."""
    with scenes.Scene(tmp_path / "sealed", warm=warm, hosts={}) as scene:
        yield scene


@pytest.mark.parametrize("wire", ["scene", "sealed"])
def test_a_wire_that_changes_bytes_makes_no_other_student(scenes, proxies, undisturbed, seed, wire, request):
    scene = request.getfixturevalue(wire)
    scene.serve_all()
    with proxies.Proxy(scene.ports["north"]) as proxy:
        proxy.corrupt(after=1000 + 37 * (seed % 40), times=12)
        code, said = scene.outcome(scene.run(scene.plan({"north": proxy.address}, deadline=2)))
        assert proxy.struck >= 1
        assert "Traceback" not in said
        proxy.passing()
        if code != 0:
            assert code == 1, said
            assert "party north" in said
            code, said = scene.outcome(scene.resume(scene.started()))
        assert code == 0, said
        assert scene.differs(undisturbed, scenes.last_json(said)["run"]) == []
        scene.stop()
        assert scene.left() == []


def test_a_wire_of_few_bytes_a_second_makes_a_slow_run(scenes, scene, proxy, undisturbed):
    proxy.throttle(20_000)
    said = finished(scenes, scene, scene.run(scene.plan({"north": proxy.address})), undisturbed)
    assert "lost" not in said


def test_a_party_that_is_back_on_another_port_is_found_there_when_the_plan_says_so(scenes, scene, undisturbed):
    dying, _ = scene.serve_all({"north": ("party.store.runs:Run.keep_block", "before", "4")})
    coordinator = scene.run(scene.plan(retry=1))
    assert dying.wait(scenes.SECONDS) == -9
    old = scene.address("north")
    scene.ports["north"] = scenes.free_port()
    scene.write_party("north")
    scene.serve("north")
    code, said = scene.outcome(coordinator)
    assert code == 1, said
    assert "party north was lost" in said
    assert old in said
    assert "[federation] parties" in said
    run = scenes.next_command(said)
    scene.plan()
    finished(scenes, scene, scene.resume(run), undisturbed)
