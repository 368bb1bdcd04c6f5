"""The mechanism that a release of a plan's terms names: the party's own object, made from the message's numbers."""

from typing import Any, TypeAlias

from google.protobuf.message import Message

from aggregation.errors import ConclaveError
from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.free import FreeAnswers
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.mechanisms.joint import JointMechanism
from aggregation.mechanisms.thresholded import ThresholdedVotes
from aggregation.mechanisms.vectors import VectorMechanism
from aggregation.mechanisms.votes import VotesMechanism
from party.releasing.steps import is_step
from protos.conclave.v1 import plan_pb2
from protos.refusal import Reason, Refusal

Answering: TypeAlias = (
    CountsMechanism | VectorMechanism | JointMechanism | ThresholdedVotes | FreeAnswers | GradientMechanism
)
"""Mechanisms under which rows are answered; under gradients one row a step, or the one row of a model's parameters."""
Named: TypeAlias = Answering


def mechanism_of(release: plan_pb2.Release) -> Named:
    """The mechanism a release names. Raises `Refusal` (PLAN) for one that is unknown or makes no sense."""
    try:
        return _mechanism_of(release)
    except ConclaveError as error:
        raise broken(f"release {release.name}: {str(error).rstrip('.')}") from None


def answering(release: plan_pb2.Release) -> Answering:
    """The same, of a release that has rows. Raises `Refusal` (REQUEST) for one that has none."""
    mechanism = mechanism_of(release)
    if isinstance(mechanism, GradientMechanism) and not is_step(release) and not is_weights(release):
        raise Refusal(Reason.REQUEST, f"release {release.name} is a training; nothing is answered under it.")
    return mechanism


def is_weights(release: plan_pb2.Release) -> bool:
    """Whether what a release gives are the parameters of a model that one party trained alone."""
    return release.weights and release.HasField("gradients") and not release.stepped


def shares_of(mechanism: Named) -> int:
    """How many parties' noise the mechanism counts on; 0 where parties add none, or each trains for itself."""
    match mechanism:
        case CountsMechanism() | VectorMechanism() | JointMechanism():
            return mechanism.shares
        case GradientMechanism() if mechanism.shares > 1:
            return mechanism.shares
    return 0


def broken(what: str) -> Refusal:
    """A refusal of terms that no party could accept."""
    return Refusal(Reason.PLAN, f"the plan cannot be right: {what}.")


def against(rule: str, what: str) -> Refusal:
    """A refusal by a rule of this party's own policy."""
    return Refusal(Reason.POLICY, f"policy {what}.", rule)


def _mechanism_of(release: plan_pb2.Release) -> Named:
    match release.WhichOneof("mechanism"):
        case "counts":
            return CountsMechanism(**_numbers(release.counts))
        case "vectors":
            return VectorMechanism(**_numbers(release.vectors))
        case "joint":
            joint = release.joint
            votes = VotesMechanism(**_numbers(joint.votes)) if joint.HasField("votes") else None
            hidden = HiddenMechanism(**_numbers(joint.hidden)) if joint.HasField("hidden") else None
            return JointMechanism(votes, hidden)
        case "thresholded":
            numbers = _numbers(release.thresholded)
            return ThresholdedVotes(**numbers | {"larger_noise": numbers["larger_noise"] or None})
        case "gradients":
            numbers = _numbers(release.gradients)
            return GradientMechanism(**numbers | {"shares": numbers["shares"] or 1})
        case "free":
            return FreeAnswers(**_numbers(release.free))
    raise broken(
        f"release {release.name} has no mechanism that this party knows; it knows counts, vectors, joint, "
        "thresholded, gradients and free"
    )


def _numbers(message: Message) -> dict[str, Any]:
    """The fields of a mechanism's message by name, which are those of the mechanism."""
    return {name: getattr(message, name) for name in message.DESCRIPTOR.fields_by_name}
