"""Plans of text classifiers: what is wrong is told with what would be right, and what is hashed is what matters."""

import json
import re
import tomllib
from types import SimpleNamespace

import numpy as np
import pytest

from aggregation.accounting.price import LifetimeFilter
from coordinator.errors import PlanError
from coordinator.run.party_files import party_tables
from coordinator.systems.registry import check_plan, plan_of, price_of, template
from coordinator.text_models.public import heldout
from learning.errors import DataError
from learning.text.labelled import LabelMap, ScoreRange
from protos.console.mistakes import SettingsError

SCORES = {"kind": "regression", "labels": [], "values": [], "range": [0.0, 5.0]}


def complaint(tables):
    with pytest.raises(SettingsError) as caught:
        check_plan(tables, "plan.toml")
    return str(caught.value)


TEXT = {
    "one class": ({"labels": ["good"], "values": []}, "A label map needs two classes or more, not 1. Name the others"),
    "no class": ({"labels": [], "values": []}, r'\[text\] labels is missing: name the classes, for example \["neg'),
    "a class twice": ({"labels": ["bad", "bad"], "values": []}, "has the class 'bad' twice. Name each once"),
    "a class of nothing": ({"labels": ["bad", " "], "values": []}, "Give it without space around it"),
    "a value twice": ({"values": ["0", "0"]}, "has the value '0' twice. Name each once"),
    "other values": ({"values": ["0", "1", "2"]}, "has 2 classes and 3 values. Give as many"),
    "a range of classes": ({"range": [0.0, 1.0]}, r'range and second belong to kind = "regression"'),
    "second of classes": ({"second": True}, r'range and second belong to kind = "regression"'),
    "classes of scores": ({"kind": "regression", "range": [0.0, 5.0]}, "labels belong to classes"),
    "no range": (SCORES | {"range": None}, r'kind = "regression" needs the range of its scores, for example \[0.0'),
    "one end": (SCORES | {"range": [0.0]}, "a range has two ends"),
    "a range upside down": (SCORES | {"range": [5.0, 0.0]}, r"cannot range from 5.0 to 0.0. Give finite numbers, the"),
    "another kind": ({"kind": "triple"}, r"\[text\] kind = \"triple\" is not one of 'single', 'pair' or 'regression'"),
    "too short": ({"longest": 4}, r"\[text\] longest = 4 should be greater than or equal to 8"),
    "pairs": ({"kind": "pair"}, r"\[federation.shards\] second is missing: the column that holds the second texts"),
    "pairs of scores": (SCORES | {"second": True}, r"\[federation.shards\] second is missing"),
}


@pytest.mark.parametrize(("text", "says"), TEXT.values(), ids=TEXT)
def test_labelled_text_that_cannot_be_is_told(classifier_tables, text, says):
    assert re.search(says, said := complaint(classifier_tables(text=text))), said


LOCAL = {"form": "local"}
DP_SGD = {
    "sentences": ({"privacy": {"record": "sentence"}}, r'record = "sentence": a label belongs to a document. Use rec'),
    "no size": ({"privacy": {"declared_size": None}}, r"\[privacy\] declared_size is missing: how many units all par"),
    "a large batch": ({"dp_sgd": {"batch": 241}}, r"batch = 241 is more than \[privacy\] declared_size = 240. Use a s"),
    "other noise": ({"privacy": {"noise": "skellam"}}, r'noise = "skellam" has no price for random batches'),
    "local securely": (
        {"dp_sgd": LOCAL, "privacy": {"trust": "secure-sum"}},
        r'form = "local" gives the coordinator each party\'s model.*Use trust = "trusted-aggregator"',
    ),
    "local drop-outs": ({"dp_sgd": LOCAL, "privacy": {"dropouts": 1}}, r"dropouts makes each.*Set dropouts = 0, and"),
    "rounds of steps": ({"dp_sgd": {"rounds": 2}}, r'rounds belongs to form = "local": every federated step is one'),
    "unequal rounds": ({"dp_sgd": LOCAL | {"rounds": 3}}, r"steps = 4 are not 3 rounds of equal length"),
    "no steps": ({"dp_sgd": {"steps": 0}}, r"\[dp_sgd\] steps = 0 should be greater than or equal to 1"),
    "momentum": ({"dp_sgd": {"momentum": 1.0}}, r"\[dp_sgd\] momentum = 1.0 should be less than 1"),
    "another part": (
        {"model": {"adapt": "tail"}},
        r"\[model\] adapt = \"tail\" is not one of 'head', 'lora', 'lora-all' or 'full'",
    ),
    "no label to measure by": ({"evaluation": {"label": None}}, r"\[evaluation\] label is missing: the column that h"),
    "words": ({"vocabulary": {"size": 3}}, "there is no key vocabulary"),
}


