"""Where a real training's time and memory go: by stage, at the coordinator, at a party's node and in its training.

    python benchmarks/training_profile.py [--size 10000] [--signals votes hidden] [--steps N] [--beside FOLDER]
                                          [--out FILE]

Two parties, each a process of its own, hold halves of WikiText-2's articles and train a teacher; the coordinator fits
the public reference to fifty novels, has the teachers asked about every word of the vocabulary (votes among 50 classes,
and hidden states), distils, measures and publishes. Noise is real, the plan is one that a user could write. It needs
CONCLAVE_DATA (or ../shared/data), and is skipped without.

Memory is what is resident, looked at every 20 ms: a stage's peak is the most seen in it. A stage inside another counts
as itself alone. --steps ends every fit after so many: it is ten that L-BFGS remembers, so memory is at its height by
then, and time is per step. --beside names another tree of this project, which is measured in the same way.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CONCLAVE_DATA") or ROOT.parent / "shared/data").absolute()
TREE, MARKS, STEPS = "CONCLAVE_PROFILED_TREE", "CONCLAVE_PROFILE_MARKS", "CONCLAVE_PROFILE_STEPS"
PERIOD = 0.02
CLASSES = 50

COORDINATOR = {
    "coordinator.api.prepared": "public text",
    "coordinator.systems.dped.public._counted": "public counts",
    "coordinator.systems.dped.public._reference": "public reference",
    "coordinator.systems.dped.public._directions": "public directions",
    "coordinator.api.price_plan": "terms",
}
"""Functions that are stages, beside those that a run has itself."""
TRAINING = {
    "party.tasks.process.finished": "read and count",
    "party.tasks.teachers.training.train_teacher": "teachers",
    "party.tasks.teachers.training.votes_of": "answers",
    "party.tasks.teachers.training.hidden_states": "answers",
    "party.tasks.teachers.training.contribution": "bound",
    "party.tasks.process.save_counts": "store",
}

PLAN = """
[run]
name   = "profiled"
recipe = "dped"
seed   = 7

[privacy]
epsilon = 4.0
delta   = 1e-5
unit    = "record"
record  = "document"

[federation]
launch  = "connect"
parties = [{parties}]

[vocabulary]
source = "{data}/novels/*.jsonl"
size   = {size}

[dped]
signals = {signals}
classes = {classes}
teachers_per_party = 1

[evaluation]
source = "heldout.jsonl"
"""

PARTY = """
name = "{name}"
listen = "127.0.0.1:0"
plaintext = true
[shard]
source = "private.jsonl"
part = {{ by = "hash", parts = 2, part = {part}, seed = 7 }}
[policy]
epsilon = 8.0
delta = 1e-5
recipes = ["dped"]
simulation = true
"""


def main() -> int:
    """Measure, print a line a stage, write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=10_000, help="words of the vocabulary")
    parser.add_argument("--signals", nargs="+", default=["votes", "hidden"])
    parser.add_argument("--steps", type=int, help="of every fit, at most; without it as many as a run takes")
    parser.add_argument("--beside", type=Path, help="another tree of this project")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--as", dest="role", choices=["coordinator", "node"], help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    if options.role:
        return act(options.role)
    if rest:
        parser.error(f"there is no {rest[0]}")
    missing = [name for name in ("novels", "wikitext2") if not (DATA / name).is_dir()]
    if missing:
        print(f"training_profile is skipped: {' and '.join(missing)} not in CONCLAVE_DATA or {DATA}")
        return 0
    trees = {"here": ROOT} | ({"beside": options.beside.absolute()} if options.beside else {})
    found: dict[str, Any] = {"size": options.size, "signals": options.signals, "steps": options.steps}
    for name, tree in trees.items():
        found[name] = profile(tree, options.size, options.signals, options.steps)
        show(name, found[name])
    if options.out is not None:
        if options.beside is None and options.out.exists():  # what an earlier tree took stays to be compared with
            earlier = json.loads(options.out.read_text(encoding="utf-8"))
            found |= {"beside": earlier["beside"]} if "beside" in earlier else {}
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def show(name: str, found: dict[str, Any]) -> None:
    """A table of every process."""
    for process, stages in found.items():
        print(f"{name}: {process}")
        for stage, figures in stages.items():
            seconds = f"{figures['seconds']:7.1f} s {figures['processor_seconds']:7.1f} s of a processor"
            print(f"  {stage:<18} {seconds} {figures['peak_mib']:7,.0f} MiB", flush=True)


