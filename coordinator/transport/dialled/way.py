"""The way from a link to a party that dials: the gate on a thread of its own, and one party's place at it."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from coordinator.transport.dialled.gate import Gate
from protos.dialling.sockets import socket_folder
from protos.dialling.thread import LoopThread
from protos.identity.identity import Identity

THE_END: Final = "the end of its dialled connection"


@dataclass(frozen=True, slots=True)
class DialledWay:
    """How a link reaches one party that dials. gate, thread: of the open gate."""

    name: str
    gate: Gate
    thread: LoopThread

    @property
    def address(self) -> str:
        """Where gRPC connects to: a socket of this machine, whose connections go to the party."""
        return f"unix:{self.gate.places[self.name].path}"

    @property
    def shown(self) -> str:
        """What sentences name in place of an address."""
        return THE_END

    async def missing(self, within: float) -> str | None:
        """Wait up to so many seconds for the party. None where it has a connection, else why it has none."""
        if await self.thread.done(self.gate.places[self.name].here(within)):
            return None
        return self.gate.absent(self.name)


@contextlib.contextmanager
def opened_gate(listen: str, names: Iterable[str], identity: Identity) -> Iterator[Mapping[str, DialledWay]]:
    """A gate that is open while the context is; the way to each party that dials, by name.

    listen: host and port. identity: the coordinator's. Raises `RunError` where the address cannot be had.
    """
    with socket_folder() as folder, LoopThread("gate") as thread:
        gate = Gate(listen, names, identity, folder)
        try:
            thread.run(gate.open())
            yield {name: DialledWay(name, gate, thread) for name in gate.places}
        finally:
            thread.run(gate.close())
