"""The folder of released sequences: a data set of the `datasets` library, what is known of it, and a card."""

import json
from pathlib import Path
from typing import Any, Final

from aggregation.mechanisms.sequences import Sequences, SequencesMechanism
from coordinator.systems.nvdp.dataset import without_bars
from coordinator.systems.nvdp.plan import NvdpPlan
from learning.text.labelled import LabelMap

FOLDER: Final = "samples"
KNOWN: Final = "known.json"
CARD: Final = "README.md"


def write(folder: Path, plan: NvdpPlan, mechanism: SequencesMechanism, rows: Sequences) -> None:
    """Write the rows, what is known of them and the card into a new folder. Raises OSError."""
    from datasets import ClassLabel, Dataset, Features, List, Value

    folder.mkdir(parents=True)
    targets = plan.text.targets
    label = ClassLabel(names=list(targets.names)) if isinstance(targets, LabelMap) else Value("int64")
    vector = List(Value("float32"), length=mechanism.width)
    features = Features({
        "vectors": List(vector, length=mechanism.positions),
        "log_weights": List(Value("float32"), length=mechanism.positions),
        "label": label,
    })  # fmt: skip
    table = {"vectors": list(rows.vectors), "log_weights": list(rows.log_weights), "label": rows.labels.tolist()}
    with without_bars():
        Dataset.from_dict(table, features=features).save_to_disk(str(folder))
    (folder / KNOWN).write_text(json.dumps(known(plan, mechanism), indent=2) + "\n", encoding="utf-8")
    (folder / CARD).write_text(card(plan, mechanism, rows), encoding="utf-8")


def known(plan: NvdpPlan, mechanism: SequencesMechanism) -> dict[str, Any]:
    """What whoever trains on the rows has to know, as JSON values."""
    from learning.noisy_vectors.regression import centres

    targets = plan.text.targets
    found: dict[str, Any] = {
        "layer": mechanism.layer, "width": mechanism.width, "heads": plan.layer.heads, "classes": mechanism.classes,
        "plain": not mechanism.weighted,
    }  # fmt: skip
    if not isinstance(targets, LabelMap):
        middles = centres(targets.low, targets.high, mechanism.classes)
        found["scores"] = [targets.standard(float(each)) for each in middles]
    return found


def parties(mechanism: SequencesMechanism, rows: Sequences) -> int:
    """How many parties released rows: each as many."""
    return len(rows.labels) // mechanism.rows


def about(plan: NvdpPlan, mechanism: SequencesMechanism, rows: Sequences) -> str:
    """The section on the rows in the card of the whole folder."""
    return f"""## The data set

`{FOLDER}/` holds {len(rows.labels):,} rows of {parties(mechanism, rows):,} parties: of each text one sample of
the layer `{mechanism.layer}`, {mechanism.positions:,} vectors of {mechanism.width:,} numbers, with its class as it is.
`datasets.load_from_disk("this-folder/{FOLDER}")` reads it. Nothing is proven of it: see above.

"""


def card(plan: NvdpPlan, mechanism: SequencesMechanism, rows: Sequences) -> str:
    """The card of the data set: what a row is, that it has no guarantee, and a script that learns from it."""
    from learning.bottleneck.script import TRAIN

    label = "class" if isinstance(plan.text.targets, LabelMap) else "score, as the part of its range that it is in"
    return f"""---
license: {plan.student.licence}
language: {plan.student.language}
tags: [text-embeddings]
---
# {plan.run.name}: noisy sequences of texts

**No guarantee.** {len(rows.labels):,} rows of {parties(mechanism, rows):,} parties: of each text one sample of a
learned layer, as it was published (NVDP). How much a row tells of its text is not bounded, and an attacker who has the
text finds its row: see the folder above.

`vectors`: {mechanism.positions:,} vectors of {mechanism.width:,} numbers, drawn by the layer `{mechanism.layer}` above.
`log_weights`: the logarithms of their weights, which add up to 1. `label`: the text's {label}.
Some rows may be samples of a text without tokens, with a label that means nothing: every party releases as many,
whatever it holds.

## Training on it

`{KNOWN}` has the sizes. This trains a head as the one in the folder above:

```python
{TRAIN.strip()}
```
"""
