"""Who may submit runs, what each submitter sees, and how the queue answers: over mutual TLS on loopback."""

import asyncio
import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import grpc
import pytest

from coordinator.errors import PlanError, RunError
from coordinator.serving import runner as runners
from coordinator.serving.child import Child
from coordinator.serving.runner import Runner
from coordinator.serving.server import OPTIONS
from coordinator.serving.service import MOST_CALLS, Service
from coordinator.serving.submissions import CANCELLED, FAILED, FINISHED, QUEUED, RUNNING, STOPPED
from coordinator.submitting.client import Client
from coordinator.submitting.reaching import why_not
from protos.conclave.v1 import coordinator_pb2
from protos.conclave.v1.coordinator_pb2_grpc import CoordinatorStub, add_CoordinatorServicer_to_server
from protos.identity.authority import new_authority
from protos.identity.certificates import Role, fingerprint, pem_of
from protos.identity.tls import channel_credentials, server_credentials, server_options
from protos.identity.validity import RevocationList
from protos.refusal import refusal_of

CLIENTS = ThreadPoolExecutor(16)
"""Threads of the clients alone: the service has those of the loop."""


@pytest.fixture
def served(located, submissions, people):
    """`async with served(config) as (address, service, runner)`; nothing starts what is queued."""

    @asynccontextmanager
    async def serving(config, identity=people.server):
        runner = Runner(config, located, submissions)
        service = Service(config, located, submissions, runner, identity)
        server = grpc.aio.server(options=OPTIONS)
        add_CoordinatorServicer_to_server(service, server)
        port = server.add_secure_port("127.0.0.1:0", server_credentials(identity))
        await server.start()
        try:
            yield f"127.0.0.1:{port}", service, runner
        finally:
            service.ending.set()
            await server.stop(0)
            await runner.close()

    return serving


async def asked(address, identity, do):
    """What a client, on a thread of its own, gets."""

    def all_of_it():
        with Client(address, identity) as client:
            return do(client)

    return await asyncio.get_running_loop().run_in_executor(CLIENTS, all_of_it)


async def refused(address, identity, do, kind=RunError):
    with pytest.raises(kind) as error:
        await asked(address, identity, do)
    return str(error.value)


async def test_a_plan_is_queued_and_the_same_plan_is_the_same_submission(served, config, people, plan, submissions):
    ann, bob = people.of("ann"), people.of("bob")
    async with served(config()) as (address, _, _):
        first = await asked(address, ann, lambda client: client.submit(plan()))
        assert (first.same, first.submission.state, first.submission.before) == (False, coordinator_pb2.STATE_QUEUED, 0)
        again = await asked(address, ann, lambda client: client.submit(plan()))
        assert (again.same, again.submission.id) == (True, first.submission.id)
        other = await asked(address, ann, lambda client: client.submit(plan(seed=2)))
        assert (other.same, other.submission.before) == (False, 1)
        theirs = await asked(address, bob, lambda client: client.submit(plan()))
        assert (theirs.same, theirs.submission.id) == (True, first.submission.id)
        assert "has not ended" in await refused(address, ann, lambda client: client.submit(plan(), again=True))
        assert len(submissions.in_states(QUEUED)) == 2
        ends = await refused(address, bob, lambda client: client.cancel(first.submission.id))
        assert "was submitted by ann first, who alone may cancel it" in ends


async def test_what_is_not_taken_has_the_code_of_its_page(served, config, people, plan):
    async with served(config()) as (address, _, _):
        with pytest.raises(PlanError) as error:
            await asked(address, people.of("ann"), lambda client: client.submit("epsilon = 1\n"))
        assert error.value.code == "C109"
        with pytest.raises(RunError) as error:
            await asked(address, people.of("ann"), lambda client: client.cancel("nothing"))
        assert error.value.code == "C508"
    with pytest.raises(RunError) as error:
        await asked(address, people.of("ann"), lambda client: client.submit(plan()))
    assert error.value.code == "C501"


async def test_two_of_one_plan_at_once_are_one_submission(served, config, people, plan, submissions):
    async with served(config()) as (address, _, _):
        each = [asked(address, people.of("ann"), lambda client: client.submit(plan())) for _ in range(6)]
        said = await asyncio.gather(*each)
    assert len({one.submission.id for one in said}) == 1
    assert [one.same for one in said].count(False) == 1
    assert len(submissions.in_states(QUEUED)) == 1


