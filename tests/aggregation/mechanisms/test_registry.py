"""Every mechanism, asked the same things: its numbers and back, its forms, its price, its slack and its sentence."""

import math
from dataclasses import replace

import pytest

from aggregation.accounting.events import noise_multiplier_of
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.argmax import TOTAL_VARIATION
from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.free import FreeAnswers
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.mechanisms.joint import JointMechanism
from aggregation.mechanisms.mechanism import Form, Mechanism
from aggregation.mechanisms.registry import MECHANISMS, made, numbers_of, of_teachers
from aggregation.mechanisms.said import FreeTargets, FreeTexts, SoftenedTargets
from aggregation.mechanisms.samples import SamplesMechanism
from aggregation.mechanisms.sequences import SequencesMechanism
from aggregation.mechanisms.thresholded import ThresholdedVotes
from aggregation.mechanisms.vectors import DifferencesMechanism, VectorMechanism
from aggregation.mechanisms.votes import VotesMechanism

VOTES = VotesMechanism(classes=5000, levels=3, noise=20.5, shares=3)
HIDDEN = HiddenMechanism(layers=2, width=7, clip=1.5, levels=99, noise=31.25, shares=3)
TRAINING = GradientMechanism(0.5, 300, 1.5, 0.25, 4000, 54321)
THRESHOLDED = ThresholdedVotes(5, 9, 4.5, 3.0, 6.0, None, 0.25)
KNOWN: dict[str, Mechanism] = {
    "counts": CountsMechanism(clip=4.0, levels=64, noise_multiplier=1.25, shares=2),
    "counts, Skellam": CountsMechanism(4.0, 64, 1.25, 2, "skellam"),
    "vectors": VectorMechanism(clip=120.5, levels=4096, noise_multiplier=0.75, shares=2),
    "vectors, discrete Gaussian": VectorMechanism(120.5, 4096, 0.75, 2, "discrete-gaussian"),
    "differences": DifferencesMechanism(12.5, 4096, 0.75, 2, tokens=100, outcomes=30),
    "votes alone": JointMechanism(VOTES, None),
    "hidden states alone": JointMechanism(None, HIDDEN),
    "both": JointMechanism(VOTES, HIDDEN),
    "thresholded": THRESHOLDED,
    "thresholded, more noise below": replace(THRESHOLDED, larger_noise=12.0),
    "gradients": TRAINING,
    "free": FreeAnswers("training", 5, 2, 7, 1.5, 2**20),
    "texts": FreeTexts("training", 40),
    "targets": FreeTargets("texts", 64, 8192),
    "softened": SoftenedTargets(64, 8192, "top", 0.05, 3, 2.0, 8.0, 12.0),
    "samples": SamplesMechanism(500, 8, 4096, 2.0, 1, 3, 1.0),
    "sequences": SequencesMechanism(500, "nvib", 32, 64, 0.0, 4096, 3),
    "sequences, one vector": SequencesMechanism(500, "vib-fixed", 32, 64, 0.5, 4096, 3),
}
SENTENCES = {
    "counts": "each unit's counts clipped to L2 norm 4, Gaussian noise of standard deviation 1.25 times that on each "
    "of 3,000 sums, charged once",
    "counts, Skellam": "each unit's counts clipped to L2 norm 4, Skellam noise of standard deviation 1.25 times that "
    "on each of 3,000 sums, charged once",
    "vectors": "each unit's word frequencies and second moments along public directions clipped to L2 norm 120.5, "
    "Gaussian noise of standard deviation 0.75 times that on each of 30 sums, charged once",
    "vectors, discrete Gaussian": "each unit's word frequencies and second moments along public directions clipped to "
    "L2 norm 120.5, discrete Gaussian noise of standard deviation 0.75 times that on each of 30 sums, charged once",
    "differences": "what teachers say of 100 tokens, as differences from a public model over 30 outcomes of each, "
    "clipped to L2 norm 12.5 over all tokens together (sensitivity of the sum 25), Gaussian noise of 18.75 on every "
    "number of the sum, charged once",
    "votes alone": "one vote a teacher among 5,000 classes (L2 sensitivity sqrt(2)), Gaussian noise of 20.5 votes on "
    "every class; one joint event a query, 100 queries, abstained ones charged too",
    "hidden states alone": "hidden states of 2 layer(s) clipped to L2 norm 1.5 each (sensitivity of the sum 4.24), "
    "Gaussian noise of 31.25 on every coordinate of the sum; one joint event a query, 100 queries, abstained ones "
    "charged too",
    "both": "one vote a teacher among 5,000 classes (L2 sensitivity sqrt(2)), Gaussian noise of 20.5 votes on every "
    "class; hidden states of 2 layer(s) clipped to L2 norm 1.5 each (sensitivity of the sum 4.24), Gaussian noise of "
    "31.25 on every coordinate of the sum; one joint event a query, 100 queries, abstained ones charged too",
    "thresholded": "votes of 9 teachers on 100 queries; the largest count plus noise 3 against 4.5, labels under noise "
    "6; the cap of a filter is charged, whatever was answered",
    "thresholded, more noise below": "votes of 9 teachers on 100 queries; the largest count plus noise 3 against 4.5, "
    "labels under noise 6, 12 under it; the cap of a filter is charged, whatever was answered",
    "gradients": "models that each party trained alone by DP-SGD: gradients of a unit clipped to 0.5, noise multiplier "
    "1.5, sampling 0.25, 4,000 steps",
    "free": "answers of what training paid for: post-processing, no noise, no charge",
    "texts": "texts of what training paid for: post-processing, no noise, no charge",
    "targets": "of every token of the texts the 64 likeliest outcomes, by what wrote texts: post-processing, no noise, "
    "no charge",
    "softened": "of every token of the texts the 64 likeliest outcomes of a party's own model, at temperatures from 2, "
    "which grow near privacy clue words up to 12, with Laplace noise of scale 0.05 on the 3 likeliest: no guarantee: a "
    "heuristic, which no proof covers",
    "samples": "500 rows of every party, each a text's vector of 8 numbers clipped to L2 norm 1 under Gaussian noise "
    "of 4 on each (sensitivity 2 a row), its class kept with probability 0.5761 among 3 (randomised response of "
    "epsilon 1); rows that no text fills are noise alone, so that their number tells nothing",
    "sequences": "500 rows of every party, each a text sampled by a learned layer (nvib: a Gaussian of each of 32 "
    "tokens with Dirichlet weights, vectors of 64 numbers), its class as it is: no guarantee: a heuristic, which no "
    "proof covers",
    "sequences, one vector": "500 rows of every party, each a text sampled by a learned layer (vib-fixed: one Gaussian "
    "of deviation 0.5, vectors of 64 numbers), its class as it is: no guarantee: a heuristic, which no proof covers",
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_mechanism_is_made_again_of_its_numbers(name):
    mechanism = KNOWN[name]
    assert made(mechanism.kind, numbers_of(mechanism)) == mechanism


def test_a_zero_stands_for_what_the_mechanism_says():
    zeros = numbers_of(THRESHOLDED) | {"larger_noise": 0.0}
    assert made("thresholded", zeros) == THRESHOLDED
    assert made("gradients", numbers_of(TRAINING) | {"shares": 0}) == TRAINING
    with pytest.raises(ConclaveError, match="shares is 0"):
        made("counts", numbers_of(KNOWN["counts"]) | {"shares": 0})


def test_an_unknown_kind_is_an_error_in_words():
    with pytest.raises(ConclaveError, match="'laplace' is no mechanism; there are counts, vectors, joint"):
        made("laplace", {})


@pytest.mark.parametrize("name", KNOWN)
def test_its_sentence_is_the_one_of_every_report(name):
    mechanism = KNOWN[name]
    assert mechanism.described(100, 30, mechanism.forms[0]) == SENTENCES[name]


def test_a_training_says_who_trains_what():
    steps, weights = (TRAINING.described(1, 54321, form) for form in (Form.STEPPED, Form.WEIGHTS))
    assert steps == (
        "steps of DP-SGD by all parties: each unit's gradient clipped to L2 norm 0.5, sampling 0.25, Gaussian noise of "
        "standard deviation 1.5 times the clip on each of 54,321 sums, 4,000 steps"
    )
    assert weights == (
        "a model that each party trained alone by DP-SGD: gradients of a unit clipped to 0.5, noise multiplier 1.5, "
        "sampling 0.25, 4,000 steps; 54,321 parameters"
    )


@pytest.mark.parametrize("name", KNOWN)
def test_the_multiplier_that_is_charged_is_that_of_the_event(name):
    mechanism = KNOWN[name]
    assert mechanism.noise_multiplier_charged() == noise_multiplier_of(mechanism.event())


def test_queries_are_what_is_charged_one_by_one():
    asked = {name: mechanism.queries(100) for name, mechanism in KNOWN.items()}
    failing, _ = THRESHOLDED.charges
    larger, _ = KNOWN["thresholded, more noise below"].charges
    assert asked.pop("free") == asked.pop("texts") == asked.pop("targets") == 0
    assert asked.pop("differences") == 100 * 100
    assert asked.pop("samples") == asked.pop("sequences") == asked.pop("sequences, one vector") == 100 * 500
    assert asked.pop("thresholded") == 100 * math.floor(0.25 / failing)
    assert asked.pop("thresholded, more noise below") == 100 * math.floor(0.25 / larger)
    assert set(asked.values()) == {100}


def test_slack_counts_every_value_in_every_attempt():
    counts = KNOWN["counts"]
    assert counts.slack(10, 30, 2.0, 3) == counts.shared.slack(900, 2.0)
    whole = TRAINING.shared.slack(4000 * 54321, 2.0)
    assert TRAINING.slack(0, 0, 2.0) == TRAINING.slack(1, 54321, 2.0) == whole
    assert TRAINING.slack(1, 54321, 2.0, 2) == TRAINING.shared.slack(2 * 4000 * 54321, 2.0)
    once = (1 + math.exp(2.0)) * 2 * 10 * TOTAL_VARIATION
    assert THRESHOLDED.slack(10, 3, 2.0) == THRESHOLDED.slack(10, 3, 2.0, 4) == pytest.approx(once)
    assert {KNOWN[name].slack(10**6, 10**6, 2.0, 10) for name in ("free", "texts", "targets", "softened")} == {0.0}


def test_parties_add_noise_where_they_are_counted_on():
    assert {name: mechanism.shares for name, mechanism in KNOWN.items() if mechanism.shares != 2} == {
        "votes alone": 3,
        "hidden states alone": 3,
        "both": 3,
        "thresholded": 0,
        "thresholded, more noise below": 0,
        "gradients": 1,
        "free": 0,
        "texts": 0,
        "targets": 0,
        "softened": 0,
        "samples": 1,
        "sequences": 0,
        "sequences, one vector": 0,
    }


def test_every_form_is_of_a_mechanism_and_no_kind_twice():
    assert set(Form) == {form for mechanism in MECHANISMS.values() for form in mechanism.forms}
    assert {mechanism.kind for mechanism in KNOWN.values()} == set(MECHANISMS)
    for form in Form:
        assert not (form.alone and form.retried)
        assert form.gives or form.alone


def test_teachers_answer_under_three_kinds():
    assert (of_teachers(KNOWN["both"]).classes, of_teachers(KNOWN["both"]).width) == (5000, 7)
    assert of_teachers(THRESHOLDED).layers == 0
    with pytest.raises(IntegrityError, match="Teachers do not answer under CountsMechanism"):
        of_teachers(KNOWN["counts"])
