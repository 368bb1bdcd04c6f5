"""A training process that a nursery forked, as a node's worker uses it (`party.tasks.nursery`)."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

WITHIN: Final = 10.0
"""Seconds in which a node that has connected to a nursery says what it wants."""
IMPORTED: Final = 60.0
"""The most seconds to wait for a nursery that may still be importing."""
_KILLED: Final = -9
_LOADED: Final = (
    *("ATEN_", "BLIS_", "GOMP_", "HF_", "KMP_", "LD_", "MALLOC_", "MKL_", "NUMEXPR_", "OMP_", "OPENBLAS_", "THP_"),
    *("GLIBC_TUNABLES", "PYTHONPATH", "TOKENIZERS_", "TORCH_", "TRANSFORMERS_"),
)
"""Beginnings of the names of settings that libraries read when they are loaded: later ones would come too late."""


def read_when_loaded(environment: Mapping[str, str]) -> dict[str, str]:
    """Those settings of an environment that must be the nursery's own."""
    return {name: value for name, value in environment.items() if name.startswith(_LOADED)}


class Forked:
    """It has what `asyncio.subprocess.Process` has, as far as a worker uses it."""

    def __init__(
        self,
        pid: int,
        stdin: asyncio.StreamWriter,
        stdout: asyncio.StreamReader,
        nursery: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._nursery = nursery
        self._watch = asyncio.get_running_loop().create_task(self._watched())

    @classmethod
    async def ask(cls, nursery: Path, task: str, environment: Mapping[str, str], log: int) -> Self | None:
        """A new process for a kind of task; None where the nursery is gone or has other settings.

        environment: the process' own. log: the descriptor that it logs to; it stays the caller's.
        """
        loop = asyncio.get_running_loop()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        writer: asyncio.StreamWriter | None = None
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        try:
            connection.settimeout(WITHIN)
            wanted = {"task": task, "read": read_when_loaded(environment)}
            connection.connect(str(nursery))
            socket.send_fds(connection, [json.dumps(wanted).encode()], [theirs_in, theirs_out, log])
            connection.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=connection)
            said = json.loads(await asyncio.wait_for(reader.readline(), IMPORTED) or b"{}")
        except (OSError, ValueError):  # a TimeoutError is an OSError
            said = {}
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        if writer is None or "pid" not in said:
            (writer or connection).close()
            os.close(ours_in)
            os.close(ours_out)
            return None
        stdout = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(ours_out, "rb", 0))
        pipe, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(ours_in, "wb", 0))
        stdin = asyncio.StreamWriter(pipe, protocol, None, loop)
        found = cls(said["pid"], stdin, stdout, (reader, writer))
        stdin.write(json.dumps(dict(environment)).encode() + b"\n")
        return found

    def kill(self) -> None:
        """Have the nursery end it, by a signal that it cannot ignore."""
        with contextlib.suppress(OSError):
            self._nursery[1].write_eof()

    async def wait(self) -> int:
        """Wait until it has ended; its exit status, negative for a signal."""
        await asyncio.shield(self._watch)
        assert self.returncode is not None
        return self.returncode

    async def _watched(self) -> None:
        reader, writer = self._nursery
        said = b""
        with contextlib.suppress(OSError):
            said = await reader.readline()
        self.returncode = json.loads(said)["ended"] if said else _KILLED  # it ends with its nursery
        self.stdin.close()
        writer.close()
