"""The head, LoRA or all of a model trained privately, on SST-2 and QQP: what more than a head is worth.

    python benchmarks/adapted.py [--cells sst2-dp_sgd-lora-4,qqp-*-none] [--minutes 60] [--device cuda] [--table]
    python benchmarks/adapted.py --rates

A cell is a task (sst2, qqp), a student's system (dp_sgd: all of MiniLM; privdistil: half of its layers, distilled),
what is trained of it (head, lora, lora-all, full), an epsilon (1, 4, 8, none) and a seed (0, 1, 2), written
sst2-dp_sgd-lora-4-0; --cells names them by how they begin, or by a pattern. benchmarks/adapted.toml is the plan. A cell
runs the system's own recipe over simulated parties; without privacy, the same steps on all text together with neither
clip nor noise. Every step is kept in benchmarks/work/adapted: a cell that is stopped, by --minutes or otherwise, goes
on there. What is done is in benchmarks/results/adapted.json, and in the table and the picture beside it. --rates asks
what a few steps at several learning rates do, for the defaults: benchmarks/results/adapted-rates.json.
Calls at the same time share the cells. It needs ../shared/data.
"""

import argparse
import fcntl
import fnmatch
import json
import os
import shutil
import signal
import time
import tomllib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from coordinator.text_models.plan import ClassifierPlan
    from coordinator.text_models.public import PublicText
    from coordinator.transport.launchers import Simulation
    from learning.models.compute import Precision

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "benchmarks/work/adapted"
RESULTS = ROOT / "benchmarks/results"
PLAN = ROOT / "benchmarks/adapted.toml"
TASKS: dict[str, dict[str, dict[str, Any]]] = {
    "sst2": {},
    "qqp": {
        "privacy": {"declared_size": 20_000},
        "dp_sgd": {"batch": 1024},
        "shards": {"source": "../../shared/data/qqp/train.jsonl", "text": "sentence1", "second": "sentence2"},
        "text": {"kind": "pair", "labels": ["different", "same"]},
        "evaluation": {"source": "../../shared/data/qqp/dev.jsonl", "text": "sentence1", "second": "sentence2"},
    },
}
"""What a task changes in the plan."""
DISTILLED: dict[str, Any] = {
    "corpus": [
        {"source": "../../shared/data/novels/passages.jsonl", "limit": 8000},
        {"source": "../../shared/data/ag_news/train.jsonl", "take": [2, 0]},
    ],
    "domain": {"texts": 1000},
    "selection": {"method": "ais", "texts": 4000, "clusters": 10},
    "distil": {"layers": 3, "passes": 1, "batch": 16},
}
"""The tables of the system `privdistil`, as in its example."""
ON_DEVICE = 16384
"""The same on a device."""
SYSTEMS, ADAPTED = ("dp_sgd", "privdistil"), ("lora-all", "lora", "head", "full")
EPSILONS, SEEDS = (4.0, 1.0, 8.0, None), (0, 1, 2)
RATES = {
    "head": (0.01, 0.03),
    "lora": (0.002, 0.01, 0.03),
    "lora-all": (0.002, 0.005, 0.01),
    "full": (0.0001, 0.0005, 0.001, 0.002),
}
FEW = {"steps": 32, "batch": 64}
AT_ONCE = 2048
"""Tokens of a micro-batch of training without privacy, on the processor."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One student. steps, rate: other ones than the plan has; such a student is in no table, but below it."""

    task: str
    system: str
    adapt: str
    epsilon: float | None
    seed: int
    steps: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        """As it is asked for, and as its folder is called."""
        steps = "" if self.steps is None else f"-{self.steps}"
        rate = "" if self.rate is None else f"-rate-{self.rate:g}"
        return f"{self.task}-{self.system}-{self.adapt}-{shown(self.epsilon)}-{self.seed}{steps}{rate}"


def shown(epsilon: float | None) -> str:
    """An epsilon in a cell's name."""
    return "none" if epsilon is None else f"{epsilon:g}"


CELLS = [
    Cell(task, system, adapt, epsilon, seed)
    for task in TASKS
    for system in SYSTEMS
    for adapt in ADAPTED
    for epsilon in EPSILONS
    for seed in SEEDS
    if system == "dp_sgd" or epsilon is not None  # such a student is made of noisy answers
]


