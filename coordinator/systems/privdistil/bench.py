"""The data of one seed on which a comparison runs its methods: the parties' text in clear, and models' features of
it.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aggregation.noise.stream import NoiseStream
from coordinator.comparing.simulated_run import Collecting
from coordinator.pricing.release import SAMPLER_SHARE
from coordinator.progress.progress import Progress
from coordinator.store.private_files import write_whole
from coordinator.systems.privdistil.distillation import compress
from coordinator.systems.privdistil.plan import PrivDistilPlan
from coordinator.systems.privdistil.public import PublicCorpus
from coordinator.systems.privdistil.selection import Choice
from coordinator.text_models import non_private
from coordinator.text_models.methods import ReadText, TextBench
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText
from coordinator.transport.launchers import LabelledPart, Simulation
from learning.text.corpus import indexed
from learning.text.corpus_files import CorpusSource

if TYPE_CHECKING:
    from learning.models.batching import Tokens

Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained student, to be measured later: the model it belongs to, and its trained parameters [parameters]."""

    public: PublicText
    point: Floats


@dataclass(slots=True)
class CorpusBench:
    """The data of one seed.

    parts: the parties' examples, read once for all seeds. folder: for distilled students, shared by all cells. base:
    the folder against which the plan's model paths are resolved. whole: a classifier on the teacher. queries: the
    public texts of `[pate]`. seen: encoders' features of the parties' texts and of public ones, kept from seed to seed.
    recipe: as `coordinator.comparing.comparable.Comparable` says.
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
    recipe: Callable[[str, Any, Any], Collecting[ClassifierPlan]]
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
        """A noise stream of its own for these labels; it derives from the seed only where the plan says so."""
        if self.plan.privacy.insecure_reproducible_noise:
            return NoiseStream.insecure(self.seed, *labels)
        return NoiseStream.from_system()

    def over(self, public: PublicText, plan: PrivDistilPlan | None = None) -> TextBench:
        """The parties' text for a model; where only the last layer is trained, its input vectors are computed once."""
        read = ReadText(self.parts, non_private.pooled(self.parts), self.vectors(public), None)
        return TextBench(plan or self.plan, public, read, self.shards, self.progress, self.recipe)

    def vectors(self, public: PublicText) -> tuple[Floats, ...] | None:
        """The input vectors of a model's last layer for each party's examples; None where more than that layer is
        trained.
        """
        return self._of_parts(public, b"examples", [part.rows for part in self.parts])

    def texts(self, domain: PublicText) -> "tuple[tuple[list[Tokens], list[list[int]], Floats | None], ...]":
        """The `singles` of each party, and the input vectors of a domain classifier's last layer for them, as in
        `vectors`.
        """
        found = [singles(part) for part in self.parts]
        kind = b"texts" if any(row.second < len(row) for part in self.parts for row in part.rows) else b"examples"
        seen = self._of_parts(domain, kind, [rows for rows, _ in found]) or (None,) * len(found)
        return tuple((rows, units, vectors) for (rows, units), vectors in zip(found, seen, strict=True))

    def sample(self, domain: PublicText, name: str) -> "tuple[list[Tokens], Floats | None]":
        """The public texts that a party's domain classifier is trained against, and their input vectors likewise."""
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
        """Input vectors of the last layer for each party's rows, computed once; None where more than that layer is
        trained.
        """
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
        """The student distilled on the chosen texts."""
        return self._distilled(plan, self.public, choice.numbers)

    def leaked(self, plan: PrivDistilPlan) -> PublicText:
        """A student distilled on the parties' own text, as much of it as is chosen of public text."""
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
        """The student distilled on these texts, loaded from its folder where that was done before."""
        told = [plan.distil.model_dump(), plan.model.name, self.seed, public.corpus.digest]
        key = hashlib.sha256(json.dumps(told, sort_keys=True).encode() + numbers.astype("<i8").tobytes())
        place = self.folder / "students" / key.hexdigest()[:32] / "student"
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            compress(plan, public, numbers, place, self.base, self.told)
        return public.distilled(plan, place)

    def said(self, trained: Trained) -> list[Floats]:
        """A trained classifier's output on each party's examples: logits, or scores [examples, 1]."""
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
        """The teacher as the classifiers' public start, and the texts that they vote on."""
        if self._asking is None:
            self._asking = self.over(replace(self.whole, queries=self.queries))
        return self._asking


def singles(part: LabelledPart) -> "tuple[list[Tokens], list[list[int]]]":
    """A party's texts one by one, a pair as two texts, and for every unit the positions of its own."""
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
