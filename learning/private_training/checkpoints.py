"""The state of a private training in a file, which belongs to that training alone."""

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from aggregation.errors import IntegrityError
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.noise.stream import NoiseStream
from learning.private_training.optimisation import Optimisation


def digest(mechanism: GradientMechanism, optimisation: Optimisation, units: int, stream: NoiseStream) -> str:
    """SHA-256, hex, of what a checkpoint belongs to.

    The stream shows in it as words of a child that nothing else draws from.
    """
    told = [asdict(mechanism), asdict(optimisation), units, stream.child("checkpoint").uint64(4).tolist()]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def read(path: Path, digest: str) -> dict[str, Tensor]:
    """The state in a checkpoint. Raises `IntegrityError` for one of another training, or that cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("training") != digest:
                raise IntegrityError(f"The checkpoint {path.name} is of another training. Remove it to begin anew.")
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise IntegrityError(f"The checkpoint {path.name} cannot be read: {error}. Remove it to begin anew.") from error


def write(path: Path, state: dict[str, Tensor], digest: str) -> None:
    """Write a state whole, with mode 0600: a reader finds the file before or the file after."""
    from safetensors.torch import save

    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
            file.write(save({name: each.contiguous() for name, each in state.items()}, {"training": digest}))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
