"""The published folder of a swing student: the model in the standard library's form, a picture, a card."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from coordinator.language_models.exhibits import written
from coordinator.language_models.folder import CHECKING, PICTURE, base_of, beginning, picture_of, save_model
from coordinator.language_models.pairs import answers_rouge, heldout_rows
from coordinator.language_models.students import first_student
from coordinator.page.exhibits import Exhibit
from coordinator.progress.measuring import Measuring
from coordinator.progress.progress import Progress
from coordinator.publishing.report import Statement, markdown
from coordinator.store.faults import sound
from coordinator.store.store import RunStore
from coordinator.systems.swing.plan import SwingPlan
from coordinator.systems.swing.public import PublicSwing
from coordinator.systems.swing.questions import start_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


DROWNED: Final = (
    "The noise hides what the teachers said: the student learned from the texts of [queries] alone. Ask fewer texts, "
    "have more teachers ([teachers] per_party), or spend a larger epsilon."
)
_DROWNED: Final = 0.01
TAUGHT: Final = "artefacts/taught.safetensors"
"""The student as teachers taught it, where it is trained privately afterwards."""
TAGS: Final = ("differential-privacy", "text-generation")


@dataclass(frozen=True, slots=True)
class PublishedSwing:
    """A `coordinator.publishing.student.Student`: a causal language model that was taught by the parties'."""

    plan: SwingPlan
    public: PublicSwing
    model: "PreTrainedModel"
    metrics: dict[str, Any]

    @property
    def neighbours(self) -> dict[str, list[str]]:
        return {}

    @property
    def claimed(self) -> None:
        return None

    def write(self, folder: Path) -> None:
        """Write the model and its tokenizer, and a picture where something was measured."""
        save_model(self.model, self.public, folder)
        if "token_perplexity" in self.metrics:
            from learning.language.chart import draw

            shown = {"public model": "public_perplexity", "student": "token_perplexity"}
            draw({name: self.metrics[key] for name, key in shown.items()}, folder / PICTURE)

    def card(self, statement: Statement) -> str:
        plan, public = self.plan, self.public
        texts = "public texts" if plan.queries.public else "texts of whoever ran this"
        teaching = sum(name in plan.teaching for name in statement.parties)
        kind, asked = "causal language model", "token of them"
        if plan.pairs:
            texts, asked = f"{texts}, answers to inputs", "token of the answers"
            kind = "model with an encoder and a decoder" if public.paired else kind
        return f"""{beginning(plan, statement, self.metrics, TAGS, pipeline=not public.paired)}\
A {kind} of {public.layers[0]} layers, begun as `{base_of(plan)}`. It learned from
{len(public.queries):,} {texts}, and from what {plan.teachers_of_all:,} language models would say in the place of every
{asked}. Those were trained on the text of {teaching} parties.{_trained(plan)} Made by Conclave, recipe
`{plan.run.recipe}`.

```python
{_code(plan, public)}
```

{markdown(statement)}
{picture_of(self.metrics)}{CHECKING}"""


def _code(plan: SwingPlan, public: PublicSwing) -> str:
    """How the folder is used, with the standard library alone."""
    if public.paired:
        return f"""from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("this-folder")
tokenizer = AutoTokenizer.from_pretrained("this-folder")
asked = tokenizer("An input.", truncation=True, max_length={public.longest - plan.text.answer}, return_tensors="pt")
said = model.generate(asked.input_ids, max_new_tokens={plan.text.answer}, do_sample=False, num_beams=1)
tokenizer.decode(said[0], skip_special_tokens=True)"""
    if plan.pairs:
        return f"""from transformers import pipeline

writer = pipeline("text-generation", "this-folder")
separator = {json.dumps(plan.text.separator)}
writer("An input." + separator, max_new_tokens={plan.text.answer}, return_full_text=False, do_sample=False)"""
    return """from transformers import pipeline

pipeline("text-generation", "this-folder")("")"""


def _trained(plan: SwingPlan) -> str:
    many = len(plan.learners)
    if not many:
        return ""
    whose = "a party that has" if many == 1 else f"{many} parties that have"
    return f" Then it was trained privately on the text of {whose} little, and did not teach."


def student_of(
    plan: SwingPlan, public: PublicSwing, content: bytes, store: RunStore, progress: Progress
) -> PublishedSwing:
    """The student with these parameters, measured beside the public model."""
    from learning.language.perplexity import perplexity
    from learning.language.speaker import Speaker

    model = model_of(plan, public, content)
    with sound(store.folder):
        parameters = int(store.stages()["learn"][2]["parameters"])
    again = plan.learner is not None
    measuring = Measuring(progress, times=(3 if again else 2) + (2 if plan.pairs else 0))
    metrics = measured(public, model, measuring)
    if metrics and again:
        before = model_of(plan, public, (store.folder / TAUGHT).read_bytes())
        taught = perplexity([Speaker(before)], heldout_rows(public), progress=measuring.told)
        metrics |= {"taught_perplexity": taught.perplexity}
    if (heeded := store.fact("heeded")) is not None:
        metrics |= {"heeded": round(float(heeded), 4)}
        if heeded < _DROWNED:
            metrics |= {"warnings": [DROWNED]}
    return PublishedSwing(plan, public, model, metrics | {"parameters": parameters})


def model_of(plan: SwingPlan, public: PublicSwing, content: bytes) -> "PreTrainedModel":
    """The student with these parameters, which `taught` gave."""
    import torch
    from safetensors.torch import load

    model = first_student(plan, public, start_of(public))
    kept = load(content)
    with torch.no_grad():
        for name, each in model.named_parameters():
            each.copy_(kept[name])
    return model


def measured(public: PublicSwing, student: "PreTrainedModel", measuring: Measuring) -> dict[str, Any]:
    """Perplexities on public held-out text of the student and of the public start, and, of pairs, ROUGE of what both
    write; none without such text.
    """
    from learning.language.perplexity import perplexity
    from learning.language.speaker import Speaker

    if not public.heldout:
        return {}
    rows, own, start = heldout_rows(public), [Speaker(student)], [Speaker(start_of(public))]
    told = measuring.told
    found, began = perplexity(own, rows, progress=told), perplexity(start, rows, progress=told)
    answered = answers_rouge(public, own, told)
    plain = {f"public_{name}": each for name, each in answers_rouge(public, start, told).items() if name != "written"}
    return {
        "token_perplexity": found.perplexity,
        "public_perplexity": began.perplexity,
        "tokens": found.tokens,
        **answered,
        **plain,
    }


def exhibits(student: PublishedSwing) -> list[Exhibit]:
    """Texts that the student writes or, of pairs, its answers to public inputs."""
    return written(student.model, student.public, student.plan.run.seed)