@pytest.mark.parametrize(("changes", "says"), DP_SGD.values(), ids=DP_SGD)
def test_steps_that_cannot_be_are_told(classifier_tables, changes, says):
    assert re.search(says, said := complaint(classifier_tables(**changes))), said


def test_shards_are_read_by_the_columns_and_parts_that_a_plan_names(classifier_tables):
    tables = classifier_tables()
    tables["federation"]["shards"]["label"] = None
    assert "[federation.shards] label is missing: the column that holds the labels." in complaint(tables)
    tables = classifier_tables()
    tables["federation"]["shards"]["split"]["of"] = 3
    assert "of = 3 parts are fewer than 4 parties. Use as many or more." in complaint(tables)
    pairs = classifier_tables(text={"kind": "pair"})
    pairs["federation"]["shards"]["second"] = "second"
    assert "[evaluation] second is missing: the column that holds the second texts." in complaint(pairs)


PATE = {
    "scores": ({"text": SCORES}, r'kind = "regression": votes are of classes. Use recipe = "dp_sgd" for scores'),
    "a high threshold": ({"pate": {"threshold": 21.0}}, r"threshold = 21 is more votes than 20 teachers have. Use at "),
    "no second": ({"text": {"kind": "pair"}}, r"\[pate\] second is missing: the column that holds the second texts"),
    "no query": ({"pate": {"queries": 0}}, r"\[pate\] queries = 0 should be greater than or equal to 1"),
    "sentences": ({"privacy": {"record": "sentence"}}, r"a label belongs to a document"),
}


@pytest.mark.parametrize(("changes", "says"), PATE.values(), ids=PATE)
def test_votes_that_cannot_be_are_told(classifier_tables, changes, says):
    assert re.search(says, said := complaint(classifier_tables("pate", **changes))), said


def test_votes_need_public_texts_of_nobody_and_more_than_one_teacher(classifier_tables):
    tables = classifier_tables("pate")
    own = tables["federation"]["shards"]["source"]
    del tables["pate"]
    assert "[pate] is missing: public texts for teachers to vote on, for example source" in complaint(tables)
    tables["pate"] = {"source": own}
    assert "is the parties' own text" in complaint(tables)
    tables["pate"] = {"source": "public.jsonl", "teachers_per_party": 1}
    tables["federation"]["shards"]["split"]["parties"] = 1
    assert "teachers_per_party = 1 with one party is one teacher: its votes are its whole" in complaint(tables)


def test_any_party_may_be_lost_where_each_adds_all_of_its_own_noise(classifier_plan, classifier_tables):
    """In the local form; of a sum, a loss takes noise away."""
    local = classifier_plan(dp_sgd=LOCAL, federation={"minimum_parties": 2})
    assert local.minimum_parties == 2
    assert "the noise of 4 of 4 parties is needed" in complaint(classifier_tables(federation={"minimum_parties": 2}))


