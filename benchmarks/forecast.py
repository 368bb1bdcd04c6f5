"""What a forecast said and what the run then took: seconds, bytes, and the memory of each kind of process.

    python benchmarks/forecast.py [--out FILE] [WORDS ...]

Forecast and run of each plan one after the other, on text that Python carries. Memory is the largest proportional set
size (PSS) seen of one process of a kind, sampled; the coordinator's is its own process without what Ray starts.

The last plan trains adapters (LoRA) of a packaged MiniLM on all phrases of SST-2 at four parties, 1,024 a step, and is
skipped without CONCLAVE_DATA (or ../shared/data). Its evaluation text is some of these phrases; "by other text" is the
forecast with whole sentences, which are twice as long, in their place. Of the parties' training it also gives the
processor's seconds, which other work on the machine changes least, those that the forecast reckons with, the peak of
resident memory (as the system counts it, with what is mapped), and the most that all parties took at a time (PSS).
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
from typing import Any, cast

from federated_plan import federated_plan

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
DATA = Path(os.environ.get("CONCLAVE_DATA") or Path(__file__).resolve().parents[2] / "shared/data").absolute()
ADAPTERS = "adapters of MiniLM, 67,349 phrases, 4 parties, 1,024 a step"
STEPS, PHRASES = 8, 1000
TRAINING = "party training"
STARTED, FORKED = "party.tasks.process", "party.tasks.nursery"
"""Words in the command of a training process that was started, and of one that was forked from another such process."""
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


class Watch:
    """What the processes below one took: the largest PSS of each kind; of trainings also resident peak and time."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        self.together = 0
        self.resident: dict[int, int] = {}
        self.processor: dict[int, float] = {}

    def watch(self, pid: int, done: threading.Event) -> None:
        """Look at them until done."""
        while not done.wait(SAMPLE_SECONDS):
            self.peaks["coordinator"] = max(self.peaks.get("coordinator", 0), pss(pid))
            together = 0
            for each in descendants(pid):
                try:
                    kind = kind_of(each)
                    if kind is None:
                        continue
                    took = pss(each)
                    self.peaks[kind] = max(self.peaks.get(kind, 0), took)
                    if kind == TRAINING:
                        together += took
                        self.resident[each], self.processor[each] = of_training(each)
                except (OSError, ValueError, StopIteration):
                    continue
            self.together = max(self.together, together)


def kind_of(pid: int) -> str | None:
    """What a process is, of those that a forecast speaks of. Raises OSError where it is gone."""
    said = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    if "PartyActor" in said:
        return "party node"
    if STARTED in said:
        return TRAINING
    if FORKED in said:
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return TRAINING if FORKED in Path(f"/proc/{parent}/cmdline").read_bytes().decode(errors="replace") else None
    return None


