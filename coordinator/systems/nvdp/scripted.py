"""Students that no standard class holds: the public encoder, tensors of what was learned, and a script of both."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from coordinator.plan.named import named
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.text_models import folder as classifier_folder
from coordinator.text_models.folder import ClassifierStudent, Erred
from coordinator.text_models.public import PublicText
from coordinator.text_models.student import erred_of, measured
from learning.text.hub import is_hub_name
from learning.text.labelled import LabelMap

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SCRIPT = "predict.py"


def scripted_student(
    plan: NvdpPlan,
    public: PublicText,
    said: Callable[[], NDArray[np.float32]],
    figures: Callable[[NDArray[np.float32]], dict[str, Any]],
    used: str,
) -> ClassifierStudent:
    """The student, measured on held-out public text where there is some.

    said: gives its outcomes of the held-out text, [texts, outputs]. figures: its metrics, from these outcomes. used:
    the card's section on how it is used.
    """
    targets, metrics, measures, scores = plan.text.targets, dict[str, Any](), None, None
    erred: tuple[Erred, ...] = ()
    if public.heldout:
        outcomes = said()
        erred = erred_of(plan, public, outcomes)
        measures, metrics = measured(plan, public, outcomes), figures(outcomes)
        if not isinstance(targets, LabelMap):
            truth = np.array([each.target for each in public.heldout], np.float64)
            scores = np.array([targets.score(float(each)) for each in outcomes[:, 0]]), truth
    return ClassifierStudent(
        model=public.model,
        tokenizer=public.tokenizer,
        targets=targets,
        pairs=plan.text.pairs,
        base=plan.model.name if is_hub_name(plan.model.name) else f"{named(plan.model.name)} (a local folder)",
        adapt=plan.model.adapt,
        metrics=metrics,
        measures=measures,
        scores=scores,
        used=used,
        erred=erred,
    )


def majority(plan: NvdpPlan, public: PublicText) -> dict[str, float]:
    """Of classes, what saying the most frequent one always is worth on held-out text."""
    if not isinstance(plan.text.targets, LabelMap):
        return {}
    counts: NDArray[np.int64] = np.bincount([int(each.target) for each in public.heldout])
    return {"majority": float(counts.max() / len(public.heldout))}


def write_scripted(
    student: ClassifierStudent, folder: Path, tensors: tuple[str, bytes], about: tuple[str, dict[str, Any]], script: str
) -> None:
    """Write the encoder with its tokenizer, and beside it the tensors, what they are of, the script and the picture.

    tensors: a file's name and its bytes, in safetensors. about: a file's name and what it says besides the labels, or
    the range of scores. Raises `OSError`.
    """
    from learning.models.checkpoints import save

    folder.mkdir(parents=True, exist_ok=True)
    model, targets = student.model, student.targets
    save(cast("PreTrainedModel", model.base_model), classifier_folder.published_tokenizer(student, model), folder)
    (folder / tensors[0]).write_bytes(tensors[1])
    said = {"labels": list(targets.names)} if isinstance(targets, LabelMap) else {"range": [targets.low, targets.high]}
    text = json.dumps(about[1] | said, indent=2, ensure_ascii=False)
    (folder / about[0]).write_text(text + "\n", encoding="utf-8")
    (folder / SCRIPT).write_text(script, encoding="utf-8")
    classifier_folder.picture(student, folder / classifier_folder.PICTURE)
