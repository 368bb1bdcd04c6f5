"""The Ray actor that runs one party's node: the same node as `party serve`, started by a launcher.

A Ray cluster is one trust domain: whoever reaches its ports can run code in it. Between the parties of such a run
nothing is claimed.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aggregation.errors import ConclaveError
from party.config import check_config
from protos.certificates import key_pem, make_request, new_keys
from protos.settings import SettingsError

if TYPE_CHECKING:
    from party.node import Node


class PartyActor:
    """One party. It takes no processor from Ray: it mostly waits, and its training is a process of its own."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._keys = new_keys()

    async def request(self, name: str) -> bytes:
        """What the party asks to have vouched for, PEM; the private keys stay here."""
        return make_request(name, *self._keys)

    async def start(
        self, name: str, tables: Mapping[str, Any], folder: str, base: str, token: str, bundle: bytes
    ) -> tuple[str, str]:
        """Start the node; returns its address and "", or "" and the sentence that says why there is none.

        tables: those of a party file; name, folder and listen are set here. base: where relative sources start.
        bundle: the certificates (PEM) for what `request` asked.
        """
        own = {"name": name, "listen": "127.0.0.1:0", "folder": folder}
        try:
            config = check_config({**tables, **own}, f"party {name}")
            node = await _started(config, token, (bundle, key_pem(*self._keys)), Path(base))
        except (ConclaveError, SettingsError) as error:
            return "", str(error)
        except OSError as error:
            return "", f"{error.filename or folder}: {error.strerror}."
        self._node = node
        return node.address, ""

    async def stop(self) -> None:
        """End the node and everything it started."""
        if self._node is not None:
            await self._node.stop()
            self._node = None


async def _started(config: Any, token: str, issued: tuple[bytes, bytes], base: Path) -> "Node":
    node_module = await asyncio.to_thread(__import__, "party.node", fromlist=["start"])
    node: Node = await node_module.start(config, token=token, issued=issued, base=base)
    return node
