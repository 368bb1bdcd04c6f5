"""A plan of noisy vectors is admitted only where the party lets single texts leave, at the price of what a unit has;
one of noisy sequences, which have no price, only where the party keeps no account with a cap.
"""

import pytest

from party.admission.admit import admit, queries_of, times
from protos.conclave.v1 import plan_pb2
from protos.refusal import Reason, Refusal

NAMES = ("negative", "positive")
SAMPLES = {"samples": True, "recipes": ["nvdp"]}


def samples(charges=1, form=plan_pb2.FORM_SAMPLES, **changes):
    numbers = {
        "rows": 100, "dimensions": 8, "levels": 4096, "noise_multiplier": 2.0, "texts": 1, "classes": 2,
        "label_epsilon": 1.0,
    }  # fmt: skip
    message = plan_pb2.SamplesMechanism(**numbers | changes)
    return plan_pb2.Release(name="samples", charges=charges, form=form, samples=message)


@pytest.fixture
def asked(terms):
    """`asked(release, ...)`: terms of this release alone."""
    text = plan_pb2.LabelledText(kind=plan_pb2.TEXT_KIND_SINGLE, labels=NAMES)
    return lambda release, **changes: terms(recipe="nvdp", releases=[release], labelled=text, **changes)


@pytest.fixture
def holds(config):
    """`holds(...)`: a party file with labels, and these rules."""
    return lambda **policy: config(policy=SAMPLES | policy, shard={"label": "stars"})


def refused(terms, config):
    with pytest.raises(Refusal) as refusal:
        admit(terms, config)
    return refusal.value


@pytest.mark.parametrize("trust", [plan_pb2.TRUST_TRUSTED_AGGREGATOR, plan_pb2.TRUST_SECURE_SUM])
def test_a_party_that_lets_single_texts_leave_admits_it(asked, holds, trust):
    assert admit(asked(samples(), trust=trust), holds()) is None


def test_no_other_party_does(asked, holds):
    refusal = refused(asked(samples()), holds(samples=False))
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "samples")
    assert "100 texts" in refusal.sentence


def test_labels_leave_as_they_are_only_where_the_party_calls_them_public(asked, holds):
    clear = samples(label_epsilon=0.0)
    assert refused(asked(clear), holds()).rule == "public_labels"
    assert admit(asked(clear), holds(public_labels=True)) is None


@pytest.mark.parametrize(
    ("release", "said"),
    [
        (samples(charges=2), "drawn once"),
        (samples(texts=2), "a record is one text"),
        (samples(form=plan_pb2.FORM_SUMMED), "samples are samples"),
        (samples(form=plan_pb2.FORM_FREE), "samples are samples"),
        (samples(noise_multiplier=0.3), "above the 8 it promises"),
        (samples(label_epsilon=9.0), "above the 8 it promises"),
        (samples(classes=0), "classes is 0"),
        (samples(rows=0), "rows is 0"),
    ],
)
def test_terms_that_cannot_be_are_refused(asked, holds, release, said):
    refusal = refused(asked(release), holds())
    assert refusal.reason == Reason.PLAN
    assert said in refusal.sentence


@pytest.mark.slow
def test_a_user_costs_all_its_texts(asked, config):
    users = config(policy=SAMPLES | {"unit": "user"}, shard={"label": "stars", "user": "who"})
    asks = asked(samples(texts=4), unit=plan_pb2.UNIT_USER, epsilon=20.0)
    assert admit(asks, users) is None
    labels = asked(samples(texts=4, label_epsilon=6.0), unit=plan_pb2.UNIT_USER, epsilon=20.0)
    assert "above the 20 it promises" in refused(labels, users).sentence


def test_every_row_counts_as_a_query_and_nothing_is_drawn_again(asked, holds):
    assert queries_of(samples()) == 100
    assert refused(asked(samples()), holds(maximum_queries=99)).rule == "maximum_queries"
    assert times(samples(), asked(samples(), attempts=5)) == 1


def test_the_least_noise_of_a_party_is_compared_with_that_of_the_vectors(asked, holds):
    assert admit(asked(samples()), holds(minimum_noise=2.0)) is None
    assert refused(asked(samples()), holds(minimum_noise=2.1)).rule == "minimum_noise"


def sequences(charges=1, form=plan_pb2.FORM_SAMPLES, **changes):
    numbers = {"rows": 100, "layer": "nvib", "tokens": 8, "width": 16, "levels": 4096, "classes": 2}
    return plan_pb2.Release(
        name="sequences", charges=charges, form=form, sequences=plan_pb2.SequencesMechanism(**numbers | changes)
    )


UNPROVEN = {"epsilon": 0.0, "delta": 0.0, "unproven": True, "trust": plan_pb2.TRUST_TRUSTED_AGGREGATOR}


@pytest.fixture
def open_to_all(config):
    """`open_to_all(...)`: the file of a party that lets sequences without a guarantee leave, but for these rules."""
    rules = SAMPLES | {"guarantee": False, "epsilon": None, "delta": None, "public_labels": True}
    return lambda **policy: config(policy=rules | policy, shard={"label": "stars"})


def test_sequences_are_admitted_only_where_the_party_allows_single_texts_clear_labels_and_no_guarantee(
    asked, open_to_all, holds
):
    plan = asked(sequences(), **UNPROVEN)
    assert admit(plan, open_to_all()) is None
    assert refused(plan, open_to_all(samples=False)).rule == "samples"
    assert "noisy sequence of each of 100 texts" in refused(plan, open_to_all(samples=False)).sentence
    assert refused(plan, open_to_all(public_labels=False)).rule == "public_labels"
    assert refused(plan, holds(public_labels=True)).rule == "guarantee"
    assert refused(plan, open_to_all(minimum_noise=0.1)).rule == "minimum_noise"
    assert refused(plan, open_to_all(maximum_queries=99)).rule == "maximum_queries"


@pytest.mark.parametrize(
    ("release", "privacy", "said"),
    [
        (sequences(), {"trust": plan_pb2.TRUST_TRUSTED_AGGREGATOR}, "it promises epsilon"),
        (sequences(charges=2), UNPROVEN, "drawn once"),
        (sequences(form=plan_pb2.FORM_SAID), UNPROVEN, "sequences are samples"),
        (sequences(form=plan_pb2.FORM_FREE), UNPROVEN, "sequences are samples"),
        (sequences(layer="plain"), UNPROVEN, "no layer of noisy sequences"),
        (sequences(layer="vib-fixed"), UNPROVEN, "sigma is 0"),
        (sequences(sigma=1.0), UNPROVEN, "sigma is 1"),
        (sequences(tokens=0), UNPROVEN, "tokens is 0"),
        (sequences(tokens=129), UNPROVEN, "tokens is 129"),
        (sequences(rows=1 << 20, tokens=128, width=768), UNPROVEN, "numbers are more than"),
        (samples(), UNPROVEN, "nothing is guaranteed, and release samples"),
    ],
)
def test_terms_of_sequences_that_cannot_be_are_refused(asked, open_to_all, holds, release, privacy, said):
    refusal = refused(asked(release, **privacy), open_to_all() if "unproven" in privacy else holds(public_labels=True))
    assert refusal.reason == Reason.PLAN
    assert said in refusal.sentence
