"""A run's own folder among a person's files: which folder a run may take, and how an earlier run is replaced.

A folder is a run's when it holds the marker that the store writes and nothing but a run's files. An earlier run is
renamed aside, and removed once the new one has begun, so that a kill in between loses neither. Files are removed by
name, one by one; links are never followed, and unknown files are left where they are.
"""

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from aggregation.errors import IntegrityError
from coordinator.errors import RunError
from coordinator.published.folder import Published
from coordinator.published.manifest import MANIFEST, SIGNATURE, Manifest
from coordinator.reading import MOST_SHOWN, shaped, shown
from protos.console.settings import Settings

MARKER: Final = "conclave-run.json"
STUDENT: Final = "student"
WRITTEN: Final = ("artefacts", "blocks", "masked")
"""Folders of what a run itself writes while it collects and learns."""
_ASIDE: Final = "replaced"

_WITHIN: Final = (
    r"(artefacts/(compressed|\.compressed\.part|distilling|learning|public|softened|targets|written)|parties/[a-z0-9-]+"
    r"|\.student\.part)"
)
"""Folders in a run that a library or a party fills with files of its own naming."""
_FOLDERS: Final = re.compile(
    rf"blocks(/[a-z0-9._-]+)?|masked(/[a-z0-9._-]+)?|artefacts|parties|{_WITHIN}(/.+)?", re.DOTALL
)
_PART: Final = r"(\.[0-9a-f]{16}\.part)?"
_BEGUN: Final = re.compile(rf"\.conclave-run\.json{_PART}")
"""What a kill may leave of the marker itself, which is written first."""
_FILES: Final = re.compile(
    r"run\.sqlite(-wal|-shm|-journal)?|\.?run-version-[0-9]+\.sqlite(\.part)?(-journal)?"
    rf"|conclave-run\.json|{_BEGUN.pattern}"
    rf"|blocks/[a-z0-9._-]+/\.?[0-9]{{6}}\.npy{_PART}"
    r"|masked/[a-z0-9._-]+/[a-z0-9-]+\.cells"
    rf"|artefacts/\.?[a-z0-9_-]+\.(json|safetensors|i64|f32){_PART}"
    rf"|\.?audit(-roc)?\.(json|png){_PART}"
    r"|parties/training-[0-9]+\.log"  # of parties that shared processes, in runs of earlier versions
    rf"|{_WITHIN}/.+",
    re.DOTALL,
)
"""Relative paths of a run's folders and files, with slashes; the student's are left out, since its manifest names them.
"""


class Marker(Settings):
    """`conclave-run.json`: marks a folder as a run's own."""

    format: Literal[1]
    kind: Literal["conclave run"]
    run: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$")]


def marker_of(run: str) -> bytes:
    """The content of the marker of a run."""
    return json.dumps({"format": 1, "kind": "conclave run", "run": run}).encode() + b"\n"


def check_folder(folder: Path) -> None:
    """Raises `RunError` for a folder that no run may take: one that holds anything but a run. Changes nothing."""
    if folder.is_symlink() and not folder.exists():
        raise RunError(f"{folder} is a link to nothing. Name a folder.", code="C302")
    if not os.path.exists(folder):
        return
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder. Choose another --output.", code="C302")
    found = strangers(folder)
    if found and "run.sqlite" in found and MARKER not in found:
        raise RunError(
            f"{folder} holds run.sqlite and no {MARKER}: a run of an earlier version of Conclave, or none. It was left "
            "alone. Choose another --output, or move it away.",
            code="C705",
        )
    if found:
        raise RunError(
            f"{folder} holds what is no run's: {named(found)}. It was left alone. A run's folder is new, empty, or "
            "holds a run and nothing else. Choose another --output.",
            code="C107",
        )


def check_marker(folder: Path, run: str) -> None:
    """Raises `RunError` where the marker of a run's folder names another run."""
    found = _marker(folder)
    if found is not None and found.run != run:
        raise RunError(
            f"{folder} holds run {run}, and its {MARKER} names {found.run}. It was left alone. Look at it.", code="C705"
        )


