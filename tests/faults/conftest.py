"""What the fault tests share: the launcher that dies, the proxy, and a scene of real processes."""

import importlib.util
import os
from pathlib import Path

import pytest


def beside(name):
    """A module that lies in this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"faults_{name}", Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def dying():
    """`dying.py`."""
    return beside("dying")


@pytest.fixture(scope="session")
def proxies():
    """`proxy.py`."""
    return beside("proxy")


@pytest.fixture(scope="session")
def aparts():
    """`apart.py`."""
    return beside("apart")


SEED = int(os.environ.get("CONCLAVE_FAULT_SEED", "0"))
"""What is drawn at random in these tests is drawn from it; `make soak` sets it."""


@pytest.fixture(scope="session")
def seed():
    """The seed of whatever is drawn at random here."""
    return SEED


@pytest.fixture(scope="session")
def scenes():
    """`scene.py`."""
    return beside("scene")


@pytest.fixture(scope="session")
def warm(scenes, warm_parties, tmp_path_factory):
    """What forks the processes of a command, by its name."""
    plan = scenes.Scene(tmp_path_factory.mktemp("warm") / "scene").plan()
    with beside("warm").Warm("coordinator", plan) as coordinator:
        yield {"party": warm_parties, "coordinator": coordinator}


@pytest.fixture(scope="session")
def calm(scenes, warm, tmp_path_factory):
    """A scene whose parties are never hurt: for undisturbed runs, and for coordinators that are."""
    with scenes.Scene(tmp_path_factory.mktemp("calm") / "scene", warm=warm) as scene:
        scene.serve_all()
        yield scene
        scene.stop()
        assert scene.left() == []


@pytest.fixture(scope="session")
def undisturbed(scenes, calm):
    """What a run of counts comes to."""
    return calm.undisturbed(calm.plan(), "undisturbed")


@pytest.fixture(scope="session")
def undisturbed_votes(scenes, calm):
    """What a run of votes and counts comes to."""
    return calm.undisturbed(calm.plan(name="votes.toml", signals=scenes.VOTES_AND_COUNTS), "undisturbed-votes")


@pytest.fixture(scope="session")
def undisturbed_training(scenes, calm):
    """What a run of private training comes to."""
    return calm.undisturbed(calm.plan(name="training.toml", **scenes.PRIVATE_TRAINING), "undisturbed-training")


@pytest.fixture
def scene(scenes, warm, tmp_path):
    """A scene of a test's own, its parties not yet serving; nothing of it may be left at the end."""
    with scenes.Scene(tmp_path / "scene", warm=warm) as scene:
        yield scene


@pytest.fixture
def four(scenes, warm, tmp_path):
    """A scene of four parties."""
    with scenes.Scene(tmp_path / "scene", scenes.FOUR, warm) as scene:
        yield scene
