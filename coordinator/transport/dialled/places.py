"""One party's place at the gate: its connections that wait, those that are in use, and the process that made them."""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from protos.dialling.frames import BUFFER, READY_SECONDS, Garbled, Kind, frame, spoken
from protos.dialling.greeting import about
from protos.dialling.streams import Stream, pipe

MOST_ACTIVE: Final = 2
"""The most connections of a party that carry bytes: a link has one, and one more when it makes a connection anew. For
one more the oldest is closed: gRPC keeps the connection of a channel that was closed until memory is collected.
"""
MOST_WAITING: Final = 2
"""The most connections of a party that wait: one, and one that may have died unnoticed."""
MOST_ARRIVING: Final = 4
"""The most proven connections of a party that are about to be taken."""
TAKE_SECONDS: Final = 10.0
"""Seconds that a link's connection waits for one that the party dialled."""
ALIVE_SECONDS: Final = 3.0
"""Seconds in which a party's process must show that it lives, where another process comes under its name."""
REPLACING_SECONDS: Final = 2.0
"""Seconds in which a process whose connections are all in use dials the next one."""


def place_socket(folder: Path, name: str) -> Path:
    """The socket of a party's place at a gate with this folder: the same for the same party, and short for any name."""
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()[:12]}.sock"


class Taken(Exception):
    """Another process of this party is there and lives. The message is a sentence."""


class Waiting:
    """A connection that a party dialled and that waits to be used. closed: is told when it ends unused."""

    def __init__(self, stream: Stream, closed: Callable[["Waiting"], None]) -> None:
        self.stream = stream
        self._closed = closed
        self._going = False
        self._ready = False
        self._ping = asyncio.create_task(stream.ping())
        self._keep = asyncio.create_task(self._kept())

    async def _kept(self) -> None:
        try:
            kind, _ = await self.stream.next()
            if kind is not Kind.READY or not self._going:
                raise Garbled
            self._ready = True
        except (OSError, EOFError, Garbled):
            self.close()
        finally:
            self._ping.cancel()

    async def go(self) -> Stream | None:
        """Tell the party that this connection is wanted; the raw stream, None where it does not answer in time."""
        self._ping.cancel()
        self._going = self.stream.quiet = True
        try:
            self.stream.writer.write(frame(Kind.GO))
            await asyncio.wait({self._keep}, timeout=READY_SECONDS)
        finally:
            if not self._ready:
                self.close()
        return self.stream if self._ready else None

    async def lives(self, within: float) -> bool:
        """Whether the other end answers a ping in time."""
        asked = self.stream.heard
        with contextlib.suppress(OSError):
            async with asyncio.timeout(within):
                await self.stream.say(frame(Kind.PING))
                while not self._keep.done():
                    if self.stream.heard > asked:
                        return True
                    await asyncio.sleep(0.02)
        return False

    def close(self) -> None:
        """End it. Idempotent."""
        self._ping.cancel()
        self._keep.cancel()
        self.stream.close()
        self._closed(self)


class Place:
    """A party of the plan that dials. path: of the socket at which links ask for its connections.

    refused: what to say of the last that came under this name and was turned away, with the time. left: when its last
    connection ended. looked: when it last tried the way without staying.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.refused: tuple[float, str] | None = None
        self.left: float | None = None
        self.looked: float | None = None
        self._process = ""
        self._waiting: list[Waiting] = []
        self._active: list[Stream] = []
        self._arriving = self._taking = 0
        self._changed = asyncio.Event()
        self._admitting = asyncio.Lock()
        self._server: asyncio.Server | None = None

    @property
    def there(self) -> bool:
        """Whether the party has a connection here."""
        return bool(self._waiting or self._active)

    @property
    def connections(self) -> int:
        """How many connections of this party the gate holds."""
        return len(self._waiting) + len(self._active) + self._taking

    async def open(self) -> None:
        """Listen at the socket."""
        self._server = await asyncio.start_unix_server(self._asked, self.path, limit=BUFFER)

    def close(self) -> None:
        """End the socket and every connection of this party."""
        if self._server is not None:
            self._server.close()
        self._clear()

    def cut(self) -> None:
        """End every connection of this party that carries bytes, as a network may at any time."""
        for stream in self._active:
            stream.close()

    async def admit(self, stream: Stream, process: str) -> None:
        """Welcome a proven connection of this party. Raises `Taken` where another process of it is there and lives, and
        OSError.
        """
        if self._arriving >= MOST_ARRIVING:
            raise Taken(f"party {self.name} dials too often at once.")
        self._arriving += 1
        try:
            async with self._admitting:
                await self._admit(stream, process)
        finally:
            self._arriving -= 1

    async def _admit(self, stream: Stream, process: str) -> None:
        if process != self._process and self.there:
            if await self._lives():
                raise Taken(
                    f"another process of party {self.name} is connected to this gate and answers. One party is one "
                    "process: end the other."
                )
            self._clear()
        await stream.say(spoken(Kind.WELCOME, **about()))
        self._process = process
        self.left = self.refused = self.looked = None
        self._waiting.append(Waiting(stream, self._forget))
        if len(self._waiting) > MOST_WAITING:
            self._waiting[0].close()
        self._changed.set()

    async def here(self, within: float) -> bool:
        """Whether the party has a connection here, once it has one or the seconds are over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._until(lambda: self.there)
        return self.there

    async def _lives(self) -> bool:
        """Whether the process that is here still answers. One that lives keeps a connection waiting."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPLACING_SECONDS):
                await self._until(lambda: bool(self._waiting) or not self.there)
        for waiting in list(self._waiting):
            if await waiting.lives(ALIVE_SECONDS):
                return True
            waiting.close()
        return False

    async def _asked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A link connected: give it one of the party's connections."""
        local, remote = Stream(reader, writer), None
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TAKE_SECONDS):
                    remote = await self._take()
            if remote is not None:
                await pipe(local, remote)
        except asyncio.CancelledError:  # the gate closes; asyncio would log this as an error of the connection
            return
        finally:
            local.close()
            if remote is not None:
                remote.close()
                self._active.remove(remote)
                self._gone()

    async def _take(self) -> Stream:
        while True:
            await self._until(lambda: bool(self._waiting))
            newest = self._waiting.pop()
            self._taking += 1
            try:
                stream = await newest.go()
            finally:
                self._taking -= 1
            if stream is not None:
                self._active.append(stream)
                for oldest in self._active[:-MOST_ACTIVE]:
                    oldest.close()
                return stream

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def _forget(self, waiting: Waiting) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        self._gone()

    def _gone(self) -> None:
        if not self.there:
            self.left = time.monotonic()
        self._changed.set()

    def _clear(self) -> None:
        for waiting in list(self._waiting):
            waiting.close()
        self.cut()
