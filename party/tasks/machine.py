"""What a party's trainings run on: its file's `[compute]`, looked up on this machine once, when the node starts.

The node itself never imports torch: where a device has to be asked for, another process asks.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, Self

from learning.errors import ComputeError
from learning.models.compute import Compute
from learning.models.machine import check_threads, settled
from party.admission.recipes import tasks_of
from party.config import ComputeTable
from party.tasks.task import SPREAD, request_of
from party.tasks.worker import training_environment
from protos.computed import Computed
from protos.conclave.v1 import plan_pb2

ASKED_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Machine:
    """wanted: what the party's file says. usual: the same with "auto" replaced by a device that is there. there: the
    machine's devices in words, in the order in which "auto" takes them; empty where nobody had to look.
    """

    wanted: Compute
    usual: Compute
    there: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: ComputeTable) -> Self:
        """A machine that nobody looked at: "auto" stays where there may be an accelerator."""
        wanted = compute_of(table)
        return cls(wanted, settled(wanted))

    @classmethod
    def looked_up(cls, table: ComputeTable) -> Self:
        """Look whether what the file asks for is there. Blocks: for seconds, where torch has to be asked.

        Raises `ComputeError` naming the table, for a device or precision that is not there, and for more threads than
        processors.
        """
        found = cls.of(table)
        try:
            check_threads(found.wanted)
            if found.usual.device == "cpu":  # which is there, and has every precision
                return found
            device, there = _asked(found.usual)
        except ComputeError as error:
            raise ComputeError(f"[compute]: {error}") from None
        return cls(found.wanted, replace(found.usual, device=device), there)

    def compute(self, *, models: bool, reproducible: bool, spread: bool = False) -> Compute:
        """What a training runs on. models: whether it trains or runs a text model. reproducible: whether the plan's
        noise is. spread: on machines of the site, whose tasks have a processor each and no device.
        """
        if models and not spread and not (reproducible and self.wanted.device == "auto"):
            return self.usual
        return settled(replace(self.wanted, device="cpu"), models=models)

    def computed(self, terms: plan_pb2.Terms, *, spread: bool = False) -> Computed:
        """What is told of this machine when it joins a run under these terms. spread: whether there is a site."""
        tasks = {task.partition(" ")[0] for release in terms.releases for task in tasks_of(terms, release)}
        models = any(request_of(task).WORK.models for task in tasks)
        reproducible = terms.privacy.insecure_reproducible_noise
        found = self.compute(models=models, reproducible=reproducible, spread=spread and tasks <= SPREAD)
        return Computed(found.device.partition(":")[0], found.precision)


def compute_of(table: ComputeTable) -> Compute:
    """What a party's file asks for."""
    return Compute(table.device, table.precision, table.threads)


def _asked(wanted: Compute) -> tuple[str, tuple[str, ...]]:
    """The device in place of "auto", and all that are there, as torch says in a process of its own."""
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-m", "party.tasks.machine", json.dumps(asdict(wanted))],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=training_environment(),
            cwd="/",
            timeout=ASKED_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ComputeError(f"torch did not say within {ASKED_SECONDS:g} s what devices there are.") from None
    lines = asked.stdout.splitlines()
    if asked.returncode or not lines:
        why = asked.stderr.decode(errors="replace").strip().splitlines()
        raise ComputeError(f"torch cannot say what devices there are: {why[-1] if why else 'it ended'}")
    said = json.loads(lines[-1])
    if "error" in said:
        raise ComputeError(said["error"])
    return said["device"], tuple(said["there"])


def main(arguments: Sequence[str]) -> int:
    """Print, as JSON, the device that is meant and those that are there, or why it cannot be had."""
    from learning.models.compute import available, placement

    try:
        found = placement(Compute(**json.loads(arguments[0])))
    except ComputeError as error:
        print(json.dumps({"error": str(error)}))
        return 0
    print(json.dumps({"device": str(found.device), "there": [str(each) for each in available()]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
