"""DPED on WikiText-2: every method at epsilon 1, 2, 4 for two units, the paper's ablations, and its table of costs.

    python benchmarks/dped.py [tables] [ablations] [costs]     (all three by default)

Private text: the articles of all three files but every tenth, which is held out (the sixth of each ten; settings of the
students were chosen on the first of each ten). Public text: fifty old novels. SST-2
and IMDb are probed with the embeddings as features. It needs CONCLAVE_DATA (or ../shared/data); it keeps its cells in
benchmarks/work, and goes on where it was stopped.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CONCLAVE_DATA") or ROOT.parent / "shared/data").absolute()
WORK = ROOT / "benchmarks/work"
RESULTS = ROOT / "benchmarks/results"
EPSILONS = (1.0, 2.0, 4.0)
SEEDS = 3
COSTS = ((1_000, 3), (5_000, 5), (10_000, 8))

PLAN = """
[run]
name   = "wikitext"
recipe = "dped"
seed   = 7

[privacy]
epsilon = 4.0
delta   = 1e-5
unit    = "record"
record  = "{record}"

[federation]
launch = "ray"
[federation.shards]
source = "private.jsonl"
split  = {{ by = "hash", parties = {parties} }}

[vocabulary]
source = "{data}/novels/*.jsonl"
size   = 2000

[dped]
signals   = ["votes", "hidden"]
dimension = 100
teachers_per_party = {teachers}
{more}

[evaluation]
source = "heldout.jsonl"
probes = [
  {{ name = "sst2", source = "{data}/sst2/train.jsonl", test = "{data}/sst2/dev.jsonl" }},
  {{ name = "imdb", source = "{data}/imdb/train.jsonl", test = "{data}/imdb/dev.jsonl" }},
]
"""


def write_texts() -> None:
    """Private and held-out articles as JSON Lines in the work folder."""
    WORK.mkdir(parents=True, exist_ok=True)
    articles = []
    for name in ("train_part", "valid", "test"):
        articles += (DATA / f"wikitext2/{name}.jsonl").read_text("utf-8").splitlines()
    (WORK / "heldout.jsonl").write_text("\n".join(articles[5::10]), "utf-8")
    private = [article for number, article in enumerate(articles) if number % 10 != 5]
    (WORK / "private.jsonl").write_text("\n".join(private), "utf-8")


def compared(name: str, record: str, methods: list[str], epsilons: tuple[float, ...], **settings: object):
    """One comparison, its cells below the work folder."""
    from coordinator import api
    from coordinator.progress.terminal import Terminal

    parties, teachers = settings.pop("parties", 5), settings.pop("teachers", 2)
    seeds = settings.pop("seeds", SEEDS)
    more = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
    path = WORK / f"{name}.toml"
    path.write_text(PLAN.format(record=record, parties=parties, teachers=teachers, more=more, data=DATA))
    return api.compare(path, recipes=methods, epsilons=epsilons, seeds=seeds, output=WORK / name, progress=Terminal())


def tables() -> None:
    """Every method, for the sentence and for the pair as unit."""
    from coordinator.comparing import table

    for record in ("sentence", "pair"):
        found = compared(f"tables-{record}", record, [], EPSILONS)
        (RESULTS / f"dped-{record}.md").write_text(table.markdown(found))
        for path in table.draw(found, WORK):
            (RESULTS / f"dped-{record}{path.suffix}").write_bytes(path.read_bytes())
        (RESULTS / f"dped-{record}.json").write_text(json.dumps(_plain(found), indent=1) + "\n")


def ablations() -> None:
    """How many teachers, which threshold, what a vote is: the sentence as unit.

    Ten teachers without a threshold are the tables' own rows, whose cells are used.
    """
    rows = []
    three = ["dped", "pate", "hidden"]
    for parties, teachers, name in ((5, 1, "teachers-5"), (5, 2, "tables-sentence"), (5, 4, "teachers-20")):
        found = compared(name, "sentence", three, (2.0,), parties=parties, teachers=teachers)
        rows += [{"ablation": "teachers", "value": parties * teachers} | each for each in _means(found)]
    for threshold in (2.0, 8.0):
        settings = {"threshold": threshold, "noise_at": "coordinator", "answered": 0.5}
        found = compared(f"threshold-{threshold:g}", "sentence", ["pate"], EPSILONS, **settings)
        rows += [{"ablation": "threshold", "value": threshold} | each for each in _means(found)]
    for vote in ("probable", "lift"):
        found = compared(f"vote-{vote}", "sentence", ["pate"], (4.0, 40.0), vote=vote, queries=20)
        rows += [{"ablation": "20 queries, vote", "value": vote} | each for each in _means(found)]
    (RESULTS / "dped-ablations.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(row)


def costs() -> None:
    """The paper's table 2: so many sentences, so many teachers; each in a process of its own."""
    rows = []
    for samples, teachers in COSTS:
        done = subprocess.run(
            [sys.executable, __file__, "cost", str(samples), str(teachers)], check=True, capture_output=True, text=True
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1])
    (RESULTS / "dped-costs.json").write_text(json.dumps(rows, indent=1) + "\n")


