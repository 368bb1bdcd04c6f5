"""What a plan of swing distillation may say, what its one release costs, and what is said of a mistake before anything
is spent.
"""

import json
import math
import shutil

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant

from aggregation.accounting.price import price
from aggregation.mechanisms.vectors import DifferencesMechanism
from coordinator.comparing.comparable import changed
from coordinator.errors import PlanError
from coordinator.pricing.priced_plan import price_plan
from coordinator.pricing.release import SAMPLER_SHARE
from coordinator.systems.registry import names, plan_of, prepared, price_of, read_plan, template
from coordinator.systems.swing.forecast import forecast, needs
from coordinator.systems.swing.plan import SwingPlan
from coordinator.systems.swing.public import prepare
from learning.errors import DataError
from learning.models.checkpoints import ModelError
from protos.console.mistakes import SettingsError
from protos.console.settings import check_settings


@pytest.fixture
def ready(swing_plan, tmp_path):
    def makes(**changes):
        plan = swing_plan(**changes)
        return plan, prepare(plan, tmp_path, tmp_path / "cache")

    return makes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy": {"record": "pair"}}, 'a language model learns from texts. Use record = "document" or "sentence"'),
        ({"distil": {"hidden": 0.1}}, "no hidden state of a teacher leaves a party. Leave hidden out"),
        ({"distil": {"temperature": 2.0}}, "the student's is 1 in the certified form.*Leave temperature out"),
        ({"queries": None}, "queries is missing"),
        ({"queries": {"limit": 0}}, r"\[queries\] limit = 0 should be greater than or equal to 1"),
        ({"swing": {"clip": 0.0}}, r"\[swing\] clip = 0"),
        ({"swing": {"clip": 3.0}}, r"\[swing\] clip = 3"),
        ({"swing": {"clap": 1.0}}, "there is no key"),
        ({"teachers": {"per_party": 0}}, r"\[teachers\] per_party = 0"),
        ({"teachers": {"per_party": 1001}}, r"\[teachers\] per_party = 1001"),
        ({"distil": {"top": 0}}, r"\[distil\] top = 0"),
        ({"model": {"adapt": "head"}}, "adapt"),
        ({"codes": {"template": "{a}", "columns": {}}}, "codes"),
        ({"dp_sgd": {"steps": 3}}, "dp_sgd"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_a_sentence(swing_tables, changes, said):
    with pytest.raises(SettingsError, match=said):
        check_settings(swing_tables(**changes), SwingPlan, "plan.toml")


def test_texts_that_are_the_parties_own_are_not_asked(swing_tables, news):
    own = str(news / "parties.jsonl")
    for table in ("queries", "evaluation"):
        with pytest.raises(SettingsError, match=rf"\[{table}\] source = .*is the parties' own text"):
            check_settings(swing_tables(**{table: {"source": own}}), SwingPlan, "plan.toml")


@pytest.mark.slow
def test_texts_that_hold_nothing_are_named(ready, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="empty"):
        ready(queries={"source": str(tmp_path / "empty.jsonl")})
    (tmp_path / "other.jsonl").write_text('{"body": "a text"}\n' * 9)
    with pytest.raises(DataError, match="text"):
        ready(queries={"source": str(tmp_path / "other.jsonl")})


@pytest.mark.slow
def test_fewer_texts_than_a_student_takes_are_refused(ready):
    with pytest.raises(PlanError, match="3 texts have a token, and a student takes 4 or more"):
        ready(queries={"limit": 3})
    assert len(ready(queries={"limit": 4})[1].queries) == 4


def test_the_first_texts_are_asked_cut_to_what_the_model_reads_after_its_opening(ready, tmp_path):
    said = [" ".join(["the film was good"] * number) for number in range(1, 9)]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in said))
    _, public = ready(text={"longest": 17}, queries={"source": str(tmp_path / "long.jsonl"), "limit": 6})
    assert len(public.queries) == 6
    room = 17 - len(public.bare)
    for place, text in enumerate(said[:6]):
        whole = [*public.tokenizer(text, add_special_tokens=False)["input_ids"], public.end]
        assert public.queries[place].tolist() == whole[:room]
    assert max(map(len, public.queries)) == room


def test_texts_that_leave_no_room_are_refused(ready):
    with pytest.raises(PlanError, match=r"\[text\] longest = 16 leaves fewer than 16 tokens for a text after the 1"):
        ready(text={"longest": 16})


