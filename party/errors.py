"""Errors of a party, in words for its administrator."""

from aggregation.errors import ConclaveError


class PartyError(ConclaveError):
    """The party cannot do what its administrator asked: a port is in use, another node holds the folder."""

    CODE = "C302"


class ShardError(ConclaveError):
    """The party's own text cannot be used as the plan asks. The sentence names the source, never a word of it."""

    CODE = "C507"


class EmptyShard(ShardError):
    """There is no usable text in the shard, or in a party's part of a source. For its owner alone."""


class TrainingError(ConclaveError):
    """Training at this party failed for a reason that is neither the plan's nor the shard's."""

    CODE = "C508"
