"""The mechanism that a release of a plan's terms names: the party's own object, made from the message's numbers."""

from typing import Any, TypeAlias

from google.protobuf.message import Message

from aggregation.counts import CountsMechanism
from aggregation.errors import ConclaveError
from aggregation.free import FreeAnswers
from aggregation.gradients import GradientMechanism
from aggregation.hidden import HiddenMechanism
from aggregation.joint import JointMechanism
from aggregation.thresholded import ThresholdedVotes
from aggregation.vectors import VectorMechanism
from aggregation.votes import VotesMechanism
from protos.conclave.v1 import plan_pb2
from protos.refusal import Reason, Refusal

Answering: TypeAlias = CountsMechanism | VectorMechanism | JointMechanism | ThresholdedVotes | FreeAnswers
"""Mechanisms under which rows are answered."""
Named: TypeAlias = Answering | GradientMechanism


def mechanism_of(release: plan_pb2.Release) -> Named:
    """The mechanism a release names. Raises `Refusal` (PLAN) for one that is unknown or makes no sense."""
    try:
        return _mechanism_of(release)
    except ConclaveError as error:
        raise broken(f"release {release.name}: {str(error).rstrip('.')}") from None


def answering(release: plan_pb2.Release) -> Answering:
    """The same, of a release that has rows. Raises `Refusal` (REQUEST) for one that has none."""
    mechanism = mechanism_of(release)
    if isinstance(mechanism, GradientMechanism):
        raise Refusal(Reason.REQUEST, f"release {release.name} is a training; nothing is answered under it.")
    return mechanism


def shares_of(mechanism: Named) -> int:
    """How many parties' noise the mechanism counts on; 0 where parties add none."""
    return mechanism.shares if isinstance(mechanism, CountsMechanism | VectorMechanism | JointMechanism) else 0


def broken(what: str) -> Refusal:
    """A refusal of terms that no party could accept."""
    return Refusal(Reason.PLAN, f"the plan cannot be right: {what}.")


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
            return GradientMechanism(**_numbers(release.gradients))
        case "free":
            return FreeAnswers(**_numbers(release.free))
    raise broken(
        f"release {release.name} has no mechanism that this party knows; it knows counts, vectors, joint, "
        "thresholded, gradients and free"
    )


def _numbers(message: Message) -> dict[str, Any]:
    """The fields of a mechanism's message by name, which are those of the mechanism."""
    return {name: getattr(message, name) for name in message.DESCRIPTOR.fields_by_name}
