"""What `make demo` costs: seconds by stage, processor seconds and memory of all its processes, what is left.

    python benchmarks/demo.py [--runs 3] [--plan FILE] [--beside CHECKOUT] [--out FILE]

beside: another checkout, of an earlier commit, whose runs alternate with this one's; only their ratio says something on
a busy machine. Stages before the run's own are the import of the API, the public preparation, the price, and the wait
until parties listen. Processor seconds are those of the command and everything below it. Memory is the sum over the
same processes, sampled once a second: proportional set size (PSS) where the system tells it, which counts shared pages
once; resident set size (RSS), which counts them in every process, beside it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
PLAN = ROOT / "examples/dped/demo.toml"
INTERVAL = 0.2
"""Seconds between two looks at all processes. Their memory is looked at every fifth time: that takes a core 0.1 s."""
LOG = "log.jsonl"
"""Where the events of a run lie in its folder."""
MIB = 2**20


TIMED = """
import json, sys, time
began = time.time()
import coordinator.api as api, coordinator.console.command as command
import deploy.launch as launch
told = {"import": time.time() - began}
def timed(module, name, stage):
    function = getattr(module, name)
    def wrapped(*given, **named):
        since = time.time()
        try:
            return function(*given, **named)
        finally:
            told[stage] = told.get(stage, 0.0) + time.time() - since
    setattr(module, name, wrapped)
timed(api, "prepared", "prepare")
timed(api, "price_plan", "price")
launched = launch._launched
class Launched:
    def __init__(self, *given):
        self.context = launched(*given)
    def __enter__(self):
        since = time.time()
        found = self.context.__enter__()
        told["launch"] = time.time() - since
        return found
    def __exit__(self, *error):
        since = time.time()
        try:
            return self.context.__exit__(*error)
        finally:
            told["stop"] = time.time() - since
