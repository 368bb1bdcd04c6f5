"""The graph is regular, nobody falls off it, and its bound is one that trials do not break."""

import itertools
import os
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from aggregation.errors import ConclaveError
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.graph import (
    FAILURE,
    MOST_BEGUN,
    STALL,
    choose,
    drawn,
    failing,
    failure,
    neighbours,
    shape,
    stall,
    tail,
)


def context(count, dropouts=2, colluders=1):
    return Context.of(
        run="r",
        plan_hash="p",
        sum="s",
        attempt=0,
        parties=[f"{i:03}" for i in range(count)],
        length=1,
        dropouts=dropouts,
        colluders=colluders,
    )


def connected(near, left):
    left = set(left)
    reached, frontier = set(), {next(iter(left))}
    while frontier:
        reached |= frontier
        frontier = set().union(*(near[name] & left for name in frontier)) - reached
    return reached == left


@given(st.integers(3, 40), st.integers(1, 10), st.binary(min_size=32, max_size=32))
def test_every_member_has_as_many_neighbours_and_they_are_mutual(count, half, randomness):
    members = [f"{i:03}" for i in range(count)]
    near = neighbours(members, 2 * half, randomness)
    for name in members:
        assert len(near[name]) == min(2 * half, count - 1)
        assert name not in near[name]
        assert all(name in near[other] for other in near[name])


def test_another_randomness_gives_another_graph():
    members = [f"{i:03}" for i in range(30)]
    assert neighbours(members, 4, b"one") == neighbours(members, 4, b"one")
    assert neighbours(members, 4, b"one") != neighbours(members, 4, b"two")


@pytest.mark.slow
def test_every_pair_is_as_likely_to_be_neighbours():
    """Chi-square over the 66 pairs of 12 members, 6,000 graphs; dependence within a graph makes it conservative."""
    members = [f"{i:03}" for i in range(12)]
    pairs = dict.fromkeys(itertools.combinations(members, 2), 0)
    for i in range(6_000):
        near = neighbours(members, 4, i.to_bytes(8, "big"))
        for one, other in pairs:
            pairs[one, other] += other in near[one]
    assert stats.chisquare(list(pairs.values())).pvalue > 1e-4


def test_up_to_sixteen_parties_everybody_masks_with_everybody():
    small, large = context(16), context(17)
    assert not drawn(small)
    assert (shape(small).degree, shape(small).threshold) == (15, small.threshold)
    assert drawn(large)


@settings(max_examples=25, deadline=None)
@given(st.integers(17, 60), st.integers(0, 6), st.integers(0, 6), st.binary(min_size=8, max_size=8))
def test_with_more_neighbours_than_may_fail_no_loss_ever_cuts_the_graph(count, colluders, dropouts, randomness):
    """The adversary picks whom to lose after seeing the graph: here the worst it can do, two runs on the circle."""
    form = choose(count, colluders, dropouts)
    assert form.degree > colluders + dropouts or form.degree >= count - 1 or form.failure > 0
    if form.failure == 0:
        members = [f"{i:03}" for i in range(count)]
        near = neighbours(members, form.degree, randomness)
        for name in members:
            gone = set(sorted(near[name])[: colluders + dropouts])
            assert connected(near, set(members) - gone)
            assert len((near[name] | {name}) - set(sorted(near[name])[:dropouts])) >= form.threshold
        assert form.threshold > colluders


@pytest.mark.parametrize("count", [17, 32, 100, 300])
def test_the_chosen_shape_keeps_its_bounds(count):
    form = choose(count, count // 10, count // 10)
    assert form.failure <= FAILURE
    assert form.stall <= STALL
    assert form.degree >= 2 * np.log2(count)
    assert form.threshold > 0


def test_what_graphs_take_of_delta_counts_every_attempt_that_a_party_begins():
    assert failing(16, 4, 4) == failing(32, 3, 3) == failing(100, 10, 10) == 0.0
    assert failing(300, 30, 30) == MOST_BEGUN * choose(300, 30, 30).failure > 0


def test_of_very_large_sums_the_bound_that_every_graph_keeps_is_taken():
    assert failing(1000, 332, 332) == MOST_BEGUN * FAILURE


def test_a_sum_that_no_graph_protects_is_refused():
    with pytest.raises(ConclaveError, match="No graph protects"):
        choose(20, 20, 0)


def test_the_tail_is_the_hypergeometric_one():
    for population, marked, taken, least in ((20, 5, 8, 3), (40, 10, 12, 0), (9, 9, 4, 4), (10, 0, 3, 1)):
        assert float(tail(population, marked, taken, least)) == pytest.approx(
            stats.hypergeom.sf(least - 1, population, marked, taken), abs=1e-12
        )


def test_the_bound_is_the_sum_that_it_says():
    """By hand: 24 places, 6 colluders, 6 neighbours, a threshold that colluders never reach."""
    assert failure(24, 6, 0, 6, 7) == pytest.approx(24 * comb(24, 2) / comb(24, 6))
    full = 24 * comb(24, 2) * (comb(6, 5) * 18 + 1) / comb(24, 6)
    one_missing = 24 * 24 * comb(23, 2) / comb(23, 6)
    assert failure(24, 6, 1, 6, 7) == pytest.approx(min(1.0, full + one_missing))
    assert failure(40, 5, 0, 8, 5) == pytest.approx(40 * comb(34, 3) / comb(39, 8))


@pytest.mark.slow
def test_trials_fail_no_more_often_than_the_bound():
    """24 places, 6 colluders, degree 6: how often runs of colluders cut the honest apart, or 5 sit round one."""
    count, colluders, degree, threshold, trials = 24, 6, 6, 5, 4000
    members = [f"{i:03}" for i in range(count)]
    bad, honest = 0, set(members[colluders:])
    for _ in range(trials):
        near = neighbours(members, degree, os.urandom(8))
        exposed = any(len(near[name] - honest) >= threshold for name in honest)
        bad += exposed or not connected(near, honest)
    bound = failure(count, colluders, 0, degree, threshold)
    assert 0 < bound < 0.1
    assert stats.binomtest(bad, trials, bound, alternative="greater").pvalue > 1e-4


@pytest.mark.slow
def test_trials_stall_no_more_often_than_the_bound():
    count, dropouts, degree, threshold, trials = 40, 6, 8, 5, 3000
    members, stalled = [f"{i:03}" for i in range(count)], 0
    gone = set(members[:dropouts])
    for _ in range(trials):
        near = neighbours(members, degree, os.urandom(8))
        stalled += any(len((near[name] | {name}) - gone) < threshold for name in members)
    bound = stall(count, dropouts, degree, threshold)
    assert 0 < bound < 1
    assert stats.binomtest(stalled, trials, bound, alternative="greater").pvalue > 1e-4
    assert stall(count, dropouts, degree, degree + 1 - dropouts) == 0
