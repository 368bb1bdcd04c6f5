"""The published form of swing distillation: a heuristic, which a whole run, its report and `verify` call so."""

import json

import pytest

from aggregation.errors import ConclaveError
from coordinator import api
from coordinator.errors import PlanError
from coordinator.pricing.priced_plan import price_plan
from coordinator.progress.progress import Silent
from coordinator.systems.registry import plan_of, prepared
from coordinator.systems.swing.forecast import forecast
from coordinator.systems.swing.methods import unproven
from coordinator.systems.swing.plan import SwingPlan
from coordinator.systems.swing.public import prepare
from protos.console.mistakes import SettingsError
from protos.console.settings import check_settings


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"swing": {"form": "certified"}}, r'form = "certified" has a guarantee: write \[privacy\] an epsilon'),
        ({"teachers": {"per_party": 2}}, "a party has one teacher, of all its text. Leave per_party out"),
        ({"swing": {"temperature": 9.0, "cap": 8.0}}, "cap = 8 is below temperature = 9. Use a higher cap"),
        ({"swing": {"noised": 9}}, "noised = 9 is more than the .* top = 8 outcomes that leave. Use fewer"),
        ({"swing": {"strength": 0.0, "clues": "own.toml"}}, "no temperature grows near them. Leave clues out"),
        ({"swing": {"scale": 0.0}}, "scale = 0"),
        ({"swing": {"protection": "some"}}, "protection"),
        ({"distil": {"temperature": 3.0}}, "in the published one. Leave temperature out"),
        ({"privacy": {"epsilon": 1.0}}, r"\[privacy\] epsilon belongs to a guarantee"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_a_sentence(softened_tables, changes, said):
    with pytest.raises(SettingsError, match=said):
        check_settings(softened_tables(**changes), SwingPlan, "plan.toml")


def test_the_published_form_with_an_epsilon_is_refused(swing_tables):
    with pytest.raises(SettingsError, match=r"has no proof: write \[privacy\] guarantee = false"):
        check_settings(swing_tables(swing={"form": "published"}), SwingPlan, "plan.toml")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("personal = [", "is no TOML"),
        ('personal = ["id", ""]', "has an empty entry"),
        ('personal = ["id"]\ncontact = ["ID"]', "is in personal already"),
        ('medical = ["id"]', "is no category of clue words"),
    ],
)
def test_clue_words_that_cannot_be_used_are_refused_before_any_party_is_asked(softened_tables, tmp_path, content, said):
    if content is not None:
        (tmp_path / "own.toml").write_text(content)
    plan = plan_of(softened_tables(swing={"clues": "own.toml"}))
    with pytest.raises(ConclaveError, match=said):
        prepare(plan, tmp_path, tmp_path / "cache")


@pytest.mark.slow
def test_a_forecast_states_no_epsilon_and_no_signal_over_noise(softened_tables, tmp_path):
    recipe = prepared(plan_of(softened_tables()), tmp_path, tmp_path / "cache")
    found = forecast(recipe, price_plan(recipe), tmp_path, tmp_path / "cache", 0.0)
    assert found.epsilon is None
    assert not found.rows
    assert found.warnings == tuple(recipe.doubts())


def test_a_comparison_turns_a_plan_with_a_guarantee_into_one_without_and_checks_it(swing_plan):
    plan = unproven(swing_plan(privacy={"trust": "secure-sum"}), {"strength": 0.0})
    assert plan.published
    assert not plan.privacy.guarantee
    assert plan.privacy.trust == "trusted-aggregator"
    assert plan.teachers.per_party == 1
    with pytest.raises(PlanError, match="below temperature"):
        unproven(swing_plan(), {"cap": 1.0})


@pytest.fixture(scope="module")
def finished(here_for_all, softened_tables, tmp_path_factory):
    """One run: its result, and its folder."""
    folder = tmp_path_factory.mktemp("softened") / "run"
    return api.run(plan_of(softened_tables()), output=folder), folder


@pytest.mark.slow
def test_a_run_is_published_as_a_heuristic_and_verifies_as_one(finished):
    result, _ = finished
    assert result.verdict.ok
    assert result.epsilon is None
    privacy = json.loads((result.student / "privacy.json").read_text())
    assert (privacy["epsilon"], privacy["delta"], privacy["guarantee"]) == (None, None, False)
    (release,) = privacy["releases"]
    assert (release["name"], release["event"]["event"]["kind"]) == ("softened", "non-private")
    assert "no guarantee: a heuristic" in release["says"]
    card = (result.student / "README.md").read_text()
    assert "No guarantee: a heuristic" in card
    assert "epsilon = " not in card
    for path in (result.student / "attestations").glob("*.json"):
        said = json.loads(path.read_text())
        assert said["guarantee"] is False
        assert [each["event"]["event"]["kind"] for each in said["releases"]] == ["non-private"]


class _Stops(Silent):
    """Interrupts a run at the first update of the student, once."""

    stopped = False

    def bar(self, label, done, total, note=""):
        if label == "learning" and not self.stopped:
            self.stopped = True
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_that_was_stopped_asks_no_party_again(here_for_all, softened_tables, tmp_path):
    from coordinator.errors import RunStopped

    with pytest.raises(RunStopped):
        api.run(plan_of(softened_tables()), output=tmp_path / "run", progress=_Stops())
    here_for_all.asked.clear()
    result = api.resume(tmp_path / "run")
    assert result.verdict.ok
    assert not here_for_all.asked


@pytest.mark.parametrize(
    ("swing", "clues", "said"),
    [
        ({"strength": 1000.0}, 'personal = ["the", "a"]', "Every token is at the highest temperature"),
        ({}, 'personal = ["unheardofword"]', "No text has a clue word: this is plain distillation"),
        ({"strength": 0.0}, None, None),
    ],
)
def test_clue_words_that_make_no_difference_are_doubted(softened_tables, tmp_path, swing, clues, said):
    if clues is not None:
        (tmp_path / "own.toml").write_text(clues)
        swing = swing | {"clues": "own.toml"}
    tables = softened_tables(swing=swing)
    (tmp_path / "own.jsonl").write_text("".join(json.dumps({"text": f"the {each} the"}) + "\n" for each in "abcd"))
    tables["queries"] = {"source": "own.jsonl"}
    doubts = prepared(plan_of(tables), tmp_path, tmp_path / "cache").doubts()
    assert [said in each for each in doubts] == ([] if said is None else [True])
