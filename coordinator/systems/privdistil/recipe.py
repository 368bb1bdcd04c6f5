"""Recipe `privdistil`: choose public text privately, distil a smaller student on it, fine-tune the student privately.

It has five stages. Every party trains, under noise of its own, a classifier that tells its text from public text. All
these classifiers score the public corpus. Private-like texts are chosen from every cluster of the corpus. The student,
a teacher with fewer layers, is distilled on them without noise, since they are public. All parties fine-tune the
student under DP-SGD. Only the first and the last stage touch private text.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from aggregation.mechanisms.gradients import GradientMechanism
from coordinator.errors import RunError
from coordinator.federation.aside import Told, aside
from coordinator.federation.federation import Federation
from coordinator.pricing.release import PricedPlan, Release, unpromised
from coordinator.progress.progress import Progress
from coordinator.store.faults import sound
from coordinator.store.store import RunStore
from coordinator.systems.privdistil import releases as privdistil_terms
from coordinator.systems.privdistil.distillation import COMPRESSED, compress
from coordinator.systems.privdistil.messages import domain_request
from coordinator.systems.privdistil.plan import PrivDistilPlan
from coordinator.systems.privdistil.public import PublicCorpus, cut
from coordinator.systems.privdistil.releases import DOMAIN, SCORE_LEVELS, SCORES
from coordinator.systems.privdistil.selection import Choice, Said, choose
from coordinator.systems.system import Stage
from coordinator.text_models.federated_training import descend, descended, floats_of, odd_weights
from coordinator.text_models.folder import Made
from coordinator.text_models.messages import provide_model
from coordinator.text_models.student import PublishedClassifier, student_of
from protos.conclave.v1 import plan_pb2
from protos.digest import artefact_digest

CHOSEN: Final = "artefacts/chosen.i64"
DOMAIN_FILE: Final = "artefacts/domain.safetensors"
_ROWS: Final = 4096
"""Scores in one request."""

Distil: TypeAlias = Callable[[PrivDistilPlan, PublicCorpus, NDArray[np.int64], Path, Path, Told], dict[str, Any]]
"""`coordinator.systems.privdistil.distillation.compress`, or a function like it that keeps its students."""


@dataclass(frozen=True, slots=True)
class PrivDistil:
    """A `coordinator.systems.system.Recipe`. public: None where nothing was read. distil: makes the student;
    `compress` by default.
    """

    plan: PrivDistilPlan
    public: PublicCorpus | None
    distil: Distil | None = None

    fewer_cells = "Use a larger delta, fewer steps, or train less of the model ([model] adapt)."
    finer_grid = "Leave noise out."

    @property
    def labelled(self) -> plan_pb2.LabelledText:
        return self.plan.labelled

    def total_event(self, multiplier: float) -> DpEvent:
        return privdistil_terms.total_event(self.plan, multiplier, self.public)

    def releases(self, multiplier: float) -> tuple[Release, ...]:
        return privdistil_terms.releases(self.plan, multiplier, self.public)

    def doubts(self) -> list[str]:
        return []

    async def collect(
        self, priced: PricedPlan[PrivDistilPlan], federation: Federation, store: RunStore, stage: Stage
    ) -> dict[str, int]:
        plan, public = self.plan, self.read
        with stage("train"):
            said = await domain_classifiers(priced, public, federation, store)
        if not store.finished("choose"):
            with stage("choose") as result:
                choice = await aside(federation, lambda told: _chosen(priced, public, said, told))
                store.write(CHOSEN, choice.numbers.astype("<i8").tobytes())
                result |= choice.facts | {"texts": len(choice.numbers)}
            for warning in choice.facts.get("warnings", ()):
                federation.say(f"  {warning}")
        folder = store.folder / COMPRESSED
        if not store.finished("compress"):
            numbers, base, distil = _numbers(store), Path(store.fact("base")), self.distil or compress
            with stage("compress") as result:
                result |= await aside(federation, lambda told: distil(plan, public, numbers, folder, base, told))
        text = await asyncio.to_thread(public.distilled, plan, folder)
        with stage("provide"):
            await provide_model(text, plan, federation, store)
        with stage("aggregate") as result:
            present = await descend(priced, _student(priced), text, federation, store)
            asked = [release.name for release in priced.releases if release.form.gives and release.name not in present]
            present |= {name: len(store.summed(name)) for name in asked}
            result |= {"parties": list(federation.present), "present": present, "bytes": federation.traffic}
        return present

    def learn(
        self, priced: PricedPlan[PrivDistilPlan], present: dict[str, int], store: RunStore, progress: Progress
    ) -> bytes:
        from safetensors.numpy import save

        text = self.read.distilled(self.plan, store.folder / COMPRESSED)
        content: bytes = save({"point": descended(self.plan, text, store)})
        return content

    def student(
        self,
        content: bytes,
        priced: PricedPlan[PrivDistilPlan],
        present: dict[str, int],
        store: RunStore,
        progress: Progress,
    ) -> PublishedClassifier:
        from safetensors.numpy import load

        text = self.read.distilled(self.plan, store.folder / COMPRESSED)
        return student_of(self.plan, text, load(content)["point"], _made(self.read, store), progress)

    @property
    def read(self) -> PublicCorpus:
        """The public data, where it was read."""
        assert self.public is not None
        return self.public


def _student(priced: PricedPlan[PrivDistilPlan]) -> tuple[Release, ...]:
    """The releases of the student's fine-tuning."""
    return tuple(release for release in priced.releases if release.name not in (DOMAIN, SCORES))


