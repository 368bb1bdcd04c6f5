"""Whether the disk has room for a run, before anything is asked or spent."""

from pathlib import Path

from coordinator.errors import RunError
from coordinator.forecasting.needs import Needs
from protos.console.checklist import free_disk, size


def check_disk(needs: Needs, spare: int, folder: Path) -> None:
    """Raises `RunError` where the disk of `folder` has less free than the run may write and `spare` bytes more."""
    free = free_disk(folder)
    if free < needs.disk + spare:
        raise RunError(
            f"the disk of {folder} has {size(free)} free; this run may write {size(needs.disk)}, and {size(spare)} are "
            "to stay free. Nothing was asked or spent. Make room there, and run the plan again.",
            code="C301",
        )
