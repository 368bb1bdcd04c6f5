"""The fault tests again and again with new seeds, for so many minutes: what fails once in a hundred shows here.

    python benchmarks/soak.py [--minutes 30] [--rounds N] [--at-once 1] [--points 20] [--seed N] [--only EXPRESSION]
                              [--out FILE]

Prints one line a round, and at the end a table: for each test how often it ran, how often it failed, and how long it
took. Ends with 1 when anything failed; the seeds of the rounds that did are in the table, for `--seed`. Rounds that run
at once disturb each other, as a busy machine would.
"""

import argparse
import itertools
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests/faults"
SHOWN = 5
"""Failures that are named as soon as their round is over: where many fail, the first say why."""


@dataclass
class Tally:
    """How one test did over all rounds."""

    seconds: list[float] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    why: str = ""


class Round:
    """One round of the fault tests, running; its results are in `report` when it has ended."""

    def __init__(self, seed: int, points: int, only: str):
        self.seed = seed
        self.began = time.monotonic()
        self.asked_to_end = False
        self._folder = tempfile.TemporaryDirectory(prefix="conclave-soak-")
        self.report = Path(self._folder.name) / "report.xml"
        command = [sys.executable, "-m", "pytest", str(TESTS), "-q", "-m", "slow", f"--junitxml={self.report}"]
        command += ["-k", only] if only else []
        environment = os.environ | {"CONCLAVE_FAULT_SEED": str(seed), "CONCLAVE_FAULT_POINTS": str(points)}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **quiet)

    def running(self) -> bool:
        """Whether its tests are not done."""
        return self._process.poll() is None

    def end(self) -> None:
        """Ask it to end what it started and to write what it has."""
        if self.running() and not self.asked_to_end:
            self.asked_to_end = True
            self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Remove its folder."""
        self._folder.cleanup()


def tallied(report: Path, seed: int, tallies: dict[str, Tally]) -> tuple[int, list[str]]:
    """Add a round's report to the tallies; how many tests ran in it, and what failed and why, in the order of tests."""
    if not report.exists():
        return 0, []
    ran, failures = 0, []
    for case in ElementTree.parse(report).iter("testcase"):
        tally = tallies.setdefault(str(case.get("name")), Tally())
        tally.seconds.append(float(case.get("time", "0")))
        ran += 1
        problem = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        if problem is not None:
            tally.failed.append(seed)
            tally.why = _shortened(problem.get("message") or "")
            failures.append(f"{case.get('name')}: {tally.why}")
    return ran, failures


def _shortened(message: str) -> str:
    """A message on one line: its beginning, and its end, which is what was said last."""
    line = " ".join(message.split())
    return line if len(line) <= 400 else f"{line[:150]} ... {line[-250:]}"


def table(tallies: dict[str, Tally]) -> Table:
    """The tests, those that failed first."""
    made = Table(title="faults")
    for column in ("test", "ran", "failed", "seconds", "seeds"):
        made.add_column(column, justify="left" if column in ("test", "seeds") else "right", overflow="fold")
    for name, tally in sorted(tallies.items(), key=lambda item: (-len(item[1].failed), item[0])):
        seeds = " ".join(map(str, tally.failed))
        seconds = f"{statistics.median(tally.seconds):.1f}"
        made.add_row(name, str(len(tally.seconds)), str(len(tally.failed)), seconds, seeds)
    return made


def main() -> int:
    """Play rounds until the time is over."""
    parser = argparse.ArgumentParser(description="The fault tests again and again, with new seeds.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, help="end after so many, if the minutes are not over before")
    parser.add_argument("--at-once", type=int, default=1, help="rounds beside each other")
    parser.add_argument("--points", type=int, default=20, help="random points of each kind in a round")
    parser.add_argument("--seed", type=int, help="of the first round; by default drawn at random")
    parser.add_argument("--only", default="", help="which tests, as pytest's -k")
    parser.add_argument("--out", type=Path, help="write the tallies as JSON")
    asked = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has those in the background ignore it
    until = time.monotonic() + 60 * asked.minutes
    seed = secrets.randbelow(10**6) if asked.seed is None else asked.seed
    tallies: dict[str, Tally] = {}
    done = 0
    running: list[Round] = []
    seeds = itertools.count(seed) if asked.rounds is None else iter(range(seed, seed + asked.rounds))
    waiting = next(seeds, None)
    while running or (waiting is not None and time.monotonic() < until):
        try:
            if waiting is not None and len(running) < asked.at_once and time.monotonic() < until:
                running.append(Round(waiting, asked.points, asked.only))
                waiting = next(seeds, None)
            time.sleep(0.5)
        except KeyboardInterrupt:
            until = time.monotonic()
        for each in list(running):
            if each.running():
                if time.monotonic() >= until:
                    each.end()
                continue
            running.remove(each)
            ran, failures = tallied(each.report, each.seed, tallies)
            each.close()
            done += 1
            ending = ", ended early" if each.asked_to_end else ""
            seconds = time.monotonic() - each.began
            counts = f"{ran} tests, {len(failures)} failed"
            print(f"round {done}, seed {each.seed}: {counts}, {seconds:.0f} s{ending}", flush=True)
            for line in failures[:SHOWN]:
                print(f"  {line}", flush=True)
    Console().print(table(tallies))
    for name, tally in tallies.items():
        if tally.why:
            print(f"{name}: {tally.why}")
    if asked.out:
        found = {name: {"seconds": each.seconds, "failed": each.failed} for name, each in tallies.items()}
        told = {"rounds": done, "at_once": asked.at_once, "points": asked.points, "tests": found}
        asked.out.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return 1 if not tallies or any(each.failed for each in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
