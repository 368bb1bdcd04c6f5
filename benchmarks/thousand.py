"""Many simulated parties on one machine: seconds until all listen, and whole runs, with the memory of all processes.

    python benchmarks/thousand.py [--listen 32,100] [--runs 100] [--systems counts,steps] [--trust KIND] [--out FILE]

Memory is the PSS of every process of a run together, read twice a second: the largest sum. Seconds of a stage are those
of the run's own store; processor seconds are those of all its processes. `counts` are DPED's pair counts of the
documentation of Python, `steps` are ten steps of federated DP-SGD of the last layer of the packaged MiniLM on SST-2.
On this machine other work may run: processor seconds say more than seconds.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
SST2 = ROOT.parent / "shared" / "data" / "sst2" / "train.jsonl"
PRIVACY = {
    "trusted-aggregator": "",
    "secure-sum": 'trust = "secure-sum"\ndropouts = {dropouts}\ncolluders = 1\n',
}
COUNTS = """\
[run]
name = "counts"
recipe = "dped"
seed = 7
[privacy]
epsilon = 8.0
delta = 1e-6
{privacy}
[federation]
launch = "ray"
{actors}
[federation.shards]
source = "documentation"
split = {{ by = "hash", parties = {parties} }}
[vocabulary]
source = "documentation-topics"
size = 200
[dped]
signals = ["counts"]
dimension = 20
clip = 10.0
[student]
publish = "published"
"""
STEPS = """\
[run]
name = "steps"
recipe = "dp_sgd"
seed = 7
[privacy]
epsilon = 8.0
delta = 1e-5
declared_size = 67000
{privacy}
[federation]
launch = "ray"
{actors}
[federation.shards]
source = "{source}"
label = "label"
split = {{ by = "hash", parties = {parties} }}
[text]
kind = "single"
labels = ["negative", "positive"]
values = ["0", "1"]
longest = 64
[model]
name = "all-MiniLM-L6-v2"
adapt = "head"
[dp_sgd]
form = "federated"
steps = 10
batch = 2000
clip = 1.0
[student]
publish = "published"
"""


class Watch:
    """The processes below one: their memory and processor seconds, until it is closed."""

    def __init__(self, root: int, every: float = 0.5) -> None:
        self._root = psutil.Process(root)
        self._every = every
        self._seconds: dict[int, float] = {}
        self._kinds: dict[str, float] = {}
        self.most = 0.0
        self.at_most: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def seconds(self) -> float:
        """Processor seconds of all processes that were seen."""
        return sum(self._seconds.values())

    def look(self) -> float:
        """MiB of all processes now."""
        kinds: dict[str, float] = {}
        for each in [self._root, *_children(self._root)]:
            try:
                times = each.cpu_times()
                self._seconds[each.pid] = times.user + times.system
                size, kind = pss(each.pid), kind_of(each)
            except (psutil.Error, OSError):
                continue
            kinds[kind] = kinds.get(kind, 0.0) + size
        total = sum(kinds.values())
        if total > self.most:
            self.most, self.at_most = total, {kind: round(size) for kind, size in sorted(kinds.items())}
        return total

    def close(self) -> None:
        """Stop looking."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            self.look()


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def pss(pid: int) -> float:
    """MiB of a process, of what is shared its part."""
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def kind_of(process: psutil.Process) -> str:
    """What a process is for."""
    said = " ".join(process.cmdline())
    for mark, kind in (("ray::", "actors"), ("party.tasks", "training"), ("coordinator", "coordinator")):
        if mark in said:
            return kind
    return "ray" if "ray" in said else "coordinator"


@contextmanager
def watched(root: int) -> Iterator[Watch]:
    """Watch the processes below one while the context lasts."""
    watch = Watch(root)
    try:
        yield watch
    finally:
        watch.close()


