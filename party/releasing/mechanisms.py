"""The mechanism that a release in a plan's terms names, as the party's own object made from the message's numbers."""

from aggregation.errors import ConclaveError
from aggregation.mechanisms.mechanism import Form, Mechanism
from aggregation.mechanisms.outside import OUTSIDE
from aggregation.mechanisms.registry import MECHANISMS, made
from protos.conclave.v1 import plan_pb2
from protos.fields import read, word
from protos.refusal import Reason, Refusal
from protos.steps import is_step


def mechanism_of(release: plan_pb2.Release) -> Mechanism:
    """The mechanism of a release. Raises `Refusal` (PLAN) for one that is unknown or invalid."""
    kind = release.WhichOneof("mechanism")
    if kind is None or kind not in (*MECHANISMS, OUTSIDE):
        *most, last = MECHANISMS
        raise broken(
            f"release {release.name} has no mechanism that this party knows; it knows {', '.join(most)} and {last}"
        )
    try:
        return made(kind, read(getattr(release, kind)))
    except ConclaveError as error:
        raise broken(f"release {release.name}: {str(error).rstrip('.')}") from None


def form_of(release: plan_pb2.Release) -> Form:
    """The form in which a release leaves. Raises `Refusal` (PLAN) for one that its mechanism does not have, or for
    none.

    What a form implies, for example that free answers cost nothing, depends on what its mechanism does: so a
    coordinator gains nothing by giving a release another name.
    """
    mechanism, said = mechanism_of(release), word(plan_pb2.Form, release.form)
    if said == Form.STEPPED and said not in mechanism.forms:
        raise broken(f"release {release.name} is taken in steps and has no gradients")
    if said not in mechanism.forms:
        raise broken(
            f"release {release.name} is of the form {said}, and {mechanism.kind} are {' or '.join(mechanism.forms)}"
        )
    return Form(said)


def answering(release: plan_pb2.Release) -> Mechanism:
    """The mechanism of a release that has rows; under gradients, that of a step or of a model's parameters.

    Raises `Refusal` (REQUEST) for a release that has none.
    """
    mechanism, form = mechanism_of(release), form_of(release)
    if form == Form.TRAINING or (form == Form.STEPPED and not is_step(release)):
        raise Refusal(Reason.REQUEST, f"release {release.name} is a training; nothing is answered under it.")
    return mechanism


def is_weights(release: plan_pb2.Release) -> bool:
    """Whether a release consists of the parameters of a model that one party trained alone."""
    return release.form == plan_pb2.FORM_WEIGHTS


def is_own(release: plan_pb2.Release) -> bool:
    """Whether what leaves is one party's own and in no sum: parameters of a model that it trained alone, what such a
    model says, or rows of a data set. Whatever protects it is that party's own, and is done before it leaves.
    """
    return release.form in (plan_pb2.FORM_WEIGHTS, plan_pb2.FORM_SAID, plan_pb2.FORM_SAMPLES)


def shares_of(mechanism: Mechanism) -> int:
    """How many parties' noise the mechanism counts on; 0 where parties add none, or each adds all of it."""
    return mechanism.shares if mechanism.shares > 1 or Form.SUMMED in mechanism.forms else 0


def broken(what: str) -> Refusal:
    """The refusal of terms that no party could accept."""
    return Refusal(Reason.PLAN, f"the plan cannot be right: {what}.")


def against(rule: str, what: str) -> Refusal:
    """The refusal by a rule of this party's own policy."""
    return Refusal(Reason.POLICY, f"policy {what}.", rule)
