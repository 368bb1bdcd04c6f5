"""A run of real processes beside a flood of hostile requests from processes of their own, under mutual TLS."""

import importlib.util
from pathlib import Path

import pytest

from party.ledger.accounts import read_account

pytestmark = pytest.mark.slow

RATE = 300
FLOOR = 60
"""Hostile requests a second that must at least be answered, of `RATE` that are due.

A thousand are `benchmarks/hostile.py`'s. Here nodes, coordinator, training and senders may share two cores with a whole
test run: each request takes 2 ms of processor at both ends, so that at the floor the flood needs an eighth of a core.
"""
LINES_A_SECOND = 25
"""A node may write ten lines of refusals (`party.admission.limits.LINES_A_SECOND`), and those of its own work."""


@pytest.fixture(scope="session")
def hostile():
    """`benchmarks/hostile.py`, by its path: another library has a package of the name."""
    path = Path(__file__).resolve().parents[2] / "benchmarks/hostile.py"
    spec = importlib.util.spec_from_file_location("hostile_requests", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_run_beside_a_flood_of_hostile_requests_is_the_undisturbed_one(
    scenes, hostile, warm, undisturbed_votes, tmp_path
):
    with scenes.Scene(tmp_path / "scene", warm=warm, hosts={}) as scene:
        hostile.ready(scene)
        scene.serve_all()
        plan = scene.plan(signals=scenes.VOTES_AND_COUNTS)
        with hostile.flood(scene.folder, {name: scene.address(name) for name in scene.parties}, RATE) as senders:
            code, said = scene.outcome(scene.run(plan))
        assert code == 0, said
        assert "Traceback" not in said
        run = scenes.last_json(said)["run"]
        assert scene.differs(undisturbed_votes, run) == []
        for name in scene.parties:
            account = read_account(scene.folder / f"{name}.party/ledger.sqlite", name)
            assert {each.run for each in account.reservations} == {run}
        scene.stop()
        assert scene.left() == []
        logs = {name: scene.said(name) for name in scene.parties}
    sent = hostile.together(senders)
    assert hostile.unexpected(sent["outcomes"]) == []
    assert sent["answered_a_second"] >= FLOOR, sent
    for log in logs.values():
        assert "Traceback" not in log
        assert len(log.splitlines()) <= LINES_A_SECOND * (sent["seconds"] + 10)