async def test_a_full_queue_is_refused_in_words_and_one_submitter_cannot_fill_it(
    served, config, people, plan, submissions
):
    async with served(config(submit={"queue": 3, "each": 2})) as (address, service, _):
        for seed in (1, 2):
            await asked(address, people.of("ann"), lambda client, seed=seed: client.submit(plan(seed=seed)))
        own = await refused(address, people.of("ann"), lambda client: client.submit(plan(seed=3)))
        assert "2 submissions of ann wait, the most for one" in own
        await asked(address, people.of("bob"), lambda client: client.submit(plan(seed=3)))
        full = await refused(address, people.of("eve"), lambda client: client.submit(plan(seed=4)))
        assert "the queue is full: 3 submissions wait" in full
        assert service.refusals["busy"] == 2
    assert len(submissions.in_states(QUEUED)) == 3


@pytest.mark.parametrize("state", [FINISHED, FAILED, CANCELLED])
async def test_a_plan_that_was_paid_for_runs_again_only_where_that_is_said(
    served, config, people, plan, submissions, monkeypatch, state
):
    ann = people.of("ann")
    monkeypatch.setattr("coordinator.serving.service.spent", lambda folder: True)
    async with served(config()) as (address, _, _):
        first = await asked(address, ann, lambda client: client.submit(plan()))
        submissions.change(first.submission.id, state=state)
        why = await refused(address, ann, lambda client: client.submit(plan()))
        assert f"this plan ran before as {first.submission.id}, which is {state}" in why
        assert "pays again at every party; if that is meant: --again" in why
        assert "somebody else submitted this plan" in await refused(
            address, people.of("bob"), lambda client: client.submit(plan())
        )
        second = await asked(address, ann, lambda client: client.submit(plan(), again=True))
        assert second.submission.id != first.submission.id


async def test_a_plan_that_cost_nothing_may_be_submitted_again(served, config, people, plan, submissions):
    async with served(config()) as (address, _, _):
        first = await asked(address, people.of("ann"), lambda client: client.submit(plan()))
        submissions.change(first.submission.id, state=FAILED, why="party north refused to join")
        again = await asked(address, people.of("ann"), lambda client: client.submit(plan()))
        assert not again.same


async def test_a_run_that_stopped_goes_on_when_its_plan_is_submitted_again(served, config, people, plan, submissions):
    async with served(config()) as (address, _, _):
        first = await asked(address, people.of("ann"), lambda client: client.submit(plan()))
        submissions.change(first.submission.id, state=STOPPED, why="party north was lost", tries=3)
        again = await asked(address, people.of("ann"), lambda client: client.submit(plan()))
        assert (again.same, again.submission.id) == (True, first.submission.id)
        found = submissions.get(first.submission.id)
        assert (found.state, found.why, found.tries) == (QUEUED, "", 0)


async def test_a_submitter_learns_nothing_of_anothers_submissions(served, config, people, plan, tmp_path):
    bob = people.of("bob")
    async with served(config()) as (address, _, _):
        made = (await asked(address, people.of("ann"), lambda client: client.submit(plan()))).submission.id
        assert await asked(address, bob, lambda client: client.listed()) == []
        never = made[:-1] + ("x" if made[-1] != "x" else "y")

        def words(wanted):
            return [
                lambda client: next(client.watch(wanted)),
                lambda client: client.cancel(wanted),
                lambda client: client.fetch(wanted, tmp_path / "student"),
            ]

        for there, not_there in zip(words(made), words(never), strict=True):
            assert (await refused(address, bob, there)).replace(made, "ID") == (
                await refused(address, bob, not_there)
            ).replace(never, "ID")
        assert "bob has no submission" in await refused(address, bob, lambda client: client.cancel(""))


STRANGERS = {
    "a party": lambda people: people.of("north", Role.PARTY),
    "a coordinator": lambda people: people.of("coordinator.here", Role.COORDINATOR),
    "another authority": lambda people: people.of("ann", authority=new_authority("elsewhere")),
    "expired": lambda people: people.of("ann", not_before=datetime.now(UTC) - timedelta(days=3), days=1),
    "not yet": lambda people: people.of("ann", not_before=datetime.now(UTC) + timedelta(days=1)),
}


