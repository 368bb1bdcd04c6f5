"""The party that has little text is a party of the run: the student that others taught is trained on its text,
privately.
"""

import json
import math
from contextlib import closing

import numpy as np
import pytest

from aggregation.accounting.events import from_json
from aggregation.accounting.price import price
from aggregation.mechanisms.gradients import GradientMechanism
from coordinator import api
from coordinator.comparing.comparable import changed
from coordinator.errors import PartyLost, PartyRefused, RunStopped
from coordinator.pricing.priced_plan import price_plan
from coordinator.pricing.release import SAMPLER_SHARE
from coordinator.progress.progress import Silent
from coordinator.publishing.report import APART
from coordinator.run import connecting
from coordinator.run.before.checking import check
from coordinator.store import output
from coordinator.store.store import RunStore
from coordinator.systems.registry import plan_of, prepared
from coordinator.systems.swing.forecast import forecast
from coordinator.systems.swing.learning import LEARNED
from coordinator.systems.swing.plan import SwingPlan
from deploy.launch import RayLauncher
from learning.models.adapting import unflatten
from party.ledger.accounts import read_account
from protos.console.checklist import State
from protos.console.mistakes import SettingsError
from protos.console.settings import check_settings

TEACHING = ["party-1", "party-2"]
LEARNER = "party-3"


@pytest.fixture(scope="module")
def secure(here_for_all, learner_tables, tmp_path_factory):
    """One run whose teachers' sum is secure: its result, its folder, and what parties were asked."""
    here_for_all.asked.clear()
    folder = tmp_path_factory.mktemp("secure") / "run"
    result = api.run(plan_of(learner_tables(privacy={"trust": "secure-sum"})), output=folder)
    return result, folder, list(here_for_all.asked)


def privacy_of(result):
    return json.loads((result.student / "privacy.json").read_text())


@pytest.mark.slow
def test_everybody_pays_for_what_is_his_and_anyone_can_check_it(secure):
    result, _, _ = secure
    assert result.verdict.ok
    privacy = privacy_of(result)
    said, learned = privacy["releases"]
    assert (said["name"], said["among"], said["parties"]) == ("differences", TEACHING, TEACHING)
    assert (learned["name"], learned["among"], learned["parties"]) == (LEARNED, [LEARNER], [LEARNER])
    assert privacy["parties"] == {"planned": 3, "in_the_sum": 3, "shares_needed": 2}
    for name in (*TEACHING, LEARNER):
        attested = json.loads((result.student / "attestations" / f"{name}.json").read_text())
        assert [each["name"] for each in attested["releases"]] == [said["name"] if name in TEACHING else LEARNED]


@pytest.mark.slow
def test_the_epsilon_is_the_dearer_releases_and_not_the_sum(secure):
    result, _, _ = secure
    spare = 1e-5 * (1 - SAMPLER_SHARE)
    events = [from_json(each["event"]) for each in privacy_of(result)["releases"]]
    one, other = (price([event], spare).epsilon for event in events)
    assert min(one, other) > 7.9
    assert result.epsilon == pytest.approx(max(one, other), rel=1e-9)
    assert result.epsilon <= 8.0
    assert price(events, spare).epsilon > 10


@pytest.mark.slow
def test_nobodys_records_are_called_exposed_and_it_is_said_who_is_protected_by_what(secure):
    result, _, _ = secure
    card, privacy = (result.student / "README.md").read_text(), privacy_of(result)
    assert "which belong to whoever ran this" not in card
    assert APART in card
    assert APART in privacy["trust_means"]
    assert "Of the records of party-1, party-2 alone." in card
    assert "Of the records of party-3 alone." in card
    assert "2 parties. Then it was trained privately on the text of a party that has little" in " ".join(card.split())
    assert "4 language models" in card


@pytest.mark.slow
def test_who_learns_is_asked_for_nothing_else_and_nobody_else_for_that(secure):
    _, _, asked = secure
    assert sorted(asked[:2]) == [(name, "differences-0") for name in TEACHING]
    assert asked[2:] == [(LEARNER, f"{LEARNED}-0")]


