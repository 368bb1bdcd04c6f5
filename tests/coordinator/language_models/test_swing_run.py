"""Whole runs of swing distillation among parties that are nodes of this process: what is published, what it cost, whose
texts it exposes, and that a run that was stopped at any stage ends with the very same student.
"""

import json
from contextlib import closing

import numpy as np
import pytest

from coordinator import api
from coordinator.errors import RunStopped
from coordinator.language_models.students import first_student
from coordinator.progress.progress import Silent
from coordinator.store import output
from coordinator.store.store import RunStore
from coordinator.systems.registry import plan_of, prepared
from coordinator.systems.swing import teaching
from coordinator.systems.swing.questions import start_of
from coordinator.systems.swing.student import DROWNED

SAME = {"insecure_reproducible_noise": True}
EXPOSED = "the texts of [queries], which belong to whoever ran this"


@pytest.fixture(scope="module")
def finished(here_for_all, swing_tables, tmp_path_factory):
    """One run with a secure sum: its result, and its folder."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return api.run(plan_of(swing_tables(privacy={"trust": "secure-sum"})), output=folder), folder


@pytest.mark.slow
def test_the_student_is_a_language_model_of_the_standard_library(finished):
    from transformers import pipeline

    result, _ = finished
    said = pipeline("text-generation", str(result.student))("the", max_new_tokens=3)
    assert said[0]["generated_text"].startswith("the")
    assert (result.student / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((result.student / "config.json").read_text())["n_layer"] == 1


@pytest.mark.slow
def test_its_page_shows_what_it_writes(finished):
    page = api.page(finished[1])
    for said in ("What it writes", "a language model, which learned what their own models would say"):
        assert said in page
    assert str(finished[1]) not in page


@pytest.mark.slow
def test_all_that_was_released_is_priced_and_anyone_can_check_it(finished):
    result, _ = finished
    assert result.verdict.ok
    assert 7.9 < result.epsilon <= 8.0
    privacy = json.loads((result.student / "privacy.json").read_text())
    (release,) = privacy["releases"]
    assert release["name"] == "differences"
    assert privacy["epsilon"] == result.epsilon
    for path in (result.student / "attestations").glob("*.json"):
        assert [each["name"] for each in json.loads(path.read_text())["releases"]] == ["differences"]


def test_it_is_said_whose_texts_nothing_protects(finished):
    result, _ = finished
    privacy = json.loads((result.student / "privacy.json").read_text())
    assert EXPOSED in privacy["not_protected"][0]
    card = (result.student / "README.md").read_text()
    assert EXPOSED in card
    assert "texts of whoever ran this" in card
    assert "4 language models" in card


def test_the_student_is_set_beside_the_public_model(finished):
    result, _ = finished
    assert result.metrics["token_perplexity"] < result.metrics["public_perplexity"]
    assert result.metrics["tokens"] > 0
    assert result.metrics["parameters"] > 0
    heeded = result.metrics["heeded"]
    assert 0 <= heeded <= 1
    assert result.metrics.get("warnings", []) == ([DROWNED] if heeded < 0.01 else [])
    assert f"mean over tokens: {heeded:.2f}" in (result.student / "README.md").read_text()


def test_all_of_it_is_a_runs_own_so_that_a_new_run_may_take_its_place(finished):
    _, folder = finished
    assert output.strangers(folder) == []
    output.check_folder(folder)
    assert [path for path in (folder / "artefacts").rglob("*") if path.stat().st_mode & 0o077] == []


def test_every_party_is_asked_once_and_sent_the_texts(finished, here_for_all):
    assert sorted(here_for_all.asked) == [("party-1", "differences-0"), ("party-2", "differences-0")]


@pytest.mark.slow
def test_texts_that_are_public_are_nobodys_secret(here, swing_tables, tmp_path):
    result = api.run(plan_of(swing_tables(queries={"public": True}, evaluation=None)), output=tmp_path / "run")
    assert result.verdict.ok
    assert EXPOSED not in (result.student / "privacy.json").read_text()
    card = (result.student / "README.md").read_text()
    assert EXPOSED not in card
    assert "public texts" in card
    assert "token_perplexity" not in result.metrics
    assert not (result.student / "evaluation.png").exists()


@pytest.mark.slow
def test_a_user_whose_texts_go_together_is_protected(here, swing_tables, news, tmp_path):
    shards = {"source": str(news / "parties.jsonl"), "user": "person", "split": {"by": "hash", "parties": 2}}
    tables = swing_tables(privacy={"unit": "user", "declared_size": 17}, federation={"launch": "ray", "shards": shards})
    result = api.run(plan_of(tables), output=tmp_path / "run")
    assert result.verdict.ok
    assert json.loads((result.student / "privacy.json").read_text())["unit"] == "user"


@pytest.mark.slow
def test_the_measurements_are_shown_as_one_bar(finished):
    with closing(RunStore(finished[1])) as store:
        assert store.fact("bars")["measuring"] == [2000, 2000, "percent"], "student and public model"


class _Stops(Silent):
    """Interrupts a run at the first report of one piece of work, once."""

    def __init__(self, work):
        self._work = work

    def bar(self, label, done, total, note=""):
        if label == self._work:
            self._work = None
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def same(swing_tables):
    return plan_of(swing_tables(privacy=SAME))


@pytest.fixture(scope="module")
def undisturbed(here_for_all, same, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return _published(api.run(same, output=folder).student), folder


def _published(student):
    return (student / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_run_that_was_stopped_while_its_student_learned_ends_with_the_same_student(
    here_for_all, same, undisturbed, tmp_path
):
    with pytest.raises(RunStopped):
        api.run(same, output=tmp_path / "run", progress=_Stops("learning"))
    here_for_all.asked.clear()
    assert _published(api.resume(tmp_path / "run").student) == undisturbed[0]
    assert not here_for_all.asked  # no party is asked for anything again


@pytest.mark.slow
def test_a_run_that_was_stopped_while_the_public_model_was_asked_ends_with_the_same_student(
    here_for_all, same, undisturbed, tmp_path
):
    with pytest.raises((RunStopped, KeyboardInterrupt)):
        api.run(same, output=tmp_path / "run", progress=_Stops("public model"))
    assert _published(api.resume(tmp_path / "run").student) == undisturbed[0]


@pytest.mark.slow
def test_a_run_whose_party_was_lost_while_teachers_were_asked_goes_on_to_the_same_student(
    here_for_all, same, undisturbed, tmp_path
):
    def lose(name, asked):
        if name == "party-2":
            here_for_all.before = None
            raise KeyboardInterrupt

    here_for_all.before = lose
    try:
        with pytest.raises((RunStopped, KeyboardInterrupt)):
            api.run(same, output=tmp_path / "run")
    finally:
        here_for_all.before = None
    assert _published(api.resume(tmp_path / "run").student) == undisturbed[0]


@pytest.mark.slow
def test_the_student_learns_from_the_noisy_mean_of_all_teachers_as_it_stands_out_of_the_noise(
    same, undisturbed, tmp_path
):
    """The stored sum, divided by clip's levels and by the number of teachers; what is learned from it is published."""
    import torch
    from safetensors.numpy import load

    from aggregation.mechanisms.mechanism import Released
    from aggregation.mechanisms.vectors import DifferencesMechanism
    from coordinator.pricing.priced_plan import price_plan
    from coordinator.systems.swing.questions import stored_outcomes
    from learning.language.distilling import distil
    from learning.language.soft_targets import STEP, Targets
    from learning.swing.answers import cells_kept
    from learning.swing.shrinking import answers_of

    content, folder = undisturbed
    recipe = prepared(same, tmp_path, tmp_path / "cache")
    store, priced, public = RunStore(folder), price_plan(recipe), recipe.read
    try:
        bounds = priced.releases[0].under(DifferencesMechanism)
        total = np.concatenate([block for *_, block in store.blocks("differences")])
        kept = stored_outcomes(same, public, store)
        said = Released(total * bounds.clip / bounds.levels, 2 * bounds.clip * bounds.noise_multiplier)
        found = answers_of(said, cells_kept(kept.ids, kept.codes), 4)  # two parties, two teachers each
        targets = teaching.corrected(priced, public, 2, store)
        assert np.array_equal(targets.ids, kept.ids)
        codes = (np.log(found.chances[:, :-1]) / -STEP).round()
        assert np.abs(targets.codes.astype(int) - codes.astype(int)).max() <= 1
        assert np.allclose(targets.weights, found.weights, atol=1e-6)
        assert store.fact("heeded") == pytest.approx(found.weights.mean())
    finally:
        store.close()
    student = first_student(same, public, start_of(public))
    lesson = Targets(targets.ids, targets.codes, None, public.queries.stops, 1.0, targets.weights)
    (tmp_path / "learning").mkdir()
    distil(
        student, public.queries, [public.bare] * len(public.queries), lesson, same.distil.settings(),
        seed=same.run.seed, checkpoint=tmp_path / "learning", on_step=lambda *told: None,
    )  # fmt: skip
    expected = {name: each.detach().numpy() for name, each in student.named_parameters()}
    published = load(content)
    assert published
    for name, each in published.items():
        assert torch.allclose(torch.from_numpy(each), torch.from_numpy(expected[name]), atol=1e-5), name