def strangers(folder: Path) -> list[str]:
    """Paths below the folder that no run made; all of them where no marker says that the folder is a run's.

    Raises `RunError` for a folder that cannot be read.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise RunError(f"{folder} cannot be read: {error.strerror}. Choose another --output.") from None
    if _marker(folder) is None:
        return [name for name in names if _BEGUN.fullmatch(name) is None]
    return sorted(path for path, own in _sorted_out(folder) if not own)


def named(paths: list[str]) -> str:
    """The first few of these paths, and how many more there are."""
    more = len(paths) - MOST_SHOWN
    return ", ".join(shown(path) for path in paths[:MOST_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def set_aside(folder: Path, run: str) -> Path:
    """Rename a run's folder out of the way; returns its new place. Raises `RunError`, with nothing changed."""
    if folder.is_symlink():
        raise RunError(
            f"{folder} is a link, never followed to remove a run. Name the folder that it leads to.", code="C302"
        )
    if Path.cwd().is_relative_to(folder.resolve()):
        raise RunError(
            f"{folder} is the folder that this was started in. To replace its run, start it from another.", code="C302"
        )
    aside = folder.with_name(f".{folder.name}.{_ASIDE}-{run}")
    try:
        folder.rename(aside)
    except OSError as error:
        raise RunError(
            f"{folder} cannot be renamed to {aside.name}: {error.strerror}. Nothing was changed. Choose another "
            "--output, or remove that run yourself."
        ) from None
    return aside


def left_aside(folder: Path) -> list[Path]:
    """Runs that were set aside for others in this folder and still exist."""
    return [path for path in sorted(folder.parent.glob(f".{folder.name}.{_ASIDE}-*")) if _marker(path) is not None]


def put_back(aside: Path, folder: Path) -> None:
    """Rename a run that was set aside back into its place; the files of the run there, which never began, are removed.

    Raises `RunError`, naming where both are.
    """
    with suppress(FileNotFoundError):
        remove(folder)
    try:
        aside.rename(folder)
    except OSError as error:
        raise RunError(f"{aside} cannot be renamed back to {folder}: {error.strerror}. It is whole there.") from None


def remove(folder: Path) -> list[str]:
    """Remove a run's own files, and its folder where nothing else is left in it; returns what was left.

    The marker is removed last, so that a removal that was killed can be continued. Raises FileNotFoundError for a
    folder that does not exist.
    """
    if _marker(folder) is None:
        return sorted(os.listdir(folder))
    entries = sorted(_sorted_out(folder), key=lambda entry: (entry[0] == MARKER, entry[0].count("/") * -1))
    left = [path for path, own in entries if not own]
    for path, own in entries:
        if own and path != MARKER:
            with suppress(OSError):
                _unlink(folder / path)
    if not left:
        with suppress(OSError):
            (folder / MARKER).unlink()
            folder.rmdir()
    return left


def _unlink(path: Path) -> None:
    """Remove a file, a link itself, or an empty folder."""
    if stat.S_ISDIR(path.lstat().st_mode):
        path.rmdir()
    else:
        path.unlink()


def _marker(folder: Path) -> Marker | None:
    """The content of the marker, None where there is no valid one."""
    path = folder / MARKER
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        return shaped(path.read_bytes()[:10_000], MARKER, Marker)
    except (OSError, IntegrityError):
        return None


def _sorted_out(folder: Path) -> Iterator[tuple[str, bool]]:
    """Every path below a run's folder, and whether the run made it; a folder comes after its content."""
    published = _published(folder / STUDENT)
    for above, folders, files in os.walk(folder, topdown=False, followlinks=False):
        below = Path(above).relative_to(folder)
        for name in (*files, *folders):
            path = (below / name).as_posix()
            linked = os.path.islink(os.path.join(above, name))
            known = _FOLDERS if name in folders and not linked else _FILES
            own = path in published or known.fullmatch(path) is not None
            # A run makes no links, except those that a library may leave in a party's folder.
            yield path, own and (not linked or path.startswith("parties/"))


def _published(student: Path) -> set[str]:
    """The paths, below the run's folder, of a student that is published there, as its manifest lists them."""
    try:
        found = Published.at(student)
        files = {MANIFEST, SIGNATURE, *found.model(MANIFEST, Manifest).files}
    except IntegrityError:
        # Nothing is published yet, or no student: an empty folder belongs to the run, a file in it does not.
        return {STUDENT}
    paths = {STUDENT}
    for file in files:
        parts = (STUDENT, *file.split("/"))
        paths |= {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return paths
