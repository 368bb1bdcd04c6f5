"""Private training of a text model by all parties, in federated steps or in rounds of local training.

Every recipe that trains a model privately uses it.
"""

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from dp_accounting import DpEvent, SelfComposedDpEvent
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from aggregation.mechanisms.gradients import GradientMechanism, fine_levels
from aggregation.mechanisms.mechanism import Form
from coordinator.errors import PlanError, RunError
from coordinator.federation.federation import Federation
from coordinator.pricing.release import PricedPlan, Release, shares, unpromised
from coordinator.publishing.heard import Steps
from coordinator.store.store import RunStore
from coordinator.text_models.messages import descent_message, model_message
from coordinator.text_models.plan import TrainedPlan
from coordinator.text_models.public import PublicModel
from coordinator.text_models.tables import DescentTable
from protos.conclave.v1 import party_pb2
from protos.digest import artefact_digest

if TYPE_CHECKING:
    from learning.private_training.optimisation import Optimisation, Training

STEPS: Final = "steps"
ROUND: Final = "round"
DESCENT: Final = "artefacts/descent.safetensors"
LARGEST_SUM: Final = 2**31 - 1
_HEADROOM: Final = 8
"""How many times larger than expected a batch may be before a sum could wrap."""

LARGEST_WEIGHT: Final = 1e6
"""The largest size of a weight in a party's model: far above any that training ends with, far below any that makes a
mean overflow.
"""

Floats: TypeAlias = NDArray[np.float32]


