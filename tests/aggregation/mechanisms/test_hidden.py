"""Hidden states: a teacher that turns into its opposite moves the sum by what is charged, and nothing moves it more."""

import inspect
import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.mechanisms.mechanism import Mechanism
from aggregation.noise.stream import NoiseStream

MECHANISM = HiddenMechanism(layers=2, width=3, clip=1.5, levels=60, noise=1.0, shares=4)
STATES = arrays(np.float64, (2, 3, 2, 3), elements=st.one_of(st.floats(-3, 3), st.floats(-1e308, 1e308), st.just(0.0)))


def squared(change):
    return [sum(int(step) ** 2 for step in row) for row in change]


@pytest.mark.slow
@settings(deadline=None)
@given(STATES, STATES)
def test_a_changed_teacher_never_moves_a_query_by_more_than_the_sensitivity(states, other):
    neighbour = states.copy()
    neighbour[0] = other[0]
    change = MECHANISM.contribute(states) - MECHANISM.contribute(neighbour)
    assert max(squared(change)) <= 4 * MECHANISM.levels**2 * MECHANISM.layers
    assert 4 * MECHANISM.levels**2 * MECHANISM.layers == pytest.approx(MECHANISM.sensitivity**2, rel=1e-15)


@pytest.mark.slow
@settings(deadline=None)
@given(STATES)
def test_every_layer_of_every_teacher_stays_within_the_norm(states):
    steps = MECHANISM.contribute(states[:1]).reshape(-1, 3)
    assert max(squared(steps)) <= MECHANISM.levels**2


@pytest.mark.parametrize("vector", [[9.0, 0.0, 0.0], [-4.0, 3.0, 12.0], [1.0, 1.0, 1.0]])
def test_a_teacher_that_turns_into_its_opposite_costs_two_clips_and_not_the_paper_s_one(vector):
    states = np.broadcast_to(np.array(vector), (1, 1, 2, 3))
    change = MECHANISM.contribute(states) - MECHANISM.contribute(-states)
    moved = math.sqrt(squared(change)[0])
    assert moved == pytest.approx(MECHANISM.sensitivity, rel=0.03)  # truncation to the grid takes up to that
    held = math.sqrt(4) * MECHANISM.shared.share.sigma  # of all shares together, grid units
    assert MECHANISM.event().noise_multiplier <= held / moved * (1 + 1e-12)
    assert MECHANISM.event().noise_multiplier == pytest.approx(held / moved, rel=0.03)


def test_on_an_axis_the_opposite_is_as_far_as_is_charged_exactly():
    states = np.broadcast_to(np.array([0.0, 7.0, 0.0]), (1, 1, 2, 3))
    change = MECHANISM.contribute(states) - MECHANISM.contribute(-states)
    assert squared(change) == [4 * 60**2 * 2]


def test_a_query_costs_two_a_layers_clip_squared_over_noise_squared():
    orders = [2.0, 8.0, 32.0]
    spent = rdp.RdpAccountant(orders).compose(MECHANISM.event())
    for order, divergence in zip(orders, spent.rdp, strict=True):
        assert divergence == pytest.approx(2 * order * 2 * 1.5**2 / 1.0**2)
    assert MECHANISM.event() == GaussianDpEvent(1.0 / (2 * 1.5 * math.sqrt(2)))


@pytest.mark.slow
@settings(deadline=None)
@given(STATES)
def test_a_vector_counts_the_same_whoever_it_is_summed_with(states):
    together = MECHANISM.contribute(states)
    alone = np.zeros_like(together)
    for teacher in range(2):
        for query in range(3):
            part = states[teacher : teacher + 1, query : query + 1]
            alone[query] += MECHANISM.contribute(part)[0]
    assert np.array_equal(together, alone)


def test_the_order_of_the_axes_in_memory_changes_nothing():
    states = np.random.default_rng(1).normal(size=(4, 50, 2, 3))
    fortran = np.asfortranarray(states)
    assert np.array_equal(MECHANISM.contribute(states), MECHANISM.contribute(fortran))


def test_a_vector_within_the_norm_is_rounded_and_one_beyond_is_scaled():
    mechanism = HiddenMechanism(layers=2, width=2, clip=5.0, levels=500, noise=1.0, shares=1)
    states = np.array([[[[1.0, -2.004], [30.0, -40.0]]]])
    assert mechanism.contribute(states).tolist() == [[100, -200, 300, -400]]


