"""Turns a request into a job: reasons to refuse it, and the charge before the shard is opened."""

import os
from pathlib import Path
from typing import Literal, cast

from party.admission.recipes import task_of, tasks_of
from party.config import PartyConfig
from party.ledger.ledger import Ledger
from party.releasing.mechanisms import against
from party.releasing.secure_sums import MOST_ATTEMPTS
from party.store.artefacts import Artefacts
from party.store.runs import Run
from party.tasks.job import Job, Spread, release_of
from party.tasks.machine import Machine
from party.tasks.task import SPREAD, Asks, Given, request_of
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import operation_digest
from protos.fields import word
from protos.refusal import Reason, Refusal
from protos.steps import is_step, number_of, whole_of


async def is_claimed(ledger: Ledger, run: Run, release: plan_pb2.Release, attempt: int) -> bool:
    """Whether something of a release, or of one attempt at a step, may have left."""
    if is_step(release):
        return await ledger.used(run.id, release.name, attempt)
    return await ledger.sent(run.id, release.name)


def check_step(run: Run, release: plan_pb2.Release, attempt: int) -> None:
    """Raises `Refusal`: CONFLICT for a step that is over, REQUEST for an attempt that the plan does not allow."""
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


def job_of(
    request: party_pb2.TrainRequest,
    run: Run,
    config: PartyConfig,
    artefacts: Artefacts,
    home: Path,
    census_key: bytes,
    machine: Machine | None = None,
) -> Job:
    """The job that does what a request asks. machine: what it runs on; by default the file's, with nothing looked up.

    Raises `Refusal`: POLICY (`recipes`) for a task that the run's recipe does not have, and as `Request.checked` for
    one that cannot be done.
    """
    asks = Asks.of(request)
    release = run.release(asks.release)
    _admit_task(request, release, run.terms)
    privacy = run.terms.privacy
    given = Given(release, run, config, artefacts, home)
    work = request_of(asks.kind).checked(getattr(request, asks.kind), given)
    machine = machine or Machine.of(config.compute)
    return Job(
        parent=os.getpid(),
        shard=config.shard.model_dump(),
        policy=config.policy.model_dump(),
        record=cast(Literal["document", "sentence", "pair"], word(plan_pb2.Record, privacy.record)),
        by_user=privacy.unit == plan_pb2.UNIT_USER,
        release=release.SerializeToString().hex(),
        cache=str(home / "cache"),
        result=str(run.counts(release.name, asks.attempt)),
        work=work,
        census=str(run.census(release.name)),
        census_key=census_key.hex(),
        memory=config.limits.memory_mib,
        spread=None if config.cluster is None else Spread(config.cluster.address, config.cluster.tasks),
        compute=machine.compute(
            models=work.models,
            reproducible=privacy.insecure_reproducible_noise,
            spread=config.cluster is not None and asks.kind in SPREAD,
        ),
    )


def check_fit(job: Job) -> None:
    """Check a request against what was provided, before any training is charged. Blocks: it reads files.

    Raises `Refusal` (ARTEFACT, REQUEST, MEMORY) as `Request.fits` does.
    """
    request_of(job.work.kind).fits(job.work, release_of(job.release), job.memory)


def charge_of(job: Job) -> plan_pb2.Release:
    """The release whose event is charged before a job opens the shard.

    It is the training's where the training is what costs; otherwise it is the release that is made, which is charged
    here and not again when it leaves.
    """
    return request_of(job.work.kind).paid_before(job.work) or release_of(job.release)


def training_digest(request: party_pb2.TrainRequest) -> bytes:
    """The digest of what a request trains, 32 bytes, whatever the operation's name and the attempt at a step."""
    bare = party_pb2.TrainRequest()
    bare.CopyFrom(request)
    bare.ClearField("operation_id")
    task = getattr(bare, Asks.of(bare).kind)
    if "attempt" in task.DESCRIPTOR.fields_by_name:
        task.ClearField("attempt")
    return operation_digest(bare)


def _admit_task(request: party_pb2.TrainRequest, release: plan_pb2.Release, terms: plan_pb2.Terms) -> None:
    task, known = task_of(request), tasks_of(terms, release)
    if task not in known:
        given = f"is given by {' or '.join(sorted(known))}" if known else "is given by no task"
        raise against("recipes", f"recipes: release {release.name} of {terms.recipe} {given}, not by {task}")
