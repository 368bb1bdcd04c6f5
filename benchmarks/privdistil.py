"""PrivDistil beside what it is measured against, on SST-2 and QQP: the tables of the paper that can be made here.

    python benchmarks/privdistil.py [--tasks sst2,qqp] [--recipes privdistil,undistilled,dpkd] [--seeds 3]

The plans are examples/privdistil/plan.toml and benchmarks/privdistil-qqp.toml; the public corpus of both is passages of
novels and half of AG News. Rows are the choice of public text (the paper's table 3 and figure 5), the way the student
begins (table 7), and the other systems (tables 1 and 4); notes of a cell hold how far classifiers agree (table 8). It
needs ../shared/data; it keeps its cells in benchmarks/work, and goes on where it was stopped.
"""

import argparse
import json
import shutil
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "benchmarks/work"
RESULTS = ROOT / "benchmarks/results"
PLANS = {"sst2": ROOT / "examples/privdistil/plan.toml", "qqp": ROOT / "benchmarks/privdistil-qqp.toml"}
EPSILONS = (1.0, 4.0)


def main() -> None:
    """Fill the tables and put them beside the other results."""
    from coordinator import api, chart
    from coordinator.progress import Terminal

    parser = argparse.ArgumentParser(description="Compare PrivDistil with other systems and other choices.")
    parser.add_argument("--tasks", default="sst2,qqp", help="which tables, with commas")
    parser.add_argument("--recipes", default="", help="which rows, with commas; all by default")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    recipes = [name for name in options.recipes.split(",") if name]
    RESULTS.mkdir(exist_ok=True)
    for task in options.tasks.split(","):
        found = api.compare(
            PLANS[task],
            recipes=recipes,
            epsilons=EPSILONS,
            seeds=options.seeds,
            output=WORK / f"privdistil-{task}",
            progress=Terminal(),
        )
        record = {
            "seconds": round(sum(cell.seconds for cell in found.cells), 1),
            "total_epsilon": found.total.epsilon,
            "cells": [asdict(cell) for cell in found.cells],
        }
        (RESULTS / f"privdistil-{task}.json").write_text(json.dumps(record, indent=1) + "\n")
        (RESULTS / f"privdistil-{task}.md").write_text(chart.markdown(found))
        for ending in ("png", "svg"):
            shutil.copyfile(found.folder / f"comparison.{ending}", RESULTS / f"privdistil-{task}.{ending}")
        print(chart.markdown(found))


if __name__ == "__main__":
    main()
