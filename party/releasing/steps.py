"""Training that all parties do together, step by step: each step is a release of its own, named after the whole.

A step is trained, noised, summed and charged like any other release, so a step that was answered once is answered with
the same bytes for ever, and one that was lost is another attempt.
"""

from collections.abc import Iterator
from typing import Final

from protos.conclave.v1 import plan_pb2

SEPARATOR: Final = "."
"""Between a release's name and the number of a step; no release of a plan has one in its name."""
MOST_STEPS: Final = 10_000


def step_name(release: str, step: int) -> str:
    """What one step of a stepped release is called."""
    return f"{release}{SEPARATOR}{step}"


def whole_of(name: str) -> str:
    """The name of the release that a step belongs to; of a release that is no step, its own."""
    return name.rpartition(SEPARATOR)[0] or name


def number_of(name: str) -> int | None:
    """Which step a name is of; None for that of a whole release."""
    _, separator, number = name.rpartition(SEPARATOR)
    return int(number) if separator and number.isdecimal() else None


def is_step(release: plan_pb2.Release) -> bool:
    """Whether a release is one step of a stepped one."""
    return release.stepped and SEPARATOR in release.name


def step_of(release: plan_pb2.Release, name: str) -> plan_pb2.Release | None:
    """The step of a stepped release that is called so, as a release of one step; None where there is none."""
    base, separator, number = name.rpartition(SEPARATOR)
    if not separator or not release.stepped or base != release.name or not number.isdecimal():
        return None
    step = int(number) if len(number) <= len(str(MOST_STEPS)) else MOST_STEPS
    return _step(release, step) if step < release.gradients.steps and number == str(step) else None


def charged(release: plan_pb2.Release) -> Iterator[plan_pb2.Release]:
    """What is charged one by one: the release, or its steps."""
    if not release.stepped:
        yield release
        return
    for step in range(min(release.gradients.steps, MOST_STEPS)):
        yield _step(release, step)


def _step(release: plan_pb2.Release, step: int) -> plan_pb2.Release:
    one = plan_pb2.Release()
    one.CopyFrom(release)
    one.name, one.gradients.steps = step_name(release.name, step), 1
    return one
