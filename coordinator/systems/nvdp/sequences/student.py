"""What a run of the published form publishes: the sequences as a data set, and the encoder, the layer and its head."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.sequences import Sequences, SequencesMechanism
from coordinator.page.exhibits import Exhibit, Table
from coordinator.publishing.report import Statement
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.systems.nvdp.scripted import majority, scripted_student, write_scripted
from coordinator.systems.nvdp.sequences import dataset
from coordinator.systems.nvdp.sequences.public import PublicSequences, form_of, heldout_samplers
from coordinator.systems.nvdp.sequences.published import compared
from coordinator.text_models.folder import metrics_of
from coordinator.text_models.student import PublishedClassifier, measured
from coordinator.text_models.student import exhibits as classifier_exhibits

if TYPE_CHECKING:
    from learning.bottleneck.forms import NoisyModel

TENSORS: Final = "layer.safetensors"
ABOUT: Final = "layer.json"
_USED: Final = """```python
import sys

sys.path.append("this-folder")
from predict import predict

predict(["a text"])
```

The encoder loads as `transformers.AutoModel`; `layer.safetensors` has the layer that samples and the head that reads
samples, and `predict.py`, a short script of torch, transformers and safetensors, joins them. What it says rests on one
sample of each text: another `seed` gives another. On a command line: `python this-folder/predict.py < texts.txt`."""


@dataclass(frozen=True, slots=True)
class PublishedSequences(PublishedClassifier):
    """A `coordinator.publishing.student.Student`. content: the layer and the head, as safetensors."""

    plan: NvdpPlan
    public: PublicSequences
    content: bytes
    mechanism: SequencesMechanism
    rows: Sequences

    def write(self, folder: Path) -> None:
        from learning.bottleneck.script import PREDICT

        form = form_of(self.plan, self.public)
        told: dict[str, Any] = {
            "kind": form.name, "tokens": form.tokens, "width": form.width, "heads": form.heads, "sigma": form.sigma,
            "outputs": form.outputs,
        }  # fmt: skip
        write_scripted(self.student, folder, (TENSORS, self.content), (ABOUT, told), PREDICT)
        dataset.write(folder / dataset.FOLDER, self.plan, self.mechanism, self.rows)

    def card(self, statement: Statement) -> str:
        """The classifier's card, with a section on the sequences before how the folder is checked."""
        front, checking, rest = PublishedClassifier.card(self, statement).partition("## Checking it")
        return front + dataset.about(self.plan, self.mechanism, self.rows) + checking + rest


def student_of(
    plan: NvdpPlan, public: PublicSequences, content: bytes, mechanism: SequencesMechanism, rows: Sequences
) -> PublishedSequences:
    """The layer and the head that was learned, measured on one sample of each held-out text where there are some."""
    import torch
    from safetensors.torch import load

    from learning.bottleneck.fitting import said
    from learning.bottleneck.forms import NoisyModel

    model = NoisyModel(form_of(plan, public), plan.run.seed)
    model.load_state_dict(load(content))
    model.train(False)

    def answers() -> NDArray[np.float32]:
        posterior = heldout_samplers(plan, public, model)
        outcomes: NDArray[np.float32] = said(model, posterior, torch.Generator().manual_seed(plan.run.seed)).numpy()
        return outcomes

    def figures(outcomes: NDArray[np.float32]) -> dict[str, Any]:
        free = majority(plan, public) | _attacked(plan, public, model)
        return metrics_of(measured(plan, public, outcomes)) | free

    student = scripted_student(plan, public, answers, figures, used=_USED)
    return PublishedSequences(student, plan, public, content, mechanism, rows)


def _attacked(plan: NvdpPlan, public: PublicSequences, model: "NoisyModel") -> dict[str, Any]:
    """What an attack finds in samples of held-out texts, and how far their samplers are apart."""
    found = compared(plan, public, plan.run.seed, model, heldout_samplers(plan, public, model))
    named, texts = found["named_texts"], int(found["compared_texts"])
    return {
        "named_texts": named,
        "infinite_pairs": found["infinite_pairs"],
        "largest_finite_divergence": found.get("largest_finite_divergence"),
        "warnings": [
            f"Whoever has {texts:,} public test texts and sees a sample of one names it in {named:.0%} of cases "
            f"(a guess: {1 / texts:.1%}). Expect the same of what parties released."
        ],
    }


def exhibits(student: PublishedSequences) -> list[Exhibit]:
    """What the published sequences are, and how good the classifier is that reads them."""
    mechanism = student.mechanism
    facts = [
        ["rows", f"{len(student.rows.labels):,}, of {dataset.parties(mechanism, student.rows):,} parties"],
        ["a row", f"one sample of a text: {mechanism.positions:,} vectors of {mechanism.width:,} numbers"],
        ["layer", mechanism.layer],
        ["label", "the text's own class, as it is"],
    ]
    says = [
        "A row is one text, as a layer that was learned draws it. Nothing is proven of it: how much of a text a row "
        "tells follows from the text, and nothing bounds it."
    ]
    table = Exhibit(title="What the rows are", says=says, content=Table(heads=["", ""], rows=facts))
    return [table, *classifier_exhibits(student)]