launch._launched = Launched
place = sys.argv.pop(1)
code = command.main()
json.dump(told, open(place, "w"))
sys.exit(code)
"""
"""The command with its stages timed, in whatever checkout it is run. Its first argument: the file for the times."""


def measure(folder: Path, plan: Path, checkout: Path) -> dict[str, Any]:
    """Run the plan once below `folder` with the code of a checkout."""
    command = [sys.executable, "-c", TIMED, str(folder / "told.json")]
    environment = os.environ | {
        "CONCLAVE_HOME": str(folder / "home"),
        "PYTHONPATH": str(checkout),
        "PYTHONUNBUFFERED": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    began = time.time()
    process = subprocess.Popen(
        [*command, "run", str(plan), "--json", "--log-json", "--output", str(folder / "run")],
        stdout=subprocess.PIPE,
        stderr=(folder / LOG).open("w"),
        text=True,
        env=environment,
        cwd=checkout,
    )
    processor: dict[int, float] = {}
    roles: dict[int, str] = {}
    seen: dict[int, psutil.Process] = {}
    peak = {"pss": 0, "rss": 0, "processes": 0}
    root = psutil.Process(process.pid)
    for looks in count():
        if process.poll() is not None:
            break
        family = _family(root)
        seen |= {each.pid: each for each in family}
        processor |= {each.pid: spent for each in family if (spent := _processor(each)) is not None}
        roles |= {each.pid: role for each in family if (role := _role(each, root.pid))}
        time.sleep(INTERVAL)
        if looks % 5:
            continue
        pss, rss = zip(*(_memory(each) for each in family), strict=True) if family else ((0,), (0,))
        peak = {
            "pss": max(peak["pss"], sum(pss)),
            "rss": max(peak["rss"], sum(rss)),
            "processes": max(peak["processes"], len(family)),
        }
    seconds = time.time() - began
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    if process.returncode != 0:
        raise SystemExit("the demo failed; run it by hand to see why: make demo")
    time.sleep(1.0)
    left = [each.pid for each in seen.values() if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    result = json.loads(lines[-1])
    before = json.loads((folder / "told.json").read_text())
    report = subprocess.run(
        [*command, "report", str(folder / "run"), "--json"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=checkout,
        check=True,
    )
    stages = json.loads(report.stdout.splitlines()[-1])["stages"]
    return {
        "seconds": seconds,
        "ready_seconds": _ready(folder / "run") - began,
        "peak_pss_mib": peak["pss"] / MIB,
        "peak_rss_mib": peak["rss"] / MIB,
        "processes": peak["processes"],
        "left_running": len(left),
        "processor_seconds": sum(processor.values()),
        "processor_seconds_by_role": {
            role: round(sum(spent for pid, spent in processor.items() if roles.get(pid) == role), 2)
            for role in sorted(set(roles.values()))
        },
        "stages": {name: round(seconds, 3) for name, seconds in before.items()}
        | {name: stage["seconds"] for name, stage in stages.items()},
        "epsilon": result["epsilon"],
        "metrics": result["metrics"],
    }


def _role(process: psutil.Process, coordinator: int) -> str:
    """What a process is there for: the coordinator, a party, its training, what trainings are forked from, or Ray."""
    if process.pid == coordinator:
        return "coordinator"
    try:
        line = " ".join(process.cmdline())
        above = process.parent()
        forked = (
            "party.tasks.nursery" in line and above is not None and "party.tasks.nursery" in " ".join(above.cmdline())
        )
    except psutil.Error:
        return ""
    if not line:  # it is ending
        return ""
    if "party.tasks.process" in line or forked:
        return "training"
    if "party.tasks.nursery" in line:
        return "nursery"
    of_ray = "ray::" in line and "Agent" not in line
    return "party" if of_ray or "PartyActor" in line or "default_worker" in line else "ray"


def _processor(process: psutil.Process) -> float | None:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return None
    return times.user + times.system


def _family(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _memory(process: psutil.Process) -> tuple[int, int]:
    try:
        full = process.memory_full_info()
        return getattr(full, "pss", full.rss), full.rss
    except psutil.Error:
        return 0, 0


def _ready(run: Path) -> float:
    """When the last party had joined."""
    import sqlite3

    with sqlite3.connect(run / "run.sqlite") as connection:
        return float(connection.execute("SELECT finished FROM stages WHERE name = 'join'").fetchone()[0])


def main() -> None:
    """Print one line a run, and the medians; with --out write everything as JSON."""
    parser = argparse.ArgumentParser(description="What make demo costs.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--plan", type=Path, default=PLAN)
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turn")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    checkouts = {"now": ROOT} | ({} if arguments.beside is None else {"before": arguments.beside.absolute()})
    results: dict[str, list[dict[str, Any]]] = {which: [] for which in checkouts}
    for number in range(arguments.runs):
        for which, checkout in checkouts.items():
            with tempfile.TemporaryDirectory(prefix="conclave-bench-") as folder:
                one = measure(Path(folder), arguments.plan.absolute(), checkout)
            results[which].append(one)
            print(
                f"{which} {number + 1}: {one['seconds']:.1f} s ({one['processor_seconds']:.1f} of processors), parties "
                f"ready after {one['ready_seconds']:.1f} s, peak {one['peak_pss_mib']:.0f} MiB "
                f"(RSS {one['peak_rss_mib']:.0f}) in {one['processes']} processes, left running: {one['left_running']}",
                flush=True,
            )
            if arguments.out:
                arguments.out.write_text(json.dumps(told(results), indent=2) + "\n", encoding="utf-8")
    for which, medians in told(results)["median"].items():
        print(f"{which}: {json.dumps(medians)}")


def told(results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """All runs by checkout, and the medians of each."""
    names = ("seconds", "processor_seconds", "ready_seconds", "peak_pss_mib")
    medians = {
        which: {name: round(statistics.median(each[name] for each in runs), 2) for name in names}
        | {
            "stages": {
                name: round(statistics.median(each["stages"][name] for each in runs), 2) for name in runs[0]["stages"]
            }
        }
        for which, runs in results.items()
        if runs
    }
    return {"median": medians, "runs": results}


if __name__ == "__main__":
    main()
