"""Answers: rows of a bounded sum with this party's noise on them, each made once and stored."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.mechanism import Form, Mechanism
from aggregation.noise.stream import NoiseStream
from party.admission.admit import event_of
from party.admission.limits import Limits
from party.ledger.charging import Claim
from party.ledger.ledger import Ledger
from party.releasing.mechanisms import answering, is_own
from party.store.runs import Run
from party.tasks.result import CELL, Sum, load_counts, shape_of, wrapped
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import batch_digest
from protos.refusal import Reason, Refusal
from protos.steps import is_step

DRAWING: Final = 2
"""Blocks that are made at the same time; making a block takes about four times its bytes."""

_AT_ONCE: Final = 1 << 20
"""Cells of a dense sum that get their noise at a time: some 32 MiB of arrays."""


@dataclass(frozen=True, slots=True)
class Block:
    """Noisy rows, int32 `[rows, columns]` modulo 2**32. `made`: whether they were made now or read from disk."""

    rows: NDArray[np.int32]
    made: bool


class Answers:
    """Makes blocks in threads, never on the event loop, and never the same rows twice.

    Memory: the bounded sums of open runs (their non-zeros), and the blocks in progress.
    """

    def __init__(self, party: str, ledger: Ledger, limits: Limits) -> None:
        self._party = party
        self._ledger = ledger
        self.limits = limits
        self._counts: dict[tuple[str, str, int], Sum] = {}
        self._making: dict[tuple[str, str, int], tuple[asyncio.Lock, int]] = {}
        self._drawing = asyncio.Semaphore(DRAWING)

    def forget(self, run_id: str, releases: Callable[[str], bool] = lambda name: True) -> None:
        """Drop from memory what belongs to a run that ended, or to those of its releases that are over."""
        kept = {key: each for key, each in self._counts.items() if key[0] != run_id or not releases(key[1])}
        self._counts = kept

    async def block(self, run: Run, request: party_pb2.AnswerRequest) -> Block:
        """Rows of a released sum, to which noise was added once.

        Before this returns, the event is in the ledger and the block on disk. The same request gives the same bytes:
        from disk, or, where the node was killed before it wrote them, drawn again from the noise key that the ledger
        keeps.
        """
        release = run.release(request.release)
        if request.digest != batch_digest(request):
            raise Refusal(Reason.REQUEST, f"the digest of batch {request.batch} is not that of the request.")
        if request.WhichOneof("queries") != "rows":
            raise Refusal(Reason.REQUEST, f"release {release.name} is asked for by rows.")
        if request.batch >= 2**63:
            raise Refusal(Reason.REQUEST, f"{request.batch} is no batch number; count from 0.")
        if run.terms.privacy.trust == plan_pb2.TRUST_SECURE_SUM and not is_own(release):
            raise Refusal(
                Reason.PLAN,
                f"this plan shows the coordinator sums alone, but for models of one party; {release.name} is summed "
                "securely.",
            )
        counts = await self.clean(run, release)
        start, stop = request.rows.start, request.rows.stop
        rows, columns = counts.shape
        if not start < stop <= rows:
            raise Refusal(Reason.REQUEST, f"rows {start} to {stop} are not in 0 to {rows}.")
        self.limits.check_block(stop - start, columns)
        await self.limits.pace(stop - start)
        async with self._alone((run.id, release.name, request.batch)):
            claim = await self._ledger.claim(
                run.id, release.name, event_of(release), request.batch, request.digest, (start, stop)
            )
            async with self._drawing:
                return await asyncio.to_thread(self._made, run, release, request.batch, counts, (start, stop), claim)

    async def clean(self, run: Run, release: plan_pb2.Release, attempt: int = 0) -> Sum:
        """The bounded, noise-free sum of a release; for a step, of one attempt, which has its own sample.

        Raises `Refusal` (REQUEST) where it is not trained yet, or was trained for another attempt.
        """
        check_trained(run, release, attempt)
        attempt = attempt if is_step(release) else 0
        key = (run.id, release.name, attempt)
        if key not in self._counts:
            held = [each.shape for (run_id, *_), each in self._counts.items() if run_id == run.id]
            path = run.counts(release.name, attempt)
            shape = await asyncio.to_thread(shape_of, path)
            self.limits.check_memory(sum(CELL * math.prod(each) for each in (*held, shape)))
            self._counts[key] = await asyncio.to_thread(load_counts, path)
        return self._counts[key]

    @contextlib.asynccontextmanager
    async def _alone(self, key: tuple[str, str, int]) -> AsyncIterator[None]:
        """One caller at a time for a batch; nothing is kept of a batch without callers."""
        lock, waiting = self._making.get(key, (asyncio.Lock(), 0))
        self._making[key] = lock, waiting + 1
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._making.pop(key, (lock, 1))
            if waiting > 1:
                self._making[key] = lock, waiting - 1

    def _made(
        self,
        run: Run,
        release: plan_pb2.Release,
        batch: int,
        counts: Sum,
        rows: tuple[int, int],
        claim: Claim,
    ) -> Block:
        """The block, from disk or made and stored. Runs on a thread."""
        start, stop = rows
        shape = (stop - start, counts.shape[1])
        kept = run.block(release.name, batch)
        if kept is not None and len(kept) == shape[0] * shape[1] * 4:
            return Block(np.frombuffer(kept, "<i4").reshape(shape), made=False)
        privacy = run.terms.privacy
        if privacy.insecure_reproducible_noise:
            stream = NoiseStream.insecure(run.terms.seed, self._party, release.name, str(batch))
        else:
            stream = NoiseStream.from_key(claim.noise_key).child(batch)
        if is_own(release):
            assert isinstance(counts, np.ndarray)
            block = counts[start:stop]  # whatever protects it is in it already: nothing is added here
        else:
            block = noised(counts[start:stop], answering(release), stream)
        run.keep_block(release.name, batch, block)
        return Block(block, made=True)


def check_trained(run: Run, release: plan_pb2.Release, attempt: int) -> None:
    """Raises `Refusal` (REQUEST) where a release is not trained yet, or a step was trained for another attempt."""
    operation = run.operation(release.name)
    if operation is None:
        raise Refusal(Reason.REQUEST, f"release {release.name} is not trained yet; call Train first.")
    if is_step(release) and operation.attempt != attempt:
        raise Refusal(
            Reason.REQUEST,
            f"step {release.name} is trained for attempt {operation.attempt}, not {attempt}: every attempt has a "
            "sample of its own. Call Train for that attempt first.",
        )


def noised(clean: Sum, mechanism: Mechanism, stream: NoiseStream) -> NDArray[np.int32]:
    """Bounded sums plus this party's share of the noise, int32 `[rows, columns]` modulo 2**32.

    Every cell gets noise, zeros included, unless the mechanism leaves it to the coordinator or needs none. Wrapping is
    post-processing of the noisy integers: it can cost utility, never privacy, and the sum over parties is correct
    modulo 2**32 whatever wrapped before.
    """
    if isinstance(clean, np.ndarray) and Form.SUMMED not in mechanism.forms:
        return _noised_dense(clean, mechanism, stream)
    noisy = mechanism.noise_share(clean.shape, stream)
    if isinstance(clean, np.ndarray):
        noisy += clean
        return wrapped(noisy)
    cells = clean.tocoo()
    np.add.at(noisy, (cells.row, cells.col), cells.data)
    return wrapped(noisy)


def _noised_dense(clean: NDArray[np.int32], mechanism: Mechanism, stream: NoiseStream) -> NDArray[np.int32]:
    """The same in parts: no array of all cells except the input and the output."""
    made, flat = np.empty(clean.size, np.int32), clean.reshape(-1)
    for start in range(0, clean.size, _AT_ONCE):
        part = flat[start : start + _AT_ONCE].astype(np.int64)
        part += mechanism.noise_share(part.shape, stream)
        made[start : start + len(part)] = wrapped(part)
    return made.reshape(clean.shape)
