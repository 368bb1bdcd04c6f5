"""A recipe as a party knows it: what its plans may release together, and by which tasks."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias


class Kind(StrEnum):
    """The kind of a release, named in refusals."""

    COUNTS = "counts"
    MOMENTS = "moments"
    VOTES = "noised votes"
    HIDDEN = "noised hidden states"
    VOTES_AND_HIDDEN = "noised votes with hidden states"
    CLEAR_VOTES = "votes without noise"
    TRAINING = "a private training that gives nothing itself"
    ANSWERS = "free answers of teachers"
    SCORES = "free scores"
    TEXTS = "free texts of a language model"
    TARGETS = "free outcomes of tokens"
    DIFFERENCES = "noised differences of language models from a public one"
    SOFTENED = "softened outcomes of tokens, without a guarantee"
    SAMPLES = "a noisy vector of each text"
    SEQUENCES = "a noisy sequence of each text, without a guarantee"
    STEPS = "gradients in steps"
    WEIGHTS = "the parameters of a model"


@dataclass(frozen=True, slots=True)
class Part:
    """Releases of one kind: how many of them a plan may have, and by which tasks they are made.

    A task is named as its field in `TrainRequest.task`; a text model's task, by what it learns (`LABELS`, `DOMAIN`,
    `LANGUAGE`), and a step of a language model `LANGUAGE_STEP`.
    """

    most: int
    tasks: frozenset[str]


Form: TypeAlias = Mapping[Kind | str, Part]
"""The parts that a plan may release together; it may leave any of them out. A text is of `outside`."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The forms that its plans may have, whether it reads labels, and whether it reads control codes."""

    forms: tuple[Form, ...]
    labelled: bool = False
    coded: bool = False


LABELS: Final = "text_model for labels"
DOMAIN: Final = "text_model for a domain"
LANGUAGE: Final = "text_model for language"
LANGUAGE_STEP: Final = "step for language"
MOST_ROUNDS: Final = 50
"""The most rounds of training at each party alone, after each of which parameters are averaged."""


def outside(kind: str) -> str:
    """The kind of a release under a mechanism of another package, by that mechanism's kind."""
    return f"sums under {kind}, a mechanism of another package"


def part(*tasks: str, most: int = 1) -> Part:
    """At most so many releases, each made by one of these tasks."""
    return Part(most, frozenset(tasks))


STEPS: Final[Form] = {Kind.STEPS: part("step")}
"""One training of all parties together, step by step."""