def main() -> None:
    """Fill the cells that were asked for and are not there; write table and picture."""
    parser = argparse.ArgumentParser(description="Train the head, LoRA or all of a model privately.")
    parser.add_argument("--cells", default="", help="how their names begin, or patterns, with commas; all by default")
    parser.add_argument("--steps", type=int, help="another number of them than the plan has")
    parser.add_argument("--rate", type=float, help="another learning rate than the default of what is trained")
    parser.add_argument("--minutes", type=float, help="stop then; what is not done goes on at the next call")
    parser.add_argument("--device", help="auto, cpu, cuda, cuda:1 or mps; the processor by default")
    parser.add_argument("--precision", default="float32", help="of passes through the model, with --device")
    parser.add_argument("--table", action="store_true", help="compute nothing: write table and picture")
    parser.add_argument("--rates", action="store_true", help="a few steps at several learning rates instead")
    options = parser.parse_args()
    if options.rates:
        rates()
        return
    other = {"steps": options.steps, "rate": options.rate}
    wanted = [] if options.table else [replace(cell, **other) for cell in asked(options.cells)]
    kept = RESULTS / "adapted.json"
    if options.minutes is not None:
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 60 * options.minutes)
    RESULTS.mkdir(exist_ok=True)
    try:
        for cell in wanted:
            with alone(WORK / f"{cell.name}.lock", wait=False) as mine:
                if not mine or cell.name in read(kept):
                    continue
                print(cell.name, flush=True)
                with computing(options.device, options.precision):
                    found = filled(cell, options.device, options.precision)
                made = asdict(cell) | found | {"device": options.device or "cpu", "precision": options.precision}
                with alone(WORK / "results.lock"):
                    kept.write_text(json.dumps(dict(sorted({**read(kept), cell.name: made}.items())), indent=1) + "\n")
                shutil.rmtree(WORK / cell.name)
                print(f"  {cell.name}: accuracy {found['accuracy']:.3f} in {found['seconds']:,} s", flush=True)
    except KeyboardInterrupt:
        print("stopped; the same call goes on", flush=True)
    record = read(kept)
    (RESULTS / "adapted.md").write_text(table(record))
    draw(record)
    print(table(record))


@contextmanager
def alone(lock: Path, *, wait: bool = True) -> Iterator[bool]:
    """Within it, no other call holds that lock; whether it is held: without `wait` it may be another's."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def read(kept: Path) -> dict[str, dict[str, Any]]:
    """The cells that are there, those of another call at the same time among them."""
    return cast("dict[str, dict[str, Any]]", json.loads(kept.read_bytes()) if kept.exists() else {})


def asked(names: str) -> list[Cell]:
    """The cells that are named, in the order of the names."""
    patterns = [name for name in names.split(",") if name] or ["*"]
    found = [cell for pattern in patterns for cell in CELLS if fnmatch.fnmatch(cell.name, f"{pattern}*")]
    return list(dict.fromkeys(found))


def computing(device: str | None, precision: str) -> AbstractContextManager[object]:
    """Within it, models run on that device."""
    if device is None:
        return nullcontext()
    from learning.models.compute import Compute, running

    return running(Compute(device, cast("Precision", precision)))


def plan_of(cell: Cell) -> "ClassifierPlan":
    """The plan of a cell."""
    from coordinator.systems.registry import plan_of as checked

    tables = tomllib.loads(PLAN.read_text())
    for name, changes in TASKS[cell.task].items():
        (tables["federation"] if name == "shards" else tables)[name] |= changes
    tables["run"] |= {"recipe": cell.system, "seed": cell.seed}
    tables["model"]["adapt"] = cell.adapt
    if cell.steps is not None:
        tables["dp_sgd"]["steps"] = cell.steps
    if cell.rate is not None:
        tables["dp_sgd"]["learning_rate"] = cell.rate
    if cell.epsilon is not None:
        tables["privacy"]["epsilon"] = cell.epsilon
    found: Any = checked(tables | (DISTILLED if cell.system == "privdistil" else {}))
    return cast("ClassifierPlan", found)


def filled(cell: Cell, device: str | None, precision: str) -> dict[str, Any]:
    """What a cell's student is worth and was made with. seconds: of the processor, in all calls together."""
    from coordinator.run.party_files import party_tables
    from coordinator.store.private_files import home
    from coordinator.text_models.non_private import simulation
    from coordinator.transport.launchers import find_launcher

    plan, folder = plan_of(cell), WORK / cell.name
    folder.mkdir(parents=True, exist_ok=True)
    spent = folder / "seconds"
    before, began = float(spent.read_text()) if spent.exists() else 0.0, time.process_time()
    parties = party_tables(plan)
    for tables in parties.values() if device is not None else ():
        tables["compute"] = {"device": device, "precision": precision}
    shards = find_launcher("ray").simulate(simulation(plan, parties, PLAN.parent, folder / "parties"))
    settings = plan.dp_sgd
    made: dict[str, Any] = {name: getattr(settings, name) for name in ("steps", "batch", "learning_rate", "clip")}
    make = in_clear if cell.epsilon is None else private
    try:
        made |= make(plan, shards, folder, home() / "cache")
    finally:
        spent.write_text(str(before + time.process_time() - began))
    return made | {"seconds": round(before + time.process_time() - began)}


