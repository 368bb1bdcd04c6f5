"""The folder of released rows: a data set of the `datasets` library, what is known of its noise, and a card."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from aggregation.mechanisms.samples import SamplesMechanism
from coordinator.pricing.release import rounded_up
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.systems.nvdp.pooling import Rows
from coordinator.systems.nvdp.public import PublicVectors
from learning.text.labelled import LabelMap

FOLDER: Final = "samples"
KNOWN: Final = "known.json"
PROJECTION: Final = "projection.safetensors"
CARD: Final = "README.md"


def write(folder: Path, plan: NvdpPlan, public: PublicVectors, mechanism: SamplesMechanism, rows: Rows) -> None:
    """Write the rows, what is known of them, the projection and the card into a new folder. Raises OSError."""
    from datasets import ClassLabel, Dataset, Features, List, Value

    folder.mkdir(parents=True)
    targets = plan.text.targets
    label = ClassLabel(names=list(targets.names)) if isinstance(targets, LabelMap) else Value("int64")
    features = Features({"vector": List(Value("float32"), length=mechanism.dimensions), "label": label})
    # Every number is a whole number of grid steps below 2^24, which float32 holds exactly.
    table = {"vector": list(rows.vectors.astype(np.float32)), "label": rows.labels.tolist()}
    with without_bars():
        Dataset.from_dict(table, features=features).save_to_disk(str(folder))
    (folder / KNOWN).write_text(json.dumps(known(plan, public, mechanism), indent=2) + "\n", encoding="utf-8")
    (folder / PROJECTION).write_bytes(public.projection.to_bytes())
    (folder / CARD).write_text(card(plan, public, mechanism, rows), encoding="utf-8")


@contextmanager
def without_bars() -> Iterator[None]:
    """No progress bars of the library: the rows are few."""
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def known(plan: NvdpPlan, public: PublicVectors, mechanism: SamplesMechanism) -> dict[str, Any]:
    """What whoever trains on the rows has to know, as JSON values."""
    from learning.noisy_vectors.regression import centres

    statistics, targets = public.statistics, plan.text.targets
    found: dict[str, Any] = {
        "sigma": mechanism.sigma,
        "label_epsilon": mechanism.label_epsilon or None,
        "classes": mechanism.classes,
        "mean": statistics.mean.tolist(),
        "covariance": statistics.covariance.tolist(),
        "encoder": public.digest,
        "dimensions": mechanism.dimensions,
    }
    if not isinstance(targets, LabelMap):
        found["scores"] = centres(targets.low, targets.high, mechanism.classes).tolist()
    if statistics.class_means is not None and statistics.shares is not None:
        found |= {"class_means": statistics.class_means.tolist(), "shares": statistics.shares.tolist()}
    return found


def about(plan: NvdpPlan, public: PublicVectors, mechanism: SamplesMechanism, rows: Rows) -> str:
    """The section on the rows in the card of the whole folder."""
    scored = not isinstance(plan.text.targets, LabelMap)
    what, unit = "the part of the range of its score" if scored else "class", "pair" if plan.text.pairs else "text"
    labels = f"with {'' if scored else 'a '}{what} under randomised response"
    if not mechanism.label_epsilon:
        labels = f"with {what if scored else 'its public class'}{', which is public' if scored else ''}"
    return f"""## The data set

`{FOLDER}/` holds {len(rows.labels):,} rows of {rows.parties} parties: of each {unit} a noisy vector of
{mechanism.dimensions} numbers, {labels}. `datasets.load_from_disk("this-folder/{FOLDER}")` reads it, and its card says
how to train on it: whatever is made of the rows costs no privacy, and whoever does not correct for their noise learns
next to nothing.

"""


def card(plan: NvdpPlan, public: PublicVectors, mechanism: SamplesMechanism, rows: Rows) -> str:
    """The card of the data set: what a row is, its noise, its guarantee, and a script that learns from it."""
    from learning.noisy_vectors.script import SCRIPT

    epsilon = rounded_up(plan.privacy.epsilon) if plan.privacy.guarantee else "none"
    kept = f"{mechanism.kept:.3f}" if mechanism.label_epsilon else "1"
    explained = f"{public.projection.explained:.0%}"
    spread = math.sqrt(float(np.trace(public.statistics.covariance)) / mechanism.dimensions)
    return f"""---
license: {plan.student.licence}
language: {plan.student.language}
tags: [differential-privacy, text-embeddings]
---
# {plan.run.name}: noisy vectors of {"pairs of texts" if plan.text.pairs else "texts"}

{len(rows.labels):,} rows of {rows.parties} parties. `vector`: {_made(plan)} the public encoder in the folder above and
the projection in `{PROJECTION}`, {mechanism.dimensions} numbers with {explained} of the encoder's variance on public
text, brought to norm 1 at most, with Gaussian noise of standard deviation {mechanism.sigma:.4g} on every number.
Without noise, a number's own standard deviation is about {spread:.2g}: a single row says next to nothing, many say
something.
`label`: {_label(plan, mechanism)}, which is the true one with probability {kept}.
Some rows may be noise alone: every party releases as many, whatever it holds, and nothing tells which.

The guarantee of the whole run, epsilon {epsilon} at most, is in the folder above: `privacy.json`.

## Training on it

`{KNOWN}` has the noise, and the mean and covariance of public text's vectors. Ordinary training on the rows as they are
learns nearly nothing. This corrects for the noise:

```python
{SCRIPT.strip()}
```
"""


def _made(plan: NvdpPlan) -> str:
    """What a vector is made of."""
    if not plan.text.pairs:
        return "the text under"
    return (
        "the pair's products u * v, then its distances |u - v|, of its two texts' vectors u and v at norm 1 (so that\n"
        "the order of the texts does not matter), under"
    )


def _label(plan: NvdpPlan, mechanism: SamplesMechanism) -> str:
    """What a row's label is."""
    whose, targets = "pair" if plan.text.pairs else "text", plan.text.targets
    if isinstance(targets, LabelMap):
        return f"the {whose}'s class"
    return (
        f"in which of {mechanism.classes} equal parts of the range from {targets.low:g} to {targets.high:g} the "
        f"{whose}'s score lies\n(`scores` in `{KNOWN}` has their middles)"
    )