def cost(samples: int, teachers: int) -> None:
    """One line of the table: seconds of each step, and the peak of this process's memory."""
    import numpy as np

    from aggregation.mechanisms.joint import TeacherSignal
    from aggregation.noise.stream import NoiseStream
    from coordinator.systems.dped.methods import changed
    from coordinator.systems.dped.public import prepare
    from coordinator.systems.dped.releases import ANSWERS
    from coordinator.systems.registry import price_of, read_plan
    from learning.embeddings.cooccurrence import counts_of
    from learning.embeddings.distilling import distil
    from learning.embeddings.released_answers import ReleasedAnswers
    from learning.embeddings.teachers import hidden_states, train_teacher, votes_of
    from learning.text.words import sentences, tokenize

    path = WORK / "cost.toml"
    path.write_text(PLAN.format(record="sentence", parties=teachers, teachers=1, more="", data=DATA))
    plan = changed(read_plan(path), epsilon=4.0)
    public = prepare(plan, WORK, WORK / "cache")
    assert public.reference is not None
    times = {}
    begun = time.monotonic()
    texts = [json.loads(line)["text"] for line in (WORK / "private.jsonl").open(encoding="utf-8")]
    found = [sentence for text in texts for sentence in sentences(text)][:samples]
    encoded = [public.vocabulary.encode(tokenize(sentence)) for sentence in found]
    size = len(public.vocabulary)
    shards = [counts_of(encoded[number::teachers], size, plan.dped.window) for number in range(teachers)]
    times["preprocess"] = time.monotonic() - begun
    begun = time.monotonic()
    models = [train_teacher(shard, public.reference, alignment="initialisation", seed=7) for shard in shards]
    times["teachers"] = time.monotonic() - begun
    begun = time.monotonic()
    votes = np.stack([votes_of(model, public.queries, public.classes) for model in models])
    states = np.stack([hidden_states(model, public.queries, plan.dped.layers) for model in models])
    mechanism = price_of(plan).release(ANSWERS).mechanism
    total = mechanism.contribute(TeacherSignal(votes, states)).toarray()
    for _ in range(teachers):
        total = total + mechanism.noise_share(total.shape, NoiseStream.from_system())
    released = mechanism.release(total, teachers)
    times["aggregation"] = time.monotonic() - begun
    begun = time.monotonic()
    hidden = released.hidden.values.reshape(len(public.queries), 1, -1) / teachers
    answers = ReleasedAnswers(
        public.queries, public.weights, labels=public.classes[released.votes.values.argmax(axis=1)], hidden=hidden,
        layers=plan.dped.layers, hidden_noise=released.hidden.sigma / teachers,
    )  # fmt: skip
    distil(public.reference, answers, weighting="likelihood")
    times["student"] = time.monotonic() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rounded = {name: round(seconds, 2) for name, seconds in times.items()}
    print(json.dumps({"samples": len(found), "teachers": teachers, "seconds": rounded, "peak_mib": round(peak)}))


def _plain(found) -> dict:
    """The comparison as JSON values: every cell, less its event."""
    cells = [
        {
            "method": cell.method, "epsilon": cell.epsilon, "seed": cell.seed, "paid": cell.paid,
            "claimed": cell.claimed, "metrics": cell.metrics, "notes": cell.notes, "seconds": round(cell.seconds, 1),
        }
        for cell in found.cells
    ]  # fmt: skip
    return {
        "delta": found.plan.privacy.delta, "record": found.plan.privacy.record, "words": found.plan.vocabulary.size,
        "total_epsilon": found.total.epsilon, "cells": cells,
    }  # fmt: skip


def _means(found) -> list[dict]:
    """Mean over the seeds of each method at each epsilon."""
    rows = []
    for method in found.methods:
        for epsilon in found.epsilons:
            cells = found.of(method.name, epsilon)
            row = {"method": method.name, "epsilon": epsilon, "claimed": cells[0].claimed}
            row["perplexity"], row["spread"] = found.spread(method.name, epsilon, "perplexity")
            for name in sorted({name for cell in cells for name in cell.notes}):
                row[name] = sum(cell.notes[name] for cell in cells) / len(cells)
            rows.append({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    return rows


def main(arguments: list[str]) -> int:
    if not (DATA / "wikitext2").is_dir():
        print(f"needs wikitext2, novels, sst2 and imdb in CONCLAVE_DATA or {DATA}", file=sys.stderr)
        return 0
    sys.path.insert(0, str(ROOT))
    write_texts()
    os.environ.setdefault("CONCLAVE_HOME", str(WORK / "home"))
    if arguments[:1] == ["cost"]:
        cost(int(arguments[1]), int(arguments[2]))
        return 0
    parts = {"tables": tables, "ablations": ablations, "costs": costs}
    for name in arguments or list(parts):
        parts[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
