"""Swing's rows in a comparison: what each is measured by, what it costs, and that the recipe's own row is its run."""

import pytest

from coordinator import api
from coordinator.errors import PlanError
from coordinator.run import connecting
from coordinator.systems.swing.methods import METHODS, methods_of
from deploy.launch import RayLauncher


@pytest.fixture(scope="module")
def compared(swing_plan, tmp_path_factory):
    """A finished comparison of all rows at one epsilon, and its folder."""
    folder = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connecting, "find_launcher", lambda name: RayLauncher())
        patch.setenv("CONCLAVE_HOME", str(folder / "home"))
        return api.compare(swing_plan(), epsilons=[8.0], seeds=1, output=folder / "table")


@pytest.mark.slow
def test_every_row_is_measured_and_the_private_one_costs_what_was_asked(compared, swing_plan):
    cells = {cell.method: cell for cell in compared.cells}
    assert set(cells) == set(methods_of(swing_plan())) == set(METHODS) - {"trained"}
    assert len(cells) == 10
    for name, cell in cells.items():
        assert cell.metrics["perplexity"] > 1, name
        if METHODS[name].private:
            assert 7.5 < cell.paid <= 8.0, name
        else:
            assert cell.paid is None, name
    assert [name for name, method in METHODS.items() if method.private] == ["swing", "trained"]


@pytest.mark.slow
def test_rows_that_learn_more_know_more(compared):
    found = {cell.method: cell.metrics["perplexity"] for cell in compared.cells}
    assert found["teachers"] < found["public"]
    assert found["fine_tune"] < found["public"]
    assert found["kd"] < found["public"]
    # Few teachers are drowned, and a student that heeds nothing of what they say learns from its texts alone.
    assert found.pop("swing") == found["alone"]
    assert len(set(found.values())) == len(found)


@pytest.mark.slow
def test_the_recipes_own_row_is_its_run(swing_plan, here, tmp_path, monkeypatch):
    """With noise from the plan's seed the student of the row has the run's perplexity."""
    plan = swing_plan(privacy={"insecure_reproducible_noise": True})
    run = api.run(plan, output=tmp_path / "run")
    monkeypatch.setattr(connecting, "find_launcher", lambda name: RayLauncher())
    table = api.compare(plan, recipes=["swing"], epsilons=[8.0], seeds=1, output=tmp_path / "table")
    (cell,) = table.cells
    assert cell.metrics["perplexity"] == pytest.approx(run.metrics["token_perplexity"], rel=1e-6)


@pytest.mark.slow
def test_teachers_of_a_seed_are_trained_once_for_all_rows(swing_plan, tmp_path):
    from coordinator.comparing.comparable import ComparisonRequest
    from coordinator.progress.progress import Silent
    from coordinator.run.party_files import party_tables
    from coordinator.systems.registry import recipe_of
    from coordinator.systems.swing.compare import SwingComparison
    from coordinator.systems.swing.data import teachers_of

    plan = swing_plan()
    given = ComparisonRequest(
        plan, RayLauncher(), party_tables(plan), tmp_path, tmp_path / "cache", Silent(), recipe_of
    )  # fmt: skip
    data = SwingComparison(given).data(5, tmp_path / "work")
    assert len(teachers_of(data)) == 2
    first = [each.copy() for each in data.taught]
    assert not (first[0] == first[1]).all()
    teachers_of(data)
    assert all((one == other).all() for one, other in zip(first, data.taught, strict=True))


@pytest.mark.slow
def test_a_comparison_without_public_text_is_refused(swing_plan, tmp_path, monkeypatch):
    monkeypatch.setattr(connecting, "find_launcher", lambda name: RayLauncher())
    with pytest.raises(PlanError, match="evaluation"):
        api.compare(swing_plan(evaluation=None), epsilons=[8.0], seeds=1, output=tmp_path / "table")
