"""The student of pairs of texts: the public encoder, the rule that was learned, and a script that applies both.

No standard class takes two vectors apart and their products and distances together. So the folder has the encoder as
the transformers library loads it, the projection and the rule as tensors, and `predict.py`, which needs nothing of this
project.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.systems.nvdp.public import PublicVectors
from coordinator.systems.nvdp.rules import Tensors, cosine_said, said_by
from coordinator.systems.nvdp.scripted import majority, scripted_student, write_scripted
from coordinator.text_models.folder import metrics_of
from coordinator.text_models.student import PublishedClassifier, measured

RULE: Final = "rule.safetensors"
ABOUT: Final = "rule.json"
_USED: Final = """```python
import sys

sys.path.append("this-folder")
from predict import predict

predict([("one text", "and another")])
```

The encoder loads as `transformers.AutoModel`; `rule.safetensors` has what is made of two texts' vectors, and
`predict.py`, a short script of torch, transformers, numpy and safetensors, joins them. Which text is the first does not
matter. On a command line: `python this-folder/predict.py < pairs.tsv`, two texts a line with a tab between them."""


@dataclass(frozen=True, slots=True)
class PublishedPairs(PublishedClassifier):
    """A `coordinator.publishing.student.Student`. rule: what was learned."""

    plan: NvdpPlan
    public: PublicVectors
    rule: Tensors

    def write(self, folder: Path) -> None:
        from safetensors.numpy import save

        from learning.noisy_vectors.predict import PREDICT

        projection = self.public.projection
        tensors = {"centre": projection.centre, "matrix": projection.scale * projection.matrix} | self.rule
        content = save({name: np.ascontiguousarray(each) for name, each in tensors.items()})
        write_scripted(self.student, folder, (RULE, content), (ABOUT, {"longest": self.public.longest}), PREDICT)


def pair_student(plan: NvdpPlan, public: PublicVectors, kept: dict[str, NDArray[np.float64]]) -> PublishedPairs:
    """The rule that was learned of pairs, measured where there are public ones, beside what costs nothing."""
    rule = {name: kept[name] for name in ("weights", "bias")}
    student = scripted_student(
        plan,
        public,
        said=lambda: said_by(plan, public, rule),
        figures=lambda said: pair_metrics(plan, public, said) | _free(plan, public),
        used=_USED,
    )
    return PublishedPairs(student, plan, public, rule)


def pair_metrics(plan: NvdpPlan, public: PublicVectors, said: NDArray[np.float32]) -> dict[str, Any]:
    """The figures of what is said of held-out pairs, as `said_by` gives it; of two classes also the F1 of the second,
    by which paraphrases are judged.
    """
    found = metrics_of(measured(plan, public, said))
    if said.shape[1] != 2:
        return found
    second, true = said.argmax(axis=1) == 1, np.array([each.target for each in public.heldout]) == 1
    right, either = int((second & true).sum()), int(second.sum() + true.sum())
    return found | {"f1": 2 * right / either if either else 0.0}


def _free(plan: NvdpPlan, public: PublicVectors) -> dict[str, float | None]:
    """What costs nothing: the cosine of the held-out pairs alone, and of classes the most frequent one."""
    found: dict[str, float | None] = {}
    alone = cosine_said(plan, public)
    if alone is not None:
        figures = metrics_of(measured(plan, public, alone))
        found["cosine"] = figures["accuracy" if "accuracy" in figures else "pearson"]
    return found | majority(plan, public)
