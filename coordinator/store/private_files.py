"""Files that only their owner can read, below one home folder, written completely or not at all."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from coordinator.errors import RunError


def home() -> Path:
    """The folder below which runs and their index are kept: `$CONCLAVE_HOME`, else `~/.conclave`."""
    return Path(os.environ.get("CONCLAVE_HOME") or Path.home() / ".conclave").expanduser()


def write_whole(path: Path, content: bytes) -> Path:
    """Write a file completely or not at all; it is on disk when this returns. Raises `RunError` when the disk fails.

    The temporary file beside it has a new name each time, so that two writers of one file never mix their content.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        private_folder(path.parent)
        with open(beside, "xb", opener=private_opener) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise RunError(f"{path} cannot be written: {error.strerror}.") from None
    return path


def private_opener(path: str, flags: int) -> int:
    """An opener, for `open`, of files that only their owner may read."""
    return os.open(path, flags, 0o600)


def private_folder(folder: Path) -> None:
    """Make a folder, and its missing parents, readable by their owner only. Raises OSError."""
    for each in reversed((folder, *folder.parents)):
        if not os.path.isdir(each):
            each.mkdir(mode=0o700, exist_ok=True)


def close_to_others(folder: Path) -> None:
    """Make a folder and the files that libraries wrote below it readable by their owner only. Raises OSError."""
    for above, folders, files in os.walk(folder, followlinks=False):
        os.chmod(above, 0o700)
        for name in (*folders, *files):
            path = os.path.join(above, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700 if name in folders else 0o600)


def private_file(path: Path) -> None:
    """Make a file that only its owner may read, for a library that would make it readable by all. Raises OSError."""
    os.close(private_opener(str(path), os.O_CREAT | os.O_RDWR))
    with suppress(PermissionError):
        path.chmod(0o600)
