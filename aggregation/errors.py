"""The root of Conclave's errors, and those of this room.

Every message is one or two sentences: what happened, where, and what to do next. The commands print it as it is.
"""


class ConclaveError(Exception):
    """Something a person can act on. Anything else that is raised is a bug."""


class IntegrityError(ConclaveError):
    """A value that cannot be what it claims to be: NaN, a wrong shape, a broken digest, another run's answer."""


class BudgetExhausted(ConclaveError):
    """A release that would cost more than is left, or than the plan allows."""


COORDINATOR = "the coordinator"


class Cheated(IntegrityError):
    """Something in a secure sum that its rules forbid; whoever sees it goes no further on that message.

    who: the party answerable for it, or `COORDINATOR`. The sentence begins with who and says what was done.
    """

    def __init__(self, who: str, did: str) -> None:
        super().__init__(who, did)
        self.who = who

    def __str__(self) -> str:
        who, did = self.args
        return f"{'The coordinator' if who == COORDINATOR else who} {did}"


class AttemptLost(ConclaveError):
    """Too few parties are left for this attempt at a secure sum: nothing is unmasked, and a new attempt may follow."""
