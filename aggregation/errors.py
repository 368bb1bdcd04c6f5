"""The base class of Conclave's errors, and the errors of this package.

Every message is one or two sentences: what happened, where, and what to do next. The commands print it as it is.
"""


class ConclaveError(Exception):
    """An error on which a person can act. Any other exception is a bug."""


class IntegrityError(ConclaveError):
    """A value that is not what it claims to be: NaN, a wrong shape, a wrong digest, another run's answer."""


class BudgetExhausted(ConclaveError):
    """A release that would cost more than is left, or than the plan allows."""


COORDINATOR = "the coordinator"


class Cheated(IntegrityError):
    """A violation of the rules of a secure sum; whoever detects it does not proceed on that message.

    who: the party answerable for it, or `COORDINATOR`. The sentence begins with who and says what was done.
    """

    def __init__(self, who: str, did: str) -> None:
        super().__init__(who, did)
        self.who = who

    def __str__(self) -> str:
        who, did = self.args
        return f"{'The coordinator' if who == COORDINATOR else who} {did}"


class AttemptLost(ConclaveError):
    """Too few parties are left for this attempt at a secure sum: nothing is unmasked, and another attempt may
    follow.
    """
