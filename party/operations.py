"""What stands against training something, and what is paid for it before it begins."""

from party.job import Job, Teaching, TextWork, release_of
from party.ledger import Ledger
from party.mechanisms import is_weights
from party.runs import Run
from party.steps import is_step, number_of, whole_of
from party.summing import MOST_ATTEMPTS
from protos.conclave.v1 import plan_pb2
from protos.refusal import Reason, Refusal


async def is_claimed(ledger: Ledger, run: Run, release: plan_pb2.Release, attempt: int) -> bool:
    """Whether something may have left that came out of a release, or of one attempt at a step."""
    if is_step(release):
        return await ledger.used(run.id, release.name, attempt)
    if is_weights(release):  # charged before it is trained
        return await ledger.claimed(run.id, release.name)
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


def paid_before(job: Job) -> plan_pb2.Release | None:
    """The release whose event is charged before a job begins; None where what it makes is charged as it leaves."""
    match job:
        case Job(teaching=Teaching(training=training)) if training:
            return release_of(training)
        case Job(text=TextWork(kind="text_model", training=training)):
            return release_of(training)
    return None
