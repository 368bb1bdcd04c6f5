"""Mechanisms of other packages: entry points of the group `conclave.mechanisms`, each under the name of its kind.

Whoever relies on one has installed its package: a party's administrator, and everybody who prices what it released.
Nothing of it comes over the wire but its kind and its numbers.
"""

import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Final, NoReturn

from aggregation.errors import ConclaveError
from aggregation.mechanisms.mechanism import Form, Mechanism, Priced

OUTSIDE: Final = "outside"
"""What holds such a mechanism in a plan's message, whatever its kind."""
GROUP: Final = "conclave.mechanisms"
KIND: Final = r"[a-z][a-z0-9_]{0,30}\.[a-z][a-z0-9_]{0,30}"
"""A kind: the package's name, a dot, and the mechanism's."""
LONGEST: Final = 10_000
"""Characters of a mechanism's numbers as JSON."""


def stated(mechanism: Mechanism) -> dict[str, str]:
    """The fields of the message of a mechanism that another package brings: its kind, and its numbers as JSON.

    Raises `ConclaveError` for a mechanism that is not installed as it should be, or whose fields are no plain values.
    """
    find(mechanism.kind)
    values = {each.name: getattr(mechanism, each.name) for each in fields(mechanism)}  # type: ignore[arg-type]
    if not all(_plain(value) for value in values.values()):
        raise ConclaveError(f"{mechanism.kind}: the fields of a mechanism are finite numbers, texts, booleans or None.")
    return {"kind": mechanism.kind, "numbers": json.dumps(values, sort_keys=True, separators=(",", ":"))}


def outside(kind: object, numbers: object) -> Mechanism:
    """The mechanism of that kind with these numbers, JSON. Raises `ConclaveError` where its package is not installed,
    and for numbers that are not its own.
    """
    if not isinstance(kind, str) or not isinstance(numbers, str):
        raise ConclaveError("A mechanism of another package is a kind and its numbers.")
    of = find(kind)
    try:
        made = of(**_numbers(numbers))
        if stated(made)["numbers"] != numbers:
            raise ConclaveError(f"{kind}: its numbers are not written as they are bound.")
    except ConclaveError:
        raise
    except (TypeError, ValueError, ArithmeticError, RecursionError, AttributeError, LookupError) as error:
        raise ConclaveError(f"{kind}: these are not its numbers ({_short(error)}).") from None
    return made


def find(kind: str) -> type[Mechanism]:
    """The class of a kind. Raises `ConclaveError` where its package is not installed, or brings something else."""
    if re.fullmatch(KIND, kind) is None:
        raise ConclaveError(
            f"{kind[:62]!r} is no kind of mechanism. One of another package is named PACKAGE.MECHANISM."
        )
    points = _points(tuple(sys.path))
    if kind not in points:
        raise ConclaveError(
            f"its mechanism {kind} is of another package, which is not installed here, so nobody here can say what it "
            f"costs. Install the package that brings it, if you trust its proof (entry point {GROUP}).",
            code="C106",
        )
    return _loaded(kind, points[kind])


@cache
def _points(path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """The entry points by kind. Looked up once a search path. Raises `ConclaveError` for a kind of two packages."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if found.setdefault(point.name, point).value != point.value:
            raise ConclaveError(f"two installed packages bring the mechanism {point.name}. Uninstall one.", code="C106")
    return MappingProxyType(found)


@cache
def _loaded(kind: str, point: EntryPoint) -> type[Mechanism]:
    try:
        found = point.load()
    except (ImportError, AttributeError) as error:
        raise ConclaveError(
            f"the mechanism {kind} is installed as {point.value}, which cannot be loaded: {error}. Install its package "
            "again.",
            code="C106",
        ) from error
    sound = (
        isinstance(found, type)
        and issubclass(found, Priced)
        and is_dataclass(found)
        and getattr(found, "kind", None) == kind
        and getattr(found, "forms", None) == (Form.SUMMED,)
        and found.guaranteed
    )
    if not sound:
        raise ConclaveError(
            f"the mechanism {kind} is installed as {point.value}, which is no frozen dataclass of that kind that is a "
            "Priced, is summed, and has a guarantee. Tell whoever made its package.",
            code="C106",
        )
    of: type[Mechanism] = found
    return of


def _numbers(text: str) -> dict[str, Any]:
    """The numbers in canonical JSON. Raises ValueError."""
    if len(text) > LONGEST:
        raise ValueError("they are too long")
    found = json.loads(text, parse_constant=_refused)
    if not isinstance(found, dict):
        raise ValueError("they are no object")
    return found


def _plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return -(2**63) <= value < 2**64
    return value is None or isinstance(value, str | bool)


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _short(error: BaseException) -> str:
    return "".join(each if each.isprintable() else "?" for each in str(error)[:200]) or type(error).__name__
