"""DistilDP's rows in a comparison: what each is measured by, what it costs, and what rows share."""

import pytest

from coordinator import api
from coordinator.comparing.simulated_run import driven
from coordinator.errors import PlanError
from coordinator.run import connecting
from coordinator.systems.distildp.methods import METHODS, methods_of
from deploy.launch import RayLauncher


@pytest.fixture(scope="module")
def compared(distildp_plan, tmp_path_factory):
    """A finished comparison of all rows at one epsilon, and its folder."""
    folder = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connecting, "find_launcher", lambda name: RayLauncher())
        patch.setenv("CONCLAVE_HOME", str(folder / "home"))
        return api.compare(distildp_plan(), epsilons=[8.0], seeds=1, output=folder / "table")


@pytest.mark.slow
def test_every_row_is_measured_and_private_ones_cost_what_was_asked(compared):
    cells = {cell.method: cell for cell in compared.cells}
    assert set(cells) == set(METHODS)
    for name, cell in cells.items():
        assert cell.metrics["perplexity"] > 1, name
        if METHODS[name].private:
            assert 7.5 < cell.paid <= 8.0, name
        else:
            assert cell.paid is None, name
    assert cells["floor"].metrics["perplexity"] < cells["public"].metrics["perplexity"]
    assert cells["fine_tune"].metrics["perplexity"] < cells["dp_sgd"].metrics["perplexity"]
    for name in ("distildp", "texts"):
        notes = cells[name].notes
        assert 0 <= notes["copied_tokens"] <= notes["copied_texts"] <= 1
        assert 0 <= notes["public_copied_tokens"] <= 1


@pytest.mark.slow
def test_rows_that_differ_in_the_students_lesson_share_one_teacher(compared):
    runs = sorted((compared.folder / "work").glob("teacher-*"))
    assert len(runs) == 1
    assert len(list((compared.folder / "work").glob("apart-*"))) == 1
    cells = {cell.method: cell for cell in compared.cells}
    events = [cells[name].event for name in ("distildp", "texts", "teacher")]
    assert events[0] == events[1] == events[2]
    assert cells["distildp"].metrics != cells["texts"].metrics


@pytest.mark.slow
def test_dpkd_pays_for_both_of_its_trainings(compared):
    cells = {cell.method: cell for cell in compared.cells}
    noise = {name: cell.notes["noise_multiplier"] for name, cell in cells.items() if "noise_multiplier" in cell.notes}
    assert noise["dpkd"] == noise["dpkd-ft"] > noise["dp_sgd"]
    assert cells["dpkd"].metrics != cells["dpkd-ft"].metrics
    assert len(str(cells["dpkd"].event)) > len(str(cells["dp_sgd"].event))


def test_a_student_with_a_public_start_of_its_own_begins_with_no_layers_of_its_teacher(distildp_plan, tiny_gpt2):
    assert "dpkd-ft" in methods_of(distildp_plan())
    assert "dpkd-ft" not in methods_of(distildp_plan(distil={"layers": None, "student": str(tiny_gpt2)}))


@pytest.mark.slow
def test_a_comparison_without_public_text_is_refused(distildp_plan, tmp_path, monkeypatch):
    monkeypatch.setattr(connecting, "find_launcher", lambda name: RayLauncher())
    with pytest.raises(PlanError, match="evaluation"):
        api.compare(distildp_plan(evaluation=None), epsilons=[8.0], seeds=1, output=tmp_path / "table")


MOVED = {
    "lora": {"attn.c_attn"},
    "lora-all": {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"},
    "full": {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "ln_1", "ln_2", "ln_f", "wte", "wpe"},
}


@pytest.mark.slow
@pytest.mark.parametrize("adapt", list(MOVED))
def test_what_is_to_be_trained_has_really_moved_and_nothing_else(distildp_plan, tmp_path, adapt):
    import torch

    from coordinator.comparing.comparable import ComparisonRequest
    from coordinator.progress.progress import Silent
    from coordinator.run.party_files import party_tables
    from coordinator.systems.distildp.compare import DistilDpComparison
    from coordinator.systems.distildp.data import PrivateHalf
    from coordinator.systems.registry import recipe_of
    from learning.models.encoders import language_model

    plan = distildp_plan(model={"adapt": adapt}, codes=None)
    given = ComparisonRequest(
        plan, RayLauncher(), party_tables(plan), tmp_path, tmp_path / "cache", Silent(), recipe_of
    )  # fmt: skip
    data = DistilDpComparison(given).data(5, tmp_path / "work")
    recipe = PrivateHalf(plan, data.public)
    with driven(recipe, data.shards, Silent()) as run:
        trained = dict(recipe.teacher(run.store).plain.named_parameters())
    start = dict(language_model(plan.model.name)[0].named_parameters())
    moved = {name for name, each in start.items() if not torch.equal(each, trained[name])}
    weights = {name for name in start if any(f"{part}." in name for part in MOVED[adapt])}
    if adapt != "full":
        weights = {name for name in weights if name.endswith("weight")}
    assert moved == weights
