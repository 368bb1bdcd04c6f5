"""Keeps one connection waiting at the coordinator's gate, and carries those in use to the party's own gRPC server."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from party.dialling.destination import Destination
from party.dialling.reaching import Met, Unreached, reach
from protos import PROTOCOL_VERSION, software_version
from protos.dialling.frames import BUFFER, Garbled, Kind, frame
from protos.dialling.greeting import new_process
from protos.dialling.streams import Stream, pipe
from protos.dialling.thread import LoopThread
from protos.identity.identity import Identity

log = logging.getLogger("conclave.party")

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 30.0
"""Seconds between two tries, from the first failure on and at most."""
MOST_ACTIVE: Final = 4
"""The most connections that are in use, whatever the gate asks for. A gate uses two; two more may be about to end."""
SETTLED: Final = 5.0
"""A connection that waited so many seconds, or was used, ends a row of failures."""
BURST: Final = 20.0
RATE: Final = 10.0
"""So many connections are dialled one upon the other, then so many a second."""
AGAIN: Final = 600.0
"""Seconds after which the same trouble is logged again."""


class Dialler:
    """Dials the gate again and again.

    local: the socket of the party's own gRPC server. pauses: seconds to wait, by the number of failures in a row.
    """

    def __init__(
        self,
        destination: Destination,
        identity: Identity,
        local: Path,
        *,
        pauses: Callable[[int], float] | None = None,
    ) -> None:
        self.destination = destination
        self.active = 0
        self.dialled = 0
        self.trouble = ""
        self._identity = identity
        self._local = local
        self._pauses = pauses or pause
        self._process = new_process()
        self._pipes: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._said = 0.0
        self._tokens, self._filled = BURST, time.monotonic()

    async def run(self) -> None:
        """Keep a connection waiting until this is cancelled."""
        failures = 0
        try:
            while True:
                await self._may_dial()
                since = time.monotonic()
                try:
                    used = await self._used(*await reach(self.destination, self._identity, self._process))
                except Unreached as error:
                    used, why = False, str(error)
                except Exception:  # whatever a gate sends, the party goes on dialling
                    log.exception("dialling %s failed", self.destination)
                    used, why = False, f"dialling {self.destination} failed; the lines above say how."
                else:
                    why = f"the gate at {self.destination} ended the connection."
                    if used or time.monotonic() - since > SETTLED:
                        failures = 0
                if not used:
                    failures += 1
                    seconds = self._pauses(failures)
                    self._troubled(why)
                    await asyncio.sleep(seconds)
        finally:
            pipes = list(self._pipes)
            for each in pipes:
                each.cancel()
            await asyncio.gather(*pipes, return_exceptions=True)

    async def _used(self, stream: Stream, met: Met) -> bool:
        """Wait with a connection until the gate wants it, and carry it from then on. False where it ended before."""
        self._welcomed(met)
        ends, ping = [stream], asyncio.create_task(stream.ping())
        try:
            kind, _ = await stream.next()
            if kind is not Kind.GO:
                return False
            ping.cancel()
            local = Stream(*await asyncio.open_unix_connection(self._local, limit=BUFFER))
            ends.append(local)
            await stream.say(frame(Kind.READY))
            ends.clear()
        except (OSError, EOFError, Garbled):
            return False
        finally:
            ping.cancel()
            for end in ends:
                end.close()
        self.active += 1
        carrying = asyncio.create_task(self._carried(stream, local))
        self._pipes.add(carrying)
        carrying.add_done_callback(self._pipes.discard)
        return True

    async def _carried(self, stream: Stream, local: Stream) -> None:
        try:
            await pipe(stream, local)
        finally:
            stream.close()
            local.close()
            self.active -= 1
            self._room.set()

    async def _may_dial(self) -> None:
        """Wait until there is room for one more connection, and until it is not dialled too fast."""
        while self.active >= MOST_ACTIVE:
            self._room.clear()
            await self._room.wait()
        now = time.monotonic()
        self._tokens = min(BURST, self._tokens + (now - self._filled) * RATE) - 1
        self._filled = now
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / RATE)

    def _welcomed(self, met: Met) -> None:
        if self.trouble or not self.dialled:
            log.info("dialled in at %s", self.destination, extra={"event": "dialled"})
            if met.protocol not in (0, PROTOCOL_VERSION):
                log.warning(
                    "the coordinator at %s runs Conclave %s, protocol %d; this party runs %s, protocol %d, and can "
                    "take part in none of its runs. Install the same version at both ends.",
                    self.destination, met.software, met.protocol, software_version(), PROTOCOL_VERSION,
                    extra={"event": "other-version"},
                )  # fmt: skip
        self.trouble = ""
        self.dialled += 1

    def _troubled(self, sentence: str) -> None:
        """Log a trouble, unless it is the one that was logged last and not long ago."""
        if sentence == self.trouble and time.monotonic() - self._said < AGAIN:
            return
        self.trouble, self._said = sentence, time.monotonic()
        log.warning("%s Dialling again, at most %g s apart.", sentence, LONGEST_PAUSE, extra={"event": "not-dialled"})


def pause(failures: int) -> float:
    """Seconds to wait after so many failures in a row: doubled each time, with jitter."""
    most = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 16))
    return random.uniform(most / 2, most)


@contextlib.contextmanager
def dialling(destination: Destination, identity: Identity, local: Path) -> Iterator[Dialler]:
    """Dial on a thread of its own while the context is open."""
    with LoopThread("dialling") as thread:
        dialler = Dialler(destination, identity, local)
        thread.start(dialler.run())
        yield dialler
