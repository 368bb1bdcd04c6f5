"""One run from wherever it stands to its end: parties launched and asked, the student learned, measured and published.

Every stage's outcome is stored before the next begins, so a run that was stopped or killed anywhere is driven again
from there by the same code. Interrupted once, it finishes the block in hand; twice, it stops at once.
"""

import asyncio
import base64
import re
import shutil
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from aggregation.accounting.price import LifetimeFilter
from aggregation.errors import ConclaveError
from coordinator.errors import PartyLost, PartyRefused, RunError, RunStopped
from coordinator.federation.federation import Federation
from coordinator.identity.identity import Own
from coordinator.plan.plan import Plan
from coordinator.pricing.release import Bound, Release
from coordinator.progress.events import Observer
from coordinator.progress.progress import Progress
from coordinator.publishing.manifest import SIGNATURE, Seal
from coordinator.publishing.publish import check_free, publish
from coordinator.publishing.report import Statement, state
from coordinator.publishing.student import Student
from coordinator.store import lease, output
from coordinator.store.store import CANCELLED, FAILED, FINISHED, RESUMABLE, RUNNING, RunStore, sound
from coordinator.store.watching import Recorded
from coordinator.systems.registry import plan_of
from coordinator.systems.system import Recipe
from coordinator.transport.launchers import Launcher, LaunchRequest, PartyAddress
from coordinator.transport.link import Answered, GrpcLink
from coordinator.verifying.attestations import OVERCHARGED, UNATTESTED, judged
from coordinator.verifying.evidence import lacking
from coordinator.verifying.statement import Privacy
from protos.identity.signing import Signed
from protos.telemetry import tracing

Value = TypeVar("Value")

LEAVE_SECONDS: Final = 5.0
"""How long parties are given to take note that a run is over."""
CANCEL_SECONDS: Final = 60.0
"""How long a driver that is asked to cancel is waited for."""
_MOST_EPSILON: Final = 1000.0
STUDENT: Final = "artefacts/student.safetensors"
_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}\b")
_PATH: Final = re.compile(r"(?<![\w/])~?/[^\s,;:'\")]+")


