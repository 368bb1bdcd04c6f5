"""`dp_accounting`, imported without the parts of scipy that take a second and that are seldom needed.

Only privacy loss distributions and calibration use them. A party's node, which adds up Renyi divergences, never does.
"""

import importlib
import sys
from types import ModuleType
from typing import Any, Final

from scipy import special

_LATER: Final = ("scipy.fft", "scipy.optimize", "scipy.signal", "scipy.stats")


class _Attribute:
    """One name of a module, looked up when it is called or asked for an attribute."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _found(self) -> Any:
        return getattr(importlib.import_module(self._module), self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found(), name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._found()(*given, **named)


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


class _Later(ModuleType):
    """A module in whose place its importer holds this, and that is imported when one of its names is first used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if (self.__name__, name) == ("scipy.stats", "norm"):
            return _Normal()
        return _Attribute(self.__name__, name)


def _import() -> None:
    """Import `dp_accounting` with stand-ins, which nobody else finds afterwards."""
    stands = {name: _Later(name) for name in _LATER if name not in sys.modules}
    sys.modules.update(stands)
    try:
        importlib.import_module("dp_accounting")
    finally:
        for name, stand in stands.items():
            if sys.modules.get(name) is stand:
                del sys.modules[name]


if "dp_accounting" not in sys.modules:
    _import()

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
    get_epsilon_gaussian,
    pld,
    rdp,
)

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
