"""Who gets anything from a party that serves under mutual TLS: the coordinator of its federation, and nobody else."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aggregation.accounting.events import from_json
from coordinator.transport.dialled.way import opened_gate
from party.dialling.destination import destination
from party.errors import PartyError
from party.node.identity import check_caller, own_identity
from party.node.lifecycle import start
from protos.conclave.v1 import party_pb2
from protos.conclave.v1.party_pb2_grpc import PartyStub
from protos.identity.authority import new_authority
from protos.identity.certificates import Role, fingerprint, pem_of
from protos.identity.identity import parse_identity
from protos.identity.requests import Request, key_pem, new_keys
from protos.identity.signing import check, signed_of
from protos.identity.tls import channel_credentials, channel_options
from protos.refusal import Reason, Refusal, refusal_of

DESCRIBE = party_pb2.DescribeRequest(nonce=b"n" * 32)


def issued(authority, name, role, **when):
    transport, signing = new_keys()
    bundle = authority.issue(Request(name, transport.public_key(), signing.public_key()), role, **when)
    return bundle, key_pem(transport, signing)


def identity_of(authority, name, role):
    bundle, keys = issued(authority, name, role)
    return parse_identity(bundle.pem(), keys, role=role)


@pytest.fixture(scope="module")
def authority():
    return new_authority("here")


@pytest.fixture
def table(authority, tmp_path):
    """Writes the files of an `[identity]` and returns the table."""

    def writes(name="north", **when):
        bundle, keys = issued(authority, name, Role.PARTY, **when)
        (tmp_path / "north.pem").write_bytes(bundle.pem())
        (tmp_path / "north.key").write_bytes(keys)
        (tmp_path / "north.key").chmod(0o600)
        (tmp_path / "revoked.pem").write_bytes(authority.revocation_list([]))
        return {
            "certificate": "north.pem",
            "key": "north.key",
            "authority": fingerprint(authority.certificate),
            "revoked": "revoked.pem",
        }

    return writes


@pytest.fixture(params=["listens", "dials"])
async def node(request, config, table, authority, tmp_path):
    """A node under mutual TLS, at a port of its own or behind the gate that it dials; `at` is where gRPC finds it."""
    if request.param == "listens":
        async with await start(config(identity=table()), base=tmp_path) as node:
            node.at = node.address
            yield node
        return
    coordinator = identity_of(authority, "coordinator.gate", Role.COORDINATOR)
    with opened_gate("127.0.0.1:0", ["north"], coordinator) as ways:
        dials = destination(ways["north"].gate.address, "none")
        async with await start(config(identity=table()), base=tmp_path, dials=dials) as node:
            assert await ways["north"].missing(10) is None
            node.at = ways["north"].address
            yield node


def channel(node, identity, name="north"):
    return grpc.aio.secure_channel(node.at, channel_credentials(identity), options=channel_options(name))


async def describe(channel):
    async with channel:
        return await PartyStub(channel).Describe(DESCRIBE, timeout=10)


async def test_its_coordinator_is_answered_and_told_who_answers(node, authority):
    answer = await describe(channel(node, identity_of(authority, "coordinator.here", Role.COORDINATOR)))
    said = check(
        signed_of(answer.identity),
        "conclave describe 1",
        authority=authority.certificate,
        role=Role.PARTY,
        name="north",
    )
    assert said["nonce"] == DESCRIBE.nonce.hex()


@pytest.mark.parametrize("length", [0, 15, 65])
async def test_a_nonce_of_another_length_is_not_signed(node, authority, length):
    async with channel(node, identity_of(authority, "coordinator.here", Role.COORDINATOR)) as secure:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await PartyStub(secure).Describe(party_pb2.DescribeRequest(nonce=b"n" * length), timeout=10)
    assert refusal_of(failure.value).reason == Reason.REQUEST


async def refused(channel):
    """How every verb and the health service turn this channel away."""
    found = set()
    async with channel:
        party, health = PartyStub(channel), health_pb2_grpc.HealthStub(channel)
        calls = (
            lambda: party.Describe(DESCRIBE, timeout=10),
            lambda: party.Join(party_pb2.JoinRequest(), timeout=10),
            lambda: party.Leave(party_pb2.LeaveRequest(), timeout=10),
            lambda: party.Attest(party_pb2.AttestRequest(), timeout=10),
            lambda: party.Provide(iter([party_pb2.ProvideRequest()]), timeout=10),
            lambda: party.Train(party_pb2.TrainRequest(), timeout=10).read(),
            lambda: party.Answer(iter([party_pb2.AnswerRequest()]), timeout=10).read(),
            lambda: health.Check(health_pb2.HealthCheckRequest(), timeout=10),
        )
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await call()
            refusal = refusal_of(failure.value)
            found.add((failure.value.code(), refusal and refusal.reason))
    return found


async def test_a_caller_without_a_certificate_gets_nothing(node, authority):
    roots = grpc.ssl_channel_credentials(pem_of(authority.certificate))
    assert await refused(grpc.aio.secure_channel(node.at, roots, options=channel_options("north"))) == {
        (grpc.StatusCode.UNAVAILABLE, None)
    }
    assert await refused(grpc.aio.insecure_channel(node.at)) == {(grpc.StatusCode.UNAVAILABLE, None)}


async def test_a_coordinator_of_another_federation_gets_nothing(node, authority):
    foreign = identity_of(new_authority("elsewhere"), "coordinator.here", Role.COORDINATOR)
    stranger = grpc.ssl_channel_credentials(
        pem_of(authority.certificate), foreign.transport_key, pem_of(foreign.transport)
    )
    assert await refused(grpc.aio.secure_channel(node.at, stranger, options=channel_options("north"))) == {
        (grpc.StatusCode.UNAVAILABLE, None)
    }


def test_a_certificate_that_tls_let_through_is_checked_against_the_authority_again(authority):
    own = identity_of(authority, "north", Role.PARTY)

    class Call:
        def __init__(self, end):
            self._shown = [pem_of(end.transport)]

        def invocation_metadata(self):
            return ()

        def auth_context(self):
            return {"x509_pem_cert": self._shown}

    check_caller("north", own, "", Call(identity_of(authority, "coordinator.here", Role.COORDINATOR)))
    foreign = identity_of(new_authority("elsewhere"), "coordinator.here", Role.COORDINATOR)
    with pytest.raises(Refusal, match="issued by another authority") as refusal:
        check_caller("north", own, "", Call(foreign))
    assert refusal.value.reason == Reason.AUTHENTICATION


async def test_another_party_of_the_federation_gets_nothing(node, authority):
    found = await refused(channel(node, identity_of(authority, "south", Role.PARTY)))
    assert found <= {
        (grpc.StatusCode.UNAVAILABLE, None), (grpc.StatusCode.UNAUTHENTICATED, Reason.AUTHENTICATION),
    }  # fmt: skip


async def test_a_revoked_coordinator_gets_nothing_from_the_next_call_on(node, authority, tmp_path):
    revoked = identity_of(authority, "coordinator.here", Role.COORDINATOR)
    async with channel(node, revoked) as open_already:
        await PartyStub(open_already).Describe(DESCRIBE, timeout=10)
        (tmp_path / "revoked.pem").write_bytes(authority.revocation_list([revoked.transport.serial_number]))
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await PartyStub(open_already).Describe(DESCRIBE, timeout=10)
        refusal = refusal_of(failure.value)
        assert refusal.reason == Reason.AUTHENTICATION
        assert "revoked" in refusal.sentence
        assert await refused(channel(node, revoked)) == {(grpc.StatusCode.UNAUTHENTICATED, Reason.AUTHENTICATION)}
    await describe(channel(node, identity_of(authority, "coordinator.new", Role.COORDINATOR)))


async def test_a_party_cannot_answer_under_anothers_name(node, authority):
    """The channel asks for south by its certificate, whatever the address; north's key does not open it."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await describe(channel(node, identity_of(authority, "coordinator.here", Role.COORDINATOR), "south"))
    assert failure.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_node_that_dials_has_no_port_and_its_socket_is_its_owners_alone(config, table, authority, tmp_path):
    coordinator = identity_of(authority, "coordinator.gate", Role.COORDINATOR)
    wanted = config(identity=table(), listen="203.0.113.7:1")  # of no machine here, and never asked for
    with opened_gate("127.0.0.1:0", ["north"], coordinator) as ways:
        dials = destination(ways["north"].gate.address, "none")
        async with await start(wanted, base=tmp_path, dials=dials) as node:
            assert await ways["north"].missing(10) is None
            (socket,) = [
                each for each in psutil.Process().net_connections("unix") if each.laddr.endswith("/node.sock")
            ][:1]
            assert Path(socket.laddr).parent.stat().st_mode & 0o077 == 0
            assert node.port == 0
    assert not Path(socket.laddr).parent.exists()