def private(plan: "ClassifierPlan", shards: "Simulation", folder: Path, cache: Path) -> dict[str, Any]:
    """The system's own recipe over simulated parties."""
    from aggregation.mechanisms.gradients import GradientMechanism
    from coordinator.comparing.simulated_run import driven
    from coordinator.progress.progress import Silent
    from coordinator.systems.registry import prepared

    recipe: Any = prepared(plan, PLAN.parent, cache)
    with driven(recipe, shards, Silent(), PLAN.parent, folder) as run:
        student = recipe.student(run.content, run.priced, run.present, run.store, Silent())
        (*_, last) = run.priced.releases
        return {
            "paid": run.priced.guarantee.epsilon,
            "noise_multiplier": last.under(GradientMechanism).noise_multiplier,
            "metrics": student.metrics,
            "accuracy": student.metrics["accuracy"],
        }


def in_clear(plan: "ClassifierPlan", shards: "Simulation", folder: Path, cache: Path) -> dict[str, Any]:
    """The same optimiser, steps and batches on all text together, with neither clip nor noise."""
    import torch
    from safetensors.torch import load, save

    from coordinator.store.private_files import write_whole
    from coordinator.text_models.federated_training import optimisation_of
    from coordinator.text_models.non_private import pooled
    from coordinator.text_models.public import prepare
    from coordinator.text_models.student import student_of
    from coordinator.transport.launchers import TextWanted
    from learning.models.adapting import unflatten
    from learning.private_training.optimisation import Training

    public = prepare(plan, PLAN.parent, cache)
    examples = pooled(shards.labelled(TextWanted(plan.labelled, public.tokenizer, public.longest)))
    settings = plan.dp_sgd
    training = Training(torch.from_numpy(public.start), optimisation_of(settings, settings.batch), settings.steps)
    state = folder / "training.safetensors"
    if state.exists():
        training.resume(load(state.read_bytes()))
    labels = torch.from_numpy(examples.labels)
    while training.done < settings.steps:
        unflatten(public.model, training.point)
        rng = np.random.default_rng([plan.run.seed, training.done])
        taken = rng.choice(len(examples.rows), min(settings.batch, len(examples.rows)), replace=False)
        training.step(gradient(public, [examples.rows[place] for place in taken], labels[taken]))
        write_whole(state, save({name: each.contiguous() for name, each in training.state().items()}))
    metrics = student_of(plan, public, training.point.numpy()).metrics
    return {"paid": None, "noise_multiplier": 0.0, "metrics": metrics, "accuracy": metrics["accuracy"]}


def rates() -> None:
    """A few steps without privacy on 10,000 phrases, at several learning rates of each way to train."""
    from coordinator.comparing.comparable import changed
    from coordinator.run.party_files import party_tables
    from coordinator.store.private_files import home
    from coordinator.text_models.non_private import simulation
    from coordinator.transport.launchers import find_launcher

    kept = RESULTS / "adapted-rates.json"
    record = json.loads(kept.read_bytes()) if kept.exists() else {}
    for adapt, tried in RATES.items():
        default = plan_of(Cell("sst2", "dp_sgd", adapt, None, 0))
        some = default.federation.model_dump()
        some["shards"]["split"]["of"] = 27
        for rate in tried:
            if (name := f"{adapt}-{rate:g}") in record:
                continue
            plan = changed(default, {"dp_sgd": FEW | {"learning_rate": rate}, "federation": some})
            folder = WORK / "rates" / name
            folder.mkdir(parents=True, exist_ok=True)
            parts = find_launcher("ray").simulate(simulation(plan, party_tables(plan), PLAN.parent, folder / "parties"))
            metrics = in_clear(plan, parts, folder, home() / "cache")["metrics"]
            found = {key: metrics[key] for key in ("accuracy", "macro_f1", "majority")}
            record[name] = FEW | {"default": rate == default.dp_sgd.learning_rate} | found
            kept.write_text(json.dumps(record, indent=1) + "\n")
            shutil.rmtree(folder)
            print(name, record[name], flush=True)