@pytest.mark.slow
def test_more_outcomes_than_tokens_are_refused(ready):
    with pytest.raises(PlanError, match=r"\[distil\] top = 1,000 leaves no other of the 300 tokens of .*Use fewer"):
        ready(distil={"top": 1000})


@pytest.mark.slow
def test_a_student_with_another_tokenizer_is_refused_though_it_has_as_many_tokens(ready, tiny_gpt2, tmp_path):
    folder = shutil.copytree(tiny_gpt2, tmp_path / "other")
    path = folder / "tokenizer.json"
    told = json.loads(path.read_text())
    vocabulary = told["model"]["vocab"]
    first, second = [token for token in vocabulary if len(token) == 1][:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(told))
    with pytest.raises(PlanError, match="another tokenizer"):
        ready(distil={"student": str(folder), "layers": None})
    assert ready(distil={"student": str(tiny_gpt2), "layers": None})[1].layers == (2, 2)


@pytest.mark.slow
def test_a_student_has_all_layers_of_the_public_model_unless_the_plan_says_how_many(ready):
    assert ready(distil={"layers": None})[1].layers == (2, 2)
    assert ready()[1].layers == (1, 2)
    with pytest.raises(ModelError, match="layers"):
        ready(distil={"layers": 7})


def test_an_encoder_is_refused(ready, tiny_bert):
    with pytest.raises(ModelError, match=r"no causal|cannot be a|lacks"):
        ready(model={"name": str(tiny_bert)})


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["trusted-aggregator", "secure-sum"])
@pytest.mark.parametrize("per_party", [1, 50])
def test_all_tokens_are_one_gaussian_that_costs_the_plans_epsilon(ready, trust, per_party):
    """By hand: a teacher's differences move by 2 clip sqrt(T) at T tokens together, whatever the number of teachers."""
    plan, public = ready(privacy={"trust": trust}, teachers={"per_party": per_party})
    priced = price_of(plan, public)
    (release,) = priced.releases
    tokens, bounds = len(public.queries.ids), release.under(DifferencesMechanism)
    assert (release.name, release.rows, release.columns, release.charges) == (
        "differences", tokens, plan.distil.top + 1, 1,
    )  # fmt: skip
    assert (bounds.tokens, bounds.outcomes) == (tokens, plan.distil.top + 1)
    assert bounds.clip == pytest.approx(0.3 * math.sqrt(tokens))
    assert bounds.sensitivity * bounds.granularity == pytest.approx(2 * 0.3 * math.sqrt(tokens))
    accountant = PLDAccountant()
    accountant.compose(GaussianDpEvent(bounds.noise_multiplier))
    delta = plan.privacy.delta * (1 - SAMPLER_SHARE)
    by_hand = accountant.get_epsilon(delta)
    assert price([release.event], delta).epsilon == pytest.approx(by_hand, rel=0.01)
    assert priced.guarantee.epsilon == pytest.approx(by_hand, rel=0.01)
    assert 7.9 < priced.guarantee.epsilon <= 8.0


@pytest.mark.slow
def test_more_tokens_make_more_noise_and_wider_vectors_or_more_teachers_do_not(ready):
    def noise(**changes):
        plan, public = ready(**changes)
        (release,) = price_of(plan, public).releases
        bounds = release.under(DifferencesMechanism)
        return 2 * bounds.clip * bounds.noise_multiplier, len(public.queries.ids)

    (few, tokens), (many, more) = noise(queries={"limit": 4}), noise(queries={"limit": 16})
    assert many / few == pytest.approx(math.sqrt(more / tokens), rel=0.02)
    assert noise(distil={"top": 64}, queries={"limit": 4})[0] == pytest.approx(few, rel=0.001)
    assert noise(teachers={"per_party": 9}, queries={"limit": 4})[0] == pytest.approx(few, rel=0.001)
    assert noise(swing={"clip": 0.6}, queries={"limit": 4})[0] == pytest.approx(2 * few, rel=0.001)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["skellam", "discrete-gaussian"])
def test_other_noise_is_priced_as_what_it_is(ready, noise):
    plan, public = ready(privacy={"noise": noise, "trust": "secure-sum"})
    priced = price_of(plan, public)
    assert priced.releases[0].under(DifferencesMechanism).distribution == noise
    assert 7.5 < priced.guarantee.epsilon <= 8.0