@dataclass(frozen=True, slots=True)
class Drive:
    """What driving a run needs."""

    bound: Bound[Any]
    recipe: Recipe[Any]
    own: Own
    launcher: Launcher
    base: Path
    store: RunStore
    progress: Progress
    observer: Observer

    @property
    def student_folder(self) -> Path:
        """Where the student is published. Raises `RunError` where what is kept is no place."""
        with sound(self.store.folder):
            return Path(self.store.fact("student"))

    def to_the_end(self) -> tuple[Statement, dict[str, list[str]]]:
        """Drive the run from its last stored block or stage; the statement and the nearest words of a few common ones.

        Raises `RunStopped` where it was interrupted, whatever the stages raise, and `RunError` while another process
        drives the run.
        """
        store, plan = self.store, self.bound.plan
        with sound(store.folder):
            resumed = int(store.fact("resumed") or 0)
        with lease.held(store), Recorded(self.progress, store) as progress, tracing.run(store.id, resumed):
            store.note(status=RUNNING, error=None, **{lease.CANCEL: None})
            epsilon = self.bound.guarantee.epsilon if self.bound.private else None
            self.observer.opened(store.id, epsilon, plan.privacy.epsilon)
            try:
                return replace(self, progress=progress)._told()
            except KeyboardInterrupt:  # also one that comes while it is noted how the run ends
                raise self._stopped() from None

    def _told(self) -> tuple[Statement, dict[str, list[str]]]:
        """All stages; where one fails, the run's status and a sentence are in the store."""
        plan = self.bound.plan
        try:
            return self._stages()
        except RunStopped:
            raise self._stopped() from None
        except PartyLost as error:
            self._note(RESUMABLE, str(error))
            moved = "\n  If it is at another address by then, say so in [federation] parties of the plan first."
            raise PartyLost(f"{error}{moved if plan.federation.shards is None else ''}") from None
        except RunError as error:
            self._note(RESUMABLE, str(error))
            raise
        except ConclaveError as error:
            self._note(FAILED, str(error))
            raise

    def _stages(self) -> tuple[Statement, dict[str, list[str]]]:
        store = self.store
        present, sizes = self._collected()
        content = self._learned(sizes)
        with self._stage("evaluate") as result:
            student = self.recipe.student(content, self.bound, sizes, store)
            result |= {"metrics": student.metrics, "neighbours": student.neighbours}
        statement = self._statement(present, student.metrics, self._left_out(), student.claimed)
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
    ) -> Statement:
        """What can be said of the run once its sums are complete. present: who stayed to the end."""
        store, sums = self.store, self._sums()
        steps = {
            release.name: [store.summed(release.step(number).name) for number in range(release.steps)]
            for release in self.bound.releases
            if release.stepped
        }
        # In a secure sum one that is there to the end may have been out of the attempt that counts, or of a step.
        every = [*sums.values(), *(parties for each in steps.values() for parties in each)]
        whole = tuple(name for name in present if all(name in parties for parties in every))
        digest = plan_hash_of(store).hex()
        return state(
            self.bound, whole, digest, metrics, run=store.id, sums=sums, steps=steps, left_out=left_out, claimed=claimed
        )

    def _left_out(self) -> dict[str, str]:
        """Why nothing is promised for a party, as it was found when parties signed."""
        with sound(self.store.folder):
            kept = self.store.stages()["attest"][2].get("left_out", {})
            return {name: str(why) for name, why in kept.items()}

    def _collected(self) -> tuple[tuple[str, ...], dict[str, int]]:
        """Who stayed to the end, and how many parties are in the sum of each release; asked only if not stored."""
        plan = self.bound.plan
        if self.store.finished("attest"):
            if not self.store.fact("left"):
                leave(self.store, self.launcher, self.base, self.own)
            return self._kept()
        for name in plan.federation.names:
            self.progress.party(name, "starting" if plan.federation.shards is not None else "connecting")
        tables = party_tables(plan, self.bound.releases)
        wanted = plan.federation.cluster
        cluster = None if wanted is None else wanted.cluster(plan.federation.names, self.base, self.store.id)
        request = LaunchRequest(
            tables, self.store.folder / "parties", self.base, self.own.vouch, cluster, self.progress.say
        )
        with self.launcher.launch(request) as addresses:
            waited(lambda stops: self._ask(addresses, stops), self._say_stopping)
        return self._kept()

    def _kept(self) -> tuple[tuple[str, ...], dict[str, int]]:
        """What the last sum's stage left. Raises `RunError` where that is damaged."""
        asked = [release.name for release in self.bound.releases if release.rows]
        with sound(self.store.folder):
            kept = self.store.stages()["aggregate"][2]
            names = tuple(kept["parties"])
            sizes = {name: int(kept["present"][name]) for name in asked}
            if not set(names) <= set(self.bound.plan.federation.names) or min(sizes.values(), default=1) < 1:
                raise ValueError("the parties of its sums are not the plan's")
        return names, sizes

    async def _ask(self, addresses: tuple[PartyAddress, ...], stops: Callable[[Callable[[], None]], None]) -> None:
        federation = Federation.at(addresses, self.bound, self.own, self.progress, self.observer)
        stops(federation.stop)
        try:
            with self._stage("join"):
                await federation.open(self.store.id, self.bound, spent=self._spent)
            self._begun()
            if not self.store.finished("aggregate"):
                await self.recipe.collect(self.bound, federation, self.store, self._stage)
            await self._attest(federation)
            await self._leave(federation)
        except PartyRefused:
            if not self._spent:  # then nobody needs to keep what was bounded, and running again costs nothing more
                await self._leave(federation)
            raise
        finally:
            await federation.close()

    def _begun(self) -> None:
        """Every party has joined: runs that made way for this one in its folder are not needed any more."""
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
        """Have every party in a sum sign what the run has cost it, and look at it as whoever verifies it will.

        Where one is lost before it could, or signs what does not count, nobody would vouch for its part: the sums start
        again without it, free. Where they cannot, and for one that was charged beyond the plan, nothing is promised, as
        long as the others are enough; else nothing is published, and the run can be resumed.
        """
        with self._stage("attest") as result:
            await federation.repay(self.store, last=True)
            gone = dict(federation.lost)  # of steps before the last, whose sums stand without them
            while True:
                sums = self._sums()
                took_part = sorted({name for parties in sums.values() for name in parties})
                costs = {name: self._charged_to(name, sums) for name in took_part}
                signed = await federation.attest(plan_hash_of(self.store).hex(), costs)
                stated = Privacy.model_validate(self._statement(federation.present, {}).privacy)
                found = judged(signed, stated)
                federation.disbelieve(found.unfit)
                signed = {name: each for name, each in signed.items() if name not in found.unfit}
                unsigned = [name for name in took_part if name not in signed and name not in gone]
                few = lacking(stated, self.bound.binding, set(signed) - set(found.beyond))
                if unsigned and (few or not self._made_once):
                    await self._without(federation, unsigned)
                    continue
                break
            for name, why in found.beyond.items():
                self.progress.say(f"  party {name} was charged for more than this run's plan: {why}")
            if few:
                raise RunError(self._too_few_vouch(few, found.beyond, federation.lost))
            missing = {name: why for name, why in federation.lost.items() if name not in signed}
            silent = [name for name in missing if all(name in release.throughout for release in stated.releases)]
            left_out = dict.fromkeys(silent, UNATTESTED) | dict.fromkeys(found.beyond, OVERCHARGED)
            for name, why in left_out.items():
                self.progress.say(f"  nothing is promised for {name}: {why}")
            result |= {"signed": {name: _packed(each) for name, each in signed.items()}, "missing": missing}
            result |= {"left_out": left_out}

    def _too_few_vouch(self, few: list[str], beyond: Mapping[str, str], lost: Mapping[str, str]) -> str:
        """That nothing is published, because of whom, and what to do."""
        why = [f"party {name} was charged for more than this run's plan: {each}." for name, each in beyond.items()]
        why += [f"party {name} was lost: {each}." for name, each in lost.items()]
        return (
            f"{' '.join([*why, *few])} Nothing is published.\n  What was answered is stored, and nothing was paid "
            f"twice. When that is mended:  coordinator resume {self.store.id}"
        )

    def _charged_to(self, party: str, sums: dict[str, tuple[str, ...]]) -> list[Release]:
        """What a party's ledger has to have been charged: the releases in whose sums it is, step by step."""
        found = []
        for release in self.bound.releases:
            if release.stepped:
                steps = (release.step(number) for number in range(release.steps))
                found += [step for step in steps if party in self.store.summed(step.name)]
            elif party in sums[release.name]:
                found.append(release)
        return found

    async def _without(self, federation: Federation, unsigned: list[str]) -> None:
        """Make the sums again of the parties that are left."""
        gone = " and ".join(unsigned)
        if self._made_once:
            raise PartyLost(
                f"party {gone} was lost before it signed what the run cost it ({federation.lost.get(unsigned[0])}), "
                "and its part is in a sum that is made once.\n  The run is stored, nothing was paid twice. When "
                f"it is back (`party serve`):  coordinator resume {self.store.id}"
            )
        self.progress.say(f"  {gone} did not sign what the run cost it: the sums start again without it, at no cost")
        await self.recipe.collect(self.bound, federation, self.store, self._stage)

    @property
    def _made_once(self) -> bool:
        """Whether a sum cannot be made again without one of its parties."""
        return self.recipe.made_once or self.bound.plan.privacy.trust == "secure-sum"

    def _sums(self) -> dict[str, tuple[str, ...]]:
        """Whose contributions are in each release; a training that is charged is its answers' parties'."""
        return self.recipe.parties_of(self.bound, self.store)

    @property
    def _spent(self) -> bool:
        """Whether a ledger may hold a charge of this run: parties charge whatever they train before they do it."""
        return not {"train", "aggregate"}.isdisjoint(self.store.stages())

    async def _leave(self, federation: Federation) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(federation.leave(), LEAVE_SECONDS)
        self.store.note(left=True)

    def _learned(self, sizes: dict[str, int]) -> bytes:
        """The student's parameters, from the store where it was learned before."""
        path = self.store.folder / STUDENT
        if self.store.finished("distil") and path.exists():
            return path.read_bytes()
        with self._stage("distil"):
            content = self.recipe.learn(self.bound, sizes, self.store, self.progress)
            self.store.write(STUDENT, content)
        return content

    def _publish(self, student: Student, statement: Statement) -> None:
        folder = self.student_folder
        with self._stage("publish"):
            # A folder that a killed run renamed into its place is whole, and this run's: the place was free before.
            if not (self.store.fact("publishing") and (folder / SIGNATURE).exists()):
                try:
                    check_free(folder)
                    self.store.note(publishing=True)
                    publish(student, statement, folder, self._seal())
                except RunError as error:
                    raise RunError(
                        f"{error}\n  The run is stored, and nothing of it is paid again. When that is mended, or the "
                        f"plan names another [student] publish:  coordinator resume {self.store.id}"
                    ) from None

    def _seal(self) -> Seal:
        with sound(self.store.folder):
            _, attested_at, kept = self.store.stages()["attest"]
            signed = {name: _unpacked(each) for name, each in kept["signed"].items()}
            missing = {name: _without_places(str(why)) for name, why in kept["missing"].items()}
            if attested_at is None:
                raise ValueError("nobody attested what the run cost")
        return Seal(
            run=self.store.id,
            plan_hash=plan_hash_of(self.store).hex(),
            binding=self.bound.binding,
            identity=self.own.identity,
            attestations=signed,
            not_attested=missing,
            attested_at=attested_at,
            signed_at=time.time(),
        )

    @contextmanager
    def _stage(self, name: str) -> Iterator[dict[str, Any]]:
        self.observer.stage(name, "began")
        with tracing.span(f"stage {name}", stage=name), self.store.stage(name) as result:
            yield result
        self.observer.stage(name, "finished")

    def _stopped(self) -> ConclaveError:
        """What an interrupted run ends with: by its user, by `cancel`, or because another coordinator drives it."""
        store = self.store
        if store.fact(lease.CANCEL):
            self._note(RESUMABLE, "asked to cancel")
            return RunStopped(f"run {store.id} was asked to cancel, and stopped.")
        try:
            store.note(status=RESUMABLE, error="stopped by its user")
        except RunError as overtaken:
            return overtaken
        return RunStopped(f"run {store.id} stopped. What was answered is stored; go on:  coordinator resume {store.id}")

    def _note(self, status: str, error: str) -> None:
        with suppress(RunError):  # the first sentence counts; where it cannot be written, the lease tells as much
            self.store.note(status=status, error=error)

    def _say_stopping(self) -> None:
        self.progress.say("  stopping when the block in hand is stored; once more to stop at once")


