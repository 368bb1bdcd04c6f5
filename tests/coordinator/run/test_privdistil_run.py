"""Whole runs of PrivDistil: from a plan to the published student, and what becomes of a run that is disturbed.

The parties are nodes of this process.
"""

import json
from contextlib import closing

import numpy as np
import pytest

from coordinator import api
from coordinator.console.command import main
from coordinator.errors import RunStopped
from coordinator.run import connecting
from coordinator.store.store import RunStore
from coordinator.systems.privdistil import recipe
from coordinator.systems.privdistil.distillation import COMPRESSED
from coordinator.systems.privdistil.recipe import CHOSEN
from coordinator.transport.launchers import find_launcher

PARTIES = ("party-1", "party-2", "party-3", "party-4")
STEPS = 4
SAME = {"insecure_reproducible_noise": True}
SECURE = {"trust": "secure-sum", "dropouts": 1}


def charges(student):
    """What each party attests that it was charged, in order."""
    return {
        path.stem: sorted(each["name"] for each in json.loads(path.read_text())["releases"])
        for path in sorted((student / "attestations").glob("*.json"))
    }


STEPWISE = [f"steps.{number}" for number in range(STEPS)]


def learned(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "artefacts/student.safetensors")["point"]


def chosen(folder):
    return np.frombuffer((folder / CHOSEN).read_bytes(), "<i8")


def like(public_texts, numbers):
    """The share of chosen texts that talk as the parties do; every row of the corpus is another text."""
    rows = [json.loads(line) for line in public_texts.read_text().splitlines()]
    return np.mean([rows[number]["like"] for number in numbers])


