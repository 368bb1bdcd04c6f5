"""The data of one seed of a comparison of PrivDistil, and the students that are distilled for its methods."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordinator.comparing.comparable import SeedData
from coordinator.comparing.simulated_run import Collecting
from coordinator.federation.aside import Told
from coordinator.progress.progress import Progress
from coordinator.store.private_files import write_whole
from coordinator.systems.privdistil.distillation import compress
from coordinator.systems.privdistil.plan import PrivDistilPlan
from coordinator.systems.privdistil.public import PublicCorpus
from coordinator.text_models.methods import TextData
from coordinator.text_models.non_private import SimulatedText
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText
from coordinator.transport.launchers import LabelledPart
from learning.text.corpus import indexed
from learning.text.corpus_files import CorpusSource

if TYPE_CHECKING:
    from learning.models.batching import Tokens

Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained student, to be measured later. point: the trained parameters [parameters] of `public.model`."""

    public: PublicText
    point: Floats


@dataclass(slots=True)
class CorpusData(SeedData):
    """The data of one seed.

    text: the simulated parties and their text. folder: for distilled students, which all cells share. base: the folder
    against which the plan's model paths are resolved. whole: a classifier on the teacher. queries: the public texts of
    `[pate]`. recipe: as in `coordinator.comparing.comparable.ComparisonRequest`.
    """

    plan: PrivDistilPlan
    public: PublicCorpus
    text: SimulatedText
    progress: Progress
    folder: Path
    base: Path
    whole: PublicText
    queries: tuple[tuple[str, ...], ...]
    recipe: Callable[[str, Any, Any], Collecting[ClassifierPlan]]

    def told(self, what: str, done: int, total: int) -> None:
        self.progress.bar(what, done, total)

    def over(self, public: PublicText) -> TextData:
        """The same parties' text, for a classifier on another model."""
        return TextData(self.plan, public, self.text, self.progress, self.recipe)

    def compressed(
        self,
        plan: PrivDistilPlan,
        public: PublicCorpus,
        numbers: NDArray[np.int64],
        folder: Path,
        base: Path,
        told: Told,
    ) -> dict[str, Any]:
        """Distil a student as `compress` does, or copy one that was distilled on these texts before."""
        place, about = self._distilled(plan, public, numbers, base, told)
        shutil.copytree(place, folder)
        return about

    def leaked(self, plan: PrivDistilPlan) -> PublicText:
        """A student distilled on the parties' own text, on as many texts as are chosen from public text elsewhere."""
        texts = [
            self.whole.tokenizer.decode(row.ids.tolist(), skip_special_tokens=True)
            for part in self.text.parts
            for row in singles(part)
        ]
        most = plan.selection.texts
        picked = np.random.default_rng([self.seed, len(texts)]).permutation(len(texts))[:most]
        place = self.folder / "parties.jsonl"
        write_whole(place, "".join(json.dumps({"text": texts[each] or "."}) + "\n" for each in picked).encode())
        corpus = indexed([CorpusSource(str(place))], self.folder / "indexes", distinct=False)
        numbers = np.arange(corpus.count(), dtype=np.int64)
        place, _ = self._distilled(plan, replace(self.public, corpus=corpus), numbers, self.base, self.told)
        return self.public.distilled(plan, place)

    def _distilled(
        self, plan: PrivDistilPlan, public: PublicCorpus, numbers: NDArray[np.int64], base: Path, told: Told
    ) -> tuple[Path, dict[str, Any]]:
        """The folder of a student distilled on these texts, and the figures of `compress`; it is made if missing."""
        settings = [plan.distil.model_dump(), plan.model.name, self.seed, public.corpus.digest]
        key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode() + numbers.astype("<i8").tobytes())
        place = self.folder / "students" / key.hexdigest()[:32] / "student"
        figures = place.with_name("figures.json")
        if not figures.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            about = compress(plan, public, numbers, place, base, told)
            write_whole(figures, json.dumps(about).encode())
        about = json.loads(figures.read_bytes())
        return place, about

    def said(self, trained: Trained) -> list[Floats]:
        """A trained classifier's output on each party's examples: logits [examples, classes], scores [examples, 1]."""
        import torch

        from learning.classification.training import predict, predict_head
        from learning.models.adapting import unflatten
        from learning.models.features import head_alone

        model, seen = trained.public.model, self.text.vectors(trained.public)
        unflatten(model, torch.from_numpy(trained.point))
        if seen is None:
            return [predict(model, part.rows) for part in self.text.parts]
        head = head_alone(model)
        assert head is not None
        return [predict_head(head, each) for each in seen]


def singles(part: LabelledPart) -> "list[Tokens]":
    """A party's texts as single texts: a pair becomes two."""
    from learning.models.batching import Tokens

    found: list[Tokens] = []
    for row in part.rows:
        ids = row.ids
        if row.second < len(ids):
            first, second = ids[: row.second], np.concatenate([ids[:1], ids[row.second :]])
            found += [Tokens(first, len(first)), Tokens(second, len(second))]
        else:
            found.append(row)
    return found