@pytest.mark.slow
def test_the_student_is_a_model_of_the_standard_library_that_its_training_changed(secure):
    from safetensors.numpy import load
    from transformers import AutoModelForCausalLM

    result, folder, _ = secure
    model = AutoModelForCausalLM.from_pretrained(result.student)
    taught = load((folder / "artefacts" / "taught.safetensors").read_bytes())
    last = {name: each.detach().numpy() for name, each in model.named_parameters()}
    assert last.keys() == taught.keys()
    assert any(not np.array_equal(last[name], each) for name, each in taught.items())
    assert {"token_perplexity", "taught_perplexity", "public_perplexity"} <= result.metrics.keys()
    assert result.metrics["token_perplexity"] != result.metrics["taught_perplexity"]
    assert "of the student before it was trained privately" in (result.student / "README.md").read_text()
    assert output.strangers(folder) == []


@pytest.fixture(scope="module")
def same(learner_tables):
    """A plan whose noise can be made again."""
    return plan_of(learner_tables(privacy={"insecure_reproducible_noise": True}))


@pytest.fixture(scope="module")
def undisturbed(here_for_all, same, tmp_path_factory):
    """A run whose aggregator is trusted: its published model, and its folder."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return _published(api.run(same, output=folder).student), folder


def _published(student):
    return (student / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_what_the_learner_trains_starts_from_the_taught_student(same, undisturbed, tmp_path):
    """By the learning room alone: DP-SGD of the taught student on the third party's text, with the run's own draws."""
    from safetensors.numpy import load

    from coordinator.store.store import RunStore

    _, folder = undisturbed
    recipe = prepared(same, tmp_path, tmp_path / "cache")
    store = RunStore(folder)
    try:
        text = recipe._text(store)
    finally:
        store.close()
    taught = load((folder / "artefacts" / "taught.safetensors").read_bytes())
    point = np.frombuffer((folder / "artefacts" / f"{LEARNED}.f32").read_bytes(), "<f4")
    assert len(point) == len(text.start) == recipe.read.trainable
    moved = np.abs(point - text.start)
    # AdamW moves a number by about the rate a step, and the rate falls to nothing.
    assert 0.001 < moved.max() < 4 * 0.01 * 1.5
    import torch

    unflatten(text.model, torch.from_numpy(text.start.copy()))
    from learning.models.adapting import merged

    begins = {name: each.detach().numpy() for name, each in merged(text.model).named_parameters()}
    assert begins.keys() == taught.keys()
    assert all(np.allclose(begins[name], each, atol=1e-6) for name, each in taught.items())


@pytest.mark.slow
def test_the_measurements_are_shown_as_one_bar(undisturbed):
    with closing(RunStore(undisturbed[1])) as store:
        assert store.fact("bars")["measuring"] == [3000, 3000, "percent"], "and the student before it was trained"


class _Stops(Silent):
    """Interrupts a run at the first report of one piece of work, once."""

    def __init__(self, work):
        self._work = work

    def bar(self, label, done, total, note=""):
        if label == self._work:
            self._work = None
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_that_was_stopped_while_its_student_was_taught_asks_no_teacher_again(
    here_for_all, same, undisturbed, tmp_path
):
    with pytest.raises((RunStopped, KeyboardInterrupt)):
        api.run(same, output=tmp_path / "run", progress=_Stops("learning"))
    here_for_all.asked.clear()
    assert _published(api.resume(tmp_path / "run").student) == undisturbed[0]
    assert here_for_all.asked == [(LEARNER, f"{LEARNED}-0")]


@pytest.mark.slow
def test_a_run_that_was_stopped_while_the_learner_trained_ends_with_the_same_student(
    here_for_all, same, undisturbed, tmp_path
):
    def lose(name, asked):
        if name == LEARNER:
            here_for_all.before = None
            raise KeyboardInterrupt

    here_for_all.before = lose
    try:
        with pytest.raises((RunStopped, KeyboardInterrupt)):
            api.run(same, output=tmp_path / "run")
    finally:
        here_for_all.before = None
    here_for_all.asked.clear()
    assert _published(api.resume(tmp_path / "run").student) == undisturbed[0]
    assert {name for name, _ in here_for_all.asked} <= {LEARNER}


@pytest.mark.slow
def test_a_run_whose_learner_is_gone_stops_and_can_go_on(here, learner_tables, tmp_path):
    plan = plan_of(learner_tables(federation={"minimum_parties": 2, "retry_seconds": 0}, privacy={"dropouts": 1}))

    def lose(name, asked):
        if name == LEARNER:
            here.before = None
            here.kill(LEARNER)

    here.before = lose
    with pytest.raises(PartyLost, match=f"The plan needs 1 of {LEARNER} and none of them are left"):
        api.run(plan, output=tmp_path / "run")
    here.asked.clear()
    result = api.resume(tmp_path / "run")
    assert result.verdict.ok
    assert {name for name, _ in here.asked} <= {LEARNER}


@pytest.mark.slow
def test_two_learners_train_alone_and_their_models_are_averaged(here, learner_tables, news, tmp_path):
    shards = {"source": str(news / "parties.jsonl"), "split": {"by": "hash", "parties": 4}}
    both = ["party-3", "party-4"]
    tables = learner_tables(federation={"launch": "ray", "shards": shards}, learner={"parties": both[::-1]})
    result = api.run(plan_of(tables), output=tmp_path / "run")
    assert result.verdict.ok
    learned = privacy_of(result)["releases"][1]
    assert learned["among"] == learned["parties"] == both
    assert "the text of 2 parties that have little" in " ".join((result.student / "README.md").read_text().split())


@pytest.mark.slow
def test_a_ledger_is_charged_for_its_own_release_and_a_policy_says_what_it_gives(here, learner_tables, tmp_path):
    """Teachers whose policies let no weights out are not asked about those of others."""
    here.changes = {name: {"policy": {"weights": False}} for name in TEACHING}
    result = api.run(plan_of(learner_tables()), output=tmp_path / "run")
    assert result.verdict.ok
    paths = {path.parent.name: path for path in (tmp_path / "run" / "parties").rglob("ledger.sqlite")}
    assert len(paths) == 3
    for folder, path in paths.items():
        (name,) = (each for each in (*TEACHING, LEARNER) if each in folder or each in str(path.parent))
        charged = [each.release for each in read_account(path, name).reservations]
        assert charged == ["differences" if name in TEACHING else LEARNED]
    here.changes = {LEARNER: {"policy": {"weights": False}}}
    with pytest.raises(PartyRefused, match=f"party {LEARNER} refused to join: policy weights = false"):
        api.run(plan_of(learner_tables()), output=tmp_path / "refused")


# What a plan may say.


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"learner": {"parties": ["clinic"]}}, 'the plan has no party "clinic"; it has party-1, party-2, party-3'),
        ({"learner": {"parties": [LEARNER, LEARNER]}}, r"\[learner\] parties names one twice"),
        ({"learner": {"parties": []}}, r"\[learner\] parties"),
        ({"learner": {"parties": [*TEACHING, LEARNER]}}, "all parties of the plan, and nobody is left to teach"),
        ({"queries": {"public": False}}, r"every party is shown \[queries\]. Ask public text"),
        ({"learner": {"batch": 41}}, r"\[learner\] batch = 41 is more than declared_size = 40"),
        ({"learner": {"steps": 0}}, r"\[learner\] steps = 0"),
        ({"learner": {"clip": 0.0}}, r"\[learner\] clip = 0"),
        ({"learner": {"form": "federated"}}, "there is no key"),
        (
            {"learner": {"parties": ["party-2", LEARNER]}, "privacy": {"trust": "secure-sum"}},
            r"leaves party-1 to teach alone, and a secure sum of one party hides nothing",
        ),
        ({"privacy": {"dropouts": 2}}, "dropouts = 2 leaves nobody of 2 parties"),
        ({"privacy": {"dropouts": 1, "trust": "secure-sum"}}, "of 2 parties 1 dropouts and 0 colluders are too many"),
        ({"audit": {"canaries": 20}}, r"\[audit\] of swing attacks what teachers say and the student, not yet"),
    ],
)  # fmt: skip
def test_a_learner_that_cannot_be_is_refused_in_a_sentence(learner_tables, changes, said):
    with pytest.raises(SettingsError, match=said):
        check_settings(learner_tables(**changes), SwingPlan, "plan.toml")


def test_how_much_text_a_learner_has_must_be_said(learner_tables):
    tables = learner_tables()
    del tables["learner"]["declared_size"]
    with pytest.raises(SettingsError, match="declared_size is missing"):
        check_settings(tables, SwingPlan, "plan.toml")


def test_the_published_form_has_no_learner(softened_tables, learner_tables):
    tables = softened_tables(queries={"public": True})
    tables["learner"] = learner_tables()["learner"] | {"parties": ["party-2"]}
    with pytest.raises(SettingsError, match=r'\[swing\] form = "published" states no cost of any'):
        check_settings(tables, SwingPlan, "plan.toml")


@pytest.fixture(scope="module")
def ready(learner_tables, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ready")
    return prepared(plan_of(learner_tables(privacy={"trust": "secure-sum"})), folder, folder / "cache")


@pytest.mark.slow
def test_the_plan_binds_who_takes_part_in_what(ready):
    priced = price_plan(ready)
    said, learned = priced.binding.terms.releases
    assert list(said.roster.parties) == TEACHING
    assert list(learned.roster.parties) == [LEARNER]
    assert said.differences.shares == 2  # of the two that teach, not of three
    mechanism = priced.release(LEARNED).under(GradientMechanism)
    assert (mechanism.sampling_probability, mechanism.steps, mechanism.shares) == (0.25, 4, 1)
    assert mechanism.parameters == ready.read.trainable > 0


@pytest.mark.slow
def test_each_of_both_is_calibrated_to_all_of_epsilon_and_not_to_a_part(ready):
    spare = 1e-5 * (1 - SAMPLER_SHARE)
    for epsilon in (1.0, 8.0):
        recipe = type(ready)(changed(ready.plan, epsilon=epsilon), ready.read)
        for release in price_plan(recipe).releases:
            assert 0.98 * epsilon < price([release.event], spare).epsilon <= epsilon, release.name


def test_a_plan_without_a_learner_binds_what_it_did(swing_tables, tmp_path):
    recipe = prepared(plan_of(swing_tables()), tmp_path, tmp_path / "cache")
    (release,) = price_plan(recipe).binding.terms.releases
    assert not release.HasField("roster")


@pytest.mark.slow
def test_the_forecast_says_how_loud_each_release_is(ready, tmp_path):
    priced = price_plan(ready)
    found = forecast(ready, priced, tmp_path, tmp_path / "cache", 1.0)
    said, learned = found.rows
    mechanism = priced.release(LEARNED).under(GradientMechanism)
    noise = mechanism.noise_multiplier * mechanism.sensitivity * mechanism.granularity
    assert learned.noise == pytest.approx(noise * math.sqrt(mechanism.parameters))
    assert learned.signal == 10.0  # records of a step, each clipped to 1
    assert learned.queries == 4
    tokens = len(ready.read.queries.ids)
    assert said.signal == pytest.approx(4 * 0.3 * math.sqrt(tokens))  # of the four teachers of two parties
    assert found.clear == ()
    assert any("a learner's gradients" in each for each in found.warnings) == learned.drowned


def _toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    return "[" + ", ".join(map(_toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


@pytest.mark.slow
def test_check_says_that_the_plan_can_run(learner_tables, tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    path = tmp_path / "plan.toml"
    path.write_text("".join(f"{name} = {_toml(table)}\n" for name, table in learner_tables().items()))
    assert [line for line in check(path) if line.state == State.TO_DO] == []


@pytest.mark.slow
def test_a_comparison_has_the_trained_student_beside_the_taught_one(learner_tables, tmp_path, monkeypatch):
    monkeypatch.setattr(connecting, "find_launcher", lambda name: RayLauncher())
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    wanted = ["trained", "swing", "kd", "alone", "public"]
    table = api.compare(plan_of(learner_tables()), recipes=wanted, epsilons=[8.0], seeds=1, output=tmp_path / "table")
    cells = {cell.method: cell for cell in table.cells}
    assert set(cells) == set(wanted)
    for name, cell in cells.items():
        assert (7.5 < cell.paid <= 8.0) if name in ("trained", "swing") else cell.paid is None, name
    found = {name: cell.metrics["perplexity"] for name, cell in cells.items()}
    assert found.pop("swing") == found["alone"]  # few teachers are drowned
    assert len(set(found.values())) == len(found)
