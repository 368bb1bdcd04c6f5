"""The published folder of a language model: the model in the standard library's form, its texts, a picture, a card."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.language_models.exhibits import MOST_TEXTS, texts_shown, written
from coordinator.language_models.folder import CHECKING, PICTURE, base_of, beginning, picture_of, save_model
from coordinator.language_models.students import PublicTeacher, first_student
from coordinator.page.exhibits import Exhibit
from coordinator.progress.measuring import Measuring
from coordinator.progress.progress import Progress, Silent
from coordinator.publishing.report import Statement, markdown
from coordinator.store.faults import sound
from coordinator.store.store import RunStore
from coordinator.systems.distildp.plan import DistilDpPlan
from coordinator.systems.distildp.teaching import Teacher, cells_of, facts_of, rows_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from learning.language.generation import Texts

TEXTS: Final = "texts"
TAGS: Final = ("differential-privacy", "text-generation", "synthetic-text")
_ENDS: Final = {each: f"\\u{each:04x}" for each in (0x85, 0x2028, 0x2029)}
"""Ends of lines that JSON leaves as they are in a string."""


@dataclass(frozen=True, slots=True)
class PublishedLanguageModel:
    """A `coordinator.publishing.student.Student`: a causal language model, and the texts that it learned from.

    texts, cells: the texts and the control code of each [texts].
    """

    plan: DistilDpPlan
    public: PublicTeacher
    model: "PreTrainedModel"
    texts: "Texts"
    cells: NDArray[np.int32]
    metrics: dict[str, Any]

    @property
    def neighbours(self) -> dict[str, list[str]]:
        return {}

    @property
    def claimed(self) -> None:
        return None

    def write(self, folder: Path) -> None:
        """Write the model, its tokenizer, the texts as a dataset that `datasets.load_dataset` reads, and a picture."""
        save_model(self.model, self.public, folder)
        self._texts(folder / TEXTS)
        if "token_perplexity" in self.metrics:
            from learning.language.chart import draw

            draw(bars(self.metrics), folder / PICTURE)

    def _texts(self, folder: Path) -> None:
        folder.mkdir()
        columns = [] if self.plan.codes is None else _columns(self.plan)
        with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
            for place, row in enumerate(self.texts):
                text = self.public.tokenizer.decode(row.tolist(), skip_special_tokens=True)
                code = columns[int(self.cells[place])] if columns else {}
                file.write(json_line({"text": str(text), **code}))

    def card(self, statement: Statement) -> str:
        plan, public = self.plan, self.public
        layers, depth = public.layers
        return f"""{beginning(plan, statement, self.metrics, TAGS)}\
A causal language model of {layers} layers, learned from the text of {len(statement.parties)} parties that did
not show it to each other. It was distilled from {_who(plan, depth)}, begun as `{base_of(plan)}`, on {len(self.texts):,}
texts {"of its own" if plan.dp_sgd.form == "federated" else "of theirs"}; those are in `{TEXTS}`, under the same
guarantee. Made by Conclave, recipe `{plan.run.recipe}`.

```python
from datasets import load_dataset
from transformers import pipeline

pipeline("text-generation", "this-folder")("")
load_dataset("this-folder/{TEXTS}", split="train")
```

