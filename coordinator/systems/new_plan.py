"""A plan's text as a new file, written whole or not at all."""

import os
import secrets
from pathlib import Path

from coordinator.errors import PlanError


def check_new(path: Path) -> None:
    """Raises `PlanError` where there is such a file, which is not replaced."""
    if path.exists():
        raise _taken(path)


def write_new(path: Path, text: str) -> None:
    """Write a new file completely or not at all. Raises `PlanError` where there is one, or none can be written."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        try:
            with beside.open("x", encoding="utf-8") as file:
                file.write(text)
            os.link(beside, path)  # unlike a renaming, it replaces nothing
        finally:
            beside.unlink(missing_ok=True)
    except FileExistsError:
        raise _taken(path) from None
    except OSError as error:
        raise PlanError(f"{path} cannot be written: {error.strerror}.") from None


def _taken(plan: Path) -> PlanError:
    return PlanError(f"{plan} exists already and was left alone. Name another file.", code="C107")
