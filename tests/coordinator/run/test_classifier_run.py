"""Whole runs of text classifiers: from a plan to the published student, and what becomes of a run that is disturbed.

The parties are nodes of this process. What such a run is over processes is met in test_run.py and in tests/faults.
"""

import json
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent

from aggregation.errors import AttemptLost, ConclaveError
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.noise.stream import NoiseStream
from coordinator import api
from coordinator.console.command import main
from coordinator.errors import PartyLost, PartyRefused, PlanError
from coordinator.federation import federation
from coordinator.federation.federation import Federation
from coordinator.federation.sum_attempt import SumRun
from coordinator.store.store import RunStore
from coordinator.systems.registry import plan_of
from coordinator.text_models import votes
from coordinator.text_models.federated_training import DESCENT
from coordinator.verifying.attestations import OVERCHARGED, UNATTESTED
from learning.errors import DataError
from learning.private_training.optimisation import Training
from party.ledger.attesting import attestation
from party.node import node

PARTIES = ("party-1", "party-2", "party-3", "party-4")
STEPS, UNITS = 4, 240
PARAMETERS = 33 * 32 + 33 * 2
"""Of the small model's last layers: what pools, and what says a class."""
SECURE = {"trust": "secure-sum"}
SAME = {"insecure_reproducible_noise": True}


class Killed(BaseException):
    """What ends a coordinator between two words."""


def charges(student):
    """What each party attests that it was charged, as `(release, attempt)`, in order."""
    return {
        path.stem: sorted((each["name"], each["attempt"]) for each in json.loads(path.read_text())["releases"])
        for path in sorted((student / "attestations").glob("*.json"))
    }


def once(*names):
    return [(name, 0) for name in names]


STEPWISE = once(*(f"steps.{number}" for number in range(STEPS)))


def privacy_of(student):
    return json.loads((student / "privacy.json").read_text())


def learned(folder):
    """What was trained, of a finished run."""
    from safetensors.numpy import load_file

    return load_file(folder / "artefacts/student.safetensors")["point"]


@pytest.fixture(scope="module")
def federated(here_for_all, classifier_plan, tmp_path_factory):
    """One run with the secure sum, for the tests that look at what is left of it: its result and folder."""
    folder = tmp_path_factory.mktemp("federated") / "run"
    return api.run(classifier_plan(privacy=SECURE | {"dropouts": 1}), output=folder), folder


@pytest.mark.slow
def test_steps_of_all_parties_give_a_verified_classifier_that_each_paid_for_step_by_step(
    federated, here_for_all, private_but_for_the_student
):
    result, folder = federated
    assert result.verdict.ok, result.verdict.checks
    assert 0 < result.epsilon <= 8.0
    private_but_for_the_student(folder)
    measured = {"accuracy", "macro_f1", "calibration_error", "examples"}
    assert set(result.metrics) == measured | {"majority", "public_start"}
    assert charges(result.student) == dict.fromkeys(PARTIES, STEPWISE)
    assert sorted(here_for_all.asked) == [(name, f"steps-{step}-0") for name in PARTIES for step in range(STEPS)]
    (release,) = privacy_of(result.student)["releases"]
    assert release["steps"] == {"fewest": 4, "parties": dict.fromkeys(PARTIES, STEPS)}
    assert release["says"].startswith("steps of DP-SGD by all parties")
    with closing(RunStore(folder)) as store:
        assert store.block_counts() == {}, "a sum is dropped when its step is made"
        assert store.summed("steps.3") == PARTIES
        assert store.fact("parties") == dict.fromkeys(PARTIES, "trained")
        assert store.fact("bars")["measuring"] == [2000, 2000, "percent"], "of the public start and of the student"
    point = learned(folder)
    assert point.shape == (PARAMETERS,)
    assert np.isfinite(point).all()
    assert list(folder.rglob("*.part")) == []


@pytest.mark.slow
def test_the_student_says_the_plans_labels_in_the_standard_pipeline(federated):
    from transformers import pipeline

    classify = pipeline("text-classification", str(federated[0].student))
    (found,) = classify(["a good film"])
    assert found["label"] in ("negative", "positive")
    assert 0.5 <= found["score"] <= 1
    assert (federated[0].student / "evaluation.png").stat().st_size > 0


