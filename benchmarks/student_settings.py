"""How a DistilDP student depends on the texts it learns from and on how it learns: one private teacher, many students.

    python benchmarks/student_settings.py RUN --texts 3000 --mixing 0.8 [--temperature 1] [--drawn best]

RUN is the folder of a finished run of examples/distildp/plan.toml. All that is done here follows what that run
released, so nothing more is spent. Each call adds a row to benchmarks/results/student_settings.json: perplexity on the
first 1,000 texts of the development file. drawn: the next token among "all", or among the "best" (top-k 50, top-p 0.9).
The picture beside the file shows, of the last row's teacher, what l (mixing), t (temperature) and the number of texts
change where all else is as by default.
"""

import argparse
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results/student_settings.json"
WORK = ROOT / "benchmarks/work/student_settings"
PLAN = ROOT / "examples/distildp/plan.toml"
MEASURED = 1000
SHOWN = {"mixing": "l", "temperature": "t", "texts": "texts"}
DRAWN = {"all": {"top_k": 0, "top_p": 1.0}, "best": {"top_k": 50, "top_p": 0.9}}


def main() -> None:
    """Distil one student and write down what it says of real text."""
    parser = argparse.ArgumentParser(description="Distil a student of a finished run with other settings.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--texts", type=int, default=3000)
    parser.add_argument("--drawn", choices=list(DRAWN), default="all")
    parser.add_argument("--mixing", type=float, default=0.8)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=0.001)
    options = parser.parse_args()
    row = {key: value for key, value in vars(options).items() if key != "run"}
    row |= learned(options.run, row)
    print(row)
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    RESULTS.write_text(json.dumps([*rows, row], indent=1) + "\n")
    usual = vars(parser.parse_args([str(options.run)]))
    draw([*rows, row], {key: value for key, value in usual.items() if key != "run"})


def learned(run: Path, row: dict[str, Any]) -> dict[str, float]:
    """The perplexities of a student with these settings, and of its teacher."""
    from coordinator.comparing.comparable import changed
    from coordinator.pricing.priced_plan import price_plan
    from coordinator.progress.terminal import Terminal
    from coordinator.store.store import RunStore
    from coordinator.systems.distildp.public import prepare
    from coordinator.systems.distildp.recipe import DistilDp
    from coordinator.systems.distildp.student import student_of
    from coordinator.systems.distildp.teaching import TARGETS, WRITTEN, taught, written
    from coordinator.systems.registry import read_plan

    plan = read_plan(PLAN)
    public = prepare(plan, PLAN.parent, ROOT / "benchmarks/work/cache")
    public = dataclasses.replace(public, heldout=public.heldout[:MEASURED])
    recipe, of_run = DistilDp(plan, public), RunStore(run)
    priced = price_plan(recipe)
    shares = recipe.shares(priced, dict.fromkeys(("tokens", "codes", "steps"), len(plan.federation.names)), of_run)
    settings = {key: row[key] for key in ("mixing", "temperature", "passes", "batch", "learning_rate")}
    other = changed(plan, {"generation": {"texts": row["texts"], **DRAWN[row["drawn"]]}, "distil": settings})
    teacher = dataclasses.replace(recipe.teacher(of_run), plan=other)
    folder = WORK / "student"
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    store = RunStore.create(folder, "students", "students", of_run.plan_hash)
    kept = WORK / f"texts-{row['texts']}-{row['drawn']}-{row['temperature']:g}"
    if kept.exists():
        for part in (WRITTEN, TARGETS):
            shutil.copytree(kept / part, folder / part)
    content = taught(teacher, shares, store, Terminal())
    if not kept.exists():
        for part in (WRITTEN, TARGETS):
            shutil.copytree(folder / part, kept / part)
    texts, cells, _ = written(teacher, shares, store, Terminal())
    found = student_of(teacher, content, texts, cells, store).metrics
    names = ("token_perplexity", "teacher_perplexity", "floor_perplexity", "public_perplexity")
    return {name: round(float(found[name]), 2) for name in names}


def draw(rows: list[dict[str, Any]], usual: dict[str, Any]) -> None:
    """Draw perplexity over each of `SHOWN`, the others being as usual, for the teacher of the last row."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "student_settings"
    from matplotlib import pyplot as plt

    teacher = rows[-1]["teacher_perplexity"]
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(12, 3.6), layout="constrained", sharey=True)
    for axis, (name, label) in zip(axes, SHOWN.items(), strict=True):
        alike = [row for row in rows if all(row[key] == value for key, value in usual.items() if key != name)]
        points = {row[name]: row["token_perplexity"] for row in alike if row["teacher_perplexity"] == teacher}
        if points:
            axis.plot(*zip(*sorted(points.items()), strict=True), marker="o", label="student")
        axis.axhline(teacher, color="C1", linestyle="--", label="its private teacher")
        axis.set(xlabel=label)
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="perplexity of a token")
    axes[0].legend(fontsize="small")
    for kind, metadata in (("png", None), ("svg", {"Date": None})):
        figure.savefig(RESULTS.with_suffix(f".{kind}"), dpi=150, metadata=metadata)
    plt.close(figure)


if __name__ == "__main__":
    main()