RECIPES = {
    "dp_sgd": {},
    "local": {"dp_sgd": LOCAL | {"rounds": 2}},
    "pate": {"pate": {"threshold": 3.0}},
    "fine_tune": {},
    "scores": {"text": SCORES},
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_plan_is_the_same_again_from_what_is_kept_of_it(classifier_plan, name):
    plan = classifier_plan(name if name in ("pate", "fine_tune") else "dp_sgd", **RECIPES[name])
    kept = json.loads(json.dumps(plan.model_dump(mode="json")))
    again = plan_of(kept)
    assert type(again) is type(plan)
    assert again == plan
    assert again.document() == plan.document()


def descents(plan):
    """What a plan trains with, table by table: learning rate, and clip where there is one."""
    tables = {"dp_sgd": plan.dp_sgd, "fine_tune": plan.fine_tune, "pate": plan.pate}
    return {name: (of.learning_rate, getattr(of, "clip", None)) for name, of in tables.items() if of is not None}


SUITED = {
    "head": {"dp_sgd": (0.03, 1.0), "fine_tune": (0.001, None), "pate": (0.01, None)},
    "lora": {"dp_sgd": (0.01, 1.0), "fine_tune": (0.001, None), "pate": (0.01, None)},
    "lora-all": {"dp_sgd": (0.005, 1.0), "fine_tune": (0.001, None), "pate": (0.01, None)},
    "full": {"dp_sgd": (0.001, 1.0), "fine_tune": (0.0001, None), "pate": (0.0003, None)},
}


@pytest.mark.parametrize("adapt", SUITED)
def test_learning_rates_and_clip_follow_what_is_trained_where_the_plan_does_not_say_them(classifier_tables, adapt):
    tables = classifier_tables("pate", model={"adapt": adapt})
    del tables["dp_sgd"]["learning_rate"]
    plan = plan_of(tables)
    assert descents(plan) == SUITED[adapt]
    assert plan.dp_sgd.steps == 4
    del tables["dp_sgd"]
    assert descents(plan_of(tables)) == SUITED[adapt]
    bound = json.loads(plan.document())["dp_sgd"]
    assert (bound["learning_rate"], bound["clip"]) == SUITED[adapt]["dp_sgd"]


@pytest.mark.parametrize("adapt", SUITED)
@pytest.mark.parametrize("recipe", ["dp_sgd", "privdistil"])
def test_a_plan_that_is_begun_with_needs_no_other_change_for_more_than_the_head(recipe, adapt):
    begun = template("ray", recipe)
    assert '\nadapt = "head"' in begun
    plan = plan_of(tomllib.loads(begun.replace('\nadapt = "head"', f'\nadapt = "{adapt}"')))
    assert plan.dp_sgd.learning_rate == SUITED[adapt]["dp_sgd"][0]


@pytest.mark.parametrize("adapt", SUITED)
def test_what_a_plan_says_itself_is_as_it_says_whatever_is_trained(classifier_tables, adapt):
    own = {"dp_sgd": {"learning_rate": 0.2, "clip": 3.0}, "fine_tune": {"learning_rate": 0.3}}
    plan = plan_of(classifier_tables("pate", model={"adapt": adapt}, pate={"learning_rate": 0.4}, **own))
    assert descents(plan) == {"dp_sgd": (0.2, 3.0), "fine_tune": (0.3, None), "pate": (0.4, None)}
    assert plan_of(classifier_tables(model={"adapt": adapt})).pate is None


def test_a_table_that_is_none_is_told_whatever_is_trained(classifier_tables):
    tables = classifier_tables(model={"adapt": "lora"}) | {"dp_sgd": 4}
    assert "dp_sgd = 4" in complaint(tables)


SAME = {"federation": {"retry_seconds": 9.0, "deadline_seconds": 3.0}, "student": {"publish": "elsewhere"}}
OTHER = {
    "labels": {"text": {"labels": ["no", "yes"]}},
    "values": {"text": {"values": ["1", "0"]}},
    "length": {"text": {"longest": 17}},
    "clip": {"dp_sgd": {"clip": 2.0}},
    "rate": {"dp_sgd": {"learning_rate": 0.2}},
    "model": {"model": {"adapt": "full"}},
    "size": {"privacy": {"declared_size": 241}},
    "minimum": {"privacy": {"dropouts": 1}},
}


def test_what_is_hashed_covers_labels_and_settings_and_no_place_or_patience(classifier_plan):
    document = classifier_plan().document()
    assert classifier_plan(**SAME).document() == document
    others = [classifier_plan(**changes).document() for changes in OTHER.values()]
    assert len({document, *others}) == 1 + len(others)


def test_addresses_are_not_hashed(classifier_tables):
    def document(port):
        tables = classifier_tables()
        tables["federation"] = {
            "launch": "connect",
            "parties": [{"name": name, "address": f"127.0.0.1:{port}"} for name in ("north", "south")],
        }
        return plan_of(tables).document()

    assert document(7000) == document(7001)


def test_what_a_model_says_is_the_plans_classes_or_range(classifier_plan):
    assert classifier_plan().text.targets == LabelMap(("negative", "positive"), ("0", "1"))
    assert classifier_plan(text=SCORES).text.targets == ScoreRange(0.0, 5.0)
    assert classifier_plan("pate").teachers == 20
    assert classifier_plan().sampling == 0.25


def test_without_a_public_model_the_plan_has_no_price(classifier_plan):
    with pytest.raises(PlanError, match="The public model says how much is trained"):
        price_of(classifier_plan())


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "batch", "epsilon"), [(4, 10, 8.0), (4, 60, 0.5), (100, 12, 4.0)])
def test_launched_parties_can_pay_for_the_run_however_a_lifetime_cap_counts_it(classifier_plan, steps, batch, epsilon):
    settings = {"epsilon": epsilon, "noise_multiplier": None}
    plan = classifier_plan(privacy=settings, dp_sgd={"steps": steps, "batch": batch})
    releases = price_of(plan, SimpleNamespace(start=np.zeros(770, np.float32))).releases
    for party in party_tables(plan, releases).values():
        cap = LifetimeFilter(party["policy"]["epsilon"], party["policy"]["delta"])
        assert cap.admits([], releases[0].at_most)
    assert party_tables(plan)["party-1"]["policy"]["epsilon"] == 2 * epsilon