def listened(parties: int, parties_per_actor: int | None) -> dict[str, Any]:
    """Seconds until so many parties listen and until they are gone, and the memory of everything between."""
    from coordinator.identity import provisioning
    from coordinator.transport.launchers import LaunchRequest
    from deploy.launch import RayLauncher

    folder = Path(tempfile.mkdtemp(prefix="ct-", dir="/tmp"))
    (folder / "notes.jsonl").write_text('{"text": "apple bread"}\n' * 100)
    provisioning.ensure(folder / "identity")
    policy = {"epsilon": 8.0, "delta": 1e-6, "recipes": ["dped"], "simulation": True}
    tables = {
        f"party-{number:04}": {
            "shard": {"source": "notes.jsonl", "part": {"parts": parties, "part": number}},
            "policy": policy,
        }
        for number in range(parties)
    }
    vouch = partial(provisioning.vouched, folder / "identity")
    request = LaunchRequest(tables, folder / "parties", folder, vouch, parties_per_actor=parties_per_actor)
    before = sum(os.times()[:2])
    began = time.monotonic()
    try:
        with RayLauncher().launch(request):
            listening = time.monotonic()
            watch = Watch(os.getpid(), every=3600.0)
            memory = watch.look()
            seconds, kinds = watch.seconds - before, watch.at_most
            watch.close()
            ending = time.monotonic()
        ended = time.monotonic()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "parties": parties,
        "listen": round(listening - began, 1),
        "processor_seconds": round(seconds, 1),
        "end": round(ended - ending, 1),
        "mebibytes": round(memory),
        "of": kinds,
    }


def ran(parties: int, system: str, trust: str, parties_per_actor: int | None, profile: Path | None) -> dict[str, Any]:
    """One run from command to student: seconds of its stages, and the most memory of all its processes."""
    folder = Path(tempfile.mkdtemp(prefix="ct-", dir="/tmp"))
    actors = "" if parties_per_actor is None else f"parties_per_actor = {parties_per_actor}"
    privacy = PRIVACY[trust].format(dropouts=parties // 20)
    text = {"counts": COUNTS, "steps": STEPS}[system]
    (folder / "plan.toml").write_text(text.format(privacy=privacy, actors=actors, parties=parties, source=SST2))
    profiling = [] if profile is None else ["-m", "cProfile", "-o", str(profile)]
    command = [sys.executable, *profiling, Path(sys.executable).parent / "coordinator", "run", folder / "plan.toml"]
    began = time.monotonic()
    try:
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [*map(str, command), "--output", str(folder / "out")],
                env={**os.environ, "CONCLAVE_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            with watched(process.pid) as watch:
                code = process.wait()
        seconds = time.monotonic() - began
        if code:
            raise SystemExit((folder / "log").read_text()[-3000:])
        from coordinator.publishing.report import statement_of
        from coordinator.store.store import RunStore

        store = RunStore(folder / "out")
        stages = {name: each["seconds"] for name, each in statement_of(store)["stages"].items()}
        store.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "parties": parties,
        "system": system,
        "trust": trust,
        "seconds": round(seconds, 1),
        "processor_seconds": round(watch.seconds, 1),
        "mebibytes": round(watch.most),
        "of": watch.at_most,
        "stages": stages,
    }


def numbers(text: str) -> list[int]:
    """The numbers of a list that commas divide."""
    return [int(each) for each in text.split(",") if each]


def main() -> None:
    """Measure what is asked for; print a line each, and write all where --out says."""
    parser = argparse.ArgumentParser(description="Measure runs of many simulated parties.")
    parser.add_argument("--listen", default="")
    parser.add_argument("--runs", default="")
    parser.add_argument("--systems", default="counts,steps")
    parser.add_argument("--trust", default="trusted-aggregator", choices=sorted(PRIVACY))
    parser.add_argument("--parties-per-actor", type=int)
    parser.add_argument("--profile", type=Path, help="where the coordinator's profile of the last run goes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "listening": [], "runs": []}
    if options.out is not None and options.out.exists():
        record = json.loads(options.out.read_text())

    def keep(kind: str, row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)
        record[kind].append(row)
        if options.out is not None:
            options.out.write_text(json.dumps(record, indent=1) + "\n")

    for parties in numbers(options.listen):
        keep("listening", listened(parties, options.parties_per_actor))
    for parties in numbers(options.runs):
        for system in options.systems.split(","):
            keep("runs", ran(parties, system, options.trust, options.parties_per_actor, options.profile))


if __name__ == "__main__":
    main()
