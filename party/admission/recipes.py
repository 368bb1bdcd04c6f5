"""Whether a plan stays within its recipe: what it releases together, and which tasks make each release.

A coordinator may name any recipe in its plan. The name binds the plan to the recipe that is installed under it at this
party (`party.recipes`), which covers what an honest plan of that recipe asks and nothing else.
"""

from collections import Counter
from typing import Final

from party.recipes.recipe import DOMAIN, LABELS, LANGUAGE, LANGUAGE_STEP, Form, Kind, Recipe, outside
from party.recipes.registry import find_recipe
from protos.conclave.v1 import party_pb2, plan_pb2

LONGEST_KIND: Final = 70
"""Characters of a mechanism's kind, of another package, that a refusal repeats."""
_OBJECTIVES: Final = {
    party_pb2.OBJECTIVE_LABELS: LABELS,
    party_pb2.OBJECTIVE_DOMAIN: DOMAIN,
    party_pb2.OBJECTIVE_LANGUAGE: LANGUAGE,
}


def kind_of(release: plan_pb2.Release) -> Kind | str | None:
    """The kind of a release, or of one step of it; None for one that no recipe has."""
    match release.WhichOneof("mechanism"), release.form:
        case "gradients", plan_pb2.FORM_STEPPED:
            return Kind.STEPS
        case "gradients", plan_pb2.FORM_WEIGHTS:
            return Kind.WEIGHTS
        case "gradients", plan_pb2.FORM_TRAINING:
            return Kind.TRAINING
        case "counts", plan_pb2.FORM_SUMMED:
            return Kind.COUNTS
        case "outside", plan_pb2.FORM_SUMMED:
            return outside(release.outside.kind[:LONGEST_KIND])
        case "vectors", plan_pb2.FORM_SUMMED:
            return Kind.MOMENTS
        case "differences", plan_pb2.FORM_SUMMED:
            return Kind.DIFFERENCES
        case "thresholded", plan_pb2.FORM_CLEAR_VOTES:
            return Kind.CLEAR_VOTES
        case "free", plan_pb2.FORM_FREE:
            # Hidden states of teachers have at least two dimensions; one number for each text is a score.
            scores = not release.free.classes and release.free.layers == release.free.width == 1
            return Kind.SCORES if scores else Kind.ANSWERS
        case "samples", plan_pb2.FORM_SAMPLES:
            return Kind.SAMPLES
        case "sequences", plan_pb2.FORM_SAMPLES:
            return Kind.SEQUENCES
        case "texts", plan_pb2.FORM_SAID:
            return Kind.TEXTS
        case "targets", plan_pb2.FORM_SAID:
            return Kind.TARGETS
        case "softened", plan_pb2.FORM_SAID:
            return Kind.SOFTENED
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
    """The kind of task that a request asks for, and for a text model, or a step of one, what it learns."""
    kind = request.WhichOneof("task") or "nothing"
    if kind == "step" and request.step.objective == party_pb2.OBJECTIVE_LANGUAGE:
        return LANGUAGE_STEP
    return _OBJECTIVES.get(request.text_model.objective, kind) if kind == "text_model" else kind


def why_not(terms: plan_pb2.Terms) -> str | None:
    """Why these terms are not those of a plan of the recipe that they name; None where they are."""
    recipe = find_recipe(terms.recipe)
    if recipe is None:
        return f"{terms.recipe[:40]!r} is no recipe that this party knows"
    if terms.HasField("labelled") and not recipe.labelled:
        return f"{terms.recipe} reads text alone, and this plan declares labelled text"
    if terms.HasField("coded") and not recipe.coded:
        return f"{terms.recipe} reads no control codes, and this plan declares some"
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
    """The tasks that may make a release of these terms, or one step of it; none where no task does."""
    recipe, kind = find_recipe(terms.recipe), kind_of(release)
    if recipe is None or kind is None:
        return frozenset()
    return frozenset(task for form in _forms(recipe, terms) if kind in form for task in form[kind].tasks)


def _forms(recipe: Recipe, terms: plan_pb2.Terms) -> list[Form]:
    """The forms of plan that these terms may have."""
    if any(kind_of(release) is None for release in terms.releases):
        return []
    kinds = _kinds(terms)
    return [form for form in recipe.forms if all(many <= _most(form, kind) for kind, many in kinds.items())]


def _most(form: Form, kind: Kind | str) -> int:
    return form[kind].most if kind in form else 0


def _kinds(terms: plan_pb2.Terms) -> Counter[Kind | str]:
    return Counter(kind for release in terms.releases if (kind := kind_of(release)) is not None)


def _listed(kinds: set[Kind | str]) -> str:
    return "; ".join(sorted(kinds))
