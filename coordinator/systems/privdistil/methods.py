"""The methods that a comparison of PrivDistil has as rows, each on the same simulated text.

A row that is a system runs that system's recipe over simulated parties, on the plan at the row's epsilon. Rows that
distil on the same public texts share one distilled student.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from coordinator.comparing.comparable import Method, Outcome, changed
from coordinator.comparing.simulated_run import driven
from coordinator.systems.privdistil.data import CorpusData, Trained
from coordinator.systems.privdistil.distillation import COMPRESSED
from coordinator.systems.privdistil.dpkd import trained_twice
from coordinator.systems.privdistil.plan import PrivDistilPlan
from coordinator.systems.privdistil.recipe import PrivDistil
from coordinator.text_models import methods
from coordinator.text_models.public import PublicText


def _private(
    data: CorpusData,
    epsilon: float,
    *,
    selection: Mapping[str, Any] | None = None,
    distil: Mapping[str, Any] | None = None,
) -> Outcome:
    """PrivDistil's own recipe, with other settings in `[selection]` and `[distil]`."""
    plan = changed(data.plan, {"selection": selection or {}, "distil": distil or {}}, epsilon=epsilon)
    public = data.public if plan.selection.scored else replace(data.public, domain=None)
    recipe = PrivDistil(plan, public, data.compressed)
    with driven(recipe, data.text.shards, data.progress, data.base) as run:
        _, _, chosen = run.store.stages()["choose"]
        found = {key: value for key in ("agreement", "reliability") if (value := chosen.get(key)) is not None}
        text = public.distilled(plan, run.store.folder / COMPRESSED)
        spent = methods.spent(run)
        return replace(spent, model=Trained(text, spent.model), notes=spent.notes | found)


def _alone(data: CorpusData, epsilon: float, text: PublicText) -> Outcome:
    """Federated DP-SGD on one model, with the whole budget."""
    found = methods.federated(data.over(text), epsilon)
    return replace(found, model=Trained(text, found.model))


def _undistilled(data: CorpusData, epsilon: float) -> Outcome:
    """The student with layers copied from its teacher, trained under DP-SGD without distilling or public text."""
    return _alone(data, epsilon, data.public.text)


def _teacher(data: CorpusData, epsilon: float) -> Outcome:
    """The teacher itself under DP-SGD: what the smaller student aims at."""
    return _alone(data, epsilon, data.whole)


def _leaking(data: CorpusData, epsilon: float) -> Outcome:
    """KD+FT (PrivDistil, section 4.6): distil on the private text itself, then train under DP-SGD.

    KD+FT has no guarantee: the teacher's output on private text enters the student without noise.
    """
    found = _alone(data, epsilon, data.leaked(changed(data.plan, epsilon=epsilon)))
    return replace(found, event=None, claimed=epsilon)


def _votes(data: CorpusData, epsilon: float) -> Outcome:
    """The recipe `pate` on the teacher."""
    found = methods.by_votes(data.over(replace(data.whole, queries=data.queries)), epsilon)
    return replace(found, model=Trained(data.whole, found.model))


def _in_clear(data: CorpusData, epsilon: float) -> Outcome:
    """Without privacy: ordinary training of the teacher on all parties' text together."""
    return Outcome(Trained(data.whole, methods.in_clear(data.over(data.whole))), None)


def _chosen(**selection: Any) -> Any:
    return partial(_private, selection=selection)


METHODS: Final[dict[str, Method]] = {
    method.name: method
    for method in (
        Method("privdistil", "PrivDistil", _private),
        Method("ais-random", "AIS, clusters at random", _chosen(by="random")),
        Method("classifier", "classifier's best", _chosen(method="classifier")),
        Method("random", "chosen at random", _chosen(method="random")),
        Method("full", "all public text", _chosen(method="all")),
        Method("first", "first layers copied", partial(_private, distil={"start": "first"})),
        Method("scratch", "student from random weights", partial(_private, distil={"start": "random"})),
        Method("undistilled", "DP-SGD student, no teacher", _undistilled),
        Method("dpkd", "DPKD: both under DP-SGD", trained_twice),
        Method("dpkd-ft", "DPKD, student begun with its teacher's training", partial(trained_twice, inherits=True)),
        Method("pate", "teachers' votes (PATE)", _votes),
        Method("teacher", "the teacher under DP-SGD", _teacher, plain=True),
        Method("kd-ft", "KD+FT: leaks, no guarantee", _leaking, leaks=True),
        Method("fine_tune", "the teacher, no privacy", _in_clear, private=False),
    )
}


def methods_of(plan: PrivDistilPlan) -> dict[str, Method]:
    """The methods that a plan allows, by name."""
    without = set()
    if plan.pate is None or plan.text.kind == "regression":
        without.add(methods.VOTING)
    if plan.distil.student is not None:
        without.add("dpkd-ft")  # such a student's layers correspond to no layers of the teacher
    return {name: method for name, method in METHODS.items() if name not in without}
