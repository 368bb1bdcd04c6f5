"""Errors of a run, in words for the person who started it."""

from aggregation.errors import ConclaveError


class PlanError(ConclaveError):
    """The plan is wrong; found before any party is contacted."""


class PartyRefused(ConclaveError):
    """A party refused, by a rule of its own."""


class PartyLost(ConclaveError):
    """A party does not answer."""


class RunError(ConclaveError):
    """The run, its store or its folder is in a state that does not allow the request."""


class RunStopped(ConclaveError):
    """The run was asked to stop. Everything that was released is stored, and `coordinator resume` continues it."""


class ClaimRefuted(ConclaveError):
    """An audit found more than the plan claims. Nothing was published."""