def gradient(public: "PublicText", rows: list[Any], labels: Any) -> Any:
    """The sum of the examples' gradients by what is trained, float32 [parameters]."""
    import torch

    from learning.models.adapting import trainable
    from learning.models.batching import batches, inputs_of, losses

    wanted = list(trainable(public.model).values())
    total = torch.zeros(sum(each.numel() for each in wanted))
    device = wanted[0].device
    for places in batches(rows, AT_ONCE if device.type == "cpu" else ON_DEVICE):
        inputs = inputs_of(public.model.config, [rows[place] for place in places])
        moved = {name: each.to(device) for name, each in inputs.items()}
        loss = losses(public.model, moved, labels[places].to(device)).sum()
        found = torch.autograd.grad(loss, wanted)
        total += torch.cat([each.reshape(-1) for each in found]).cpu()
    return total.numpy()


def table(record: dict[str, dict[str, Any]]) -> str:
    """Accuracy on the public held-out file: mean and spread over the seeds that are there, and how many these are."""
    epsilons = [*sorted(each for each in EPSILONS if each is not None), None]
    heads = ["task", "system", "trained", *(f"epsilon {shown(each)}" for each in epsilons)]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for row in dict.fromkeys((cell.task, cell.system, cell.adapt) for cell in CELLS):
        cells = [values(record, row, epsilon) for epsilon in epsilons]
        if any(cells):
            lines.append(f"| {' | '.join([*row, *map(spread, cells)])} |")
    known = {cell.name for cell in CELLS}
    done = len(known & set(record))
    lines += ["", f"{done} of {len(CELLS)} cells are there; `python benchmarks/adapted.py` computes the others."]
    for name in sorted(set(record) - known):
        cell = record[name]
        how = f"{cell['steps']} steps of {cell['batch']:,} at a learning rate of {cell['learning_rate']:g}"
        lines.append(f"{name}: {cell['accuracy']:.3f} after {how}.")
    return "\n".join([*lines, ""])


def values(record: dict[str, dict[str, Any]], row: tuple[str, str, str], epsilon: float | None) -> list[float]:
    """The accuracies of one cell of the table."""
    names = [Cell(*row, epsilon, seed).name for seed in SEEDS]
    return [record[name]["accuracy"] for name in names if name in record]


def spread(found: list[float]) -> str:
    """Mean, deviation and number of seeds."""
    if not found:
        return "missing"
    deviation = f" ± {stdev(found):.3f}" if len(found) > 1 else ""
    return f"{fmean(found):.3f}{deviation} ({len(found)} of {len(SEEDS)} seeds)"


def draw(record: dict[str, dict[str, Any]]) -> None:
    """Accuracy over epsilon, a panel a task: every seed a point, a line through the means; dashed without privacy."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "adapted"
    from matplotlib import pyplot as plt

    tasks = [task for task in TASKS if any(cell.name in record for cell in CELLS if cell.task == task)]
    if not tasks:
        return
    figure, grid = plt.subplots(1, len(tasks), figsize=(5.5 * len(tasks), 4), layout="constrained", squeeze=False)
    for axis, task in zip(grid[0], tasks, strict=True):
        for number, (system, adapt) in enumerate((system, adapt) for system in SYSTEMS for adapt in ADAPTED):
            private_ones = sorted(each for each in EPSILONS if each is not None)
            points = {each: values(record, (task, system, adapt), each) for each in private_ones}
            there = {epsilon: found for epsilon, found in points.items() if found}
            free, colour = values(record, (task, system, adapt), None), f"C{number}"
            if there:
                axis.plot(list(there), list(map(fmean, there.values())), color=colour, label=f"{system}, {adapt}")
                for epsilon, found in there.items():
                    axis.plot([epsilon] * len(found), found, "o", markersize=4, color=colour)
            if free:
                axis.axhline(fmean(free), color=colour, linestyle="--", label=f"{system}, {adapt}, no privacy")
        axis.set_xscale("log", base=2)
        axis.set_xticks(private_ones, [f"{each:g}" for each in private_ones])
        axis.set(xlabel="epsilon", ylabel="accuracy, higher is better", title=task)
        axis.legend()
    for ending in ("png", "svg"):
        named = {"metadata": {"Date": None}} if ending == "svg" else {"dpi": 150}
        figure.savefig(RESULTS / f"adapted.{ending}", **named)
    plt.close(figure)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
