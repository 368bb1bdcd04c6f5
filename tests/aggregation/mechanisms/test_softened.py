"""Softened outcomes: they travel as free ones do, are refused where their numbers contradict, and claim nothing."""

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import NonPrivateDpEvent

from aggregation.accounting.price import price
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.mechanism import HEURISTIC, Form
from aggregation.mechanisms.registry import MECHANISMS, made, numbers_of
from aggregation.mechanisms.said import FreeTargets, SoftenedTargets

TOP = SoftenedTargets(4, 100, "top", 0.05, 2, 1.5, 8.0, 12.0)
ALL = replace(TOP, protection="all", protected=0)
WARM = replace(TOP, protection="none", scale=0.0, protected=0)
PLAIN = replace(WARM, temperature=1.0, strength=0.0)


@pytest.mark.parametrize("tokens", [100, 1 << 20])
def test_outcomes_travel_as_free_ones_do(tokens):
    softened, free = replace(TOP, tokens=tokens), FreeTargets("texts", 4, tokens)
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(100)[:4] for _ in range(7)])
    codes = rng.integers(0, 1 << 16, (7, 4)).astype(np.uint16)
    rows = softened.contribute((ids, codes))
    assert softened.columns == free.columns == rows.shape[1]
    assert np.array_equal(rows, free.contribute((ids, codes)))
    back = softened.targets(rows)
    assert np.array_equal(back[0], ids)
    assert np.array_equal(back[1], codes)
    ids[3, 1] = ids[3, 0]
    with pytest.raises(IntegrityError, match="no outcomes of tokens"):
        softened.targets(softened.contribute((ids, codes)))


@pytest.mark.parametrize("mechanism", [TOP, ALL, WARM, PLAIN])
def test_nothing_is_claimed_of_it_under_any_numbers(mechanism):
    assert not mechanism.guaranteed
    assert mechanism.event() == NonPrivateDpEvent()
    assert price([mechanism.event()], 1e-6).epsilon == math.inf
    assert mechanism.noise_multiplier_charged() == 0.0
    assert HEURISTIC in mechanism.described(10, 4, Form.SAID)
    assert made("softened", numbers_of(mechanism)) == mechanism
    assert not mechanism.noise_share((3, 4), None).any()


def test_two_mechanisms_have_no_guarantee_those_of_the_published_forms():
    assert {kind for kind, each in MECHANISMS.items() if not each.guaranteed} == {"softened", "sequences"}


@pytest.mark.parametrize(
    ("mechanism", "softens", "said"),
    [
        (TOP, True, "up to 12, with Laplace noise of scale 0.05 on the 2 likeliest"),
        (ALL, True, "up to 12, with Laplace noise of scale 0.05 on all tokens"),
        (WARM, True, "at temperatures from 1.5, which grow near privacy clue words up to 12, without noise"),
        (replace(WARM, strength=0.0), True, "at temperature 1.5, without noise"),
        (PLAIN, False, "not softened at all"),
    ],
)
def test_a_sentence_says_how_it_was_softened_or_that_it_was_not(mechanism, softens, said):
    assert mechanism.softens is softens
    assert said in mechanism.described(10, 4, Form.SAID)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"top": 0}, "0 outcomes a token"),
        ({"top": 101}, "The best 101 of 100 tokens"),
        ({"protection": "some"}, "'some' is no protection of outcomes. Use none, top, all"),
        ({"scale": 0.0}, "needs a scale above 0"),
        ({"scale": -1.0}, "needs a scale above 0"),
        ({"protection": "none", "protected": 0}, "is 0 on none"),
        ({"protection": "none", "protected": 0, "scale": -1.0}, "is 0 on none"),
        ({"scale": math.inf}, "not a finite number"),
        ({"cap": math.nan}, "not a finite number"),
        ({"protected": 0}, "Use 1 to 4 under top"),
        ({"protected": 5}, "Use 1 to 4 under top"),
        ({"protection": "all"}, "and 0 otherwise"),
        ({"temperature": 0.0}, "above 0 and at most its cap"),
        ({"cap": 1.0}, "above 0 and at most its cap"),
        ({"strength": -1.0}, "does not fall"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(change, said):
    with pytest.raises(ConclaveError, match=said):
        replace(TOP, **change)
