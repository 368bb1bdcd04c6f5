"""A disk that is full amid a run, at a party or the coordinator: a sentence, and on when there is room."""

import shutil
import signal

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _permitted(aparts):
    if why := aparts.refused("mnt"):
        pytest.skip(f"no disk of its own here: {why}")


def test_a_party_whose_disk_is_full_says_so_and_goes_on_when_there_is_room(scenes, aparts, warm, tmp_path, undisturbed):
    with (
        scenes.Scene(tmp_path / "scene", warm=warm) as scene,
        aparts.SmallDisk(scene.folder / "north.party", "8m") as disk,
    ):
        shutil.copytree(disk.folder / "identity", disk.seen(disk.folder / "identity"))
        scene.apart["north"] = disk
        node, _ = scene.serve_all({"north": ("party.store.runs:Run.keep_block", "before", "4", "--signal", "STOP")})
        coordinator = scene.run(scene.plan(retry=2))
        scenes.until(lambda: scenes.stopped(node), "north stands still")
        disk.fill()
        node.send_signal(signal.SIGCONT)
        code, said = scene.outcome(coordinator)
        assert code == 1, said
        assert "north" in said
        assert "disk" in said
        assert "Traceback" not in said
        run = scenes.next_command(said)
        assert node.poll() is None, "a full disk ends no node"
        disk.make_room()
        code, said = scene.outcome(scene.resume(run))
        assert code == 0, said
        assert scene.differs(undisturbed, run) == []
        scene.stop()
        assert scene.left() == []


def test_a_coordinator_whose_disk_is_full_says_so_and_goes_on_when_there_is_room(
    scenes, aparts, warm, tmp_path, undisturbed
):
    with scenes.Scene(tmp_path / "scene", warm=warm) as scene, aparts.SmallDisk(scene.folder / "run", "8m") as disk:
        scene.apart["coordinator"] = disk
        scene.serve_all()
        stop = ("coordinator.store.store:RunStore.put_block", "before", "4", "--signal", "STOP")
        coordinator = scene.run(scene.plan(), *stop)
        scenes.until(lambda: scenes.stopped(coordinator), "the coordinator stands still")
        disk.fill()
        coordinator.send_signal(signal.SIGCONT)
        code, said = scene.outcome(coordinator)
        assert code == 1, said
        assert "disk" in said
        assert str(scene.folder / "run") in said
        assert "Traceback" not in said
        run = scenes.next_command(said)
        disk.make_room()
        code, said = scene.outcome(scene.resume(run))
        assert code == 0, said
        assert scene.differs(undisturbed, run) == []
        scene.stop()
        assert scene.left() == []
