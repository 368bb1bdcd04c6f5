"""The ledger of what this party has spent: events in SQLite, one writer thread, on disk before anything leaves.

An account belongs to a lineage that the administrator names, not to a file: adding records or renaming resets nothing,
and a lineage that shares a record with another inherits its charges (`party.ledger.lineages`). A Renyi filter (Feldman
& Zrnic 2021) at one order, fixed when the account is opened, enforces its cap, because what is asked later may depend
on what was answered before. So the guarantee over the account's life is the cap, not the sum of what ran.

An account without a cap promises nothing. Its releases, which no proof covers, are recorded and attested all the same.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

from aggregation.accounting.library import DpEvent
from party.ledger import attempts, charging, paying
from party.ledger.accounts import DOCUMENT, Opened, reservations, take_up
from party.ledger.charging import Claim
from party.ledger.database import FILE, connect, lock_folder, transaction
from party.ledger.lineages import Budget, Group, budget_of, record_units
from party.ledger.protection import Protection
from party.ledger.runs import JoinedRun, end_run, joined_runs, plan_of

Value = TypeVar("Value")


class Ledger:
    """The one writer of a party's ledger. Every method returns once its changes are on disk."""

    def __init__(self, path: Path, writer: ThreadPoolExecutor, connection: sqlite3.Connection, lock: int) -> None:
        self._path = path
        self._writer = writer
        self._connection = connection
        self._lock = lock
        self._own: Opened
        self._census_key: bytes

    @classmethod
    async def open(
        cls,
        folder: Path,
        lineage: str,
        *,
        epsilon: float | None,
        delta: float | None,
        simulation: bool,
        protection: Protection = DOCUMENT,
    ) -> Self:
        """Take up the lineage's account in `folder`/ledger.sqlite. In a simulation a missing account is opened.

        epsilon, delta: the cap; None where `protection` says that there is none.

        Raises `PartyError` when another node holds the folder; when the file is not a ledger; when nobody opened the
        account (`party.ledger.accounts.open_account`); when it was opened under another cap or for another unit, since
        both hold for the life of the data; and when it was charged before accounts stored their unit, and nobody has
        stated it.
        """
        lock = lock_folder(folder)
        writer = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        try:
            loop = asyncio.get_running_loop()
            path = folder / FILE
            connection = await loop.run_in_executor(writer, connect, path)
            ledger = cls(path, writer, connection, lock)
            try:
                await ledger._write(lambda: ledger._take_up(lineage, epsilon, delta, simulation, protection))
            except BaseException:
                await ledger._write(connection.close)
                raise
        except BaseException:
            writer.shutdown()
            os.close(lock)
            raise
        return ledger

    @property
    def account(self) -> str:
        """The account's random id."""
        return self._own.id

    @property
    def census_key(self) -> bytes:
        """The secret with which this party's ledger recognises records, 32 bytes."""
        return self._census_key

    async def join(self, run: str, plan_hash: bytes, wanted: Sequence[tuple[str, DpEvent]]) -> None:
        """Bind a run id to a plan, provided the account can pay for all its releases. Spends nothing. Idempotent.

        Charges of accounts that share records count when the run first joins, and not when it joins again: the sharing
        may have been found in this very run, and `afford` reports it to this party alone.

        Raises `Refusal`: CONFLICT for another plan or account under this id, NOT_JOINED for a run that ended, BUDGET.
        """
        await self._write(lambda: self._within(charging.join, self._own, run, plan_hash, wanted))

    async def can_pay(self, wanted: Sequence[tuple[str, DpEvent]]) -> None:
        """Return when a run of these releases could join now. Writes nothing. Raises `Refusal` (BUDGET)."""
        await self._write(lambda: paying.check_join(self._connection, self._own, "", wanted))

    async def leave(self, run: str) -> None:
        """End a run: its noise keys are erased, its charges stay. Idempotent; an unknown run is no error."""
        await self._write(lambda: end_run(self._connection, run))

    async def joined(self, run: str) -> bytes | None:
        """The plan hash of a run that joined under this account and has not left, else None."""
        return await self._write(lambda: plan_of(self._connection, self._own, run))

    async def reserve(
        self,
        run: str,
        release: str,
        event: DpEvent,
        *,
        attempt: int = 0,
        most: int | None = None,
        request: bytes | None = None,
    ) -> bytes:
        """Charge the account with one release's event; on disk when this returns. Idempotent per run, release, attempt.

        The charge is made before private text is opened for the release, and is unsent until `claim` or `mask` records
        that something leaves. most: how many charges of the release may count, by the plan. request: the digest of what
        the text is opened for; nothing else may be trained under this charge. Returns the release's noise key.

        Where the account alone could pay, but not together with those that share records with it, it is charged all the
        same and the run answers without text from then on: call `afford` before using anything made from text. Raises
        `Refusal`: BUDGET where the account alone cannot pay, or beyond `most`; CONFLICT for another request; SECURE_SUM
        for an attempt that was disclaimed; NOT_JOINED.
        """
        return await self._write(
            lambda: self._within(charging.reserve, self._own, run, release, event, attempt, most, request)
        )

    async def mask(self, run: str, release: str, event: DpEvent, attempt: int, *, most: int | None = None) -> bytes:
        """Charge the masked vector of an attempt before it leaves, and return its noise key. Idempotent per attempt.

        An unsent charge of the release is taken over: from then on it is this attempt's, with its noise key. Otherwise
        a new one is made. Either way it covers a masked vector only, so that `refund` may take it back, unless rows
        were claimed under it. most: how many charges of the release may count, by the plan.

        Raises `Refusal` as `reserve` does, and BUDGET beyond `most` and where a new charge of a release made from text
        is more than the accounts that share records can pay.
        """
        return await self._write(lambda: self._within(charging.mask, self._own, run, release, event, attempt, most))

    async def move(self, run: str, release: str, from_attempt: int, to_attempt: int) -> bool:
        """Move the unsent charge of one attempt, with its noise key, to another; returns whether there was one.

        So a step whose sum was lost before anything left is trained again without another charge. False where nothing
        is charged for `from_attempt`, or something of it may have left, or its run ended; and where `to_attempt` was
        itself charged or disclaimed. Whether `from_attempt` was disclaimed does not matter: it sent nothing and never
        will.
        """
        return await self._write(lambda: self._within(attempts.move, run, release, from_attempt, to_attempt))

    async def claim(
        self, run: str, release: str, event: DpEvent, batch: int, digest: bytes, rows: tuple[int, int]
    ) -> Claim:
        """Reserve the release if necessary and claim its rows [start, stop) for one batch, in one transaction.

        A row gets noise once: asking for it in two batches would let an average reduce the noise. Raises `Refusal`:
        CONFLICT for a batch number with another digest, or for rows already claimed; BUDGET.
        """
        return await self._write(
            lambda: self._within(charging.claim, self._own, run, release, event, batch, digest, rows)
        )

    async def sent(self, run: str, release: str) -> bool:
        """Whether something of a release may have left, at any attempt."""
        return await self._write(lambda: attempts.sent(self._connection, run, release))

    async def attempted(self, run: str, release: str) -> tuple[int, ...]:
        """The charged attempts at a secure sum of a release, in order, without those that were refunded."""
        return await self._write(lambda: attempts.attempted(self._connection, run, release))

    async def used(self, run: str, release: str, attempt: int) -> bool:
        """Whether an attempt may never begin again, because something of it may have left or it was disclaimed."""
        return await self._write(lambda: attempts.used(self._connection, run, release, attempt))

    async def reveal(self, run: str, release: str, attempt: int, survivors: bytes) -> None:
        """Record, on disk and before any share leaves, to which list of survivors an attempt's shares are revealed.

        survivors: the digest of the list. Raises `Refusal`: CONFLICT where shares were revealed to another list, since
        two lists of one attempt could open a party's vector; SECURE_SUM where the attempt was disclaimed; NOT_JOINED
        where nothing was masked for it, or its run has ended.
        """
        await self._write(lambda: self._within(attempts.reveal, run, release, attempt, survivors))

    async def disclaim(self, run: str, release: str, attempt: int) -> None:
        """Record, on disk, that no share of an attempt was or ever will be revealed. Idempotent.

        The attempt need not have been charged: shares come before the charge. Raises `Refusal` (SECURE_SUM) where
        shares were revealed.
        """
        await self._write(lambda: self._within(attempts.disclaim, run, release, attempt))

    async def refund(self, run: str, release: str, attempt: int, *, disclaims: bool = False) -> bool:
        """Take back the charge of an attempt that was disclaimed; returns whether there was one.

        The caller has checked that enough parties disclaimed it (`aggregation.secure_sum.disclaim`), or that it went on
        without this party (`aggregation.secure_sum.absence`), which then disclaims it in the same transaction. The
        attempt stays on record, and used. Raises `Refusal` (SECURE_SUM) where this party did not disclaim it, revealed
        a share of it, or was charged for more than a masked vector.
        """
        return await self._write(lambda: self._within(attempts.refund, run, release, attempt, disclaims))

    async def answered(self, run: str, release: str) -> None:
        """Record the first time that bytes of a release left."""
        await self._write(lambda: self._within(charging.answered, run, release))

    async def record(self, counted: Path) -> tuple[str, ...]:
        """Take the census of a training into the account; returns the lineages that are found to share records with it.

        On disk when this returns, and before anything of that training may leave. Idempotent.
        """
        return await self._write(lambda: self._record(counted))

    async def afford(self, run: str, wanted: Callable[[], Sequence[tuple[str, DpEvent]]], *, release: str = "") -> bool:
        """Whether a run's releases may be made from text: whether all accounts that share records can pay. Spends
        nothing.

        wanted: returns the run's releases as at `join`, so that future charges count; it is not called for an account
        that shares no records. Once the answer is False it stays so for this run: everything asked from then on is
        answered without text, as noise alone, so that nobody outside learns whose records are shared. Only the log and
        `party budget` tell it here. release: the one that is being made; its charge, while unsent, then costs the other
        accounts nothing, and it has to be made without text.
        """
        return await self._write(lambda: self._within(paying.afford, self._own, run, wanted, release))

    async def blank(self, run: str) -> bool:
        """Whether a run answers without text, as noise alone, since `afford` or `reserve` found that it must."""
        return await self._write(lambda: paying.is_blank(self._connection, run))

    async def charged(self, run: str) -> tuple[tuple[str, int, DpEvent], ...]:
        """The charges of this account for a run: release, attempt, event, in order, without refunds."""
        found = await self._write(lambda: reservations(self._connection, self._own.id))
        return tuple((each.release, each.attempt, each.event) for each in found if each.run == run and each.stands)

    async def runs(self) -> tuple[JoinedRun, ...]:
        """All runs that were ever joined."""
        return await self._write(lambda: joined_runs(self._connection))

    async def budget(self) -> Budget:
        """What is spent and what is left by this account's own charges, which a coordinator could add up itself.

        The charges of accounts that share records are in `party.ledger.budget.statements`, for the administrator alone.
        """
        return await self._write(lambda: budget_of(self._connection, Group(self._own)))

    async def close(self) -> None:
        """Finish pending writes and unlock the folder. Idempotent."""
        if self._lock < 0:
            return
        await self._write(self._connection.close)
        self._writer.shutdown()
        os.close(self._lock)
        self._lock = -1

    async def _write(self, act: Callable[[], Value]) -> Value:
        """Run `act` on the writer thread. Shielded: a cancelled caller does not interrupt a transaction."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._writer, act))

    def _within(self, act: Callable[..., Value], *given: Any) -> Value:
        with transaction(self._connection) as sql:
            return act(sql, *given)

    def _take_up(
        self, lineage: str, epsilon: float | None, delta: float | None, simulation: bool, protection: Protection
    ) -> None:
        sql = self._connection
        self._own = take_up(sql, lineage, epsilon, delta, simulation, self._path, protection)
        self._census_key = bytes(sql.execute("SELECT census_key FROM secret").fetchone()[0])

    def _record(self, counted: Path) -> tuple[str, ...]:
        with transaction(self._connection) as sql:
            found = record_units(sql, self._own, counted)
        # The log holds millions of hashes, and would otherwise stay as large as it is now.
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return found
