"""The base class of Conclave's errors, and the errors of this package.

Every message is one or two sentences: what happened, where, and what to do next. The commands print it as it is, and
after it the code of a page that says more (`coordinator explain CODE`).
"""

import errno
from typing import ClassVar

_FULL = {errno.ENOSPC, errno.EDQUOT}


class ConclaveError(Exception):
    """An error on which a person can act. Any other exception is a bug.

    code: of a page in `protos/console/errors`. There is one for each trouble that a person solves in one way, so many
    sentences share one. Unless it is given, it is that of the error whose sentence this one repeats (`raise
    PlanError(f"[run]: {error}") from None`), or else the class's own.
    """

    CODE: ClassVar[str] = "C105"
    _code: str = ""

    def __init__(self, *args: object, code: str = "") -> None:
        super().__init__(*args)
        self._code = code

    @property
    def code(self) -> str:
        """The code of the page that says more."""
        return self._code or _repeated(self) or self.CODE


class IntegrityError(ConclaveError):
    """A value that is not what it claims to be: NaN, a wrong shape, a wrong digest, another run's answer."""

    CODE = "C802"


class BudgetExhausted(ConclaveError):
    """A release that would cost more than is left, or than the plan allows."""

    CODE = "C602"


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

    CODE = "C501"


def code_of(error: BaseException) -> str:
    """The code of the page that says more about an error; empty for one of no such page, which is a bug."""
    if isinstance(error, OSError):
        return "C301" if error.errno in _FULL else "C102" if isinstance(error, FileNotFoundError) else "C302"
    code = getattr(error, "code", "")
    return code if isinstance(code, str) else ""


def _repeated(error: ConclaveError) -> str:
    """The code of the error that this one was made of while it was handled; empty where its sentence is not in it."""
    other = error.__cause__ or error.__context__
    if other is None:
        return ""
    said = (other.strerror or "") if isinstance(other, OSError) else str(other)
    return code_of(other) if said and said.lower() in str(error).lower() else ""
