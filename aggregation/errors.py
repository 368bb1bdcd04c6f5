"""The root of Conclave's errors, and those of this room.

Every message is one or two sentences: what happened, where, and what to do next. The commands print it as it is.
"""


class ConclaveError(Exception):
    """Something a person can act on. Anything else that is raised is a bug."""


class IntegrityError(ConclaveError):
    """A value that cannot be what it claims to be: NaN, a wrong shape, a broken digest, another run's answer."""


class BudgetExhausted(ConclaveError):
    """A release that would cost more than is left, or than the plan allows."""