async def test_a_node_without_a_certificate_cannot_dial(config, tmp_path):
    simulated = config(folder="other", plaintext=True, policy={"simulation": True})
    with pytest.raises(PartyError, match="only a certificate shows its coordinator who dials"):
        await start(simulated, base=tmp_path, dials=destination("127.0.0.1:9", "none"))


async def test_plain_text_is_served_only_where_the_file_says_so(config, tmp_path):
    with pytest.raises(PartyError, match=r"has no \[identity\].*party enroll.*plaintext = true"):
        await start(config(), base=tmp_path)
    simulated = config(folder="other", plaintext=True, policy={"simulation": True})
    async with await start(simulated, base=tmp_path) as node, grpc.aio.insecure_channel(node.address) as plain:
        assert (await PartyStub(plain).Describe(DESCRIBE, timeout=10)).name == "north"
        assert not node.tls


HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda folder, table: (folder / "north.key").chmod(0o640), "chmod 600"),
        (lambda folder, table: (folder / "north.key").unlink(), "no such file"),
        (lambda folder, table: table.pop("authority"), r"authority is missing.*telephone"),
        (lambda folder, table: table.update(authority="SHA256:" + "0" * 64), "telephone which is right"),
        (lambda folder, table: (folder / "revoked.pem").write_text("nothing"), "not a list of revoked certificates"),
    ],
)
def test_an_identity_that_cannot_be_used_is_one_sentence(config, table, tmp_path, change, why):
    wanted = table()
    change(tmp_path, wanted)
    checked = config(identity=wanted)
    with pytest.raises(PartyError, match=why) as error:
        own_identity(checked, tmp_path / "north.party", tmp_path, "", None)
    assert "party north" in str(error.value)


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ({"not_before": datetime.now(UTC) + HOUR}, "not valid before|not valid until|valid from"),
        ({"not_before": datetime.now(UTC) - 48 * HOUR, "days": 1}, "expired"),
        ({"name": "south"}, "south"),
    ],
)
def test_certificates_that_do_not_hold_are_one_sentence(config, table, tmp_path, when, why):
    with pytest.raises(PartyError, match=why):
        own_identity(config(identity=table(**when)), tmp_path / "north.party", tmp_path, "", None)


