"""Prices are upper bounds, calibration stays within its budget, and the lifetime filter never admits past its cap."""

import math
import warnings
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
    get_sigma_gaussian,
    pld,
    rdp,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from aggregation.accounting import price as accounting
from aggregation.accounting.price import GaussianFilter, Guarantee, LifetimeFilter, calibrate, price
from aggregation.errors import BudgetExhausted, ConclaveError, IntegrityError

GAUSSIANS = st.lists(st.floats(1.5, 50).map(GaussianDpEvent), min_size=1, max_size=4)
LEAVES = st.one_of(
    st.floats(2, 50).map(GaussianDpEvent),
    st.floats(2, 50).map(LaplaceDpEvent),
    st.builds(PoissonSampledDpEvent, st.floats(0.001, 0.1), st.floats(1, 5).map(GaussianDpEvent)),
)


def gaussian_delta(epsilon, sigma):
    """Balle & Wang 2018, theorem 8, sensitivity 1."""
    a, b = 0.5 / sigma, epsilon * sigma
    return stats.norm.cdf(a - b) - math.exp(epsilon) * stats.norm.cdf(-a - b)


def gaussian_epsilon(sigma, delta):
    return optimize.brentq(lambda epsilon: gaussian_delta(epsilon, sigma) - delta, 0, 60, xtol=1e-12)


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(GAUSSIANS, st.sampled_from([1e-8, 1e-6, 1e-5]))
def test_gaussians_cost_what_the_analytic_formula_says(events, delta):
    exact = gaussian_epsilon(sum(event.noise_multiplier**-2 for event in events) ** -0.5, delta)
    guarantee = price(events, delta)
    assert guarantee.accountant == "PLD"
    assert exact * (1 - 1e-6) <= guarantee.epsilon <= exact * 1.001 + 1e-5


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(st.lists(LEAVES, min_size=1, max_size=2), st.integers(1, 20))
def test_pld_is_at_most_rdp(events, repeats):
    guarantee = price([SelfComposedDpEvent(ComposedDpEvent(events), repeats)], 1e-6)
    assert guarantee.epsilon <= guarantee.rdp_epsilon * 1.01
    assert guarantee.delta == 1e-6


@pytest.mark.slow
def test_how_events_are_wrapped_changes_nothing():
    step = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))
    listed = price([step, GaussianDpEvent(3.0), step, step], 1e-6)
    assert listed == price([ComposedDpEvent([SelfComposedDpEvent(step, 3), GaussianDpEvent(3.0)])], 1e-6)
    alone = pld.PLDAccountant().compose(step, 3).compose(GaussianDpEvent(3.0)).get_epsilon(1e-6)
    assert listed.epsilon == pytest.approx(alone, rel=1e-6)


def test_ten_thousand_equal_events_are_priced_at_once():
    many = price([GaussianDpEvent(100.0)] * 10_000, 1e-6)
    assert many.epsilon == pytest.approx(price([GaussianDpEvent(1.0)], 1e-6).epsilon, rel=1e-6)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-3])
def test_a_tiny_epsilon_is_found_without_a_warning_and_not_understated(epsilon):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        multiplier = calibrate(GaussianDpEvent, epsilon, 1e-5)
        claimed = price([GaussianDpEvent(multiplier)], 1e-5).epsilon
    assert 0.999 * epsilon < claimed <= epsilon
    with mpmath.workdps(60):
        sigma, least = mpmath.mpf(multiplier), mpmath.mpf(claimed)
        needed = mpmath.ncdf(1 / (2 * sigma) - least * sigma)
        needed -= mpmath.exp(least) * mpmath.ncdf(-1 / (2 * sigma) - least * sigma)
    assert needed <= mpmath.mpf(1e-5)


def test_nothing_costs_nothing():
    assert price([], 1e-6) == price([NoOpDpEvent()], 1e-6) == Guarantee(0.0, 1e-6, "PLD", 0.0)


def test_one_event_without_pld_puts_the_whole_list_in_rdp():
    guarantee = price([GaussianDpEvent(2.0), ZCDpEvent(rho=0.1, xi=0.0)], 1e-6)
    alone = rdp.RdpAccountant().compose(GaussianDpEvent(2.0)).compose(ZCDpEvent(rho=0.1, xi=0.0)).get_epsilon(1e-6)
    assert guarantee == Guarantee(pytest.approx(alone), 1e-6, "RDP", pytest.approx(alone))


