"""What stands against training something, and what is charged for it before the shard is opened."""

from party.ledger.ledger import Ledger
from party.releasing.secure_sums import MOST_ATTEMPTS
from party.store.runs import Run
from party.tasks.job import Job, Teaching, TextWork, release_of
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import operation_digest
from protos.refusal import Reason, Refusal
from protos.steps import is_step, number_of, whole_of


async def is_claimed(ledger: Ledger, run: Run, release: plan_pb2.Release, attempt: int) -> bool:
    """Whether something may have left that came out of a release, or of one attempt at a step."""
    if is_step(release):
        return await ledger.used(run.id, release.name, attempt)
    return await ledger.sent(run.id, release.name)


def check_step(run: Run, release: plan_pb2.Release, attempt: int) -> None:
    """Raises `Refusal`: CONFLICT for a step that is over, REQUEST for an attempt that the plan cannot have."""
    last = run.last_step(release.name)
    if last is not None and last > (number_of(release.name) or 0):
        raise Refusal(
            Reason.CONFLICT, f"step {release.name} is over: step {last} of {whole_of(release.name)} was trained."
        )
    if attempt >= MOST_ATTEMPTS or (attempt and run.terms.privacy.trust != plan_pb2.TRUST_SECURE_SUM):
        raise Refusal(
            Reason.REQUEST,
            f"attempt {attempt} at {release.name} makes no sense: there are {MOST_ATTEMPTS:,} under a secure sum, and "
            "one under a trusted aggregator.",
        )


def charge_of(job: Job) -> plan_pb2.Release:
    """The release whose event is charged before a job opens the shard.

    That of the training, where the training is what costs; else that of what is made, which is charged here and not
    again when it leaves.
    """
    match job:
        case Job(teaching=Teaching(training=training)) if training:
            return release_of(training)
        case Job(text=TextWork(kind="text_model", training=training)):
            return release_of(training)
    return release_of(job.release)


def training_digest(request: party_pb2.TrainRequest) -> bytes:
    """What a request has trained, whatever the operation is called and for which attempt at a step it is: 32 bytes."""
    bare = party_pb2.TrainRequest()
    bare.CopyFrom(request)
    bare.ClearField("operation_id")
    if bare.HasField("step"):
        bare.step.ClearField("attempt")
    return operation_digest(bare)
