"""Stepped releases, for training by all parties together: each step is a release of its own, named NAME.0, NAME.1, ....

A step is trained, noised, summed and charged like any other release. So a step that was answered once is always
answered with the same bytes, and a lost one is attempted again.
"""

from collections.abc import Iterator
from typing import Final

from protos.conclave.v1 import plan_pb2

SEPARATOR: Final = "."
"""Between a release's name and the number of a step; no release of a plan has one in its name."""
MOST_STEPS: Final = 10_000
_MOST_DIGITS: Final = 9


def step_name(release: str, step: int) -> str:
    """The name of one step of a stepped release."""
    return f"{release}{SEPARATOR}{step}"


def parsed(name: str) -> tuple[str, int | None]:
    """The release and the step that a name stands for; None, and the whole name, for one that `step_name` never
    gives.
    """
    release, separator, number = name.rpartition(SEPARATOR)
    if separator and number.isdecimal() and len(number) <= _MOST_DIGITS and str(int(number)) == number:
        return release, int(number)
    return name, None


def is_step_name(name: str) -> bool:
    """Whether a name is that of a step."""
    return parsed(name)[1] is not None


def whole_of(name: str) -> str:
    """The name of the release that a step belongs to; for a release that is not a step, its own."""
    return parsed(name)[0]


def number_of(name: str) -> int | None:
    """The number of a step by its name; None for the name of a whole release."""
    return parsed(name)[1]


def is_step(release: plan_pb2.Release) -> bool:
    """Whether a release is one step of a stepped one."""
    return release.form == plan_pb2.FORM_STEPPED and is_step_name(release.name)


def step_of(release: plan_pb2.Release, name: str) -> plan_pb2.Release | None:
    """The step of a stepped release with that name, as a release of one step; None where there is none."""
    whole, step = parsed(name)
    if step is None or release.form != plan_pb2.FORM_STEPPED or whole != release.name:
        return None
    return _step(release, step) if step < min(release.gradients.steps, MOST_STEPS) else None


def charged(release: plan_pb2.Release) -> Iterator[plan_pb2.Release]:
    """The releases that are charged one by one: the release itself, or its steps."""
    if release.form != plan_pb2.FORM_STEPPED:
        yield release
        return
    for step in range(min(release.gradients.steps, MOST_STEPS)):
        yield _step(release, step)


def _step(release: plan_pb2.Release, step: int) -> plan_pb2.Release:
    one = plan_pb2.Release()
    one.CopyFrom(release)
    one.name, one.gradients.steps = step_name(release.name, step), 1
    return one