@pytest.fixture(scope="module")
def finished(here_for_all, privdistil_plan, tmp_path_factory):
    """One run with the secure sum: its result, folder, and what parties were asked to train."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    here_for_all.asked.clear()
    result = api.run(privdistil_plan(privacy=SECURE), output=folder)
    return result, folder, list(here_for_all.asked)


@pytest.mark.slow
def test_a_run_gives_a_verified_student_and_charges_the_choice_and_every_step(finished):
    result, folder, asked = finished
    assert result.verdict.ok, result.verdict.checks
    assert 0 < result.epsilon <= 8.0
    assert charges(result.student) == {name: ["domain", *STEPWISE] for name in PARTIES}
    domain, steps = json.loads((result.student / "privacy.json").read_text())["releases"]
    assert domain["says"].startswith("a model that each party trained alone by DP-SGD")
    assert domain["parties"] == list(PARTIES)
    assert steps["steps"]["fewest"] == 4
    assert sorted(set(asked)) == sorted(
        (name, operation) for name in PARTIES for operation in ("domain", *(f"steps-{step}-0" for step in range(STEPS)))
    )
    assert len(chosen(folder)) == 60
    assert "What it takes for what" in api.page(folder)
    assert len(set(chosen(folder).tolist())) == 60


@pytest.mark.slow
def test_nothing_of_a_run_is_for_others_but_its_student_which_tells_no_place(finished, private_but_for_the_student):
    private_but_for_the_student(finished[1])


@pytest.mark.slow
def test_the_student_has_fewer_layers_and_works_in_the_standard_classes(finished, tiny_bert):
    from transformers import AutoConfig, AutoModelForSequenceClassification, pipeline

    student = finished[0].student
    model = AutoModelForSequenceClassification.from_pretrained(student)
    assert model.config.num_hidden_layers == 1
    assert AutoConfig.from_pretrained(tiny_bert).num_hidden_layers == 2
    (found,) = pipeline("text-classification", str(student))(["a good film"])
    assert found["label"] in ("negative", "positive")


@pytest.mark.slow
def test_the_report_says_what_left_outside_the_sum_and_how_good_the_choice_was(finished, capsys):
    result = finished[0]
    assert main(["report", result.run]) == 0
    said = capsys.readouterr().out
    assert "Weights: the coordinator received what each party trained alone" in said
    assert "Secure sum: of what went through it the coordinator learned noisy sums" in said
    assert "agreement of the parties' domain classifiers, Spearman" in said
    assert "accuracy on public test text" in said
    card = (result.student / "README.md").read_text()
    assert "with 1 of its 2 layers" in card
    assert "60 public texts, chosen privately" in card
    assert main(["verify", str(result.student), "--trust", str(result.authority)]) == 0
    assert "it saw each party's own model in domain, under that party's own noise" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.slow
def test_texts_like_the_parties_own_are_chosen_and_a_student_of_them_learned(
    here, privdistil_plan, public_texts, tmp_path
):
    plan = privdistil_plan(
        privacy=SAME | {"epsilon": 20.0, "delta": 1e-4},
        domain={"epsilon": 15.0, "steps": 20},
        selection={"clusters": 1},
    )
    api.run(plan, output=tmp_path / "run")
    share = like(public_texts, chosen(tmp_path / "run"))
    assert share > 0.9, "60 of 240 by chance: 0.5, standard deviation 0.056"


class Killed(BaseException):
    """What ends a coordinator between two words."""


def dies(*arguments):
    raise Killed


@pytest.mark.slow
def test_a_coordinator_that_was_killed_goes_on_to_the_very_same_student(here, privdistil_plan, tmp_path, monkeypatch):
    plan = privdistil_plan(privacy=SAME)
    api.run(plan, output=tmp_path / "whole")
    here.asked.clear()
    for owner, name in ((recipe, "choose"), (recipe, "compress"), (recipe, "descend")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, dies)
            goes_on = (tmp_path / "killed").exists()
            with pytest.raises(Killed):
                api.resume(tmp_path / "killed") if goes_on else api.run(plan, output=tmp_path / "killed")
    result = api.resume(tmp_path / "killed")
    assert result.verdict.ok, result.verdict.checks
    assert here.asked.count(("party-1", "domain")) == 1, "what was paid for is kept"
    assert np.array_equal(chosen(tmp_path / "killed"), chosen(tmp_path / "whole"))
    assert np.array_equal(learned(tmp_path / "killed"), learned(tmp_path / "whole"))


@pytest.mark.slow
def test_a_run_that_is_stopped_amid_distilling_ends_soon_and_goes_on(here, privdistil_plan, tmp_path, monkeypatch):
    plan = privdistil_plan(distil={"passes": 3})
    with pytest.MonkeyPatch.context() as patch:
        own = recipe.compress
        seen = []

        def stopping(plan, public, numbers, folder, base, told):
            def tells(what, done, total):
                seen.append(done)
                if done == 2:
                    raise RunStopped("stopped")
                told(what, done, total)

            return own(plan, public, numbers, folder, base, tells)

        patch.setattr(recipe, "compress", stopping)
        with pytest.raises(RunStopped, match="go on:  coordinator resume"):
            api.run(plan, output=tmp_path / "run")
    assert seen == [1, 2]
    assert not (tmp_path / "run" / COMPRESSED).exists()
    result = api.resume(tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    assert sorted(path.name for path in (tmp_path / "run/artefacts").iterdir()) == [
        "chosen.i64", "compressed", "descent.safetensors", "domain.safetensors", "exhibits.json", "student.safetensors",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["secure-sum", "trusted-aggregator"])
def test_classifiers_that_may_not_leave_score_the_corpus_themselves(here, privdistil_plan, tmp_path, trust):
    for name in PARTIES:
        here.changes[name] = {"policy": {"weights": False}}
    plan = privdistil_plan(privacy={"trust": trust}, domain={"release": "scores"})
    result = api.run(plan, output=tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    assert charges(result.student) == {name: ["domain", "scores", *STEPWISE] for name in PARTIES}
    assert len(chosen(tmp_path / "run")) == 60


@pytest.mark.slow
def test_scores_and_weights_choose_the_same_texts(here, privdistil_plan, tmp_path):
    """The same noise, the same classifiers: but for the grid of the scores and the order of sums, the same choice."""
    taken = {}
    for form in ("weights", "scores"):
        plan = privdistil_plan(privacy=SAME, domain={"release": form}, selection={"method": "classifier"})
        api.run(plan, output=tmp_path / form)
        taken[form] = set(chosen(tmp_path / form).tolist())
    assert len(taken["weights"] & taken["scores"]) >= 54


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"selection": {"method": "random"}},
        {"selection": {"by": "random"}},
        {"domain": {"model": "other"}},
        {"domain": {"adapt": "lora"}, "model": {"adapt": "lora", "rank": 2}},
        {"dp_sgd": {"form": "local"}},
    ],
)
def test_other_forms_of_the_recipe_run_to_their_end(here, privdistil_plan, tiny_bert, tmp_path, monkeypatch, changes):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").symlink_to(tiny_bert)
    result = api.run(privdistil_plan(**changes), output=tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    scored = changes.get("selection", {}).get("method") != "random"
    assert ("domain" in charges(result.student)["party-1"]) is scored


@pytest.mark.slow
def test_pairs_and_scores_of_texts_are_learned_too(here, privdistil_plan, privdistil_tables, opinions, tmp_path):
    pairs = {
        "text": {"kind": "pair"},
        "federation": {"shards": privdistil_tables()["federation"]["shards"] | {"second": "second"}},
        "evaluation": {"second": "second"},
    }
    result = api.run(privdistil_plan(**pairs), output=tmp_path / "pairs")
    assert result.verdict.ok, result.verdict.checks
    scores = {"text": {"kind": "regression", "labels": [], "values": [], "range": [0.0, 1.0]}}
    result = api.run(privdistil_plan(**scores), output=tmp_path / "scores")
    assert result.verdict.ok, result.verdict.checks
    assert "pearson" in result.metrics


@pytest.mark.slow
def test_a_teacher_that_speaks_gives_a_student_that_classifies(here, privdistil_plan, tiny_gpt2, tmp_path):
    result = api.run(privdistil_plan(model={"name": str(tiny_gpt2)}), output=tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    with closing(RunStore(tmp_path / "run")) as store:
        losses = store.stages()["compress"][2]["losses"]
    assert {"soft", "cosine"} <= set(losses)


@pytest.mark.slow
def test_a_classifier_that_learned_nothing_is_said_to_be_no_better_than_random(here, privdistil_plan, tmp_path, capsys):
    plan = privdistil_plan(domain={"epsilon": 0.01, "steps": 2})
    result = api.run(plan, output=tmp_path / "run")
    assert main(["report", result.run]) == 0
    said = capsys.readouterr().out
    assert "their selection is no better than random" in " ".join(said.split())
    assert "no better than random" in (result.student / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_corpus_that_ray_works_through_gives_the_same_choice(here, privdistil_plan, tmp_path, monkeypatch):
    """Parties that Ray starts, and the corpus worked through by the same Ray; beside parties and corpus of here."""
    made = {"privacy": SAME, "dp_sgd": {"steps": 2}}
    api.run(privdistil_plan(**made), output=tmp_path / "here")
    with monkeypatch.context() as real:
        real.setenv("CONCLAVE_HOME", str(tmp_path / "other"))
        real.setattr(connecting, "find_launcher", find_launcher)
        result = api.run(privdistil_plan(selection={"streamer": "ray"}, **made), output=tmp_path / "ray")
    assert result.verdict.ok
    assert chosen(tmp_path / "ray").tolist() == chosen(tmp_path / "here").tolist()
    assert np.allclose(learned(tmp_path / "ray"), learned(tmp_path / "here"), atol=1e-4)
