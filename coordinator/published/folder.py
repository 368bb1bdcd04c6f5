"""Reads a published folder that is not yet trusted: nothing in it is believed, followed, executed or unpickled.

Files are read in blocks or up to a limit, links and devices are never opened, and anything unusual is reported in a
sentence.
"""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from aggregation.errors import IntegrityError
from coordinator.reading import shaped, shown
from protos.console.settings import Settings

LARGEST_TEXT: Final = 16 << 20
MOST_FILES: Final = 10_000
_BLOCK: Final = 1 << 20

Model = TypeVar("Model", bound=Settings)


@dataclass(frozen=True, slots=True)
class Published:
    """A folder as it was found.

    sizes: of its plain files, by path with slashes. folders: the paths of its folders. odd: a sentence for anything
    else, and for a file with a second name (hard link).
    """

    folder: Path
    sizes: Mapping[str, int]
    folders: tuple[str, ...]
    odd: tuple[str, ...]

    @classmethod
    def at(cls, folder: Path) -> "Published":
        """List every name in the folder and below it. Raises `IntegrityError` where there is no folder."""
        if not os.path.isdir(folder):  # no name is too long for this
            raise IntegrityError(
                f"{shown(folder)} is not a folder. Name the published folder of a student.", code="C705"
            )
        sizes: dict[str, int] = {}
        folders: list[str] = []
        odd: list[str] = []
        waiting = [""]
        while waiting:
            below = waiting.pop()
            try:
                entries = sorted(os.scandir(folder / below), key=lambda entry: entry.name)
            except OSError as error:
                odd.append(f"{shown(below) or 'the folder'} cannot be read: {error.strerror}.")
                continue
            for entry in entries:
                path = f"{below}/{entry.name}" if below else entry.name
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(path)
                    folders.append(path)
                elif stat.S_ISREG(status.st_mode):
                    sizes[path] = status.st_size
                    if status.st_nlink > 1:  # whoever has another link to the file could change it after the check
                        odd.append(f"{shown(path)} is a hard link: the same file has another name. Copy the folder.")
                elif stat.S_ISLNK(status.st_mode):
                    odd.append(f"{shown(path)} is a symbolic link, which a published folder never holds.")
                else:
                    odd.append(f"{shown(path)} is not a plain file, which a published folder never holds.")
            if len(sizes) + len(odd) + len(folders) > MOST_FILES:
                odd.append(f"The folder holds more than {MOST_FILES:,} files; the rest was not looked at.")
                break
        return cls(folder, sizes, tuple(folders), tuple(odd))

    def sha256(self, path: str) -> str:
        """A file's digest, in hex. Raises `IntegrityError`."""
        digest = hashlib.sha256()
        handle = self._open(path)
        with os.fdopen(handle, "rb") as file:
            try:
                while block := file.read(_BLOCK):
                    digest.update(block)
            except OSError as error:
                raise IntegrityError(f"{shown(path)} cannot be read: {error.strerror}.") from None
        return digest.hexdigest()

    def read(self, path: str) -> bytes:
        """The content of a file of limited size. Raises `IntegrityError`."""
        with os.fdopen(self._open(path), "rb") as file:
            try:
                content = file.read(LARGEST_TEXT + 1)
            except OSError as error:
                raise IntegrityError(f"{shown(path)} cannot be read: {error.strerror}.") from None
        if len(content) > LARGEST_TEXT:
            raise IntegrityError(f"{shown(path)} is larger than {LARGEST_TEXT >> 20} MiB, so it was not read.")
        return content

    def text(self, path: str) -> str:
        """The same, decoded from UTF-8. Raises `IntegrityError`."""
        try:
            return self.read(path).decode()
        except UnicodeDecodeError as error:
            raise IntegrityError(f"{shown(path)} is not UTF-8 text (byte {error.start}).") from None

    def model(self, path: str, model: type[Model]) -> Model:
        """A JSON object of this shape. Raises `IntegrityError`."""
        return shaped(self.read(path), path, model)

    def _open(self, path: str) -> int:
        """Open a file only if it was found to be a plain one and still is."""
        if path not in self.sizes:
            raise IntegrityError(f"{shown(path)} is missing.")
        try:
            handle = os.open(self.folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise IntegrityError(f"{shown(path)} cannot be read: {error.strerror}.") from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise IntegrityError(f"{shown(path)} is not a plain file.")
        return handle
