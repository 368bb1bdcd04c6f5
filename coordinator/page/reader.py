"""What a reader of a student could tell of one person's text, in figures that people can picture."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from aggregation.accounting.events import from_json
from aggregation.errors import ConclaveError
from coordinator.pricing.release import gaussian_multiplier, rounded_up
from coordinator.publishing.verdict import promises
from learning.audits.trade_offs import Gaussian, claimed, right, right_by_claim

By = Literal["gaussian", "sampled", "renyi", "claim"]
PEOPLE: Final = 100

SCALE: Final = ((1.0, "strong"), (10.0, "reasonable"), (math.inf, "weak"))
"""Epsilon up to which a promise is called so.

Source: Ponomareva et al. 2023, "How to DP-fy ML: A Practical Guide to Machine Learning with Differential Privacy",
section 5.2, tiers 1 to 3.
"""
_MEANS: Final = {
    "strong": "Up to 1 the promise is strong by itself: whatever a reader knows, little can be told of anybody.",
    "reasonable": "From 1 to 10 the promise is reasonable: most deployments that people know are here. It bounds the "
    "worst case; attacks that were tried on such models find far less. The nearer to 10, the more rests on that.",
    "weak": "Above 10 the promise alone says little: look at the audit, and at who will have the student.",
}


@dataclass(frozen=True, slots=True)
class Reader:
    """The most that a reader can tell who has the student, knows all other text, and wants to know of one unit.

    epsilon, delta: of the promise. right: the largest share of guesses that can be right where a fair coin decided
    whether the unit was there. by: what is known of the run beyond epsilon and delta: the curve of all its releases
    together, or nothing ("claim").
    """

    epsilon: float
    delta: float
    right: float
    by: By

    @property
    def people(self) -> int:
        """How many of 100 guesses are right at the most, rounded up."""
        return min(PEOPLE, math.ceil(PEOPLE * self.right - 1e-9))

    @property
    def factor(self) -> str:
        """e^epsilon, in words."""
        return times(float(rounded_up(self.epsilon)))

    @property
    def tier(self) -> str:
        """What such an epsilon is called."""
        return next(name for most, name in SCALE if self.epsilon <= most)

    @property
    def means(self) -> str:
        """A sentence on that."""
        return _MEANS[self.tier]


def reader_of(privacy: Mapping[str, Any]) -> Reader | None:
    """The most that a reader of a student can tell, from the content of `privacy.json`; None where nothing is promised.

    The share of right guesses is the smaller of two bounds that both hold: that of epsilon and delta, and that of the
    trade-off curve of all releases, each as often as it may be attempted; of parties that take part in different
    releases, the worst one's. Takes seconds for many sampled steps.
    """
    if not promises(privacy):
        return None
    epsilon, delta = float(privacy["epsilon"]), float(privacy["delta"])
    stated = right_by_claim(epsilon, delta)
    rosters = {tuple(each["among"]) for each in privacy["releases"] if "among" in each}
    named = sorted({name for roster in rosters for name in roster}) or [""]
    worst: tuple[float, By] = (0.0, "claim")
    for name in named:
        own = [each for each in privacy["releases"] if "among" not in each or name in each["among"]]
        found = _by_curve(tuple(_text(each["event"]) for each in own), int(privacy["attempts"]), epsilon, delta)
        worst = max(worst, found, key=lambda each: each[0])
    share, by = worst[0] + float(privacy["sampler_delta"] or 0.0), worst[1]
    if by == "claim" or share >= stated:
        return Reader(epsilon, delta, stated, "claim")
    return Reader(epsilon, delta, share, by)


@lru_cache(maxsize=32)
def _by_curve(events: tuple[str, ...], attempts: int, epsilon: float, delta: float) -> tuple[float, By]:
    """The largest share of right guesses by the curve of these events, JSON; 1 where none is known."""
    try:
        happened = [from_json(json.loads(each)) for each in events]
        by, curve = claimed(happened * attempts, epsilon, delta)
    except ConclaveError:
        return 1.0, "claim"
    return right(curve), by


def _text(event: Any) -> str:
    return json.dumps(event, sort_keys=True)


def times(epsilon: float) -> str:
    """How many times as likely an epsilon lets anything become, in words."""
    factor = math.exp(min(epsilon, 700.0))
    if factor >= 1e6:
        return "more than a million times"
    if factor < 1.1:
        return f"{factor:.3f} times"
    return f"about {factor:,.0f} times" if factor >= 10 else f"about {factor:.2f} times"


def chance(delta: float) -> str:
    """A small probability as one in so many."""
    return f"1 in {1 / delta:,.0f}"


def delta_doubt(delta: float, units: int | None) -> str | None:
    """A sentence where a delta is too large for so many units; None where it is not, or their number is not public."""
    if units is None or delta * units < 1:
        return None
    return (
        f"Delta is too large. With {units:,} units, a delta of {delta:g} is kept even by something that shows "
        f"{delta * units:,.0f} of them to everybody, word for word. Use a delta well below one over the number of "
        f"units: below {1 / units:.1g}."
    )


def if_claimed(epsilon: float, reader: Reader) -> Reader:
    """What a reader could tell if a paper's own epsilon were true at the same delta; nothing rests on it.

    Where all that the run released is Gaussian, it is the Gaussian release of that epsilon; else epsilon and delta
    alone, the worst that they allow.
    """
    if reader.by == "gaussian":
        share = right(Gaussian(1 / gaussian_multiplier(epsilon, reader.delta)))
        return Reader(epsilon, reader.delta, share, "gaussian")
    return Reader(epsilon, reader.delta, right_by_claim(epsilon, reader.delta), "claim")


def figures(reader: Reader) -> list[str]:
    """A reader as a row of a table: epsilon, its factor, and how many guesses of 100 are right at the most."""
    return [rounded_up(reader.epsilon), reader.factor, f"{reader.people} of {PEOPLE}"]
