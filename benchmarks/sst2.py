"""A sentiment classifier on SST-2: every method at epsilon 1, 4 and 8, three seeds; benchmarks/sst2.toml is the plan.

    python benchmarks/sst2.py [--recipes dp_sgd,local,pate,fine_tune] [--seeds 3]

The public texts that teachers vote on are 2,000 phrases of a part of the training file that no party has, without their
labels. It needs ../shared/data; it keeps its cells in benchmarks/work, and goes on where it was stopped.
"""

import argparse
import json
import shutil
from dataclasses import asdict
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "benchmarks/work"
RESULTS = ROOT / "benchmarks/results"
PLAN = ROOT / "benchmarks/sst2.toml"
EPSILONS = (1.0, 4.0, 8.0)
PUBLIC = 2000


def write_public() -> None:
    """Phrases of the last part of the division, which has more parts than there are parties."""
    from coordinator.systems.registry import read_plan
    from learning.text.source import Source, read
    from party.shard.units import part_of
    from party.shard_table import PartTable

    plan = read_plan(PLAN)
    shards = plan.federation.shards
    assert shards is not None
    parts = shards.split.of
    assert parts is not None
    assert parts > len(plan.federation.names)
    last = PartTable(parts=parts, part=parts - 1, seed=plan.run.seed)
    source = Source(source=str(PLAN.parent / shards.source), text=shards.text)
    found = (each.text for each in read(source, WORK / "cache") if part_of(last, each.id, {}) == parts - 1)
    rows = [json.dumps({"text": text}) for text in islice(found, PUBLIC)]
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / "sst2-public.jsonl").write_text("\n".join(rows) + "\n", "utf-8")


def main() -> None:
    """Fill the table and put it beside the other results."""
    from coordinator import api
    from coordinator.comparing import table
    from coordinator.progress.terminal import Terminal

    parser = argparse.ArgumentParser(description="Compare methods for a sentiment classifier on SST-2.")
    parser.add_argument("--recipes", default="", help="which rows, with commas; all by default")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    write_public()
    recipes = [name for name in options.recipes.split(",") if name]
    found = api.compare(
        PLAN, recipes=recipes, epsilons=EPSILONS, seeds=options.seeds, output=WORK / "sst2", progress=Terminal()
    )
    record = {
        "seconds": round(sum(cell.seconds for cell in found.cells), 1),
        "total_epsilon": found.total.epsilon,
        "cells": [asdict(cell) for cell in found.cells],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "sst2.json").write_text(json.dumps(record, indent=1) + "\n")
    (RESULTS / "sst2.md").write_text(table.markdown(found))
    for ending in ("png", "svg"):
        shutil.copyfile(found.folder / f"comparison.{ending}", RESULTS / f"sst2.{ending}")
    print(table.markdown(found))


if __name__ == "__main__":
    main()
