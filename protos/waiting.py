"""How the threads of numeric libraries wait: both ends start their computing under it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

PATIENT: Final[Mapping[str, str]] = MappingProxyType(
    {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
)
"""The environment under which threads that wait sleep; it is read when torch is loaded.

By default they spin, also while the thread that they wait for has no core: with other programs on two cores a model's
training took three times as long.
"""