def plan_hash_of(store: RunStore) -> bytes:
    """The plan hash under which a run began. Raises `RunError` where what is kept is none."""
    with sound(store.folder):
        return bytes.fromhex(store.fact("plan_hash"))


def cancelled(store: RunStore, launcher: Launcher, own: Own) -> str:
    """End a run for good; whoever drives it is asked to stop first. Returns one sentence on what was done."""
    driver = store.driver()
    if driver is not None:
        store.note(**{lease.CANCEL: True})
        until = time.monotonic() + CANCEL_SECONDS
        while store.driver() is not None and time.monotonic() < until:
            time.sleep(0.2)
        if store.driver() is not None:
            return f"run {store.id} was asked to stop; {driver} still drives it. Cancel again when it let go."
    store.note(**{lease.CANCEL: None})
    with sound(store.folder):
        base = Path(store.fact("base"))
    with lease.held(store):
        silent = leave(store, launcher, base, own)
        store.note(status=CANCELLED, error=None)
    charged = "What it was charged for stays charged."
    if not silent:
        return f"run {store.id} is cancelled; its parties forgot it. {charged}"
    return (
        f"run {store.id} is cancelled. {charged} {', '.join(silent)} did not answer and may keep working files until "
        f"`party purge {store.id}` is run there."
    )