def test_a_poisson_sampled_composition_is_priced_though_it_has_no_pld():
    inner = ComposedDpEvent([GaussianDpEvent(2.0), GaussianDpEvent(3.0)])
    assert price([PoissonSampledDpEvent(0.01, inner)] * 3, 1e-6).accountant == "RDP"


def test_a_tiny_sigma_is_priced_by_rdp_and_not_by_hours_of_pld():
    for sigma in (0.1, 1e-3, 1e-200):
        guarantee = price([GaussianDpEvent(sigma)], 1e-6)
        assert guarantee.accountant == "RDP"
        assert guarantee.epsilon > 90
    assert price([SelfComposedDpEvent(SelfComposedDpEvent(LaplaceDpEvent(1e-9), 10**15), 10**15)], 1e-6).epsilon > 1e9


def test_a_tiny_delta_is_priced_by_rdp():
    assert price([GaussianDpEvent(1.0)], 1e-15).accountant == "RDP"


def test_what_is_not_private_has_no_finite_price():
    assert price([GaussianDpEvent(1.0), NonPrivateDpEvent()], 1e-6).epsilon == math.inf


def test_an_event_without_an_accountant_is_refused_by_name():
    with pytest.raises(ConclaveError, match="RandomizedResponseDpEvent"):
        price([RandomizedResponseDpEvent(0.5, 2)], 1e-6)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-6, 2.0, math.nan])
def test_a_delta_that_is_no_probability_is_refused(delta):
    for ask in (lambda: price([], delta), lambda: LifetimeFilter(1.0, delta)):
        with pytest.raises(ConclaveError, match="delta"):
            ask()


def test_a_negative_count_cannot_buy_anything_back():
    refund = SelfComposedDpEvent(GaussianDpEvent(1.0), -1)
    with pytest.raises(IntegrityError, match="count"):
        price([GaussianDpEvent(1.0), refund], 1e-6)
    with pytest.raises(IntegrityError, match="count"):
        LifetimeFilter(1.0, 1e-6).admits([], refund)


@pytest.mark.slow
def test_accountants_that_disagree_are_not_believed(monkeypatch):
    monkeypatch.setattr(pld.PLDAccountant, "get_epsilon", lambda self, delta: 9.0)
    accounting._pld_epsilon.cache_clear()
    with pytest.raises(ConclaveError, match="disagree"):
        price([GaussianDpEvent(1.0), LaplaceDpEvent(5.0)], 1e-6)
    accounting._pld_epsilon.cache_clear()
    monkeypatch.setattr(accounting, "get_epsilon_gaussian", lambda sigma, delta: 9.0)
    with pytest.raises(ConclaveError, match="disagree"):
        price([GaussianDpEvent(1.0)], 1e-6)


@pytest.mark.parametrize(("sigma", "count"), [(0.8, 1), (3.0, 7), (40.0, 1000)])
def test_gaussian_releases_alone_cost_what_theorem_8_says_and_nothing_for_a_grid(sigma, count):
    found = price([GaussianDpEvent(sigma)] * count, 1e-6)
    assert found.accountant == "PLD"
    assert gaussian_delta(found.epsilon, sigma / math.sqrt(count)) <= 1e-6
    assert gaussian_delta(found.epsilon * (1 - 3e-9), sigma / math.sqrt(count)) > 1e-6


def test_an_order_where_the_accountant_loses_its_footing_is_not_believed(monkeypatch):
    right = price([GaussianDpEvent(1.0)], 1e-6).rdp_epsilon
    true = rdp.RdpAccountant.rdp.fget

    def broken(self):
        values = true(self)
        if values.size > 1 and values.any():
            values[5], values[6] = -1.0, math.nan  # dp_accounting would take the first for epsilon 0
        return values

    monkeypatch.setattr(rdp.RdpAccountant, "rdp", property(broken))
    assert price([GaussianDpEvent(1.0)], 1e-6).rdp_epsilon == right


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (4.0, 1e-5)])
def test_calibration_gives_the_smallest_multiplier_within_the_budget(epsilon, delta):
    multiplier = calibrate(GaussianDpEvent, epsilon, delta)
    assert multiplier == round(multiplier, 3)
    assert gaussian_epsilon(multiplier, delta) <= epsilon < gaussian_epsilon(multiplier - 0.001, delta)
    assert price([GaussianDpEvent(multiplier)], delta).epsilon <= epsilon


