"""The epsilon that DPED's own formulas give for the same noise. Never a guarantee: only shown beside a true price."""

import math

from aggregation.accounting.library import GaussianDpEvent, SelfComposedDpEvent
from aggregation.accounting.price import Guarantee, price
from aggregation.errors import ConclaveError


def paper_epsilon(
    answered: int, noise_votes: float | None, noise_hidden: float | None, clip: float, delta: float
) -> float:
    """The epsilon that DPED claims, by a moments (RDP) accountant. Not a guarantee.

    answered: queries with an answer. noise_votes: standard deviation on a class, in votes; noise_hidden: on the sum
    over teachers of one hidden layer clipped to norm `clip` (the paper's sigma_h on the mean times the number of
    teachers); None where the part is not released, at least one. delta: the paper's.

    Four things are wrong with it:
      - a changed vote moves from one class to another, which is sqrt(2) and not the paper's 1;
      - a changed hidden vector moves from one point of the ball to another, 2C on the sum and not C (C/N on the mean);
      - votes and hidden states of a query both show the same teacher, so their prices add, where the paper charges the
        pair as one mechanism of the weaker noise;
      - abstained queries are taken as free, although the raw votes decide whether a query is answered.

    Raises `ConclaveError` for a negative count of queries, noise or clip not above 0, a delta outside (0, 1), or no
    part at all.
    Source: DPED (Feng & Hong), theorem 1 and appendix B.
    """
    return paper_guarantee(answered, noise_votes, noise_hidden, clip, delta).rdp_epsilon


def paper_guarantee(
    answered: int, noise_votes: float | None, noise_hidden: float | None, clip: float, delta: float
) -> Guarantee:
    """`paper_epsilon` by both accountants: `rdp_epsilon` is the paper's; `epsilon` is tighter and has the same faults.

    Raises as `paper_epsilon`. Source: as for `paper_epsilon`.
    """
    multipliers = []
    for name, noise, sensitivity in (("noise_votes", noise_votes, 1.0), ("noise_hidden", noise_hidden, clip)):
        if noise is None:
            continue
        if not (math.isfinite(noise) and noise > 0 and math.isfinite(sensitivity) and sensitivity > 0):
            raise ConclaveError(f"{name} is {noise} and clip {clip}; both must be numbers above 0.")
        multipliers.append(noise / sensitivity)
    if not multipliers or answered < 0:
        raise ConclaveError(
            "A claim needs noise on votes, on hidden states or on both, and 0 or more answered queries."
        )
    if not answered:
        return price([], delta)
    return price([SelfComposedDpEvent(GaussianDpEvent(min(multipliers)), answered)], delta)
