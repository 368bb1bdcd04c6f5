"""The one-run audit against a whole trade-off function, which is tighter than one against an epsilon at a delta.

Canaries, coins and guesses are those of `learning.audits.one_run`. Let r_i be the probability that i guesses or more
are right, weighted by how many are right, and h_i the same by how many are wrong, both over the number of canaries.
Flipping one canary's coin turns a right guess about it into a wrong one, so the trade-off function bounds r_{i+1} by
h_i. Beginning with what was seen, the bounds add up to more than there is: then the function is refuted.
Source: Mahloujifar, Melis & Chaudhuri 2024, "Auditing f-Differential Privacy in One Run", the recursion
with a bound on the number of guesses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from learning.audits.one_run import SHARES, counted
from learning.audits.trade_offs import Gaussian, TradeOff

LARGEST_MU: Final = 50.0
_STEPS: Final = 40


@dataclass(frozen=True, slots=True)
class FdpAudit:
    """lower: the largest parameter of the family that was refuted at the confidence, 0 where none was. canaries,
    guesses, right: how many there were. tried: numbers of guesses that were looked at, each at its share of what is
    left of the confidence.
    """

    lower: float
    confidence: float
    canaries: int
    guesses: int
    right: int
    tried: int


def refuted(trade_off: TradeOff, canaries: int, guesses: int, right: int, confidence: float) -> bool:
    """Whether so many right guesses or more have a probability of at most 1 - confidence under any mechanism with this
    trade-off, under add-or-remove of one unit, a canary each.

    With t = 1 - confidence, r = t right/m and h = t (guesses - right)/m, for i from right - 1 down to 0:

        h' = max(h, least(r)),   r' = r + i/(guesses - i) (h' - h);   refuted where r + h > guesses/m.

    The number of guesses must not depend on the coins. Raises `ConclaveError` for numbers that cannot be, and for a
    confidence outside (0, 1).
    """
    if not 0 <= right <= guesses <= canaries or not canaries:
        raise ConclaveError(f"{right:,} right guesses of {guesses:,} about {canaries:,} canaries cannot be.")
    if not 0 < confidence < 1:
        raise ConclaveError(f"A confidence of {confidence:g} makes no sense. Use for example 0.95.")
    most = guesses / canaries * (1 + 1e-12)
    above = (1 - confidence) * right / canaries
    below = (1 - confidence) * (guesses - right) / canaries
    for place in range(right - 1, -1, -1):
        least = trade_off.least(min(1.0, above))
        if least <= below:  # from here on neither changes
            break
        above, below = above + place / (guesses - place) * (least - below), least
        if above + below > most:
            return True
    return above + below > most


def audited_family(
    scores: NDArray[np.float64],
    included: NDArray[np.bool_],
    family: Callable[[float], TradeOff],
    *,
    largest: float,
    confidence: float = 0.95,
    shares: Sequence[float] = SHARES,
    steps: int = _STEPS,
) -> FdpAudit:
    """The largest member of a family of trade-offs that scores [canaries] refute, given which were in [canaries].

    family: from a parameter above 0, up to `largest`, to a trade-off that allows more the larger it is. How many are
    guessed is chosen after looking; each of `shares` is held to its part of 1 - confidence (Bonferroni), whatever the
    member. steps: halvings of the range. Raises as `learning.audits.one_run.counted`.
    """
    some = counted(scores, included, shares)
    each = 1 - (1 - confidence) / len(shares)

    def refuting(parameter: float) -> tuple[int, int] | None:
        member = family(parameter)
        return next((one for one in some if refuted(member, len(scores), *one, each)), None)

    low, high, found = 0.0, largest, max(some, key=lambda one: one[1] / one[0])
    if (one := refuting(high)) is not None:
        return FdpAudit(high, confidence, len(scores), *one, len(shares))
    for _ in range(steps):
        middle = (low + high) / 2
        if (one := refuting(middle)) is not None:
            low, found = middle, one
        else:
            high = middle
    return FdpAudit(low, confidence, len(scores), *found, len(shares))


def audited_gaussian(
    scores: NDArray[np.float64],
    included: NDArray[np.bool_],
    *,
    confidence: float = 0.95,
    shares: Sequence[float] = SHARES,
) -> FdpAudit:
    """The lower bound of mu of a mechanism that is Gaussian, or claims to be: `Gaussian(lower).epsilon(delta)` is the
    epsilon that it stands for.

    It refutes mu-Gaussian differential privacy for every mu up to `lower`. It says nothing of an epsilon that a
    mechanism with another trade-off claims. Raises as `audited_family`.
    """
    return audited_family(scores, included, Gaussian, largest=LARGEST_MU, confidence=confidence, shares=shares)
