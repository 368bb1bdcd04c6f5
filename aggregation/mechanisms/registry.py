"""Mechanisms by their kind: made from the numbers in a message or a file, and turned back into numbers.

A new mechanism is a module beside this one, a line in `MECHANISMS`, and a message in plan.proto. One of another package
is an entry point (`aggregation.mechanisms.outside`).
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, TypeAlias, cast

from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.free import FreeAnswers
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.mechanisms.joint import JointMechanism
from aggregation.mechanisms.mechanism import Mechanism, OfTeachers
from aggregation.mechanisms.outside import OUTSIDE, outside, stated
from aggregation.mechanisms.said import FreeTargets, FreeTexts, SoftenedTargets
from aggregation.mechanisms.samples import SamplesMechanism
from aggregation.mechanisms.sequences import SequencesMechanism
from aggregation.mechanisms.thresholded import ThresholdedVotes
from aggregation.mechanisms.vectors import DifferencesMechanism, VectorMechanism
from aggregation.mechanisms.votes import VotesMechanism

Numbers: TypeAlias = Mapping[str, Any]
"""A mechanism's fields by name: numbers, texts and None; a part of a mechanism is such a mapping again."""

MECHANISMS: Final[Mapping[str, type[Mechanism]]] = {
    each.kind: each
    for each in (
        CountsMechanism,
        VectorMechanism,
        JointMechanism,
        ThresholdedVotes,
        GradientMechanism,
        FreeAnswers,
        FreeTexts,
        FreeTargets,
        SoftenedTargets,
        DifferencesMechanism,
        SamplesMechanism,
        SequencesMechanism,
    )
}
OF_TEACHERS: Final = frozenset(each.kind for each in (JointMechanism, ThresholdedVotes, FreeAnswers))
"""The kinds under which teachers answer queries (`OfTeachers`)."""
_PARTS: Final[Mapping[str, type[Mechanism]]] = {each.kind: each for each in (VotesMechanism, HiddenMechanism)}
"""Mechanisms that are parts of others, by the name of the field."""


def made(kind: str, numbers: Numbers) -> Mechanism:
    """The mechanism of that kind with these numbers. Raises `ConclaveError` for an unknown kind or impossible numbers.

    kind: as `message_of` gives it. A 0 is replaced as the mechanism's `zeros` say.
    """
    if kind == OUTSIDE:
        return outside(numbers["kind"], numbers["numbers"])
    if kind not in MECHANISMS:
        raise ConclaveError(f"{kind[:40]!r} is no mechanism; there are {', '.join(MECHANISMS)}.")
    return _made(MECHANISMS[kind], numbers)


def message_of(mechanism: Mechanism) -> tuple[str, dict[str, Any]]:
    """The field of a plan's message that holds a mechanism, and the values in it. Raises `ConclaveError` for a kind
    that is not installed.
    """
    if mechanism.kind in MECHANISMS:
        return mechanism.kind, numbers_of(mechanism)
    return OUTSIDE, dict(stated(mechanism))


def of_teachers(mechanism: Mechanism) -> OfTeachers:
    """The same for a mechanism under which teachers answer. Raises `IntegrityError` for any other."""
    if mechanism.kind not in OF_TEACHERS:
        raise IntegrityError(f"Teachers do not answer under {type(mechanism).__name__}.")
    return cast(OfTeachers, mechanism)


def numbers_of(mechanism: Mechanism) -> dict[str, Any]:
    """A mechanism's numbers by name, from which `made` makes it again."""
    values = {each.name: getattr(mechanism, each.name) for each in fields(mechanism)}  # type: ignore[arg-type]
    return {
        name: numbers_of(value) if name in _PARTS and value is not None else value for name, value in values.items()
    }


def _made(of: type[Mechanism], numbers: Numbers) -> Mechanism:
    values = {
        name: _made(_PARTS[name], value) if isinstance(value, Mapping) else value for name, value in numbers.items()
    }
    return of(**{name: of.zeros[name] if name in of.zeros and not value else value for name, value in values.items()})
