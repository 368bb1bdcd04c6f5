"""What a plan of PrivDistil may say, and what is public of it: the corpus, the classifiers' part of the budget."""

import json

import numpy as np
import pytest

from aggregation.accounting.price import price
from aggregation.mechanisms.mechanism import Form
from coordinator import api
from coordinator.errors import PlanError
from coordinator.pricing.release import SAMPLER_SHARE
from coordinator.systems.privdistil.public import prepare
from coordinator.systems.privdistil.releases import DOMAIN, PARTS, SCORES
from coordinator.systems.registry import plan_of, price_of
from learning.errors import DataError
from learning.models.checkpoints import ModelError
from protos.console.mistakes import SettingsError
from protos.console.settings import check_settings


@pytest.fixture
def ready(privdistil_plan, tmp_path):
    """`ready(changes)`: the plan, and what is public of it."""

    def makes(**changes):
        plan = privdistil_plan(**changes)
        return plan, prepare(plan, tmp_path, tmp_path / "cache")

    return makes


@pytest.mark.parametrize(("adapt", "rate"), [("head", 0.05), ("lora", 0.01), ("lora-all", 0.005), ("full", 0.001)])
def test_the_classifiers_learning_rate_follows_what_is_trained_of_them(privdistil_plan, adapt, rate):
    begun = privdistil_plan(domain={"adapt": adapt}, model={"adapt": "full"})
    assert begun.domain.learning_rate == rate
    said = privdistil_plan(domain={"learning_rate": 0.2, "adapt": adapt})
    assert said.domain.learning_rate == 0.2


CHOSEN = {"noise_multiplier": None, "epsilon": 4.0}


@pytest.mark.slow
def test_the_classifiers_and_the_student_together_cost_the_plans_epsilon(ready):
    plan, public = ready(privacy=CHOSEN, domain={"epsilon": 1.0})
    priced = price_of(plan, public)
    assert [release.name for release in priced.releases] == [DOMAIN, "steps"]
    delta = plan.privacy.delta * (1 - SAMPLER_SHARE)
    first, second = (price([release.at_most], delta).epsilon for release in priced.releases)
    assert first == pytest.approx(1.0, rel=0.01)
    assert 3.9 < priced.guarantee.epsilon <= 4.0
    assert second < 4.0 < first + second


@pytest.mark.slow
def test_without_a_figure_the_classifiers_get_the_smallest_part_that_leaves_a_signal(ready):
    delta = 1e-5 * (1 - SAMPLER_SHARE)
    few, many = (
        price(
            [price_of(*ready(privacy=CHOSEN | size, domain={"epsilon": None} | batch)).releases[0].event], delta
        ).epsilon
        for size, batch in (({}, {"batch": 30}), ({"declared_size": 400_000}, {"batch": 10_000}))
    )
    allowed = [4.0 * part for part in PARTS]
    for found in (few, many):
        assert min(abs(found - part) / part for part in allowed) < 0.02
    assert few == pytest.approx(allowed[-1], rel=0.02)
    assert many < few / 2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["random", "all"])
def test_a_choice_that_asks_nobody_leaves_the_whole_budget_to_the_student(ready, method):
    plan, public = ready(privacy=CHOSEN, selection={"method": method})
    assert public.domain is None
    priced = price_of(plan, public)
    assert [release.name for release in priced.releases] == ["steps"]
    asked, other = ready(privacy=CHOSEN, domain={"epsilon": 1.0})
    assert priced.releases[0].mechanism.noise_multiplier < price_of(asked, other).releases[1].mechanism.noise_multiplier


@pytest.mark.slow
def test_classifiers_that_stay_at_the_parties_pay_for_their_scores(ready):
    plan, public = ready(domain={"release": "scores"})
    domain, scores, _ = price_of(plan, public).releases
    assert (domain.name, domain.rows, domain.form) == (DOMAIN, 0, Form.TRAINING)
    assert (scores.name, scores.rows, scores.columns) == (SCORES, public.corpus.count(), 1)
    assert scores.mechanism.after == DOMAIN


@pytest.mark.slow
def test_every_party_tells_its_text_from_other_public_texts(ready):
    plan, public = ready(domain={"texts": 12})
    samples = [json.loads(sample) for sample in public.samples.values()]
    assert [len(sample) for sample in samples] == [12] * 4
    assert tuple(public.samples) == plan.federation.names
    together = [text for sample in samples for text in sample]
    everything = list(public.corpus.texts(range(public.corpus.count())))
    assert set(together) <= set(everything)
    assert len(set(together)) == len(together), "the corpus has no text twice, and neither have they"
    again = ready(domain={"texts": 12})[1].samples
    assert again == public.samples


@pytest.mark.slow
def test_a_corpus_takes_the_rows_that_it_is_told_to_take(ready, public_texts):
    _, public = ready(corpus=[{"source": str(public_texts), "take": [2, 1], "limit": 90}])
    rows = [json.loads(line)["text"] for line in public_texts.read_text().splitlines()]
    assert list(public.corpus.texts(range(public.corpus.count()))) == list(dict.fromkeys(rows[1:180:2]))


