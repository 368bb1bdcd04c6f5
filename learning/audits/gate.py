"""When an audit refutes a claim: what a build or a run fails by.

A lower bound at 95% is above the claim in one honest audit of twenty. A claim falls only where so many right guesses
come in one of ten thousand audits of mechanisms that keep it, by the f-DP form of the one-run audit
(`learning.audits.one_run_fdp`); the confidence is divided among the attacks of an audit, and for each among the numbers
of guesses that were looked at.
"""

from collections.abc import Sequence
from typing import Final

from learning.audits.one_run import SHARES
from learning.audits.one_run_fdp import refuted
from learning.audits.trade_offs import TradeOff

GATE: Final = 1 - 1e-4
"""The confidence at which a build or a run fails: one audit in ten thousand cries wolf."""
MOST: Final = 20_000
"""Canaries of one audit, at the most."""


def falls(claim: TradeOff, canaries: int, counted: Sequence[Sequence[int]], attacks: int) -> bool:
    """Whether an attack, one of so many in its audit, refutes a claim.

    counted: guesses, and how many of them are right, for each of `SHARES` (`learning.audits.one_run.counted`). Fewer
    are held to the same confidence each. Raises `ConclaveError` for numbers that cannot be.
    """
    each = 1 - (1 - GATE) / attacks / max(len(SHARES), len(counted))
    return any(refuted(claim, canaries, guesses, right, each) for guesses, right in counted)


def needed(claim: TradeOff, attacks: int) -> int | None:
    """How many canaries it takes for an attack, one of so many, to refute a claim if every guess were right; None where
    more than `MOST`.
    """

    def enough(count: int) -> bool:
        return falls(claim, count, [(count, count)], attacks)

    low, high = 1, 2
    while not enough(high):
        if high == MOST:
            return None
        low, high = high, min(2 * high, MOST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
