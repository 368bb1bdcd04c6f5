"""The Ray actor that runs one party's node: the same node as `party serve`, started by a launcher.

A Ray cluster is one trust domain: whoever reaches its ports can run code in it. No guarantee is claimed between the
parties of such a run.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aggregation.errors import ConclaveError
from party.config import check_config
from party.ledger.database import FILE
from party.store.memory import keep_private
from protos.console.settings import SettingsError
from protos.identity.requests import key_pem, make_request, new_keys

if TYPE_CHECKING:
    from party.node.lifecycle import ServedNode

_NODE: Final = "party.node.lifecycle"


@dataclass(frozen=True, slots=True)
class Begin:
    """What a launcher starts a party with.

    tables: those of a party file; name, folder and listen are set here. folder: for the party's files, absolute. base:
    the folder against which relative sources are resolved. bundle: the certificates (PEM) issued for the request of
    `PartyActor.request`. token: what callers must show; without one they use mutual TLS. host: where to listen, the
    machine's own address if empty. port: 0 for any free one. before: the machine on which the party ran earlier in this
    run, empty for none. nursery: the socket of a process on this machine that forks training processes, empty for none.
    """

    name: str
    tables: Mapping[str, Any]
    folder: str
    base: str
    bundle: bytes
    token: str = ""
    host: str = ""
    port: int = 0
    before: str = ""
    nursery: str = ""


class PartyActor:
    """One party. It reserves no processor of Ray: it mostly waits, and its training is a process of its own."""

    def __init__(self) -> None:
        keep_private()
        self._node: ServedNode | None = None
        self._keys = new_keys()

    async def prepare(self) -> None:
        """Import the node, which takes a second, while nobody waits for it."""
        await asyncio.to_thread(__import__, _NODE)

    async def request(self, name: str) -> tuple[bytes, str]:
        """The party's certificate request, PEM, and its machine's address; the private keys stay here."""
        import ray

        return make_request(name, *self._keys), ray.util.get_node_ip_address()

    async def start(self, begin: Begin) -> tuple[str, str]:
        """Start the node; returns its address and "", or "" and the reason why it did not start.

        A party that ran before and finds none of its files here does not start: it would not know what it has spent.
        """
        import ray

        machine = ray.util.get_node_ip_address()
        host = begin.host or machine
        listen = f"[{host}]:{begin.port}" if ":" in host else f"{host}:{begin.port}"
        own = {"name": begin.name, "listen": listen, "folder": begin.folder}
        if begin.before and not (Path(begin.folder) / FILE).exists():
            return "", (
                f"it ran on {begin.before} before and runs on {machine} now, where {begin.folder} has nothing of it. "
                "Have that machine back, or bring the folder here; a folder that all machines share comes along by "
                "itself ([federation.cluster] folder)."
            )
        try:
            config = check_config({**begin.tables, **own}, f"party {begin.name}")
            node = await _started(config, begin, (begin.bundle, key_pem(*self._keys)))
        except (ConclaveError, SettingsError) as error:
            return "", str(error)
        except OSError as error:
            return "", f"{error.filename or begin.folder}: {error.strerror}."
        self._node = node
        return node.address, ""

    async def stop(self) -> None:
        """Stop the node and everything it started."""
        if self._node is not None:
            await self._node.stop()
            self._node = None


async def _started(config: Any, begin: Begin, issued: tuple[bytes, bytes]) -> "ServedNode":
    """The node; its training's log goes into the party's folder, not into the logs of Ray."""
    node_module = await asyncio.to_thread(__import__, _NODE, fromlist=["start"])
    nursery = Path(begin.nursery) if begin.nursery else None
    node: ServedNode = await node_module.start(
        config, token=begin.token, issued=issued, base=Path(begin.base), quiet=True, nursery=nursery
    )
    return node
