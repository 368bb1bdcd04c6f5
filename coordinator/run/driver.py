"""Drives one run from any stage to its end: launches and asks parties, then learns, measures and publishes the student.

Every stage's result is stored before the next begins, so that the same code resumes a run that was stopped or killed at
any point. The first interrupt lets it finish the block in hand; the second stops it at once.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from aggregation.errors import ConclaveError
from aggregation.mechanisms.mechanism import Form
from coordinator.errors import ClaimRefuted, PartyLost, PartyRefused, RunError, RunStopped
from coordinator.federation.federation import Federation
from coordinator.identity.identity import Own
from coordinator.pricing.release import PricedPlan
from coordinator.progress.events import Observer
from coordinator.progress.progress import Progress
from coordinator.published.audit import Audit
from coordinator.published.manifest import SIGNATURE
from coordinator.publishing.audited import keep, verdict
from coordinator.publishing.computing import differing, stated
from coordinator.publishing.publish import check_free, publish
from coordinator.publishing.report import Statement, state
from coordinator.publishing.student import Student
from coordinator.run.attesting import attest, seal
from coordinator.run.audited import audited
from coordinator.run.before import computing
from coordinator.run.cancelling import LEAVE_SECONDS, leave
from coordinator.run.interrupts import waited
from coordinator.run.keeping import Counted, caps_of, shown
from coordinator.run.mending import CHARGING, Mended, go_on, keep_unspent
from coordinator.run.party_files import party_tables, under_accounts
from coordinator.run.spending import Spending
from coordinator.run.sums import made_once, parties_of
from coordinator.store import lease, output
from coordinator.store.faults import sound
from coordinator.store.store import FAILED, FINISHED, RESUMABLE, RUNNING, RunStore
from coordinator.store.watching import Recorded
from coordinator.systems.system import Recipe
from coordinator.transport.launchers import Launcher, LaunchRequest, PartyAddress
from protos.computed import Computed
from protos.telemetry import tracing

STUDENT: Final = "artefacts/student.safetensors"


@dataclass(frozen=True, slots=True)
class Drive:
    """Everything that driving a run needs.

    computed: what this process computes with. before: the stages that went on before, as `RunStore.lasted` takes them.
    mended: the plan, where it is not the one that the run began with.
    """

    priced: PricedPlan[Any]
    recipe: Recipe[Any]
    own: Own
    launcher: Launcher
    base: Path
    store: RunStore
    progress: Progress
    observer: Observer
    computed: Computed = field(default_factory=Computed)
    before: Sequence[tuple[str, float, float]] = ()
    mended: Mended | None = None

    @property
    def student_folder(self) -> Path:
        """The folder in which the student is published. Raises `RunError` where the stored path is not one."""
        with sound(self.store.folder):
            return Path(self.store.fact("student"))

    def to_the_end(self) -> tuple[Statement, dict[str, list[str]]]:
        """Drive the run from its last stored block or stage; returns the statement and the nearest words of a few
        common ones.

        Raises `RunStopped` where it was interrupted, whatever the stages raise, and `RunError` while another process
        drives the run.
        """
        store, plan = self.store, self.priced.plan
        with sound(store.folder):
            resumed = int(store.fact("resumed") or 0)
        with lease.held(store), Recorded(self.progress, store) as progress, tracing.run(store.id, resumed):
            store.note(status=RUNNING, error=None, code=None, **{lease.CANCEL: None})
            store.lasted(self.before)
            epsilon = self.priced.guarantee.epsilon if self.priced.private else None
            self.observer.opened(store.id, epsilon, plan.privacy.epsilon if plan.privacy.guarantee else None)
            try:
                with Spending(self.priced, store, self.observer):
                    return replace(self, progress=progress, observer=Counted(self.observer, store))._told()
            except KeyboardInterrupt:  # also an interrupt that comes while the end of the run is noted
                raise self._stopped() from None

    def _told(self) -> tuple[Statement, dict[str, list[str]]]:
        """Run all stages; where one fails, the store gets the run's status and a sentence."""
        plan = self.priced.plan
        try:
            with computing.memory_told(self.store.id):
                return self._stages()
        except RunStopped:
            raise self._stopped() from None
        except PartyLost as error:
            self._note(RESUMABLE, str(error), error.code)
            moved = "\n  If it is at another address by then, say so in [federation] parties of the plan first."
            raise PartyLost(f"{error}{moved if plan.federation.shards is None else ''}") from None
        except RunError as error:
            self._note(RESUMABLE, str(error), error.code)
            raise
        except ConclaveError as error:
            self._note(FAILED, str(error), error.code)
            raise

    def _stages(self) -> tuple[Statement, dict[str, list[str]]]:
        store = self.store
        present, sizes = self._collected()
        content = self._learned(sizes)
        audit = self._audited()
        with self._stage("evaluate") as result:
            student = self.recipe.student(content, self.priced, sizes, store, self.progress)
            result |= {"metrics": student.metrics, "neighbours": student.neighbours}
            if (unshown := shown(student, self.priced, sizes, store)) is not None:
                self.progress.say(f"  {unshown}")
        statement = self._statement(present, student.metrics, self._left_out(), student.claimed, audit)
        if not store.finished("publish"):
            self._publish(student, statement)
        store.note(status=FINISHED, epsilon=statement.epsilon, privacy=statement.privacy, metrics=statement.metrics)
        return statement, student.neighbours

    def _statement(
        self,
        present: Sequence[str],
        metrics: dict[str, Any],
        left_out: Mapping[str, str] = MappingProxyType({}),
        claimed: float | None = None,
        audit: Audit | None = None,
    ) -> Statement:
        """What can be stated of the run once its sums are complete. present: the parties that stayed to the end."""
        store, sums = self.store, self._sums()
        steps = {
            release.name: [store.summed(release.step(number).name) for number in range(release.steps)]
            for release in self.priced.releases
            if release.form == Form.STEPPED
        }
        # In a secure sum, a party that stays to the end may have missed the attempt that counts, or a step.
        every = [*sums.values(), *(parties for each in steps.values() for parties in each)]
        whole = tuple(name for name in present if self._throughout(name, sums, steps))
        digest = store.plan_hash.hex()
        return state(
            self.priced,
            whole,
            digest,
            metrics,
            run=store.joined_as,
            sums=sums,
            steps=steps,
            left_out=left_out,
            claimed=claimed,
            audit=audit,
            computed=stated(*computing.noted(store), sorted({*whole, *(name for each in every for name in each)})),
            together=self._together(),
        )

    def _together(self) -> int:
        """How many parties shared a process at most, when they were last launched."""
        with sound(self.store.folder):
            return int(self.store.fact("together") or 1)

    def _throughout(
        self, party: str, sums: Mapping[str, Sequence[str]], steps: Mapping[str, Sequence[Sequence[str]]]
    ) -> bool:
        """Whether a party is in every sum of the releases that it takes part in."""
        own = [release.name for release in self.priced.releases if release.concerns(party)]
        made = [parties for name in own for parties in (sums[name], *steps.get(name, ()))]
        return all(party in parties for parties in made)

    def _left_out(self) -> dict[str, str]:
        """Why the guarantee leaves out each party, as found when parties signed."""
        with sound(self.store.folder):
            kept = self.store.stages()["attest"][2].get("left_out", {})
            return {name: str(why) for name, why in kept.items()}

    def _collected(self) -> tuple[tuple[str, ...], dict[str, int]]:
        """The parties that stayed to the end, and how many are in the sum of each release; asked only if not stored."""
        plan = self.priced.plan
        if self.store.finished("attest"):
            if not self.store.fact("left"):
                leave(self.store, self.launcher, self.base, self.own)
            return self._kept()
        for name in plan.federation.names:
            self.progress.party(name, "starting" if plan.federation.shards is not None else "connecting")
        opened, new = self.store.fact("accounts") or [], self.mended is not None
        tables, opened = under_accounts(party_tables(plan, self.priced.releases), opened, new=new)
        self.store.note(accounts=opened)
        wanted = plan.federation.cluster
        cluster = None if wanted is None else wanted.cluster(plan.federation.names, self.base, self.store.id)
        together = plan.federation.parties_per_actor
        request = LaunchRequest(
            tables, self.store.folder / "parties", self.base, self.own.vouch, cluster, self.progress.say, together
        )
        with ExitStack() as launched:
            with self._stage("start"):
                addresses = launched.enter_context(self.launcher.launch(request))
            self.store.note(together=max(each.together for each in addresses), caps=caps_of(tables))
            waited(lambda stops: self._ask(addresses, stops), self._say_stopping)
        return self._kept()

    def _kept(self) -> tuple[tuple[str, ...], dict[str, int]]:
        """The stored result of the stage with the last sum. Raises `RunError` where it is damaged."""
        asked = [release.name for release in self.priced.releases if release.form.gives]
        with sound(self.store.folder):
            kept = self.store.stages()["aggregate"][2]
            names = tuple(kept["parties"])
            sizes = {name: int(kept["present"][name]) for name in asked}
            if not set(names) <= set(self.priced.plan.federation.names) or min(sizes.values(), default=1) < 1:
                raise ValueError("the parties of its sums are not the plan's")
        return names, sizes

    async def _ask(self, addresses: tuple[PartyAddress, ...], stops: Callable[[Callable[[], None]], None]) -> None:
        federation = Federation.at(addresses, self.priced, self.own, self.progress, self.observer)
        stops(federation.stop)
        try:
            if self.mended is not None:
                await go_on(self.mended, addresses, self.priced, self.store, self.own, self.progress)
            with self._stage("join"):
                await federation.open(self.store.joined_as, self.priced, spent=self._spent)
            computing.note(self.store, federation.computed, self.computed)
            if (mixed := differing(federation.computed)) is not None:
                self.progress.say(f"  {mixed}")
            self._begun()
            if not self.store.finished("aggregate"):
                await self.recipe.collect(self.priced, federation, self.store, self._stage)
            await self._attest(federation)
            await self._leave(federation)
        except PartyRefused as error:
            if self._spent:
                raise
            # No party needs to keep anything, and going on under a mended plan costs nothing more.
            if await keep_unspent(addresses, self.store, self.own, LEAVE_SECONDS):
                await self._leave(federation)
            again = f"\n  When the plan, or the party, is mended:  coordinator resume {self.store.id}"
            raise PartyRefused(f"{error}{'' if self.store.fact('replaced') else again}", code=error.code) from None
        finally:
            await federation.close()

    def _begun(self) -> None:
        """Every party has joined, so runs that this one replaced in its folder are no longer needed."""
        with sound(self.store.folder):
            replaced = {str(each) for each in self.store.fact("replaced") or []}
        if not replaced:
            return
        for aside in output.left_aside(self.store.folder):
            if str(aside) in replaced:
                left = output.remove(aside)
                kept = f"; {aside} keeps {output.named(left)}, which no run made" if left else ""
                self.progress.say(f"  the run that was here before is removed{kept}")
        self.store.note(replaced=None)

    async def _attest(self, federation: Federation) -> None:
        """Have every party in a sum sign what the run has cost it, as `coordinator.run.attesting` says."""

        async def again() -> None:
            await self.recipe.collect(self.priced, federation, self.store, self._stage)

        with self._stage("attest") as result:
            result |= await attest(
                federation,
                self.priced,
                self.store,
                self.progress,
                sums=self._sums,
                statement=lambda: self._statement(federation.present, {}),
                again=None if made_once(self.priced) else again,
            )

    def _sums(self) -> dict[str, tuple[str, ...]]:
        """Whose contributions are in each release."""
        return parties_of(self.priced, self.store)

    @property
    def _spent(self) -> bool:
        """Whether a ledger may hold a charge of this run: parties charge a training before they run it."""
        return not CHARGING.isdisjoint(self.store.stages())

    async def _leave(self, federation: Federation) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(federation.leave(), LEAVE_SECONDS)
        self.store.note(left=True)

    def _learned(self, sizes: dict[str, int]) -> bytes:
        """The student's parameters, from the store where they were learned before."""
        path = self.store.folder / STUDENT
        if self.store.finished("distil") and path.exists():
            return path.read_bytes()
        with self._stage("distil"):
            content = self.recipe.learn(self.priced, sizes, self.store, self.progress)
            self.store.write(STUDENT, content)
        return content

    def _audited(self) -> Audit | None:
        """The audit that the plan asks for, made once. Raises `ClaimRefuted` where it found more than the claim."""
        settings, store = self.priced.plan.audit, self.store
        if settings is None:
            return None
        if not store.finished("audit"):
            with self._stage("audit") as result:
                found = audited(self.priced.plan, self.launcher, self.base, settings, self.progress, run=store)
                keep(found, store.folder)
                result |= {"audit": found.model_dump(mode="json")}
        with sound(store.folder):
            audit = Audit.model_validate(store.stages()["audit"][2]["audit"])
        if audit.broken:
            raise ClaimRefuted(f"{verdict(audit)} Nothing was published:  coordinator report {store.id}")
        return audit

    def _publish(self, student: Student, statement: Statement) -> None:
        folder = self.student_folder
        with self._stage("publish"):
            # A folder that a killed run renamed into place is complete and of this run: the place was free before.
            if not (self.store.fact("publishing") and (folder / SIGNATURE).exists()):
                try:
                    check_free(folder)
                    self.store.note(publishing=True)
                    publish(student, statement, folder, seal(self.store, self.priced.binding, self.own.identity))
                except RunError as error:
                    raise RunError(
                        f"{error}\n  The run is stored, and nothing of it is paid again. When that is mended, or the "
                        f"plan names another [student] publish:  coordinator resume {self.store.id}"
                    ) from None

    @contextmanager
    def _stage(self, name: str) -> Iterator[dict[str, Any]]:
        self.observer.stage(name, "began")
        with tracing.span(f"stage {name}", stage=name), self.store.stage(name) as result:
            yield result
        self.observer.stage(name, "finished")

    def _stopped(self) -> ConclaveError:
        """The error for an interrupted run: stopped by its user, by `cancel`, or because another coordinator drives
        it.
        """
        store = self.store
        if store.fact(lease.CANCEL):
            self._note(RESUMABLE, "asked to cancel")
            return RunStopped(f"run {store.id} was asked to cancel, and stopped.")
        try:
            store.note(status=RESUMABLE, error="stopped by its user", code=RunStopped.CODE)
        except RunError as overtaken:
            return overtaken
        return RunStopped(f"run {store.id} stopped. What was answered is stored; go on:  coordinator resume {store.id}")

    def _note(self, status: str, error: str, code: str = "") -> None:
        with suppress(RunError):  # the first sentence counts; if it cannot be written, the lease shows the same
            self.store.note(status=status, error=error, code=code)

    def _say_stopping(self) -> None:
        self.progress.say("  stopping when the block in hand is stored; once more to stop at once")
