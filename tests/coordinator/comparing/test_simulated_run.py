"""A run over simulated parties that is kept in a folder goes on there after it was stopped."""

from pathlib import Path

import pytest

from coordinator.comparing.simulated_run import driven, kept_in
from coordinator.errors import RunError
from coordinator.progress.progress import Silent
from coordinator.run.party_files import party_tables
from coordinator.systems.registry import plan_of, prepared
from coordinator.transport.launchers import SimulationRequest, find_launcher
from deploy.simulated_links import SimulatedLink

pytestmark = pytest.mark.slow


@pytest.fixture
def run(classifier_tables, tmp_path):
    """`run(folder, ...)`: the student's content, of a plan with settings changed."""

    def drives(folder, **settings):
        plan = plan_of(classifier_tables(dp_sgd=settings, privacy={"insecure_reproducible_noise": True}))
        recipe = prepared(plan, Path.cwd(), tmp_path / "cache")
        request = SimulationRequest(party_tables(plan), tmp_path / "parties", Path.cwd(), b"", 0, "document", False)
        with driven(recipe, find_launcher("ray").simulate(request), Silent(), Path.cwd(), folder) as made:
            return made.content

    return drives


@pytest.fixture
def trained(monkeypatch):
    """The operations that parties were asked for; `stop` names one that fails."""
    own, asked, stop = SimulatedLink.train, [], set()

    async def train(link, request, on_percent):
        if request.operation_id in stop:
            raise KeyboardInterrupt
        asked.append(request.operation_id)
        return await own(link, request, on_percent)

    monkeypatch.setattr(SimulatedLink, "train", train)
    return asked, stop


def test_a_run_that_was_stopped_goes_on_after_its_last_step_and_ends_the_same(run, trained, tmp_path):
    asked, stop = trained
    whole = run(None)
    asked.clear()
    stop.add("steps-2-0")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "kept")
    assert set(asked) == {"steps-0-0", "steps-1-0"}
    asked.clear()
    stop.clear()
    assert run(tmp_path / "kept") == whole
    assert set(asked) == {"steps-2-0", "steps-3-0"}
    asked.clear()
    assert run(tmp_path / "kept") == whole
    assert asked == []


def test_a_folder_with_the_run_of_another_plan_is_left_alone(run, tmp_path):
    before = run(tmp_path / "kept")
    with pytest.raises(RunError, match="holds the run of another plan"):
        run(tmp_path / "kept", learning_rate=0.2)
    assert run(tmp_path / "kept") == before


def test_runs_without_a_folder_are_kept_in_their_order_and_begin_anew_under_another_plan(run, trained, tmp_path):
    asked, stop = trained
    with kept_in(tmp_path / "kept"):
        first, second = run(None), run(None, learning_rate=0.2)
    assert first != second
    asked.clear()
    with kept_in(tmp_path / "kept"):
        assert (run(None), run(None, learning_rate=0.2)) == (first, second)
    assert asked == []
    stop.add("steps-1-0")
    with kept_in(tmp_path / "kept"), pytest.raises(KeyboardInterrupt):
        run(None, learning_rate=0.2)
    assert set(asked) == {"steps-0-0"}
    stop.clear()
    with kept_in(tmp_path / "kept"):
        assert run(None, learning_rate=0.2) == second
    assert set(asked) == {"steps-0-0", "steps-1-0", "steps-2-0", "steps-3-0"}
    assert run(None) == first
    assert {each.name for each in (tmp_path / "kept").iterdir()} == {"0"}
