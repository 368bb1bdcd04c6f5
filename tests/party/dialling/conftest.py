"""Gates, proxies and other programs that a party may dial."""

import asyncio
import base64
import contextlib
import ssl
import tempfile

import pytest

from protos.dialling.sockets import socket_folder
from protos.identity.authority import new_authority
from protos.identity.certificates import Role, pem_of
from protos.identity.identity import parse_identity
from protos.identity.requests import Request, key_pem, new_keys


def identity_of(authority, name, role=Role.PARTY):
    transport, signing = new_keys()
    bundle = authority.issue(Request(name, transport.public_key(), signing.public_key()), role)
    return parse_identity(bundle.pem(), key_pem(transport, signing), role=role)


@pytest.fixture(scope="session")
def identities():
    """One federation's north, and its coordinator; `of` makes others."""

    class Identities:
        authority = new_authority("here")
        north = identity_of(authority, "north")
        coordinator = identity_of(authority, "coordinator.here", Role.COORDINATOR)

        def of(self, name, role=Role.PARTY, authority=None):
            return identity_of(authority or self.authority, name, role)

    return Identities()


@pytest.fixture
async def listens():
    """`await listens(talk, tls)`: a server that talks with `talk(reader, writer)`; its address."""
    servers, tasks = [], set()

    async def listen(talk, tls=None):
        async def taken(reader, writer):
            tasks.add(asyncio.current_task())
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await talk(reader, writer)
            writer.close()

        server = await asyncio.start_server(taken, "127.0.0.1", 0, ssl=tls)
        servers.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    yield listen
    for server in servers:
        server.close()
    for task in tasks:
        task.cancel()


@pytest.fixture
def shows():
    """`shows(identity)`: TLS under this identity's certificate."""

    def context(identity):
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile() as file:
            file.write(identity.transport_key + pem_of(identity.transport))
            file.flush()
            made.load_cert_chain(file.name)
        return made

    return context


@pytest.fixture
def folder():
    with socket_folder() as made:
        yield made


class HttpProxy:
    """An HTTP proxy that knows CONNECT.

    password: "user:password" that it wants, if any. answers: bytes in place of an answer; None to say nothing, ever.
    """

    def __init__(self, password="", answers=b""):
        self.password = password
        self.answers = answers
        self.asked = []
        self.open = []

    async def talk(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.asked.append(head)
        if self.answers is None:
            await asyncio.sleep(60)
        if self.answers:
            writer.write(self.answers)
            await writer.drain()
            return
        wanted = f"Proxy-Authorization: Basic {base64.b64encode(self.password.encode()).decode()}"
        if self.password and wanted not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n")
            await writer.drain()
            return
        host, _, port = head[0].split(" ")[1].rpartition(":")
        try:
            beyond, back = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            await writer.drain()
            return
        self.open += [writer, back]
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(self._carry(reader, back), self._carry(beyond, writer))

    async def _carry(self, reader, writer):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
        writer.close()

    def cut(self):
        """Reset everything that is open."""
        for writer in self.open:
            writer.transport.abort()
        self.open.clear()


@pytest.fixture
def http_proxy():
    return HttpProxy
