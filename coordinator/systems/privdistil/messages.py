"""The messages that tell a party how to train its domain classifier."""

from coordinator.systems.privdistil.plan import PrivDistilPlan
from coordinator.systems.privdistil.releases import DOMAIN, SCORES
from coordinator.text_models.messages import descent_message, model_message
from coordinator.text_models.public import PublicText
from protos.conclave.v1 import party_pb2
from protos.digest import artefact_digest


def domain_request(
    plan: PrivDistilPlan, domain: PublicText, start: bytes, sample: bytes, asked: bytes
) -> party_pb2.TrainRequest:
    """The request that one party train a classifier to tell its text from public texts.

    start, sample: digests of the start parameters and of the party's public texts. asked: the texts to score
    afterwards, none where the party releases its weights.
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
