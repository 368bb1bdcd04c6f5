"""A gate that stands open for many runs: `coordinator serve` holds it, and each run's own process goes through it.

The gate's folder has a socket for every party, to which a run's links connect, and one more at which a run asks whether
a party is there. Only the folder's owner can enter it, and the channel's mutual TLS goes through, from the run to the
party: whoever holds the gate carries bytes.
"""

import asyncio
import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.errors import RunError
from coordinator.transport.dialled.gate import Gate
from coordinator.transport.dialled.places import place_socket
from coordinator.transport.dialled.way import THE_END
from protos.refusal import printable

SCHEME: Final = "unix:"
"""`[federation] listen = "unix:FOLDER"` names a standing gate by its folder."""
ASKING: Final = "gate.sock"
LONGEST: Final = 16 * 1024
"""The most bytes of a question, or of an answer."""
LONGEST_FOLDER: Final = 85
"""The most bytes of a standing gate's folder: systems allow 103 to 107 for the whole path of a socket."""
LONGEST_WAIT: Final = 120.0
AGAIN_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class StandingWay:
    """The way to a party that dials a standing gate. folder: the gate's."""

    name: str
    folder: Path

    @property
    def address(self) -> str:
        """Where gRPC connects to: the socket of the party's place."""
        return f"{SCHEME}{place_socket(self.folder, self.name)}"

    @property
    def shown(self) -> str:
        """What sentences name in place of an address."""
        return THE_END

    async def missing(self, within: float) -> str | None:
        """Wait up to so many seconds for the party. None where it has a connection, else why it has none."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within
        while True:
            try:
                async with asyncio.timeout(within + 5.0):
                    return await self._asked(max(0.0, until - loop.time()))
            except (OSError, EOFError, ValueError):
                if loop.time() >= until:
                    return f"the coordinator's gate in {self.folder} does not answer (`coordinator serve` holds it)"
                await asyncio.sleep(AGAIN_SECONDS)

    async def _asked(self, within: float) -> str | None:
        reader, writer = await asyncio.open_unix_connection(self.folder / ASKING, limit=LONGEST)
        try:
            writer.write(json.dumps({"party": self.name, "within": within}).encode() + b"\n")
            await writer.drain()
            said = json.loads(await reader.readline())
            return None if said["missing"] is None else printable(str(said["missing"]))
        except (KeyError, TypeError, json.JSONDecodeError):
            raise EOFError from None
        finally:
            writer.close()


def standing_folder(listen: str) -> Path | None:
    """The folder of the standing gate that `[federation] listen` names; None where it is a host and a port."""
    return Path(listen.removeprefix(SCHEME)) if listen.startswith(SCHEME) else None


def check_standing_folder(folder: Path) -> None:
    """Raises `RunError` for a folder whose sockets no system could name."""
    if len(bytes(folder)) > LONGEST_FOLDER:
        raise RunError(
            f"{folder} is too long for the sockets in it: {LONGEST_FOLDER} bytes at most. Name another folder in "
            "[gate] sockets, for example /run/conclave.",
            code="C302",
        )


async def answering(gate: Gate, folder: Path) -> asyncio.Server:
    """Answer runs that ask whether a party is at the gate, on the loop of the gate. Returns the server, to be
    closed.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            asked = json.loads(await reader.readline())
            name, within = str(asked["party"]), min(float(asked["within"]), LONGEST_WAIT)
            missing: str | None = "it is not one that dials this coordinator"
            if name in gate.places:
                missing = None if await gate.places[name].here(within) else gate.absent(name)
            writer.write(json.dumps({"missing": missing}).encode() + b"\n")
            await writer.drain()
        writer.close()

    return await asyncio.start_unix_server(answer, folder / ASKING, limit=LONGEST)
