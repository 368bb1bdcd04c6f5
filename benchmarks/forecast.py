"""What a forecast said and what the run then took: seconds, bytes, and the memory of each kind of process.

    python benchmarks/forecast.py [--out FILE] [WORDS ...]

Forecast and run of each plan one after the other, on text that Python carries. Memory is the largest proportional set
size (PSS) seen of one process of a kind, sampled; the coordinator's is its own process without what Ray starts.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PLAN = """
[run]
name = "forecast"
recipe = "dped"
seed = 7
[privacy]
epsilon = 4.0
delta = 1e-6
unit = "record"
record = "document"
declared_size = 7000
[federation]
launch = "ray"
[federation.shards]
source = "documentation"
split = {{ by = "hash", parties = {parties} }}
[vocabulary]
source = "documentation-topics"
size = {size}
[dped]
signals = {signals}
dimension = {dimension}
teachers_per_party = {teachers}
[evaluation]
source = "documentation-heldout"
"""
CASES: dict[str, dict[str, object]] = {
    "votes and hidden states, 5 parties x 2": {},
    "moments, 4 parties": {"signals": '["moments"]', "parties": 4},
    "counts, 3 parties": {"signals": '["counts"]', "parties": 3, "size": 1500},
    "votes and counts, 2 parties x 8, 3,000 words": {
        "signals": '["votes", "counts"]', "parties": 2, "teachers": 8, "size": 3000,
    },
    "hidden states, 8 parties x 1, dimension 50": {
        "signals": '["hidden"]', "parties": 8, "teachers": 1, "dimension": 50,
    },
}  # fmt: skip
KINDS = {"party.tasks.process": "party training", "PartyActor": "party node"}
SAMPLE_SECONDS = 1.5


def pss(pid: int) -> int:
    """Proportional set size in bytes, 0 for a process that is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 0


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return []
    return [pid for child in children for pid in (child, *descendants(child))]


def watch(pid: int, peaks: dict[str, int], done: threading.Event) -> None:
    """Keep the largest memory of each kind of process below one, until done."""
    while not done.wait(SAMPLE_SECONDS):
        peaks["coordinator"] = max(peaks.get("coordinator", 0), pss(pid))
        for each in descendants(pid):
            try:
                said = Path(f"/proc/{each}/cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            for word, kind in KINDS.items():
                if word in said:
                    peaks[kind] = max(peaks.get(kind, 0), pss(each))


def measured(name: str, settings: dict[str, object], folder: Path) -> dict[str, object]:
    """One row: the plan's forecast beside its run."""
    given = {"parties": 5, "size": 1000, "signals": '["votes", "hidden"]', "dimension": 100, "teachers": 2} | settings
    plan, coordinator = folder / "plan.toml", Path(sys.executable).with_name("coordinator")
    plan.write_text(PLAN.format(**given))
    said = subprocess.run([coordinator, "forecast", plan, "--json"], check=True, capture_output=True, text=True)
    forecast = json.loads(said.stdout.splitlines()[-1])
    peaks: dict[str, int] = {}
    done = threading.Event()
    begun = time.monotonic()
    command = [coordinator, "run", plan, "--output", folder / "run", "--replace", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
        watcher = threading.Thread(target=watch, args=(run.pid, peaks, done))
        watcher.start()
        assert run.stdout is not None
        run.stdout.read()
        code = run.wait()
        seconds = time.monotonic() - begun
        done.set()
        watcher.join()
    if code:
        raise SystemExit(f"the run of {name} failed")
    report = subprocess.run([coordinator, "report", folder / "run", "--json"], capture_output=True, text=True)
    stages = json.loads(report.stdout.splitlines()[-1])["stages"]
    return {
        "plan": name,
        "seconds": {"forecast": round(forecast["seconds"], 1), "measured": round(seconds, 1)},
        "stages": {stage: each["seconds"] for stage, each in stages.items()},
        "bytes": {"forecast": forecast["bytes"], "measured": stages["aggregate"]["result"]["bytes"]},
        "memory_mib": {
            kind: {"bound": round(bound / 2**20), "measured": round(peaks.get(kind, 0) / 2**20)}
            for kind, bound in forecast["memory"].items()
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("names", nargs="*", help="words of the plans to try; all by default")
    given = parser.parse_args()
    names, out = given.names, given.out
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("CONCLAVE_HOME", f"{folder}/home")
        for name, settings in CASES.items():
            if names and not any(each in name for each in names):
                continue
            rows.append(measured(name, settings, Path(folder)))
            print(json.dumps(rows[-1]), flush=True)
    if out is not None:
        out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