async def test_what_a_run_cost_is_attested_under_the_partys_key(node, opened, authority, trains_here):
    caller = await opened(node=node)
    caller.channel, caller.stub = secure(node, authority)
    async with caller.channel:
        await caller.join()
        before = await caller.attest()
        await caller.provide()
        await caller.train()
        await caller.answer(caller.batch(0, 0, 3))
        after = await caller.attest()
    said = [
        check(signed_of(each.statement), "conclave attestation 1", authority=authority.certificate, role=Role.PARTY)
        for each in (before, after)
    ]
    assert said[0]["releases"] == []
    (release,) = said[1]["releases"]
    assert release["name"] == "counts"
    assert from_json(release["event"]).noise_multiplier > 0
    assert said[1]["run"] == caller.run.run_id
    assert said[1]["plan_hash"] == caller.run.plan_hash.hex()
    assert (said[1]["unit"], said[1]["record"]) == ("record", "document")
    assert not {"lineage", "spent", "left", "epsilon", "shard"} & set(said[1]), "of the ledger nothing else leaves"
    assert "north" in json.dumps(said[1])


def secure(node, authority):
    made = channel(node, identity_of(authority, "coordinator.here", Role.COORDINATOR))
    return made, PartyStub(made)


async def test_a_run_that_is_not_joined_is_not_attested(opened):
    caller = await opened()
    with pytest.raises(Refusal) as refusal:
        await caller.attest()
    assert refusal.value.reason == Reason.NOT_JOINED


async def test_asking_whether_it_would_join_binds_and_keeps_nothing(opened, tmp_path):
    caller = await opened()
    needs = party_pb2.Needs(memory_bytes=1, disk_bytes=1)
    await caller.join(check_only=True, needs=needs)
    with pytest.raises(Refusal) as refusal:
        await caller.attest()
    assert refusal.value.reason == Reason.NOT_JOINED
    assert list((tmp_path / "north.party/runs").iterdir()) == []
    with pytest.raises(Refusal) as refusal:
        await caller.join(check_only=True, needs=party_pb2.Needs(memory_bytes=2**60, disk_bytes=1))
    assert refusal.value.reason == Reason.STORAGE
