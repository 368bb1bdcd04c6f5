"""The same plan on the processor and on a device: how far its students lie apart, and what each was charged.

    python benchmarks/same_student.py [--device cuda] [--precision float32 --precision bfloat16] [--steps 20]
        [--adapt lora] [--out benchmarks/results/same_student.json]

A sentiment classifier of two simulated parties with half of the phrases of SST-2 each, noise from a fixed seed (no
guarantee: so that only rounding differs), trained from the same start on the processor and then on a device. For every
precision: the distance between the students by the distance that training went, the share of held-out phrases on which
they say the same, both accuracies, both epsilons. It needs ../shared/data.
"""

import argparse
import json
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
from placing import placed

ROOT = Path(__file__).resolve().parents[1]
PLAN = ROOT / "benchmarks/adapted.toml"
HOWS = ("head", "lora", "lora-all", "full")


def main() -> int:
    """The students in turns, and how they differ."""
    parser = argparse.ArgumentParser(description="Train the same student on the processor and on a device.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", choices=["float32", "bfloat16", "float16"], action="append")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--adapt", choices=HOWS, action="append")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    places = placed(asked.device, asked.precision or ["float32", "bfloat16"])
    if not places:
        return 0
    rows = []
    for adapt in asked.adapt or ["lora", "full"]:
        there = student(adapt, asked.steps, asked.batch, "cpu", "float32")
        for place in places:
            other = student(adapt, asked.steps, asked.batch, asked.device, place.precision)
            rows.append({"trained": adapt, "on": place.described} | apart(there, other))
            print(rows[-1], flush=True)
            if asked.out:
                told = {"steps": asked.steps, "batch": asked.batch, "rows": rows}
                asked.out.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return 0


def student(adapt: str, steps: int, batch: int, device: str, precision: str) -> dict[str, Any]:
    """A student, its start, what it says of held-out phrases and what it was charged."""
    from coordinator.comparing.simulated_run import driven
    from coordinator.progress.progress import Silent
    from coordinator.run.party_files import party_tables
    from coordinator.store.private_files import home
    from coordinator.systems.registry import plan_of, prepared
    from coordinator.text_models.federated_training import descended
    from coordinator.text_models.non_private import simulation
    from coordinator.text_models.student import heldout_rows
    from coordinator.transport.launchers import find_launcher
    from learning.classification.training import predict
    from learning.models.compute import Compute, running

    tables = tomllib.loads(PLAN.read_text())
    tables["model"]["adapt"] = adapt
    tables["dp_sgd"] |= {"steps": steps, "batch": batch}
    tables["federation"]["shards"]["split"] = {"by": "hash", "parties": 2}
    tables["privacy"]["insecure_reproducible_noise"] = True
    tables["privacy"]["attempts"] = 1
    plan: Any = plan_of(tables)
    parties = party_tables(plan)
    for each in parties.values():
        each["compute"] = {"device": device, "precision": precision}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, running(Compute(device, precision)):  # type: ignore[arg-type]
        shards = find_launcher("ray").simulate(simulation(plan, parties, PLAN.parent, Path(folder) / "parties"))
        recipe: Any = prepared(plan, PLAN.parent, home() / "cache")
        with driven(recipe, shards, Silent(), PLAN.parent) as run:
            found = recipe.student(run.content, run.priced, run.present, run.store, Silent())
            return {
                "start": np.asarray(recipe.public.start, np.float64),
                "point": np.asarray(descended(plan, recipe.public, run.store), np.float64),
                "said": predict(recipe.public.model, heldout_rows(plan, recipe.public)).argmax(axis=1),
                "accuracy": found.metrics["accuracy"],
                "paid": run.priced.guarantee.epsilon,
                "seconds": round(time.perf_counter() - began, 1),
            }


def apart(there: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """How far two students from the same start lie apart. distance: by the way that the first went from its start."""
    went = float(np.linalg.norm(there["point"] - there["start"]))
    return {
        "distance": float(np.linalg.norm(other["point"] - there["point"])) / went,
        "same_answers": float(np.mean(there["said"] == other["said"])),
        "accuracy": [there["accuracy"], other["accuracy"]],
        "epsilon": [there["paid"], other["paid"]],
        "seconds": [there["seconds"], other["seconds"]],
    }


if __name__ == "__main__":
    sys.exit(main())
