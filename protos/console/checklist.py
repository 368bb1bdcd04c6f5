"""The checklists of both `check` commands: one line per check, and this machine's free memory and disk."""

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

CGROUPS: Final = Path("/sys/fs/cgroup")
LARGEST_DIFFERENCE: Final = 60.0
"""The largest difference, in seconds, between two clocks; above it, one of them is said to be wrong."""


class State(StrEnum):
    """The result of a check. A warning does not stop a run, and a checklist with nothing worse passes."""

    OK = "ok"
    WARNING = "warning"
    TO_DO = "to do"


@dataclass(frozen=True, slots=True)
class Line:
    """One check. said: what was found, or what to do about it; one line."""

    what: str
    state: State
    said: str


def ok(what: str, said: str) -> Line:
    """A check that passed."""
    return _line(what, State.OK, said)


def warning(what: str, said: str) -> Line:
    """A check that passed, with something to know."""
    return _line(what, State.WARNING, said)


def to_do(what: str, said: str) -> Line:
    """A check that failed: no run works, or works well, until it is mended."""
    return _line(what, State.TO_DO, said)


def passed(lines: Iterable[Line]) -> bool:
    """Whether nothing is left to do."""
    return all(line.state is not State.TO_DO for line in lines)


def shown(lines: Sequence[Line]) -> list[str]:
    """The lines as text in columns."""
    width = max((len(line.what) for line in lines), default=0)
    return [f"{line.state:<7}  {line.what:<{width}}  {line.said}" for line in lines]


def record(lines: Sequence[Line]) -> dict[str, Any]:
    """The lines for other programs."""
    return {
        "ok": passed(lines),
        "lines": [{"what": line.what, "state": str(line.state), "said": line.said} for line in lines],
    }


def free_disk(folder: Path) -> int:
    """Bytes that may still be written in a folder, or in its nearest existing parent."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    return shutil.disk_usage(there).free


def free_memory() -> int | None:
    """Bytes of memory available without swapping; None where the system does not say.

    It is the smaller of the machine's free memory and what this process' control group may still take.
    """
    found = [free for free in (_of_machine(), _of_group()) if free is not None]
    return min(found, default=None)


def size(amount: float) -> str:
    """A number of bytes as text, in decimal units."""
    for unit, one in (("GB", 1e9), ("MB", 1e6)):
        if amount >= one:
            return f"{amount / one:.{0 if amount >= 10 * one else 1}f} {unit}"
    return f"{max(0, round(amount / 1e3))} kB"


def apart(ahead: float) -> tuple[str, bool]:
    """What to say of a clock that is so many seconds ahead of this machine's, and whether that is too far."""
    if abs(ahead) < 0.05:
        return "within 0.1 s of this machine's", False
    way = "ahead of" if ahead > 0 else "behind"
    return f"{abs(ahead):,.{0 if abs(ahead) >= 10 else 1}f} s {way} this machine's", abs(ahead) > LARGEST_DIFFERENCE


def _line(what: str, state: State, said: str) -> Line:
    return Line(what, state, " ".join(said.split()))


def _of_machine() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _of_group() -> int | None:
    """The free memory of a control group (version 2, otherwise 1); file caches that it can reclaim count as free."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            most, taken = int((CGROUPS / limit).read_text()), int((CGROUPS / used).read_text())
            statistics = ((CGROUPS / used).with_name("memory.stat")).read_text()
        except (OSError, ValueError):  # no such version, or "max": no limit
            continue
        fields = dict(line.split()[:2] for line in statistics.splitlines() if line.strip())
        cached = int(fields.get("total_inactive_file", fields.get("inactive_file", "0")))
        return max(0, most - taken + cached)
    return None
