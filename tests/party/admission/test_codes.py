"""A plan's control codes against a party's file: what the file does not open is refused at Join, by the rule's name."""

import functools

import pytest

from learning.text.codes import LONGEST_TEMPLATE
from party.admission.admit import admit
from party.admission.codes import codes_of
from party.shard_table import ShardTable
from protos.conclave.v1 import plan_pb2
from protos.console.mistakes import SettingsError
from protos.digest import plan_hash
from protos.refusal import Reason, Refusal

OPEN = {"codes": {"opinion": "stars", "kind": "genre"}}


def column(name="opinion", labels=("bad", "good"), values=()):
    return plan_pb2.CodeColumn(name=name, labels=labels, values=values)


@pytest.fixture
def terms(terms, descent, distildp):
    return functools.partial(terms, recipe=distildp, releases=[descent()], epsilon=100.0)


@pytest.fixture
def config(config, distildp):
    return functools.partial(config, policy={"recipes": [distildp, "dped", "dp_sgd"], "epsilon": 200.0})


@pytest.fixture
def refused(terms, config, coded):
    """`refused(shard, changes of the codes, of the plan)`: the refusal."""

    def refuses(shard=OPEN, changes=(), **plan):
        with pytest.raises(Refusal) as refusal:
            admit(terms(coded=coded(**dict(changes)), **plan), config(shard=shard))
        assert refusal.value.sentence.isprintable()
        assert len(refusal.value.sentence) < 600
        return refusal.value

    return refuses


def test_codes_whose_columns_are_open_are_admitted(terms, config, coded):
    assert admit(terms(coded=coded()), config(shard=OPEN)) is None
    both = [column(), column("kind", ["film", "book", "play"], ["0", "1", "2"])]
    assert admit(terms(coded=coded(template="{kind}: {opinion}", columns=both)), config(shard=OPEN)) is None


def test_codes_are_read_from_the_columns_that_this_partys_file_names(coded):
    both = [column(values=["no", "yes"]), column("kind", ["film", "book"])]
    found = codes_of(coded(template="{kind}: {opinion}", columns=both), ShardTable(source="x", **OPEN))
    assert found.columns == {"opinion": "stars", "kind": "genre"}
    assert set(found.also) == {"stars", "genre"}
    assert found.texts == ("film: bad", "book: bad", "film: good", "book: good")


@pytest.mark.parametrize(
    ("shard", "said"),
    [
        ({}, "opens none for them"),
        ({"label": "stars"}, "opens none for them"),
        ({"codes": {"kind": "stars"}}, "opens kind for them"),
        ({"codes": {"stars": "opinion"}}, "opens stars for them"),  # the plan's name, not the column's
    ],
)
def test_a_column_that_the_file_does_not_open_is_not_read(refused, shard, said):
    refusal = refused(shard)
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "shard.codes")
    assert "policy [shard] codes: this plan reads the column 'opinion' for control codes" in refusal.sentence
    assert said in refusal.sentence


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"template": ""}, "names no column"),
        ({"template": "{opinion} {who}"}, "who is in one of them only"),
        ({"template": "{opinion"}, "cannot be read"),
        ({"template": "{opinion.__class__}"}, "names no column"),
        ({"template": "{opinion!r}"}, "names no column"),
        ({"template": "{opinion}\x1b[2J"}, "cannot be shown"),
        ({"template": "{opinion}" + "x" * LONGEST_TEMPLATE}, "longer than 1,000 characters"),
        ({"columns": []}, "opinion is in one of them only"),
        ({"columns": [column(), column("\x1b" * 9)]}, "is in one of them only"),
        ({"columns": [column(), column()]}, "have the column 'opinion' twice"),
        ({"columns": [column(labels=["only"])]}, "two classes or more"),
        ({"columns": [column(labels=["a", "a"])]}, "'a' twice"),
        ({"columns": [column(labels=["a", "b\x00"])]}, "cannot be shown"),
        ({"columns": [column(values=["0"])]}, "2 classes and 1 values"),
        ({"columns": [column(f"c{n}") for n in range(13)]}, "13 columns; use 12 at most"),
        (
            {"template": "{a}{b}", "columns": [column(each, [str(n) for n in range(100)]) for each in "ab"]},
            "10,000 combinations",
        ),
    ],
)
def test_codes_that_nobody_could_read_are_the_plans_fault(refused, changes, said):
    refusal = refused(OPEN | {"codes": dict.fromkeys((*"ab", "opinion", "who"), "stars")}, changes)
    assert refusal.reason == Reason.PLAN
    assert said in refusal.sentence


@pytest.mark.parametrize("record", [plan_pb2.RECORD_SENTENCE, plan_pb2.RECORD_PAIR])
def test_a_code_belongs_to_a_document(refused, record):
    assert "a code belongs to a document" in refused(record=record).sentence


@pytest.mark.parametrize("recipe", ["dped", "dp_sgd"])
def test_a_recipe_that_reads_no_codes_declares_none(terms, config, coded, descent, recipe):
    releases = {} if recipe == "dp_sgd" else {"releases": []}
    with pytest.raises(Refusal, match=f"{recipe} reads no control codes, and this plan declares some") as refusal:
        admit(terms(recipe=recipe, coded=coded(), **releases), config(shard=OPEN | {"label": "stars"}))
    assert (refusal.value.reason, refusal.value.rule) == (Reason.POLICY, "recipes")


def test_a_run_is_bound_to_its_codes(terms, coded):
    plans = [terms(), *(terms(coded=coded(template=each)) for each in ("Is {opinion}", "It is {opinion}"))]
    assert len({plan_hash(plan_pb2.Plan(terms=each)) for each in plans}) == 3


@pytest.mark.parametrize(
    ("shard", "said"),
    [
        ({"codes": {"a b": "stars"}}, "'a b' is no name that a plan's template can have"),
        ({"codes": {"opinion": "text"}}, "is a column of texts, and codes are values that everybody may know"),
        ({"codes": {"opinion": "reply"}, "second": "reply"}, "is a column of texts"),
        ({"codes": {"opinion": ""}}, "at least 1 character"),
        ({"codes": "stars"}, "codes"),
    ],
)
def test_a_party_file_opens_columns_of_values_under_names(config, shard, said):
    with pytest.raises(SettingsError, match=said):
        config(shard=shard)
