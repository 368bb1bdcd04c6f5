"""What a plan of each recipe may ask of a party: what is released together, and which tasks give it.

A coordinator calls its plan what it likes. What the name binds it to is this table, made of what an honest plan of that
recipe asks and of nothing else; a further recipe is one more entry.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from protos.conclave.v1 import party_pb2, plan_pb2


class Kind(StrEnum):
    """What a release is, in words for a refusal."""

    COUNTS = "counts"
    MOMENTS = "moments"
    VOTES = "noised votes"
    HIDDEN = "noised hidden states"
    VOTES_AND_HIDDEN = "noised votes with hidden states"
    CLEAR_VOTES = "votes without noise"
    TRAINING = "a private training that gives nothing itself"
    ANSWERS = "free answers of teachers"
    SCORES = "free scores"
    STEPS = "gradients in steps"
    WEIGHTS = "the parameters of a model"


@dataclass(frozen=True, slots=True)
class Part:
    """Releases of one kind: how many of them a plan may have, and by which tasks they are given (`task_of`)."""

    most: int
    tasks: frozenset[str]


Form: TypeAlias = Mapping[Kind, Part]
"""What a plan may release together; it may leave any of it out."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The forms that a plan of it may have, and whether it reads labels."""

    forms: tuple[Form, ...]
    labelled: bool = False


LABELS: Final = "text_model for labels"
DOMAIN: Final = "text_model for a domain"
LANGUAGE: Final = "text_model for language"
"""The task `text_model`, by what it learns. No recipe learns a language as yet."""
MOST_ROUNDS: Final = 50

_OBJECTIVES: Final = {
    party_pb2.OBJECTIVE_LABELS: LABELS,
    party_pb2.OBJECTIVE_DOMAIN: DOMAIN,
    party_pb2.OBJECTIVE_LANGUAGE: LANGUAGE,
}


def part(*tasks: str, most: int = 1) -> Part:
    """So many releases at most, each given by one of these tasks."""
    return Part(most, frozenset(tasks))


def _dped() -> tuple[Form, ...]:
    """Statistics of words, beside what teachers say under noise; or private teachers, whose answers are free."""
    statistics: tuple[Form, ...] = ({Kind.COUNTS: part("cooccurrence")}, {Kind.MOMENTS: part("moments")})
    said: tuple[Form, ...] = (
        {Kind.VOTES_AND_HIDDEN: part("teachers")},
        {Kind.VOTES: part("teachers")},
        {Kind.CLEAR_VOTES: part("teachers"), Kind.HIDDEN: part("teachers")},
    )
    privately: Form = {Kind.TRAINING: part(), Kind.ANSWERS: part("teachers")}
    return (*({**one, **other} for one in statistics for other in said), privately)


_STEPS: Final[Form] = {Kind.STEPS: part("step")}
_SCORED: Final[Form] = {Kind.TRAINING: part(), Kind.SCORES: part(DOMAIN)}

RECIPES: Final[Mapping[str, Recipe]] = {
    "dped": Recipe(_dped()),
    "dp_sgd": Recipe((_STEPS, {Kind.WEIGHTS: part(LABELS, most=MOST_ROUNDS)}), labelled=True),
    "pate": Recipe(({Kind.VOTES: part("ensemble")},), labelled=True),
    "privdistil": Recipe(
        (
            {Kind.WEIGHTS: part(DOMAIN), **_STEPS},
            {**_SCORED, **_STEPS},
            {Kind.WEIGHTS: part(DOMAIN, LABELS, most=1 + MOST_ROUNDS)},
            {**_SCORED, Kind.WEIGHTS: part(LABELS, most=MOST_ROUNDS)},
        ),
        labelled=True,
    ),
    # Trains in clear, in a simulation's own process, and asks no party for anything.
    "fine_tune": Recipe(()),
}


def kind_of(release: plan_pb2.Release) -> Kind | None:
    """What a release, or one step of it, is; None for one that no recipe has."""
    match release.WhichOneof("mechanism"), release.form:
        case "gradients", plan_pb2.FORM_STEPPED:
            return Kind.STEPS
        case "gradients", plan_pb2.FORM_WEIGHTS:
            return Kind.WEIGHTS
        case "gradients", plan_pb2.FORM_TRAINING:
            return Kind.TRAINING
        case "counts", plan_pb2.FORM_SUMMED:
            return Kind.COUNTS
        case "vectors", plan_pb2.FORM_SUMMED:
            return Kind.MOMENTS
        case "thresholded", plan_pb2.FORM_CLEAR_VOTES:
            return Kind.CLEAR_VOTES
        case "free", plan_pb2.FORM_FREE:
            # Hidden states of teachers have two dimensions at least; one number a text is a score.
            scores = not release.free.classes and release.free.layers == release.free.width == 1
            return Kind.SCORES if scores else Kind.ANSWERS
        case "joint", plan_pb2.FORM_SUMMED:
            match release.joint.HasField("votes"), release.joint.HasField("hidden"):
                case True, True:
                    return Kind.VOTES_AND_HIDDEN
                case True, False:
                    return Kind.VOTES
                case False, True:
                    return Kind.HIDDEN
    return None


def task_of(request: party_pb2.TrainRequest) -> str:
    """The kind of task that a request asks for, and of a text model what it learns."""
    kind = request.WhichOneof("task") or "nothing"
    return _OBJECTIVES.get(request.text_model.objective, kind) if kind == "text_model" else kind


def why_not(terms: plan_pb2.Terms) -> str | None:
    """Why these terms are not those of a plan of the recipe that they name; None where they are."""
    recipe = RECIPES.get(terms.recipe)
    if recipe is None:
        return f"{terms.recipe[:40]!r} is no recipe that this party knows"
    if terms.HasField("labelled") and not recipe.labelled:
        return f"{terms.recipe} reads text alone, and this plan declares labelled text"
    if not recipe.forms:
        return f"{terms.recipe} asks no party for anything"
    if _forms(recipe, terms):
        return None
    has = {kind for form in recipe.forms for kind in form}
    for release in terms.releases:
        if (kind := kind_of(release)) not in has:
            what = "what no recipe has" if kind is None else f"of {kind}"
            return f"release {release.name} is {what}, and {terms.recipe} has {_listed(has)}"
    together = ", ".join(
        f"{many} times {kind}" if many > 1 else str(kind) for kind, many in sorted(_kinds(terms).items())
    )
    return f"this plan releases {together}, and {terms.recipe} never releases these together"


def tasks_of(terms: plan_pb2.Terms, release: plan_pb2.Release) -> frozenset[str]:
    """The tasks by which a release of these terms, or one step of it, may be given; none where nothing gives it."""
    recipe, kind = RECIPES.get(terms.recipe), kind_of(release)
    if recipe is None or kind is None:
        return frozenset()
    return frozenset(task for form in _forms(recipe, terms) if kind in form for task in form[kind].tasks)


def _forms(recipe: Recipe, terms: plan_pb2.Terms) -> list[Form]:
    """The forms that these terms may be of."""
    if any(kind_of(release) is None for release in terms.releases):
        return []
    kinds = _kinds(terms)
    return [form for form in recipe.forms if all(many <= _most(form, kind) for kind, many in kinds.items())]


def _most(form: Form, kind: Kind) -> int:
    return form[kind].most if kind in form else 0


def _kinds(terms: plan_pb2.Terms) -> Counter[Kind]:
    return Counter(kind for release in terms.releases if (kind := kind_of(release)) is not None)


def _listed(kinds: set[Kind]) -> str:
    return "; ".join(sorted(kinds))
