"""From a private teacher to its student: texts, what the teacher says of every token of them, and a distillation.

All of it is post-processing of what was released. Every part is kept beside the run, so that a run that was killed goes
on where it was, and ends with the same student.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordinator.language_models.floor import Floor
from coordinator.language_models.students import PublicTeacher, first_student
from coordinator.progress.progress import Progress
from coordinator.store.private_files import private_folder
from coordinator.store.store import RunStore
from coordinator.systems.distildp.plan import DistilDpPlan
from coordinator.systems.distildp.pooling import Cells, drawn, pooled, room

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from learning.language.generation import Texts
    from learning.language.soft_targets import Targets
    from learning.language.speaker import Speaker
    from learning.models.batching import Tokens

WRITTEN: Final = "artefacts/written"
TARGETS: Final = "artefacts/targets"
LEARNING: Final = "artefacts/learning"

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Teacher:
    """The teacher of a run, or one of each party. points: their trained parameters, float32 [parameters] each; none
    where parties keep them. floor: None where none was asked.
    """

    plan: DistilDpPlan
    public: PublicTeacher
    points: tuple[NDArray[np.float32], ...]
    floor: Floor | None

    @cached_property
    def plain(self) -> "PreTrainedModel":
        """The trained model, its adapters merged; of several that of their mean parameters, where students start. Of
        none it is the public start.
        """
        if not self.points:
            return self._merged(self.public.start)
        mean = np.mean(self.points, axis=0, dtype=np.float64)
        return self._merged(np.asarray(mean, np.float32))

    @cached_property
    def speakers(self) -> "tuple[Speaker, ...]":
        """The teachers as they write and grade: tilted, and mixed with the floor."""
        models = [self.plain] if len(self.points) == 1 else [self._merged(point) for point in self.points]
        return tuple(self._of(model) for model in models)

    @property
    def untrained(self) -> "Speaker":
        """What the floor makes of the public start, without training."""
        return self._of(self._merged(self.public.start))

    def _merged(self, point: NDArray[np.float32]) -> "PreTrainedModel":
        import torch

        from learning.models.adapting import merged, unflatten

        unflatten(self.public.model, torch.from_numpy(point))
        return merged(self.public.model)

    def _of(self, model: "PreTrainedModel") -> "Speaker":
        import torch

        from learning.language.speaker import Speaker

        if self.floor is None:
            return Speaker(model)
        tilt, unigram = map(torch.from_numpy, self.floor.voices(self.plan.floor.code_tilt))
        return Speaker(model, tilt, unigram if self.plan.floor.weight else None, self.plan.floor.weight)


@dataclass(frozen=True)
class Said:
    """What teachers wrote, whose parameters parties keep. parts, cells: of each party, its texts and their control
    codes. graded: what they said of every token of all texts, each once.
    """

    parts: "Sequence[Texts]"
    cells: Sequence[Cells]
    graded: "Callable[[Texts], Targets]"


def taught(teacher: Teacher, shares: Floats, store: RunStore, progress: Progress, said: "Said | None" = None) -> bytes:
    """The student's parameters as safetensors. shares: of each control code among the texts [codes]. said: what
    parties' teachers wrote and said, where parties keep these.

    Raises `RunError` where the teacher repeats itself, and `ConclaveError` as writing, grading and learning do.
    """
    from safetensors.torch import save

    with store.stage("write") as result:
        texts, cells, facts = written(teacher, shares, store, progress, said)
        result |= facts
    with store.stage("grade") as result:
        graded = _graded(teacher, texts, cells, store, progress) if said is None else said.graded(texts)
        result |= {"tokens": graded.tokens, "bytes_a_token": graded.bytes / graded.tokens}
    student = first_student(teacher.plan, teacher.public, teacher.plain)
    with store.stage("learn") as result:
        result |= _learned(teacher, student, texts, cells, graded, store, progress)
    content: bytes = save({name: each.detach().cpu().contiguous() for name, each in student.named_parameters()})
    return content


def written(
    teacher: Teacher, shares: Floats, store: RunStore, progress: Progress, said: "Said | None" = None
) -> "tuple[Texts, NDArray[np.int32], dict[str, Any]]":
    """The teacher's texts, each once, the control code of each [texts], and figures for the report.

    Codes are drawn by their shares from the plan's seed. said: as of `taught`. Raises `RunError` where nothing is left
    to learn from.
    """
    from learning.language.generation import Sampling, generate

    if said is not None:
        return pooled(teacher.public, said.parts, said.cells)
    plan, public, settings = teacher.plan, teacher.public, teacher.plan.generation
    cells = drawn(plan, shares, len(teacher.speakers))
    sampling = Sampling(room(plan, public), settings.top_k, settings.top_p, settings.temperature, settings.batch)
    folder = store.folder / WRITTEN
    private_folder(folder)
    parts: list[Texts] = []
    for number, (speaker, own) in enumerate(zip(teacher.speakers, cells, strict=True)):
        part = folder / f"teacher-{number}"
        private_folder(part)
        before = sum(len(each) for each in parts)

        def told(done: int, _: int, before: int = before) -> None:
            progress.bar("writing", before + done, settings.texts, "texts")

        parts.append(
            generate(
                speaker,
                [public.openings[cell] for cell in own],
                sampling,
                end=public.end,
                seed=plan.run.seed + number,
                folder=part,
                known=len(public.tokenizer),
                cells=own.tolist(),
                progress=told,
            )
        )
    return pooled(public, parts, cells)


def _graded(teacher: Teacher, texts: "Texts", cells: NDArray[np.int32], store: RunStore, progress: Progress) -> Any:
    """What the teacher says of every token of the texts, stored once."""
    from learning.language.soft_targets import graded

    plan, public = teacher.plan, teacher.public
    folder = store.folder / TARGETS
    private_folder(folder)
    return graded(
        teacher.speakers,
        texts,
        [[public.openings[cell] for cell in cells]] * len(teacher.speakers),
        cells=cells.tolist(),
        top=plan.distil.top,
        temperature=plan.distil.temperature,
        folder=folder,
        hidden=plan.distil.hidden > 0,
        progress=lambda done, total: progress.bar("grading", done, total, "texts"),
    )


def _learned(
    teacher: Teacher,
    student: "PreTrainedModel",
    texts: "Texts",
    cells: NDArray[np.int32],
    targets: Any,
    store: RunStore,
    progress: Progress,
) -> dict[str, Any]:
    """Distil the student in place; returns figures for the report."""
    from learning.language.distilling import distil

    folder = store.folder / LEARNING
    private_folder(folder)

    def on_step(done: int, total: int, losses: Mapping[str, float]) -> None:
        progress.bar("learning", done, total, "updates")

    outcome = distil(
        student,
        texts,
        students_openings(teacher, cells),
        targets,
        teacher.plan.distil.settings(),
        seed=teacher.plan.run.seed,
        checkpoint=folder,
        on_step=on_step,
    )
    count = sum(each.numel() for each in student.parameters())
    return {
        "steps": outcome.steps,
        "best": outcome.best,
        "losses": {name: round(value, 5) for name, value in outcome.losses.items()},
        "parameters": count,
        "teacher_parameters": sum(each.numel() for each in teacher.plain.parameters()),
    }


def students_openings(teacher: Teacher, cells: NDArray[np.int32]) -> Sequence[Sequence[int]]:
    """What stands before each text where the student reads it: the code only where the plan says so."""
    public = teacher.public
    shown = teacher.plan.codes is not None and teacher.plan.codes.student
    return [public.openings[cell] if shown else public.bare for cell in cells]


def rows_of(public: PublicTeacher, *, coded: bool) -> "list[Tokens]":
    """The documents of `[evaluation]` as tokens, each after its control code where it has one and `coded` says so."""
    from learning.models.batching import encode_documents

    codes: list[str | None] = [None] * len(public.heldout)
    if coded and public.codes is not None:
        words = public.codes.texts()
        codes = [None if each.cell is None else words[each.cell] for each in public.heldout]
    texts = [each.text for each in public.heldout]
    return encode_documents(public.tokenizer, texts, longest=public.longest, codes=codes).rows


def cells_of(public: PublicTeacher) -> list[int]:
    """The control code of each document of `[evaluation]`, -1 where it has none."""
    return [-1 if each.cell is None else each.cell for each in public.heldout]


def facts_of(store: RunStore) -> dict[str, Any]:
    """Figures of the stages of a finished learning, by the stage's name."""
    stages = store.stages()
    return {name: stages[name][2] for name in ("write", "grade", "learn")}
