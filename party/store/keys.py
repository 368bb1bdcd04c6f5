"""Keys of this party's own: for assigning units to teachers, and a public stand-in where nothing is protected."""

import hashlib
import secrets
from pathlib import Path
from typing import Final

from party.store.runs import write_whole

KEY_BYTES: Final = 32


def slot_key(home: Path) -> bytes:
    """This party's secret key for assigning units to teachers, 32 bytes: drawn once, stored in `home` with mode
    0600.
    """
    path = home / "slots.key"
    if not path.exists():
        write_whole(path, secrets.token_bytes(KEY_BYTES))
    return path.read_bytes()


def insecure_key(seed: int, party: str, role: str) -> bytes:
    """A key that anyone who knows the plan can compute, for `insecure_reproducible_noise`: no guarantee."""
    return hashlib.sha256(f"conclave insecure {seed} {party} {role}".encode()).digest()