def profile(tree: Path, size: int, signals: list[str], steps: int | None) -> dict[str, dict[str, dict[str, float]]]:
    """One run of a tree's code: of each process, for each stage its seconds and its peak in MiB."""
    with tempfile.TemporaryDirectory(prefix="profile-") as name, ExitStack() as stack:
        folder = Path(name)
        write_texts(folder)
        environment = os.environ | {
            TREE: str(tree),
            STEPS: str(steps or ""),
            "PYTHONPATH": str(tree),
            "CONCLAVE_HOME": str(folder / "home"),
            "HF_HUB_OFFLINE": "1",
            "OMP_WAIT_POLICY": "PASSIVE",  # processor seconds are of work alone, not of waiting for another thread
            "GOMP_SPINCOUNT": "0",
            "KMP_BLOCKTIME": "0",
        }

        def started(who: str, role: str) -> "subprocess.Popen[str]":
            command = [sys.executable, __file__, "--as", role, who]
            own = environment | {MARKS: str(folder / f"{who}.marks")}
            log = stack.enter_context((folder / f"{who}.log").open("w"))
            process = subprocess.Popen(command, cwd=folder, env=own, stdout=subprocess.PIPE, stderr=log, text=True)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process

        nodes, addresses = [], []
        for part, party in enumerate(("north", "south")):
            (folder / f"{party}.toml").write_text(PARTY.format(name=party, part=part))
            nodes.append(started(party, "node"))
            said = nodes[-1].stdout
            assert said is not None
            addresses.append(f'{{ name = "{party}", address = "{json.loads(said.readline())["address"]}" }}')
        plan = PLAN.format(
            data=DATA, size=size, signals=json.dumps(signals), classes=CLASSES, parties=", ".join(addresses)
        )
        (folder / "plan.toml").write_text(plan)
        coordinator = started("coordinator", "coordinator")
        with watching({"coordinator": coordinator.pid, "node": nodes[0].pid}) as samples:
            if coordinator.wait():
                raise SystemExit((folder / "coordinator.log").read_text()[-3000:])
        ran = marks(folder / "coordinator.marks")
        return {
            "coordinator": by_stage(samples["coordinator"], ran),
            "a party's node": by_stage(samples["node"], ran),
            "a party's training": by_stage(samples["training"], marks(folder / "north.marks")),
        }


def write_texts(folder: Path) -> None:
    """Private and held-out articles as JSON Lines."""
    articles = []
    for name in ("train_part", "valid", "test"):
        articles += (DATA / f"wikitext2/{name}.jsonl").read_text("utf-8").splitlines()
    (folder / "heldout.jsonl").write_text("\n".join(articles[5::10]), "utf-8")
    private = [article for number, article in enumerate(articles) if number % 10 != 5]
    (folder / "private.jsonl").write_text("\n".join(private), "utf-8")


Samples = dict[str, list[tuple[float, float, float]]]
"""Of each process: monotonic seconds, its processor seconds till then, resident MiB."""


@contextmanager
def watching(processes: dict[str, int]) -> Iterator[Samples]:
    """Look at processes meanwhile; "training" is the first process that "node" starts."""
    samples: Samples = {name: [] for name in (*processes, "training")}
    watched = {name: psutil.Process(number) for name, number in processes.items()}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(PERIOD):
            if "training" not in watched:
                for child in watched["node"].children()[:1]:
                    watched["training"] = child
            for name, process in list(watched.items()):
                try:
                    spent = process.cpu_times()
                    memory = process.memory_info().rss / 2**20
                    samples[name].append((time.monotonic(), spent.user + spent.system, memory))
                except psutil.NoSuchProcess:
                    if name == "training":
                        del watched[name]

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def marks(path: Path) -> list[tuple[float, str]]:
    """From when on which stage was the innermost; "" for none."""
    open_stages, found = [], []
    for line in path.read_text().splitlines():
        mark = json.loads(line)
        if mark["began"]:
            open_stages.append(mark["stage"])
        else:
            open_stages.remove(mark["stage"])
        found.append((mark["at"], open_stages[-1] if open_stages else ""))
    return found


