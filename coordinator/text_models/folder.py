"""The published folder of a text classifier: a model in the standard library's format, a chart of its quality, a card.

`coordinator.publishing.publish` adds the guarantee and the signature, and puts the folder in its place.
"""

import copy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.plan.plan import Plan
from coordinator.publishing.front_matter import front_matter
from coordinator.publishing.verdict import verdict
from learning.text.labelled import LabelMap, ScoreRange

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from learning.classification.metrics import ClassifierMeasures, RegressionMeasures
    from learning.models.adapting import Adapt

PICTURE: Final = "evaluation.png"

_TRAINED: Final = {
    "head": "its last layers were trained, the encoder stayed as it was",
    "lora": "low-rank adapters of its attention (LoRA) and its last layers were trained, and the adapters merged",
    "lora-all": "adapters of all linear layers (LoRA) and its last layers were trained, and the adapters merged",
    "full": "all of it was trained",
}


@dataclass(frozen=True, slots=True)
class Made:
    """How a student with fewer layers than its teacher was made.

    layers, parameters: of the student and of the teacher. texts: number of public texts that it was distilled on;
    method: how they were chosen. agreement: rank correlation between the parties' domain classifiers, None where it is
    not known. warnings: sentences on the choice.
    """

    layers: tuple[int, int]
    texts: int
    method: str
    agreement: float | None
    parameters: tuple[int, int]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Erred:
    """A public test text of which a student says something else than its label, with what both say.

    second: of a pair, its other text. sure: the probability that the student gives to what it says, None of a score.
    """

    text: str
    second: str
    truth: str
    said: str
    sure: float | None


@dataclass(frozen=True, slots=True)
class ClassifierStudent:
    """A text classifier or regression that a recipe trained, ready to be published.

    model: as it was trained, with or without adapters; a regression's output is in standard scores. targets: what it
    predicts. pairs: whether it takes two texts. base: the public model that it started from, by the name in the plan.
    adapt: which of its parameters were trained. metrics: on public test text, see `metrics_of`; empty where there was
    none. measures: the same in full, None where there was none. scores: of a regression, predictions and true values,
    each [examples] in the declared range. made: of a student distilled from `base`, how. used: what the card says of
    its use, where the standard library's text classification does not load it. erred: public test texts that it gets
    most wrong.
    """

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    targets: LabelMap | ScoreRange
    pairs: bool
    base: str
    adapt: "Adapt"
    metrics: dict[str, Any]
    measures: "ClassifierMeasures | RegressionMeasures | None" = None
    scores: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    made: Made | None = None
    used: str | None = None
    erred: tuple[Erred, ...] = ()


def metrics_of(measures: "ClassifierMeasures | RegressionMeasures") -> dict[str, float | int | None]:
    """The figures that a report and a comparison show, by name; a correlation is None where it is not defined."""
    from learning.classification.metrics import ClassifierMeasures

    if isinstance(measures, ClassifierMeasures):
        return {
            "accuracy": measures.accuracy,
            "macro_f1": measures.macro_f1,
            "calibration_error": measures.calibration,
            "examples": measures.examples,
        }
    return {
        "pearson": measures.pearson,
        "spearman": measures.spearman,
        "error": measures.error,
        "examples": measures.examples,
    }


def about(made: Made) -> dict[str, Any]:
    """For a report: the size of the student, and how good the choice of public text was."""
    found: dict[str, Any] = {"parameters": made.parameters[0], "of_teacher": made.parameters[0] / made.parameters[1]}
    found |= {} if made.agreement is None else {"agreement": made.agreement}
    return found | ({"warnings": list(made.warnings)} if made.warnings else {})


def write(student: ClassifierStudent, folder: Path) -> None:
    """Write model, tokenizer and chart into a folder, which is made if absent.

    The model has the standard library's plain form: adapters are merged, and a regression predicts in the declared
    range. The student's own model is not changed. The tokenizer cuts texts to the length that the model takes and gives
    the inputs that it was trained on. There is no chart where nothing was measured.

    Raises `learning.models.checkpoints.ModelError` for a model that is not finite; `OSError`.
    """
    from learning.models.adapting import merged
    from learning.models.checkpoints import save
    from learning.models.encoders import in_units

    plain = merged(student.model)
    if isinstance(student.targets, ScoreRange):
        in_units(plain, student.targets)
    folder.mkdir(parents=True, exist_ok=True)
    save(plain, published_tokenizer(student, plain), folder)
    picture(student, folder / PICTURE)


def published_tokenizer(student: ClassifierStudent, plain: "PreTrainedModel") -> "PreTrainedTokenizerBase":
    """The model's tokenizer, set to return token types where the model takes them.

    Not every tokenizer returns them unless it is asked, and a user of the folder would not ask.
    """
    from learning.models.batching import form_of
    from learning.models.encoders import longest

    tokenizer = copy.deepcopy(student.tokenizer)
    tokenizer.model_max_length = longest(plain, tokenizer.model_max_length)
    names = list(tokenizer.model_input_names)
    if form_of(plain.config).types > 1 and "token_type_ids" not in names:
        tokenizer.model_input_names = [names[0], "token_type_ids", *names[1:]]
        tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names
    return tokenizer


