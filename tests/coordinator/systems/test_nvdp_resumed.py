"""A run of rows that was stopped, or that lost a party, goes on to the very same rows and student, and pays once."""

import json

import pytest
from datasets import load_from_disk

from coordinator import api
from coordinator.errors import RunStopped
from coordinator.systems.nvdp.recipe import Nvdp
from coordinator.systems.nvdp.sequences.recipe import SampledByLayer
from coordinator.systems.registry import plan_of

SAME = {"insecure_reproducible_noise": True}
FORMS = {"single": (Nvdp, "samples-0"), "pairs": (Nvdp, "samples-0"), "published": (SampledByLayer, "sequences-0")}


def published(result):
    """The rows and all weights of a published folder."""
    rows = load_from_disk(str(result.student / "samples")).to_dict()
    weights = {path.name: path.read_bytes() for path in sorted(result.student.glob("*.safetensors"))}
    return rows, weights


@pytest.fixture(scope="module", params=FORMS)
def undisturbed(request, here_for_all, nvdp_tables, tmp_path_factory):
    """The form, its plan, and what a run of it publishes."""
    plan = plan_of(nvdp_tables(request.param, privacy=SAME))
    result = api.run(plan, output=tmp_path_factory.mktemp("undisturbed") / "run")
    return request.param, plan, published(result)


@pytest.mark.slow
def test_a_run_that_was_stopped_after_its_release_asks_no_party_for_anything_again(
    undisturbed, here_for_all, tmp_path, monkeypatch
):
    form, plan, expected = undisturbed
    recipe, _ = FORMS[form]

    def stops(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recipe, "learn", stops)
        with pytest.raises((RunStopped, KeyboardInterrupt)):
            api.run(plan, output=tmp_path / "run")
    here_for_all.asked.clear()
    result = api.resume(tmp_path / "run")
    assert published(result) == expected
    assert not here_for_all.asked


@pytest.mark.slow
def test_a_run_whose_party_was_lost_amid_its_release_goes_on_to_the_same_rows(undisturbed, here_for_all, tmp_path):
    form, plan, expected = undisturbed
    _, operation = FORMS[form]

    def lose(name, asked):
        if asked == operation and name == "party-2":
            here_for_all.before = None
            raise KeyboardInterrupt

    here_for_all.before = lose
    try:
        with pytest.raises((RunStopped, KeyboardInterrupt)):
            api.run(plan, output=tmp_path / "run")
    finally:
        here_for_all.before = None
    result = api.resume(tmp_path / "run")
    assert published(result) == expected


@pytest.mark.slow
@pytest.mark.parametrize("form", ["single", "published"])
def test_rows_are_charged_once_whatever_is_asked_again(form, here, nvdp_tables, tmp_path, monkeypatch):
    """Under secret noise: a second request for the rows is given the first draw of them."""
    plan = plan_of(nvdp_tables(form))
    recipe, _ = FORMS[form]

    def stops(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recipe, "learn", stops)
        with pytest.raises((RunStopped, KeyboardInterrupt)):
            api.run(plan, output=tmp_path / "run")
    kept = next((tmp_path / "run/artefacts").glob("s*s.safetensors"))
    before = kept.read_bytes()
    result = api.resume(tmp_path / "run")
    assert kept.read_bytes() == before
    for path in (result.student / "attestations").glob("*.json"):
        attested = json.loads(path.read_text())
        assert len(attested["releases"]) == 1
