"""Events as JSON: what a ledger or a statement holds comes back as it was, or is refused in a sentence."""

import json

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from aggregation.accounting.events import DistributedDiscreteGaussianDpEvent, SkellamDpEvent, from_json, leaves, to_json
from aggregation.errors import IntegrityError

VALID = [
    to_json(event)
    for event in (
        ComposedDpEvent([GaussianDpEvent(1.5), SelfComposedDpEvent(LaplaceDpEvent(2.0), 3)]),
        SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), 100),
        SkellamDpEvent(100.0, 8, 16),
        DistributedDiscreteGaussianDpEvent(4.0, 3, 16, 40),
    )
]


def check(hostile, value):
    try:
        event = from_json(value)
    except IntegrityError as error:
        hostile.check_sentence(error)
        return
    assert from_json(json.loads(json.dumps(to_json(event)))) == event
    assert all(count >= 1 for _, count in leaves(event))


def test_damaged_values_are_events_or_refused(fuzz, hostile):
    @fuzz(hostile.damaged_json(*VALID))
    def _(value):
        check(hostile, value)


def test_damaged_text_is_an_event_or_refused(fuzz, hostile):
    @fuzz(hostile.json_text(*VALID))
    def _(text):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return
        check(hostile, value)


def deep(depth):
    value = None
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        deep(5000),
        {"kind": deep(5000)},
        {"kind": "gaussian", "noise_multiplier": deep(5000)},
        {"kind": "self-composed", "event": {"kind": "no-op"}, "count": deep(5000)},
        {"kind": "gaussian", "x\n\x1b[2J": 1},
        {"kind": "\x1b[2J"},
    ],
)
def test_a_value_that_cannot_even_be_shown_is_refused_in_a_sentence(hostile, value):
    with pytest.raises(IntegrityError) as caught:
        from_json(value)
    hostile.check_sentence(caught.value)
