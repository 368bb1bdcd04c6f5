"""A run's own process: the ordinary `coordinator run` or `resume`, in a session of its own.

A run's memory, or its end, is nothing to the coordinator that stays up, and the process lives on where that one is
killed. It holds a lock from its first moment to its last: as long as the lock is held, the submission has a process,
and gets no second one, long before the run's own lease is there.
"""

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.errors import RunError
from coordinator.store.private_files import private_folder, private_opener
from protos.refusal import printable

HELD: Final = "held"
PROCESS: Final = "process"
LOG: Final = "log.txt"
PLAN: Final = "plan.toml"
RUN: Final = "run"
WORK: Final = "work"
COMMAND: Final = (
    sys.executable,
    "-P",
    "-c",
    "import sys; from coordinator.console.command import main; sys.exit(main())",
)
LARGEST_LOG: Final = 8 * 1024
"""The most bytes at the end of a log in which its last sentence is looked for."""
LONGEST_WORDS: Final = 1500
_SENTENCE_LINES: Final = 3


@dataclass(slots=True)
class Child:
    """A submission's process. own: None where an earlier coordinator started it, which then cannot be waited for."""

    folder: Path
    own: "subprocess.Popen[bytes] | None" = None
    interrupts: int = 0

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        if self.own is not None:
            return self.own.poll() is not None
        return not alive(self.folder)

    @property
    def code(self) -> int | None:
        """The exit code of a process that ended, negative for a signal; None where nobody knows it."""
        return None if self.own is None else self.own.returncode

    def interrupt(self) -> None:
        """Ask the process to stop when the block in hand is stored; the second time, at once."""
        self.interrupts += 1
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process whatever it does."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.own is not None:
            self.own.send_signal(number)
        elif (process := process_of(self.folder)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)


def start(folder: Path, home: Path, arguments: Sequence[str]) -> Child:
    """Start a submission's process. home: for `$CONCLAVE_HOME`. Raises `RunError` where it has one already, or where
    none can be started.
    """
    try:
        private_folder(folder / WORK)
        held = os.open(folder / HELD, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}.") from None
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{folder} has a process already.", code="C704") from None
        with open(folder / LOG, "ab", opener=private_opener) as log:
            own = subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=folder / WORK,  # empty: no relative name in a plan means a file of this machine
                env=environment(home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(held,),
                start_new_session=True,
            )
        (folder / PROCESS).write_text(str(own.pid))
        with contextlib.suppress(OSError):  # where memory ends, a run ends, and not the coordinator
            Path(f"/proc/{own.pid}/oom_score_adj").write_text("500")
        return Child(folder, own)
    except OSError as error:
        raise RunError(f"a process for {folder} cannot be started: {error.strerror}.") from None
    finally:
        os.close(held)  # the process has its own


def environment(home: Path) -> dict[str, str]:
    """The environment of a process whose runs are kept in `home`."""
    return os.environ | {"CONCLAVE_HOME": str(home), "PYTHONUNBUFFERED": "1"}


def alive(folder: Path) -> bool:
    """Whether a submission's process lives, whoever started it."""
    try:
        held = os.open(folder / HELD, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(held)
    return False


def process_of(folder: Path) -> int | None:
    """The id of a submission's living process."""
    try:
        found = int((folder / PROCESS).read_text())
    except (OSError, ValueError):
        return None
    return found if alive(folder) else None


def last_words(folder: Path, *hidden: Path) -> str:
    """The last lines that a process wrote, in which an error is told; paths of this machine are cut. Empty for none."""
    try:
        with (folder / LOG).open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LARGEST_LOG))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    lines = [line.strip() for line in lines if line.strip()]
    return told(" ".join(lines[-_SENTENCE_LINES:])[-LONGEST_WORDS:], *hidden)


def told(sentence: str, *hidden: Path) -> str:
    """A run's sentence as its submitter reads it: without this machine's paths, and with the right command."""
    for place in sorted(hidden, key=lambda each: -len(str(each))):
        sentence = sentence.replace(f"{place}/", "")
        sentence = re.sub(rf"{re.escape(str(place))}(?![\w.-])", "the coordinator's folder", sentence)
    sentence = re.sub(r"coordinator resume \S+", "submit the plan again", " ".join(sentence.split()))
    return printable(sentence)