def descent_releases(plan: TrainedPlan, multiplier: float, parameters: int) -> tuple[Release, ...]:
    """The releases of a training of so many parameters at this noise multiplier. Raises `PlanError`."""
    settings = plan.dp_sgd
    if settings.form == "federated":
        steps = mechanism(plan, multiplier, parameters, settings.steps)
        return (Release(STEPS, steps, 1, parameters, attempts=plan.privacy.attempts, form=Form.STEPPED),)
    once = mechanism(plan, multiplier, parameters, settings.steps // settings.rounds)
    return tuple(
        Release(f"{ROUND}-{number}", once, 1, parameters, form=Form.WEIGHTS) for number in range(settings.rounds)
    )


def descent_event(plan: TrainedPlan, multiplier: float, parameters: int) -> DpEvent:
    """An event that costs no less than all of these releases."""
    every = mechanism(plan, multiplier, parameters, plan.dp_sgd.steps).event()
    return every if plan.privacy.attempts == 1 else SelfComposedDpEvent(every, plan.privacy.attempts)


async def descend(
    priced: PricedPlan[TrainedPlan],
    releases: tuple[Release, ...],
    public: PublicModel,
    federation: Federation,
    store: RunStore,
    tilt: bytes = b"",
) -> dict[str, int]:
    """Run all steps or rounds after the last stored one; returns how many parties are in the smallest sum of each
    release.

    The parties have the model that `public` was made from. tilt: the digest of what parties add to a language model's
    logits, which they have; empty for nothing. Raises what the federation's verbs raise, and `RunError` for
    a damaged optimiser state.
    """
    if priced.plan.dp_sgd.form == "federated":
        (release,) = releases
        return await _steps(priced, release, public, federation, store, tilt)
    return await _rounds(priced, releases, public, federation, store, tilt)


def mechanism(plan: TrainedPlan, multiplier: float, parameters: int, steps: int) -> GradientMechanism:
    """The mechanism of so many noisy gradient sums. Raises `PlanError`."""
    settings = plan.dp_sgd
    levels = min(fine_levels(multiplier, parameters), max(1, LARGEST_SUM // (_HEADROOM * settings.batch)))
    try:
        return GradientMechanism(
            clip=settings.clip,
            levels=levels,
            noise_multiplier=multiplier,
            sampling_probability=plan.sampling,
            steps=steps,
            parameters=parameters,
            shares=shares(plan) if settings.form == "federated" else 1,
        )
    except ConclaveError as error:
        raise PlanError(f"[dp_sgd] The steps cannot be released under this plan: {error}") from None


def optimisation_of(settings: DescentTable, expected_batch: float) -> "Optimisation":
    """The optimiser that noisy sums are given to. expected_batch: the public number that a sum is divided by."""
    from learning.models.optimisers import Schedule
    from learning.private_training.optimisation import Optimisation

    return Optimisation(
        expected_batch=expected_batch,
        learning_rate=settings.learning_rate,
        optimiser=settings.optimiser,
        schedule=Schedule(settings.schedule, settings.warm_up),
        momentum=settings.momentum,
        decay=settings.decay,
    )


async def _steps(
    priced: PricedPlan[TrainedPlan],
    release: Release,
    public: PublicModel,
    federation: Federation,
    store: RunStore,
    tilt: bytes,
) -> dict[str, int]:
    """Run all steps after the last stored one; returns how many parties are in the smallest sum."""
    plan = priced.plan
    mechanism = release.under(GradientMechanism)
    descent, note = _descent(plan, public, store), unpromised(plan)
    hearing = Steps(release.name, store)
    while descent.done < release.steps:
        number = descent.done
        one = release.step(number)
        start = np.ascontiguousarray(descent.point.numpy(), "<f4").tobytes()
        await federation.provide("parameters", start)

        async def train(attempt: int, number: int = number, name: str = one.name, start: bytes = start) -> None:
            request = party_pb2.TrainRequest(operation_id=f"{STEPS}-{number}-{attempt}")
            request.step.release, request.step.attempt = name, attempt
            request.step.model.CopyFrom(model_message(plan, public))
            request.step.parameters_sha256 = artefact_digest(start)
            if plan.OBJECTIVE != party_pb2.OBJECTIVE_LABELS:
                request.step.objective, request.step.tilt_sha256 = plan.OBJECTIVE, tilt
            then = "training" if number + 1 < release.steps else "trained"
            await federation.train(request, doing="training", then=then)

        if plan.privacy.trust == "secure-sum":
            present = await federation.sum_securely(one, priced.binding.terms, 1, store, before=train)
        else:
            await train(0)
            present = await federation.aggregate(one.name, one.rows, one.columns, 1, store, note)
        ((_, _, total),) = store.blocks(one.name)
        made = mechanism.release(total[0], present)
        hearing.add(made, descent.done)
        noisy = made.values
        # The divisor counts all parties' units; with fewer parties the sum is smaller in proportion.
        descent.step((noisy * (len(plan.federation.names) / present)).astype(np.float32))
        store.write(DESCENT, _packed(descent))
        store.drop_blocks(one.name)
        federation.stepped(release.name, descent.done, release.steps, note)
    hearing.keep()
    return {release.name: min(len(store.summed(release.step(number).name)) for number in range(release.steps))}


async def _rounds(
    priced: PricedPlan[TrainedPlan],
    releases: tuple[Release, ...],
    public: PublicModel,
    federation: Federation,
    store: RunStore,
    tilt: bytes,
) -> dict[str, int]:
    """Run all rounds of local training: each begins with the mean of the models of the one before."""
    point, present = public.start, {}
    for number, release in enumerate(releases):
        if not (store.folder / _round_file(number)).exists():
            models = await trained_alone(priced, release, public, federation, point, tilt)
            mean = np.mean(list(models.values()), axis=0, dtype=np.float64)
            store.begin_sum(release.name, list(models))
            store.write(_round_file(number), mean.astype("<f4").tobytes())
        point = np.frombuffer((store.folder / _round_file(number)).read_bytes(), "<f4").astype(np.float32)
        present[release.name] = len(store.summed(release.name))
    return present


async def trained_alone(
    priced: PricedPlan[TrainedPlan],
    release: Release,
    public: PublicModel,
    federation: Federation,
    point: Floats,
    tilt: bytes = b"",
) -> dict[str, Floats]:
    """Have every party train alone from a point [parameters]; returns what each trained, by its name."""
    plan = priced.plan
    start = np.ascontiguousarray(point, "<f4").tobytes()
    await federation.provide("parameters", start)
    await federation.train(alone_request(plan, public, release.name, start, tilt), doing="training")
    note = unpromised(plan)
    models = await federation.gather(release.name, 1, release.columns, 1, note, odd=odd_weights)
    return {name: floats_of(model) for name, model in models.items()}


def alone_request(
    plan: TrainedPlan, public: PublicModel, release: str, start: bytes, tilt: bytes
) -> party_pb2.TrainRequest:
    """The request that one party train alone for a release, from provided parameters. tilt: as of `descend`."""
    request = party_pb2.TrainRequest(operation_id=release)
    request.text_model.release = release
    request.text_model.model.CopyFrom(model_message(plan, public))
    request.text_model.parameters_sha256 = artefact_digest(start)
    request.text_model.objective, request.text_model.tilt_sha256 = plan.OBJECTIVE, tilt
    request.text_model.descent.CopyFrom(_local_descent(plan))
    return request


def floats_of(bits: NDArray[np.int64]) -> Floats:
    """A party's parameters from the received bits, int [1, parameters]."""
    found: Floats = bits[0].astype(np.int32).view(np.float32)
    return found


def odd_weights(bits: NDArray[np.int64]) -> str:
    """Why a party's model cannot be averaged with the others; empty where it can.

    A model that is merely wrong cannot be recognised: only the party has seen its text.
    """
    found = floats_of(bits)
    if not np.isfinite(found).all():
        return "its model holds NaN or infinity"
    if np.abs(found).max(initial=0.0) > LARGEST_WEIGHT:
        return f"its model holds a weight above {LARGEST_WEIGHT:,.0f}, which no training gives"
    return ""


def descended(plan: TrainedPlan, public: PublicModel, store: RunStore) -> Floats:
    """The trained parameters, [parameters]."""
    if plan.dp_sgd.form == "federated":
        kept: Floats = _descent(plan, public, store).point.numpy()
        return kept
    content = (store.folder / _round_file(plan.dp_sgd.rounds - 1)).read_bytes()
    found: Floats = np.frombuffer(content, "<f4").astype(np.float32)
    return found


def _round_file(number: int) -> str:
    return f"artefacts/{ROUND}-{number}.f32"


def _descent(plan: TrainedPlan, public: PublicModel, store: RunStore) -> "Training":
    """The optimiser in its stored state. Raises `RunError` for a state that is damaged."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load

    from learning.private_training.optimisation import Training

    optimisation = optimisation_of(plan.dp_sgd, plan.dp_sgd.batch)
    descent = Training(torch.from_numpy(public.start), optimisation, plan.dp_sgd.steps)
    path = store.folder / DESCENT
    if path.exists():
        try:
            descent.resume(load(path.read_bytes()))
        except (SafetensorError, ConclaveError) as error:
            raise RunError(
                f"{path} is damaged: {error} The run cannot go on. Run its plan again.", code="C802"
            ) from None
    return descent


def _packed(descent: "Training") -> bytes:
    from safetensors.torch import save

    content: bytes = save({name: each.contiguous() for name, each in descent.state().items()})
    return content


def _local_descent(plan: TrainedPlan) -> party_pb2.Descent:
    """A party's own training: its units are an equal share of the declared ones."""
    settings = plan.dp_sgd
    return descent_message(settings, expected_batch=settings.batch / len(plan.federation.names))
