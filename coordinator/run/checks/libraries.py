"""The libraries that Conclave names, and whether those that are installed fit."""

from collections.abc import Iterator
from importlib import metadata
from typing import Final

from packaging.requirements import Requirement
from packaging.version import InvalidVersion

from protos.console.checklist import Line, ok, to_do

DISTRIBUTION: Final = "conclave-distill"
SHOWN: Final = ("torch", "transformers", "numpy", "grpcio", "ray", "cryptography")
"""Whose versions matter most where something is to be told."""
_FOR: Final = {
    "minilm": "the packaged encoder",
    "cluster": "Ray clusters and their page",
    "otel": "traces to a collector",
}


def libraries() -> Iterator[Line]:
    """A line on what Conclave cannot run without, one on extras."""
    try:
        needed = [Requirement(each) for each in metadata.requires(DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:
        yield to_do("libraries", f"{DISTRIBUTION} is not installed here: pip install {DISTRIBUTION}")
        return
    always = [each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    wrong = [said for each in always if (said := _wrong(each)) is not None]
    shown = ", ".join(f"{name} {found}" for name in SHOWN if (found := _version(name)) is not None)
    if wrong:
        yield to_do("libraries", f"{'; '.join(wrong)}. Install Conclave again: pip install {DISTRIBUTION}")
    else:
        yield ok("libraries", f"all {len(always)} that Conclave needs: {shown}")
    yield ok("extras", "; ".join(_extra(name, what, needed) for name, what in _FOR.items()))


def _extra(name: str, what: str, needed: list[Requirement]) -> str:
    own = [
        each
        for each in needed
        if each.marker is not None and each.marker.evaluate({"extra": name}) and not each.marker.evaluate({"extra": ""})
    ]
    there = bool(own) and all(_wrong(each) is None for each in own)
    return f"{name} is there" if there else f"without {name} ({what}: pip install '{DISTRIBUTION}[{name}]')"


def _wrong(needed: Requirement) -> str | None:
    """Why a library does not fit, None where it does."""
    found = _version(needed.name)
    if found is None:
        return f"{needed.name} is not installed"
    try:
        fits = needed.specifier.contains(found, prereleases=True)
    except InvalidVersion:
        return None
    return None if fits else f"{needed.name} {found} is installed, and Conclave needs {needed.specifier}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
