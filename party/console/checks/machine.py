"""What a party's machine has: its folder, disk, memory, device and versions, against what a run takes."""

import glob
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from learning.errors import ComputeError
from learning.models.machine import processors
from party.config import PartyConfig
from party.shard_table import ShardTable
from party.tasks.machine import Machine
from protos import PROTOCOL_VERSION, software_version
from protos.console.checklist import Line, free_disk, free_memory, ok, size, to_do, warning

WORDS: Final = 1000
"""The size of the vocabulary that `check` assumes, since no plan is known: a plan's default."""

NODE_MEMORY: Final = 180 * 2**20
TRAINING_MEMORY: Final = 200 * 2**20
WORD_MEMORY: Final = 300 * 2**10
"""Bytes of the node; of a training process before it has a model; and, for each word, of its model and fit."""

LEAST_DISK: Final = 256 * 2**20
CELL_DISK: Final = 16
"""Bytes of ledger, log and artefacts; and, for each cell of words x words, of a bounded sum and its blocks."""


def needed_memory(words: int = WORDS) -> int:
    """Upper bound, in bytes, on the memory of the node and one training, for a vocabulary of this many words."""
    return NODE_MEMORY + TRAINING_MEMORY + WORD_MEMORY * words


def needed_disk(words: int = WORDS) -> int:
    """Upper bound, in bytes, on what one run leaves in the party's folder, for a vocabulary of this many words."""
    return LEAST_DISK + CELL_DISK * words**2


def folder(home: Path) -> Line:
    if not home.exists():
        above = next(each for each in home.parents if each.exists())
        if not os.access(above, os.W_OK | os.X_OK):
            return to_do("folder", f"{home} cannot be made: {above} is not writable for this user.")
        return ok("folder", f"{home} will be made")
    if not home.is_dir() or not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        return to_do("folder", f"{home} is not a folder that this user can write in. Change its owner, or set folder.")
    mode = home.stat().st_mode & 0o777
    if mode & 0o077:
        return to_do("folder", f"others on this machine may enter {home} (mode {mode:04o}). Run: chmod 700 {home}")
    return ok("folder", f"{home}, mode {mode:04o}")


def disk(shard: ShardTable, home: Path) -> Line:
    needed, why = needed_disk(), f"a run with {WORDS:,} words"
    if shard.user is not None:
        needed += _bytes_of(Path(shard.source))
        why += " that protects users, for which the shard is sorted on disk,"
    free = free_disk(home)
    if free < needed:
        return to_do("disk", f"{size(free)} are free in {home}, and {why} may take {size(needed)}. Make room there.")
    return ok("disk", f"{size(free)} are free; {why} takes up to {size(needed)}")


def _bytes_of(source: Path) -> int:
    """Bytes of a local source; 0 for a source elsewhere."""
    if source.is_dir():
        return sum(each.stat().st_size for each in source.rglob("*") if each.is_file())
    if source.is_file():
        return source.stat().st_size
    return sum(Path(each).stat().st_size for each in glob.glob(str(source), recursive=True) if Path(each).is_file())


def memory() -> Line:
    free, needed = free_memory(), needed_memory()
    if free is None:
        return warning("memory", f"this system does not say how much is free; {size(needed)} are needed")
    if free < needed:
        return to_do(
            "memory",
            f"{size(free)} are free, and a training with {WORDS:,} words may take {size(needed)}. End other programs, "
            "or give this machine more.",
        )
    most = max(WORDS, (free - needed_memory(0)) // WORD_MEMORY // 1000 * 1000)
    return ok("memory", f"{size(free)} are free: enough for {most:,} words; {size(needed)} are enough for {WORDS:,}")


def device(config: PartyConfig) -> Line:
    """What trainings of text models run on, and what else is there. Torch is asked only where that may matter."""
    try:
        found = Machine.looked_up(config.compute)
    except ComputeError as error:
        return to_do("device", str(error))
    threads = found.usual.threads
    many = f"{threads} of {processors()}" if threads else f"{processors()}"
    there = f"; there are {', '.join(found.there)}" if len(found.there) > 1 else ""
    return ok("device", f"text models run on {found.usual.device} in {found.usual.precision}, {many} processors{there}")


def versions() -> Line:
    here = f"Conclave {software_version()}, protocol {PROTOCOL_VERSION}, Python {sys.version.split()[0]}"
    missing = [name for name in ("torch", "safetensors", "pyarrow") if find_spec(name) is None]
    if missing:
        return to_do(
            "versions", f"{here}, without {', '.join(missing)}. Install Conclave again: pip install conclave-distill"
        )
    return ok("versions", here)