@pytest.mark.parametrize("who", STRANGERS.values(), ids=STRANGERS)
async def test_a_stranger_submits_nothing(served, config, people, plan, submissions, who):
    async with served(config()) as (address, _, _):
        with pytest.raises((RunError, PlanError)):
            await asked(address, who(people), lambda client: client.submit(plan()))
        for verb, request in (
            ("Submit", coordinator_pb2.SubmitRequest(plan=plan())),
            ("List", coordinator_pb2.ListRequest()),
            ("Cancel", coordinator_pb2.CancelRequest(id="a")),
        ):
            options = (*server_options(), ("grpc.enable_http_proxy", 0))
            async with grpc.aio.secure_channel(address, channel_credentials(who(people)), options=options) as channel:
                with pytest.raises(grpc.aio.AioRpcError):
                    await getattr(CoordinatorStub(channel), verb)(request, timeout=5)
    assert submissions.counts() == {}


async def test_nobody_without_a_certificate_gets_as_far_as_a_call(served, config, people, plan):
    async with served(config()) as (address, service, _):
        roots = grpc.ssl_channel_credentials(pem_of(people.authority.certificate))
        async with grpc.aio.secure_channel(address, roots, options=server_options()) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await CoordinatorStub(channel).List(coordinator_pb2.ListRequest(), timeout=5)
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await CoordinatorStub(channel).List(coordinator_pb2.ListRequest(), timeout=5)
        assert service.refusals == {}


async def test_the_file_may_name_submitters_by_fingerprint(served, config, people, plan):
    ann, false_ann, bob = people.of("ann"), people.of("ann"), people.of("bob")
    async with served(config(submitters={"ann": fingerprint(ann.transport)})) as (address, _, _):
        assert not (await asked(address, ann, lambda client: client.submit(plan()))).same
        for other in (false_ann, bob):
            assert "is not in [submitters]" in await refused(address, other, lambda client: client.listed())


async def test_the_file_may_let_the_coordinators_own_certificate_submit(served, config, people):
    own = people.of("coordinator.here", Role.COORDINATOR)
    async with served(config(submit={"roles": ["coordinator"]})) as (address, _, _):
        assert await asked(address, own, lambda client: client.listed()) == []
        why = await refused(address, people.of("ann"), lambda client: client.listed())
        assert "not one of a coordinator: only these may submit" in why


async def test_a_revoked_submitter_is_refused_at_the_next_call(served, config, people, tmp_path):
    ann = people.of("ann")
    path = tmp_path / "revoked.pem"
    path.write_bytes(people.authority.revocation_list([]))
    identity = people.server.__class__(
        **{name: getattr(people.server, name) for name in people.server.__slots__ if name != "revoked"},
        revoked=RevocationList(path, people.authority.certificate),
    )
    async with served(config(), identity) as (address, _, _):
        assert await asked(address, ann, lambda client: client.listed()) == []
        path.write_bytes(people.authority.revocation_list([ann.transport.serial_number]))
        assert "was revoked" in await refused(address, ann, lambda client: client.listed())
        path.write_bytes(b"no list")
        assert "is not a list of revoked certificates" in await refused(address, ann, lambda client: client.listed()), (
            "without its list it lets nobody in"
        )


async def test_a_plan_that_is_refused_is_not_kept(served, config, people, plan, submissions):
    async with served(config()) as (address, _, _):
        ann = people.of("ann")
        for text, said in (
            (plan().replace("public.jsonl", "/etc/passwd"), "leaves the coordinator's folder"),
            (plan("east"), '"east" is not a party of this coordinator'),
            ("x" * 300_000, "larger than 256 KiB"),
        ):
            assert said in await refused(address, ann, lambda client, text=text: client.submit(text), PlanError)
        assert "failed" in await refused(address, ann, lambda client: client.submit("x" * 2_000_000))
    assert submissions.counts() == {}


async def test_what_fails_here_is_told_without_this_machines_paths(
    served, config, people, plan, submissions, monkeypatch, located
):
    def full(*given, **columns):
        raise RunError(f"{located.keep}/submissions.sqlite cannot be written: the disk is full.")

    def bug(*given, **columns):
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(submissions, "add", full)
    async with served(config()) as (address, _, _):
        why = await refused(address, people.of("ann"), lambda client: client.submit(plan()))
        assert why == "submissions.sqlite cannot be written: the disk is full."
        monkeypatch.setattr(submissions, "add", bug)
        why = await refused(address, people.of("ann"), lambda client: client.submit(plan()))
        assert "the coordinator failed; its own log says why." in why
        assert "secret" not in why


