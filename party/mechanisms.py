"""The mechanism that a release of a plan's terms names: the party's own object, made from the message's numbers."""

from typing import TypeAlias

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
            counts = release.counts
            return CountsMechanism(
                clip=counts.clip, levels=counts.levels, noise_multiplier=counts.noise_multiplier, shares=counts.shares
            )
        case "vectors":
            vectors = release.vectors
            return VectorMechanism(
                clip=vectors.clip,
                levels=vectors.levels,
                noise_multiplier=vectors.noise_multiplier,
                shares=vectors.shares,
            )
        case "joint":
            return _joint(release.joint)
        case "thresholded":
            votes = release.thresholded
            return ThresholdedVotes(
                classes=votes.classes,
                teachers=votes.teachers,
                threshold=votes.threshold,
                threshold_noise=votes.threshold_noise,
                noise=votes.noise,
                larger_noise=votes.larger_noise or None,
                cap=votes.cap,
            )
        case "gradients":
            training = release.gradients
            return GradientMechanism(
                clip=training.clip,
                levels=training.levels,
                noise_multiplier=training.noise_multiplier,
                sampling_probability=training.sampling_probability,
                steps=training.steps,
                parameters=training.parameters,
            )
        case "free":
            free = release.free
            return FreeAnswers(
                after=free.after,
                classes=free.classes,
                layers=free.layers,
                width=free.width,
                clip=free.clip,
                levels=free.levels,
            )
    raise broken(
        f"release {release.name} has no mechanism that this party knows; it knows counts, vectors, joint, "
        "thresholded, gradients and free"
    )


def _joint(joint: plan_pb2.JointMechanism) -> JointMechanism:
    votes = hidden = None
    if joint.HasField("votes"):
        votes = VotesMechanism(
            classes=joint.votes.classes,
            levels=joint.votes.levels,
            noise=joint.votes.noise,
            shares=joint.votes.shares,
        )
    if joint.HasField("hidden"):
        hidden = HiddenMechanism(
            layers=joint.hidden.layers,
            width=joint.hidden.width,
            clip=joint.hidden.clip,
            levels=joint.hidden.levels,
            noise=joint.hidden.noise,
            shares=joint.hidden.shares,
        )
    return JointMechanism(votes, hidden)
