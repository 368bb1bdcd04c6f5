"""A TCP proxy on loopback that can be told, while it runs, to delay, throttle, corrupt, cut, half close, or swallow."""

import asyncio
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field

PIECE = 16 * 1024


@dataclass
class _Fault:
    """What is done to bytes. left: how many are still to come from the target before the next of `times` strikes."""

    kind: str = "pass"
    seconds: float = 0.0
    rate: float = 0.0
    after: int = 0
    left: int = 0
    times: int = 0
    towards: str = ""


@dataclass(eq=False)
class _Connection:
    """Both halves of one proxied connection."""

    client: asyncio.StreamWriter
    target: asyncio.StreamWriter
    closed: set[str] = field(default_factory=set)


class Proxy:
    """Listens on a port of its own and passes to another, on a thread of its own; a context manager.

    A switch holds for open connections too. `struck` counts the cuts, half-closes and changed bytes there were,
    `connections` those that were taken, `bytes` what came from the target.
    """

    def __init__(self, port, listen=0):
        self._target = port
        self._listen = listen
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._fault = _Fault()
        self._open = set()
        self.port = 0
        self.struck = 0
        self.connections = 0
        self.bytes = 0

    @property
    def address(self):
        """Host and port to connect to."""
        return f"127.0.0.1:{self.port}"

    def passing(self):
        """Pass everything on at once, and whatever was held back."""
        self._switch(_Fault())

    def delay(self, seconds):
        """Hold every piece back for so long, both ways."""
        self._switch(_Fault("delay", seconds=seconds))

    def throttle(self, rate):
        """Pass so many bytes a second, of each half of each connection."""
        self._switch(_Fault("throttle", rate=rate))

    def corrupt(self, after=0, times=1):
        """Change one byte when so many have come from the target; so often, counted anew each time."""
        self._switch(_Fault("corrupt", after=after, left=after, times=times))

    def cut(self, after=0, times=1):
        """Reset all connections once so many more bytes have come from the target; so often, counted anew each time."""
        self._switch(_Fault("cut", after=after, left=after, times=times))

    def half_close(self, after=0, towards="client"):
        """End one half of all connections, `client` or `target`, once so many more bytes have come from the target.

        That side sees an orderly end; the other is told nothing, and what it still sends is taken and thrown away.
        Connections made later pass.
        """
        self._switch(_Fault("half-close", after=after, left=after, times=1, towards=towards))

    def black_hole(self):
        """Pass nothing on and say nothing. What was swallowed comes when it passes again, as TCP would send it anew."""
        self._switch(_Fault("black-hole"))

    def __enter__(self):
        self._thread.start()
        self._wait(self._begin())
        return self

    def __exit__(self, *exception):
        self._wait(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def _switch(self, fault):
        async def switch():
            self._fault = fault
            self._changed.set()
            self._changed = asyncio.Event()
            if fault.kind in ("cut", "half-close") and fault.after <= 0:
                self._strike(fault)

        self._wait(switch())

    async def _begin(self):
        self._changed = asyncio.Event()
        self._server = await asyncio.start_server(self._take, "127.0.0.1", self._listen)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self):
        self._server.close()
        for connection in list(self._open):
            _reset(connection)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, reader, writer):
        self.connections += 1
        try:
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(writer, target_writer)
        self._open.add(connection)
        try:
            await asyncio.gather(
                self._pump(reader, connection, "target"), self._pump(target_reader, connection, "client")
            )
        finally:
            self._open.discard(connection)
            for each in (writer, target_writer):
                each.close()

    async def _pump(self, reader, connection, towards):
        """Pass pieces on until either side ends."""
        writer = connection.target if towards == "target" else connection.client
        with suppress(OSError):
            while piece := await reader.read(PIECE):
                await self._held_back(len(piece))
                if towards == "client":
                    piece = self._count(piece)
                if towards in connection.closed:
                    continue
                writer.write(piece)
                await writer.drain()
            if towards not in connection.closed:
                connection.closed.add(towards)
                writer.write_eof()

    async def _held_back(self, size):
        if self._fault.kind == "delay":
            await asyncio.sleep(self._fault.seconds)
        if self._fault.kind == "throttle":
            await asyncio.sleep(size / self._fault.rate)
        while self._fault.kind == "black-hole":
            await self._changed.wait()

    def _count(self, piece):
        """Count a piece from the target, and strike where it is time to; the piece to pass on."""
        size = len(piece)
        self.bytes += size
        fault = self._fault
        if fault.kind == "corrupt":
            return self._changed_in(piece, fault)
        if fault.kind in ("cut", "half-close") and fault.times:
            fault.left -= size
            if fault.left <= 0:
                self._strike(fault)
        return piece

    def _changed_in(self, piece, fault):
        changed, place = bytearray(piece), fault.left
        while fault.times and place < len(piece):
            changed[place] ^= 1 << (self.struck % 8)
            place += fault.after + 1
            fault.times -= 1
            self.struck += 1
        fault.left = place - len(piece)
        return bytes(changed)

    def _strike(self, fault):
        fault.times -= 1
        fault.left = fault.after
        self.struck += 1
        for connection in list(self._open):
            if fault.kind == "cut":
                _reset(connection)
            elif fault.towards not in connection.closed:
                connection.closed.add(fault.towards)
                (connection.client if fault.towards == "client" else connection.target).write_eof()


def _reset(connection):
    """End both halves without a goodbye: each side sees a reset."""
    for writer in (connection.client, connection.target):
        with suppress(OSError):  # it may have closed just now
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    connection.closed.update(("client", "target"))
