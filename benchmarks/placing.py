"""The device that a benchmark is asked to compute on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from learning.models.compute import Placement, Precision


def placed(device: str, precisions: "Sequence[Precision]" = ("float32",)) -> "list[Placement]":
    """Where models run on that device in each precision; nothing, said in words, where one is not there: no failure."""
    from learning.errors import ComputeError
    from learning.models.compute import Compute, placement

    try:
        return [placement(Compute(device, precision)) for precision in precisions]
    except ComputeError as error:
        print(f"Nothing was measured. {error}")
        return []