@pytest.mark.slow
def test_calibration_knows_any_event_and_number_of_decimals():
    def steps(multiplier):
        return SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(multiplier)), 30)

    multiplier = calibrate(steps, 0.5, 1e-6, decimals=2)
    assert price([steps(multiplier)], 1e-6).epsilon <= 0.5 < price([steps(multiplier - 0.01)], 1e-6).epsilon


@pytest.mark.slow
@pytest.mark.parametrize("off", [0.7, 1.5])
def test_estimates_lead_calibration_and_never_decide_it(monkeypatch, off):
    def make(multiplier):
        return SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(multiplier)), 200)

    true, estimate, priced = accounting.price, accounting._estimate, []

    def counted(events, delta):
        priced.append(events)
        return true(events, delta)

    monkeypatch.setattr(accounting, "price", counted)
    multiplier = calibrate(make, 0.3, 1e-6, decimals=2)
    assert len(priced) <= 3
    monkeypatch.setattr(accounting, "_estimate", lambda event, delta: estimate(event, delta) ** off)
    assert calibrate(make, 0.3, 1e-6, decimals=2) == multiplier
    assert true([make(multiplier)], 1e-6).epsilon <= 0.3 < true([make(multiplier - 0.01)], 1e-6).epsilon


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 61), st.integers(1, 20), st.integers(1, 50))
def test_the_turn_is_found_from_any_place(most, turn, step, start):
    asked = []

    def cost(number):
        assert 1 <= number <= most
        asked.append(number)
        return 0.0 if number >= turn else 2.0

    assert accounting._turn(cost, 1.0, min(start, most), step, most) == min(turn, most + 1)
    assert len(asked) == len(set(asked))


def test_calibration_of_what_no_noise_can_bring_within_the_budget_ends_with_a_refusal():
    with pytest.raises(BudgetExhausted, match="No noise multiplier"):
        calibrate(lambda _: GaussianDpEvent(0.1), 1.0, 1e-6)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_an_epsilon_that_is_no_budget_is_refused(epsilon):
    with pytest.raises(ConclaveError, match="epsilon"):
        calibrate(GaussianDpEvent, epsilon, 1e-6)
    with pytest.raises(ConclaveError, match="epsilon"):
        LifetimeFilter(epsilon, 1e-6)


BUDGETS = st.tuples(st.floats(0.05, 50), st.sampled_from([1e-9, 1e-6, 1e-5]))


@given(BUDGETS)
def test_the_cap_of_a_filter_converts_to_its_claim(budget):
    account = LifetimeFilter(*budget)
    converted, _ = rdp.compute_epsilon([account.order], [account.cap], account.delta)
    assert account.epsilon * (1 - 1e-9) <= converted <= account.epsilon
    assert account == LifetimeFilter(*budget)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(BUDGETS, st.lists(LEAVES, max_size=30))
def test_a_filter_never_admits_past_its_cap(budget, asked):
    account = LifetimeFilter(*budget)
    admitted = []
    for event in asked:
        if account.admits(admitted, event):
            admitted.append(event)
    assert account.spent(admitted) <= account.cap
    composed = rdp.RdpAccountant([account.order]).compose(ComposedDpEvent(admitted))
    assert composed.get_epsilon(account.delta) <= account.epsilon


def test_a_filter_admits_up_to_the_cap_and_not_one_more():
    account = LifetimeFilter(4.0, 1e-6)
    each = account.order / (2 * 10.0**2)  # Renyi divergence of a Gaussian release, Mironov 2017
    fit = math.floor(account.cap / each)
    event = GaussianDpEvent(10.0)
    assert account.spent([event] * fit) == pytest.approx(fit * each)
    assert account.admits([event] * (fit - 1), event)
    assert not account.admits([event] * fit, event)
    assert not account.admits([], NonPrivateDpEvent())


def test_no_other_integer_order_admits_more_gaussian_releases():
    account = LifetimeFilter(4.0, 1e-6)
    for order in range(2, 200):
        cap = 4.0 - math.log1p(-1 / order) + (math.log(1e-6) + math.log(order)) / (order - 1)
        assert cap / order <= account.cap / account.order * (1 + 1e-9)


