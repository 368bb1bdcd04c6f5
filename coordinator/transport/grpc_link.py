"""The verbs of one party over gRPC, each called once: bytes come as values, a failed call as a refusal or a loss."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from numpy.typing import NDArray

from coordinator.transport.link import Answered, Batch, Lost, OnPercent, Outcome, Refused, Troubles, Untroubled, Way
from coordinator.transport.losses import Garbage, Garbled, Readable, or_garbage, refused, why_lost
from coordinator.transport.reachable import unreachable
from coordinator.transport.silence import Patience, Stuck, TrainingPatience, Unheard, heard
from protos import PROTOCOL_VERSION
from protos.codec import CHUNK_BYTES, MalformedTensor, TensorReader
from protos.computed import Computed
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.conclave.v1.party_pb2_grpc import PartyStub
from protos.digest import artefact_digest, batch_digest
from protos.framing import unframed
from protos.identity.credentials import bearer
from protos.identity.identity import Identity
from protos.identity.probing import diagnose
from protos.identity.signing import Signed, signed_of
from protos.identity.tls import channel_credentials, channel_options
from protos.refusal import plain, refusal_of
from protos.telemetry import tracing

Value = TypeVar("Value")

CHANNEL_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    # A new channel must not share the old one's broken connection, nor its delay before the next attempt.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)

MOST_FACTS: Final = 32
"""The most facts that a party may state about itself and the tasks that it knows."""

WAY_SECONDS: Final = 10.0
"""The most seconds that a call waits for a party which dials to come."""

HEALTH_SECONDS: Final = 5.0
"""Seconds that a node has to say that it serves."""


class GrpcLink:
    """A party at an address; every call is made once, and `coordinator.transport.retry` repeats it.

    way: to a party that dials the coordinator; the address is then that of its place at the gate.

    identity: the coordinator's, for mutual TLS with a node whose certificate must be this party's; without it the call
    goes in plain text. A new connection is checked first, so that a wrong certificate is reported at once and in a
    sentence. deadline: seconds of silence after which the node's health is asked. drop_after: seconds without progress
    after which a party is given up although its node serves; None waits. train_within: see
    `coordinator.transport.silence`.
    """

    def __init__(
        self,
        name: str,
        address: str,
        token: str = "",
        *,
        identity: Identity | None = None,
        way: Way | None = None,
        deadline: float = 60.0,
        drop_after: float | None = None,
        train_within: float | None = None,
        troubles: Troubles | None = None,
    ) -> None:
        self._name = name
        self._address = address
        self._identity = identity
        self._way = way
        self._where = address if way is None else way.shown
        self._deadline = deadline
        self._drop_after = drop_after
        self._train_within = train_within
        self._training: tuple[str, float] | None = None
        self._troubles = troubles or Untroubled()
        self._bearer = bearer(token)
        self._run = party_pb2.RunContext()
        self._looked = False
        self._broken = False
        self.traffic = 0
        self._dial()

    @property
    def name(self) -> str:
        """The party's name in the plan."""
        return self._name

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return self._bearer + tracing.metadata()

    def bind(self, run_id: str, plan_hash: bytes) -> None:
        """Make every later call part of this run, which the party joined before."""
        self._run = party_pb2.RunContext(run_id=run_id, plan_hash=plan_hash)

    async def describe(self, nonce: bytes) -> Outcome[party_pb2.DescribeResponse]:
        """Ask the party who it is; waits up to the deadline for a node that is starting.

        nonce: 16 to 64 fresh random bytes, which the party signs; the caller checks the signature.
        """
        if (trouble := await self._mend()) is not None:
            return trouble
        request = party_pb2.DescribeRequest(nonce=nonce)
        said = await self._outcome(self._stub.Describe(request, metadata=self._metadata, wait_for_ready=True))
        if isinstance(said, Lost) and said.passing and self._way is None:
            why = await unreachable(self._address)
            return said if why is None else Lost(why.why)
        return Answered(_plain(said.value)) if isinstance(said, Answered) else said

    async def join(
        self,
        run_id: str,
        plan: plan_pb2.Plan,
        plan_hash: bytes,
        *,
        peers: Sequence[party_pb2.Peer] = (),
        needs: party_pb2.Needs | None = None,
    ) -> Outcome[Computed]:
        """Bind this party to a run; every later call carries its id and plan hash.

        peers: the other parties' signing certificates. needs: the memory and disk that the run is expected to take
        there. Where it is given, the party only says whether it would join, and is not bound. Returns what the party
        computes the run with.
        """
        if (trouble := await self._mend()) is not None:
            return trouble
        request = party_pb2.JoinRequest(
            protocol_version=PROTOCOL_VERSION,
            run=party_pb2.RunContext(run_id=run_id, plan_hash=plan_hash),
            plan=plan,
            peers=peers,
            check_only=needs is not None,
            needs=needs,
        )
        joined = await self._outcome(self._stub.Join(request, metadata=self._metadata))
        if isinstance(joined, Answered):
            if needs is None:
                self.bind(run_id, plan_hash)
            return Answered(Computed.told(joined.value))
        return joined

    async def leave(self) -> Outcome[None]:
        """Tell the party that the run is over; it may remove its working files. Waits at most one deadline."""
        if (trouble := await self._mend()) is not None:
            return trouble
        request = party_pb2.LeaveRequest(run=self._run)
        try:
            await self._stub.Leave(request, metadata=self._metadata, timeout=self._deadline)
        except grpc.aio.AioRpcError as error:
            return self._failure(error)
        return Answered(None)

    async def provide(self, kind: str, content: bytes) -> Outcome[None]:
        """Send a public artefact; a party that has it already reads only the header."""
        if (trouble := await self._mend()) is not None:
            return trouble
        header = party_pb2.ArtefactHeader(run=self._run, kind=kind, sha256=_digest(content), size=len(content))

        def parts() -> Iterator[party_pb2.ProvideRequest]:
            yield party_pb2.ProvideRequest(header=header)
            for offset in range(0, len(content), CHUNK_BYTES):
                part = content[offset : offset + CHUNK_BYTES]
                self.traffic += len(part)
                yield party_pb2.ProvideRequest(data=part)

        provided = await self._outcome(self._stub.Provide(parts(), metadata=self._metadata))
        return Answered(None) if isinstance(provided, Answered) else provided

    async def train(self, request: party_pb2.TrainRequest, on_percent: OnPercent) -> Outcome[None]:
        """Have the party train; the deadline restarts with every sign of progress."""
        if (trouble := await self._mend()) is not None:
            return trouble
        request.run.CopyFrom(self._run)
        if self._training is None or self._training[0] != request.operation_id:
            self._training = (request.operation_id, time.monotonic())
        patience = TrainingPatience(self._drop_after, self._train_within, self._training[1])
        call = self._stub.Train(request, metadata=self._metadata)
        try:
            while True:
                progress: Any = await self._heard(call.read(), patience)
                if progress is grpc.aio.EOF:
                    return Lost("its training ended without saying that it finished")
                percent = progress.percent if progress.percent <= 100 else None
                on_percent(percent)
                if progress.finished:
                    self._training = None
                    return Answered(None)
                patience.told(percent)
                patience.check()
        except (grpc.aio.AioRpcError, Unheard, Stuck) as error:
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
        if (trouble := await self._mend()) is not None:
            yield trouble
            return
        call = self._answer(metadata=self._metadata)
        try:
            for batch in batches:
                rows = party_pb2.RowRange(start=batch.start, stop=batch.stop)
                request = party_pb2.AnswerRequest(run=self._run, release=release, batch=batch.number, rows=rows)
                request.digest = batch_digest(request)
                await self._heard(call.write(request))
                yield Answered(await self._block(call, batch, columns))
            await call.done_writing()
        except (MalformedTensor, Unheard, Stuck) as error:
            yield self._failure(error)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            yield self._failure(await _status_of(call, error))
        finally:
            call.cancel()

    async def sum_round(self, request: party_pb2.SecureSumRequest) -> AsyncIterator[Outcome[bytes]]:
        """One round of a secure sum: yields the party's one message, or its masked blocks in order, until a failure."""
        if (trouble := await self._mend()) is not None:
            yield trouble
            return
        request.run.CopyFrom(self._run)
        call = self._stub.SecureSum(request, metadata=self._metadata)
        try:
            while True:
                said: Any = await self._heard(call.read())
                if said is grpc.aio.EOF:
                    return
                self.traffic += len(said.message)
                yield Answered(said.message)
        except (grpc.aio.AioRpcError, Unheard, Stuck) as error:
            yield self._failure(error)
        finally:
            call.cancel()

    async def attest(self) -> Outcome[Signed]:
        """Ask for the party's signed statement of what the run has cost it; the caller checks it."""
        if (trouble := await self._mend()) is not None:
            return trouble
        answered = await self._outcome(
            self._stub.Attest(party_pb2.AttestRequest(run=self._run), metadata=self._metadata)
        )
        return Answered(signed_of(answered.value.statement)) if isinstance(answered, Answered) else answered

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def _block(self, call: Any, batch: Batch, columns: int) -> NDArray[np.int32]:
        reader, patience = TensorReader(np.int32, (batch.stop - batch.start, columns)), Patience(self._drop_after)
        while True:
            piece = await self._heard(call.read(), patience)
            if piece is grpc.aio.EOF:
                raise MalformedTensor(f"the answer to batch {batch.number} ended early")
            if piece.batch != batch.number:
                raise MalformedTensor(f"an answer to batch {piece.batch} came where {batch.number} was asked for")
            self.traffic += len(piece.data)
            block = reader.put(piece.header, piece.offset, piece.data)
            if block is not None:
                return block
            patience.check()

    def _dial(self) -> None:
        if self._identity is None:
            self._channel = grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(
                self._address,
                channel_credentials(self._identity),
                options=(*CHANNEL_OPTIONS, *channel_options(self._name)),
            )
        self._stub = PartyStub(Readable(self._channel))  # type: ignore[call-overload]
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)
        # The generated stub's own reader would copy every block three more times.
        self._answer: Any = self._channel.stream_stream(
            f"/{party_pb2.DESCRIPTOR.services_by_name['Party'].full_name}/Answer",
            request_serializer=party_pb2.AnswerRequest.SerializeToString,
            response_deserializer=or_garbage(unframed),
        )

    async def _mend(self) -> Lost | None:
        """Drop a connection over which a call was lost; returns what is wrong with the transport, if anything is.

        gRPC reports a failed handshake only as no answer, so a new connection is checked separately.
        """
        if self._broken:
            await self._channel.close()
            self._dial()
            self._broken = False
            self._looked = self._identity is None  # plain text has no certificates that could have changed
        if not self._looked:
            if self._way is not None and (missing := await self._way.missing(min(WAY_SECONDS, self._deadline))):
                self._broken = True
                return Lost(missing)
            wrong = await asyncio.to_thread(diagnose, self._address, self._name, self._identity, shown=self._where)
            if wrong is not None:
                self._broken = True
                return Lost(wrong.sentence, False, wrong.code)
            self._looked = True
        return None

    async def _outcome(self, call: Awaitable[Value]) -> Outcome[Value]:
        try:
            return Answered(await self._heard(call))
        except (grpc.aio.AioRpcError, Unheard, Stuck) as error:
            return self._failure(error)

    async def _heard(self, call: Awaitable[Value], patience: Patience | None = None) -> Value:
        """The result of a call, or the next message of a stream, as `coordinator.transport.silence.heard` waits for it.

        patience: of the larger operation that the call belongs to; by default the call itself is progress. Raises
        `Unheard` or `Stuck`.
        """
        brought = await heard(
            call, patience or Patience(self._drop_after), self._name, self._deadline, self._serves, self._troubles
        )
        if isinstance(brought, Garbage):
            raise Garbled
        return brought

    async def _serves(self) -> bool:
        """Whether the node answers a health check soon, over this same connection."""
        try:
            said = await self._health.Check(
                health_pb2.HealthCheckRequest(),
                metadata=self._metadata,
                timeout=min(HEALTH_SECONDS, self._deadline),
            )
        except grpc.aio.AioRpcError:
            return False
        return bool(said.status == health_pb2.HealthCheckResponse.SERVING)

    def _failure(self, error: BaseException) -> Refused | Lost:
        """The meaning of a failed call. After a loss the connection is in doubt, so the next call makes a new one."""
        refusal = refused(error)
        self._broken = refusal is None
        if refusal is not None:
            return Refused(refusal)
        why, passing = why_lost(error, self._where)
        return Lost(why, passing)


@lru_cache(maxsize=1)
def _digest(content: bytes) -> bytes:
    """Of an artefact, taken once for all parties that get it. Memory: the last artefact."""
    return artefact_digest(content)


def _plain(said: party_pb2.DescribeResponse) -> party_pb2.DescribeResponse:
    """A party's own words without characters that a terminal or Markdown would interpret."""
    return party_pb2.DescribeResponse(
        name=plain(said.name),
        protocol_version=said.protocol_version,
        software_version=plain(said.software_version),
        trains=[plain(each) for each in said.trains[:MOST_FACTS]],
        facts={plain(key): plain(said.facts[key]) for key in sorted(said.facts)[:MOST_FACTS]},
        clock=said.clock if math.isfinite(said.clock) else 0.0,
        identity=said.identity,
    )


async def _status_of(call: Any, error: BaseException) -> BaseException:
    """The status that a broken stream ended with: a write may fail before the refusal that caused it was read."""
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
