"""What can go wrong at a party, in words for its administrator."""

from aggregation.errors import ConclaveError


class PartyError(ConclaveError):
    """The party cannot do what its administrator asked: a port in use, a folder that another node holds."""


class ShardError(ConclaveError):
    """The party's own text cannot be used as the plan asks. The sentence names the source, never a word of it."""


class TrainingError(ConclaveError):
    """Training at this party failed for a reason that is neither the plan's nor the shard's."""
