"""A party's side of secure sums: an attempt's secrets in memory only; its cost and what it reveals in the ledger first.

There is one attempt at a time for a release. A restarted node has lost its secrets, so the attempt in progress is lost
and the coordinator begins another; nothing of the old one can be asked twice. The node can still sign that it reveals
nothing of that attempt, and take its charge back when enough others have (`aggregation.secure_sum.disclaim`).
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray

from aggregation.errors import COORDINATOR, Cheated, ConclaveError
from aggregation.secure_sum.absence import Absence, check_absent, shows_absence
from aggregation.secure_sum.advertise import Roster
from aggregation.secure_sum.consistency import Consents, Survivors
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.disclaim import Disclaimers, check_disclaimers, disclaim
from aggregation.secure_sum.graph import MOST_BEGUN, drawn
from aggregation.secure_sum.keys import Verify
from aggregation.secure_sum.mask import MaskedBlock, block_count
from aggregation.secure_sum.opening import Openings
from aggregation.secure_sum.participant import Attempts, Participant
from aggregation.secure_sum.share import Inbox
from party.admission.admit import event_of, times
from party.ledger.ledger import Ledger
from party.releasing.answers import Answers, check_trained
from party.releasing.masked_vectors import keep_masked, kept_masked, masked_file, pieces, vector
from party.releasing.mechanisms import is_own
from party.store.runs import Run
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.identity.identity import Identity
from protos.refusal import Reason, Refusal
from protos.roster import roster_of
from protos.steps import is_step

log = logging.getLogger("conclave.party")

MOST_ATTEMPTS: Final = MOST_BEGUN
"""The most attempts at one sum, charged or not. Each draws a graph; the chance that one of them fails is in the plan's
delta.
"""


@dataclass
class _Session:
    """One attempt in progress. cells: the noisy vector, piece by piece. sent: number of blocks masked so far.

    over: whether it was disclaimed.
    """

    context: Context
    participant: Participant
    masked: Path
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    cells: Iterator[NDArray[np.int32]] | None = None
    rows_at_once: int = 0
    group: bytes = b""
    sent: int = 0
    over: bool = False


@lru_cache(maxsize=8192)
def _signed(key: bytes, statement: bytes, signature: bytes) -> bool:
    """Whether a key (Ed25519, 32 bytes) signed a statement; known where another simulated party of this process asked.

    All parties of a sum check the same signatures: of a thousand parties in one process, each a thousand.
    """
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, statement)
    except InvalidSignature:
        return False
    return True


class Sums:
    """All secure sums of a node. Memory: the bounded sums of open runs, and one block of each attempt."""

    def __init__(self, identity: Identity, ledger: Ledger, answers: Answers) -> None:
        self._identity = identity
        self._ledger = ledger
        self._answers = answers
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._begun: dict[tuple[str, str], Attempts] = {}
        self._holders: dict[tuple[str, str, int], frozenset[str]] = {}

    def forget(self, run_id: str, releases: Callable[[str], bool] = lambda name: True) -> None:
        """Drop the secrets of a run that ended, or of those of its releases that are over."""

        def stays(key: tuple[Any, ...]) -> bool:
            return key[0] != run_id or not releases(key[1])

        self._sessions = {key: each for key, each in self._sessions.items() if stays(key)}
        self._begun = {key: each for key, each in self._begun.items() if stays(key)}
        self._holders = {key: each for key, each in self._holders.items() if stays(key)}

    async def round(self, run: Run, request: party_pb2.SecureSumRequest) -> AsyncGenerator[bytes, None]:
        """This party's message of one round; of the mask round, one message a block.

        Raises `Refusal`: SECURE_SUM for what the rules of the sum forbid, PLAN for a party's model, and as
        `Answers.block` does.
        """
        try:
            release = run.release(request.release)
            if is_own(release):
                raise Refusal(
                    Reason.PLAN,
                    f"{release.name} gives one party's model, or what it says, which is in no sum; ask by Answer.",
                )
            if request.round in (party_pb2.SUM_ROUND_DISCLAIM, party_pb2.SUM_ROUND_REFUND):
                disclaims = request.round == party_pb2.SUM_ROUND_DISCLAIM
                yield await (self._disclaim if disclaims else self._refund)(run, release, request)
                return
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
            who = error.who if error.who in run.terms.parties else ""
            raise Refusal(Reason.SECURE_SUM, str(error), who=who) from None
        except ConclaveError as error:
            raise Refusal(Reason.SECURE_SUM, str(error)) from None

    async def _begin(self, run: Run, release: plan_pb2.Release, attempt: int) -> bytes:
        """Make fresh secrets for an attempt; for the attempt in progress, return its earlier message."""
        key = (run.id, release.name)
        going = self._sessions.get(key)
        if going is not None and going.context.attempt == attempt:
            return going.participant.advertise().encode()
        context = await self._context(run, release, attempt)
        check_trained(run, release, attempt)
        if await self._ledger.used(run.id, release.name, attempt):
            raise Refusal(
                Reason.SECURE_SUM,
                f"attempt {attempt} at {release.name} was charged or given up before, and its secrets are gone; begin "
                "a new attempt.",
            )
        loop = asyncio.get_running_loop()
        participant = await asyncio.to_thread(self._participant, run, release, context, loop)
        self._sessions[key] = _Session(context, participant, masked_file(run, release.name, attempt))
        return participant.advertise().encode()

    async def _disclaim(self, run: Run, release: plan_pb2.Release, request: party_pb2.SecureSumRequest) -> bytes:
        """The signature that this party reveals nothing of an attempt, whatever the state of its session.

        The promise is in the ledger first, which refuses where a share was revealed. The attempt's secrets and its
        masked vector are dropped; only the list of who holds shares of the secrets is kept.
        """
        context = await self._context(run, release, request.attempt)
        await self._ledger.disclaim(run.id, release.name, request.attempt)
        await self._give_up(run, context)
        return disclaim(context, self._identity.name, self._identity.signing_key.sign).encode()

    async def _give_up(self, run: Run, context: Context) -> None:
        """Drop what is left of a disclaimed attempt, except the list of who holds shares of its secrets."""
        name, attempt = context.sum, context.attempt
        session = self._sessions.get((run.id, name))
        if session is not None and session.context.attempt == attempt:
            del self._sessions[run.id, name]
            session.over = True
            if session.participant.holders is not None:
                self._holders[run.id, name, attempt] = session.participant.holders
        await asyncio.to_thread(masked_file(run, name, attempt).unlink, missing_ok=True)
        what = {"run": run.id, "release": name, "attempt": attempt}
        log.info("gave up %s", context.title, extra={"event": "disclaimed"} | what)

    async def _refund(self, run: Run, release: plan_pb2.Release, request: party_pb2.SecureSumRequest) -> bytes:
        """Take back this party's own charge, if any, of an attempt that enough parties disclaimed, or that went on
        without this party, which thereby disclaims it.
        """
        attempt, what = request.attempt, {"run": run.id, "release": release.name, "attempt": request.attempt}
        context = await self._context(run, release, attempt)
        if attempt in await self._ledger.attempted(run.id, release.name):
            verify, absent = await asyncio.to_thread(self._verifier, run), shows_absence(request.message)
            check = self._check_left_out if absent else self._check_disclaimed
            await asyncio.to_thread(check, run, context, request.message, verify)
            taken_back = await self._ledger.refund(run.id, release.name, attempt, disclaims=absent)
            if absent:
                await self._give_up(run, context)
            if taken_back:
                log.info("took back the charge of %s", context.title, extra={"event": "refunded"} | what)
        return b""

    def _check_disclaimed(self, run: Run, context: Context, message: bytes, verify: Verify) -> None:
        """Check that enough of those who may hold shares have disclaimed.

        Up to 16 parties these are all parties of the plan; above that the neighbours, or all where this node was
        restarted and no longer knows its neighbours.
        """
        holders = frozenset(context.parties)
        if drawn(context):
            holders = self._holders.get((run.id, context.sum, context.attempt), holders)
        check_disclaimers(context, holders, Disclaimers.decode(message), verify)

    def _check_left_out(self, run: Run, context: Context, message: bytes, verify: Verify) -> None:
        """Check that an attempt went on without this party; also refuses where this node signed a list that names
        it.
        """
        check_absent(context, self._identity.name, Absence.decode(message), verify)
        session = self._sessions.get((run.id, context.sum))
        if session is not None and session.context.attempt == context.attempt and session.participant.agreed:
            raise Cheated(COORDINATOR, f"showed {self._identity.name} two lists of survivors of {context.title}.")

    async def _context(self, run: Run, release: plan_pb2.Release, attempt: int) -> Context:
        """The attempt's context, made from the plan alone. Raises `Refusal` for a release that is not summed this
        way.
        """
        if run.terms.privacy.trust != plan_pb2.TRUST_SECURE_SUM:
            raise Refusal(Reason.PLAN, "this plan trusts an aggregator; it has no secure sum.")
        if attempt >= MOST_ATTEMPTS:
            raise Refusal(Reason.REQUEST, f"{attempt} attempts at {release.name} are more than any run makes.")
        rows, columns = await self._shape(run, release)
        privacy = run.terms.privacy
        return Context.of(
            run=run.id,
            plan_hash=run.plan_hash.hex(),
            sum=release.name,
            attempt=attempt,
            parties=roster_of(release, run.terms),
            length=rows * columns,
            dropouts=privacy.dropouts,
            colluders=privacy.colluders,
        )

    async def _shape(self, run: Run, release: plan_pb2.Release) -> tuple[int, int]:
        """The shape of the matrix that is summed; for a step from the plan, whatever attempt it is trained for."""
        if is_step(release):
            return 1, release.gradients.parameters
        rows, columns = (await self._answers.clean(run, release)).shape
        return rows, columns

    def _verifier(self, run: Run) -> Verify:
        """A function that checks signatures with the keys of this run's parties. Runs on a thread."""
        own = {self._identity.name: self._identity.signing_key.public_key().public_bytes_raw()}
        keys = run.signers() | own

        def verify(name: str, statement: bytes, signature: bytes) -> bool:
            return name in keys and _signed(keys[name], statement, signature)

        return verify

    def _participant(
        self, run: Run, release: plan_pb2.Release, context: Context, loop: asyncio.AbstractEventLoop
    ) -> Participant:
        """Runs on a thread; `loop` is the event loop from which the ledger is written."""

        def remember(survivors: bytes) -> None:
            noting = self._ledger.reveal(run.id, release.name, context.attempt, survivors)
            asyncio.run_coroutine_threadsafe(noting, loop).result()

        return Participant(
            context,
            self._identity.name,
            attempts=self._begun.setdefault((run.id, release.name), Attempts()),
            sign=self._identity.signing_key.sign,
            verify=self._verifier(run),
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
        """Yield the masked vector from one block on. Its cost is in the ledger before the first block is made.

        A block is masked once and stored: a coordinator that lost it gets the same bytes.
        """
        participant, context = session.participant, session.context
        await asyncio.to_thread(participant.receive, Inbox.decode(request.message))
        if session.cells is None:
            counts = await self._answers.clean(run, release, context.attempt)
            self._answers.limits.check_block(request.rows_at_once, counts.shape[1])
            await self._answers.limits.pace(counts.shape[0])
            key = await self._ledger.mask(
                run.id, release.name, event_of(release), context.attempt, most=times(release, run.terms)
            )
            session.rows_at_once = request.rows_at_once
            noisy = vector(run, release, counts, self._identity.name, key, request.rows_at_once)
            session.cells = pieces(noisy, context)
            session.masked.unlink(missing_ok=True)
        elif request.rows_at_once != session.rows_at_once:
            raise Cheated(COORDINATOR, f"asks for the vector of {context.title} in other rows than before.")
        for index in range(request.first_block, block_count(context)):
            yield await asyncio.to_thread(self._block, session, index)
            if index == 0:
                await self._ledger.answered(run.id, release.name)

    def _block(self, session: _Session, index: int) -> bytes:
        """One masked block, from disk or made and stored. Runs on a thread."""
        assert session.cells is not None
        if session.over:
            raise ConclaveError(f"This party gave up {session.context.title}. Begin a new attempt.")
        while session.sent <= index:
            block = session.participant.block(next(session.cells))
            keep_masked(session.masked, block.cells)
            session.group = block.group
            session.sent += 1
            if session.sent > index:
                return block.encode()
        cells = kept_masked(session.masked, session.context, index)
        return MaskedBlock(session.group, self._identity.name, index, cells).encode()
