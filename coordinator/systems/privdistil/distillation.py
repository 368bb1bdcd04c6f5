"""Distils a student from the public teacher on public texts and stores it beside the run, ready to be fine-tuned."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.federation.aside import Told
from coordinator.store.private_files import close_to_others, private_folder
from coordinator.systems.privdistil.plan import PrivDistilPlan
from coordinator.systems.privdistil.public import PublicCorpus, first_student

COMPRESSED: Final = "artefacts/compressed"
"""The folder in a run for the distilled student, an ordinary model."""
_BEGUN: Final = "distilling"


def compress(
    plan: PrivDistilPlan, public: PublicCorpus, numbers: NDArray[np.int64], folder: Path, base: Path, told: Told
) -> dict[str, Any]:
    """Distil the student on these texts of the corpus; when this returns, the model's folder is complete.

    folder: where the model goes. An unfinished distillation lies beside it and is resumed. base: the folder against
    which the plan's model paths are resolved. told: called at every step. Returns figures for the report. Memory: as
    `learning.transformers.distilling` states. Raises `ConclaveError` for a training that diverged, and whatever `told`
    raises.
    """
    from learning.models.checkpoints import pooling_of
    from learning.transformers.distilling import distil
    from learning.transformers.layered_student import save

    teacher, student, tokenizer = first_student(plan, public.teacher, base, public.cache)
    begun = folder.with_name(_BEGUN)
    private_folder(begun)
    chosen = numbers.tolist()

    def on_step(step: int, steps: int, losses: Mapping[Any, float]) -> None:
        told("distilling", step, steps)

    outcome = distil(
        teacher,
        student,
        lambda: public.corpus.texts(chosen),
        plan.distil.settings(),
        tokenizer=tokenizer,
        seed=plan.run.seed,
        checkpoint=begun,
        on_step=on_step,
    )
    made = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    save(student, tokenizer, made, pooling_of(public.teacher, public.cache))
    close_to_others(made)
    shutil.rmtree(folder, ignore_errors=True)
    made.rename(folder)
    shutil.rmtree(begun, ignore_errors=True)
    count = sum(each.numel() for each in student.parameters())
    return {
        "texts": outcome.texts,
        "steps": outcome.steps,
        "losses": {name: round(value, 5) for name, value in outcome.losses.items()},
        "parameters": count,
        "teacher_parameters": sum(each.numel() for each in teacher.parameters()),
    }
