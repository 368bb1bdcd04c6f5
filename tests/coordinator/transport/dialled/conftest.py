"""A gate on a free port, the identities of a federation, and connections that say what a test wants."""

import asyncio
import dataclasses
import ssl
import time
from contextlib import asynccontextmanager

import pytest

from coordinator.transport.dialled.gate import Gate
from protos.dialling.frames import Kind, expect, spoken
from protos.dialling.greeting import check_gate, new_hello, new_process, party_context, prove
from protos.dialling.sockets import socket_folder
from protos.dialling.streams import Stream
from protos.identity.authority import new_authority
from protos.identity.certificates import Role
from protos.identity.identity import parse_identity
from protos.identity.requests import Request, key_pem, new_keys


def identity_of(authority, name, role=Role.PARTY, **when):
    """An identity that the authority issued; when: its dates, which need not be of today."""
    transport, signing = new_keys()
    request = Request(name, transport.public_key(), signing.public_key())
    own = parse_identity(authority.issue(request, role).pem(), key_pem(transport, signing), role=role)
    dated = authority.issue(request, role, **when)
    return dataclasses.replace(own, transport=dated.transport, signing=dated.signing)


@pytest.fixture(scope="session")
def identities():
    """`identities.of(name, ...)`, of one federation, and its coordinator's."""

    class Identities:
        authority = new_authority("here")
        coordinator = identity_of(authority, "coordinator.here", Role.COORDINATOR)

        def of(self, name, role=Role.PARTY, authority=None, **when):
            return identity_of(authority or self.authority, name, role, **when)

    return Identities()


@pytest.fixture
async def gate(identities):
    """A gate for north and south."""
    with socket_folder() as folder:
        made = Gate("127.0.0.1:0", ["north", "south"], identities.coordinator, folder)
        await made.open()
        try:
            yield made
        finally:
            await made.close()


class Dialled:
    """A test's own end of a dialled connection."""

    def __init__(self, identities, gate):
        self._identities = identities
        self._gate = gate
        self.process = new_process()

    async def connect(self, context=None):
        host, _, port = self._gate.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context or party_context())
        return Stream(reader, writer)

    async def greet(self, identity, *, name=None, process=None, change=lambda fields: fields, proof=None):
        """Greet as this identity; the stream and the gate's last word. change: of the proof's fields."""
        stream = await self.connect()
        gate = check_gate(
            stream.writer.get_extra_info("ssl_object").getpeercert(binary_form=True), self._identities.coordinator
        )
        await stream.say(spoken(Kind.HELLO, **new_hello(name or identity.name, process or self.process).fields()))
        _, said = await expect(stream.reader, Kind.CHALLENGE)
        assert abs(said["clock"] - time.time()) < 60
        fields = proof or prove(identity, said["challenge"], gate)
        await stream.say(spoken(Kind.PROOF, **change(fields)))
        kind, word = await expect(stream.reader, Kind.WELCOME, Kind.REFUSED)
        return stream, kind, word

    async def refused(self, identity, **how):
        """Why the gate turns this greeting away."""
        stream, kind, word = await self.greet(identity, **how)
        assert kind is Kind.REFUSED
        assert await asyncio.wait_for(stream.reader.read(), 5) == b""
        stream.close()
        return word["why"]

    @asynccontextmanager
    async def welcomed(self, identity, **how):
        """A connection that waits at the gate."""
        stream, kind, word = await self.greet(identity, **how)
        assert kind is Kind.WELCOME, word
        try:
            yield stream
        finally:
            stream.close()


@pytest.fixture
def dialled(identities, gate):
    return Dialled(identities, gate)


@pytest.fixture
def no_trust():
    """TLS that trusts any certificate and speaks at most version 1.2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context
