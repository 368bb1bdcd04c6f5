"""The messages that tell parties which text model to train, and how."""

from typing import TYPE_CHECKING, Final

from coordinator.errors import RunError
from coordinator.federation.federation import Federation
from coordinator.store.store import RunStore
from coordinator.text_models.plan import ModelPlan
from coordinator.text_models.public import PublicModel
from coordinator.text_models.tables import DescentTable
from protos.conclave.v1 import party_pb2

if TYPE_CHECKING:
    from learning.models.adapting import Adapt

_ADAPT: Final = {
    "head": party_pb2.ADAPT_HEAD,
    "lora": party_pb2.ADAPT_LORA,
    "lora-all": party_pb2.ADAPT_LORA_ALL,
    "full": party_pb2.ADAPT_FULL,
}
_OPTIMISER: Final = {"adamw": party_pb2.OPTIMISER_ADAMW, "sgd": party_pb2.OPTIMISER_SGD}
_FALLING: Final = {
    "constant": party_pb2.FALLING_CONSTANT,
    "linear": party_pb2.FALLING_LINEAR,
    "cosine": party_pb2.FALLING_COSINE,
}


async def provide_model(
    public: PublicModel, plan: ModelPlan, federation: Federation, store: RunStore, fact: str = "model"
) -> None:
    """Send a public model to every party; a party that has it already does not read the content again.

    fact: the name under which the run stores which model it was. Raises `RunError` where a resumed run began with
    another.
    """
    began = store.fact(fact)
    if began is None:
        store.note(**{fact: public.digest})
    elif began != public.digest:
        raise RunError(
            f"The public model {plan.model.name} is not the one that run {store.id} began with. Put that back, or run "
            "the plan again.",
            code="C108",
        )
    for path in public.files.values():
        await federation.provide("model", path.read_bytes())


def model_message(plan: ModelPlan, public: PublicModel, adapt: "Adapt | None" = None) -> party_pb2.TextModel:
    """The model by its files' digests, and which of its parameters are trained: the plan's setting, or `adapt`."""
    adapt = adapt or plan.model.adapt
    lora = adapt in ("lora", "lora-all")
    return party_pb2.TextModel(
        files=[party_pb2.ModelFile(name=name, sha256=digest) for name, digest in sorted(public.sha256.items())],
        adapt=_ADAPT[adapt],
        rank=plan.model.rank if lora else 0,
        alpha=plan.model.alpha if lora else 0,
        longest=public.longest,
    )


def descent_message(
    settings: DescentTable, *, expected_batch: float = 0.0, epochs: int = 0, batch: int = 0
) -> party_pb2.Descent:
    """How a party trains alone: privately with its expected batch, or for so many epochs in batches."""
    return party_pb2.Descent(
        learning_rate=settings.learning_rate,
        optimiser=_OPTIMISER[settings.optimiser],
        schedule=_FALLING[settings.schedule],
        warm_up=settings.warm_up,
        momentum=settings.momentum,
        decay=settings.decay,
        expected_batch=expected_batch,
        epochs=epochs,
        batch=batch,
    )
