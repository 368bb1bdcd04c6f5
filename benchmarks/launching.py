"""What starting parties costs: on a Ray of the run's own, and on a cluster that runs already, side by side.

    python benchmarks/launching.py [--parties 2,4,8,16,32] [--out FILE]

The cluster is three machines that are this one, at loopback addresses of their own. First, from `coordinator run` to
the first answer of a party, in a small plan; then, for more and more parties, the seconds until all of them listen, and
the memory of a party's process.
"""

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

BINARIES = Path(sys.executable).parent
MACHINES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
REPEATS = 3
STARTS = 3
"""How often a machine's Ray is started before the cluster is given up."""


@contextmanager
def cluster(folder: Path, machines: Sequence[str] = MACHINES) -> Iterator[str]:
    """The head's address of a cluster of machines, of which nothing is left."""
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        head = f"{machines[0]}:{probe.getsockname()[1]}"
    with ExitStack() as stack:
        for host in machines:
            role = [f"--address={head}"]
            if host == machines[0]:
                role = ["--head", f"--port={head.split(':')[1]}", f"--temp-dir={folder / 'r'}"]
            usual = ["--include-dashboard=false"] if host == machines[0] else []
            command = [BINARIES / "ray", "start", f"--node-ip-address={host}", *role, *usual, "--num-cpus=1", "--block"]
            for _ in range(STARTS):
                process = subprocess.Popen(
                    command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
                )
                stack.callback(_end, process)
                if _joined(head, host, process):
                    break
            else:
                raise SystemExit(f"{host} did not join the cluster")
        yield head


def _end(process: "subprocess.Popen[bytes]") -> None:
    family: list[Any] = [] if process.poll() is not None else psutil.Process(process.pid).children(recursive=True)
    for each in (*family, process):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


def _joined(head: str, host: str, process: "subprocess.Popen[bytes]") -> bool:
    """Wait until a machine is one of the cluster; False where its Ray ended instead, as on a very busy machine."""
    code = f"import ray; ray.init(address={head!r}, log_to_driver=False); "
    code += f"assert any(n['NodeManagerAddress'] == {host!r} and n['Alive'] for n in ray.nodes())"
    for _ in range(60):
        with contextlib.suppress(subprocess.TimeoutExpired):
            asked = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30, check=False)
            if asked.returncode == 0:
                return True
        if process.poll() is not None:
            return False
        time.sleep(0.5)
    return False


def launched(folder: Path, parties: int, head: str | None) -> dict[str, float]:
    """Seconds until so many parties listen and until they are gone, and the mean memory of one [MiB]."""
    from coordinator.identity import provisioning
    from coordinator.transport.launchers import Cluster, LaunchRequest
    from deploy.launch import RayLauncher

    (folder / "notes.jsonl").write_text('{"text": "apple bread"}\n' * 100)
    provisioning.ensure(folder / "identity")
    tables = {
        f"party-{number:02}": {
            "shard": {"source": "notes.jsonl", "part": {"parts": parties, "part": number}},
            "policy": {"epsilon": 8.0, "delta": 1e-6, "recipes": ["dped"], "simulation": True},
        }
        for number in range(parties)
    }
    kept = Path(tempfile.mkdtemp(dir=folder)) / "parties"
    vouch = partial(provisioning.vouched, folder / "identity")
    request = LaunchRequest(tables, kept, folder, vouch, None if head is None else Cluster(head))
    started = time.monotonic()
    with RayLauncher().launch(request):
        listening = time.monotonic()
        memory = [
            each.memory_full_info().uss / 2**20
            for each in psutil.process_iter(["cmdline"])
            if " ".join(each.info["cmdline"] or ()).startswith("ray::PartyActor")
        ]
    ended = time.monotonic()
    return {"start": listening - started, "end": ended - listening, "memory": float(np.mean(memory))}


PLAN = """\
[run]
name = "small"
recipe = "dped"
seed = 7

[privacy]
epsilon = 8.0
delta = 1e-6
unit = "record"
record = "document"
trust = "trusted-aggregator"

[federation]
launch = "ray"

[federation.shards]
source = "documentation"
split = { by = "package", parties = 4 }

[vocabulary]
source = "documentation-topics"
size = 200

[dped]
signals = ["moments"]
dimension = 20

[student]
publish = "published"
"""


def first_answer(folder: Path, head: str | None) -> float:
    """Seconds from the command to the end of the first answer that a party gave."""
    (folder / "plan.toml").write_text(PLAN)
    traces, output = folder / "traces.jsonl", folder / "out"
    traces.unlink(missing_ok=True)
    shutil.rmtree(output, ignore_errors=True)
    began = time.time()
    on = [] if head is None else ["--ray-address", head]
    subprocess.run(
        [BINARIES / "coordinator", "run", folder / "plan.toml", "--output", output, "--traces", traces, *on],
        env={**os.environ, "CONCLAVE_HOME": str(folder / "home")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return min(answers(traces)) - began


def answers(traces: Path) -> Iterator[float]:
    """When answers had come, in seconds since 1970, by what a run wrote of itself."""
    for line in traces.read_text().splitlines():
        for resource in json.loads(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    if span["name"] == "call Answer":
                        yield int(span["endTimeUnixNano"]) / 1e9


def main() -> None:
    """Measure and print, and write what was measured where --out says."""
    parser = argparse.ArgumentParser(description="Measure how long parties take to start, embedded and on a cluster.")
    parser.add_argument("--parties", default="2,4,8,16,32")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cr-", dir="/tmp"))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the machines of the cluster end too
    answers: dict[str, list[float]] = {"embedded": [], "cluster": []}
    rows = []
    try:
        with cluster(folder) as head:
            for _ in range(REPEATS):
                for kind, where in (("embedded", None), ("cluster", head)):
                    answers[kind].append(first_answer(folder, where))
            for parties in (int(each) for each in options.parties.split(",")):
                row: dict[str, Any] = {"parties": parties}
                for kind, where in (("embedded", None), ("cluster", head)):
                    row[kind] = {name: round(value, 2) for name, value in launched(folder, parties, where).items()}
                rows.append(row)
                print(json.dumps(row), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    record = {
        "first_answer_seconds": {kind: sorted(round(each, 2) for each in found) for kind, found in answers.items()},
        "launching": rows,
    }
    print(json.dumps(record["first_answer_seconds"]))
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
