"""Teachers trained on several machines of a party's own site, some of them on each machine.

Only the path of a file is sent to a machine, and only that it is done comes back. Jobs, with their secrets, and
answers, unbounded and in clear, lie in the party's own folder, which those machines therefore share, as they do the
shard. They are removed when all parts are together.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.joint import TeacherSignal
from party.errors import TrainingError
from party.tasks.job import Failure, Job, PartFailed

_ENDING: Final = ".failure"


class Spreader(Protocol):
    """Calls `do` on the machines of a site."""

    def done(self, address: str, jobs: Sequence[str]) -> Iterator[str]:
        """Yield the paths of jobs, each when it is done. address: of the site's cluster, "auto" or "HOST:PORT".

        Raises `ConclaveError` where there is no such cluster, or a job ended without an outcome.
        """
        ...


def find_spreader() -> Spreader:
    """The installed spreader: `ray`, from the entry-point group `conclave.spreaders`."""
    (point,) = entry_points(group="conclave.spreaders", name="ray")
    spreader: Spreader = point.load()()
    return spreader


def gathered(
    job: Job,
    teachers: int,
    progress: Callable[[int], None],
    here: Callable[[range, Callable[[int], None]], TeacherSignal],
    take_census: Callable[[], None],
) -> TeacherSignal:
    """All teachers' answers in order: from this process, or in parts from the site's machines.

    here: computes the answers of some teachers, and is told whom to report percentages to. take_census: reads the shard
    only for its census, since no part of a spread job has one. Memory: all answers, twice while they are joined. Raises
    whatever a part raised.
    """
    if job.spread is None:
        return here(range(teachers), progress)
    if job.census:
        take_census()
    result = Path(job.result)
    edges = np.linspace(0, teachers, min(job.spread.tasks, teachers) + 1).astype(int).tolist()
    parts = {}
    for first, end in pairwise(edges):
        own = result.with_name(f".{result.stem}.{first}-{end}.npz")
        parts[str(own.with_suffix(".job"))] = replace(
            job, part=(first, end), spread=None, census="", result=str(own), parent=0
        )
    try:
        for path, part in parts.items():
            _write(Path(path), part.to_json())
        for count, path in enumerate(find_spreader().done(job.spread.address, list(parts)), 1):
            _check(Path(path))
            progress(min(99, 100 * count // len(parts)))
        return _together([Path(part.result) for part in parts.values()])
    finally:
        for path, part in parts.items():
            for each in (path, path + _ENDING, part.result):
                Path(each).unlink(missing_ok=True)


def do(path: str) -> None:
    """Run the job whose file is at a path, in a process of its own: niced, with limited memory, and ended with this
    one.

    Its outcome lies beside the job when this returns. Raises `TrainingError` where this machine does not see the job.
    """
    place = Path(path)
    try:
        job = Job.from_json(place.read_bytes())
    except OSError as error:
        raise TrainingError(
            f"a machine of the site cannot read {place.parent} ({error.strerror}). What the party keeps (`folder`) and "
            "its shard have to lie on storage that all its machines share."
        ) from None
    log = os.open(Path(job.cache).with_name("training.log"), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    with os.fdopen(log, "ab") as own:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "party.tasks.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=own,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        failure = Failure("", "training ended without a result. Its own log says why.")
        with process:
            process.stdin.write(replace(job, parent=os.getpid()).to_json().encode() + b"\n")
            process.stdin.flush()  # stays open to the end: when it closes, the process takes this one for ended
            for line in process.stdout:
                said = json.loads(line)
                if "kind" in said:
                    failure = Failure(**said)
            process.wait()
    if process.returncode != 0:
        _write(Path(path + _ENDING), json.dumps(failure._asdict()))


def save_answers(path: Path, signal: TeacherSignal) -> None:
    """Write answers completely or not at all, with mode 0600."""
    part = path.with_name(f"{path.name}.part")
    with os.fdopen(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        given: dict[str, Any] = {"votes": signal.votes, "states": signal.states}
        np.savez(file, **{name: each for name, each in given.items() if each is not None})
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _together(paths: Sequence[Path]) -> TeacherSignal:
    kept: dict[str, list[NDArray[Any]]] = {"votes": [], "states": []}
    for path in paths:
        with np.load(path, allow_pickle=False) as found:
            for name in found.files:
                kept[name].append(found[name])
    votes, states = (np.concatenate(each) if each else None for each in (kept["votes"], kept["states"]))
    return TeacherSignal(votes, states)


def _check(path: Path) -> None:
    """Raises `PartFailed` with the reason that a part left instead of answers."""
    with contextlib.suppress(FileNotFoundError):
        failure = Failure(**json.loads(Path(f"{path}{_ENDING}").read_bytes()))
        raise PartFailed(failure)


def _write(path: Path, content: str) -> None:
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
