"""What `make demo` costs: seconds, memory of all its processes, seconds until all parties are ready, what is left.

    python benchmarks/demo.py [--runs 3] [--out FILE]

Memory is the sum over the command and everything below it, sampled every 0.1 s: proportional set size (PSS) where the
system tells it, which counts shared pages once; resident set size (RSS), which counts them in every process, beside it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
PLAN = ROOT / "examples/dped/demo.toml"
INTERVAL = 0.1
MIB = 2**20


def measure(folder: Path) -> dict[str, Any]:
    """Run the demo once below `folder`."""
    command = [str(Path(sys.executable).with_name("coordinator")), "run", str(PLAN), "--json"]
    environment = os.environ | {"CONCLAVE_HOME": str(folder / "home"), "PYTHONUNBUFFERED": "1"}
    began = time.time()
    process = subprocess.Popen(
        [*command, "--output", str(folder / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    seen: dict[int, psutil.Process] = {}
    peak = {"pss": 0, "rss": 0, "processes": 0}
    root = psutil.Process(process.pid)
    while process.poll() is None:
        family = _family(root)
        seen |= {each.pid: each for each in family}
        pss, rss = zip(*(_memory(each) for each in family), strict=True) if family else ((0,), (0,))
        peak = {
            "pss": max(peak["pss"], sum(pss)),
            "rss": max(peak["rss"], sum(rss)),
            "processes": max(peak["processes"], len(family)),
        }
        time.sleep(INTERVAL)
    seconds = time.time() - began
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    if process.returncode != 0:
        raise SystemExit("the demo failed; run it by hand to see why: make demo")
    time.sleep(1.0)
    left = [each.pid for each in seen.values() if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    result = json.loads(lines[-1])
    report = subprocess.run(
        [command[0], "report", str(folder / "run"), "--json"],
        capture_output=True,
        text=True,
        env=environment,
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
        "stages": {name: stage["seconds"] for name, stage in stages.items()},
        "epsilon": result["epsilon"],
        "perplexity": result["metrics"]["perplexity"],
        "unigram_floor": result["metrics"]["unigram_floor"],
    }


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
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = []
    for number in range(arguments.runs):
        with tempfile.TemporaryDirectory(prefix="conclave-bench-") as folder:
            results.append(measure(Path(folder)))
        one = results[-1]
        print(
            f"run {number + 1}: {one['seconds']:.1f} s, parties ready after {one['ready_seconds']:.1f} s, "
            f"peak {one['peak_pss_mib']:.0f} MiB (RSS {one['peak_rss_mib']:.0f}) in {one['processes']} processes, "
            f"left running: {one['left_running']}",
            flush=True,
        )
    medians = {
        key: statistics.median(each[key] for each in results) for key in ("seconds", "ready_seconds", "peak_pss_mib")
    }
    print(f"median: {medians['seconds']:.1f} s, {medians['peak_pss_mib']:.0f} MiB")
    if arguments.out:
        arguments.out.write_text(json.dumps({"runs": results, "median": medians}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
