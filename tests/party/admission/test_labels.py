"""A plan's labelled text against a party's file: what cannot be had here is refused at Join, by the rule's name."""

import functools
import math

import pytest

from learning.text.labelled import LabelMap, ScoreRange, TextColumns
from party.admission.admit import admit
from party.admission.labels import columns_of, targets_of
from party.shard_table import ShardTable
from protos.conclave.v1 import plan_pb2
from protos.digest import plan_hash
from protos.refusal import Reason, Refusal

SINGLE, PAIR, REGRESSION = plan_pb2.TEXT_KIND_SINGLE, plan_pb2.TEXT_KIND_PAIR, plan_pb2.TEXT_KIND_REGRESSION
STARS = {"label": "stars"}
MAPPED = {"label": "stars", "labels": ["no", "yes"]}


def labelled(kind=SINGLE, labels=("no", "yes"), **more):
    return plan_pb2.LabelledText(kind=kind, labels=labels, **more)


def scores(low, high, **more):
    return labelled(REGRESSION, (), low=low, high=high, **more)


@pytest.fixture
def terms(terms, descent):
    """Terms of a recipe that reads labels."""
    return functools.partial(terms, recipe="dp_sgd", releases=[descent()], epsilon=100.0)


@pytest.fixture
def config(config):
    return functools.partial(config, policy={"recipes": ["dp_sgd", "pate"], "epsilon": 200.0})


@pytest.fixture
def refused(terms, config):
    """`refused(labelled, shard)`: the refusal of terms with that labelled text by a party with that shard."""

    def refuses(text, shard=STARS, **plan):
        with pytest.raises(Refusal) as refusal:
            admit(terms(labelled=text, **plan), config(shard=shard))
        assert "\n" not in refusal.value.sentence
        assert len(refusal.value.sentence) < 500
        return refusal.value

    return refuses


@pytest.mark.parametrize(
    ("text", "shard"),
    [
        (labelled(), STARS),
        (labelled(), MAPPED),
        (labelled(values=["0", "1"]), MAPPED | {"values": ["-", "+"]}),
        (labelled(labels=[f"class {n}" for n in range(1000)]), STARS),
        (labelled(labels=["n" * 200, "ja, gärne"]), STARS),
        (labelled(PAIR), STARS | {"second": "reply"}),
        (scores(0, 5), MAPPED),
        (scores(-1.5, 1e6, second=True), STARS | {"second": "reply"}),
    ],
)
def test_labelled_text_that_the_shard_has_is_admitted(terms, config, text, shard):
    assert admit(terms(labelled=text), config(shard=shard)) is None


@pytest.mark.parametrize(
    ("text", "shard", "rule", "said"),
    [
        (labelled(), {}, "shard.label", "has no label column"),
        (labelled(), {"label": "text"}, "shard.label", "must differ"),
        (labelled(PAIR), STARS, "shard.second", "no column of second texts"),
        (scores(0, 5, second=True), STARS, "shard.second", "no column of second texts"),
        (labelled(labels=["yes", "no"]), MAPPED, "shard.labels", "class 1 is 'no', and in the plan it is 'yes'"),
        (
            labelled(labels=["no", "yes", "?"]),
            MAPPED,
            "shard.labels",
            "class 3 is none, and in the plan it is '?' of 3",
        ),
        (labelled(labels=["no", "Yes"]), MAPPED, "shard.labels", "class 2 is 'yes', and in the plan it is 'Yes'"),
    ],
)
def test_what_this_partys_file_does_not_have_is_a_rule_of_its_own(refused, text, shard, rule, said):
    refusal = refused(text, shard)
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, rule)
    assert said in refusal.sentence


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (labelled(kind=0), "does not say what its labelled text is"),
        (labelled(kind=77), "does not say what its labelled text is"),
        (labelled(labels=[]), "two classes or more, not 0"),
        (labelled(labels=["only"]), "two classes or more, not 1"),
        (labelled(labels=["a", "b", "a"]), "'a' twice"),
        (labelled(labels=["a", " b"]), "without space"),
        (labelled(labels=["a", "b\x1b[2J"]), "cannot be shown"),
        (labelled(labels=["a", "b"], values=["0", "\u202e1"]), "cannot be shown"),
        (labelled(labels=["a", "b" * 201]), "201 characters"),
        (labelled(labels=[f"class {n}" for n in range(1001)]), "1,001 classes"),
        (labelled(values=["0"]), "2 classes and 1 values"),
        (labelled(low=0.0, high=1.0), "both classes and a range"),
        (labelled(high=math.nan), "both classes and a range"),
        (labelled(second=True), "no regression"),
        (labelled(REGRESSION, low=0.0, high=5.0), "both a range of scores and classes"),
        (scores(0.0, 0.0), "cannot range from 0.0 to 0.0"),
        (scores(5.0, 0.0), "the lower first"),
        (scores(math.nan, 1.0), "finite numbers"),
        (scores(0.0, math.inf), "finite numbers"),
        (scores(-1.7e308, 1.7e308), "cannot be told apart"),
        (scores(1e308, 1.7e308), "cannot be told apart"),
        (scores(1e16, 1e16 + 2), "cannot be told apart"),
        (scores(0.0, 5e-324), "cannot be told apart"),
    ],
)
def test_a_map_or_range_that_nobody_could_read_by_is_the_plans_fault(refused, text, said):
    refusal = refused(text)
    assert refusal.reason == Reason.PLAN
    assert said in refusal.sentence


