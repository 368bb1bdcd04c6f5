"""What a coordinator that stays up answers to those who submit runs: five calls, each over mutual TLS.

Every call begins with who calls: a certificate of the federation's authority, of a role that may submit, not revoked,
and, where the coordinator's file names submitters, with the fingerprint that it has for that name. A submitter sees its
own submissions alone, and of another's not even whether there is one.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn, TypeVar

import grpc

from aggregation.errors import ConclaveError, IntegrityError
from coordinator.errors import PlanError
from coordinator.published.folder import Published
from coordinator.published.manifest import MANIFEST, SIGNATURE, Manifest
from coordinator.reading import shown
from coordinator.serving.admitting import LARGEST, admitted
from coordinator.serving.child import RUN, told
from coordinator.serving.config import Located, ServeConfig
from coordinator.serving.outcome import spent
from coordinator.serving.runner import Runner
from coordinator.serving.submissions import FINISHED, QUEUED, STOPPED, Submission, Submissions
from coordinator.serving.views import viewed
from coordinator.store.output import STUDENT
from protos.codec import CHUNK_BYTES
from protos.conclave.v1 import coordinator_pb2
from protos.conclave.v1.coordinator_pb2_grpc import CoordinatorServicer
from protos.identity.certificates import IdentityError, Role, Use, fingerprint, subject_of
from protos.identity.identity import Identity
from protos.identity.tls import caller
from protos.identity.validity import check_certificate
from protos.refusal import Reason, Refusal, abort, printable

log = logging.getLogger("conclave.coordinator")

MOST_LISTED: Final = 100
MOST_CALLS: Final = 16
"""The most calls of one submitter at a time; watching is one."""
MOST_OPENED: Final = 20
"""In how many of somebody's last submissions a run's own id is looked for."""
WATCH_SECONDS: Final = 0.5
LONGEST_ID: Final = 100

Context = Any
Said = TypeVar("Said")


class Service(CoordinatorServicer):
    """The calls. identity: the coordinator's server certificates, whose authority and list of revoked ones count."""

    def __init__(
        self, config: ServeConfig, located: Located, submissions: Submissions, runner: Runner, identity: Identity
    ) -> None:
        self._config = config
        self._located = located
        self._submissions = submissions
        self._runner = runner
        self._identity = identity
        self._calls: Counter[str] = Counter()
        self._admitting = asyncio.Lock()
        self.refusals: Counter[str] = Counter()
        self.ending = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._wake: Callable[[], object] = lambda: loop.call_soon_threadsafe(runner.wake)

    async def Submit(self, request: Any, context: Context) -> Any:  # noqa: N802
        """Put a plan into the queue, or say what became of it."""
        async with self._asked(context) as who:
            if self._runner.draining:
                raise Refusal(Reason.DRAINING, "the coordinator is about to end and takes nothing. Submit again soon.")
            if len(request.plan.encode()) > LARGEST:
                raise Refusal(Reason.PLAN, f"the plan is larger than {LARGEST >> 10} KiB, so it was not read.")
            async with self._admitting:  # two of one plan at once are one submission
                return await asyncio.to_thread(self._submitted, request.plan, request.again, who)

    async def Watch(self, request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        """Follow a submission until it is at rest, or until this coordinator ends."""
        async with self._asked(context) as who:
            last = None
            while True:
                found = await asyncio.to_thread(self._seen, request.id, who)
                if found != last:
                    yield found
                    last = found
                waits = found.state in (coordinator_pb2.STATE_QUEUED, coordinator_pb2.STATE_RUNNING)
                if not (waits or (found.cancelling and found.state == coordinator_pb2.STATE_STOPPED)):
                    return
                try:
                    async with asyncio.timeout(WATCH_SECONDS):
                        await self.ending.wait()
                except TimeoutError:
                    continue
                raise Refusal(Reason.DRAINING, "the coordinator is about to end; the run goes on when it is back.")

    async def Fetch(self, request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        """The published folder: the list of its files, then their bytes, in chunks."""
        async with self._asked(context) as who:
            found = self._found(request.id, who)
            if found.state != FINISHED:
                raise Refusal(
                    Reason.CONFLICT, f"{found.id} is {found.state}: it has no student. Watch it until it has."
                )
            student = await asyncio.to_thread(Published.at, self._runner.folder(found) / RUN / STUDENT)
            files = await asyncio.to_thread(_files, student)
            yield coordinator_pb2.FetchResponse(files=files)
            for file in files:
                path = student.folder / file.path
                handle = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                with os.fdopen(handle, "rb") as content:
                    while data := await asyncio.to_thread(content.read, CHUNK_BYTES):
                        yield coordinator_pb2.FetchResponse(data=data)

    async def List(self, request: Any, context: Context) -> Any:  # noqa: N802
        """The caller's submissions, newest first."""
        async with self._asked(context) as who:
            return await asyncio.to_thread(self._listed, who)

    async def Cancel(self, request: Any, context: Context) -> Any:  # noqa: N802
        """End a submission; only whoever submitted it first may."""
        async with self._asked(context) as who:
            found = self._found(request.id, who)
            if found.submitters[0] != who:
                raise Refusal(
                    Reason.CONFLICT,
                    f"{found.id} was submitted by {found.submitters[0]} first, who alone may cancel it. You follow it.",
                )
            if not found.open:
                raise Refusal(Reason.CONFLICT, f"{found.id} is {found.state} already.")
            self._runner.cancel(found)
            log.info("submission %s is cancelled by %s", found.id, who, extra={"event": "cancelling", "run": found.id})
            return await asyncio.to_thread(self._seen, found.id, who)

    def authenticate(self, context: Context) -> str:
        """The name of the submitter that calls. Raises `Refusal` (AUTHENTICATION)."""
        try:
            certificate = caller(context)
        except ValueError:
            certificate = None
        if certificate is None:
            raise Refusal(Reason.AUTHENTICATION, "whoever submits runs shows a certificate, and none was shown.")
        subject = subject_of(certificate)
        roles = [Role(each) for each in self._config.submit.roles]
        try:
            if subject is None or subject[0] not in roles:
                words = " or ".join(self._config.submit.roles)
                raise IdentityError(
                    f"the certificate shown is not one of a {words}: only these may submit runs here. Make a request "
                    "with `coordinator enroll`, and have it signed (`coordinator provision sign --submitter`)."
                )
            check_certificate(
                certificate,
                authority=self._identity.authority,
                role=subject[0],
                use=Use.TRANSPORT,
                revoked=self._identity.revoked,
            )
        except IdentityError as error:
            raise Refusal(Reason.AUTHENTICATION, str(error)) from None
        named = self._config.submitters
        if named is not None and named.get(subject[1]) != fingerprint(certificate):
            raise Refusal(
                Reason.AUTHENTICATION,
                f"{subject[1]} with the fingerprint {fingerprint(certificate)} is not in [submitters] of the "
                "coordinator's file. Ask who looks after the coordinator to add it.",
            )
        return subject[1]

    def told(self, sentence: str) -> str:
        """A sentence as a submitter reads it."""
        return told(sentence, *self._runner.hidden)

    @contextmanager
    def _counted(self, who: str) -> Iterator[None]:
        if self._calls[who] >= MOST_CALLS:
            raise Refusal(Reason.BUSY, f"{who} makes {MOST_CALLS} calls at once already. End some, and ask again.")
        self._calls[who] += 1
        try:
            yield
        finally:
            self._calls[who] -= 1

    def _asked(self, context: Context) -> "_Asked":
        return _Asked(self, context)

    def _submitted(self, text: str, again: bool, who: str) -> coordinator_pb2.SubmitResponse:
        try:
            plan = admitted(text, self._config, self._located)
        except PlanError as error:
            raise Refusal(Reason.PLAN, str(error)) from None
        for found in self._submissions.of_digest(plan.digest):
            if found.open:
                return self._same(found, again, who, plan.said)
            if not again and self._cost(found):
                self._check_again(found, who)
        self._check_room(who)
        made = self._submissions.add(text, plan, who)
        self._wake()
        log.info("%s submitted %s", who, made.id, extra={"event": "submitted", "run": made.id})
        return coordinator_pb2.SubmitResponse(submission=self._view(made), same=False, said=plan.said)

    def _same(self, found: Submission, again: bool, who: str, said: tuple[str, ...]) -> coordinator_pb2.SubmitResponse:
        """A plan that has not ended: it is the same submission, and goes on if it was stopped."""
        if again:
            raise Refusal(
                Reason.CONFLICT,
                "this plan is submitted and has not ended, so it cannot be run again beside itself. Follow it, or "
                "cancel it first.",
            )
        if found.cancelling:
            raise Refusal(
                Reason.CONFLICT, "this plan was submitted and is being cancelled. Submit it when that is done."
            )
        if found.state == STOPPED:
            self._check_room(found.submitters[0])
        found = self._submissions.join(found, who)
        if found.state == STOPPED:
            found = self._submissions.change(found.id, state=QUEUED, why="", tries=0)
            self._wake()
        return coordinator_pb2.SubmitResponse(submission=self._view(found), same=True, said=said)

    def _cost(self, found: Submission) -> bool:
        return found.state == FINISHED or spent(self._runner.folder(found))

    def _check_again(self, found: Submission, who: str) -> NoReturn:
        """Raises `Refusal`: a plan that was paid for is not run, and paid for, again unasked."""
        if who not in found.submitters:
            raise Refusal(
                Reason.CONFLICT,
                "somebody else submitted this plan, and it ran: running it again pays again at every party. If that is "
                "meant: --again.",
            )
        fetch = f" Fetch its student: coordinator fetch {found.id}." if found.state == FINISHED else ""
        raise Refusal(
            Reason.CONFLICT,
            f"this plan ran before as {found.id}, which is {found.state}.{fetch} Running it again pays again at every "
            "party; if that is meant: --again.",
        )

    def _check_room(self, who: str) -> None:
        queued = self._submissions.in_states(QUEUED)
        if len(queued) >= self._config.submit.queue:
            raise Refusal(
                Reason.BUSY, f"the queue is full: {len(queued)} submissions wait. Submit again when some have begun."
            )
        own = sum(each.submitters[0] == who for each in queued)
        if own >= self._config.submit.each:
            raise Refusal(
                Reason.BUSY, f"{own} submissions of {who} wait, the most for one. Submit again when some have begun."
            )

    def _found(self, wanted: str, who: str) -> Submission:
        """The caller's submission with this id, or a beginning of it, of its own or of its run's. Raises `Refusal`."""
        own = self._submissions.of_submitter(who, 10 * MOST_LISTED)
        exact = [each for each in own if each.id == wanted]
        found = exact or ([each for each in own if each.id.startswith(wanted)] if wanted else [])
        if not found and wanted:
            found = [each for each in own[:MOST_OPENED] if self._view(each).run.startswith(wanted)]
        if len(found) == 1:
            return found[0]
        said = printable(wanted[:LONGEST_ID])
        if found:
            raise Refusal(Reason.REQUEST, f'"{said}" can be {" or ".join(each.id for each in found[:3])}. Write more.')
        raise Refusal(Reason.REQUEST, f'{who} has no submission "{said}" here. `coordinator runs --at` lists them.')

    def _seen(self, wanted: str, who: str) -> coordinator_pb2.Submission:
        return self._view(self._found(wanted, who))

    def _view(self, found: Submission) -> coordinator_pb2.Submission:
        queued = self._submissions.in_states(QUEUED) if found.state == QUEUED else []
        return viewed(found, self._runner.folder(found), queued, self._runner.hidden)

    def _listed(self, who: str) -> coordinator_pb2.ListResponse:
        return coordinator_pb2.ListResponse(
            submissions=[self._view(each) for each in self._submissions.of_submitter(who, MOST_LISTED)]
        )


class _Asked:
    """One call: who makes it, counted; a refusal ends it with a sentence, any other error without details."""

    def __init__(self, service: Service, context: Context) -> None:
        self._service = service
        self._context = context
        self._counted: Any = None

    async def __aenter__(self) -> str:
        try:
            who = self._service.authenticate(self._context)
            counted = self._service._counted(who)
            counted.__enter__()
            self._counted = counted
            return who
        except Refusal as refusal:
            await self._refuse(refusal)
            raise AssertionError("unreachable") from None

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._counted is not None:
            self._counted.__exit__(None, None, None)
        if error is None or isinstance(error, asyncio.CancelledError | GeneratorExit | grpc.aio.AbortError):
            return
        if isinstance(error, ConclaveError):
            error = Refusal(Reason.OTHER, self._service.told(str(error)))
        if isinstance(error, Refusal):
            await self._refuse(error)
        log.error("a call failed", exc_info=error, extra={"event": "failed"})
        await self._context.abort(grpc.StatusCode.INTERNAL, "the coordinator failed; its own log says why.")

    async def _refuse(self, refusal: Refusal) -> NoReturn:
        self._service.refusals[str(refusal.reason)] += 1
        log.info("refused (%s)", refusal.reason, extra={"event": "refused", "reason": str(refusal.reason)})
        await abort(self._context, refusal)


def _files(student: Published) -> list[coordinator_pb2.PublishedFile]:
    """A published folder's files, each with the digest in its manifest. Raises `IntegrityError`."""
    manifest = student.model(MANIFEST, Manifest)
    files = [
        coordinator_pb2.PublishedFile(path=path, bytes=each.bytes, sha256=each.sha256)
        for path, each in sorted(manifest.files.items())
    ]
    for path in (MANIFEST, SIGNATURE):
        files.append(coordinator_pb2.PublishedFile(path=path, bytes=student.sizes[path], sha256=student.sha256(path)))
    for each in files:
        if student.sizes.get(each.path) != each.bytes:
            raise IntegrityError(f"{shown(each.path)} of the published folder is not what its manifest says.")
    return files