async def test_watching_is_bounded_and_ends_with_the_coordinator(served, config, people, plan):
    ann = people.of("ann")
    async with served(config()) as (address, service, _), contextlib.AsyncExitStack() as stack:
        made = (await asked(address, ann, lambda client: client.submit(plan()))).submission.id
        channel = grpc.aio.secure_channel(address, channel_credentials(ann), options=server_options())
        stub = CoordinatorStub(await stack.enter_async_context(channel))
        watching = [stub.Watch(coordinator_pb2.WatchRequest(id=made)) for _ in range(MOST_CALLS)]
        for each in watching:
            assert (await each.read()).state == coordinator_pb2.STATE_QUEUED
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.List(coordinator_pb2.ListRequest(), timeout=10)
        assert f"makes {MOST_CALLS} calls at once already" in refusal_of(error.value).sentence
        watching[0].cancel()
        service.ending.set()
        for each in watching[1:]:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await each.read()
            assert refusal_of(error.value).reason == "draining"


async def test_a_coordinator_that_is_about_to_end_takes_nothing(served, config, people, plan, submissions):
    async with served(config()) as (address, _, runner):
        runner.draining = True
        why = await refused(address, people.of("ann"), lambda client: client.submit(plan()))
        assert "about to end and takes nothing" in why
    assert submissions.counts() == {}


async def test_a_queued_submission_is_cancelled_at_once_and_others_move_up(served, config, people, plan, submissions):
    ann = people.of("ann")
    async with served(config()) as (address, _, _):
        first, second = [
            (await asked(address, ann, lambda client, seed=seed: client.submit(plan(seed=seed)))).submission.id
            for seed in (1, 2)
        ]
        ended = await asked(address, ann, lambda client: client.cancel(first))
        assert (ended.state, ended.why) == (
            coordinator_pb2.STATE_CANCELLED,
            "it was cancelled before it began; nothing was spent.",
        )
        assert "is cancelled already" in await refused(address, ann, lambda client: client.cancel(first))
        assert (await asked(address, ann, lambda client: next(client.watch(second)))).before == 0


async def test_what_waits_for_room_on_the_disk_says_so_and_starts_when_there_is_some(
    served, config, people, plan, submissions, monkeypatch
):
    free, started = [10], []

    def start(folder, home, arguments):
        started.append(arguments)
        return Child(folder)

    monkeypatch.setattr(runners, "free_disk", lambda folder: free[0])
    monkeypatch.setattr(runners.children, "start", start)
    monkeypatch.setattr(runners.children, "alive", lambda folder: True)
    async with served(config(submit={"spare": 1_000_000})) as (address, _, runner):
        await asked(address, people.of("ann"), lambda client: client.submit(plan()))
        await runner._start_some()
        (found,) = submissions.in_states(QUEUED)
        assert "it waits for room on the coordinator's disk: 0 kB free, 1.0 MB wanted" in found.why
        assert started == []
        free[0] = 2_000_000
        await runner._start_some()
        assert submissions.get(found.id).state == RUNNING
        assert [each for each in started[0] if each.startswith("--")] == ["--output", "--replace", "--files", "--spare"]
        await runner._start_some()
        assert len(started) == 1


# Who is there


async def test_another_coordinator_than_the_pinned_one_is_told_before_anything_is_sent(served, config, people):
    authority = new_authority("elsewhere")
    foreign = people.of("coordinator.here", Role.SERVER, authority=authority)
    async with served(config(), foreign) as (address, service, _):
        why = await refused(address, people.of("ann"), lambda client: client.listed())
        assert "is not the one that submitter.toml trusts" in why
        assert "issued by another authority" in why
        assert service.refusals == {}


def test_a_closed_port_plain_text_and_a_silent_host_are_told_apart(people):
    ann = people.of("ann")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    assert "nothing listens there" in why_not(address, ann)
    assert "there is no host" in why_not("nowhere.invalid:7445", ann)
    with pytest.raises(PlanError, match="is no address"), Client("coordinator.example", ann):
        pass


@pytest.mark.parametrize(("role", "said"), [(Role.PARTY, "a party listens there"), (Role.COORDINATOR, "the gate")])
async def test_another_port_of_the_federation_is_told(served, config, people, role, said):
    async with served(config(), people.of("north" if role is Role.PARTY else "coordinator.here", role)) as (
        address,
        *_,
    ):
        assert said in await asyncio.to_thread(why_not, address, people.of("ann"))