def votes_on(classes):
    votes = plan_pb2.VotesMechanism(classes=classes, levels=2, noise=12.0, shares=2, distribution="gaussian")
    return [
        plan_pb2.Release(name="votes", charges=2, form=plan_pb2.FORM_SUMMED, joint=plan_pb2.JointMechanism(votes=votes))
    ]


def test_votes_are_of_the_classes_that_the_plan_declares(refused, terms, config):
    assert admit(terms(labelled=labelled(), releases=votes_on(2), recipe="pate"), config(shard=STARS)) is None
    for text, classes, said in [
        (labelled(), 3, "votes on 3 classes, and its labelled text has 2"),
        (scores(0, 5), 2, "votes, and its labelled text has scores"),
    ]:
        refusal = refused(text, releases=votes_on(classes))
        assert refusal.reason == Reason.PLAN
        assert said in refusal.sentence


@pytest.mark.parametrize("record", [plan_pb2.RECORD_SENTENCE, plan_pb2.RECORD_PAIR])
def test_a_label_belongs_to_a_document(refused, record):
    assert "a label belongs to a document" in refused(labelled(), record=record).sentence


async def test_join_refuses_labels_that_are_not_here_and_takes_those_that_are(opened, terms, tmp_path):
    (tmp_path / "notes.jsonl").write_text('{"text": "a note", "who": "a", "stars": "yes"}\n')
    policy = {"simulation": True, "recipes": ["dp_sgd"], "epsilon": 200.0}
    caller = await opened(
        plan=terms(labelled=labelled(labels=["yes", "no"])), shard=MAPPED, plaintext=True, policy=policy
    )
    with pytest.raises(Refusal, match="class 1 is 'no'"):
        await caller.join()
    caller = await opened(node=caller.node, plan=terms(labelled=labelled()))
    await caller.join()


def test_a_run_is_bound_to_its_label_map(terms):
    plans = [terms(), *(terms(labelled=labelled(labels=each)) for each in (["no", "yes"], ["yes", "no"]))]
    assert len({plan_hash(plan_pb2.Plan(terms=each)) for each in plans}) == 3


def test_a_party_that_states_its_map_reads_by_that_and_any_other_by_the_plans():
    text = labelled(values=["0", "1"])
    own = MAPPED | {"values": ["-", "+"]}
    for shard, values in [(STARS, ("0", "1")), (MAPPED, ()), (own, ("-", "+"))]:
        found = targets_of(text, ShardTable(source="x", **shard))
        assert found == LabelMap(("no", "yes"), values)
    assert targets_of(scores(0, 5), ShardTable(source="x", **own)) == ScoreRange(0, 5)


def test_columns_are_the_shards_own_and_a_second_is_read_where_the_plan_has_one():
    shard = ShardTable(source="x", text="note", second="reply", label="stars")
    for text, second in [
        (labelled(), None),
        (labelled(PAIR), "reply"),
        (scores(0, 5), None),
        (scores(0, 5, second=True), "reply"),
    ]:
        found = columns_of(text, shard)
        kind = {SINGLE: "single", PAIR: "pair", REGRESSION: "regression"}[text.kind]
        assert found == TextColumns(kind, "note", second, "stars")


def test_a_recipe_that_reads_text_alone_declares_no_labelled_text(terms, config):
    with pytest.raises(Refusal, match="dped reads text alone") as refusal:
        admit(terms(recipe="dped", labelled=labelled()), config(policy={"recipes": ["dped"]}, shard=STARS))
    assert (refusal.value.reason, refusal.value.rule) == (Reason.POLICY, "recipes")
