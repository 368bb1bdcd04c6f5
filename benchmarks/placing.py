"""The device that a benchmark is asked to compute on."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from learning.models.compute import Placement


def placed(device: str) -> "Placement | None":
    """Where models run on that device; None, said in words, where it is not there, which is no failure."""
    from learning.errors import ComputeError
    from learning.models.compute import Compute, placement

    try:
        return placement(Compute(device))
    except ComputeError as error:
        print(f"Nothing was measured. {error}")
        return None
