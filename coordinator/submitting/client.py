"""The submitter's end: a plan is submitted, followed, and its student fetched whole, or not at all."""

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import grpc

from aggregation.errors import IntegrityError
from coordinator.errors import PlanError, RunError
from coordinator.publishing.publish import placed
from coordinator.reading import shown
from coordinator.submitting.reaching import why_not
from protos.conclave.v1 import coordinator_pb2
from protos.conclave.v1.coordinator_pb2_grpc import CoordinatorStub
from protos.console.checklist import free_disk, size
from protos.identity.identity import Identity
from protos.identity.tls import channel_credentials, server_options
from protos.refusal import Reason, printable, refusal_of

Said = TypeVar("Said")

MOST_FILES: Final = 10_000
MOST_BYTES: Final = 2**40
LONGEST_PATH: Final = 400
AGAIN_SECONDS: Final = (1.0, 2.0, 5.0, 10.0)
CALL_SECONDS: Final = 120.0
_PATH: Final = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*", re.ASCII)
_ADDRESS: Final = re.compile(r"([^\s:\[\]]+|\[[0-9a-fA-F:]+\]):\d{1,5}")
OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 4 * 2**20),
)


class Client:
    """A coordinator that stays up, as a submitter asks it. A context manager.

    Every call raises `PlanError` for a plan that is refused, `RunError` for anything else: each says what to do.
    """

    def __init__(self, address: str, identity: Identity) -> None:
        if _ADDRESS.fullmatch(address) is None:
            raise PlanError(f"--at {printable(address)} is no address. Write HOST:PORT, as coordinator.example:7445.")
        self.address = address
        self.identity = identity
        self._channel: grpc.Channel | None = None

    def __enter__(self) -> Self:
        self._connect()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._channel is not None:
            self._channel.close()

    def submit(self, plan: str, *, again: bool = False) -> coordinator_pb2.SubmitResponse:
        """Submit a plan, TOML."""
        request = coordinator_pb2.SubmitRequest(plan=plan, again=again)
        said: coordinator_pb2.SubmitResponse = self._call(lambda stub: stub.Submit(request, timeout=CALL_SECONDS))
        return said

    def listed(self) -> list[coordinator_pb2.Submission]:
        """This submitter's submissions, newest first."""
        return list(self._call(lambda stub: stub.List(coordinator_pb2.ListRequest(), timeout=CALL_SECONDS)).submissions)

    def cancel(self, wanted: str) -> coordinator_pb2.Submission:
        """Have a submission ended for good."""
        request = coordinator_pb2.CancelRequest(id=wanted)
        said: coordinator_pb2.Submission = self._call(lambda stub: stub.Cancel(request, timeout=CALL_SECONDS))
        return said

    def watch(
        self, wanted: str, away: Callable[[str], None] = lambda why: None
    ) -> Iterator[coordinator_pb2.Submission]:
        """A submission at each change, until it is at rest. A coordinator that goes away is asked again for as long as
        the caller listens. away: is told why it is not there.
        """
        failures = 0
        while True:
            try:
                for seen in self._stub.Watch(coordinator_pb2.WatchRequest(id=wanted)):
                    failures = 0
                    yield seen
                return
            except grpc.RpcError as error:
                why = self._passing(error)
                if why is None:
                    raise self._failed(error) from None
                if not failures:
                    away(why)
            time.sleep(AGAIN_SECONDS[min(failures, len(AGAIN_SECONDS) - 1)])
            failures += 1
            self._connect(again=True)

    def fetch(self, wanted: str, folder: Path) -> None:
        """Put the published folder of a submission in its place: every file by its digest, or nothing at all."""

        def fill(beside: Path) -> None:
            call = self._stub.Fetch(coordinator_pb2.FetchRequest(id=wanted))
            try:
                _received(call, beside)
            finally:
                call.cancel()

        try:
            placed(folder, fill)
        except grpc.RpcError as error:
            raise self._failed(error) from None

    @property
    def _stub(self) -> Any:
        return CoordinatorStub(self._channel)  # type: ignore[arg-type]

    def _connect(self, *, again: bool = False) -> None:
        """A new channel, after a look at who is there. again: whoever is not there may come."""
        if not again and (why := why_not(self.address, self.identity)) is not None:
            raise RunError(why, code="C501")
        if self._channel is not None:
            self._channel.close()
        self._channel = grpc.secure_channel(
            self.address, channel_credentials(self.identity), options=(*OPTIONS, *server_options())
        )

    def _call(self, call: Callable[[Any], Said]) -> Said:
        try:
            return call(self._stub)
        except grpc.RpcError as error:
            raise self._failed(error) from None

    def _passing(self, error: Any) -> str | None:
        """Why the coordinator is not there now, where it may be again; None for anything else."""
        refusal = refusal_of(error)
        if refusal is not None:
            return refusal.sentence if refusal.reason is Reason.DRAINING else None
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN):
            return why_not(self.address, self.identity) or f"the coordinator at {self.address} does not answer."
        return None

    def _failed(self, error: Any) -> PlanError | RunError:
        refusal = refusal_of(error)
        if refusal is None:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return RunError(f"the coordinator at {self.address} took too long to answer. Ask again.", code="C501")
            why = why_not(self.address, self.identity)
            return RunError(
                why or f"the coordinator at {self.address} failed: {printable(error.details() or '')}", code="C501"
            )
        if refusal.reason is Reason.PLAN:
            return PlanError(refusal.sentence, code="C109")
        return RunError(refusal.sentence, code=refusal.code)


def _received(call: Iterator[coordinator_pb2.FetchResponse], folder: Path) -> None:
    """Write the files of a stream. The sender is not trusted: no path leaves the folder, and nothing is more than was
    said. Raises `IntegrityError`.
    """
    data = bytearray()
    files = [(each.path, each.bytes, each.sha256) for each in next(call, coordinator_pb2.FetchResponse()).files]
    _check_files(files, folder)
    for path, length, sha256 in files:
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        digest, left = hashlib.sha256(), length
        with place.open("xb") as file:
            while left:
                if not data:
                    message = next(call, None)
                    if message is None or not message.data:
                        raise IntegrityError(f"the student came without all of {shown(path)}. Fetch it again.")
                    data += message.data
                piece = bytes(data[:left])
                del data[: len(piece)]
                digest.update(piece)
                file.write(piece)
                left -= len(piece)
        if digest.hexdigest() != sha256:
            raise IntegrityError(f"{shown(path)} came with another digest than was said. Fetch it again.")
    if data or next(call, None) is not None:
        raise IntegrityError("more came than the student's files. Nothing was kept.")


def _check_files(files: list[tuple[str, int, str]], folder: Path) -> None:
    paths = [path for path, _, _ in files]
    if not files or len(files) > MOST_FILES or len(set(paths)) != len(paths):
        raise IntegrityError("what came is not the list of a student's files. Nothing was kept.")
    for path, _, _ in files:
        if _PATH.fullmatch(path) is None or {".", ".."} & set(path.split("/")) or len(path) > LONGEST_PATH:
            raise IntegrityError(f"{shown(path)} is no file of a student. Nothing was kept.")
    total, free = sum(length for _, length, _ in files), free_disk(folder)
    if total > min(MOST_BYTES, free):
        raise RunError(
            f"the student has {size(total)}, and {size(free)} are free in {folder.parent}. Make room.", code="C301"
        )
