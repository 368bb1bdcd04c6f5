"""How a party's domain classifier descends, as the party is told, and as the coordinator judges what came of it."""

from typing import TYPE_CHECKING

from coordinator.classifier_public import PublicText
from coordinator.classifier_wire import descent_message, model_message
from coordinator.privdistil_plan import PrivDistilPlan
from coordinator.privdistil_terms import DOMAIN, SCORES
from protos.conclave.v1 import party_pb2
from protos.digest import artefact_digest

if TYPE_CHECKING:
    from learning.private_training import Optimisation


def domain_request(
    plan: PrivDistilPlan, domain: PublicText, start: bytes, sample: bytes, asked: bytes
) -> party_pb2.TrainRequest:
    """What one party is asked: to tell its text from public texts.

    start, sample: digests of the parameters and of its public texts. asked: the texts that it then scores, none where
    it gives its weights.
    """
    name = SCORES if asked else DOMAIN
    request = party_pb2.TrainRequest(operation_id=DOMAIN)
    task = request.text_model
    task.release = name
    task.model.CopyFrom(model_message(plan, domain, plan.domain.adapt))
    task.parameters_sha256 = start
    task.descent.CopyFrom(descent_message(plan.domain, expected_batch=float(plan.domain.batch)))
    task.objective = party_pb2.OBJECTIVE_DOMAIN
    task.texts_sha256 = sample
    if asked:
        task.scored_sha256 = artefact_digest(asked)
    return request


def optimisation(plan: PrivDistilPlan) -> "Optimisation":
    """The same as `learning.private_training` takes it."""
    from learning.private_training import Optimisation
    from learning.schedules import Schedule

    domain = plan.domain
    return Optimisation(
        expected_batch=float(domain.batch),
        learning_rate=domain.learning_rate,
        optimiser=domain.optimiser,
        schedule=Schedule(domain.schedule, domain.warm_up),
        momentum=domain.momentum,
        decay=domain.decay,
    )
