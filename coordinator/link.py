"""One party as the coordinator sees it: typed verbs that come back with an answer, a refusal, or news of a loss.

A call does not raise for what a party or a network does; only bugs raise.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import grpc
import numpy as np
from numpy.typing import NDArray

from protos import PROTOCOL_VERSION
from protos.codec import CHUNK_BYTES, MalformedTensor, TensorReader
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.conclave.v1.party_pb2_grpc import PartyStub
from protos.credentials import bearer
from protos.digest import artefact_digest, batch_digest
from protos.framing import unframed
from protos.refusal import Reason, Refusal, refusal_of

Value = TypeVar("Value")

CHANNEL_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True)
class Answered(Generic[Value]):
    """The party did what was asked."""

    value: Value


@dataclass(frozen=True, slots=True)
class Refused:
    """The party said no, or sent something that cannot be used. Asking again the same way gives the same."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Lost:
    """The party did not answer. `why` completes the sentence "party north was lost: ..."."""

    why: str


Outcome = Answered[Value] | Refused | Lost


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows [start, stop) of a released matrix, under the number they keep for the whole run."""

    number: int
    start: int
    stop: int


class PartyLink(Protocol):
    """The verbs of one party. The first form is direct gRPC; parties that dial out will be another."""

    @property
    def name(self) -> str: ...

    async def describe(self) -> Outcome[party_pb2.DescribeResponse]: ...

    async def join(self, run_id: str, plan: plan_pb2.Plan, plan_hash: bytes) -> Outcome[None]: ...

    async def leave(self) -> Outcome[None]: ...

    async def provide(self, kind: str, content: bytes) -> Outcome[None]: ...

    async def train(self, request: party_pb2.TrainRequest, on_percent: Callable[[int], None]) -> Outcome[None]: ...

    def answer(
        self, release: str, batches: Iterable[Batch], columns: int
    ) -> AsyncIterator[Outcome[NDArray[np.int32]]]: ...

    async def close(self) -> None: ...


class GrpcLink:
    """A party at an address. Every call has a deadline; a stream has one for each message it waits for."""

    def __init__(self, name: str, address: str, token: str = "", *, deadline: float = 60.0) -> None:
        self._name = name
        self._address = address
        self._deadline = deadline
        self._metadata = bearer(token)
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = PartyStub(self._channel)
        # The generated stub's own reading would copy every block three times more.
        self._answer: Any = self._channel.stream_stream(
            f"/{party_pb2.DESCRIPTOR.services_by_name['Party'].full_name}/Answer",
            request_serializer=party_pb2.AnswerRequest.SerializeToString,
            response_deserializer=unframed,
        )
        self._run = party_pb2.RunContext()
        self.bytes_received = 0
        self.bytes_sent = 0

    @property
    def name(self) -> str:
        """The party's name in the plan."""
        return self._name

    async def describe(self) -> Outcome[party_pb2.DescribeResponse]:
        """Ask who is there; waits for a node that is just starting, up to the deadline."""
        request = party_pb2.DescribeRequest()
        return await self._outcome(self._stub.Describe(request, **self._options(wait=True)))

    async def join(self, run_id: str, plan: plan_pb2.Plan, plan_hash: bytes) -> Outcome[None]:
        """Bind this party to a run; every later call carries its id and plan hash."""
        run = party_pb2.RunContext(run_id=run_id, plan_hash=plan_hash)
        request = party_pb2.JoinRequest(protocol_version=PROTOCOL_VERSION, run=run, plan=plan)
        joined = await self._outcome(self._stub.Join(request, **self._options()))
        if isinstance(joined, Answered):
            self._run = run
            return Answered(None)
        return joined

    async def leave(self) -> Outcome[None]:
        """Tell the party that the run is over; it may drop its working files."""
        left = await self._outcome(self._stub.Leave(party_pb2.LeaveRequest(run=self._run), **self._options()))
        return Answered(None) if isinstance(left, Answered) else left

    async def provide(self, kind: str, content: bytes) -> Outcome[None]:
        """Send a public artefact; a party that has it already reads no further than the header."""
        header = party_pb2.ArtefactHeader(run=self._run, kind=kind, sha256=artefact_digest(content), size=len(content))

        def parts() -> Iterator[party_pb2.ProvideRequest]:
            yield party_pb2.ProvideRequest(header=header)
            for offset in range(0, len(content), CHUNK_BYTES):
                yield party_pb2.ProvideRequest(data=content[offset : offset + CHUNK_BYTES])

        self.bytes_sent += len(content)
        provided = await self._outcome(self._stub.Provide(parts(), **self._options()))
        return Answered(None) if isinstance(provided, Answered) else provided

    async def train(self, request: party_pb2.TrainRequest, on_percent: Callable[[int], None]) -> Outcome[None]:
        """Have something trained; the deadline runs anew with every sign of progress."""
        request.run.CopyFrom(self._run)
        call = self._stub.Train(request, **self._options(deadline=False))
        try:
            while True:
                progress: Any = await asyncio.wait_for(call.read(), self._deadline)
                if progress is grpc.aio.EOF:
                    return Lost("its training ended without saying that it finished")
                if progress.percent <= 100:
                    on_percent(progress.percent)
                if progress.finished:
                    return Answered(None)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            return self._failure(error)
        finally:
            call.cancel()

    async def answer(
        self, release: str, batches: Iterable[Batch], columns: int
    ) -> AsyncIterator[Outcome[NDArray[np.int32]]]:
        """Ask for row blocks of a released matrix; yields one outcome a batch, in order, and stops after a failure.

        Each answer is int32 [rows, columns] modulo 2**32. Memory: one block; the party is not asked for the next
        before this one was taken.
        """
        call = self._answer(**self._options(deadline=False))
        try:
            for batch in batches:
                rows = party_pb2.RowRange(start=batch.start, stop=batch.stop)
                request = party_pb2.AnswerRequest(run=self._run, release=release, batch=batch.number, rows=rows)
                request.digest = batch_digest(request)
                await asyncio.wait_for(call.write(request), self._deadline)
                yield Answered(await self._block(call, batch, columns))
            await call.done_writing()
        except MalformedTensor as error:
            yield Refused(_unusable(self._name, str(error)))
        except (grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError) as error:
            yield self._failure(error if isinstance(error, TimeoutError) else await _status_of(call, error))
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def _block(self, call: Any, batch: Batch, columns: int) -> NDArray[np.int32]:
        reader = TensorReader(np.int32, (batch.stop - batch.start, columns))
        while True:
            piece = await asyncio.wait_for(call.read(), self._deadline)
            if piece is grpc.aio.EOF:
                raise MalformedTensor(f"the answer to batch {batch.number} ended early")
            if piece.batch != batch.number:
                raise MalformedTensor(f"an answer to batch {piece.batch} came where {batch.number} was asked for")
            self.bytes_received += len(piece.data)
            block = reader.put(piece.header, piece.offset, piece.data)
            if block is not None:
                return block

    def _options(self, *, deadline: bool = True, wait: bool = False) -> dict[str, Any]:
        return {
            "metadata": self._metadata,
            "timeout": self._deadline if deadline else None,
            "wait_for_ready": wait,
        }

    async def _outcome(self, call: Awaitable[Value]) -> Outcome[Value]:
        try:
            return Answered(await call)
        except grpc.aio.AioRpcError as error:
            return self._failure(error)

    def _failure(self, error: BaseException) -> Refused | Lost:
        if isinstance(error, TimeoutError):
            return Lost(f"no answer for {self._deadline:g} s from {self._address}")
        if not isinstance(error, grpc.aio.AioRpcError):
            return Lost(f"the connection to {self._address} broke")
        refusal = refusal_of(error)
        if refusal is not None:
            return Refused(refusal)
        match error.code():
            case grpc.StatusCode.UNAVAILABLE:
                return Lost(f"nothing answers at {self._address}")
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return Lost(f"no answer for {self._deadline:g} s from {self._address}")
            case grpc.StatusCode.UNIMPLEMENTED:
                return Lost(f"what answers at {self._address} is not a Conclave party of this protocol")
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                return Lost(f"a message to or from {self._address} was over the size limit ({error.details()})")
            case code:
                return Lost(f"{self._address} failed with {code.name}: {error.details()}")


async def _status_of(call: Any, error: BaseException) -> BaseException:
    """The status a broken stream ended with: a write may fail before the refusal that caused it was read."""
    if isinstance(error, grpc.aio.AioRpcError) and refusal_of(error) is not None:
        return error
    try:
        while await asyncio.wait_for(call.read(), 5.0) is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as status:
        return status
    except (TimeoutError, asyncio.InvalidStateError):
        return error
    return error


def _unusable(name: str, why: str) -> Refusal:
    return Refusal(
        Reason.OTHER, f"party {name} sent something that cannot be used: {why}. Its block was not counted in."
    )
