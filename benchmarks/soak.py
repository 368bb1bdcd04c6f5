"""The fault tests again and again with new seeds, for so many minutes: what fails once in a hundred shows here.

    python benchmarks/soak.py [--minutes 30] [--points 20] [--seed N] [--only EXPRESSION] [--out FILE]

Prints one line a round, and at the end a table: for each test how often it ran, how often it failed, and how long it
took. Ends with 1 when anything failed; the seeds of the rounds that did are in the table, for `--seed`.
"""

import argparse
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


@dataclass
class Tally:
    """How one test did over all rounds."""

    seconds: list[float] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    why: str = ""


def play(seed: int, points: int, only: str, report: Path, limit: float) -> bool:
    """One round of the fault tests; their results are in `report`. False when it was ended before it was done."""
    command = [sys.executable, "-m", "pytest", str(TESTS), "-q", "-m", "slow", f"--junitxml={report}"]
    command += ["-k", only] if only else []
    environment = os.environ | {"CONCLAVE_FAULT_SEED": str(seed), "CONCLAVE_FAULT_POINTS": str(points)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(limit)
        return True
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it then ends what it started and writes what it has
    except KeyboardInterrupt:
        pass  # it was interrupted likewise
    process.wait()
    return False


def tallied(report: Path, seed: int, tallies: dict[str, Tally]) -> tuple[int, int]:
    """Add a round's report to the tallies; how many tests ran in it and how many failed."""
    if not report.exists():
        return 0, 0
    ran = failures = 0
    for case in ElementTree.parse(report).iter("testcase"):
        tally = tallies.setdefault(str(case.get("name")), Tally())
        tally.seconds.append(float(case.get("time", "0")))
        ran += 1
        problem = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        if problem is not None:
            tally.failed.append(seed)
            tally.why = (problem.get("message") or "").splitlines()[0][:200]
            failures += 1
    return ran, failures


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
    parser.add_argument("--points", type=int, default=20, help="random points of each kind in a round")
    parser.add_argument("--seed", type=int, help="of the first round; by default drawn at random")
    parser.add_argument("--only", default="", help="which tests, as pytest's -k")
    parser.add_argument("--out", type=Path, help="write the tallies as JSON")
    asked = parser.parse_args()
    until = time.monotonic() + 60 * asked.minutes
    seed = secrets.randbelow(10**6) if asked.seed is None else asked.seed
    tallies: dict[str, Tally] = {}
    rounds = 0
    whole = True
    while whole and (left := until - time.monotonic()) > 0:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="conclave-soak-") as folder:
            report = Path(folder) / "report.xml"
            whole = play(seed, asked.points, asked.only, report, left)
            ran, failures = tallied(report, seed, tallies)
        rounds += 1
        ending = "" if whole else ", ended early"
        seconds = time.monotonic() - began
        print(f"round {rounds}, seed {seed}: {ran} tests, {failures} failed, {seconds:.0f} s{ending}", flush=True)
        seed += 1
    Console().print(table(tallies))
    for name, tally in tallies.items():
        if tally.why:
            print(f"{name}: {tally.why}")
    if asked.out:
        found = {name: {"seconds": each.seconds, "failed": each.failed} for name, each in tallies.items()}
        asked.out.write_text(json.dumps({"rounds": rounds, "tests": found}, indent=2) + "\n", encoding="utf-8")
    return 1 if not tallies or any(each.failed for each in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
