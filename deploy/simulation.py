"""All parties of a simulated federation in this process, in clear: what `coordinator compare` measures methods on.

It runs the parties' own code on each part of the one source that a plan divides, without nodes, wires, ledgers or
noise. Nobody's secret may be in that source.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aggregation.mechanisms.joint import TeacherSignal
from coordinator.transport.launchers import DocumentsWanted, SimulationRequest, TeachersWanted, TextWanted
from deploy.simulated_links import SimulatedLink, public_file
from deploy.simulated_memory import SimulatedMemory
from party.admission.labels import columns_of, targets_of
from party.config import PartyConfig, check_config
from party.provided.words import vocabulary_in
from party.shard.counted import counted_units
from party.shard.reading import Reading
from party.shard_table import located
from party.store.keys import insecure_key
from party.tasks.result import Sum
from party.tasks.teachers.request import TeachersWork
from party.tasks.teachers.training import all_answers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from learning.models.batching import Tokens
    from party.shard.labelled import LabelledUnits
    from party.shard.plain import PlainUnits


class ClearShards:
    """Every party's part of the source. Files that the work needs go below the request's folder."""

    def __init__(self, request: SimulationRequest) -> None:
        self._request = request
        self._folder = request.folder
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._vocabulary = public_file(self._folder, request.vocabulary)
        beside = request.beside
        shared = beside._memory if isinstance(beside, ClearShards) else None
        self._memory: SimulatedMemory = SimulatedMemory(request.processes) if shared is None else shared
        self._parties = {name: _config(name, tables, request.base) for name, tables in request.parties.items()}
        self._links = tuple(SimulatedLink(each, self._folder, self._memory) for each in self._parties.values())

    def links(self) -> tuple[SimulatedLink, ...]:
        """Every party as a recipe asks it, in this process; what they read they read once."""
        return self._links

    def bounded(self, release: str) -> tuple[Sum, ...]:
        """Each party's bounded sum of a release that was trained under the last plan, without noise."""
        return tuple(link.bounded(release) for link in self._links)

    def counts(self) -> tuple[sparse.csr_array, ...]:
        """Each party's pair counts, unit by unit: [units, words * words]. Memory: about 12 bytes a distinct pair."""
        return tuple(self._counts(config) for config in self._parties.values())

    def answers(self, reference: bytes, wanted: TeachersWanted) -> tuple[TeacherSignal, ...]:
        """Each party's teachers' answers, before anything bounds them. Raises `ConclaveError` like the party's work."""
        path = public_file(self._folder, reference)
        return tuple(self._answers(config, path, wanted) for config in self._parties.values())

    def labelled(self, wanted: TextWanted) -> tuple["LabelledUnits", ...]:
        """Each party's labelled text, tokenised. Raises `ConclaveError` like the party's work.

        Memory: all parties' tokens, see `party.shard.labelled.TokenRows`.
        """
        from party.shard.labelled import labelled_units

        shards = [config.shard for config in self._parties.values()]
        return tuple(
            labelled_units(
                shard,
                columns_of(wanted.text, shard),
                targets_of(wanted.text, shard),
                wanted.tokenizer,
                longest=wanted.longest,
                known=len(wanted.tokenizer),
                by_user=self._request.by_user,
                cache=self._folder / "cache",
                frank=True,
            )
            for shard in shards
        )

    def documents(self, wanted: DocumentsWanted) -> tuple["PlainUnits", ...]:
        """Each party's documents, tokenised, each after its control code. Raises `ConclaveError` like the party's work.

        Memory: all parties' tokens, see `party.shard.labelled.TokenRows`.
        """
        from party.admission.pairs import answers_in
        from party.tasks.text.documents import answered, documents

        coded = "" if wanted.coded is None else wanted.coded.SerializeToString().hex()
        known = len(wanted.tokenizer)
        readings = [self._reading(config) for config in self._parties.values()]
        if (form := wanted.pairs) is not None:
            return tuple(
                answered(each, wanted.tokenizer, answers_in(each.shard), form, known=known) for each in readings
            )
        return tuple(documents(each, wanted.tokenizer, coded, longest=wanted.longest, known=known) for each in readings)

    def vectors(self, model: "PreTrainedModel", rows: Sequence["Tokens"]) -> NDArray[np.float32]:
        """The input vectors of a model's last layer, [texts, width]; every encoder reads the same texts once."""
        return self._memory.vectors(model, rows)

    def _counts(self, config: PartyConfig) -> sparse.csr_array:
        vocabulary = vocabulary_in(self._vocabulary)
        found = counted_units(self._reading(config), vocabulary, self._request.window, self._memory)
        chunks = [counted for _, counted in found]
        return sparse.csr_array(sparse.vstack(chunks, format="csr"))

    def _answers(self, config: PartyConfig, reference: Path, wanted: TeachersWanted) -> TeacherSignal:
        work = TeachersWork(
            vocabulary=str(self._vocabulary),
            window=self._request.window,
            teachers=wanted.teachers_per_party,
            reference=str(reference),
            alignment=wanted.alignment,
            queries=list(wanted.queries),
            classes=list(wanted.classes),
            layers=list(wanted.layers),
            vote=wanted.vote,
            seed=wanted.seed,
            slot_key=insecure_key(wanted.seed, config.name, "slots").hex(),
            training="",
            training_key="",
            expected_batch=0.0,
            learning_rate=0.0,
        )
        return all_answers(self._reading(config), work, lambda _: None, self._memory)

    def _reading(self, config: PartyConfig) -> Reading:
        return Reading(
            shard=config.shard,
            record=self._request.record,
            by_user=self._request.by_user,
            cache=self._folder / "cache",
            frank=config.policy.simulation,
            declared_size=config.policy.declared_size,
        )


def _config(name: str, tables: Mapping[str, Any], base: Path) -> PartyConfig:
    config = check_config(dict(tables), f"party {name}")
    return config.model_copy(update={"shard": located(config.shard, base)})
