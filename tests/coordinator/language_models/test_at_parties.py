"""DistilDP whose parties keep their teachers: these write and grade at the parties, and no parameter leaves."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from coordinator import api
from coordinator.errors import RunStopped
from coordinator.systems.distildp import at_parties
from coordinator.systems.registry import plan_of
from learning.language.soft_targets import STEP

ALONE = {
    "privacy": {"insecure_reproducible_noise": True},
    "dp_sgd": {"form": "local"},
}
KEPT = ALONE | {"generation": {"where": "parties"}}


@pytest.fixture(scope="module")
def finished(here_for_all, distildp_tables, tmp_path_factory):
    """One run whose parties keep their teachers: its result, and its folder."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    return api.run(plan_of(distildp_tables(**KEPT)), output=folder), folder


@pytest.mark.slow
def test_a_run_ends_with_a_student_though_no_parameter_left(finished):
    result, folder = finished
    assert result.verdict.ok
    assert result.metrics["token_perplexity"] < result.metrics["public_perplexity"]
    assert "teacher_perplexity" not in result.metrics
    assert (
        "private teachers of 2 layers, each kept by its party, begun as" in (result.student / "README.md").read_text()
    )
    assert not (folder / "artefacts/teachers.safetensors").exists()
    privacy = json.loads((result.student / "privacy.json").read_text())
    assert [each["name"] for each in privacy["releases"]] == ["tokens", "codes", "round-0", "texts", "targets"]
    assert [each["values"] for each in privacy["releases"]][2] == 0
    for path in (result.student / "attestations").glob("*.json"):
        charged = {each["name"]: json.dumps(each["event"]) for each in json.loads(path.read_text())["releases"]}
        assert set(charged) == {"tokens", "codes", "round-0", "texts", "targets"}
        costly = {name for name, event in charged.items() if "gaussian" in event}
        assert costly == {"tokens", "codes", "round-0"}


@pytest.mark.slow
def test_the_texts_are_those_of_a_run_that_lets_parameters_out(finished, here, distildp_tables, tmp_path):
    result, _ = finished
    other = api.run(plan_of(distildp_tables(**ALONE)), output=tmp_path / "run")
    texts = [(each.student / "texts/train.jsonl").read_bytes() for each in (result, other)]
    assert texts[0] == texts[1]
    assert "teacher_perplexity" in other.metrics


@pytest.mark.slow
def test_what_is_learned_from_is_near_the_mean_of_the_teachers(finished, here, distildp_tables, tmp_path):
    """The coordinator knows the 16 likeliest outcomes of each teacher, and not the rest."""
    _, folder = finished
    other = tmp_path / "run"
    api.run(plan_of(distildp_tables(**ALONE)), output=other)
    found = []
    for each in (folder, other):
        ids = np.fromfile(each / "artefacts/targets/ids", np.uint16).reshape(-1, 16)
        codes = np.fromfile(each / "artefacts/targets/codes", np.uint16).reshape(-1, 16)
        whole = np.zeros((len(ids), 4096))
        np.put_along_axis(whole, ids.astype(np.int64), np.exp(-STEP * codes), axis=1)
        found.append(whole)
    near, true = found
    assert near.shape == true.shape
    assert np.abs(near - true).sum(axis=1).mean() < 0.1
    assert np.abs(near - true).max() < 0.1


@pytest.mark.slow
def test_each_party_wrote_its_part(finished):
    _, folder = finished
    kept = load_file(folder / at_parties.SAID)
    assert {name: each.shape[0] for name, each in kept.items()} == {"party-1": 20, "party-2": 20}
    assert (kept["party-1"] != kept["party-2"]).any()


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["texts", "targets"])
def test_a_run_that_lost_a_party_meanwhile_goes_on_to_the_same_student(
    finished, here_for_all, distildp_tables, tmp_path, operation
):
    def lose(name, asked):
        if asked == operation and name == "party-2":
            here_for_all.before = None
            raise KeyboardInterrupt

    here_for_all.before = lose
    try:
        with pytest.raises((RunStopped, KeyboardInterrupt)):
            api.run(plan_of(distildp_tables(**KEPT)), output=tmp_path / "run")
    finally:
        here_for_all.before = None
    result = api.resume(tmp_path / "run")
    for name in ("model.safetensors", "texts/train.jsonl"):
        assert (result.student / name).read_bytes() == (finished[0].student / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"generation": {"where": "parties"}}, r'nobody\'s to keep. Use \[dp_sgd\] form = "local"'),
        (KEPT | {"distil": {"hidden": 0.5}}, r"\[distil\] hidden: .* no hidden state of a teacher leaves"),
        (ALONE | {"generation": {"where": "parties", "texts": 41}}, "multiple of 2, for example 40"),
    ],
)
def test_a_plan_that_cannot_be_is_told_in_a_sentence(distildp_tables, changes, said):
    with pytest.raises(ValueError, match=said):
        plan_of(distildp_tables(**changes))
