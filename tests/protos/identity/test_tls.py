"""Mutual TLS over real sockets: who gets through, and whom a server finds at the other end."""

import grpc
import pytest

from protos.conclave.v1 import party_pb2
from protos.conclave.v1.party_pb2_grpc import PartyServicer, PartyStub, add_PartyServicer_to_server
from protos.identity.certificates import Role, Use, fingerprint, pem_of, subject_of
from protos.identity.identity import self_made
from protos.identity.tls import caller, channel_credentials, channel_options, server_credentials
from protos.identity.validity import check_certificate


class Listening(PartyServicer):
    def __init__(self):
        self.callers = []

    async def Describe(self, request, context):  # noqa: N802 - grpc's name
        self.callers.append(caller(context))
        return party_pb2.DescribeResponse(name="north")


@pytest.fixture
async def served():
    """`await served(identity)`: a server under this identity, in plain text with None; its servicer and its port."""
    servers = []

    async def serves(identity):
        server = grpc.aio.server()
        servicer = Listening()
        add_PartyServicer_to_server(servicer, server)
        if identity is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            port = server.add_secure_port("127.0.0.1:0", server_credentials(identity))
        await server.start()
        servers.append(server)
        return servicer, port

    yield serves
    for server in servers:
        await server.stop(0)


async def describe(port, identity, name="north", credentials=None):
    address = f"127.0.0.1:{port}"
    credentials = credentials or channel_credentials(identity)
    async with grpc.aio.secure_channel(address, credentials, options=channel_options(name)) as channel:
        return await PartyStub(channel).Describe(party_pb2.DescribeRequest(), timeout=5)


async def unreachable(*asked, **more):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await describe(*asked, **more)
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_both_ends_know_each_other_at_any_address(served, party, coordinator, authority):
    servicer, port = await served(party("north"))
    own = coordinator()
    assert (await describe(port, own)).name == "north"
    (found,) = servicer.callers
    assert fingerprint(found) == fingerprint(own.transport)
    assert subject_of(found) == (Role.COORDINATOR, "coordinator.example", Use.TRANSPORT)
    check_certificate(found, authority=authority.certificate, role=Role.COORDINATOR, use=Use.TRANSPORT)


async def test_a_client_without_a_certificate_gets_nothing(served, party, coordinator):
    servicer, port = await served(party("north"))
    bare = grpc.ssl_channel_credentials(root_certificates=pem_of(coordinator().authority))
    await unreachable(port, None, credentials=bare)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await PartyStub(channel).Describe(party_pb2.DescribeRequest(), timeout=5)
    assert servicer.callers == []


async def test_neither_another_authoritys_client_nor_a_party_nor_a_self_made_one_gets_through(
    served, party, coordinator, stranger
):
    servicer, port = await served(party("north"))
    own = coordinator()
    for outsider in (
        coordinator(by=stranger),
        party("south"),
        self_made("coordinator.example", Role.COORDINATOR, None),
    ):
        pair = {"private_key": outsider.transport_key, "certificate_chain": pem_of(outsider.transport)}
        await unreachable(port, None, credentials=grpc.ssl_channel_credentials(pem_of(own.authority), **pair))
    assert servicer.callers == []


async def test_a_party_cannot_answer_under_anothers_name(served, party, coordinator):
    _, port = await served(party("south"))
    await unreachable(port, coordinator(), "north")
    assert (await describe(port, coordinator(), "south")).name == "north", "the name is the certificate's to prove"


async def test_a_server_of_another_authority_or_with_a_coordinators_certificate_is_not_talked_to(
    served, party, coordinator, stranger
):
    for server in (party("north", by=stranger), coordinator()):
        servicer, port = await served(server)
        await unreachable(port, coordinator())
        assert servicer.callers == []


async def test_a_caller_in_plain_text_has_no_certificate(served):
    servicer, port = await served(None)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await PartyStub(channel).Describe(party_pb2.DescribeRequest(), timeout=5)
    assert servicer.callers == [None]
