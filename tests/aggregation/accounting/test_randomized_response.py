"""Randomised responses: their price is exact, composes, and survives the ledger's file."""

import math

import numpy as np
import pytest

from aggregation.accounting.divergences import divergences_of
from aggregation.accounting.events import RandomizedResponseDpEvent, from_json, leaves, noise_multiplier_of, to_json
from aggregation.accounting.library import ComposedDpEvent, GaussianDpEvent, SelfComposedDpEvent
from aggregation.accounting.price import LifetimeFilter, price
from aggregation.errors import IntegrityError


def probabilities(epsilon, options):
    kept = 1 / (1 + (options - 1) * math.exp(-epsilon))
    table = np.full((options, options), (1 - kept) / (options - 1))
    np.fill_diagonal(table, kept)
    return table


def delta_of(first, second, epsilon):
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


@pytest.mark.parametrize(("epsilon", "options"), [(0.5, 2), (1.0, 2), (3.0, 5), (0.1, 40)])
def test_one_response_costs_its_epsilon_and_no_more(epsilon, options):
    found = price([RandomizedResponseDpEvent(epsilon, options)], 1e-9)
    assert found.accountant == "PLD"
    assert epsilon * 0.99 < found.epsilon < epsilon + 2e-4


@pytest.mark.parametrize("order", [1.5, 2, 8, 64])
def test_the_divergence_is_that_of_the_two_distributions(order):
    table = probabilities(1.3, 4)
    first, second = table[0], table[1]
    expected = math.log(float((first**order * second ** (1 - order)).sum())) / (order - 1)
    (found,), _ = divergences_of([(RandomizedResponseDpEvent(1.3, 4), 1)], [order])
    assert found == pytest.approx(expected, rel=1e-6)
    assert found >= expected


def test_two_responses_cost_what_their_product_tells():
    """The price of a composition against the exact delta of the product distribution."""
    one = probabilities(1.0, 3)
    first, second = np.outer(one[0], one[0]).ravel(), np.outer(one[1], one[1]).ravel()
    found = price([SelfComposedDpEvent(RandomizedResponseDpEvent(1.0, 3), 2)], 1e-2)
    assert delta_of(first, second, found.epsilon) <= 1e-2 * (1 + 1e-9)
    assert delta_of(first, second, found.epsilon - 1e-3) > 1e-2


def test_an_even_draw_is_no_further_from_a_response_than_another_value_is():
    table = probabilities(0.7, 4)
    even = np.full(4, 0.25)
    for epsilon in (0.0, 0.2, 0.5, 0.7):
        assert delta_of(even, table[0], epsilon) <= delta_of(table[1], table[0], epsilon) + 1e-12
        assert delta_of(table[0], even, epsilon) <= delta_of(table[0], table[1], epsilon) + 1e-12


def test_with_a_gaussian_it_costs_more_than_either_and_less_than_both_added():
    gaussian, response = GaussianDpEvent(1.5), RandomizedResponseDpEvent(1.0, 2)
    alone, both = price([gaussian], 1e-5).epsilon, price([ComposedDpEvent([gaussian, response])], 1e-5).epsilon
    assert max(alone, 1.0) < both < alone + 1.0


def test_the_ledger_keeps_it_bit_for_bit():
    event = ComposedDpEvent([GaussianDpEvent(1.5), RandomizedResponseDpEvent(0.1 + 0.2, 7)])
    assert from_json(to_json(event)) == event


def test_a_lifetime_filter_counts_it():
    cap = LifetimeFilter(2.0, 1e-5)
    assert cap.spent([RandomizedResponseDpEvent(1.0, 2)]) > 0
    assert not cap.admits([RandomizedResponseDpEvent(1.0, 2)] * 40, RandomizedResponseDpEvent(1.0, 2))


def test_it_is_no_noise_that_a_minimum_is_compared_with():
    gaussian = GaussianDpEvent(1.5)
    assert noise_multiplier_of(ComposedDpEvent([gaussian, RandomizedResponseDpEvent(1.0, 2)])) == 1.5


@pytest.mark.parametrize(
    ("epsilon", "options"), [(0.0, 2), (-1.0, 2), (math.nan, 2), (math.inf, 2), (1.0, 1), (1.0, 2000)]
)
def test_impossible_responses_are_refused(epsilon, options):
    with pytest.raises(IntegrityError):
        list(leaves(RandomizedResponseDpEvent(epsilon, options)))
    with pytest.raises(IntegrityError):
        from_json({"kind": "randomized-response", "epsilon": epsilon, "options": options})
