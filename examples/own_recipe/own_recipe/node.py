"""A party's process under `ProcessLauncher`: says its request, is told its tables, serves, and ends with its input."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from aggregation.errors import ConclaveError
from party.config import check_config
from party.node.lifecycle import start
from party.store.memory import keep_private
from protos.console.mistakes import SettingsError
from protos.identity.requests import key_pem, make_request, new_keys


async def serve(name: str, folder: str, base: Path) -> None:
    """Serve one party until standard input closes."""
    keys = new_keys()
    _say({"request": make_request(name, *keys).decode()})
    line = await asyncio.to_thread(sys.stdin.readline)
    if not line:
        return
    told = json.loads(line)
    own = {"name": name, "listen": "127.0.0.1:0", "folder": folder}
    try:
        config = check_config({**told["tables"], **own}, f"party {name}")
        issued = told["bundle"].encode(), key_pem(*keys)
        async with await start(config, token=told["token"], issued=issued, base=base, quiet=True) as node:
            _say({"address": node.address})
            await asyncio.to_thread(sys.stdin.read)
    except (ConclaveError, SettingsError) as error:
        _say({"error": str(error)})


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    keep_private()
    asyncio.run(serve(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
