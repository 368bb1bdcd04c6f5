"""The student is trained on by those who have little text: each alone, under DP-SGD, after teachers have taught it.

The loss of the paper is l * SD + (1 - l) * CE on the texts of whoever has little. Here SD, and the CE of the same
tokens, are of public texts, and the CE of the learners' own text follows, by steps of which each is noised. Their
records are in nothing else, and what teachers said is no record of theirs, so that neither guarantee costs the other.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from aggregation.accounting.price import calibrate
from aggregation.errors import ConclaveError
from aggregation.mechanisms.gradients import GradientMechanism, fine_levels
from aggregation.mechanisms.mechanism import Form
from coordinator.errors import PlanError, RunError
from coordinator.federation.aside import Told
from coordinator.federation.federation import Federation
from coordinator.language_models.students import PublicTeacher, first_student
from coordinator.pricing.release import SAMPLER_SHARE, PricedPlan, Release, unpromised
from coordinator.progress.progress import Silent
from coordinator.store.store import RunStore
from coordinator.systems.swing.plan import LearnerTable, SwingPlan
from coordinator.text_models.federated_training import LARGEST_SUM, floats_of, odd_weights
from coordinator.text_models.messages import descent_message, model_message, provide_model
from coordinator.text_models.public import PublicModel, marked
from protos.conclave.v1 import party_pb2
from protos.digest import artefact_digest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LEARNED: Final = "learned"
"""The name of the release, and of the file of its mean."""
_FILE: Final = f"artefacts/{LEARNED}.f32"
_HEADROOM: Final = 8
"""How many times larger than expected a batch may be before a sum could wrap."""


def training(plan: SwingPlan, settings: LearnerTable, parameters: int) -> Release:
    """What every learner releases: the parameters that it trained alone, under all of the noise.

    Its unit is in none of the sums of what teachers say, so the training may cost all of the plan's epsilon. L2
    sensitivity of a step under add-or-remove of one unit: `[learner] clip`. Raises `PlanError`.
    """
    delta = plan.privacy.delta * (1 - SAMPLER_SHARE)
    try:
        multiplier = _calibrated(plan.privacy.epsilon, delta, settings.sampling, settings.steps)
        levels = min(fine_levels(multiplier, parameters), max(1, LARGEST_SUM // (_HEADROOM * settings.batch)))
        mechanism = GradientMechanism(settings.clip, levels, multiplier, settings.sampling, settings.steps, parameters)
    except ConclaveError as error:
        raise PlanError(f"[learner] The student cannot be trained under this plan: {error}") from None
    return Release(LEARNED, mechanism, 1, parameters, form=Form.WEIGHTS, parties=plan.learners)


async def learn_on(
    priced: PricedPlan[SwingPlan], text: PublicModel, federation: Federation, store: RunStore
) -> dict[str, int]:
    """Have every learner train the taught student, and store the mean; returns how many are in it, by the release.

    text: the taught student. A mean that is stored is not asked for again. Raises what the federation's verbs raise.
    """
    plan = priced.plan
    assert plan.learner is not None
    release = priced.release(LEARNED)
    assert release is not None
    if not (store.folder / _FILE).exists():
        with federation.among(plan.learners):
            await provide_model(text, plan, federation, store, "taught_model")
            start = np.ascontiguousarray(text.start, "<f4").tobytes()
            await federation.provide("parameters", start)
            await federation.train(_request(plan, plan.learner, text, start), doing="training")
            note = unpromised(plan)
            models = await federation.gather(LEARNED, 1, release.columns, 1, note, odd=odd_weights)
        mean = np.mean([floats_of(model) for model in models.values()], axis=0, dtype=np.float64)
        store.begin_sum(LEARNED, list(models))
        store.write(_FILE, mean.astype("<f4").tobytes())
    return {LEARNED: len(store.summed(LEARNED))}


def learned(text: PublicModel, store: RunStore) -> "PreTrainedModel":
    """The student with what the learners trained, adapters merged. Raises `RunError` where that is damaged."""
    import torch

    from learning.models.adapting import merged, unflatten

    path = store.folder / _FILE
    point: NDArray[np.float32] = np.frombuffer(path.read_bytes(), "<f4").astype(np.float32)
    if len(point) != len(text.start) or not np.isfinite(point).all():
        raise RunError(f"{path} is damaged. The run cannot go on. Run its plan again.", code="C802")
    unflatten(text.model, torch.from_numpy(point))
    return merged(text.model)


def packed(model: "PreTrainedModel") -> bytes:
    """A student's parameters as safetensors."""
    from safetensors.torch import save

    content: bytes = save({name: each.detach().cpu().contiguous() for name, each in model.named_parameters()})
    return content


class Aside(Silent):
    """The progress of public work beside connected parties."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def bar(self, label: str, done: int, total: int, note: str = "") -> None:
        """Tell how far the work is; raises where the run is to stop."""
        self._told(label, done, total)


def text_of(plan: SwingPlan, public: PublicTeacher, student: "PreTrainedModel") -> PublicModel:
    """A student as learners are sent it: its files, and the numbers of it that they train. It is changed in place.

    Raises `ModelError` for one whose gradients cannot be computed per example.
    """
    assert public.cache is not None
    return marked(student, public.tokenizer, plan, public.cache, wanted=plan.text.longest)


def trainable_of(plan: SwingPlan, public: PublicTeacher) -> int:
    """How many numbers of the student learners train, which its public start tells. public: at its start.

    Raises `ModelError` as `text_of` does, before anything is spent.
    """
    from learning.models.adapting import merged

    return len(text_of(plan, public, first_student(plan, public, merged(public.model))).start)


def _request(plan: SwingPlan, settings: LearnerTable, text: PublicModel, start: bytes) -> party_pb2.TrainRequest:
    request = party_pb2.TrainRequest(operation_id=f"{LEARNED}-0")
    task = request.text_model
    task.release = LEARNED
    task.model.CopyFrom(model_message(plan, text))
    task.parameters_sha256 = artefact_digest(start)
    task.objective = party_pb2.OBJECTIVE_LANGUAGE
    task.descent.CopyFrom(descent_message(settings, expected_batch=settings.expected_batch))
    return request


@lru_cache(maxsize=64)
def _calibrated(epsilon: float, delta: float, sampling: float, steps: int) -> float:
    def event(multiplier: float) -> DpEvent:
        return GradientMechanism(1.0, 1 << 16, multiplier, sampling, steps, 1).event()

    return calibrate(event, epsilon, delta)