async def domain_classifiers(
    priced: PricedPlan[PrivDistilPlan], public: PublicCorpus, federation: Federation, store: RunStore
) -> Said:
    """Have every party train its domain classifier once, and store what it releases, which was paid for."""
    plan, domain = priced.plan, public.domain
    if domain is None:
        return Said()
    if not (store.folder / DOMAIN_FILE).exists():
        await provide_model(domain, plan, federation, store, "domain_model")
        start = np.ascontiguousarray(domain.start, "<f4").tobytes()
        await federation.provide("parameters", start)
        for sample in public.samples.values():
            await federation.provide("texts", sample)
        asked = await asyncio.to_thread(_asked, plan, public)
        if asked:
            await federation.provide("texts", asked)
        requests = {
            name: domain_request(plan, domain, artefact_digest(start), artefact_digest(sample), asked)
            for name, sample in public.samples.items()
        }
        await federation.train(requests, doing="training")
        collect = _scores if asked else _weights
        store.write(DOMAIN_FILE, await collect(priced, federation, store))
    return _said(plan, store)


async def _weights(priced: PricedPlan[PrivDistilPlan], federation: Federation, store: RunStore) -> bytes:
    """The parameters of every party's classifier, by the party's name."""
    from safetensors.numpy import save

    release = priced.release(DOMAIN)
    assert release is not None
    note = unpromised(priced.plan)
    models = await federation.gather(DOMAIN, 1, release.columns, 1, note, odd=odd_weights)
    store.begin_sum(DOMAIN, list(models))
    content: bytes = save({name: floats_of(model) for name, model in models.items()})
    return content


async def _scores(priced: PricedPlan[PrivDistilPlan], federation: Federation, store: RunStore) -> bytes:
    """Every text's score, as the mean over the parties' classifiers."""
    from safetensors.numpy import save

    release = priced.release(SCORES)
    assert release is not None
    if priced.plan.privacy.trust == "secure-sum":
        present = await federation.sum_securely(release, priced.binding.terms, _ROWS, store)
    else:
        note = unpromised(priced.plan)
        present = await federation.aggregate(SCORES, release.rows, 1, _ROWS, store, note)
    total = np.concatenate([block[:, 0] for _, _, block in store.blocks(SCORES)])
    store.begin_sum(DOMAIN, list(store.summed(SCORES)))
    content: bytes = save({"mean": np.clip(total / (present * SCORE_LEVELS), 0.0, 1.0)})
    return content


def _said(plan: PrivDistilPlan, store: RunStore) -> Said:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = store.folder / DOMAIN_FILE
    try:
        kept = load(path.read_bytes())
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} is damaged: {error} The run cannot go on. Run its plan again.", code="C802") from None
    return Said(weights=kept) if plan.domain.release == "weights" else Said(mean=kept["mean"])


def _asked(plan: PrivDistilPlan, public: PublicCorpus) -> bytes:
    """The whole corpus, for parties that score it themselves; nothing where they do not."""
    if plan.domain.release == "weights":
        return b""
    texts = [cut(plan, text) for _, block in public.corpus.blocks(_ROWS) for text in block]
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode()


def _chosen(priced: PricedPlan[PrivDistilPlan], public: PublicCorpus, said: Said, told: Told) -> Choice:
    release, noise = priced.release(DOMAIN), None
    if release is not None:
        mechanism = release.under(GradientMechanism)
        noise = mechanism.noise_multiplier * mechanism.sensitivity * mechanism.granularity
    return choose(priced.plan, public, said, noise, told)


def _numbers(store: RunStore) -> NDArray[np.int64]:
    return np.frombuffer((store.folder / CHOSEN).read_bytes(), "<i8").astype(np.int64)


def _made(public: PublicCorpus, store: RunStore) -> Made:
    """How the student was made, for its card and for the report."""
    with sound(store.folder):
        stages = store.stages()
        chosen, compressed = stages["choose"][2], stages["compress"][2]
        return Made(
            layers=public.layers,
            texts=int(chosen["texts"]),
            method=str(chosen["method"]),
            agreement=chosen.get("agreement"),
            parameters=(int(compressed["parameters"]), int(compressed["teacher_parameters"])),
            warnings=tuple(str(each) for each in chosen.get("warnings", ())),
        )
