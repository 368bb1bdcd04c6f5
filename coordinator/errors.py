"""What can go wrong with a run, in words for the person who started it."""

from aggregation.errors import ConclaveError


class PlanError(ConclaveError):
    """The plan is wrong. Found before any party is contacted."""


class PartyRefused(ConclaveError):
    """A party said no, by a rule of its own."""


class PartyLost(ConclaveError):
    """A party does not answer."""


class RunError(ConclaveError):
    """The run, its store or its folder is not in a state that allows what was asked."""


class RunStopped(ConclaveError):
    """The run was asked to stop. Everything that was released is stored, and `coordinator resume` goes on."""