def leave(store: RunStore, launcher: Launcher, base: Path, own: Own) -> list[str]:
    """Tell the parties that a run which nobody asks anything more is over; the names of those that did not answer.

    Parties that a launcher starts are gone by then: what they kept is removed.
    """
    with sound(store.folder):
        plan = plan_of(store.fact("plan"))
    if plan.federation.shards is not None:
        shutil.rmtree(store.folder / "parties", ignore_errors=True)
        store.note(left=True)
        return []
    plan_hash = plan_hash_of(store)
    with launcher.launch(LaunchRequest({}, store.folder / "parties", base, own.vouch)) as addresses:
        silent = waited(lambda stops: _left(addresses, store.id, plan_hash, own), lambda: None)
    store.note(left=True)
    return silent


async def _left(addresses: tuple[PartyAddress, ...], run_id: str, plan_hash: bytes, own: Own) -> list[str]:
    identity = own.identity if own.tls else None
    links = [
        GrpcLink(each.name, each.address, each.token, identity=identity, deadline=LEAVE_SECONDS) for each in addresses
    ]
    try:
        for link in links:
            link.bind(run_id, plan_hash)
        outcomes = await asyncio.gather(*(link.leave() for link in links))
        return [link.name for link, outcome in zip(links, outcomes, strict=True) if not isinstance(outcome, Answered)]
    finally:
        await asyncio.gather(*(link.close() for link in links))


