"""What the tests cost: seconds of the clock, seconds of a processor, and which quick tests are not quick.

    python benchmarks/suite.py [--marks "not slow"] [--out FILE] [TESTS ...]

Runs the suite as `make test` does, here, and adds up the processor seconds of each test and of the processes that it
waited for; fixtures count where they are first asked for. Importing and collecting are in the total alone.
A test of more than 0.3 processor seconds should be marked slow; each that is not is printed.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUICK = 0.3
CLOCK = """
import json, os, resource, uuid
import pytest

ROWS = {}


def spent():
    of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in of)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    before = spent()
    try:
        return (yield)
    finally:
        ROWS[item.nodeid] = spent() - before


def pytest_sessionfinish(session):
    with open(os.path.join(os.environ["CLOCKED"], uuid.uuid4().hex), "w") as file:
        json.dump(ROWS, file)
"""


def main() -> None:
    """Run the suite once, print what it cost, and with --out write it down."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--marks", default="not slow")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="suite-") as made:
        folder = Path(made)
        (folder / "suite_clock.py").write_text(CLOCK)
        (folder / "rows").mkdir()
        environment = os.environ | {"PYTHONPATH": made, "CLOCKED": str(folder / "rows"), "PYTHONDONTWRITEBYTECODE": ""}
        command = [sys.executable, "-m", "pytest", "-n", "logical", "--maxprocesses", "4", "--dist", "loadfile"]
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*command, "-p", "suite_clock", "-m", given.marks, *given.tests], cwd=ROOT, env=environment
        )
        seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        rows: dict[str, float] = {}
        for path in (folder / "rows").iterdir():
            rows |= json.loads(path.read_text())
    longest = sorted(rows.items(), key=lambda row: -row[1])
    over = [(name, round(cost, 2)) for name, cost in longest if cost > QUICK]
    record = {
        "marks": given.marks,
        "tests": len(rows),
        "seconds": round(seconds),
        "processor_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime),
        "processor_seconds_of_tests": round(sum(rows.values())),
        "over": len(over),
        "longest": over[:20],
    }
    for name, cost in over:
        print(f"{cost:6.2f}  {name}")
    print(", ".join(f"{key} {value}" for key, value in record.items() if key != "longest"))
    if given.out:
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
