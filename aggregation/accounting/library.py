"""`dp_accounting`, imported without the parts of scipy that take a second and that are seldom needed.

Only privacy loss distributions and calibration use them. A party's node, which adds up Renyi divergences, never does.
"""

import importlib
import sys
from typing import Any

import numpy as np
from scipy import special

from aggregation.imports import later


class _Normal:
    """`scipy.stats.norm` about 0: what a price asks of it is found by those functions of `scipy.special` that it calls,
    with the same bits, so that no price imports statistics.
    """

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale

    def __call__(self, scale: float) -> "_Normal":
        return _Normal(scale)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(importlib.import_module("scipy.stats").norm(scale=self._scale), name)

    def cdf(self, x: Any) -> Any:
        return special.ndtr(x / self._scale)

    def logcdf(self, x: Any) -> Any:
        return special.log_ndtr(x / self._scale)

    def ppf(self, probability: Any) -> Any:
        return special.ndtri(probability) * self._scale


_LATER = {"scipy.fft": {}, "scipy.optimize": {}, "scipy.signal": {}, "scipy.stats": {"norm": _Normal()}}

if "dp_accounting" not in sys.modules:
    with later(_LATER):
        importlib.import_module("dp_accounting")

from dp_accounting import (  # noqa: E402  after the stand-ins are there
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    UnsupportedEventError,
    pld,
    rdp,
)
from dp_accounting import get_epsilon_gaussian as _epsilon_gaussian  # noqa: E402


def get_epsilon_gaussian(sigma: float, delta: float) -> float:
    """`dp_accounting`'s, found to 1e-12, without its warning of a logarithm of zero where the delta of an epsilon is
    zero.
    """
    with np.errstate(divide="ignore"):
        return float(_epsilon_gaussian(sigma, delta))


__all__ = [
    "ComposedDpEvent",
    "DpEvent",
    "GaussianDpEvent",
    "LaplaceDpEvent",
    "NoOpDpEvent",
    "NonPrivateDpEvent",
    "PoissonSampledDpEvent",
    "SelfComposedDpEvent",
    "UnsupportedEventError",
    "get_epsilon_gaussian",
    "pld",
    "rdp",
]
