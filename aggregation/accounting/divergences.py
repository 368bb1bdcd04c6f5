"""Renyi divergences (Mironov 2017) of releases together, and the deltas that they give at every epsilon."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from aggregation.accounting import renyi
from aggregation.accounting.events import leaves
from aggregation.accounting.library import DpEvent, UnsupportedEventError, rdp
from aggregation.accounting.renyi import FloatArray
from aggregation.errors import ConclaveError

_LEAST_ORDER: Final = 1.01
"""Below it the conversion to delta is all rounding."""


def divergences_of(parts: Sequence[tuple[DpEvent, int]], among: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """Renyi divergences of the composition `[orders]` and the orders: the given ones, or the accountant's own.

    Raises `ConclaveError` for an event without an accountant.
    """
    accountant = rdp.RdpAccountant([float(order) for order in among] or None)
    total = accountant.rdp
    for part, count in parts:
        if renyi.prices(part):
            total = total + count * renyi.divergences(part, accountant.orders)
            continue
        one = rdp.RdpAccountant(accountant.orders)
        try:
            with np.errstate(divide="ignore", over="ignore"):  # a sigma of almost nothing: infinite
                one.compose(part, count)
        except UnsupportedEventError as error:
            raise ConclaveError(
                f"No accountant prices a {type(part).__name__} under add-or-remove of one unit, so it may not happen."
            ) from error
        total = total + np.where(one.rdp >= 0, one.rdp, np.inf)  # negative or NaN: the accountant failed
    return total, accountant.orders


def profile(events: Sequence[DpEvent], epsilons: FloatArray) -> FloatArray:
    """An upper bound of delta at each epsilon from 0 [epsilons], of all events together: 1 at most.

    exp((a - 1)(D_a - epsilon + ln(1 - 1/a))) / a at the order a where it is least. Raises `ConclaveError` for an event
    without an accountant. Source: Canonne, Kamath & Steinke 2020, proposition 12.
    """
    divergences, orders = divergences_of([part for event in events for part in leaves(event)], ())
    usable = np.isfinite(divergences) & (orders > _LEAST_ORDER)
    above, own = orders[usable, None], divergences[usable, None]
    logs = (above - 1) * (own - epsilons + np.log1p(-1 / above)) - np.log(above)
    return np.asarray(np.exp(logs.min(axis=0, initial=0.0)))
