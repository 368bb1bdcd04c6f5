"""Publishes a student: a folder that other libraries load, with the privacy guarantee beside the model.

The folder is written under a temporary name and renamed, so that nobody ever sees half of it. Everybody may read it,
whatever the permissions of the run's own folder: it is meant to be given away.
"""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coordinator.errors import RunError
from coordinator.published import manifest
from coordinator.published.audit import AUDIT
from coordinator.published.manifest import Seal
from coordinator.publishing.audited import content_of
from coordinator.publishing.report import Statement
from coordinator.publishing.student import Student


def check_free(folder: Path) -> None:
    """Raises `RunError` when the student's place is taken."""
    try:
        taken = os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise RunError(f"{folder} cannot be read: {error.strerror}. Choose another place to publish.") from None
    if taken:
        raise RunError(f"{folder} exists already. Choose another place to publish, or move it away.", code="C107")


def try_place(folder: Path) -> None:
    """Do and undo in advance what publishing does at the end: rename a folder with a file in it to the student's place.

    Raises `RunError`, before anything is spent, where that fails or the place is taken.
    """
    check_free(folder)
    above = next(each for each in folder.absolute().parents if os.path.lexists(each))
    try:
        with tempfile.TemporaryDirectory(prefix=".conclave-", dir=above) as trial:
            made = Path(trial) / "made"
            made.mkdir()
            (made / "file").write_bytes(b"conclave")
            made.rename(Path(trial) / "renamed")
            if folder.is_dir() and os.path.ismount(folder):  # an empty folder can be removed, a mounted disk cannot
                raise OSError(errno.EBUSY, "a disk is mounted there")
    except OSError as error:
        raise RunError(
            f"{folder} cannot be published: {above} takes no new folder ({error.strerror}). Choose another place to "
            "publish, or make it writable.",
            code="C302",
        ) from None


def publish(student: Student, statement: Statement, folder: Path, seal: Seal) -> None:
    """Write the student's whole signed folder, or nothing. Raises `RunError` when it cannot be written."""

    def fill(beside: Path) -> None:
        student.write(beside)
        (beside / manifest.PRIVACY).write_text(_json(statement.privacy), encoding="utf-8")
        if statement.audit is not None:
            (beside / AUDIT).write_bytes(content_of(statement.audit))
        (beside / manifest.CARD).write_text(student.card(statement), encoding="utf-8")
        manifest.write(beside, seal)

    placed(folder, fill)


def placed(folder: Path, fill: Callable[[Path], None]) -> None:
    """Put the folder that `fill` writes in its place, complete or not at all. Raises `RunError`."""
    check_free(folder)
    beside = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True, exist_ok=True)
        fill(beside)
        _settle(beside)
        if folder.exists():
            folder.rmdir()
        beside.rename(folder)
        _sync(folder.parent)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise RunError(f"{folder} cannot be written: {error.strerror}. Nothing was published.") from None
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _settle(folder: Path) -> None:
    """Make every file readable by all, whatever library wrote it, and flush it to disk."""
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
