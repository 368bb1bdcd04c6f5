"""The `ray` spreader: a party's teachers as tasks on the Ray cluster of its own site."""

from collections.abc import Iterator, Sequence
from typing import Any

from deploy.cluster import joined
from deploy.launching import LaunchError
from party.errors import TrainingError
from party.tasks.ray_tasks import do

ATTEMPTS = 3
"""How often a task is begun again after its machine was lost."""


class RaySpreader:
    """A `party.tasks.ray_tasks.Spreader`. A task has one processor; tasks are spread over the machines."""

    def done(self, address: str, jobs: Sequence[str]) -> Iterator[str]:
        """See `party.tasks.ray_tasks.Spreader`. Raises `LaunchError` and `TrainingError`."""
        with joined(address) as ray:
            if int(ray.cluster_resources().get("CPU", 0)) < 1:
                raise LaunchError("the site's Ray has no processor for a task. Start it with one or more.")
            task = ray.remote(_done).options(num_cpus=1, max_retries=ATTEMPTS, scheduling_strategy="SPREAD")
            pending: dict[Any, str] = {task.remote(path): path for path in jobs}
            while pending:
                ready, _ = ray.wait(list(pending), num_returns=1)
                path = pending.pop(ready[0])
                try:
                    why = ray.get(ready[0])
                except ray.exceptions.RayError as error:
                    raise TrainingError(
                        f"a task at the site's machines ended without a result ({type(error).__name__})."
                    ) from None
                if why:
                    raise TrainingError(why)
                yield path


def _done(path: str) -> str:
    """Why a job could not be started; empty where it left its outcome."""
    try:
        do(path)
    except TrainingError as error:
        return str(error)
    return ""
