"""Writes a page into the file that a person names: whole or not at all, never into a run's or a student's folder."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from coordinator.errors import RunError


def write_page(page: str, path: Path, *, outside: Sequence[Path] = ()) -> Path:
    """Write a page in the place of what was there; returns the absolute path.

    outside: folders that the page may not be in: a run's own, and a published one, which would verify no more. Raises
    `RunError` for such a place, a folder, a missing folder, and a disk that takes no more; then nothing is changed.
    """
    path = path.absolute()
    place = path.parent.resolve() / path.name
    for folder in outside:
        if place.is_relative_to(folder.resolve()):
            raise RunError(
                f"{path} is inside {folder}, which holds a run's own files and nothing else. Name a place outside.",
                code="C302",
            )
    if path.is_dir():
        raise RunError(f"{path} is a folder. Name a file for the page, like {path / 'page.html'}.", code="C302")
    if not path.parent.is_dir():
        raise RunError(f"{path.parent} is no folder. Make it first, or name another file for the page.", code="C302")
    part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
    try:
        with open(part, "x", encoding="utf-8") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RunError(
            f"{path} cannot be written: {error.strerror}. Nothing was left half-written. Name a place with room."
        ) from None
    return path