@pytest.mark.slow
def test_report_shows_what_was_promised_of_the_steps(federated, capsys):
    assert main(["report", federated[0].run]) == 0
    said = capsys.readouterr().out
    assert "guarantee  epsilon" in said
    assert "release    steps: steps of DP-SGD by all parties" in said
    assert "4 steps" in said
    assert "accuracy on public test text" in said
    assert main(["verify", str(federated[0].student)]) == 0


def killing(monkeypatch, method, name, when=1):
    """Have the coordinator die as it calls a method of the run's store with this name for the `when`-th time."""
    original, seen = getattr(RunStore, method), []

    def dies(store, given, *more):
        if given == name:
            seen.append(given)
            if len(seen) == when:
                raise Killed
        return original(store, given, *more)

    monkeypatch.setattr(RunStore, method, dies)


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["secure-sum", "trusted-aggregator"])
def test_a_coordinator_that_was_killed_goes_on_to_the_very_same_parameters(here, classifier_plan, tmp_path, trust):
    plan = classifier_plan(privacy=SAME | {"trust": trust})
    whole = api.run(plan, output=tmp_path / "whole")
    assert whole.verdict.ok, whole.verdict.checks
    assert whole.epsilon is None
    here.asked.clear()
    with pytest.MonkeyPatch.context() as patch:
        killing(patch, "write", DESCENT, when=3)  # the third sum is stored, the step is not made
        with pytest.raises(Killed):
            api.run(plan, output=tmp_path / "killed")
        patch.undo()
        killing(patch, "drop_blocks", "steps.2")  # the step is made, its sum is still there
        with pytest.raises(Killed):
            api.resume(tmp_path / "killed")
    with closing(RunStore(tmp_path / "killed")) as store:
        assert store.block_counts() == {"steps.2": 1}
    result = api.resume(tmp_path / "killed")
    assert result.verdict.ok, result.verdict.checks
    assert np.array_equal(learned(tmp_path / "killed"), learned(tmp_path / "whole"))
    assert charges(result.student) == dict.fromkeys(PARTIES, STEPWISE)
    asked = [here.asked.count(("party-1", f"steps-{step}-0")) for step in range(STEPS)]
    assert asked == [1, 1, 1 if trust == "secure-sum" else 2, 1]


