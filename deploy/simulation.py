"""All parties of a simulated federation in this process, in clear: what `coordinator compare` measures methods on.

It runs the parties' own code on each part of the one source that a plan divides, without nodes, wires, ledgers or
noise. Nobody's secret may be in that source.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scipy import sparse

from aggregation.joint import TeacherSignal
from coordinator.launchers import SimulationRequest, TeachersWanted
from party.config import PartyConfig, check_config, located
from party.counting import counted_units, vocabulary_of
from party.job import Job, Teaching
from party.tasks import insecure_key
from party.teaching import Wanted, answers


class ClearShards:
    """Every party's part of the source. Files that the work needs go below the request's folder."""

    def __init__(self, request: SimulationRequest) -> None:
        self._request = request
        self._folder = request.folder
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._vocabulary = self._folder / "vocabulary.json"
        self._vocabulary.write_bytes(request.vocabulary)
        self._parties = {name: _config(name, tables, request.base) for name, tables in request.parties.items()}

    def counts(self) -> tuple[sparse.csr_array, ...]:
        """Each party's pair counts, unit by unit: [units, words * words]. Memory: about 12 bytes a distinct pair."""
        return tuple(self._counts(config) for config in self._parties.values())

    def answers(self, reference: bytes, wanted: TeachersWanted) -> tuple[TeacherSignal, ...]:
        """Each party's teachers' answers, before anything bounds them. Raises `ConclaveError` like the party's work."""
        path = self._folder / "reference.safetensors"
        path.write_bytes(reference)
        return tuple(self._answers(config, path, wanted) for config in self._parties.values())

    def _counts(self, config: PartyConfig) -> sparse.csr_array:
        job = self._job(config)
        chunks = [counted for _, counted in counted_units(job, vocabulary_of(job), lambda _: None)]
        return sparse.csr_array(sparse.vstack(chunks, format="csr"))

    def _answers(self, config: PartyConfig, reference: Path, wanted: TeachersWanted) -> TeacherSignal:
        teaching = Teaching(
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
        return answers(self._job(config, teaching), teaching, Wanted(votes=True, hidden=True), lambda _: None)

    def _job(self, config: PartyConfig, teaching: Teaching | None = None) -> Job:
        return Job(
            parent=0,
            shard=config.shard.model_dump(),
            policy=config.policy.model_dump(),
            record=self._request.record,
            by_user=self._request.by_user,
            vocabulary=str(self._vocabulary),
            window=self._request.window,
            release="",
            cache=str(self._folder / "cache"),
            result="",
            teaching=teaching,
        )


def _config(name: str, tables: Mapping[str, Any], base: Path) -> PartyConfig:
    config = check_config(dict(tables), f"party {name}")
    return config.model_copy(update={"shard": located(config.shard, base)})
