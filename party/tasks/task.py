"""A kind of task: a folder with two modules, found by the name of its field in `TrainRequest.task`.

`request.py` checks the request in the node before anything is charged; it never imports torch. `training.py` does the
work in the training process (`party.tasks.process`). Each is imported when it is first needed.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, Self, cast

from pydantic import TypeAdapter

from party.config import PartyConfig
from party.store.artefacts import Artefacts
from party.store.keys import insecure_key, slot_key
from party.store.runs import Run
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.refusal import Reason, Refusal

_FOLDERS: Final = {
    "cooccurrence": "counts",
    "moments": "moments",
    "teachers": "teachers",
    "step": "step",
    "text_model": "text_model",
    "ensemble": "ensemble",
    "tokens": "tokens",
    "codes": "codes",
    "grading": "grading",
    "language_teachers": "language_teachers",
    "samples": "samples",
}
TRAINS: Final = tuple(_FOLDERS)
"""The kinds of task that this party trains."""
SPREAD: Final = frozenset({"teachers", "ensemble"})
"""Those whose teachers other machines of the site may train."""


class Work(Protocol):
    """Checked work: a frozen dataclass of the task's kind, sent to the training process as JSON.

    stays: whether the process stays for the next such job, which would otherwise read the shard again. models: whether
    it runs a text model, which a device may do. opens: whether it opens the shard; what does not is post-processing of
    what a charged training left.
    """

    __slots__ = ()

    kind: ClassVar[str]
    stays: ClassVar[bool] = False
    models: ClassVar[bool] = False
    opens: ClassVar[bool] = True

    def paid_with(self, key: str) -> Self:
        """The work with the noise key of a private training, in hexadecimal, which the ledger gave for its event.

        Most work needs none, because the node adds the noise to its sum.
        """
        return self

    def bare(self) -> Self:
        """The work without what differs from one step of a training to the next."""
        return self


@dataclass(frozen=True, slots=True)
class Given:
    """What a task is checked against: its release, the run, this party's file, what was provided. home: its folder."""

    release: plan_pb2.Release
    run: Run
    config: PartyConfig
    artefacts: Artefacts
    home: Path

    def provided(self, kind: str, sha256: bytes) -> Path:
        """The path of an artefact. Raises `Refusal` (ARTEFACT) when it never came."""
        return there(self.artefacts.path(sha256), kind, sha256)

    @property
    def slot_key(self) -> str:
        """The key that assigns units to teachers, in hexadecimal: this party's secret, unless noise is insecure."""
        if self.run.terms.privacy.insecure_reproducible_noise:
            return insecure_key(self.run.terms.seed, self.config.name, "slots").hex()
        return hmac.digest(slot_key(self.home), b"teachers", "sha256").hex()


class Request(Protocol):
    """The half of a kind that runs in the node: a module `party.tasks.<kind>.request`."""

    WORK: type[Any]
    """The dataclass of the kind."""

    def checked(self, task: Any, given: Given) -> Work:
        """The work that the kind's message asks for, with the party's secrets that it needs.

        Raises `Refusal`: ARTEFACT and REQUEST, and PLAN or POLICY where this shard cannot give the plan's text.
        """
        ...

    def fits(self, work: Any, release: plan_pb2.Release, memory: int) -> None:
        """Compare what was provided with the terms, before anything is charged. Blocks: it reads files.

        memory: MiB that the job may use; 0 for any. Raises `Refusal`: ARTEFACT, REQUEST, MEMORY.
        """
        ...

    def paid_before(self, work: Any) -> plan_pb2.Release | None:
        """The release of a private training whose event is charged, where that is not the release that is made."""
        ...


@dataclass(frozen=True, slots=True)
class Asks:
    """The subject of a request: the kind of task, the release it trains for, and for a step the attempt."""

    kind: str
    release: str
    attempt: int = 0

    @classmethod
    def of(cls, request: party_pb2.TrainRequest) -> Self:
        """Raises `Refusal` (REQUEST) for a task that this party does not know."""
        kind = request.WhichOneof("task")
        if kind not in _FOLDERS:
            raise wrong(f"this party trains {', '.join(TRAINS)}; the request names no such task.")
        task = getattr(request, kind)
        return cls(kind, task.release, getattr(task, "attempt", 0))


def half(kind: str, name: str) -> Any:
    """The module that is one half of a kind: "request" or "training"."""
    return import_module(f"{__package__}.{_FOLDERS[kind]}.{name}")


def request_of(kind: str) -> Request:
    """The half of a kind that runs in the node."""
    return cast(Request, half(kind, "request"))


def work_of(kind: str, fields: Mapping[str, Any]) -> Work:
    """The work of a kind, from its JSON."""
    work: Work = _adapter(kind).validate_python(fields)
    return work


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(request_of(kind).WORK)


def there(path: Path, kind: str, sha256: bytes) -> Path:
    """The path of something that was provided. Raises `Refusal` (ARTEFACT) when it never came."""
    if len(sha256) != hashlib.sha256().digest_size or not path.exists():
        were, them = ("were", "them") if kind.endswith("s") else ("was", "it")
        raise Refusal(Reason.ARTEFACT, f"the {kind} {were} never provided; send {them} first.")
    return path


def wrong(what: str) -> Refusal:
    """The refusal of a request that cannot be done."""
    return Refusal(Reason.REQUEST, what)


def cannot_give(kind: str, release: plan_pb2.Release) -> Refusal:
    """The refusal of a task whose kind cannot make its release."""
    return wrong(f"release {release.name} is not one that {kind} can give.")
