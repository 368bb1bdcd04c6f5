"""Errors of a run, in words for the person who started it."""

from typing import Any

from aggregation.errors import ConclaveError


class PlanError(ConclaveError):
    """The plan is wrong; found before any party is contacted."""


class PartyRefused(ConclaveError):
    """A party refused, by a rule of its own."""

    CODE = "C508"


class PartyLost(ConclaveError):
    """A party does not answer."""

    CODE = "C501"


class RunError(ConclaveError):
    """The run, its store or its folder is in a state that does not allow the request."""

    CODE = "C703"


class RunStopped(ConclaveError):
    """The run was asked to stop. Everything that was released is stored, and `coordinator resume` continues it."""

    CODE = "C701"


class ClaimRefuted(ConclaveError):
    """An audit found more than the plan claims. Nothing was published."""

    CODE = "C603"


class ComparisonStopped(RunStopped):
    """A comparison was interrupted. so_far: the `Comparison` of the cells that are there; None before the first."""

    def __init__(self, sentence: str, so_far: Any) -> None:
        super().__init__(sentence)
        self.so_far = so_far
