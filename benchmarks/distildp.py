"""DistilDP beside what it is measured against, on AG News: perplexity of small language models on real held-out text.

    python benchmarks/distildp.py [--recipes distildp,texts] [--epsilons 2,8] [--seeds 1]

The plan is examples/distildp/plan.toml, measured on the first 1,000 texts of the development file. Cells are kept in
benchmarks/work and benchmarks/results/distildp.json, and a call goes on where another was stopped; rows can be added
another day. It needs ../shared/data and ../shared/models.
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
WORK = ROOT / "benchmarks/work/distildp"
RESULTS = ROOT / "benchmarks/results"
PLAN = ROOT / "examples/distildp/plan.toml"
MEASURED = 1000


def main() -> None:
    """Fill the table and put it beside the other results."""
    from coordinator import api
    from coordinator.comparing import table
    from coordinator.progress.progress import Terminal
    from coordinator.systems.registry import plan_of

    parser = argparse.ArgumentParser(description="Compare DistilDP with other ways to a language model.")
    parser.add_argument("--recipes", default="", help="which rows, with commas; all by default")
    parser.add_argument("--epsilons", default="2,8", help="with commas")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    epsilons = tuple(float(each) for each in options.epsilons.split(","))
    RESULTS.mkdir(exist_ok=True)
    (ROOT / "benchmarks/work").mkdir(exist_ok=True)
    kept = RESULTS / "distildp.json"
    if kept.exists() and not WORK.exists():
        restore(json.loads(kept.read_bytes()))
    tables = tomllib.loads(PLAN.read_text())
    tables["evaluation"]["source"] = str(some(PLAN.parent / tables["evaluation"]["source"]).relative_to(ROOT))
    try:
        with chdir(ROOT):
            shards, model = tables["federation"]["shards"], tables["model"]
            shards["source"], model["name"] = (from_root(each) for each in (shards["source"], model["name"]))
            names = [name for name in options.recipes.split(",") if name]
            found = api.compare(
                plan_of(tables), recipes=names, epsilons=epsilons, seeds=options.seeds, output=WORK, progress=Terminal()
            )
    finally:
        if (WORK / "comparison.json").exists():
            kept.write_text(json.dumps(record(), indent=1) + "\n")
    (RESULTS / "distildp.md").write_text(table.markdown(found))
    for kind in ("png", "svg"):
        shutil.copyfile(found.folder / f"comparison.{kind}", RESULTS / f"distildp.{kind}")
    print(table.markdown(found))


def from_root(place: str) -> str:
    """A path of the plan, as it is seen from the project's root."""
    return os.path.relpath(PLAN.parent / place, ROOT)


def some(source: Path) -> Path:
    """The first texts of a file, in a file of their own."""
    place = ROOT / "benchmarks/work/distildp-heldout.jsonl"
    with source.open(encoding="utf-8") as lines:
        place.write_text("".join(line for _, line in zip(range(MEASURED), lines, strict=False)), "utf-8")
    return place


def record() -> dict[str, Any]:
    """All cells that were measured so far."""
    cells = [json.loads(path.read_bytes()) for path in sorted((WORK / "cells").glob("*.json"))]
    return {"comparison": json.loads((WORK / "comparison.json").read_bytes()), "cells": cells}


def restore(kept: dict[str, Any]) -> None:
    """The comparison's folder, with the cells that were measured before."""
    (WORK / "cells").mkdir(parents=True)
    (WORK / "comparison.json").write_text(json.dumps(kept["comparison"]))
    for cell in kept["cells"]:
        shown = "none" if cell["epsilon"] is None else f"{cell['epsilon']:g}"
        (WORK / "cells" / f"{cell['method']}-{shown}-{cell['seed']}.json").write_text(json.dumps(cell))


if __name__ == "__main__":
    main()
