"""The methods that a comparison of PrivDistil sets side by side, each on the same simulated text.

As in `coordinator.text_models.methods`, every private method is calibrated to the epsilon, its noise comes in the
parties' shares where a run's would, and nothing is sent. Students that are distilled on the same public texts are
distilled once.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from dp_accounting import ComposedDpEvent, DpEvent
from numpy.typing import NDArray

from aggregation.accounting.price import calibrate
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.noise.stream import NoiseStream
from coordinator.comparing.comparable import Method, Outcome, changed, composed
from coordinator.pricing.release import SAMPLER_SHARE
from coordinator.progress.progress import Progress
from coordinator.store.store import write_whole
from coordinator.systems.privdistil.distillation import compress
from coordinator.systems.privdistil.plan import PrivDistilPlan
from coordinator.systems.privdistil.public import PublicCorpus
from coordinator.systems.privdistil.releases import domain_mechanism
from coordinator.systems.privdistil.selection import Choice, Said, choose
from coordinator.text_models import methods, non_private
from coordinator.text_models.federated_training import descent_event, mechanism, optimisation_of
from coordinator.text_models.methods import ReadText, TextBench
from coordinator.text_models.public import PublicText
from coordinator.transport.launchers import LabelledPart, Simulation
from learning.text.corpus import indexed
from learning.text.corpus_files import CorpusSource

if TYPE_CHECKING:
    from learning.models.batching import Tokens
    from learning.private_training.dp_sgd import Units

Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Trained:
    """A student, measured later: the model it is in, and what was trained of it [parameters]."""

    public: PublicText
    point: Floats


@dataclass(slots=True)
class CorpusBench:
    """The data of one seed.

    parts: the parties' examples, read once for all seeds. folder: for what is distilled, shared by all cells. base:
    where the plan's models are. whole: a classifier over the teacher. queries: public texts of `[pate]`. seen: what
    encoders see of the parties' texts and of public ones, kept from seed to seed.
    """

    plan: PrivDistilPlan
    public: PublicCorpus
    parts: tuple[LabelledPart, ...]
    shards: Simulation
    progress: Progress
    folder: Path
    base: Path
    whole: PublicText
    queries: tuple[tuple[str, ...], ...]
    seen: dict[bytes, tuple[Floats, ...]]
    _asking: TextBench | None = field(default=None, init=False)

    @property
    def seed(self) -> int:
        return self.plan.run.seed

    @property
    def delta(self) -> float:
        return self.plan.privacy.delta * (1 - SAMPLER_SHARE)

    def told(self, what: str, done: int, total: int) -> None:
        self.progress.bar(what, done, total)

    def stream(self, *labels: str | int) -> NoiseStream:
        """Noise of its own for these labels; from the seed only where the plan says so."""
        if self.plan.privacy.insecure_reproducible_noise:
            return NoiseStream.insecure(self.seed, *labels)
        return NoiseStream.from_system()

    def over(self, public: PublicText, plan: PrivDistilPlan | None = None) -> TextBench:
        """The parties' text over a model: its vectors are worked out once where the last layer alone is trained."""
        read = ReadText(self.parts, non_private.pooled(self.parts), self.vectors(public), None)
        return TextBench(plan or self.plan, public, read, self.shards, self.progress)

    def vectors(self, public: PublicText) -> tuple[Floats, ...] | None:
        """What a model's last layer sees of each party's examples; None where more than that layer is trained."""
        return self._of_parts(public, b"examples", [part.rows for part in self.parts])

    def texts(self, domain: PublicText) -> "tuple[tuple[list[Tokens], list[list[int]], Floats | None], ...]":
        """`singles` of each party, and what a domain classifier's last layer sees of them, as in `vectors`."""
        found = [singles(part) for part in self.parts]
        kind = b"texts" if any(row.second < len(row) for part in self.parts for row in part.rows) else b"examples"
        seen = self._of_parts(domain, kind, [rows for rows, _ in found]) or (None,) * len(found)
        return tuple((rows, units, vectors) for (rows, units), vectors in zip(found, seen, strict=True))

    def sample(self, domain: PublicText, name: str) -> "tuple[list[Tokens], Floats | None]":
        """The public texts that a party's domain classifier is trained against, and the same of them."""
        from learning.models.batching import encode
        from learning.models.encoders import digest
        from learning.models.features import features, head_alone

        rows = encode(domain.tokenizer, json.loads(self.public.samples[name]), longest=domain.longest).rows
        if head_alone(domain.model) is None:
            return rows, None
        key = digest(domain.model.base_model) + hashlib.sha256(self.public.samples[name]).digest()
        if key not in self.seen:
            self.seen[key] = (features(domain.model, rows),)
        return rows, self.seen[key][0]

    def _of_parts(
        self, public: PublicText, kind: bytes, rows: "Sequence[Sequence[Tokens]]"
    ) -> tuple[Floats, ...] | None:
        """What the last layer sees of each party's rows, worked out once; None where more than that is trained."""
        from learning.models.encoders import digest
        from learning.models.features import features, head_alone

        if head_alone(public.model) is None:
            return None
        key = digest(public.model.base_model) + kind
        if key not in self.seen:
            found = []
            for number, each in enumerate(rows):
                self.told("encoding parties' text", number, len(rows))
                found.append(features(public.model, each))
            self.seen[key] = tuple(found)
        return self.seen[key]

    def student(self, choice: Choice, plan: PrivDistilPlan) -> PublicText:
        """The student that is distilled on the chosen texts."""
        return self._distilled(plan, self.public, choice.numbers)

    def leaked(self, plan: PrivDistilPlan) -> PublicText:
        """A student that is distilled on as much of the parties' own text as is chosen of public text."""
        texts = [
            self.whole.tokenizer.decode(row.ids.tolist(), skip_special_tokens=True)
            for part in self.parts
            for row in singles(part)[0]
        ]
        most = plan.selection.texts
        picked = np.random.default_rng([self.seed, len(texts)]).permutation(len(texts))[:most]
        place = self.folder / "parties.jsonl"
        write_whole(place, "".join(json.dumps({"text": texts[each] or "."}) + "\n" for each in picked).encode())
        corpus = indexed([CorpusSource(str(place))], self.folder / "indexes", distinct=False)
        numbers = np.arange(corpus.count(), dtype=np.int64)
        return self._distilled(plan, replace(self.public, corpus=corpus), numbers)

    def _distilled(self, plan: PrivDistilPlan, public: PublicCorpus, numbers: NDArray[np.int64]) -> PublicText:
        """The student that learned from these texts, from the folder where it did so before."""
        told = [plan.distil.model_dump(), plan.model.name, self.seed, public.corpus.digest]
        key = hashlib.sha256(json.dumps(told, sort_keys=True).encode() + numbers.astype("<i8").tobytes())
        place = self.folder / "students" / key.hexdigest()[:32] / "student"
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            compress(plan, public, numbers, place, self.base, self.told)
        return public.distilled(plan, place)

    def said(self, trained: Trained) -> list[Floats]:
        """What a trained classifier says of each party's examples: logits, or scores [examples, 1]."""
        import torch

        from learning.classification.training import predict
        from learning.models.adapting import unflatten
        from learning.models.features import head_alone

        model, read = trained.public.model, self.over(trained.public).read
        unflatten(model, torch.from_numpy(trained.point))
        if read.vectors is None:
            return [predict(model, part.rows) for part in self.parts]
        head = head_alone(model)
        assert head is not None
        with torch.inference_mode():
            return [head(torch.from_numpy(each)).numpy() for each in read.vectors]

    def asking(self) -> TextBench:
        """The teacher as classifiers' public start, and the texts that they vote on."""
        if self._asking is None:
            self._asking = self.over(replace(self.whole, queries=self.queries))
        return self._asking


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


def singles(part: LabelledPart) -> "tuple[list[Tokens], list[list[int]]]":
    """A party's texts one by one, those of a pair apart, and for every unit where its own are."""
    from learning.models.batching import Tokens

    rows: list[Tokens] = []
    places: list[list[int]] = []
    for row in part.rows:
        own = [len(rows)]
        ids = row.ids
        if row.second < len(ids):
            first, second = ids[: row.second], np.concatenate([ids[:1], ids[row.second :]])
            rows += [Tokens(first, len(first)), Tokens(second, len(second))]
            own.append(len(rows) - 1)
        else:
            rows.append(row)
        places.append(own)
    if part.members is None:
        return rows, places
    return rows, [[place for example in unit for place in places[example]] for unit in part.members]


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
