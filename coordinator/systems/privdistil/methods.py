"""The methods that a comparison of PrivDistil sets side by side, each on the same simulated text.

As in `coordinator.text_models.methods`, every private method is calibrated to the epsilon, its noise comes in the
parties' shares where a run's would, and nothing is sent. Students that are distilled on the same public texts are
distilled once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from dp_accounting import ComposedDpEvent, DpEvent
from numpy.typing import NDArray

from aggregation.accounting.price import calibrate
from aggregation.mechanisms.gradients import GradientMechanism
from coordinator.comparing.comparable import Method, Outcome, changed, composed
from coordinator.systems.privdistil.bench import CorpusBench, Floats, Trained
from coordinator.systems.privdistil.plan import PrivDistilPlan
from coordinator.systems.privdistil.releases import domain_mechanism
from coordinator.systems.privdistil.selection import Said, choose
from coordinator.text_models import methods, non_private
from coordinator.text_models.federated_training import descent_event, mechanism, optimisation_of
from coordinator.text_models.public import PublicText

if TYPE_CHECKING:
    from learning.private_training.units import Units


def _private(
    bench: CorpusBench,
    epsilon: float,
    *,
    selection: Mapping[str, Any] | None = None,
    distil: Mapping[str, Any] | None = None,
) -> Outcome:
    """The recipe: the texts chosen as `selection` says, by classifiers that cost their part of epsilon."""
    tables = {"selection": dict(selection or {}), "distil": dict(distil or {})}
    purpose = f"{json.dumps(tables, sort_keys=True)} {epsilon!r}"
    plan = changed(bench.plan, tables, epsilon=epsilon)
    events: list[DpEvent] = []
    notes: dict[str, float] = {}
    said, noise = Said(), None
    public = bench.public if plan.selection.scored else replace(bench.public, domain=None)
    if plan.selection.scored:
        mechanism_ = domain_mechanism(plan, public)
        said = Said(weights=domain_classifiers(bench, plan, mechanism_, purpose))
        noise = mechanism_.noise_multiplier * mechanism_.sensitivity * mechanism_.granularity
        events.append(mechanism_.event())
    choice = choose(plan, public, said, noise, bench.told)
    notes |= {key: value for key in ("agreement", "reliability") if (value := choice.facts.get(key)) is not None}
    text = bench.student(choice, plan)
    fitted = _descended(bench, plan, text, epsilon, events, ("privdistil", purpose))
    return replace(fitted, notes=fitted.notes | notes)


def _undistilled(bench: CorpusBench, epsilon: float) -> Outcome:
    """The student as it is cut out of its teacher, trained under DP-SGD: no teacher, no public text."""
    plan = changed(bench.plan, epsilon=epsilon)
    return _descended(bench, plan, bench.public.text, epsilon, [], ("undistilled",))


def _teacher(bench: CorpusBench, epsilon: float) -> Outcome:
    """The teacher itself under DP-SGD: what the smaller student is to come near to."""
    plan = changed(bench.plan, epsilon=epsilon)
    return _descended(bench, plan, bench.whole, epsilon, [], ("teacher",))


def _twice(bench: CorpusBench, epsilon: float, *, inherits: bool = False) -> Outcome:
    """DPKD (Mireshghallah et al. 2022): the teacher is trained under DP-SGD, and so is the student, on the same private
    text, to say half what the labels and half what the teacher says. Both pay, with the same noise.

    inherits: whether the student begins with what its teacher has learned (FT in PrivDistil's table 7), which was paid
    for, or from the public teacher (PT).
    """
    plan = changed(bench.plan, epsilon=epsilon)
    whole, student = bench.whole, bench.public.text
    sizes = len(whole.start), len(student.start)
    multiplier = calibrate(
        lambda z: ComposedDpEvent([descent_event(plan, z, size) for size in sizes]), epsilon, bench.delta
    )
    first, second = (mechanism(plan, multiplier, size, plan.dp_sgd.steps) for size in sizes)
    descent = optimisation_of(plan.dp_sgd, plan.dp_sgd.batch)
    labels = ("twice", repr(epsilon))
    taught = methods.federated(bench.over(whole, plan), first, descent, (*labels, "teacher"))
    said = bench.said(Trained(whole, taught))
    soft = [_mixed(part.labels, each) for part, each in zip(bench.parts, said, strict=True)]
    if inherits:
        student = replace(student, start=_inherited(plan, whole, student))
    purpose = (*labels, "student", "inherits") if inherits else (*labels, "student")
    point = methods.federated(bench.over(student, plan), second, descent, purpose, soft)
    events = [first.event(), second.event()]
    return Outcome(Trained(student, point), composed(events), notes={"noise_multiplier": multiplier})


def _inherited(plan: PrivDistilPlan, teacher: PublicText, student: PublicText) -> Floats:
    """What is trained of the student as its teacher, as that now is, has it: float32 [parameters]."""
    from learning.models.adapting import flatten
    from learning.transformers.layered_student import inherit

    inherit(teacher.model, student.model, plan.distil.start)
    return flatten(student.model).numpy().copy()


def _leaking(bench: CorpusBench, epsilon: float) -> Outcome:
    """KD+FT (the paper's section 4.6): distilled on the private text itself, then trained under DP-SGD.

    It promises nothing: what the teacher says of private text goes into the student without noise.
    """
    plan = changed(bench.plan, epsilon=epsilon)
    text = bench.leaked(plan)
    found = _descended(bench, plan, text, epsilon, [], ("leaking",))
    return Outcome(found.model, None, claimed=epsilon, notes=found.notes)


def _votes(bench: CorpusBench, epsilon: float) -> Outcome:
    found = methods.by_votes(bench.asking(), epsilon)
    return replace(found, model=Trained(bench.whole, found.model))


def _in_clear(bench: CorpusBench, epsilon: float) -> Outcome:
    """No privacy: the teacher under ordinary training on all parties' text together."""
    read = bench.over(bench.whole).read
    vectors = None if read.vectors is None else np.concatenate(read.vectors)
    point = non_private.trained(bench.plan, bench.whole, read.examples, vectors, bench.progress)
    return Outcome(Trained(bench.whole, point), None)


def _descended(
    bench: CorpusBench,
    plan: PrivDistilPlan,
    text: PublicText,
    epsilon: float,
    events: Sequence[DpEvent],
    purpose: tuple[str, ...],
) -> Outcome:
    """Federated DP-SGD over a model, with what these events leave of the budget."""
    parameters = len(text.start)
    multiplier = calibrate(lambda z: composed([*events, descent_event(plan, z, parameters)]), epsilon, bench.delta)
    once = mechanism(plan, multiplier, parameters, plan.dp_sgd.steps)
    descent = optimisation_of(plan.dp_sgd, plan.dp_sgd.batch)
    point = methods.federated(bench.over(text, plan), once, descent, (*purpose, repr(epsilon)))
    paid = composed([*events, once.event()])
    return Outcome(Trained(text, point), paid, notes={"noise_multiplier": multiplier})


def domain_classifiers(
    bench: CorpusBench, plan: PrivDistilPlan, mechanism_: GradientMechanism, purpose: str
) -> dict[str, Floats]:
    """What every party's domain classifier has learned, as `party.tasks.text_model.training` trains it, by the party's
    name.

    purpose: of the noise.
    """
    import torch

    from learning.models.adapting import flatten, unflatten
    from learning.models.batching import losses
    from learning.models.features import head_alone
    from learning.private_training.dp_sgd import train_private
    from learning.private_training.feature_units import FeatureUnits, head_losses
    from learning.private_training.text_units import TextUnits, probe_of

    domain = bench.public.domain
    assert domain is not None
    head = head_alone(domain.model)
    found = {}
    parties = zip(plan.federation.names, bench.texts(domain), strict=True)
    for number, (name, (own, members, seen)) in enumerate(parties):
        public, opposed = bench.sample(domain, name)
        rows = [*own, *public]
        members = [*members, *([place] for place in range(len(own), len(rows)))]
        labels = torch.zeros(len(rows), dtype=torch.int64)
        labels[len(own) :] = 1
        unflatten(domain.model, torch.from_numpy(domain.start.copy()))
        units: Units
        if seen is None or opposed is None:
            units = TextUnits(domain.model.config, rows, labels, members=members)
        else:
            units = FeatureUnits(np.concatenate([seen, opposed]), labels, members=members)
        trained = domain.model if head is None else head
        train_private(
            trained,
            units,
            losses if head is None else head_losses,
            mechanism_,
            optimisation_of(plan.domain, plan.domain.batch),
            stream=bench.stream("domain", purpose, number),
            probe=probe_of(domain.model.config, 2) if head is None else None,
        )
        found[name] = flatten(trained).numpy().copy()
        bench.told("telling apart", number + 1, len(bench.parts))
    return found


def _mixed(labels: NDArray[Any], said: Floats) -> Floats:
    """Half what the labels say and half what a teacher does: probabilities [examples, classes], or scores [examples].

    Cross-entropy with the mixture has the gradient of the mean of the two losses, at temperature 1; so has the squared
    error of scores.
    """
    from learning.classification.training import probabilities

    if said.shape[1] == 1:
        return np.asarray((labels + said[:, 0]) / 2, np.float32)
    truth = np.eye(said.shape[1], dtype=np.float32)[np.asarray(labels, np.int64)]
    return np.asarray((truth + probabilities(said)) / 2, np.float32)


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
        Method("dpkd", "DPKD: both under DP-SGD", _twice),
        Method("dpkd-ft", "DPKD, student begun with its teacher's training", partial(_twice, inherits=True)),
        Method("pate", "teachers' votes (PATE)", _votes),
        Method("teacher", "the teacher under DP-SGD", _teacher, plain=True),
        Method("kd-ft", "KD+FT: leaks, no guarantee", _leaking, leaks=True),
        Method("fine_tune", "the teacher, no privacy", _in_clear, private=False),
    )
}


def methods_of(plan: PrivDistilPlan) -> dict[str, Method]:
    """Those that go with a plan."""
    without = set()
    if plan.pate is None or plan.text.kind == "regression":
        without.add(methods.VOTING)
    if plan.distil.student is not None:
        without.add("dpkd-ft")  # whose layers stand for no layer of the teacher's
    return {name: method for name, method in METHODS.items() if name not in without}
