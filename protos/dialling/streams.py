"""The two ends of a connection as streams with small buffers, the life of one that waits, and a pipe between two."""

import asyncio
import contextlib
import socket
import ssl
import time
from typing import Final

from protos.dialling.frames import BUFFER, DEAD_SECONDS, PING_SECONDS, Garbled, Kind, frame, read

CLOSING_SECONDS: Final = 2.0
MOST_PINGS: Final = 100
"""The most frames of the keep-alive that a waiting connection may bring, and one more for each second."""


class Stream:
    """One connection: a reader and a writer, closed together."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.heard = time.monotonic()
        self.quiet = False
        self._idle = 0
        self._since = self.heard

    async def say(self, message: bytes) -> None:
        """Send a frame."""
        self.writer.write(message)
        await self.writer.drain()

    async def next(self) -> tuple[Kind, bytes]:
        """The next frame that is none of the keep-alive, which is answered here.

        Once `quiet` is set nothing more is answered: the other end takes what comes for raw bytes. Raises TimeoutError
        when nothing was heard for too long; `Garbled`, also for more pings than any end sends, which would keep this
        one from all else; OSError and EOFError.
        """
        while True:
            async with asyncio.timeout(DEAD_SECONDS):
                kind, content = await read(self.reader)
                self.heard = time.monotonic()
                if kind not in (Kind.PING, Kind.PONG):
                    return kind, content
                self._idle += 1
                if self._idle > MOST_PINGS + self.heard - self._since:
                    raise Garbled
                if kind is Kind.PING and not self.quiet:
                    await self.say(frame(Kind.PONG))

    async def ping(self) -> None:
        """Ping now and then, for as long as this is not cancelled."""
        while True:
            await asyncio.sleep(PING_SECONDS)
            with contextlib.suppress(OSError):
                await self.say(frame(Kind.PING))

    def close(self) -> None:
        """Close at once, whatever was not sent yet. Idempotent."""
        self.writer.transport.abort()


async def taken(accepted: socket.socket, context: ssl.SSLContext, within: float) -> Stream:
    """A stream over an accepted connection, once its TLS handshake is done; it owns the socket. Raises OSError."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=BUFFER, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol,
        accepted,
        ssl=context,
        ssl_handshake_timeout=within,
        ssl_shutdown_timeout=CLOSING_SECONDS,
    )
    return Stream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


async def connected(raw: socket.socket, context: ssl.SSLContext, host: str, within: float) -> Stream:
    """A stream over a connection that we made, once its TLS handshake is done; it owns the socket. Raises OSError."""
    reader, writer = await asyncio.open_connection(
        sock=raw,
        ssl=context,
        server_hostname=host,
        limit=BUFFER,
        ssl_handshake_timeout=within,
        ssl_shutdown_timeout=CLOSING_SECONDS,
    )
    return Stream(reader, writer)


async def pipe(one: Stream, other: Stream) -> None:
    """Carry bytes both ways until either end closes, then close both. Holds a few buffers, whatever is sent."""
    ways = [asyncio.ensure_future(_carry(one, other)), asyncio.ensure_future(_carry(other, one))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        await asyncio.gather(hung_up(one), hung_up(other))


async def _carry(source: Stream, sink: Stream) -> None:
    with contextlib.suppress(OSError):
        while data := await source.reader.read(BUFFER):
            sink.writer.write(data)
            await sink.writer.drain()


async def hung_up(end: Stream) -> None:
    """Close one end after what was written to it, at once where it takes nothing."""
    try:
        end.writer.close()
        async with asyncio.timeout(CLOSING_SECONDS):
            await end.writer.wait_closed()
    except OSError:  # of which TimeoutError is one
        pass
    finally:
        end.close()
