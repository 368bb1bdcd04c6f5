"""PrivDistil beside what it is measured against, on SST-2 and QQP: the tables of the paper that can be made here.

    python benchmarks/privdistil.py [--tasks sst2,qqp] [--recipes privdistil,undistilled] [--epsilons 1,4] [--seeds 3]
                                    [--adapt lora] [--device cuda]

The plans are examples/privdistil/plan.toml, the same with PATE's table for `votes`, and benchmarks/privdistil-qqp.toml;
the public corpus of all is passages of novels and half of AG News. Rows are the choice of public text (the paper's
table 3 and figure 5), the way the student begins (table 7), and the other systems (tables 1 and 4); notes of a cell
hold how far classifiers agree (table 8). It needs ../shared/data; it keeps its cells in benchmarks/work, and goes on
where it was stopped, or from benchmarks/results: rows can be added there another day. Remove what is there of a task
to measure it anew. With --adapt, LoRA or all of student and teacher is fine-tuned in place of the head, in steps of
twice as many units, with the learning rate and the clip that follow from it; such tables are files of their own.
"""

import argparse
import json
import shutil
import tomllib
from collections import Counter
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.comparing.comparison import Comparison
    from coordinator.plan.plan import Plan

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "benchmarks/work"
RESULTS = ROOT / "benchmarks/results"
PLANS = {
    "sst2": ROOT / "examples/privdistil/plan.toml",
    "qqp": ROOT / "benchmarks/privdistil-qqp.toml",
    "votes": WORK / "privdistil-votes.toml",
}
EPSILONS = (1.0, 4.0)
VOTES = """
[pate]
source  = "../../../shared/data/novels/passages.jsonl"
text    = "text"
queries = 300
teachers_per_party = 100
epochs  = 20
learning_rate = 0.01
"""
"""What the plan of SST-2 lacks for PATE: public text of no other kind than the corpus has."""


def main() -> None:
    """Fill the tables and put them beside the other results."""
    from coordinator import api
    from coordinator.comparing import table
    from coordinator.progress.terminal import Terminal

    parser = argparse.ArgumentParser(description="Compare PrivDistil with other systems and other choices.")
    parser.add_argument("--tasks", default="sst2,qqp", help="which tables, with commas; votes: SST-2 with PATE's row")
    parser.add_argument("--recipes", default="", help="which rows, with commas; all by default")
    parser.add_argument("--epsilons", default="1,4", help="with commas; others than these make a table of their own")
    parser.add_argument("--seeds", type=int, default=3)
    ways = ("head", "lora", "lora-all", "full")
    parser.add_argument("--adapt", choices=ways, default="head", help="what is fine-tuned")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda, cuda:1 or mps, with --adapt")
    options = parser.parse_args()
    epsilons = tuple(float(each) for each in options.epsilons.split(","))
    ending = "" if epsilons == EPSILONS else f"-{options.epsilons}"
    recipes = [name for name in options.recipes.split(",") if name]
    RESULTS.mkdir(exist_ok=True)
    WORK.mkdir(exist_ok=True)
    PLANS["votes"].write_text(PLANS["sst2"].read_text() + VOTES)  # as deep in folders, so that sources are found
    for name in options.tasks.split(","):
        path, plan, task = PLANS[name], None, name
        if options.adapt != "head":
            plan, task = adapted(path, options.adapt, options.device), f"{name}-{options.adapt}"
        folder, kept = WORK / f"privdistil-{task}", RESULTS / f"privdistil-{task}.json"
        if kept.exists() and not folder.exists():
            restore(folder, json.loads(kept.read_bytes()))

        def filled(
            names: list[str], path: Path = path, plan: "Plan | None" = plan, folder: Path = folder
        ) -> "Comparison":
            with chdir(path.parent):  # where a plan that is no file looks for its sources
                return api.compare(
                    plan or path,
                    recipes=names,
                    epsilons=epsilons,
                    seeds=options.seeds,
                    output=folder,
                    progress=Terminal(),
                )

        try:
            filled(recipes)
        finally:
            cells = [json.loads(path.read_bytes()) for path in sorted((folder / "cells").glob("*.json"))]
            record = {"comparison": json.loads((folder / "comparison.json").read_bytes()), "cells": cells}
            kept.write_text(json.dumps(record, indent=1) + "\n")
        found = filled(whole(cells, epsilons, options.seeds))
        (RESULTS / f"privdistil-{task}{ending}.md").write_text(table.markdown(found))
        for kind in ("png", "svg"):
            shutil.copyfile(found.folder / f"comparison.{kind}", RESULTS / f"privdistil-{task}{ending}.{kind}")
        print(table.markdown(found))


def adapted(path: Path, adapt: str, device: str) -> "Plan":
    """A file's plan, with more than the head fine-tuned, as the defaults for that are, in larger steps."""
    from coordinator.systems.registry import plan_of

    tables = tomllib.loads(path.read_text())
    tables["model"]["adapt"], tables["run"]["device"] = adapt, device
    tables["dp_sgd"] = {"steps": tables["dp_sgd"]["steps"], "batch": 2 * tables["dp_sgd"]["batch"]}
    del tables["fine_tune"]["learning_rate"]
    return plan_of(tables)


def restore(folder: Path, record: dict[str, Any]) -> None:
    """A comparison's folder, with the cells that were measured before."""
    (folder / "cells").mkdir(parents=True)
    (folder / "comparison.json").write_text(json.dumps(record["comparison"]))
    for cell in record["cells"]:
        shown = "none" if cell["epsilon"] is None else f"{cell['epsilon']:g}"
        (folder / "cells" / f"{cell['method']}-{shown}-{cell['seed']}.json").write_text(json.dumps(cell))


def whole(cells: list[dict[str, Any]], epsilons: Sequence[float], seeds: int) -> list[str]:
    """The rows of which every cell is there, in their usual order."""
    from coordinator.systems.privdistil.methods import METHODS

    count = Counter((cell["method"], cell["epsilon"]) for cell in cells)
    asked = {name: epsilons if method.private else (None,) for name, method in METHODS.items()}
    return [name for name, each in asked.items() if all(count[name, epsilon] >= seeds for epsilon in each)]


if __name__ == "__main__":
    main()
