"""Thresholded votes: the test is noised, every query pays, the cap holds, and nothing after the stop is shown."""

import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from aggregation.accounting.price import GaussianFilter
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.argmax import TOTAL_VARIATION
from aggregation.mechanisms.mechanism import Released
from aggregation.mechanisms.thresholded import ABSTAINED, NOT_ASKED, ThresholdedVotes, thresholded_labels
from aggregation.mechanisms.votes import tally
from aggregation.noise.stream import NoiseStream

SETTINGS = {
    "classes": 20,
    "teachers": 5,
    "threshold": 4.0,
    "threshold_noise": 2.0,
    "noise": 3.0,
    "larger_noise": None,
    "cap": 1e6,
}


def mechanism(**changed):
    return ThresholdedVotes(**(SETTINGS | changed))


def stream(*labels):
    return NoiseStream.from_key(bytes(32)).child(*labels)


def repeated(row, queries):
    return np.tile(np.array(row), (queries, 1))


def one_by_one(passed, failing, passing, cap):
    """The rule as it is written: before each query, stop if its dearest outcome would pass the cap."""
    spent = Fraction(0)
    for asked, outcome in enumerate(passed):
        if spent + max(failing, passing) > Fraction(cap):
            return asked, spent
        spent += passing if outcome else failing
    return len(passed), spent


@given(st.lists(st.integers(0, 4), min_size=5, max_size=5), st.integers(0, 4))
def test_a_changed_teacher_moves_the_largest_count_by_at_most_one(votes, other):
    neighbour = [other, *votes[1:]]
    ours, theirs = (int(tally(np.array([row]))[0, 0]) for row in (votes, neighbour))
    assert abs(ours - theirs) <= 1


def test_every_query_pays_for_its_test_and_answers_pay_two_over_noise_squared():
    failing, passing = mechanism().charges
    assert failing == GaussianFilter(1.0).spent([GaussianDpEvent(2.0)]) == Fraction(1, 4)
    assert passing == Fraction(1, 4) + Fraction(2, 9)
    failing, passing = mechanism(larger_noise=6.0).charges
    assert failing == Fraction(1, 4) + Fraction(2, 36)
    assert passing == Fraction(1, 4) + Fraction(2, 9)


def test_abstained_queries_use_up_the_cap():
    strict = mechanism(threshold=5.0, threshold_noise=0.1, cap=1000.0 + 2 / 9)
    answers = strict.answer(repeated([0, 1, 2, 3, 4], 50), stream("abstain"))
    assert answers.answered == 0
    assert answers.asked == 10  # 100 each, and room for the dearest outcome is kept
    assert answers.labels.tolist() == [ABSTAINED] * 10 + [NOT_ASKED] * 40
    assert answers.spent == pytest.approx(1000.0)


@pytest.mark.parametrize(("row", "count"), [([7, 7, 7, 7, 7], 5), ([7, 7, 7, 1, 2], 3), ([0, 1, 2, 3, 4], 1)])
def test_the_test_is_made_on_the_noised_value(row, count):
    """The raw rule would pass all or none; 100,000 draws at a level of 1e-6 find a difference of 0.01."""
    answers = mechanism().answer(repeated(row, 100_000), stream("test", count))
    expected = stats.norm.cdf((count - 4.0) / 2.0)
    assert 0.01 < expected < 0.99
    assert stats.binomtest(int(answers.passed.sum()), 100_000, expected).pvalue > 1e-6
    assert np.array_equal(answers.passed, answers.labels != ABSTAINED)


def test_answers_are_drawn_with_the_noise_of_an_answer():
    answers = mechanism(noise=1.0).answer(repeated([7, 7, 7, 7, 1], 100_000), stream("labels"))
    labels = answers.labels[answers.passed]
    rng = np.random.default_rng(0)
    dense = np.argmax(np.bincount([7, 7, 7, 7, 1], minlength=20) + rng.normal(0, 1.0, (labels.size, 20)), axis=1)
    table = np.array([np.bincount(each, minlength=20) for each in (labels, dense)])
    assert stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue > 1e-4


def test_larger_noise_goes_to_the_queries_that_the_noised_test_chose():
    both = mechanism(noise=0.2, larger_noise=1e6)
    answers = both.answer(repeated([7, 7, 7, 7, 7], 20_000), stream("larger"))  # unanimous, and some fail all the same
    assert answers.answered == answers.asked == 20_000
    assert (answers.labels[answers.passed] == 7).all()
    failed = answers.labels[~answers.passed]
    assert 3000 < failed.size < 9000
    assert stats.chisquare(np.bincount(failed, minlength=20)).pvalue > 1e-4


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.booleans(), max_size=60),
    st.floats(0.3, 20),
    st.floats(0.3, 20),
    st.one_of(st.none(), st.floats(20, 40)),
    st.floats(0.01, 40),
)
def test_the_stop_is_where_one_query_after_the_other_would_have_stopped(passed, test_noise, noise, larger, cap):
    rule = mechanism(threshold_noise=test_noise, noise=noise, larger_noise=larger, cap=cap)
    asked, spent = rule._affordable(np.array(passed, dtype=bool))
    assert (asked, spent) == one_by_one(passed, *rule.charges, cap)
    assert spent <= Fraction(cap)


