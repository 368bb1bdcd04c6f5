"""The Ray actor that runs parties' nodes: the same nodes as `party serve`, started by a launcher.

One actor runs one party, or many that are simulated. A Ray cluster is one trust domain: whoever reaches its ports can
run code in it. No guarantee is claimed between the parties of such a run, and least of all between those of one actor,
whose nodes share a process and whose trainings share others (`party.tasks.pool`).
"""

import asyncio
import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aggregation.errors import ConclaveError
from party.config import check_config
from party.ledger.database import FILE
from party.store.memory import keep_private
from party.store.shelf import Shelf
from protos.console.mistakes import SettingsError
from protos.identity.requests import key_pem, make_request, new_keys

if TYPE_CHECKING:
    from party.node.lifecycle import ServedNode
    from party.tasks.pool import Pool

_NODE: Final = "party.node.lifecycle"
AT_ONCE: Final = 16
"""Nodes of an actor that start at the same time."""
FILES_A_PARTY: Final = 10
"""The most files and connections that a node holds open at a time: five when it listens, and what a call opens."""
FILES_BESIDE: Final = 200


@dataclass(frozen=True, slots=True)
class Begin:
    """What a launcher starts a party with.

    tables: those of a party file; name, folder, listen and peers are set here. folder: for the party's files, absolute.
    base: the folder against which relative sources are resolved. bundle: the certificates (PEM) issued for the request
    of `PartyActor.request`. token: what callers must show; without one they use mutual TLS. host: where to listen, the
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
    """One party or several. It reserves no processor of Ray: it mostly waits, and training has processes of its own."""

    def __init__(self, names: Sequence[str]) -> None:
        """names: of its parties."""
        keep_private()
        self._keys = {name: new_keys() for name in names}
        self._nodes: dict[str, ServedNode] = {}
        self._pool: Pool | None = None
        self._shelf = Shelf()

    async def prepare(self) -> None:
        """Import the node, which takes a second, while nobody waits for it."""
        await asyncio.to_thread(__import__, _NODE)

    async def request(self) -> tuple[dict[str, bytes], str]:
        """The parties' certificate requests, PEM, and their machine's address; the private keys stay here."""
        import ray

        return {name: make_request(name, *keys) for name, keys in self._keys.items()}, ray.util.get_node_ip_address()

    async def start(self, begins: Sequence[Begin], peers: Mapping[str, str], beside: int = 1) -> list[tuple[str, str]]:
        """Start the nodes, several at a time; returns for each its address and "", or "" and why it did not start.

        peers: the fingerprint of every party's signing key; each node pins all but its own. beside: how many such
        actors share this machine's processors. A party that ran before and finds none of its files here does not start:
        it would not know what it has spent.
        """
        import ray

        machine = ray.util.get_node_ip_address()
        if (why := room_for_files(len(begins))) is not None:
            return [("", why)] * len(begins)
        turns = asyncio.Semaphore(AT_ONCE)

        async def started(begin: Begin) -> tuple[str, str]:
            async with turns:
                return await self._start(begin, peers, machine, beside)

        return await asyncio.gather(*map(started, begins))

    async def stop(self, names: Iterable[str] | None = None) -> None:
        """Stop these nodes, or all, and everything that they started."""
        nodes = [self._nodes.pop(name) for name in list(self._nodes) if names is None or name in names]
        await asyncio.gather(*(node.stop() for node in nodes))
        if not self._nodes and self._pool is not None:
            await self._pool.end()

    async def _start(self, begin: Begin, peers: Mapping[str, str], machine: str, beside: int) -> tuple[str, str]:
        host = begin.host or machine
        listen = f"[{host}]:{begin.port}" if ":" in host else f"{host}:{begin.port}"
        pinned = {name: key for name, key in peers.items() if name != begin.name}
        own = {"name": begin.name, "listen": listen, "folder": begin.folder, "peers": pinned}
        if begin.before and not (Path(begin.folder) / FILE).exists():
            return "", (
                f"it ran on {begin.before} before and runs on {machine} now, where {begin.folder} has nothing of it. "
                "Have that machine back, or bring the folder here; a folder that all machines share comes along by "
                "itself ([federation.cluster] folder)."
            )
        try:
            config = check_config({**begin.tables, **own}, f"party {begin.name}")
            node_module = await asyncio.to_thread(__import__, _NODE, fromlist=["start"])
            nursery = Path(begin.nursery) if begin.nursery else None
            workers = shelf = None
            if len(self._keys) > 1 and config.policy.simulation and config.cluster is None:
                workers, shelf = self._pooled(begin, config.compute.threads, beside).workers(begin.name), self._shelf
            node: ServedNode = await node_module.start(
                config,
                token=begin.token,
                issued=(begin.bundle, key_pem(*self._keys[begin.name])),
                base=Path(begin.base),
                quiet=True,  # its training's log goes into the party's folder, not into the logs of Ray
                nursery=nursery,
                workers=workers,
                shelf=shelf,
            )
        except (ConclaveError, SettingsError) as error:
            return "", str(error)
        except OSError as error:
            return "", f"{error.filename or begin.folder}: {error.strerror}."
        self._nodes[begin.name] = node
        return node.address, ""

    def _pooled(self, begin: Begin, threads: int, beside: int) -> "Pool":
        """The training processes that all parties here share: this actor's part of the machine's processors.

        They log in the folder of the party that is the first to start.
        """
        from party.tasks.pool import Pool

        if self._pool is None:
            processes = max(1, (os.cpu_count() or 1) // max(beside, 1))
            nursery = Path(begin.nursery) if begin.nursery else None
            self._pool = Pool(min(processes, len(self._keys)), Path(begin.folder), threads, nursery)
        return self._pool


def room_for_files(parties: int) -> str | None:
    """Let this process open as many files as so many parties need; a sentence where the system does not allow it."""
    need = FILES_BESIDE + FILES_A_PARTY * parties
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < need:
        allowed = need if hard == resource.RLIM_INFINITY else min(hard, max(need, soft))
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < need:
            return (
                f"{parties:,} parties in one process may open {need:,} files, and this system allows it {allowed:,}. "
                "Allow more (`ulimit -Hn`), or put fewer parties into one ([federation] parties_per_actor)."
            )
    return None
