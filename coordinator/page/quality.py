"""How good a student is, as bars and rows: beside what costs nothing and, in simulation, what knows no privacy."""

from collections.abc import Mapping
from typing import Any, Final

from markupsafe import Markup

from coordinator.page import drawing
from coordinator.page.account import Account, Beside
from coordinator.page.drawing import Bar
from coordinator.publishing.measured import measurements
from coordinator.publishing.verdict import Standing, standing

_BETTER: Final = {
    "perplexity": "Lower is better: how many words it hesitates between, on average, in public text that it never saw.",
    "accuracy": "Higher is better: the share of public test texts of which it is right.",
    "correlation": "Higher is better: 1 where it says the true scores, 0 where it says nothing about them.",
}
_KEYS: Final = {
    "perplexity": ("perplexity", "token_perplexity"),
    "accuracy": ("accuracy",),
    "correlation": ("pearson",),
}


def picture(account: Account) -> Markup | None:
    """The student's main measure beside its baselines; None where nothing was measured."""
    found = standing(account.metrics or {})
    if found is None:
        return None
    rows = [Bar("this student", found.value, found.figure(found.value), "own")]
    rows += [_bar(found, each.name, each.value, "free") for each in found.baselines if each.named or each is found.best]
    rows += [
        _bar(found, f"without privacy: {each.name}", value, "other")
        for each in account.beside
        if (value := _main(found, each)) is not None
    ]
    most = 1.0 if found.measure in ("accuracy", "correlation") else None
    finite = [row for row in rows if row.value < 1e9]
    whole = most or max((row.value for row in finite), default=1.0)
    return drawing.bars(f"{found.measure} of the student and others", rows, most=whole, better=_BETTER[found.measure])


def how_to_read(account: Account) -> str | None:
    """A sentence on the main measure, None where nothing was measured."""
    found = standing(account.metrics or {})
    return None if found is None else _BETTER[found.measure]


def missing(account: Account) -> str | None:
    """A sentence on how to see the same without privacy, where that is possible and was not done."""
    if account.beside or not account.simulated or account.metrics is None or standing(account.metrics) is None:
        return None
    return (
        "What the same method would reach without privacy was not measured in this run. A simulated plan can be "
        "compared: coordinator compare PLAN --output DIR, then coordinator report RUN --html FILE --beside DIR."
    )


def measures(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every measurement with its name in words; warnings are apart."""
    return [(label, value) for label, value in measurements(dict(metrics)) if label != "warning"]


def warnings(metrics: Mapping[str, Any] | None) -> list[str]:
    """The sentences of warning among measurements."""
    return [str(each) for each in (metrics or {}).get("warnings", ())]


def _main(found: Standing, other: Beside) -> float | None:
    return next((other.metrics[key] for key in _KEYS[found.measure] if key in other.metrics), None)


def _bar(found: Standing, name: str, value: float, kind: str) -> Bar:
    return Bar(name, value, found.figure(value), kind)