def picture(student: ClassifierStudent, path: Path) -> bool:
    """Draw a chart of the student's quality; returns whether there was anything to draw."""
    from learning.classification.chart import draw, draw_scores
    from learning.classification.metrics import ClassifierMeasures

    measures = student.measures
    if isinstance(measures, ClassifierMeasures) and isinstance(student.targets, LabelMap):
        draw(measures, student.targets.names, path)
    elif measures is not None and not isinstance(measures, ClassifierMeasures) and student.scores is not None:
        draw_scores(*student.scores, measures, path)
    else:
        return False
    return True


def card(
    student: ClassifierStudent,
    statement_markdown: str,
    *,
    first: str,
    plan: Plan,
    parties: int,
) -> str:
    """The model card: what the model is and predicts, how to use it, the guarantee, its quality, and how to check it.

    first: its first line, as `coordinator.publishing.verdict.headline` gives it. statement_markdown: the guarantee and
    the measurements, as `coordinator.publishing.report.markdown` gives them. parties: number of parties in the result.
    """
    texts = "pairs of texts" if student.pairs else "texts"
    return f"""{_front(student, plan, ["differential-privacy", "text-classification"])}
# {plan.run.name}

**{first}**

A {_what(student)} of {texts}, learned from the labelled text of {parties} parties
that did not show it to each other.
{_origin(student)} Made by Conclave, recipe `{plan.run.recipe}`.

{_used(student)}

{statement_markdown}
{_shown(student)}## Checking it

`coordinator verify this-folder --trust ca.pem`, with the `ca.pem` of the federation's authority, compares every file
with the coordinator's signature, and this promise with what the parties signed about its cost.
"""


def clear_card(student: ClassifierStudent, warning: str, plan: Plan, parties: int) -> str:
    """The card of a student trained without privacy: the warning first, then what the model is, its use and its
    quality.
    """
    texts = "pairs of texts" if student.pairs else "texts"
    return f"""{_front(student, plan, ["text-classification"])}
# {plan.run.name}

**{warning}**

**{verdict(student.metrics).sentence}**

A {_what(student)} of {texts}, trained on the labelled text of {parties} simulated parties,
put together. It was made from the public model `{student.base}`: {_TRAINED[student.adapt]}. Made by Conclave, recipe
`{plan.run.recipe}`.

{_used(student)}

## How good it is

{_quality(student)}
"""


def _front(student: ClassifierStudent, plan: Plan, tags: list[str]) -> str:
    """The card's front matter."""
    return front_matter(
        plan,
        library="transformers",
        task="text-classification",
        tags=tags,
        metrics=student.metrics,
        pipeline=student.used is None,
        base=student.base,
    )


def _used(student: ClassifierStudent) -> str:
    if student.used is not None:
        return f"{student.used}\n{_says(student.targets)}"
    return f"""```python
from transformers import pipeline

classify = pipeline("text-classification", "this-folder")
classify({_example(student)}, truncation=True)
```

{_says(student.targets)}"""


_CHOSEN: Final = {
    "ais": "chosen privately for being like the parties' own, from every cluster of a public corpus",
    "classifier": "chosen privately for being like the parties' own",
    "random": "chosen at random",
    "all": "all of a public corpus",
}


def _origin(student: ClassifierStudent) -> str:
    """The public model that the student started from, and how it was made."""
    trained, made = _TRAINED[student.adapt], student.made
    if made is None:
        return f"It was made from the public model `{student.base}`: {trained}."
    (layers, all_layers), (parameters, all_parameters) = made.layers, made.parameters
    warned = "".join(f" {warning}" for warning in made.warnings)
    return (
        f"It was distilled from the public model `{student.base}`, with {layers} of its {all_layers} layers "
        f"({parameters / 1e6:.1f} of {all_parameters / 1e6:.1f} million parameters), on {made.texts:,} public texts, "
        f"{_CHOSEN[made.method]}. Then {trained}.{warned}"
    )


def _what(student: ClassifierStudent) -> str:
    return "regression" if isinstance(student.targets, ScoreRange) else "classifier"


def _example(student: ClassifierStudent) -> str:
    return '{"text": "one text", "text_pair": "and another"}' if student.pairs else '"a text"'


def _says(targets: LabelMap | ScoreRange) -> str:
    if isinstance(targets, ScoreRange):
        return (
            f"It says a score, trained on scores from {targets.low:g} to {targets.high:g}; what it says may lie a "
            "little outside."
        )
    listed = ", ".join(_code(label) for label in targets.names)
    return f"It says one of {len(targets.names):,} classes, with its probability: {listed}."


def _code(text: str) -> str:
    """Any text as inline code in Markdown, unchanged."""
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    space = " " if "`" in text else ""
    return f"{fence}{space}{' '.join(text.split())}{space}{fence}"


def _shown(student: ClassifierStudent) -> str:
    """The chart in Markdown, where there is one."""
    if student.measures is None:
        return ""
    what = "Scores said over true scores" if _what(student) == "regression" else "Reliability and confusion matrix"
    return f"![{what}]({PICTURE})\n\n"


def _quality(student: ClassifierStudent) -> str:
    if not student.metrics:
        return "It was not measured: the plan named no public test text."
    rows = [f"| {key.replace('_', ' ')} | {_number(value)} |" for key, value in student.metrics.items()]
    return "\n".join(["On public test text:", "", "| measure | |", "|---|---|", *rows, "", _shown(student).rstrip()])


def _number(value: object) -> str:
    if value is None:
        return "unknown"
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
