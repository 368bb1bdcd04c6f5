"""An e-mail's subject from its body, by swing distillation: ROUGE and perplexity of every row of `compare`.

    python benchmarks/swing_subjects.py [--seeds 3] [--rows alone,kd,published] [--minutes 60]

Two parties hold e-mails of owners whom nobody else has; whoever has little text holds e-mails of other owners, and the
test has owners of its own. ROUGE is of greedy answers, perplexity of the test's own subjects given their bodies. A seed
divides the owners, and draws the order of texts. Cells are kept in benchmarks/results/swing-subjects.json: a call goes
on where another was stopped. It needs ../shared/data and ../shared/models.
"""

import argparse
import json
import math
import time
from contextlib import chdir
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "benchmarks/work/swing-subjects"
RESULTS = ROOT / "benchmarks/results"
MAIL = ROOT / "../shared/data/aeslc"
PARTIES = 2
SHARES = (0.6, 0.25, 0.15)
"""Of the owners: the parties', those of whoever has little text, and the test's."""
TEACHERS, OWN, TESTED = 1000, 200, 300
"""E-mails of all parties together, of whoever has little text, and of the test."""
ROWS = (
    "alone", "kd", "published", "temperature", "noise", "laplace", "swing-4", "swing-8", "fine_tune", "teachers",
    "public",
)  # fmt: skip
EPSILONS = {"swing-4": 4.0, "swing-8": 8.0}
METRICS = {"rouge_1": "ROUGE-1", "rouge_2": "ROUGE-2", "rouge_l": "ROUGE-L", "perplexity": "perplexity"}


def main() -> None:
    """Fill the table and put it beside the other results."""
    parser = argparse.ArgumentParser(description="Measure subjects that swing distillation teaches a student to write.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", default=",".join(ROWS), help="with commas")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no cell begins after so many")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    kept = RESULTS / "swing-subjects.json"
    cells = json.loads(kept.read_bytes())["cells"] if kept.exists() else {}
    for seed in range(options.seeds):
        comparison = data = None
        for row in [row for row in options.rows.split(",") if f"{row}-{seed}" not in cells]:
            if time.monotonic() > until:
                break
            if comparison is None:
                comparison, data = made(seed)
            cells[f"{row}-{seed}"] = cell = measured(comparison, data, row)
            print(row, seed, *(f"{METRICS[name]} {cell[name]:.2f}" for name in METRICS), cell["seconds"], flush=True)
            kept.write_text(json.dumps(summary(cells) | {"cells": cells}, indent=1) + "\n")
    (RESULTS / "swing-subjects.md").write_text(table(summary(cells)))
    print(table(summary(cells)))


def made(seed: int) -> tuple[Any, Any]:
    """The comparison of a seed, and its data."""
    from coordinator import api
    from coordinator.progress.progress import Silent
    from coordinator.systems.registry import plan_of

    folder = WORK / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    written(folder, seed)
    place = folder.relative_to(ROOT)
    columns = {"text": "body", "second": "subject", "id": "id"}
    split = {"by": "owner", "parties": PARTIES}
    tables = {
        "run": {"name": "subjects", "recipe": "swing", "seed": seed},
        "privacy": {"epsilon": 8.0, "delta": 1e-5, "declared_size": TEACHERS},
        "federation": {
            "launch": "ray",
            "shards": {"source": str(place / "parties.jsonl"), "split": split, **columns},
        },
        "text": {"kind": "pair", "longest": 48, "answer": 16, "separator": "\nsubject:"},
        "model": {"name": "../shared/models/public-lm", "adapt": "full"},
        "teachers": {"per_party": 10, "epochs": 4, "batch": 16, "learning_rate": 0.002},
        "queries": {"source": str(place / "own.jsonl"), "limit": OWN, **columns},
        "swing": {"clip": 0.25},
        "distil": {"top": 64, "mixing": 0.9, "passes": 10, "batch": 16, "learning_rate": 0.001, "patience": 100},
        "evaluation": {"source": str(place / "test.jsonl"), **columns},
    }
    with chdir(ROOT):
        comparison = api.comparable_of(plan_of(tables), ROOT, Silent())
        (folder / "work").mkdir(exist_ok=True)
        return comparison, comparison.data(seed, folder / "work")


def written(folder: Path, seed: int) -> None:
    """The files of a seed: e-mails of the parties' owners, of the student's, and of the test's."""
    rng = np.random.default_rng(seed)
    train, others = mails("train"), [*mails("dev"), *mails("test")]
    owners = rng.permutation(sorted({each["owner"] for each in train}))
    ends = np.cumsum([round(share * len(owners)) for share in SHARES[:2]])
    parties, own, tested = (set(map(str, each)) for each in np.split(owners, ends))
    for name, among, of, count in (
        ("parties", train, parties, TEACHERS),
        ("own", train, own, OWN),
        ("test", others, tested, TESTED),
    ):
        rows = [each for each in among if each["owner"] in of]
        chosen = [rows[int(place)] for place in rng.choice(len(rows), min(count, len(rows)), replace=False)]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in chosen))


def mails(name: str) -> list[dict[str, str]]:
    """The e-mails of a file."""
    with (MAIL / f"{name}.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def measured(comparison: Any, data: Any, row: str) -> dict[str, Any]:
    """One cell: what a row's student writes and says of the test."""
    begun = time.perf_counter()
    with chdir(ROOT):
        outcome = comparison.methods[row.partition("-")[0]].make(data, EPSILONS.get(row, 0.0))
        learned = time.perf_counter() - begun
        metrics = comparison.metrics(data, outcome.model)
    seconds = {"made": round(learned), "all": round(time.perf_counter() - begun)}
    return {name: metrics[name] for name in METRICS} | {"seconds": seconds}


def summary(cells: dict[str, Any]) -> dict[str, Any]:
    """Of every row the mean of each metric over its seeds, and the spread where there are several."""
    found: dict[str, Any] = {}
    for row in ROWS:
        own = [cells[f"{row}-{seed}"] for seed in range(100) if f"{row}-{seed}" in cells]
        if own:
            found[row] = {"seeds": len(own)} | {
                name: [fmean(each[name] for each in own), stdev(each[name] for each in own) if len(own) > 1 else None]
                for name in METRICS
            }
    sizes = {"parties": TEACHERS, "own": OWN, "test": TESTED}
    return {"mails": sizes, "rows": found}


def table(found: dict[str, Any]) -> str:
    """The rows as Markdown."""
    lines = [f"| row | seeds | {' | '.join(METRICS.values())} |", f"|---|---|{'---|' * len(METRICS)}"]
    for name, row in found["rows"].items():
        shown = [
            f"{row[metric][0]:.1f}" + ("" if row[metric][1] is None else f" ± {row[metric][1]:.1f}")
            for metric in METRICS
        ]
        lines.append(f"| {name} | {row['seeds']} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