@pytest.mark.slow
def test_a_corpus_of_another_kind_is_copied_once(ready, tmp_path, public_texts):
    import csv

    rows = [json.loads(line)["text"] for line in public_texts.read_text().splitlines()]
    with (tmp_path / "texts.csv").open("w", newline="") as file:
        written = csv.writer(file)
        written.writerow(["text"])
        written.writerows([row] for row in rows)
    _, public = ready(corpus=[{"source": "texts.csv"}])
    assert list(public.corpus.texts(range(3))) == rows[:3]
    assert public.corpus.digest == ready()[1].corpus.digest
    assert len(list((tmp_path / "cache/corpora").glob("*.jsonl"))) == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"selection": {"texts": 500}}, r"\[selection\] texts = 500 and the public corpus has \d+\. Choose fewer"),
        ({"selection": {"texts": 5, "clusters": 900}}, r"clusters = 900 and the public corpus has \d+ texts"),
    ],
)
def test_a_corpus_that_is_too_small_is_said_before_anybody_is_asked(ready, changes, sentence):
    with pytest.raises(DataError, match=sentence):
        ready(**changes)


@pytest.mark.slow
def test_a_corpus_too_small_for_the_classifiers_says_how_many_they_need(ready, tmp_path):
    (tmp_path / "few.jsonl").write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(30)))
    few = {"corpus": [{"source": "few.jsonl"}], "selection": {"texts": 20, "clusters": 2}}
    with pytest.raises(DataError, match="has 30 texts, and the domain classifiers of 4 parties need 10 each"):
        ready(**few)


def test_a_student_of_another_width_is_refused_with_both_widths(ready, tmp_path, tiny_bert):
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    config = AutoConfig.from_pretrained(tiny_bert)
    wide = config.hidden_size
    config.hidden_size, config.intermediate_size = 2 * wide, 4 * wide
    AutoModel.from_config(config).save_pretrained(tmp_path / "wider")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "wider")
    with pytest.raises(ModelError, match=f"hidden width of {2 * wide}, its teacher one of {wide}"):
        ready(distil={"student": "wider", "layers": None})


def test_a_tokenizer_that_can_hide_nothing_is_said_before_anything_is_spent(ready):
    with pytest.raises(PlanError, match=r"\[distil\] .*no mask token"):
        ready(distil={"mask": 0.15})


@pytest.mark.slow
def test_a_student_that_is_given_is_taken(ready, tiny_bert):
    _, public = ready(distil={"student": str(tiny_bert), "layers": None})
    assert public.layers[0] == public.layers[1]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"domain": {"epsilon": 8.0}}, r"\[domain\] epsilon = 8 leaves nothing of \[privacy\] epsilon = 8"),
        ({"domain": {"epsilon": None}}, r"\[domain\] epsilon is missing: with \[privacy\] noise_multiplier"),
        ({"distil": {"layers": 1, "student": "there"}}, r"\[distil\] layers and student exclude each other"),
        ({"corpus": [{"source": "x.jsonl", "take": [2, 2]}]}, r"take is \[n, r\] with r from 0 to n - 1"),
        ({"corpus": []}, "corpus"),
        ({"privacy": {"declared_size": None}}, r"\[privacy\] declared_size is missing"),
    ],
)
def test_a_plan_that_cannot_be_says_what_would_be_right(privdistil_tables, changes, sentence):
    from coordinator.systems.privdistil.plan import PrivDistilPlan

    with pytest.raises(SettingsError, match=sentence):
        check_settings(privdistil_tables(**changes), PrivDistilPlan, "plan.toml")


def test_the_parties_own_text_is_no_public_corpus(privdistil_tables):
    tables = privdistil_tables()
    tables["corpus"] = [{"source": tables["federation"]["shards"]["source"]}]
    with pytest.raises(ValueError, match=r"\[corpus 1\] source = .* is the parties' own text"):
        plan_of(tables)


def test_where_the_corpus_is_embedded_is_not_what_parties_agree_to(privdistil_plan):
    here, there = (privdistil_plan(selection={"streamer": name}).document() for name in ("local", "ray"))
    assert here == there
    assert privdistil_plan(selection={"texts": 31}).document() != here


@pytest.mark.slow
def test_a_streamer_that_is_not_there_is_named(ready):
    from coordinator.systems.privdistil.selection import Said, choose

    plan, public = ready(selection={"streamer": "steam"})
    weights = dict.fromkeys(plan.federation.names, public.domain.start)
    with pytest.raises(PlanError, match='"steam" is not installed'):
        choose(plan, public, Said(weights=weights), None, lambda what, done, total: None)


@pytest.mark.slow
def test_the_forecast_divides_the_budget_and_warns_of_a_classifier_that_drowns(privdistil_plan, tmp_path, monkeypatch):
    plan = privdistil_plan(privacy=CHOSEN, domain={"epsilon": 0.02, "steps": 1})
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    found = api.forecast(plan)
    assert found.epsilon <= 4.0
    assert {row.name for row in found.rows} == {DOMAIN, "steps"}
    assert any("choosing public text would cost 0.02 alone, as [domain] epsilon says" in each for each in found.clear)
    assert any("public text may be chosen no better than at random" in each for each in found.warnings)
    assert found.bytes > 0
    assert np.isfinite(found.seconds)


def test_no_table_publishes_a_place(privdistil_plan):
    plan = privdistil_plan(
        corpus=[{"source": "/home/ann/corpus.jsonl"}],
        model={"name": "/home/ann/models/teacher"},
        domain={"model": "/home/ann/models/small"},
        distil={"student": "/home/ann/models/student", "layers": None},
    )
    document = plan.document()
    assert "/" not in document
    for name in ("corpus.jsonl", "teacher", "small", "student"):
        assert f'"{name}"' in document
