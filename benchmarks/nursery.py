"""Four training processes ready for a federated step: each started by itself, and all forked from one nursery.

    python benchmarks/nursery.py [--runs 3] [--out FILE]

Both ways alternate. Seconds go from nothing to four processes that have imported what a step of a text model needs;
processor seconds are those of all processes, the nursery's included.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from deploy.nursing import nursery
from party.tasks.forked import Forked
from party.tasks.worker import training_environment

PARTIES = 4
IMPORTS = "import sys; from party.tasks import nursery; sys.exit(not nursery._import('step'))"


def main() -> None:
    """Print the medians; with --out write every run as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    ways: dict[str, Callable[[], None]] = {"started": started, "forked": forked}
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(arguments.runs):
        for way, act in ways.items():
            began, before = time.monotonic(), _spent()
            act()
            took = {"seconds": time.monotonic() - began, "processor_seconds": _spent() - before}
            runs[way].append({name: round(each, 2) for name, each in took.items()})
    medians = {
        way: {name: statistics.median(each[name] for each in found) for name in found[0]} for way, found in runs.items()
    }
    print(json.dumps(medians))
    if arguments.out:
        told = {"parties": PARTIES, "load": os.getloadavg(), "median": medians, "runs": runs}
        arguments.out.write_text(json.dumps(told, indent=1) + "\n")


def started() -> None:
    """As a node starts one that it has no nursery for."""

    async def all_of_them() -> None:
        environment = training_environment()
        command = (sys.executable, "-P", "-c", IMPORTS)
        made = [await asyncio.create_subprocess_exec(*command, env=environment) for _ in range(PARTIES)]
        assert not any([await each.wait() for each in made])

    asyncio.run(all_of_them())


def forked() -> None:
    """As nodes on one machine ask their launcher's nursery."""

    async def all_of_them(socket: Path) -> None:
        asked = [Forked.ask(socket, "step", training_environment(), 2) for _ in range(PARTIES)]
        made = await asyncio.gather(*asked)
        for each in made:
            assert each is not None
            each.kill()
            await each.wait()

    with nursery("dp_sgd") as socket:
        assert socket is not None
        asyncio.run(all_of_them(socket))


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
