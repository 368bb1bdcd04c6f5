"""What a student is worth, in its first line: by how much it is better than what costs nothing, or that it is not.

The terminal, the report, the model card and the page of a run all begin with the same sentence.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from coordinator.publishing.measured import shown_perplexity

Kind = Literal["better", "unclear", "nothing", "alone", "unmeasured"]

UNMEASURED: Final = (
    "Not measured: the plan names no public test text, so that nobody can say whether anything was learned."
)
NOT_PRIVATE: Final = "No privacy guarantee."
_ERRORS: Final = 2.0
"""How many standard errors a difference in accuracy has to be wide before it counts."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What costs no privacy: its name in a sentence, and its value by the same measure. named: whether the verdict on a
    better student names it, too, or it only counts.
    """

    name: str
    value: float
    named: bool = True


@dataclass(frozen=True, slots=True)
class Standing:
    """A student by its main measure, beside what costs nothing.

    measure: "perplexity", lower is better, "accuracy" or "correlation". examples: of the public test text, where their
    number decides how exact the measure is.
    """

    measure: Literal["perplexity", "accuracy", "correlation"]
    value: float
    baselines: tuple[Baseline, ...]
    examples: int | None = None

    @property
    def lower(self) -> bool:
        """Whether lower is better."""
        return self.measure == "perplexity"

    @property
    def best(self) -> Baseline | None:
        """The best of what costs nothing, None where nothing was measured beside the student."""
        if not self.baselines:
            return None
        pick = min if self.lower else max
        return pick(self.baselines, key=lambda each: each.value)

    @property
    def better(self) -> bool:
        """Whether the student is better than all of it."""
        best = self.best
        return best is None or (self.value < best.value if self.lower else self.value > best.value)

    @property
    def unclear(self) -> bool:
        """Whether the difference is so small that so few examples cannot tell it from chance.

        Two standard errors of a difference of two shares, taken as if they were of different examples, which is more
        than it is for the same ones.
        """
        best = self.best
        if best is None or self.measure != "accuracy" or not self.examples:
            return False
        spread = self.value * (1 - self.value) + best.value * (1 - best.value)
        return self.value - best.value < _ERRORS * math.sqrt(max(0.0, spread) / self.examples)

    def figure(self, value: float) -> str:
        """A value of this measure as it is written."""
        if self.measure == "perplexity":
            return shown_perplexity(value)
        return f"{100 * value:.1f}%" if self.measure == "accuracy" else f"{value:.3f}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a student. kind: "alone" where nothing free was measured beside it."""

    kind: Kind
    sentence: str


def standing(metrics: Mapping[str, Any]) -> Standing | None:
    """The student's main measure beside its free baselines; None where nothing was measured."""
    if "perplexity" in metrics:
        floors = {
            "unigram_floor": "the floor without any training",
            "public_unigram": "the public text's own word frequencies",
            "public_start": "its public start",
        }
        counts = {"public_unigram"} if metrics.keys() & {"unigram_floor", "public_start"} else set()
        return Standing("perplexity", metrics["perplexity"], _known(metrics, floors, counts))
    if "token_perplexity" in metrics:
        floors = {"floor_perplexity": "the floor without any training", "public_perplexity": "the public model"}
        return Standing("perplexity", metrics["token_perplexity"], _known(metrics, floors))
    for key, measure in (("accuracy", "accuracy"), ("pearson", "correlation")):
        if key in metrics:
            examples = metrics.get("examples")
            return Standing(measure, metrics[key] or 0.0, _free(metrics), examples)  # type: ignore[arg-type]
    return None


def learned_nothing(metrics: Mapping[str, Any]) -> str | None:
    """A sentence where a student is no better on public text than its free baselines.

    The baselines are the model that it began with, and the frequencies of words or classes. None where the student is
    better, or nothing was measured.
    """
    found = standing(metrics)
    if found is None or found.better or found.best is None:
        return None
    digits = (lambda value: f"{value:.3f}") if not found.lower else shown_perplexity
    return (
        f"Learned nothing: its {found.measure} is {digits(found.value)}, and that of {found.best.name} is "
        f"{digits(found.best.value)}."
    )


def verdict(metrics: Mapping[str, Any] | None) -> Verdict:
    """The verdict on a student with these measurements; None or empty where nothing was measured."""
    found = standing(metrics or {})
    if found is None:
        return Verdict("unmeasured", UNMEASURED)
    if (nothing := learned_nothing(metrics or {})) is not None:
        return Verdict("nothing", nothing)
    best, reached = found.best, _reached(found)
    if best is None:
        return Verdict("alone", f"Measured alone: {reached}; nothing that costs no privacy was measured beside it.")
    if found.unclear:
        return Verdict(
            "unclear",
            f"Not clear that anything was learned: {reached}, {_ahead(found, best)}, which so few "
            "texts cannot tell from chance.",
        )
    ahead = " and ".join(_ahead(found, each) for each in found.baselines if each.named or each is best)
    return Verdict("better", f"Better than what costs nothing: {reached}, {ahead}.")


def headline(privacy: Mapping[str, Any] | None, metrics: Mapping[str, Any] | None) -> str:
    """The first line on a finished run: that nothing is guaranteed, where it is so, and the verdict."""
    sentence = verdict(metrics).sentence
    return sentence if privacy is None or promises(privacy) else f"{NOT_PRIVATE} {sentence}"


def promises(privacy: Mapping[str, Any]) -> bool:
    """Whether the content of `privacy.json` promises anything."""
    return bool(privacy.get("guarantee", True)) and privacy["epsilon"] is not None


def _known(metrics: Mapping[str, Any], names: Mapping[str, str], unnamed: Collection[str] = ()) -> tuple[Baseline, ...]:
    return tuple(
        Baseline(name, metrics[key], named=key not in unnamed) for key, name in names.items() if key in metrics
    )


def _free(metrics: Mapping[str, Any]) -> tuple[Baseline, ...]:
    """The free baselines of a classifier or regression; none where the public start was not measured."""
    if not metrics.keys() & {"public_start", "cosine"}:
        return ()
    free = {
        "public_start": "its public start",
        "public_rule": "the public text's own rule",
        "cosine": "the pairs' cosine alone",
    }
    found = [Baseline(name, metrics[key] or 0.0) for key, name in free.items() if key in metrics]
    if "majority" in metrics:
        return (*found, Baseline("always saying the most frequent class", metrics["majority"]))
    return (*found, Baseline("no model", 0.0, named=False))


def _reached(found: Standing) -> str:
    if found.measure == "accuracy":
        of = f"{found.examples:,} public test texts" if found.examples else "the public test texts"
        return f"it is right in {found.figure(found.value)} of {of}"
    where = "public held-out text" if found.lower else "public test text"
    return f"its {found.measure} on {where} is {found.figure(found.value)}"


def _ahead(found: Standing, of: Baseline) -> str:
    """By how much the student is better than a baseline, in words."""
    figure = found.figure(of.value)
    if found.lower:
        return f"{_percent(1 - found.value / of.value)} below {of.name} ({figure})"
    if found.measure == "accuracy":
        return f"{100 * (found.value - of.value):.1f} points above {of.name} ({figure})"
    return f"{found.value - of.value:.3f} above {of.name} ({figure})"


def _percent(share: float) -> str:
    """A share of a perplexity, never rounded to nothing or to all."""
    if share > 0.999:
        return "more than 99.9%"
    return "less than 0.1%" if share < 0.001 else f"{100 * share:.{0 if share >= 0.1 else 1}f}%"
