"""What a run of the published form publishes: the sequences as a data set, and the encoder, the layer and its head."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.sequences import Sequences, SequencesMechanism
from coordinator.plan.named import named
from coordinator.publishing.report import Statement
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.systems.nvdp.published import compared
from coordinator.systems.nvdp.sequences import dataset
from coordinator.systems.nvdp.sequences.public import PublicSequences, form_of, heldout_samplers
from coordinator.text_models import folder as classifier_folder
from coordinator.text_models.folder import ClassifierStudent, metrics_of
from coordinator.text_models.student import PublishedClassifier, measured
from learning.text.hub import is_hub_name
from learning.text.labelled import LabelMap

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from learning.bottleneck.forms import NoisyModel

TENSORS: Final = "layer.safetensors"
ABOUT: Final = "layer.json"
SCRIPT: Final = "predict.py"
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
        from learning.models.checkpoints import save as save_model

        folder.mkdir(parents=True, exist_ok=True)
        model, plan = self.student.model, self.plan
        encoder = cast("PreTrainedModel", model.base_model)
        save_model(encoder, classifier_folder.published_tokenizer(self.student, model), folder)
        (folder / TENSORS).write_bytes(self.content)
        form, targets = form_of(plan, self.public), plan.text.targets
        told: dict[str, Any] = {
            "kind": form.name, "tokens": form.tokens, "width": form.width, "heads": form.heads, "sigma": form.sigma,
            "outputs": form.outputs,
        }  # fmt: skip
        told |= (
            {"labels": list(targets.names)} if isinstance(targets, LabelMap) else {"range": [targets.low, targets.high]}
        )
        (folder / ABOUT).write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        (folder / SCRIPT).write_text(PREDICT, encoding="utf-8")
        classifier_folder.picture(self.student, folder / classifier_folder.PICTURE)
        dataset.write(folder / dataset.FOLDER, plan, self.mechanism, self.rows)

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

    targets, model = plan.text.targets, NoisyModel(form_of(plan, public), plan.run.seed)
    model.load_state_dict(load(content))
    model.train(False)
    metrics: dict[str, Any] = {}
    measures, scores = None, None
    if public.heldout:
        posterior = heldout_samplers(plan, public, model)
        answers = said(model, posterior, torch.Generator().manual_seed(plan.run.seed)).numpy()
        measures = measured(plan, public, answers)
        metrics = metrics_of(measures) | _free(plan, public) | _attacked(plan, public, model)
        if not isinstance(targets, LabelMap):
            truth = np.array([each.target for each in public.heldout], np.float64)
            scores = np.array([targets.score(float(each)) for each in answers[:, 0]]), truth
    student = ClassifierStudent(
        model=public.model,
        tokenizer=public.tokenizer,
        targets=targets,
        pairs=False,
        base=plan.model.name if is_hub_name(plan.model.name) else f"{named(plan.model.name)} (a local folder)",
        adapt=plan.model.adapt,
        metrics=metrics,
        measures=measures,
        scores=scores,
        used=_USED,
    )
    return PublishedSequences(student, plan, public, content, mechanism, rows)


def _free(plan: NvdpPlan, public: PublicSequences) -> dict[str, float]:
    """Of classes, what saying the most frequent one always is worth."""
    if not isinstance(plan.text.targets, LabelMap):
        return {}
    counts: NDArray[np.int64] = np.bincount([int(each.target) for each in public.heldout])
    return {"majority": float(counts.max() / len(public.heldout))}


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