def test_a_vector_that_would_round_past_the_bound_is_truncated_towards_zero():
    mechanism = HiddenMechanism(layers=1, width=3, clip=1.0, levels=5, noise=2.0, shares=1)
    assert mechanism.contribute(np.array([[[[9.0, -9.0, 9.0]]]])).tolist() == [[2, -2, 2]]


def test_single_precision_is_taken_as_it_is():
    states = np.random.default_rng(2).normal(size=(2, 4, 2, 3)).astype(np.float32)
    assert np.array_equal(MECHANISM.contribute(states), MECHANISM.contribute(states.astype(np.float64)))


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        (np.zeros((2, 3, 1, 3)), r"2 layers, width 3\]; this one is \(2, 3, 1, 3\)"),
        (np.zeros((2, 3, 2, 4)), "width 3"),
        (np.zeros((3, 2, 3)), "teachers, queries"),
        (np.full((1, 1, 2, 3), math.nan), "NaN"),
        (np.full((1, 1, 2, 3), -math.inf), "infinity"),
        (np.zeros((1, 1, 2, 3), dtype=np.int64), "int64"),
        (np.zeros((1, 1, 2, 3), dtype=complex), "complex"),
        ([[0.0]], "list"),
    ],
)
def test_what_cannot_be_hidden_states_is_refused(states, reason):
    with pytest.raises(IntegrityError, match=reason):
        MECHANISM.contribute(states)


@pytest.mark.slow
@given(st.floats(0.5, 50), st.floats(0.1, 10), st.integers(64, 300), st.integers(1, 9), st.integers(1, 4))
def test_the_shares_together_hold_at_least_the_noise_that_is_charged(noise, clip, levels, shares, layers):
    if not 4.001 < noise / clip * levels / math.sqrt(shares) < 16_000:
        return
    mechanism = HiddenMechanism(layers, 5, clip, levels, noise, shares)
    charged = Fraction(mechanism.event().noise_multiplier) ** 2 * 4 * levels**2 * layers
    held = Fraction(mechanism.shared.share.sigma) ** 2 * shares
    assert charged <= held <= charged * (1 + Fraction(1, 10**14))


def test_the_release_is_the_sum_over_teachers_with_the_noise_of_those_present():
    states = np.random.default_rng(3).normal(size=(6, 500, 2, 3)) * 0.2
    parts = [MECHANISM.noise_share((500, 6), NoiseStream.from_key(bytes(32)).child(party)) for party in range(5)]
    released = MECHANISM.release(sum(parts) + MECHANISM.contribute(states), 5)
    assert released.sigma == pytest.approx(1.0 * math.sqrt(5 / 4), rel=1e-3)
    noise = released.values - states.sum(axis=0).reshape(500, 6)
    assert noise.std() == pytest.approx(released.sigma, rel=4 / math.sqrt(2 * noise.size))


def test_a_sum_with_fewer_shares_than_were_charged_is_not_released():
    with pytest.raises(IntegrityError, match="noise of 3 parties and the guarantee needs 4"):
        MECHANISM.release(np.zeros((1, 6), dtype=np.int64), 3)


def test_slack_counts_every_number():
    assert MECHANISM.slack(600, 1, 2.0) == pytest.approx(100 * MECHANISM.slack(6, 1, 2.0))
    assert 0 < MECHANISM.slack(2_000_000, 1, 10.0) < 1e-20


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("layers", 0),
        ("layers", 1.5),
        ("width", 0),
        ("width", True),
        ("clip", 0.0),
        ("clip", math.nan),
        ("clip", 5e-324),
        ("levels", 0),
        ("levels", 1 << 21),
        ("noise", 0.0),
        ("noise", math.inf),
        ("shares", 0),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(setting, value):
    values = {"layers": 2, "width": 3, "clip": 1.0, "levels": 64, "noise": 1.0, "shares": 2} | {setting: value}
    with pytest.raises(ConclaveError, match=setting):
        HiddenMechanism(**values)


@pytest.mark.parametrize(("levels", "noise", "remedy"), [(4, 1.0, "more levels"), (1 << 20, 1000.0, "fewer levels")])
def test_a_share_of_noise_that_cannot_be_drawn_is_refused_with_a_remedy(levels, noise, remedy):
    with pytest.raises(ConclaveError, match=remedy):
        HiddenMechanism(2, 3, 1.0, levels, noise, 4)


def test_the_mechanism_has_every_part_of_the_protocol():
    for name, part in inspect.getmembers(Mechanism):
        if not name.startswith("_"):
            assert hasattr(MECHANISM, name)
            if inspect.isfunction(part):
                ours = inspect.signature(getattr(HiddenMechanism, name)).parameters
                assert len(ours) == len(inspect.signature(part).parameters)
