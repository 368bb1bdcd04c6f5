"""Errors of a party, in words for its administrator."""

from aggregation.errors import ConclaveError


class PartyError(ConclaveError):
    """The party cannot do what its administrator asked: a port is in use, another node holds the folder."""


class ShardError(ConclaveError):
    """The party's own text cannot be used as the plan asks. The sentence names the source, never a word of it."""


class TrainingError(ConclaveError):
    """Training at this party failed for a reason that is neither the plan's nor the shard's."""
