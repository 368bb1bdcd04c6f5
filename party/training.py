"""Training in a subprocess, seen from the node: one at a time, watched, ended with the node, never done twice."""

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

from party.job import MEMORY, STORAGE, UNKNOWN, Job
from party.storage import full
from protos.refusal import Reason, Refusal

log = logging.getLogger("conclave.party")

_ROOT: Final = str(Path(__file__).resolve().parent.parent)
_PATIENT: Final = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
_SHARD_FAILURES: Final = frozenset({"DataError", "ShardError"})


class Training:
    """One operation as it goes. Whoever asked may go away and come back; it goes on."""

    def __init__(self, digest: bytes, release: str, log_file: Path | None = None) -> None:
        """log_file: where the process' own words go; None for where the node's go."""
        self.digest = digest
        self.release = release
        self._log_file = log_file
        self.percent = UNKNOWN
        self.started = time.monotonic()
        self.task: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        """How long it has been going on."""
        return time.monotonic() - self.started

    async def run(self, job: Job, turn: asyncio.Semaphore, *, party: str, frank: bool) -> None:
        """Do the job when it is its turn. Raises `Refusal` (MEMORY, SHARD, STORAGE, TRAINING) when there is no result.

        frank: whether the caller may read what is wrong with the shard. Of private text it may not: such a sentence can
        name files and say that rows are unusable, and why. The party's own log has it in any case.
        """
        async with turn:
            failure = await self._work(job)
        if failure is None:
            return
        kind, sentence = failure
        log.error("training failed: %s", sentence)
        if kind == STORAGE:
            raise full(party)
        if kind == MEMORY:
            raise Refusal(Reason.MEMORY, f"training at party {party}: {sentence}")
        if kind in _SHARD_FAILURES and not frank:
            sentence = "the shard cannot be used as the plan asks. Its own log says why."
        raise Refusal(Reason.SHARD if kind in _SHARD_FAILURES else Reason.TRAINING, sentence)

    async def _work(self, job: Job) -> tuple[str, str] | None:
        """None when the result is on disk, else the kind of failure and a sentence."""
        with contextlib.ExitStack() as opened:
            own = None if self._log_file is None else opened.enter_context(_private_log(self._log_file))
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "party.work",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=own,
                env=_environment(os.environ),
                cwd="/",
                start_new_session=True,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        failure = ("", "training ended without a result. Its own log says why.")
        finished = False
        try:
            with contextlib.suppress(ConnectionError):
                process.stdin.write(job.to_json().encode() + b"\n")
                await process.stdin.drain()
            async for line in process.stdout:
                said = json.loads(line)
                if "percent" in said:
                    self.percent = said["percent"]
                elif "failed" in said:
                    failure = (said["kind"], said["failed"])
                finished = finished or said.get("finished", False)
            return None if await process.wait() == 0 and finished else failure
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await asyncio.shield(process.wait())


def _private_log(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab")


def _environment(outside: Mapping[str, str]) -> dict[str, str]:
    """The node's own environment, with this code findable from any folder, and threads that wait without spinning.

    Where parties share cores, threads that spin while they wait took three times as long as ones that sleep.
    """
    paths = [_ROOT, *filter(None, [outside.get("PYTHONPATH")])]
    return {**_PATIENT, **outside, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_DISABLE_TELEMETRY": "1"}
