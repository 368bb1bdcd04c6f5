"""Training that all parties do together, step by step: each step is a release of its own, called NAME.0, NAME.1, ....

A step is trained, noised, summed and charged like any other release, so a step that was answered once is answered with
the same bytes for ever, and one that was lost is another attempt.
"""

from collections.abc import Iterator
from typing import Final

from protos.conclave.v1 import plan_pb2

SEPARATOR: Final = "."
"""Between a release's name and the number of a step; no release of a plan has one in its name."""
MOST_STEPS: Final = 10_000
_MOST_DIGITS: Final = 9


def step_name(release: str, step: int) -> str:
    """What one step of a stepped release is called."""
    return f"{release}{SEPARATOR}{step}"


def parsed(name: str) -> tuple[str, int | None]:
    """The release that a name is of, and which step; None, and the whole name, for one that `step_name` never gives."""
    release, separator, number = name.rpartition(SEPARATOR)
    if separator and number.isdecimal() and len(number) <= _MOST_DIGITS and str(int(number)) == number:
        return release, int(number)
    return name, None


def is_step_name(name: str) -> bool:
    """Whether a name is of one step."""
    return parsed(name)[1] is not None


def whole_of(name: str) -> str:
    """The name of the release that a step belongs to; of a release that is no step, its own."""
    return parsed(name)[0]


def number_of(name: str) -> int | None:
    """Which step a name is of; None for that of a whole release."""
    return parsed(name)[1]


def is_step(release: plan_pb2.Release) -> bool:
    """Whether a release is one step of a stepped one."""
    return release.form == plan_pb2.FORM_STEPPED and is_step_name(release.name)


def step_of(release: plan_pb2.Release, name: str) -> plan_pb2.Release | None:
    """The step of a stepped release that is called so, as a release of one step; None where there is none."""
    whole, step = parsed(name)
    if step is None or release.form != plan_pb2.FORM_STEPPED or whole != release.name:
        return None
    return _step(release, step) if step < min(release.gradients.steps, MOST_STEPS) else None


def charged(release: plan_pb2.Release) -> Iterator[plan_pb2.Release]:
    """What is charged one by one: the release, or its steps."""
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