{markdown(statement)}
{picture_of(self.metrics)}{CHECKING}"""


def json_line(row: dict[str, str]) -> str:
    """A row of JSON Lines, readable in any script, that is one line whatever a reader takes for the end of one."""
    return json.dumps(row, ensure_ascii=False).translate(_ENDS) + "\n"


def _who(plan: DistilDpPlan, depth: int) -> str:
    if plan.dp_sgd.form == "federated":
        return f"a private teacher of {depth} layers, which all parties trained"
    whose = "each kept by its party" if plan.kept else "one of each party"
    return f"private teachers of {depth} layers, {whose}"


def student_of(
    teacher: Teacher,
    content: bytes,
    texts: "Texts",
    cells: NDArray[np.int32],
    store: RunStore,
    progress: Progress | None = None,
) -> PublishedLanguageModel:
    """The student with these parameters, measured beside its teacher and what costs no training."""
    import torch
    from safetensors.torch import load

    model = first_student(teacher.plan, teacher.public, teacher.plain)
    kept = load(content)
    with torch.no_grad():
        for name, each in model.named_parameters():
            each.copy_(kept[name])
    with sound(store.folder):
        facts = facts_of(store)
    metrics = measured(teacher, model, progress or Silent()) | {
        "texts": int(facts["write"]["distinct"]),
        "repeated": int(facts["write"]["texts"]) - int(facts["write"]["distinct"]),
        "parameters": int(facts["learn"]["parameters"]),
        "of_teacher": facts["learn"]["parameters"] / facts["learn"]["teacher_parameters"],
    }
    if "warnings" in facts["write"]:
        metrics["warnings"] = [str(each) for each in facts["write"]["warnings"]]
    return PublishedLanguageModel(teacher.plan, teacher.public, model, texts, cells, metrics)


def measured(teacher: Teacher, student: "PreTrainedModel", progress: Progress) -> dict[str, Any]:
    """Perplexities on public held-out text, of the student, its teacher, the floor and the public start; none without
    such text, and none of teachers whose parameters parties keep.
    """
    from learning.language.perplexity import perplexity
    from learning.language.speaker import Speaker
    from learning.models.adapting import merged

    public = teacher.public
    if not public.heldout:
        return {}
    coded, bare = rows_of(public, coded=True), rows_of(public, coded=False)
    shown = teacher.plan.codes is not None and teacher.plan.codes.student
    told = Measuring(progress, times=2 + bool(teacher.speakers) + (teacher.floor is not None)).told
    found = perplexity([Speaker(student)], coded if shown else bare, progress=told)
    metrics: dict[str, Any] = {"token_perplexity": found.perplexity}
    if teacher.speakers:
        metrics["teacher_perplexity"] = perplexity(teacher.speakers, coded, cells_of(public), told).perplexity
    untrained = teacher.untrained
    if teacher.floor is not None:
        metrics["floor_perplexity"] = perplexity([untrained], bare, progress=told).perplexity
    plain: Speaker = Speaker(merged(public.model))
    metrics["public_perplexity"] = perplexity([plain], bare, progress=told).perplexity
    return metrics | {"tokens": found.tokens}


def bars(metrics: dict[str, Any]) -> dict[str, float]:
    """What the picture shows, by name."""
    named_bars = {
        "public_perplexity": "public model",
        "floor_perplexity": "floor: counts alone",
        "teacher_perplexity": "private teacher",
        "token_perplexity": "student",
    }
    return {label: metrics[key] for key, label in named_bars.items() if key in metrics}


def _columns(plan: DistilDpPlan) -> list[dict[str, str]]:
    """The values of the code's columns, by name, for every code in order."""
    import itertools

    assert plan.codes is not None
    names = list(plan.codes.columns)
    values = [each.values for each in plan.codes.columns.values()]
    return [dict(zip(names, each, strict=True)) for each in itertools.product(*values)]


def exhibits(student: PublishedLanguageModel) -> list[Exhibit]:
    """Texts that the student writes, and some of those that the private teacher wrote and it learned from."""
    texts, tokenizer = student.texts, student.public.tokenizer
    places = list(range(0, len(texts), max(1, len(texts) // MOST_TEXTS)))[:MOST_TEXTS]
    said = [str(tokenizer.decode(texts[place].tolist(), skip_special_tokens=True)) for place in places]
    columns = [] if student.plan.codes is None else _columns(student.plan)
    about = [
        ", ".join(f"{name}: {value}" for name, value in columns[int(student.cells[place])].items()) if columns else ""
        for place in places
    ]
    says = [
        f"Some of the {len(texts):,} texts that are published beside the student, under the same guarantee. Nobody "
        "wrote them: the private teacher drew them token by token."
    ]
    return [
        *written(student.model, student.public, student.plan.run.seed),
        *texts_shown("What it learned from", says, said, about),
    ]