def of_training(pid: int) -> tuple[int, float]:
    """The peak of its resident memory, bytes, and its processor's seconds. Raises OSError where it is gone."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1024 * peak, (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")


def measured(name: str, text: str, folder: Path) -> dict[str, object]:
    """One row: the plan's forecast beside its run."""
    plan, coordinator = folder / "plan.toml", Path(sys.executable).with_name("coordinator")
    plan.write_text(text)
    forecast = forecast_of(plan)
    watch, done = Watch(), threading.Event()
    begun = time.monotonic()
    command = [coordinator, "run", plan, "--output", folder / "run", "--replace", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
        watcher = threading.Thread(target=watch.watch, args=(run.pid, done))
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
    row = {
        "plan": name,
        "seconds": {"forecast": round(forecast["seconds"], 1), "measured": round(seconds, 1)},
        "stages": {stage: each["seconds"] for stage, each in stages.items()},
        "bytes": {"forecast": forecast["bytes"], "measured": stages["aggregate"]["result"]["bytes"]},
        "memory_mib": {
            kind: {"bound": round(bound / 2**20), "measured": round(watch.peaks.get(kind, 0) / 2**20)}
            for kind, bound in forecast["memory"].items()
        },
    }
    if name == ADAPTERS:
        row |= of_adapters(plan, folder, forecast, watch)
    return row


def forecast_of(plan: Path) -> dict[str, Any]:
    """What `coordinator forecast` says of a plan."""
    coordinator = Path(sys.executable).with_name("coordinator")
    said = subprocess.run([coordinator, "forecast", plan, "--json"], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    return found


def of_adapters(plan: Path, folder: Path, forecast: dict[str, Any], watch: Watch) -> dict[str, object]:
    """What is measured of the last plan alone."""
    from coordinator.forecasting.cost import START_SECONDS
    from coordinator.forecasting.pace import pace_of
    from coordinator.systems.registry import prepared, read_plan
    from coordinator.text_models import forecast as text_models

    read = read_plan(plan)
    public = cast(Any, prepared(read, folder, folder / "cache")).public
    looked, _ = text_models.trained_sums(read)
    pace = pace_of(public.model, text_models.lengths_of(read, public), trained=True, sample=text_models.sampled(read))
    reading = text_models.READ_SECONDS * text_models.declared(read)
    reckoned = looked * pace.text.likely + pace.trial + START_SECONDS + reading
    took = sum(watch.processor.values()) / len(watch.processor)
    plan.write_text(adapters_plan(STEPS, DATA / "sst2/dev.jsonl"))
    other = forecast_of(plan)
    plan.write_text(adapters_plan(150, folder / "phrases.jsonl"))
    whole = forecast_of(plan)
    return {
        "steps": STEPS,
        "forecast": told(forecast),
        "by other text": told(other),
        "of 150 steps": told(whole),
        "processor_seconds_of_a_training": {"forecast": round(reckoned, 1), "measured": round(took, 1)},
        "resident_mib_of_a_training": round(max(watch.resident.values()) / 2**20),
        "all_trainings_mib": round(watch.together / 2**20),
    }


def adapters_plan(steps: int, evaluation: Path) -> str:
    """The last plan, of so many steps and with this evaluation text."""
    settings = {"epsilon": 4.0, "declared_size": 67349, "adapt": "lora", "batch": 1024, "learning_rate": 0.005}
    return federated_plan(f"{DATA}/sst2/train.jsonl", steps=steps, evaluation=str(evaluation), **settings)


def told(forecast: dict[str, Any]) -> dict[str, object]:
    """A forecast's seconds and the range that it gives."""
    return {"seconds": round(forecast["seconds"]), "between": [round(end) for end in forecast["between"]]}


def phrases(path: Path) -> None:
    """Some of the phrases, one in so many, as evaluation text."""
    lines = (DATA / "sst2/train.jsonl").read_text("utf-8").splitlines()
    path.write_text("\n".join(lines[:: len(lines) // PHRASES]) + "\n", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("names", nargs="*", help="words of the plans to try; all by default")
    given = parser.parse_args()
    names, out = given.names, given.out
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("CONCLAVE_HOME", f"{folder}/home")
        defaults = {"parties": 5, "size": 1000, "signals": '["votes", "hidden"]', "dimension": 100, "teachers": 2}
        plans = {name: PLAN.format(**(defaults | settings)) for name, settings in CASES.items()}
        if (DATA / "sst2").is_dir():
            phrases(Path(folder) / "phrases.jsonl")
            plans[ADAPTERS] = adapters_plan(STEPS, Path(folder) / "phrases.jsonl")
        for name, text in plans.items():
            if names and not any(each in name for each in names):
                continue
            rows.append(measured(name, text, Path(folder)))
            print(json.dumps(rows[-1]), flush=True)
    if out is not None:
        taken = [row["plan"] for row in rows]
        earlier = json.loads(out.read_text()) if names and out.exists() else []  # of plans that were not tried now
        kept = [row for row in earlier if row["plan"] not in taken]
        out.write_text(json.dumps(kept + rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
