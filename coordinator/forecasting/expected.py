"""How long a run is expected to take: by an earlier run of the same plan, else by its forecast."""

import json
import math
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aggregation.errors import ConclaveError
from coordinator.store.index import RunIndex
from coordinator.store.private_files import write_whole
from coordinator.store.store import FINISHED

_FOLDER: Final = "forecasts"


@dataclass(frozen=True, slots=True)
class Expected:
    """Seconds of each stage, by name, in order; and of the whole run. Both are empty where nobody knows."""

    stages: dict[str, float] = field(default_factory=dict)
    whole: float | None = None


def keep(digest: bytes, seconds: float, cache: Path) -> None:
    """Keep a forecast's seconds beside what else public data gave. digest: the plan hash."""
    with suppress(OSError, ConclaveError):  # it is only for looking at
        write_whole(cache / _FOLDER / f"{digest.hex()}.json", json.dumps({"seconds": seconds}).encode())


def expected(digest: bytes, index: RunIndex, cache: Path) -> Expected:
    """What to expect of a run of this plan hash on this machine."""
    whole = _forecast(digest, cache)
    for entry in index.entries():
        if entry.plan_hash != digest.hex() or entry.status != FINISHED:
            continue
        with suppress(ConclaveError), closing(index.find(entry.id)) as store:
            if store.fact("resumed"):  # its stages were made in parts
                continue
            stages = {name: end - start for name, (start, end, _) in store.stages().items() if end is not None}
            return Expected({name: seconds for name, seconds in stages.items() if seconds >= 0}, whole)
    return Expected({}, whole)


def _forecast(digest: bytes, cache: Path) -> float | None:
    try:
        seconds = float(json.loads((cache / _FOLDER / f"{digest.hex()}.json").read_bytes())["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None
