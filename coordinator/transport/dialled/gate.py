"""The gate: it listens for parties that dial out, has each prove its name, and keeps their connections for the links.

A stranger costs it a bounded number of connections, each for a bounded time. What a party sends after it was let in is
not read here: bytes are carried between it and the coordinator's gRPC channel, which has mutual TLS of its own.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.errors import RunError
from coordinator.transport.dialled.places import Place, Taken, place_socket
from protos import software_version
from protos.dialling.frames import GREETING_SECONDS, VERSION, Garbled, Kind, expect, spoken
from protos.dialling.greeting import (
    Hello,
    about,
    apart,
    check_proof,
    gate_context,
    hello_of,
    new_challenge,
)
from protos.dialling.streams import Stream, hung_up, taken
from protos.identity.certificates import IdentityError
from protos.identity.identity import Identity

log = logging.getLogger("conclave.coordinator")

MOST_UNPROVEN: Final = 64
"""The most connections that have not proven a name; for one more the oldest of them is closed. An honest party needs a
few round trips, so that it is never the oldest unless that many come in that time.
"""
BACKLOG: Final = 256
RECENT: Final = 600.0
"""Seconds for which a stranger or a refusal is worth mentioning."""


@dataclass(frozen=True, slots=True)
class Written:
    """Where people write a gate's settings. address: its address. parties: who dials, to complete "is not one that
    dials". holder: what else may hold its port.
    """

    address: str
    parties: str
    holder: str


IN_PLAN: Final = Written(
    "[federation] listen", "in the plan that is run here. Give it dials = true in [federation] parties", "run or check"
)


class Turned(Exception):
    """A party is turned away. The message is a sentence for both ends."""


class Arrival:
    """A connection that was accepted. handed: whether asyncio has its socket, and closes it."""

    def __init__(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        self.socket = accepted
        self.handed = False
        self.peer = "an address that is gone"
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            found = accepted.getpeername()
            self.peer = f"{found[0]}:{found[1]}"

    def ended(self, task: "asyncio.Task[None]") -> None:
        """Its greeting ended, perhaps before it began."""
        if not self.handed:
            self.socket.close()


class Gate:
    """The parties that dial in. Everything but making one happens on one event loop.

    names: of the parties that dial. identity: the coordinator's. folder: private, for the sockets of links. written:
    where people write the address and the parties, to complete sentences.
    """

    def __init__(
        self, listen: str, names: Iterable[str], identity: Identity, folder: Path, written: Written = IN_PLAN
    ) -> None:
        self._listen = listen
        self._identity = identity
        self._written = written
        self.places: Mapping[str, Place] = {name: Place(name, place_socket(folder, name)) for name in sorted(names)}
        self._unproven: dict[asyncio.Task[None], None] = {}
        self._greeting: set[asyncio.Task[None]] = set()
        self._stranger: tuple[float, str] | None = None
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Host and port where the gate listens."""
        host, _, port = self._listen.rpartition(":")
        return f"{host}:{port if self._listening is None else self._listening.getsockname()[1]}"

    @property
    def unproven(self) -> int:
        """How many connections have not proven a name yet."""
        return len(self._unproven)

    async def open(self) -> None:
        """Listen. Raises `RunError` where the address cannot be had."""
        context = gate_context(self._identity)
        host, _, port = self._listen.rpartition(":")
        try:
            listening = _listener(host.removeprefix("[").removesuffix("]"), int(port))
        except (OSError, OverflowError) as error:
            raise RunError(_no_gate(self._listen, error, self._written), code="C305") from None
        self._listening = listening
        for place in self.places.values():
            await place.open()
        self._accepting = asyncio.create_task(self._accept(listening, context))

    async def close(self) -> None:
        """End everything."""
        tasks = [*self._greeting] if self._accepting is None else [self._accepting, *self._greeting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()
        for place in self.places.values():
            place.close()

    def absent(self, name: str) -> str:
        """Why a party has no connection here, to complete "party north was lost: ..."."""
        place, now = self.places[name], time.monotonic()
        said = f"it has not dialled in at {self.address} (`party serve --connect` there)"
        if place.left is not None:
            said = f"its connection to {self.address} ended {now - place.left:.0f} s ago, and it has not dialled again"
        looked = place.looked if place.looked is not None and now - place.looked < RECENT else None
        if place.refused is not None and now - place.refused[0] < RECENT and (looked or 0.0) < place.refused[0]:
            return f"{said}; {place.refused[1]}"
        if looked is not None:
            return f"{said}; its `party check` came through {now - looked:.0f} s ago, so the way is open: start it"
        if self._stranger is not None and now - self._stranger[0] < RECENT:
            return f"{said}; {self._stranger[1]}"
        return said

    async def _accept(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:  # the system has no more files, or the caller is gone
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    await asyncio.sleep(0.1)
                continue
            if len(self._unproven) >= MOST_UNPROVEN:
                oldest = next(iter(self._unproven))
                del self._unproven[oldest]
                oldest.cancel()
            arrival = Arrival(accepted)
            task = asyncio.create_task(self._greeted(arrival, context))
            self._unproven[task] = None
            self._greeting.add(task)
            task.add_done_callback(self._ended)
            task.add_done_callback(arrival.ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._greeting.discard(task)
        self._unproven.pop(task, None)

    async def _greeted(self, arrival: Arrival, context: ssl.SSLContext) -> None:
        """Greet a connection, and give it to its party's place or close it."""
        stream = None
        try:
            try:
                arrival.handed = True
                stream = await taken(arrival.socket, context, GREETING_SECONDS)
            except ssl.SSLError as error:
                self._strange(f"something at {arrival.peer} came there and {_no_tls(error)}")
                return
            async with asyncio.timeout(GREETING_SECONDS):
                await self._let_in(stream, arrival.peer)
            stream = None
        except Garbled:
            self._strange(f"something at {arrival.peer} came there and is no party of this version of Conclave")
        except (OSError, EOFError):
            return
        finally:
            if stream is not None:
                stream.close()

    async def _let_in(self, stream: Stream, peer: str) -> None:
        hello = hello_of((await expect(stream.reader, Kind.HELLO))[1])
        try:
            place = await self._proven(stream, hello)
            if hello.looks:  # still counted among the unproven, so that looking again and again takes no room of others
                place.looked = time.monotonic()
                await stream.say(spoken(Kind.WELCOME, connected=place.there, **about()))
                await hung_up(stream)
                return
            self._unproven.pop(_this_task(), None)
            await place.admit(stream, hello.process)
        except (Turned, Taken) as turned:
            self._refused(hello.name, peer, str(turned))
            await stream.say(spoken(Kind.REFUSED, why=str(turned), clock=time.time()))
            await hung_up(stream)
            raise EOFError from None
        log.info("party %s dialled in from %s", hello.name, peer, extra={"event": "dialled"})

    async def _proven(self, stream: Stream, hello: Hello) -> Place:
        """The place of the party that said hello, once it has proven its name. Raises `Turned`."""
        if hello.version != VERSION:
            theirs = f" (Conclave {hello.software})" if hello.software else ""
            raise Turned(
                f"the party dials by version {hello.version} of this protocol{theirs}, and the gate knows {VERSION} "
                f"(Conclave {software_version()}). Install the same Conclave at both ends."
            )
        try:
            if self._identity.revoked is not None:
                _ = self._identity.revoked.serials
        except IdentityError as error:  # the sentence has a path of this machine
            log.warning("the gate lets nobody in: %s", error, extra={"event": "refused"})
            raise Turned("the coordinator cannot read its list of revoked certificates, and lets nobody in.") from None
        challenge = new_challenge()
        await stream.say(spoken(Kind.CHALLENGE, challenge=challenge, clock=time.time()))
        fields = (await expect(stream.reader, Kind.PROOF))[1]
        try:
            check_proof(fields, hello, challenge, self._identity)
        except IdentityError as error:
            raise Turned(f"{error}{apart(hello.clock)}") from None
        place = self.places.get(hello.name)
        if place is None:
            raise Turned(f"party {hello.name} is not one that dials {self._written.parties}, or end it there.")
        return place

    def _refused(self, name: str, peer: str, why: str) -> None:
        said = f"what came from {peer} as {name} was turned away: {why.rstrip('.')}"
        if (place := self.places.get(name)) is not None:
            place.refused = (time.monotonic(), said)
        else:
            self._strange(said)

    def _strange(self, said: str) -> None:
        self._stranger = (time.monotonic(), said)


def _this_task() -> "asyncio.Task[None]":
    task = asyncio.current_task()
    assert task is not None
    return task


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _no_gate(listen: str, error: Exception, written: Written) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return (
            f"the gate for parties that dial cannot listen on {listen}: the port is in use. Another {written.holder} "
            f"of this coordinator may hold it: wait for its end, or set another port in {written.address}."
        )
    why = (getattr(error, "strerror", None) or str(error)).lower()
    return (
        f"the gate for parties that dial cannot listen on {listen}: {why}. Name an address of this machine in "
        f'{written.address}, or "0.0.0.0:PORT" for all of them.'
    )


def _no_tls(error: ssl.SSLError) -> str:
    if "ALERT" in (error.reason or ""):
        return "ended the TLS handshake"
    return "did not speak TLS 1.3: it is another program, or a party in plain text"
