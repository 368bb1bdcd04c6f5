"""What both `check` commands are made of: a line for each thing that was looked at, and what this machine has free."""

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

CGROUPS: Final = Path("/sys/fs/cgroup")


class State(StrEnum):
    """How a thing was found. A warning does not stop a run, and a check that has nothing worse passes."""

    OK = "ok"
    WARNING = "warning"
    TO_DO = "to do"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at. said: what was found, or what to do about it; one line."""

    what: str
    state: State
    said: str


def ok(what: str, said: str) -> Line:
    """A thing that is as it should be."""
    return _line(what, State.OK, said)


def warning(what: str, said: str) -> Line:
    """A thing to know of, with which a run goes."""
    return _line(what, State.WARNING, said)


def to_do(what: str, said: str) -> Line:
    """A thing with which no run goes, or goes well."""
    return _line(what, State.TO_DO, said)


def passed(lines: Iterable[Line]) -> bool:
    """Whether nothing is left to do."""
    return all(line.state is not State.TO_DO for line in lines)


def shown(lines: Sequence[Line]) -> list[str]:
    """The lines for people, in columns."""
    width = max((len(line.what) for line in lines), default=0)
    return [f"{line.state:<7}  {line.what:<{width}}  {line.said}" for line in lines]


def record(lines: Sequence[Line]) -> dict[str, Any]:
    """The lines for programs."""
    return {
        "ok": passed(lines),
        "lines": [{"what": line.what, "state": str(line.state), "said": line.said} for line in lines],
    }


def free_disk(folder: Path) -> int:
    """Bytes that may still be written in a folder, or in the nearest one above it that exists."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    return shutil.disk_usage(there).free


def free_memory() -> int | None:
    """Bytes of memory that can be had without swapping; None where the system does not say.

    The least of what the machine has and of what the control group of this process may still take.
    """
    found = [free for free in (_of_machine(), _of_group()) if free is not None]
    return min(found, default=None)


def size(amount: float) -> str:
    """Bytes for people, in decimal units."""
    for unit, one in (("GB", 1e9), ("MB", 1e6)):
        if amount >= one:
            return f"{amount / one:.{0 if amount >= 10 * one else 1}f} {unit}"
    return f"{max(0, round(amount / 1e3))} kB"


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
    """What a control group (version 2, else 1) leaves; file caches that it would give back count as free."""
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
