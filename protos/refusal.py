"""A party's refusal: a reason on which a program can act, and a sentence for a person.

On the wire a refusal is a gRPC status with the sentence as its message and the reason in the trailing metadata.
"""

from enum import StrEnum
from typing import Final, NoReturn

import grpc

LONGEST: Final = 2000
"""The most bytes of a sentence. gRPC sends each byte as three at most, in a header of which a caller takes 8 KiB."""

SHORTEST: Final = 60
"""The most characters of a name, a version or the name of a rule."""

_PLAIN: Final = frozenset(" .+-_:")

REASON_KEY: Final = "conclave-reason"
RULE_KEY: Final = "conclave-rule"
WHO_KEY: Final = "conclave-who"


class Reason(StrEnum):
    """The kind of refusal. A newer party may send one that is not listed: it is read as `OTHER`."""

    PROTOCOL = "protocol"
    """The two ends speak different protocol versions."""
    PLAN = "plan"
    """The party cannot take this plan: it is broken, or its hash differs."""
    POLICY = "policy"
    """The plan breaks a rule of the party's own policy; the rule's name goes with the refusal."""
    BUDGET = "budget"
    """The ledger cannot pay."""
    NOT_JOINED = "not-joined"
    """The party knows no such run, or the run has ended."""
    ARTEFACT = "artefact"
    """A digest does not match, a kind is not known, or an artefact was never provided."""
    CONFLICT = "conflict"
    """An operation id or batch number already stands for something else."""
    REQUEST = "request"
    """A request makes no sense: rows out of range, an unknown release, no task."""
    SHARD = "shard"
    """The party's own data cannot be used as the plan asks."""
    TRAINING = "training"
    """Training at the party failed."""
    AUTHENTICATION = "authentication"
    """The caller did not show that it may ask."""
    DRAINING = "draining"
    """The node is about to end; it, or its successor, will answer later."""
    STORAGE = "storage"
    """The party's disk does not take the data that must be on it before anything leaves."""
    SECURE_SUM = "secure-sum"
    """A request in a secure sum breaks its rules, or the attempt is over."""
    BUSY = "busy"
    """Too many calls at once, or in a second; the same call may be made again later."""
    MEMORY = "memory"
    """The run needs more memory than the party's own limits allow it."""
    OTHER = "other"


_STATUS: Final = {
    Reason.PROTOCOL: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.PLAN: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.POLICY: grpc.StatusCode.PERMISSION_DENIED,
    Reason.BUDGET: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.NOT_JOINED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.ARTEFACT: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.CONFLICT: grpc.StatusCode.ALREADY_EXISTS,
    Reason.REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.SHARD: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.TRAINING: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.AUTHENTICATION: grpc.StatusCode.UNAUTHENTICATED,
    Reason.DRAINING: grpc.StatusCode.UNAVAILABLE,
    Reason.STORAGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.SECURE_SUM: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.MEMORY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.OTHER: grpc.StatusCode.FAILED_PRECONDITION,
}

_CODES: Final = {
    Reason.PROTOCOL: "C504",
    Reason.POLICY: "C505",
    Reason.BUDGET: "C601",
    Reason.SHARD: "C507",
    Reason.AUTHENTICATION: "C404",
    Reason.DRAINING: "C506",
    Reason.STORAGE: "C506",
    Reason.BUSY: "C506",
    Reason.MEMORY: "C506",
}
"""The codes of errors, where a reason has one of its own. None travels: whoever prints a refusal knows its reason."""


class Refusal(Exception):
    """A party's refusal. `rule` names the policy's rule where `reason` is POLICY, otherwise it is empty.

    who: where `reason` is SECURE_SUM, the party of the plan whose message is at fault, if it is one party's.
    """

    def __init__(self, reason: Reason, sentence: str, rule: str = "", *, who: str = "") -> None:
        sentence = printable(sentence)
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence
        self.rule = rule
        self.who = who

    @property
    def code(self) -> str:
        """The code of the page that says more about refusals of this kind."""
        return _CODES.get(self.reason, "C508")


async def abort(context: grpc.aio.ServicerContext, refusal: Refusal) -> NoReturn:  # type: ignore[type-arg]
    """End the call with this refusal. Always raises grpc's own abort error."""
    metadata = ((REASON_KEY, refusal.reason.value), (RULE_KEY, refusal.rule), (WHO_KEY, refusal.who))
    await context.abort(_STATUS[refusal.reason], refusal.sentence, metadata)


def refusal_of(error: grpc.aio.AioRpcError) -> Refusal | None:
    """The refusal that a failed call carries, or None when the failure is the network's or a bug's."""
    metadata = {str(key): value for key, value in tuple(error.trailing_metadata() or ()) if isinstance(value, str)}
    if REASON_KEY not in metadata:
        return None
    try:
        reason = Reason(metadata[REASON_KEY])
    except ValueError:
        reason = Reason.OTHER
    rule, who = (plain(metadata.get(key, "")) for key in (RULE_KEY, WHO_KEY))
    return Refusal(reason, (error.details() or "").strip() or "no reason given", rule, who=who)


def plain(name: str) -> str:
    """The other end's own words, such as its name, a version, a rule or its library's error: short, and of few
    characters.

    Every other character becomes a question mark: nothing of it can control a terminal, or be Markdown or HTML.
    """
    short = "".join(each if each.isascii() and (each.isalnum() or each in _PLAIN) else "?" for each in name[:SHORTEST])
    return short if len(name) <= SHORTEST else short + "..."


def printable(sentence: str) -> str:
    """A sentence as a terminal may print it, whatever names the other end put into it: printable, and cut to a
    length.
    """
    encoded = "".join(each if each.isprintable() else "?" for each in sentence[:LONGEST]).encode()
    if len(encoded) <= LONGEST and len(sentence) <= LONGEST:
        return encoded.decode()
    return encoded[: LONGEST - 3].decode(errors="ignore") + "..."
