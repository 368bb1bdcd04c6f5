"""A party's end of secure sums: an attempt's secrets in memory alone, its cost and what it reveals in the ledger first.

One attempt at a time a release. A node that was started again has forgotten its secrets, so what was going on is lost
and the coordinator begins a new attempt; nothing can be asked twice of the old one.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray
from scipy import sparse

from aggregation.errors import Cheated, ConclaveError
from aggregation.noise import NoiseStream
from aggregation.secure_sum.advertise import Roster
from aggregation.secure_sum.consistency import Consents, Survivors
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.graph import drawn
from aggregation.secure_sum.mask import MaskedBlock, block_count, block_length, block_start
from aggregation.secure_sum.opening import Openings
from aggregation.secure_sum.participant import Attempts, Participant
from aggregation.secure_sum.share import Inbox
from party.answers import MAXIMUM_BLOCK, Answers, noised
from party.ledger import Ledger
from party.mechanisms import Answering, answering
from party.policy import event_of, times
from party.runs import Run
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.identity import Identity
from protos.refusal import Reason, Refusal

log = logging.getLogger("conclave.party")

MOST_ATTEMPTS: Final = 1000
"""Attempts at one sum, charged or not."""


@dataclass
class _Session:
    """One attempt as it goes on. cells: the noised vector, piece by piece. sent: blocks that were masked so far."""

    context: Context
    participant: Participant
    masked: Path
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    cells: Iterator[NDArray[np.int32]] | None = None
    rows_at_once: int = 0
    group: bytes = b""
    sent: int = 0


class Sums:
    """All secure sums of a node. Memory: the bounded sums of open runs, and one block of each attempt."""

    def __init__(self, identity: Identity, ledger: Ledger, answers: Answers) -> None:
        self._identity = identity
        self._ledger = ledger
        self._answers = answers
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._begun: dict[tuple[str, str], Attempts] = {}

    def forget(self, run_id: str) -> None:
        """Drop the secrets of a run that ended."""
        self._sessions = {key: each for key, each in self._sessions.items() if key[0] != run_id}
        self._begun = {key: each for key, each in self._begun.items() if key[0] != run_id}

    async def round(self, run: Run, request: party_pb2.SecureSumRequest) -> AsyncGenerator[bytes, None]:
        """What this party says in one round; of the mask round, block by block.

        Raises `Refusal`: SECURE_SUM for what the rules of the sum forbid, and as `Answers.block` does.
        """
        try:
            release = run.release(request.release)
            if request.round == party_pb2.SUM_ROUND_ADVERTISE:
                yield await self._begin(run, release, request.attempt)
                return
            session = self._session(run, release, request.attempt)
            if request.round == party_pb2.SUM_ROUND_MASK:
                async with session.lock:
                    async for block in self._mask(run, release, session, request):
                        yield block
                return
            async with session.lock:
                yield await self._spoken(session, request)
        except Cheated as error:
            log.warning("%s", error, extra={"event": "cheated", "run": run.id, "release": request.release})
            raise Refusal(Reason.SECURE_SUM, str(error)) from None
        except ConclaveError as error:
            raise Refusal(Reason.SECURE_SUM, str(error)) from None

    async def _begin(self, run: Run, release: plan_pb2.Release, attempt: int) -> bytes:
        """Fresh secrets for an attempt; for the one that goes on, what it said before."""
        key = (run.id, release.name)
        going = self._sessions.get(key)
        if going is not None and going.context.attempt == attempt:
            return going.participant.advertise().encode()
        if run.terms.privacy.trust != plan_pb2.TRUST_SECURE_SUM:
            raise Refusal(Reason.PLAN, "this plan trusts an aggregator; it has no secure sum.")
        if attempt >= MOST_ATTEMPTS:
            raise Refusal(Reason.REQUEST, f"{attempt} attempts at {release.name} are more than any run makes.")
        if attempt in await self._ledger.attempted(run.id, release.name):
            raise Refusal(
                Reason.SECURE_SUM,
                f"attempt {attempt} at {release.name} was charged before this node was started again, and its secrets "
                "are gone; begin a new attempt.",
            )
        counts = await self._answers.clean(run, release)
        privacy = run.terms.privacy
        context = Context.of(
            run=run.id,
            plan_hash=run.plan_hash.hex(),
            sum=release.name,
            attempt=attempt,
            parties=run.terms.parties,
            length=counts.shape[0] * counts.shape[1],
            dropouts=privacy.dropouts,
            colluders=privacy.colluders,
        )
        loop = asyncio.get_running_loop()
        participant = await asyncio.to_thread(self._participant, run, release, context, loop)
        self._sessions[key] = _Session(context, participant, run.folder / f"{release.name}.{attempt}.masked")
        return participant.advertise().encode()

    def _participant(
        self, run: Run, release: plan_pb2.Release, context: Context, loop: asyncio.AbstractEventLoop
    ) -> Participant:
        """On a thread; `loop` is where the ledger is written from."""
        keys = {name: each.public_key() for name, each in run.peers().items()}
        own = self._identity

        def verify(name: str, statement: bytes, signature: bytes) -> bool:
            key = own.signing_key.public_key() if name == own.name else keys.get(name)
            try:
                if not isinstance(key, Ed25519PublicKey):
                    return False
                key.verify(signature, statement)
            except InvalidSignature:
                return False
            return True

        def remember(survivors: bytes) -> None:
            noting = self._ledger.reveal(run.id, release.name, context.attempt, survivors)
            asyncio.run_coroutine_threadsafe(noting, loop).result()

        return Participant(
            context,
            own.name,
            attempts=self._begun.setdefault((run.id, release.name), Attempts()),
            sign=own.signing_key.sign,
            verify=verify,
            remember=remember,
        )

    def _session(self, run: Run, release: plan_pb2.Release, attempt: int) -> _Session:
        session = self._sessions.get((run.id, release.name))
        if session is None or session.context.attempt != attempt:
            raise Refusal(
                Reason.SECURE_SUM,
                f"attempt {attempt} at {release.name} is not going on here: its secrets are gone, or another is.",
            )
        return session

    async def _spoken(self, session: _Session, request: party_pb2.SecureSumRequest) -> bytes:
        """The answer of a round that is one message."""
        participant, message = session.participant, request.message

        def say() -> bytes:
            match request.round:
                case party_pb2.SUM_ROUND_OPEN:
                    return participant.open(Roster.decode(message)).encode()
                case party_pb2.SUM_ROUND_SHARE:
                    shown = Openings.decode(message) if drawn(session.context) else Roster.decode(message)
                    return participant.share(shown).encode()
                case party_pb2.SUM_ROUND_CONSENT:
                    return participant.consent(Survivors.decode(message)).encode()
                case party_pb2.SUM_ROUND_REVEAL:
                    return participant.reveal(Consents.decode(message)).encode()
            raise Refusal(Reason.REQUEST, f"{request.round} is no round of a secure sum.")

        return await asyncio.to_thread(say)

    async def _mask(
        self, run: Run, release: plan_pb2.Release, session: _Session, request: party_pb2.SecureSumRequest
    ) -> AsyncIterator[bytes]:
        """The masked vector from a block on. Its cost is in the ledger before the first block is made.

        A block is masked once and kept: whoever lost it gets the same bytes.
        """
        participant, context = session.participant, session.context
        await asyncio.to_thread(participant.receive, Inbox.decode(request.message))
        if session.cells is None:
            counts = await self._answers.clean(run, release)
            if not 1 <= request.rows_at_once * counts.shape[1] * 4 <= MAXIMUM_BLOCK:
                raise Refusal(
                    Reason.REQUEST,
                    f"{request.rows_at_once} rows at once are none or over the limit; use 1 to "
                    f"{MAXIMUM_BLOCK // (4 * counts.shape[1])}.",
                )
            charged = await self._ledger.attempted(run.id, release.name)
            if context.attempt not in charged and len(charged) >= times(release, run.terms):
                raise Refusal(
                    Reason.BUDGET,
                    f"the plan pays for {times(release, run.terms)} attempts at {release.name}, and all are charged.",
                )
            key = await self._ledger.reserve(run.id, release.name, event_of(release), attempt=context.attempt)
            session.rows_at_once = request.rows_at_once
            vector = _vector(run, release, counts, self._identity.name, key, request.rows_at_once)
            session.cells = _pieces(vector, context)
            session.masked.unlink(missing_ok=True)
        elif request.rows_at_once != session.rows_at_once:
            raise Cheated("the coordinator", f"asks for the vector of {context.title} in other rows than before.")
        for index in range(request.first_block, block_count(context)):
            yield await asyncio.to_thread(self._block, session, index)
            if index == 0:
                await self._ledger.answered(run.id, release.name)

    def _block(self, session: _Session, index: int) -> bytes:
        """One masked block, from disk or made and put there. On a thread."""
        context = session.context
        assert session.cells is not None
        with open(session.masked, "ab", opener=_private) as file:
            while session.sent <= index:
                block = session.participant.block(next(session.cells))
                file.write(block.cells.astype("<u4", copy=False).tobytes())
                session.group = block.group
                session.sent += 1
                if session.sent > index:
                    return block.encode()
        cells = np.fromfile(session.masked, "<u4", block_length(context, index), offset=4 * block_start(index))
        return MaskedBlock(session.group, self._identity.name, index, cells.astype(np.uint32)).encode()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _vector(
    run: Run,
    release: plan_pb2.Release,
    clean: sparse.csr_array,
    party: str,
    key: bytes,
    rows_at_once: int,
) -> Iterator[NDArray[np.int32]]:
    """The bounded sum with this party's noise, flat, so many rows at once; noised as `Answers` noises its blocks."""
    mechanism: Answering = answering(release)
    for batch, start in enumerate(range(0, clean.shape[0], rows_at_once)):
        if run.terms.privacy.insecure_reproducible_noise:
            stream = NoiseStream.insecure(run.terms.seed, party, release.name, str(batch))
        else:
            stream = NoiseStream.from_key(key).child(batch)
        yield noised(clean[start : start + rows_at_once], mechanism, stream).reshape(-1)


def _pieces(vector: Iterator[NDArray[np.int32]], context: Context) -> Iterator[NDArray[np.int32]]:
    """The same cells in the lengths of the sum's blocks."""
    rest = np.empty(0, np.int32)
    for index in range(block_count(context)):
        length = block_length(context, index)
        held = [rest]
        while sum(each.size for each in held) < length:
            held.append(next(vector))
        joined = np.concatenate(held) if len(held) > 1 else held[0]
        rest = joined[length:]
        yield joined[:length]
