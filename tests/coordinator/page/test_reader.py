"""What a reader could tell, in figures: never less than the mathematics allows, and as much less as is known."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from scipy.stats import norm

from aggregation.accounting.events import to_json
from aggregation.accounting.price import price
from coordinator.page.reader import PEOPLE, chance, delta_doubt, if_claimed, reader_of, times
from learning.audits.trade_offs import Gaussian, Profile, right, right_by_claim, trade_off


def stated(privacy, event, delta=1e-6, **changes):
    release = privacy()["releases"][0] | {"event": to_json(event)}
    epsilon = price([event], delta).epsilon
    return privacy(epsilon=epsilon, delta=delta, sampler_delta=0.0, releases=[release]) | changes


@pytest.mark.parametrize("multiplier", [0.4, 0.653, 2.0, 10.0])
def test_of_a_gaussian_release_the_best_test_is_that_of_two_normals(privacy, multiplier):
    found = reader_of(stated(privacy, GaussianDpEvent(multiplier)))
    assert found.by == "gaussian"
    assert found.right == pytest.approx(norm.cdf(1 / (2 * multiplier)))
    rng = np.random.default_rng(0)
    coin = rng.random(200_000) < 0.5
    seen = rng.normal(coin / multiplier, 1.0)
    assert np.mean((seen > 1 / (2 * multiplier)) == coin) == pytest.approx(found.right, abs=0.005)


@pytest.mark.slow
def test_of_sampled_steps_no_attack_that_is_tried_guesses_better(privacy):
    rate, sigma, steps = 0.2, 1.0, 4
    event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), steps)
    found = reader_of(stated(privacy, event))
    assert found.by == "sampled"
    rng = np.random.default_rng(1)
    coin = rng.random(400_000) < 0.5
    there = coin[:, None] & (rng.random((coin.size, steps)) < rate)
    seen = rng.normal(there, sigma)
    ratio = np.log1p(rate * (np.exp((seen - 0.5) / sigma**2) - 1)).sum(axis=1)
    best = np.mean((ratio > 0) == coin)
    assert best - 0.003 < found.right < best + 0.02


def test_where_nothing_else_is_known_it_is_what_epsilon_and_delta_allow(privacy):
    assert right_by_claim(0.0, 0.0) == 0.5
    assert right_by_claim(8.0, 1e-6) == pytest.approx((math.exp(8) + 1e-6) / (math.exp(8) + 1))
    assert right_by_claim(1000.0, 0.5) == 1.0
    laplace = stated(privacy, LaplaceDpEvent(1.0))
    assert reader_of(laplace).right <= right_by_claim(laplace["epsilon"], laplace["delta"])


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (1.0, 0.01), (3.0, 0.2)])
def test_a_profile_of_one_point_is_as_good_as_its_formula(epsilon, delta):
    found = right(Profile(np.array([epsilon]), np.array([delta])))
    assert right_by_claim(epsilon, delta) <= found <= right_by_claim(epsilon, delta) + 2e-6


@pytest.mark.slow
def test_a_curve_of_sampling_everybody_agrees_with_the_gaussian_one():
    sampled = trade_off([PoissonSampledDpEvent(0.999999, GaussianDpEvent(1.0))])
    assert right(Gaussian(1.0)) - 1e-3 < right(sampled) < right(Gaussian(1.0)) + 2e-3


def test_every_attempt_that_is_allowed_counts(privacy):
    event = GaussianDpEvent(4.0)
    once, often = stated(privacy, event), stated(privacy, event, attempts=4, epsilon=5.0)
    assert reader_of(often).right == pytest.approx(norm.cdf(2 / (2 * 4.0)))
    assert reader_of(once).right < reader_of(often).right


def test_of_parties_that_take_part_in_different_releases_the_worst_counts(privacy):
    release = privacy()["releases"][0]
    both = [
        release | {"name": name, "among": [party], "event": to_json(GaussianDpEvent(multiplier))}
        for name, party, multiplier in (("a", "north", 8.0), ("b", "south", 2.0))
    ]
    found = reader_of(privacy(epsilon=3.0, releases=both))
    assert found.right == pytest.approx(norm.cdf(1 / 4), abs=1e-6)


def test_nothing_is_told_where_nothing_is_promised(privacy):
    assert reader_of(privacy(epsilon=None)) is None
    assert reader_of(privacy(guarantee=False)) is None


def test_people_are_rounded_up_and_never_more_than_all(privacy):
    found = reader_of(stated(privacy, GaussianDpEvent(0.653)))
    assert found.people == math.ceil(PEOPLE * norm.cdf(1 / (2 * 0.653))) == 78
    assert (
        reader_of(privacy(epsilon=60.0, releases=[privacy()["releases"][0] | {"event": {"kind": "no-op"}}])).people
        <= 100
    )


def test_a_papers_claim_is_read_as_the_gaussian_release_that_it_would_be(privacy):
    found = reader_of(stated(privacy, GaussianDpEvent(0.653)))
    said = if_claimed(2.0, found)
    assert said.people < found.people
    assert price([GaussianDpEvent(1 / (2 * norm.ppf(said.right)))], 1e-6).epsilon == pytest.approx(2.0, abs=0.01)


def test_figures_are_said_as_people_say_them():
    assert times(8.0) == "about 2,981 times"
    assert times(1.0) == "about 2.72 times"
    assert times(0.05) == "1.051 times"
    assert times(50.0) == times(1e9) == "more than a million times"
    assert chance(1e-6) == "1 in 1,000,000"
    assert delta_doubt(1e-5, 1000) is None
    assert delta_doubt(1e-3, None) is None
    assert "below 0.0001" in delta_doubt(1e-3, 10_000)
