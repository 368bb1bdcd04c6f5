"""DistilDP beside what it is measured against: perplexity of small language models on real held-out text.

    python benchmarks/distildp.py [--task imdb] [--recipes distildp,texts] [--epsilons 2,8] [--seeds 1]
        [--first-seed 7] [--device cuda]

The plan is examples/distildp/plan.toml, on AG News or on another task's text, and is measured on the first 1,000 texts
of the development file. Cells are kept in benchmarks/work and benchmarks/results (distildp.json, distildp-TASK.json): a
call goes on where another was stopped, and rows can be added another day. Calls with a --first-seed can run at the same
time: each has a folder of its own, and adds its cells to the others' when it ends. It needs ../shared/data and
../shared/models.
"""

import argparse
import json
import os
import shutil
import tomllib
from contextlib import chdir
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
PLAN = ROOT / "examples/distildp/plan.toml"
MEASURED = 1000
TASKS = ("ag_news", "imdb", "aeslc")


def main() -> None:
    """Fill the table and put it beside the other results."""
    from coordinator import api
    from coordinator.comparing import table
    from coordinator.progress.terminal import Terminal
    from coordinator.systems.registry import plan_of

    parser = argparse.ArgumentParser(description="Compare DistilDP with other ways to a language model.")
    parser.add_argument("--task", choices=TASKS, default=TASKS[0])
    parser.add_argument("--recipes", default="", help="which rows, with commas; all by default")
    parser.add_argument("--epsilons", default="2,8", help="with commas")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, help="the plan's own by default")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda, cuda:1 or mps")
    options = parser.parse_args()
    epsilons = tuple(float(each) for each in options.epsilons.split(","))
    name = "distildp" if options.task == TASKS[0] else f"distildp-{options.task}"
    work, results = BENCHMARKS / "work" / name, BENCHMARKS / "results" / name
    for each in (work, results):
        each.parent.mkdir(exist_ok=True)
    kept = results.with_suffix(".json")
    if kept.exists() and not work.exists():
        restore(json.loads(kept.read_bytes()), work)
    tables = tomllib.loads(PLAN.read_text())
    of_task(tables, options.task)
    tables["run"]["device"] = options.device
    folder = work
    if options.first_seed is not None:
        tables["run"]["seed"], folder = options.first_seed, work.with_name(f"{name}-{os.getpid()}")
    heldout = some(PLAN.parent / tables["evaluation"]["source"], BENCHMARKS / "work" / f"{name}-heldout.jsonl")
    tables["evaluation"]["source"] = str(heldout.relative_to(ROOT))
    try:
        with chdir(ROOT):
            shards, model = tables["federation"]["shards"], tables["model"]
            shards["source"], model["name"] = (from_root(each) for each in (shards["source"], model["name"]))
            rows = [row for row in options.recipes.split(",") if row]
            found = api.compare(
                plan_of(tables),
                recipes=rows,
                epsilons=epsilons,
                seeds=options.seeds,
                output=folder,
                progress=Terminal(),
            )
    finally:
        if folder != work and (folder / "cells").exists():
            (work / "cells").mkdir(parents=True, exist_ok=True)
            for cell in (folder / "cells").glob("*.json"):
                shutil.copyfile(cell, work / "cells" / cell.name)
            shutil.rmtree(folder)
        if (work / "comparison.json").exists():
            kept.write_text(json.dumps(record(work), indent=1) + "\n")
    if folder != work:
        print(table.markdown(found))
        return
    results.with_suffix(".md").write_text(table.markdown(found))
    for kind in (".png", ".svg"):
        shutil.copyfile(found.folder / f"comparison{kind}", results.with_suffix(kind))
    print(table.markdown(found))


def from_root(place: str) -> str:
    """A path of the plan, as it is seen from the project's root."""
    return os.path.relpath(PLAN.parent / place, ROOT)


def of_task(tables: dict[str, Any], task: str) -> None:
    """Change a plan's tables to those of a task: its text, its control codes and how much there is of it."""
    shards, evaluation, privacy = tables["federation"]["shards"], tables["evaluation"], tables["privacy"]
    for table in (shards, evaluation):
        table["source"] = table["source"].replace(TASKS[0], task)
    if task == "imdb":
        values = ["1", "2", "3", "4", "7", "8", "9", "10"]
        tables["codes"] = {"template": "Rating: {rating}", "columns": {"rating": {"values": values}}}
        privacy["declared_size"] = 25_000
    if task == "aeslc":
        del tables["codes"]
        shards["text"] = evaluation["text"] = "body"
        privacy["declared_size"] = 14_000


def some(source: Path, place: Path) -> Path:
    """The first texts of a file, in a file of their own."""
    with source.open(encoding="utf-8") as lines:
        place.write_text("".join(line for _, line in zip(range(MEASURED), lines, strict=False)), "utf-8")
    return place


def record(work: Path) -> dict[str, Any]:
    """All cells that were measured so far."""
    cells = [json.loads(path.read_bytes()) for path in sorted((work / "cells").glob("*.json"))]
    return {"comparison": json.loads((work / "comparison.json").read_bytes()), "cells": cells}


def restore(kept: dict[str, Any], work: Path) -> None:
    """The comparison's folder, with the cells that were measured before."""
    (work / "cells").mkdir(parents=True)
    (work / "comparison.json").write_text(json.dumps(kept["comparison"]))
    for cell in kept["cells"]:
        shown = "none" if cell["epsilon"] is None else f"{cell['epsilon']:g}"
        (work / "cells" / f"{cell['method']}-{shown}-{cell['seed']}.json").write_text(json.dumps(cell))


if __name__ == "__main__":
    main()
