"""What a party still keeps of runs, and how its administrator removes it."""

import time
from dataclasses import dataclass
from pathlib import Path

from party.errors import PartyError
from party.ledger.runs import purge_run, read_runs
from party.store.runs import Runs


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a run. joined_at: seconds since 1970, None when the ledger does not know the run. size: bytes."""

    run: str
    joined_at: float | None
    size: int


def kept(home: Path) -> tuple[Kept, ...]:
    """Runs with a folder, or with noise keys in the ledger. Safe beside a running node. Raises `PartyError`."""
    sizes = Runs(home / "runs").kept() if (home / "runs").is_dir() else {}
    known = {run.id: run for run in read_runs(home / "ledger.sqlite")}
    listed = [run.id for run in known.values() if run.left_at is None or run.id in sizes]
    listed += [run for run in sizes if run not in known]
    return tuple(Kept(run, known[run].joined_at if run in known else None, sizes.get(run, 0)) for run in listed)


def purge(home: Path, run: str) -> None:
    """Remove a run's folder and noise keys, which ends the run here; its charges stay.

    Raises `PartyError`: nothing is kept of such a run, a node holds the folder, or a file cannot be removed.
    """
    there = kept(home)
    if run not in [each.run for each in there]:
        known = ", ".join(each.run for each in there) or "none"
        raise PartyError(f"Nothing is kept here of run {run[:64]}. Runs of which something is: {known}.", code="C702")
    purge_run(home, run)
    runs = Runs(home / "runs")
    runs.drop(run)
    if run in runs.kept():
        raise PartyError(f"Not all files of run {run} could be removed from {home / 'runs'}. Remove its folder there.")


def shown(each: Kept) -> tuple[str, str, str]:
    """Run, when it was joined (local time), and size, for people."""
    joined = "unknown" if each.joined_at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(each.joined_at))
    size = float(each.size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return each.run, joined, f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