@pytest.mark.slow
def test_attempts_are_charged_each(ready):
    once, again = (
        price_of(*ready(privacy={"trust": "secure-sum", "attempts": attempts})).releases[0] for attempts in (1, 3)
    )
    assert again.attempts == 3
    few, many = (each.under(DifferencesMechanism).noise_multiplier for each in (once, again))
    assert many > 1.5 * few


@pytest.mark.slow
def test_parties_are_bound_to_one_charge_of_all_tokens(ready):
    plan, public = ready()
    (bound,) = price_of(plan, public).binding.terms.releases
    assert (bound.charges, bound.differences.tokens) == (1, len(public.queries.ids))
    assert bound.differences.clip == pytest.approx(0.3 * math.sqrt(len(public.queries.ids)))


def test_whose_texts_are_exposed_is_said_unless_they_are_public(swing_plan, swing_tables):
    (said,) = swing_plan().exposed
    assert "the texts of [queries], which belong to whoever ran this" in said
    assert swing_plan(queries={"public": True}).exposed == ()


def test_what_is_trained_decides_the_teachers_learning_rate(swing_tables):
    rates = {}
    for adapt in ("lora", "lora-all", "full"):
        tables = swing_tables(model={"adapt": adapt})
        del tables["teachers"]["learning_rate"]
        rates[adapt] = plan_of(tables).teachers.learning_rate
    assert rates == {"lora": 0.005, "lora-all": 0.003, "full": 0.0005}


def test_a_plan_at_another_epsilon_is_otherwise_the_same(swing_plan):
    plan = changed(swing_plan(), epsilon=4.0)
    assert plan.privacy.epsilon == 4.0
    assert plan.swing == swing_plan().swing


def test_there_is_a_plan_to_start_from_for_either_launch(tmp_path):
    assert "swing" in names()
    for launch in ("ray", "connect"):
        path = tmp_path / f"{launch}.toml"
        path.write_text(template(launch, "swing"))
        plan = read_plan(path)
        assert (plan.run.recipe, plan.federation.launch) == ("swing", launch)


@pytest.mark.slow
def test_the_forecast_warns_of_noise_that_drowns_the_teachers_and_counts_what_is_sent(swing_plan, tmp_path):
    def found(**changes):
        recipe = prepared(swing_plan(**changes), tmp_path, tmp_path / "cache")
        priced = price_plan(recipe)
        return forecast(recipe, priced, tmp_path, tmp_path, 1.0), needs(recipe, priced, tmp_path, tmp_path)

    (drowned, least), (loud, most) = found(), found(privacy={"epsilon": 20.0}, teachers={"per_party": 900})
    assert [row.name for row in drowned.rows] == ["differences"]
    assert drowned.rows[0].drowned
    (warning,) = drowned.warnings
    for advice in ("fewer [queries]", "more [teachers] per_party", "fewer outcomes ([distil] top)", "a larger epsilon"):
        assert advice in warning
    assert not loud.rows[0].drowned
    assert loud.warnings == ()
    assert "the texts of [queries], which belong to whoever ran this" in drowned.clear[0]
    assert drowned.teachers == 2
    assert drowned.epsilon == pytest.approx(8.0, abs=0.1)
    assert drowned.seconds > 1
    assert most.party_memory > least.party_memory
    (longer, _), (shorter, _) = found(queries={"limit": 20}), found(queries={"limit": 4})
    assert longer.bytes > shorter.bytes
    assert longer.rows[0].noise > shorter.rows[0].noise


def test_what_is_asked_is_less_than_what_the_forecast_says_is_sent(ready, tmp_path):
    from types import SimpleNamespace

    from coordinator.systems.swing.forecast import asked_bytes
    from coordinator.systems.swing.questions import outcomes_content, public_outcomes, written_content
    from coordinator.systems.swing.recipe import Swing
    from party.provided.written import written

    plan, public = ready()
    store = SimpleNamespace(folder=tmp_path)
    public_outcomes(plan, public, store, lambda *told: None)
    texts, outcomes = written_content(public), outcomes_content(plan, public, store)
    (tmp_path / "written").write_bytes(texts)
    read = written(tmp_path / "written", texts=True)
    assert [np.array(each).tolist() for each in read.texts] == [each.tolist() for each in public.queries]
    assert read.before == [list(public.bare)] * len(public.queries)
    assert len(outcomes) == 4 * plan.distil.top * read.tokens
    assert len(outcomes) < asked_bytes(Swing(plan, public)) < 2 * (len(texts) + len(outcomes))
