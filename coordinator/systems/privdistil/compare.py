"""PrivDistil and what it is measured against, as a comparison sees them: their data and their measures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.comparing.comparable import Comparable, Method, View, changed
from coordinator.progress.progress import Silent
from coordinator.systems.privdistil.bench import CorpusBench, Trained
from coordinator.systems.privdistil.methods import methods_of
from coordinator.systems.privdistil.plan import PrivDistilPlan
from coordinator.systems.privdistil.public import prepare
from coordinator.text_models import public as classifier_public
from coordinator.text_models.compare import CLASSES, SCORES
from coordinator.text_models.folder import metrics_of
from coordinator.text_models.methods import VOTING
from coordinator.text_models.non_private import simulation
from coordinator.text_models.public import public_model
from coordinator.text_models.student import heldout_rows, measured
from coordinator.transport.launchers import LabelledPart, Simulation, TextWanted


class PrivDistilFamily:
    """A `coordinator.comparing.comparable.Family`. A seed is of the public texts that are drawn, of every model's
    start, and of the order in which the student learns; what the parties have is theirs for all seeds.

    Memory of a bench: all parties' tokens, the teacher, and where the last layer alone is trained 4 bytes a number of
    the vectors of all examples, once for every model that is trained on them, and of each seed's public texts.
    """

    def __init__(self, given: Comparable) -> None:
        self.plan: PrivDistilPlan = given.plan
        self._given = given
        self._parts: tuple[LabelledPart, ...] | None = None
        self._seen: dict[bytes, Any] = {}
        self._shards: Simulation | None = None

    @property
    def methods(self) -> Mapping[str, Method]:
        return methods_of(self.plan)

    @property
    def view(self) -> View:
        return SCORES if self.plan.text.kind == "regression" else CLASSES

    def bench(self, seed: int, folder: Path) -> CorpusBench:
        plan = changed(self.plan, seed=seed)
        public = prepare(plan, self._given.base, self._given.cache)
        whole = public_model(plan, public.teacher, self._given.cache, pool=plan.model.pooling)
        asked = VOTING in self.methods
        if self._shards is None:
            wanted = simulation(plan, self._given.parties, self._given.base, folder)
            self._shards = self._given.launcher.simulate(wanted)
        if self._parts is None:
            text = classifier_public.labelled_text(plan)
            self._parts = self._shards.labelled(TextWanted(text, whole.tokenizer, whole.longest))
        return CorpusBench(
            plan=plan,
            public=public,
            parts=self._parts,
            shards=self._shards,
            progress=Silent(),
            folder=folder,
            base=self._given.base,
            whole=whole,
            seen=self._seen,
            recipe=self._given.recipe,
            queries=classifier_public.queries(plan, self._given.base, self._given.cache) if asked else (),
        )

    def metrics(self, bench: CorpusBench, model: Trained) -> dict[str, Any]:
        """model: what was trained, and in which model."""
        import torch

        from learning.classification.training import predict
        from learning.models.adapting import unflatten

        unflatten(model.public.model, torch.from_numpy(model.point))
        public = bench.public.text
        said = predict(model.public.model, heldout_rows(bench.plan, public))
        found = metrics_of(measured(bench.plan, public, said))
        return {name: value for name, value in found.items() if name != "examples"}