def test_what_is_left_is_the_largest_gaussian_release_that_is_still_admitted():
    account = LifetimeFilter(10.0, 1e-6)
    before = [GaussianDpEvent(1.0)]
    left = account.left(before)
    assert 0 < left < account.left([]) <= account.epsilon
    assert account.admits(before, GaussianDpEvent(get_sigma_gaussian(left * 0.999, 1e-6)))
    assert not account.admits(before, GaussianDpEvent(get_sigma_gaussian(left * 1.001, 1e-6)))
    assert account.left([GaussianDpEvent(0.1)]) == 0.0


def test_an_epsilon_too_small_for_any_order_is_refused():
    with pytest.raises(ConclaveError, match="admits nothing"):
        LifetimeFilter(1e-4, 1e-9)


def test_a_gaussian_filter_adds_up_sensitivity_over_sigma_squared_exactly():
    account = GaussianFilter(1.0)
    events = [SelfComposedDpEvent(GaussianDpEvent(2.0), 3), ComposedDpEvent([GaussianDpEvent(4.0)]), NoOpDpEvent()]
    assert account.spent(events) == Fraction(3, 4) + Fraction(1, 16)
    assert account.admits(account.spent(events), Fraction(3, 16))
    assert not account.admits(account.spent(events), Fraction(3, 16) + Fraction(1, 2**200))


@given(st.floats(1e-6, 1e6))
def test_the_claim_of_a_gaussian_filter_is_one_gaussian_that_costs_no_less_than_its_cap(cap):
    charged = 1 / Fraction(GaussianFilter(cap).event().noise_multiplier) ** 2
    assert Fraction(cap) <= charged <= Fraction(cap) * (1 + Fraction(1, 10**14))


@pytest.mark.parametrize("epsilon", [-1.0, 0.0, 0.5, 2.0, 6.0])
def test_no_adaptive_choice_of_gaussian_releases_tells_neighbours_apart_better_than_the_claim(epsilon):
    """Hockey-stick divergences of strategies that look at a first release, of charge 0.3, and then choose the next."""
    first, cap = 0.3, 1.0
    seen = np.linspace(-12, 12, 48_001)  # what the first release shows, in units of its noise
    claim = gaussian_delta(epsilon, 1 / math.sqrt(cap))

    def divergence(choose):
        charges = choose(seen)
        loss = epsilon - (seen * math.sqrt(first) - first / 2)  # epsilon left after the first release
        rest = np.where(
            charges > 0, gaussian_delta_of(loss, np.maximum(charges, 1e-12)), np.maximum(1 - np.exp(loss), 0)
        )
        return float(np.sum(stats.norm.pdf(seen - math.sqrt(first)) * rest) * (seen[1] - seen[0]))

    def gaussian_delta_of(loss, charge):
        distance = np.sqrt(charge)
        upper = stats.norm.cdf(distance / 2 - loss / distance)
        return upper - np.exp(loss + stats.norm.logcdf(-distance / 2 - loss / distance))

    assert divergence(lambda x: np.full(x.size, cap - first)) == pytest.approx(claim, rel=1e-5, abs=1e-12)
    for choose in (
        lambda x: np.where(x > 0.3, cap - first, 0.0),
        lambda x: np.where(x < 0.3, cap - first, 0.0),
        lambda x: np.where(np.abs(x) < 1, cap - first, 0.1),
        lambda x: (cap - first) * stats.norm.cdf(x),
    ):
        assert divergence(choose) < claim
    assert divergence(lambda x: np.where(x > 0.3, cap, cap - first)) > claim  # past the cap, it shows


def test_a_gaussian_filter_admits_nothing_else():
    for event in (LaplaceDpEvent(1.0), PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), NonPrivateDpEvent()):
        with pytest.raises(ConclaveError, match=type(event).__name__):
            GaussianFilter(1.0).spent([event])


@pytest.mark.parametrize("cap", [0.0, -1.0, math.nan, math.inf])
def test_a_cap_that_is_no_budget_is_refused(cap):
    with pytest.raises(ConclaveError, match="cap"):
        GaussianFilter(cap)


def test_a_gaussian_filter_within_a_budget_costs_at_most_that_and_nearly_all_of_it():
    account = GaussianFilter.within(2.0, 1e-5)
    assert 1.99 < price([account.event()], 1e-5).epsilon <= 2.0