def test_an_evaluation_may_hold_other_values_than_the_parties(classifier_tables, tmp_path):
    path = tmp_path / "test.csv"
    path.write_bytes("Satz;Urteil\r\nschön;gut\r\nübel;schlecht\r\n".encode("cp1252"))
    told = {"source": str(path), "text": "Satz", "label": "Urteil", "encoding": "cp1252", "delimiter": ";"}
    plan = plan_of(classifier_tables(evaluation=told | {"values": ["schlecht", "gut"]}))
    assert [(each.first, each.target) for each in heldout(plan, tmp_path, tmp_path)] == [("schön", 1), ("übel", 0)]
    with pytest.raises(DataError, match="The label 'gut' is outside the label map, which holds 0, 1"):
        heldout(plan_of(classifier_tables(evaluation=told)), tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"evaluation": {"values": ["a"]}},
            "[evaluation] values: The label map has 2 classes and 1 values. Give as many.",
        ),
        ({"evaluation": {"encoding": "utf-16"}}, 'encoding = "utf-16": this is no encoding that files are read in'),
        ({"evaluation": {"delimiter": ";;"}}, "columns are divided by one character"),
        ({"text": SCORES, "evaluation": {"values": ["a", "b"]}}, "values belong to classes, and this plan has scores"),
    ],
)
def test_what_an_evaluation_cannot_hold_is_told(classifier_tables, changes, says):
    assert says in complaint(classifier_tables(**changes))


def test_how_files_are_read_is_hashed_where_it_is_given(classifier_tables):
    usual = plan_of(classifier_tables())
    for key in ("encoding", "delimiter", "sheet", "values"):
        assert key not in json.loads(usual.document())["evaluation"]
    assert "encoding" not in json.loads(usual.document())["federation"]["shards"]
    tables = classifier_tables(evaluation={"encoding": "cp1252", "values": ["0", "1"]})
    tables["federation"]["shards"] |= {"encoding": "cp1252", "sheet": "2024"}
    said = json.loads(plan_of(tables).document())
    assert (said["evaluation"]["encoding"], said["federation"]["shards"]["encoding"]) == ("cp1252", "cp1252")
    shard = party_tables(plan_of(tables))["party-1"]["shard"]
    assert (shard["encoding"], shard["sheet"]) == ("cp1252", "2024")