def test_charges_that_fill_the_cap_to_the_last_bit_are_admitted_and_no_more():
    exact = mechanism(threshold_noise=1.0, noise=1.0, cap=30.0)  # 3 a passed query
    assert exact._affordable(np.ones(20, dtype=bool)) == (10, 30)
    below = mechanism(threshold_noise=1.0, noise=1.0, cap=math.nextafter(30.0, 0.0))
    assert below._affordable(np.ones(20, dtype=bool)) == (9, 27)


@pytest.mark.slow
def test_the_number_of_queries_asked_has_the_distribution_of_asking_one_by_one():
    rule = mechanism(cap=3.0)
    votes = np.array([[7, 7, 7, 7, 7], [7, 7, 7, 1, 2]] * 6)
    ours = [rule.answer(votes, stream("asked", i)).asked for i in range(1500)]
    chances = stats.norm.cdf((tally(votes)[:, 0] - 4.0) / 2.0)
    rng = np.random.default_rng(1)
    theirs = [one_by_one(rng.random(12) < chances, *rule.charges, 3.0)[0] for _ in range(1500)]
    table = np.array([np.bincount(asked, minlength=13) for asked in (ours, theirs)])
    assert (table > 0).any(axis=0).sum() > 3
    assert stats.chi2_contingency(table[:, table.sum(axis=0) > 20]).pvalue > 1e-4


def test_nothing_is_shown_after_the_stop():
    answers = mechanism(cap=5.0).answer(repeated([7] * 5, 1000), stream("stop"))
    assert 5 < answers.asked < 25
    assert (answers.labels[answers.asked :] == NOT_ASKED).all()
    assert not answers.passed[answers.asked :].any()
    assert (answers.labels[: answers.asked] != NOT_ASKED).all()
    assert answers.answered == (answers.labels >= 0).sum() == answers.passed.sum()
    failing, passing = mechanism().charges
    exact = answers.answered * passing + (answers.asked - answers.answered) * failing
    assert exact <= Fraction(answers.spent) <= exact * (1 + Fraction(1, 10**14))
    assert answers.spent <= 5.0


def test_a_cap_below_the_first_query_s_dearest_outcome_asks_nothing():
    answers = mechanism(cap=0.1).answer(repeated([7] * 5, 10), stream("none"))
    assert answers.asked == answers.answered == 0
    assert (answers.labels == NOT_ASKED).all()


def test_the_claim_is_the_cap_whatever_was_spent():
    assert mechanism(cap=4.0).event() == GaussianDpEvent(0.5)
    charged = 1 / Fraction(mechanism(cap=3.0).event().noise_multiplier) ** 2
    assert 3 <= charged <= 3 * (1 + Fraction(1, 10**14))


def test_slack_is_negligible():
    assert mechanism().slack(100_000, 1, 8.0) == pytest.approx((1 + math.exp(8)) * 2 * 100_000 * TOTAL_VARIATION)


@pytest.mark.parametrize("count", [1, 4, 5])
def test_the_chance_of_a_test_is_right_to_the_last_bits(count):
    exact = stats.norm.cdf((count - 4.0) / 2.0)
    assert mechanism()._chance(count) / 2**128 == pytest.approx(exact, rel=1e-12)
    assert mechanism(threshold=0.0, threshold_noise=1e-6)._chance(count) == 2**128 - 1
    assert mechanism(threshold=5.0, threshold_noise=1e-6)._chance(1) == 0


def test_votes_of_a_party_are_handed_over_in_clear_and_checked():
    votes = np.array([[1, 2, 3], [4, 5, 6]])
    assert mechanism().contribute(votes).tolist() == [[1, 4], [2, 5], [3, 6]]
    with pytest.raises(IntegrityError, match="names class 20"):
        mechanism().contribute(votes + 14)


def test_votes_of_another_number_of_teachers_are_not_answered():
    with pytest.raises(IntegrityError, match="4 teachers and 5 were announced"):
        mechanism().answer(repeated([1] * 4, 3), stream("few"))
    with pytest.raises(IntegrityError, match="names class 99"):
        mechanism().answer(repeated([99] * 5, 3), stream("wrong"))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"teachers": 1, "threshold": 1.0}, "one teacher"),
        ({"threshold": 5.5}, "no query can reach it"),
        ({"threshold": math.nan}, "threshold"),
        ({"threshold_noise": 0.0}, "noise"),
        ({"noise": math.nan}, "noise"),
        ({"larger_noise": 2.9}, "larger_noise"),
        ({"larger_noise": math.inf}, "noise"),
        ({"cap": 0.0}, "cap"),
        ({"cap": math.inf}, "cap"),
        ({"classes": 1}, "classes"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(changed, reason):
    with pytest.raises(ConclaveError, match=reason):
        mechanism(**changed)


def test_labels_below_the_threshold_of_a_released_histogram_are_left_out():
    released = Released(np.array([[0.1, 3.5, 0.0], [2.9, -1.0, 2.8], [3.0, 0.0, 0.0]]), sigma=1.0)
    assert thresholded_labels(released, 3.0).tolist() == [1, ABSTAINED, 0]
    assert "EVERY query" in thresholded_labels.__doc__


@pytest.mark.slow
def test_a_hundred_thousand_queries_are_answered_at_once():
    votes = np.random.default_rng(0).integers(0, 20, (100_000, 5))
    answers = mechanism(cap=20_000.0).answer(votes, stream("many"))
    assert 0 < answers.asked < 100_000
