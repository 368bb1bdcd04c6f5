"""How private a mechanism is at the most, from one run of it: canaries that a coin put in or left out, and guesses.

m canaries are put in or left out by fair coins. Whoever sees the output scores each, guesses that those with the
highest scores are in and those with the lowest are out, and abstains from the others. Under (epsilon, delta)-
differential privacy of one unit, the number of right guesses is bounded; more right guesses than that refute the
epsilon. No number of guesses refutes anything at a confidence above 1 - 2 delta, and many canaries need a small delta.
Source: Steinke, Nasr & Jagielski 2023, "Privacy Auditing with One (1) Training Run", theorem 5.2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError

LARGEST: Final = 100.0
"""The largest epsilon that is looked for."""
_STEPS: Final = 40
_FEW: Final = 64
"""Steps of the maximum that are looked at first."""
MOST_CANARIES: Final = 1 << 20
SHARES: Final = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Shares of the canaries that are guessed, among which the best is taken and paid for."""


@dataclass(frozen=True, slots=True)
class Audit:
    """lower: no epsilon below this is compatible with what was seen, at the stated confidence; 0 where nothing was
    refuted. canaries, guesses, right: how many there were. tried: how many numbers of guesses were looked at, each
    at a share of what is left of the confidence.
    """

    lower: float
    confidence: float
    canaries: int
    guesses: int
    right: int
    tried: int


def chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The largest probability that so many guesses are right under (epsilon, delta)-differential privacy, add-or-remove
    of one unit, a canary each.

    b + 2 m delta max_i (P(W >= v - i) - b) / i with b = P(W >= v), W binomial of r guesses and e^epsilon / (1 +
    e^epsilon). Raises `ConclaveError` for numbers that cannot be.
    """
    if not 0 <= right <= guesses <= canaries or not canaries or epsilon < 0 or not 0 <= delta < 1:
        raise ConclaveError(
            f"{right:,} right guesses of {guesses:,} about {canaries:,} canaries at epsilon {epsilon:g} and delta "
            f"{delta:g} cannot be."
        )
    if not right:
        return 1.0
    from scipy.special import betainc

    each = 1 / (1 + math.exp(-epsilon))
    base = float(betainc(right, guesses - right + 1, each))  # P(W >= v) = I_q(v, r - v + 1)
    if not delta:
        return base

    def most(first: int, last: int) -> float:
        steps = np.arange(first, last)
        tails = np.append(betainc(right - steps, guesses - right + 1 + steps, each), [1.0] if last == right else [])
        return float(max(0.0, ((tails - base) / np.arange(first, first + len(tails))).max(initial=0.0)))

    # No probability is above 1, so that later steps than (1 - b) / the largest so far are not larger.
    found = most(1, min(right, _FEW))
    last = int(min(right, (1 - base) / found + 1)) if found else right
    found = max(found, most(_FEW, last)) if last > _FEW else found
    return min(1.0, base + 2 * canaries * delta * found)


def of_group(epsilon: float, delta: float, units: int) -> tuple[float, float]:
    """What (epsilon, delta) for one unit says of so many together: units epsilon, and delta sum_i e^(i epsilon) for i
    below units, at most 1.

    Source: group privacy (Dwork & Roth 2014, theorem 2.2; Vadhan 2017, lemma 2.2).
    """
    worse = sum(math.exp(min(place * epsilon, LARGEST)) for place in range(units))
    return units * epsilon, min(1.0, delta * worse)


def lower_bound(canaries: int, guesses: int, right: int, *, delta: float, confidence: float, units: int = 1) -> float:
    """The largest epsilon of one unit that these guesses refute at this confidence; 0 where they refute none.

    units: how many a canary is of. Raises as `chance`, and for a confidence outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise ConclaveError(f"A confidence of {confidence:g} makes no sense. Use for example 0.95.")

    def refuted(epsilon: float) -> bool:
        together, lost = of_group(epsilon, delta, units)
        return lost < 1 and chance(canaries, guesses, right, together, lost) <= 1 - confidence

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, LARGEST
    if refuted(high):
        return high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def audited(
    scores: NDArray[np.float64],
    included: NDArray[np.bool_],
    *,
    delta: float,
    confidence: float = 0.95,
    shares: Sequence[float] = SHARES,
    units: int = 1,
) -> Audit:
    """The audit of scores [canaries], higher where a canary seems to be in, against which were in [canaries].

    How many are guessed is chosen after looking, among `shares`; each of these is held to its share of 1 - confidence
    (Bonferroni). units: how many a canary is of; the bound is of one. Raises as `counted`.
    """
    each = 1 - (1 - confidence) / max(1, len(shares))
    best: Audit | None = None
    for guesses, right in counted(scores, included, shares):
        if best is not None and chance(len(scores), guesses, right, *of_group(best.lower, delta, units)) > 1 - each:
            continue  # it refutes less than another did
        lower = lower_bound(len(scores), guesses, right, delta=delta, confidence=each, units=units)
        if best is None or lower > best.lower:
            best = Audit(lower, confidence, len(scores), guesses, right, len(shares))
    assert best is not None
    return best


def counted(
    scores: NDArray[np.float64], included: NDArray[np.bool_], shares: Sequence[float] = SHARES
) -> list[tuple[int, int]]:
    """How many canaries are guessed and how many of the guesses are right, for each of some shares of them.

    scores, included: [canaries]. Half of the guesses, those of the highest scores, say in, the others out. A score
    that is no number counts as least. Raises `ConclaveError` for arrays that do not fit, no share, or fewer than two
    canaries.
    """
    if scores.shape != included.shape or scores.ndim != 1 or len(scores) < 2 or not shares:
        raise ConclaveError(
            f"Scores of {scores.shape} and coins of {included.shape} are no audit: it takes both of each canary, two "
            "canaries or more, and a number of guesses."
        )
    order = np.argsort(np.nan_to_num(scores, nan=-np.inf), kind="stable")
    halves = [min(len(scores) // 2, max(1, round(share * len(scores) / 2))) for share in shares]
    return [
        (2 * half, int((~included[order[:half]]).sum() + included[order[len(order) - half :]].sum())) for half in halves
    ]


def canaries_for(epsilon: float, *, delta: float, confidence: float) -> int:
    """How many canaries it takes to refute an epsilon, if every guess were right: the least that an audit needs.

    Raises `ConclaveError` where no number does, because delta times the canaries is too large.
    """

    def enough(count: int) -> bool:
        return chance(count, count, count, epsilon, delta) < 1 - confidence

    count = 1
    while count < MOST_CANARIES and not enough(count):
        count *= 2
    if not enough(count):
        raise ConclaveError(
            f"No number of canaries refutes epsilon {epsilon:g} at delta {delta:g} and confidence {confidence:g}."
        )
    low = count // 2
    while count - low > 1:
        middle = (low + count) // 2
        low, count = (low, middle) if enough(middle) else (middle, count)
    return count