@pytest.mark.slow
def test_a_party_that_was_asked_for_a_step_again_gives_the_very_same_answer(
    here, classifier_plan, tmp_path, monkeypatch
):
    """Sample and noise are nobody's to know and drawn once: another answer would be another release, and unpaid."""
    given, total = [], federation.modular_sum

    def records(blocks):
        given.append([block.copy() for block in blocks])
        return total(blocks)

    monkeypatch.setattr(federation, "modular_sum", records)
    with pytest.MonkeyPatch.context() as patch:
        killing(patch, "put_block", "steps.1")
        with pytest.raises(Killed):
            api.run(classifier_plan(), output=tmp_path / "run")
    result = api.resume(tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    assert charges(result.student) == dict.fromkeys(PARTIES, STEPWISE)
    assert len(given) == STEPS + 1
    assert np.array_equal(given[1], given[2])
    assert not np.array_equal(given[0], given[1])


@pytest.mark.slow
def test_a_coordinator_that_was_killed_amid_a_secure_sum_finds_the_attempt_where_it_was(
    here, classifier_plan, tmp_path
):
    here.stays = True
    plan = classifier_plan(privacy=SECURE | SAME | {"dropouts": 1})
    whole = api.run(plan, output=tmp_path / "whole")
    here.end()
    with pytest.MonkeyPatch.context() as patch:
        survivors = SumRun._survivors

        def dies(run):
            if run._wanted.release == "steps.2":
                raise Killed
            return survivors(run)

        patch.setattr(SumRun, "_survivors", dies)
        with pytest.raises(Killed):
            api.run(plan, output=tmp_path / "killed")
    result = api.resume(tmp_path / "killed")
    assert result.verdict.ok, result.verdict.checks
    assert charges(result.student) == charges(whole.student) == dict.fromkeys(PARTIES, STEPWISE)
    assert np.array_equal(learned(tmp_path / "killed"), learned(tmp_path / "whole"))


@pytest.fixture
def sums(monkeypatch):
    """Every step's sum as it was stored, and what the optimiser was then given, as two lists."""
    found, taken = [], []
    drop, step = RunStore.drop_blocks, Training.step

    def drops(store, release):
        found.extend(block[0] for _, _, block in store.blocks(release))
        drop(store, release)

    def steps(descent, total):
        taken.append(total.copy())
        return step(descent, total)

    monkeypatch.setattr(RunStore, "drop_blocks", drops)
    monkeypatch.setattr(Training, "step", steps)
    return found, taken


@pytest.mark.slow
def test_a_steps_sum_is_that_of_all_parties_clipped_gradients_and_of_their_noise(
    here, classifier_plan, opinions, tmp_path, sums
):
    """Every unit is in the one step, so the sum can be made again by one model of all the text."""
    from learning.models.adapting import adapt
    from learning.models.batching import encode, losses
    from learning.models.encoders import classifier
    from learning.private_training.clipped_sum import clipped_sum
    from learning.private_training.per_example import PerExample
    from learning.private_training.text_units import TextUnits

    plan = classifier_plan(privacy=SAME, dp_sgd={"steps": 1, "batch": UNITS})
    result = api.run(plan, output=tmp_path / "run")
    (release,) = privacy_of(result.student)["releases"]
    mechanism = GradientMechanism(**release["mechanism"])
    model, tokenizer = classifier(plan.model.name, plan.text.targets, seed=7)
    adapt(model, "head", seed=7)
    rows = [json.loads(line) for line in (opinions / "films.jsonl").read_text().splitlines()]
    texts = encode(tokenizer, [row["text"] for row in rows], longest=16).rows
    units = TextUnits(model.config, texts, torch.tensor([int(row["mood"]) for row in rows]))
    whole = clipped_sum(PerExample(model), units.micro_batches(np.arange(UNITS)), losses, mechanism)
    shares = [mechanism.noise_share((PARAMETERS,), NoiseStream.insecure(7, name, "steps.0", "0")) for name in PARTIES]
    clean = sums[0][0] - np.sum(shares, axis=0)
    wanted = mechanism.contribute(whole)
    assert np.abs(wanted).max() > 100
    assert np.abs(clean - wanted).max() <= 2 * len(PARTIES)


@pytest.fixture
def loses(here):
    """`loses(operation)`: party-2's node ends before it hears of that."""

    def starts(operation):
        here.before = lambda name, wanted: here.kill(name) if (name, wanted) == ("party-2", operation) else None

    return starts


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["secure-sum", "trusted-aggregator"])
def test_a_party_that_is_lost_amid_the_steps_is_named_and_the_run_goes_on(
    loses, classifier_plan, tmp_path, capsys, sums, trust
):
    loses("steps-2-0")
    result = api.run(classifier_plan(privacy={"trust": trust, "dropouts": 1}), output=tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    rest = {name: STEPWISE for name in PARTIES if name != "party-2"}
    assert charges(result.student) == rest
    privacy = privacy_of(result.student)
    assert privacy["parties"] == {"planned": 4, "in_the_sum": 3, "shares_needed": 3}
    assert privacy["releases"][0]["steps"] == {"fewest": 3, "parties": dict.fromkeys(rest, 4) | {"party-2": 2}}
    mechanism = GradientMechanism(**privacy["releases"][0]["mechanism"])
    for number, (total, taken) in enumerate(zip(*sums, strict=True)):
        values = mechanism.release(total, 4 if number < 2 else 3).values
        assert np.allclose(taken, values * (1 if number < 2 else 4 / 3), rtol=1e-5), "the divisor is for all units"
    said = {each.name: "\n".join(each.sentences) for each in result.verdict.checks}
    assert "party-2 attests nothing (" in said["parties"]
    assert main(["report", result.run]) == 0
    assert "lost       steps: party-2 in 2 of 4 sums" in capsys.readouterr().out
    assert "- Release `steps`: party-2 in 2 of 4 sums." in (result.student / "README.md").read_text()


EXTRA = ("more", 0, GaussianDpEvent(0.5))
LIES = {
    "charged for more": lambda run, charged: (run, [*charged, EXTRA]),
    "of another run": lambda run, charged: (replace(run, id="another"), charged),
    "charged for nothing": lambda run, charged: (run, []),
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
def test_a_party_that_signs_other_costs_than_the_runs_is_named_and_spoils_nothing(
    here, classifier_plan, tmp_path, monkeypatch, lie
):
    def says(identity, run, charged, account, *, simulation):
        if identity.name == "party-2":
            run, charged = LIES[lie](run, charged)
        return attestation(identity, run, charged, account, simulation=simulation)

    monkeypatch.setattr(node, "attestation", says)
    result = api.run(classifier_plan(privacy=SECURE | {"dropouts": 1}), output=tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    why = OVERCHARGED if lie == "charged for more" else UNATTESTED
    assert privacy_of(result.student)["left_out"] == {"party-2": why}
    assert f"Nothing is promised for party-2: {why}." in (result.student / "README.md").read_text()


@pytest.mark.slow
def test_a_party_that_was_lost_and_is_back_is_in_the_steps_that_follow(here, loses, classifier_plan, tmp_path):
    loses("steps-1-0")
    with pytest.MonkeyPatch.context() as patch:
        killing(patch, "write", DESCENT, when=3)
        with pytest.raises(Killed):
            api.run(classifier_plan(privacy=SECURE | {"dropouts": 1}), output=tmp_path / "run")
    here.before = None
    result = api.resume(tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    rest = {name: STEPWISE for name in PARTIES if name != "party-2"}
    assert charges(result.student) == rest | {"party-2": once("steps.0", "steps.3")}
    privacy = privacy_of(result.student)
    assert privacy["parties"]["in_the_sum"] == 3
    assert privacy["releases"][0]["steps"] == {"fewest": 3, "parties": dict.fromkeys(rest, 4) | {"party-2": 2}}


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["secure-sum", "trusted-aggregator"])
def test_a_run_that_lost_too_many_goes_on_later_and_pays_for_no_step_twice(
    here, loses, classifier_plan, tmp_path, trust
):
    loses("steps-2-0")
    with pytest.raises(PartyLost, match=r"party party-2 was lost.*needs 4 of its parties and 3 are left"):
        api.run(classifier_plan(privacy={"trust": trust}), output=tmp_path / "run")
    assert api.report(tmp_path / "run")["status"] == "resumable"
    here.before = None
    here.asked.clear()
    result = api.resume(tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    assert charges(result.student) == dict.fromkeys(PARTIES, STEPWISE)
    assert sorted(here.asked) == [(name, f"steps-{step}-0") for name in PARTIES for step in (2, 3)]


@pytest.mark.slow
def test_another_attempt_at_a_step_has_a_sample_of_its_own_and_is_paid_for(
    here, classifier_plan, tmp_path, monkeypatch
):
    rows, lost = SumRun.rows, []

    def loses(run):
        """Fails after all consented to the survivors, when nobody can take back what it may have revealed."""
        if run._wanted.release == "steps.1" and not lost:
            lost.append(run)
            raise AttemptLost("The sum was lost.")
        return rows(run)

    monkeypatch.setattr(SumRun, "rows", loses)
    plan = classifier_plan(privacy=SECURE | {"dropouts": 1, "attempts": 2, "noise_multiplier": 3.0})
    result = api.run(plan, output=tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    assert here.asked.count(("party-3", "steps-1-0")) == here.asked.count(("party-3", "steps-1-1")) == 1
    assert charges(result.student) == dict.fromkeys(PARTIES, sorted([*STEPWISE, ("steps.1", 1)]))
    assert result.epsilon <= 8.0
    said = {each.name: "\n".join(each.sentences) for each in result.verdict.checks}
    assert "party-1 was charged steps 1 more time" in said["parties"]


@pytest.mark.slow
def test_scores_of_two_texts_are_learned_by_adapters_and_published_as_a_plain_model(here, classifier_tables, tmp_path):
    from transformers import pipeline

    text = {"kind": "regression", "labels": [], "values": [], "range": [0.0, 1.0], "second": True}
    tables = classifier_tables(text=text, model={"adapt": "lora"}, evaluation={"second": "second"})
    tables["federation"]["shards"]["second"] = "second"
    result = api.run(plan_of(tables), output=tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    assert set(result.metrics) == {"pearson", "spearman", "error", "examples", "public_start"}
    classify = pipeline("text-classification", str(result.student), function_to_apply="none")
    assert np.isfinite(classify({"text": "a good film", "text_pair": "we saw it"})["score"])


LOCAL = {"form": "local", "rounds": 2}


@pytest.mark.slow
def test_models_that_parties_train_alone_are_averaged_round_after_round(here, classifier_plan, tmp_path, monkeypatch):
    gathered, gather = [], Federation.gather

    async def records(federation, *arguments, **named):
        found = await gather(federation, *arguments, **named)
        gathered.append(np.stack([each[0].astype(np.int32).view(np.float32) for each in found.values()]))
        return found

    monkeypatch.setattr(Federation, "gather", records)
    result = api.run(classifier_plan(dp_sgd=LOCAL, privacy=SAME), output=tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    assert [each.shape for each in gathered] == [(4, PARAMETERS)] * 2
    for number, models in enumerate(gathered):
        kept = np.frombuffer((tmp_path / f"run/artefacts/round-{number}.f32").read_bytes(), "<f4")
        assert np.allclose(kept, models.mean(axis=0), atol=1e-6)
        assert len({each.tobytes() for each in models}) == 4
    assert np.array_equal(kept, learned(tmp_path / "run"))
    assert charges(result.student) == dict.fromkeys(PARTIES, once("round-0", "round-1"))
    with closing(RunStore(tmp_path / "run")) as store:
        assert store.block_counts() == {}, "a party's own model is not kept"


@pytest.mark.slow
def test_a_party_that_is_lost_between_rounds_leaves_the_mean_to_the_others(here, loses, classifier_plan, tmp_path):
    loses("round-1")
    plan = classifier_plan(dp_sgd=LOCAL, federation={"minimum_parties": 3})
    result = api.run(plan, output=tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    rest = [name for name in PARTIES if name != "party-2"]
    assert charges(result.student) == dict.fromkeys(rest, once("round-0", "round-1"))
    assert [each["parties"] for each in privacy_of(result.student)["releases"]] == [list(PARTIES), rest]
    said = {each.name: "\n".join(each.sentences) for each in result.verdict.checks}
    assert "party-2 attests nothing (" in said["parties"]


@pytest.mark.slow
def test_rounds_that_are_stored_are_not_trained_again(here, classifier_plan, tmp_path):
    plan = classifier_plan(dp_sgd=LOCAL, privacy=SAME)
    with pytest.MonkeyPatch.context() as patch:
        killing(patch, "write", "artefacts/round-1.f32")
        with pytest.raises(Killed):
            api.run(plan, output=tmp_path / "run")
    result = api.resume(tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    assert charges(result.student) == dict.fromkeys(PARTIES, once("round-0", "round-1"))
    assert {round_: here.asked.count(("party-1", f"round-{round_}")) for round_ in (0, 1)} == {0: 1, 1: 2}


def test_a_party_that_keeps_its_weights_refuses_the_local_form(here, classifier_plan, tmp_path):
    here.changes["party-2"] = {"policy": {"weights": False}}
    with pytest.raises(PartyRefused) as refused:
        api.run(classifier_plan(dp_sgd=LOCAL), output=tmp_path / "run")
    assert "party party-2 refused to join: policy weights = false" in str(refused.value)
    assert "Nothing was spent" in str(refused.value)


@pytest.mark.slow
def test_a_party_whose_file_states_other_classes_refuses(here, classifier_plan, tmp_path):
    here.changes["party-3"] = {"shard": {"labels": ["negative", "neutral"], "values": ["0", "1"]}}
    with pytest.raises(PartyRefused) as refused:
        api.run(classifier_plan(), output=tmp_path / "run")
    said = str(refused.value)
    assert "party party-3 refused to join: policy [shard] labels" in said
    assert "class 2 is 'neutral', and in the plan it is 'positive' of 2" in said
    assert "Nothing was spent" in said


PUBLIC_TEXT = {
    "another label": ({"text": "a film", "mood": "7"}, r"\[evaluation\] .*The label '7' is outside the label map"),
    "one class": ({"text": "a film", "mood": "1"}, r"\[evaluation\] .* is of one class only.*Use text of two or more"),
    "no label": ({"text": "a film", "mood": ""}, r"has no example|no .*label|without"),
    "no such column": ({"text": "a film"}, "mood"),
}


@pytest.mark.parametrize(("row", "says"), PUBLIC_TEXT.values(), ids=PUBLIC_TEXT)
def test_public_text_that_cannot_measure_a_student_is_told_before_anything_is_paid(
    here, classifier_plan, tmp_path, row, says
):
    (tmp_path / "public.jsonl").write_text(f"{json.dumps(row)}\n" * 3)
    plan = classifier_plan(evaluation={"source": str(tmp_path / "public.jsonl")})
    with pytest.raises(ConclaveError, match=says):
        api.run(plan, output=tmp_path / "run")
    assert here.asked == []
    assert api.runs() == []


def test_fewer_public_texts_than_queries_are_told_before_anything_is_paid(here, classifier_plan, tmp_path):
    with pytest.raises(DataError, match=r"\[pate\] .* has 60 texts, and queries = 61. Use fewer, or more text"):
        api.run(classifier_plan("pate", pate={"queries": 61}), output=tmp_path / "run")
    assert api.runs() == []


@pytest.fixture
def one_sided(here, opinions, tmp_path):
    """A party whose own text is of one class."""
    rows = [json.loads(line) for line in (opinions / "films.jsonl").read_text().splitlines()]
    own = [json.dumps(row) for row in rows if row["mood"] == "1"]
    (tmp_path / "own.jsonl").write_text("\n".join(own))
    private = {"simulation": False, "trust": "trusted-aggregator"}
    here.changes["party-3"] = {"shard": {"source": str(tmp_path / "own.jsonl")}, "policy": private}
    return here


@pytest.mark.slow
def test_a_shard_of_one_class_takes_part_as_any_other_and_nobody_is_told(one_sided, classifier_plan, tmp_path):
    result = api.run(classifier_plan(), output=tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    assert "party-3" in charges(result.student)


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["secure-sum", "trusted-aggregator"])
def test_votes_on_public_texts_teach_a_student(here, classifier_plan, tmp_path, trust):
    plan = classifier_plan("pate", privacy={"trust": trust, "noise_multiplier": None}, pate={"threshold": 1.0})
    result = api.run(plan, output=tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    assert charges(result.student) == dict.fromkeys(PARTIES, once("votes"))
    assert 7.5 < result.epsilon <= 8.0
    (release,) = privacy_of(result.student)["releases"]
    assert "one vote a teacher among 2 classes" in release["says"]
    assert "steps" not in release
    assert result.metrics["examples"] == 60


@pytest.mark.slow
def test_votes_of_which_none_reach_the_threshold_end_in_a_sentence(here, classifier_plan, tmp_path, monkeypatch):
    monkeypatch.setattr(votes, "thresholded_labels", lambda votes, threshold: np.full(20, -1))
    plan = classifier_plan("pate", privacy=SAME | {"noise_multiplier": 10.0}, pate={"threshold": 20.0})
    with pytest.raises(PlanError, match=r"no text got so many noised votes.*Plan with a lower threshold"):
        api.run(plan, output=tmp_path / "run")
    assert api.report(tmp_path / "run")["status"] == "failed"
    assert not (tmp_path / "run/student").exists()