def _without_places(why: str) -> str:
    """Why a party was lost, without the address or the path that the sentence for the coordinator's own eyes names."""
    return _PATH.sub("a path", _ADDRESS.sub("its address", why))


def _packed(signed: Signed) -> dict[str, str]:
    parts = {"payload": signed.payload, "signature": signed.signature, "certificate": signed.certificate}
    return {name: base64.b64encode(part).decode() for name, part in parts.items()}


def _unpacked(kept: dict[str, str]) -> Signed:
    return Signed(**{name: base64.b64decode(part) for name, part in kept.items()})


def party_tables(plan: Plan, releases: Sequence[Release] = ()) -> dict[str, dict[str, Any]]:
    """The party files of a plan that divides one source itself: each party's part, and a policy just wide enough.

    releases: what the plan comes to. Empty for a plan whose parties run elsewhere: they have files of their own.
    """
    shards = plan.federation.shards
    if shards is None:
        return {}
    split = shards.split.model_dump(exclude_none=True)
    parties = split.pop("parties")
    parts = {"parts": split.pop("of", parties), "seed": plan.run.seed} | split
    source = shards.model_dump(exclude_none=True, exclude={"split"})
    policy = {
        "epsilon": _cap(plan, releases),
        "delta": plan.privacy.delta,
        "unit": plan.privacy.unit,
        "record": plan.privacy.record,
        "recipes": [plan.run.recipe],
        "simulation": True,
        "clear_votes": True,
        "weights": True,
    }
    return {
        name: {"name": name, "shard": source | {"part": parts | {"part": number}}, "policy": dict(policy)}
        for number, name in enumerate(plan.federation.names)
    }


def _cap(plan: Plan, releases: Sequence[Release]) -> float:
    """Room for one run under a lifetime cap, which counts a release for more than the run's own accountant does: little
    more for Gaussian releases, much more for few steps on random batches.
    """
    cap, events = 2 * plan.privacy.epsilon, [release.at_most for release in releases]
    while events and cap < _MOST_EPSILON and not LifetimeFilter(cap, plan.privacy.delta).admits(events[1:], events[0]):
        cap *= 2
    return cap


def waited(
    make: Callable[[Callable[[Callable[[], None]], None]], Coroutine[Any, Any, Value]], stopping: Callable[[], None]
) -> Value:
    """Run a coroutine to its end in a thread of its own, so that it also works where a loop runs already.

    make: is given a function that takes what is to be called, on the loop's thread, at the first interrupt; `stopping`
    is called beside it. The second interrupt, or the first where there is nothing to be called, cancels the coroutine
    and waits until it has cleaned up. However it then ended, an interrupt of the waiting thread is raised again.
    """
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    stops: list[Callable[[], None]] = []
    outcome: list[Value] = []
    failure: list[BaseException] = []

    async def main() -> Value:
        task = asyncio.current_task()
        assert task is not None
        loops.append((asyncio.get_running_loop(), task))
        return await make(stops.append)

    def target() -> None:
        try:
            outcome.append(asyncio.run(main()))
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            failure.append(error)
        finally:
            ended.set()

    # An interrupted Thread.join takes the thread for ended, so an event is waited for instead.
    ended = threading.Event()
    thread = threading.Thread(target=copy_context().run, args=(target,), name="run")
    thread.start()
    interrupts = 0
    while True:
        try:
            while not ended.wait(0.2):
                pass
            break
        except KeyboardInterrupt:
            interrupts += 1
            with suppress(RuntimeError):  # the loop may have ended just now
                for loop, task in loops:
                    if interrupts == 1 and stops:
                        loop.call_soon_threadsafe(stops[0])
                        stopping()
                    else:
                        loop.call_soon_threadsafe(task.cancel)
    if interrupts:
        raise KeyboardInterrupt
    if failure:
        raise failure[0]
    return outcome[0]
