"""Events come back from JSON as they were, and nothing else is taken for one."""

import json
import math

import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)
from hypothesis import given
from hypothesis import strategies as st

from aggregation.accounting.events import from_json, leaves, noise_multiplier_of, to_json
from aggregation.accounting.price import LifetimeFilter, price
from aggregation.errors import IntegrityError

NOISE = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
EVENTS = st.recursive(
    st.one_of(
        st.sampled_from([NoOpDpEvent(), NonPrivateDpEvent()]),
        st.builds(GaussianDpEvent, NOISE),
        st.builds(LaplaceDpEvent, NOISE),
    ),
    lambda inner: st.one_of(
        st.builds(PoissonSampledDpEvent, st.floats(1e-9, 1), inner),
        st.builds(SelfComposedDpEvent, inner, st.integers(1, 10**6)),
        st.builds(ComposedDpEvent, st.lists(inner, max_size=3)),
    ),
    max_leaves=6,
)


def nested(event, depth):
    for _ in range(depth):
        event = SelfComposedDpEvent(event, 1)
    return event


@pytest.mark.slow
@given(EVENTS)
def test_an_event_comes_back_from_text_as_it_was(event):
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


def test_numbers_of_numpy_are_stored_as_plain_ones():
    event = SelfComposedDpEvent(GaussianDpEvent(np.float64(1.5)), np.int64(3))
    assert from_json(json.loads(json.dumps(to_json(event)))) == SelfComposedDpEvent(GaussianDpEvent(1.5), 3)


def test_an_event_the_ledger_does_not_know_is_refused_by_name():
    with pytest.raises(IntegrityError, match="ZCDpEvent"):
        to_json(ComposedDpEvent([GaussianDpEvent(1.0), ZCDpEvent(rho=1.0, xi=0.0)]))


def test_what_has_no_guarantee_is_stored_as_that_and_has_neither_noise_nor_a_price():
    event = SelfComposedDpEvent(NonPrivateDpEvent(), 12)
    assert to_json(event) == {"kind": "self-composed", "event": {"kind": "non-private"}, "count": 12}
    with pytest.raises(IntegrityError, match="non-private event must hold kind and nothing else"):
        from_json({"kind": "non-private", "noise_multiplier": 8.0})
    assert noise_multiplier_of(event) == noise_multiplier_of(ComposedDpEvent([GaussianDpEvent(8.0), event])) == 0.0
    assert price([GaussianDpEvent(8.0), event], 1e-6).epsilon == math.inf
    assert not LifetimeFilter(1000.0, 1e-6).admits([], event)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"kind": "skellam", "mu": 3}, "skellam"),
        ({"noise_multiplier": 1.0}, "unknown kind None"),
        ({"kind": ["gaussian"]}, "unknown kind"),
        ("gaussian", "JSON object"),
        ({"kind": "gaussian"}, "must hold kind and noise_multiplier"),
        ({"kind": "gaussian", "noise_multiplier": 1.0, "count": 0}, "count"),
        ({"kind": "gaussian", "noise_multiplier": "1.0"}, "noise_multiplier"),
        ({"kind": "gaussian", "noise_multiplier": True}, "noise_multiplier"),
        ({"kind": "gaussian", "noise_multiplier": 10**5000}, "enormous"),
        ({"kind": "gaussian", "noise_multiplier": math.nan}, "finite"),
        ({"kind": "laplace", "noise_multiplier": 0}, "above 0"),
        ({"kind": "poisson-sampled", "sampling_probability": 1.5, "event": {"kind": "no-op"}}, "sampling_probability"),
        ({"kind": "self-composed", "count": -1, "event": {"kind": "no-op"}}, "count"),
        ({"kind": "self-composed", "count": 1.5, "event": {"kind": "no-op"}}, "count"),
        ({"kind": "composed", "events": {"kind": "no-op"}}, "list"),
    ],
)
def test_a_stored_value_that_is_no_event_is_refused(value, reason):
    with pytest.raises(IntegrityError, match=reason):
        from_json(value)


def test_nesting_has_an_end_in_both_directions():
    fine = nested(NoOpDpEvent(), 16)
    assert from_json(to_json(fine)) == fine
    with pytest.raises(IntegrityError, match="nested"):
        to_json(nested(NoOpDpEvent(), 17))
    with pytest.raises(IntegrityError, match="nested"):
        list(leaves(nested(NoOpDpEvent(), 5000)))
    value = {"kind": "no-op"}
    for _ in range(17):
        value = {"kind": "composed", "events": [value]}
    with pytest.raises(IntegrityError, match="nested"):
        from_json(value)


def test_the_parts_of_a_composition_are_counted():
    sampled = PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0))
    event = SelfComposedDpEvent(
        ComposedDpEvent([GaussianDpEvent(1.0), SelfComposedDpEvent(sampled, 5), NoOpDpEvent()]), 3
    )
    assert list(leaves(event)) == [(GaussianDpEvent(1.0), 3), (sampled, 15)]


@pytest.mark.parametrize(
    "event",
    [
        SelfComposedDpEvent(GaussianDpEvent(1.0), -1),
        SelfComposedDpEvent(GaussianDpEvent(1.0), 0),
        GaussianDpEvent(math.nan),
        GaussianDpEvent(-1.0),
        LaplaceDpEvent(math.inf),
        PoissonSampledDpEvent(math.nan, GaussianDpEvent(1.0)),
        PoissonSampledDpEvent(0.1, GaussianDpEvent(-2.0)),
    ],
)
def test_a_parameter_that_could_be_priced_too_low_is_refused(event):
    with pytest.raises(IntegrityError):
        list(leaves(event))