def by_stage(samples: list[tuple[float, float, float]], ran: list[tuple[float, str]]) -> dict[str, dict[str, float]]:
    """Seconds and peak of each stage, in the order in which they began; and of all."""
    found: dict[str, dict[str, float]] = {}
    times = [at for at, _, _ in samples]
    ends = [at for at, _ in ran[1:]] + [times[-1]]
    for (began, stage), ended in zip(ran, ends, strict=True):
        first, last = bisect(times, began), bisect(times, ended)
        if stage and first < len(samples):
            figures = found.setdefault(stage, {"seconds": 0.0, "processor_seconds": 0.0, "peak_mib": 0.0})
            figures["seconds"] += ended - began
            figures["processor_seconds"] += samples[min(last, len(samples) - 1)][1] - samples[max(first - 1, 0)][1]
            figures["peak_mib"] = max([figures["peak_mib"], *(mib for _, _, mib in samples[max(first - 1, 0) : last])])
    found["all"] = {
        "seconds": times[-1] - times[0],
        "processor_seconds": samples[-1][1],
        "peak_mib": max(mib for _, _, mib in samples),
    }
    return {stage: {name: round(each, 2) for name, each in figures.items()} for stage, figures in found.items()}


def act(role: str) -> int:
    """Be one of the processes."""
    sys.path[0] = os.environ[TREE]
    if role == "node":
        # A training is started by the interpreter's name: this file then marks its stages, and goes on as it would.
        wrapper = Path(f"{sys.argv[3]}.sh").absolute()
        wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
        wrapper.chmod(0o700)
        sys.executable = str(wrapper)
        import_module("party.console.command").main(["serve", "--config", f"{sys.argv[3]}.toml", "--json"])
        return 0
    mark_calls(COORDINATOR)
    end_fits_early()
    observing = import_module("coordinator.progress.events")

    class Marking(observing.Unobserved):  # type: ignore[misc, name-defined]
        def stage(self, name: str, state: str) -> None:
            mark(name, state == "began")

    import_module("coordinator.api").run("plan.toml", output="run", observer=Marking())
    return 0


def train(arguments: list[str]) -> None:
    """What `python -P -m party.tasks.process` does, with its stages marked."""
    sys.path[0] = os.environ[TREE]
    import_module("party.tasks.process")
    mark_calls(TRAINING)
    end_fits_early()
    sys.argv = arguments
    raise SystemExit(sys.modules["party.tasks.process"].main())


def end_fits_early() -> None:
    """Have every fit of this process take the wanted number of steps at most."""
    if not os.environ[STEPS]:
        return
    steps = int(os.environ[STEPS])
    fits = import_module("torch").optim.LBFGS
    inner = fits.__init__

    def outer(self: Any, *arguments: Any, **named: Any) -> None:
        fewer = {"max_iter": min(named["max_iter"], steps), "max_eval": min(named["max_eval"], steps + steps // 4)}
        inner(self, *arguments, **named | fewer)

    fits.__init__ = outer


def mark_calls(stages: dict[str, str]) -> None:
    """Have functions mark when they begin and end."""
    for name, stage in stages.items():
        module, _, attribute = name.rpartition(".")
        owner = import_module(module)
        setattr(owner, attribute, marked(getattr(owner, attribute), stage))


def marked(inner: Callable[..., Any], stage: str) -> Callable[..., Any]:
    """The function, with marks."""

    @wraps(inner)
    def outer(*arguments: Any, **named: Any) -> Any:
        mark(stage, True)
        try:
            return inner(*arguments, **named)
        finally:
            mark(stage, False)

    return outer


def mark(stage: str, began: bool) -> None:
    """Say that a stage began, or ended."""
    with open(os.environ[MARKS], "a") as file:
        file.write(json.dumps({"at": time.monotonic(), "stage": stage, "began": began}) + "\n")


if __name__ == "__main__":
    if sys.argv[1:4] == ["-P", "-m", "party.tasks.process"]:
        train(sys.argv[3:])
    sys.exit(main())
