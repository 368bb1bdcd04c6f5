"""What stands out of the noise of swing's certified form: by the number of teachers, and by what is clipped together.

    python benchmarks/swing_answers.py

Some of so many teachers are trained, each on 140, 35 or 14 e-mails, as 100, 400 or 1,000 teachers of four parties have;
their mean is taken for that of all. Of 100 other e-mails they say how far they are from the public model. That is
clipped, a token at a time or over all tokens together, summed, noised at epsilon 4 and 8, and made answers of. Measured
is what an answer says of the token that stands there, in nats; known is the share of the way from the public model to
the teachers' own mean. Teachers are kept in benchmarks/work/swing_answers; results in
benchmarks/results/swing_answers.json. It takes 20 minutes of a core, and needs ../shared/data and ../shared/models.
"""

import json
import math
import tomllib
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "benchmarks/work/swing_answers"
RESULTS = ROOT / "benchmarks/results"
PLAN = ROOT / "examples/swing"
SEED, TOP, DELTA = 7, 8, 1e-5
SIZES = ((100, 40, 140, 32), (400, 60, 35, 8), (1000, 60, 14, 4))
"""Teachers of all parties, how many of them are trained, e-mails of each, and a batch of these."""
EPSILONS, CLIPS = (4.0, 8.0), (0.1, 0.15, 0.25, 0.35)


def main() -> None:
    """Train the teachers that are not there, and put what stands out beside the other results."""
    import torch

    from learning.swing.answers import cells_of_texts

    torch.set_num_threads(1)
    WORK.mkdir(parents=True, exist_ok=True)
    data = read()
    texts, public = data.public.queries, speaker(data)
    openings, plain = [data.public.bare] * len(texts), np.ones(len(texts.ids))
    cells = cells_of_texts(public, texts, openings, plain, TOP)
    rows = [row for part in data.documents(coded=False) for row in part.rows]
    order = np.random.default_rng(0).permutation(len(rows))
    found = []
    for teachers, some, mails, batch in SIZES:
        path = WORK / f"{teachers}.npy"
        if not path.exists():
            of_each = (order[place * mails : (place + 1) * mails] for place in range(some))
            said = [taught(data, [rows[at] for at in own], batch, place, cells) for place, own in enumerate(of_each)]
            np.save(path, np.stack(said))
        found += answered(np.load(path), cells, texts.ids, teachers)
    (RESULTS / "swing_answers.json").write_text(json.dumps({"tokens": len(texts.ids), "rows": found}, indent=1) + "\n")
    print(table(found))


def read() -> Any:
    """The data of the shipped plan, its model's adapters begun."""
    from coordinator import api
    from coordinator.progress.progress import Silent
    from coordinator.systems.registry import plan_of

    tables = tomllib.loads((PLAN / "plan.toml").read_text())
    tables["queries"]["limit"], tables["teachers"] = 100, {"epochs": 3, "batch": 32}
    with chdir(PLAN):
        comparison = api.comparable_of(plan_of(tables), PLAN, Silent())
        return comparison.data(SEED, WORK)


def speaker(data: Any) -> Any:
    """The public model."""
    import torch

    from learning.language.speaker import Speaker
    from learning.models.adapting import unflatten

    unflatten(data.public.model, torch.from_numpy(data.public.start))
    return Speaker(data.public.model)


def taught(data: Any, rows: list[Any], batch: int, number: int, cells: Any) -> NDArray[np.float32]:
    """How far a teacher of these e-mails is from the public model at every token, [tokens, outcomes + 1]."""
    from learning.classification.training import fit
    from learning.swing.answers import differences_of_texts

    said, texts = speaker(data), data.public.queries
    settings = replace(data.plan.teachers.fit(), batch=batch)
    fit(data.public.model, rows, None, settings, np.random.default_rng([SEED, number]))
    openings = [data.public.bare] * len(texts)
    found: NDArray[np.float32] = differences_of_texts(said, texts, openings, np.ones(len(texts.ids)), cells).astype(
        np.float32
    )
    return found


def answered(each: NDArray[np.float32], cells: Any, own: NDArray[np.int32], teachers: int) -> list[dict[str, Any]]:
    """Of so many teachers, what the answers say and how much of them is known, by epsilon, clip and what is clipped."""
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    from aggregation.mechanisms.mechanism import Released
    from learning.swing.shrinking import answers_of

    hit = cells.ids == own[:, None]
    place = np.where(hit.any(axis=1), hit.argmax(axis=1), cells.top)
    everyone = np.arange(len(place))

    def says(chances: NDArray[np.float64]) -> float:
        return float(-np.log(np.maximum(chances[everyone, place], 1e-9)).mean())

    start, best = says(cells.public), says(cells.public + each.mean(axis=0))
    found = []
    for epsilon in EPSILONS:
        low, high = 0.05, 50.0
        for _ in range(40):
            multiplier = math.sqrt(low * high)
            paid = PLDAccountant().compose(GaussianDpEvent(multiplier)).get_epsilon(DELTA)
            low, high = (multiplier, high) if paid > epsilon else (low, multiplier)
        for clip in CLIPS:
            sigma = high * 2 * clip * math.sqrt(len(place))
            for together in (False, True):
                bound = clip * (math.sqrt(len(place)) if together else 1)
                norms = np.linalg.norm(each, axis=(1, 2) if together else 2, keepdims=True)
                mean = (each * np.minimum(1, bound / np.maximum(norms, 1e-12))).mean(axis=0)
                noise = sigma * np.random.default_rng(0).normal(size=mean.shape)
                answers = answers_of(Released(teachers * mean + noise, sigma), cells, teachers)
                nats = says(answers.chances)
                found.append(
                    {
                        "teachers": teachers,
                        "epsilon": epsilon,
                        "clip": clip,
                        "together": together,
                        "public": round(start, 4),
                        "clear": round(best, 4),
                        "answers": round(nats, 4),
                        "known": round((start - nats) / (start - best), 3),
                        "weight": round(float(answers.weights.mean()), 3),
                    }
                )
    return found


def table(found: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = ["| teachers | epsilon | clip | a token at a time | together | weight |", "|---|---|---|---|---|---|"]
    for one, other in zip(found[::2], found[1::2], strict=True):
        lines.append(
            f"| {one['teachers']:,} | {one['epsilon']:g} | {one['clip']:g} | {one['known']:.2f} | {other['known']:.2f} "
            f"| {other['weight']:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
