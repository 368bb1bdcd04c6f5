"""The releases of a PrivDistil run, and how its budget is divided between choosing text and training the student."""

import math
from functools import lru_cache
from typing import Final

from dp_accounting import ComposedDpEvent, DpEvent

from aggregation.accounting.price import calibrate
from aggregation.errors import ConclaveError
from aggregation.mechanisms.free import FreeAnswers
from aggregation.mechanisms.gradients import GradientMechanism, fine_levels
from aggregation.mechanisms.mechanism import Form
from coordinator.errors import PlanError
from coordinator.pricing.release import SAMPLER_SHARE, Release
from coordinator.systems.privdistil.plan import PrivDistilPlan
from coordinator.systems.privdistil.public import PublicCorpus
from coordinator.text_models.federated_training import LARGEST_SUM, descent_event, descent_releases

DOMAIN: Final = "domain"
SCORES: Final = "scores"
SCORE_LEVELS: Final = 10_000
"""Steps of a score from 0 to 1, where parties keep their classifiers."""
PARTS: Final = (0.05, 0.075, 0.1, 0.15, 0.2, 0.3)
"""Parts of the plan's epsilon that a domain classifier may get where the plan does not say, the smallest first."""
CLEAR: Final = 8.0
"""How many times longer than its noise a classifier's whole path must be, if all its gradients agreed, for a part to be
enough. Gradients agree in far less than their norms; what is left of a factor of eight is about enough to tell two
kinds of text apart.
"""


def domain_epsilon(plan: PrivDistilPlan, parameters: int, texts: int) -> float:
    """The domain classifier's part of epsilon: the plan's figure, or the smallest part whose signal is clear.

    It depends on public numbers alone: the declared size of the parties, and what is trained. Where no part gives a
    clear signal, it is the largest part.
    """
    if plan.domain.epsilon is not None:
        return plan.domain.epsilon
    for part in PARTS:
        epsilon = part * plan.privacy.epsilon
        if signal(plan, _multiplier(plan, epsilon, parameters, texts), parameters) >= CLEAR:
            return epsilon
    return PARTS[-1] * plan.privacy.epsilon


def signal(plan: PrivDistilPlan, multiplier: float, parameters: int) -> float:
    """Signal over noise: the sum of all steps' clipped gradients, if all agreed, over the norm of all steps' noise."""
    domain = plan.domain
    return domain.batch * math.sqrt(domain.steps) / (multiplier * math.sqrt(parameters))


def domain_mechanism(plan: PrivDistilPlan, public: PublicCorpus) -> GradientMechanism:
    """The mechanism of a party's domain classifier, whose noise is the party's alone. Raises `PlanError`."""
    assert public.domain is not None
    parameters = len(public.domain.start)
    epsilon = domain_epsilon(plan, parameters, public.opposed)
    return _mechanism(plan, _multiplier(plan, epsilon, parameters, public.opposed), parameters, public.opposed)


def releases(plan: PrivDistilPlan, multiplier: float, public: PublicCorpus | None) -> tuple[Release, ...]:
    """The releases of a run whose student is trained with this noise multiplier. Raises `PlanError`."""
    public = _there(public)
    student = descent_releases(plan, multiplier, len(public.text.start))
    if public.domain is None:
        return student
    mechanism = domain_mechanism(plan, public)
    if plan.domain.release == "weights":
        return (Release(DOMAIN, mechanism, 1, mechanism.parameters, form=Form.WEIGHTS), *student)
    free = FreeAnswers(DOMAIN, 0, 1, 1, 1.0, SCORE_LEVELS)
    texts = public.corpus.count()
    return (
        Release(DOMAIN, mechanism, 0, 0, form=Form.TRAINING),
        Release(SCORES, free, texts, 1, charges=texts, form=Form.FREE),
        *student,
    )


def total_event(plan: PrivDistilPlan, multiplier: float, public: PublicCorpus | None) -> DpEvent:
    """An event that costs no less than all releases together."""
    public = _there(public)
    student = descent_event(plan, multiplier, len(public.text.start))
    return student if public.domain is None else ComposedDpEvent([domain_mechanism(plan, public).event(), student])


def _multiplier(plan: PrivDistilPlan, epsilon: float, parameters: int, texts: int) -> float:
    delta = plan.privacy.delta * (1 - SAMPLER_SHARE)
    domain = plan.domain
    sampling = plan.domain_sampling(texts)
    return _calibrated(epsilon, delta, domain.clip, domain.batch, domain.steps, sampling, parameters)


@lru_cache(maxsize=64)
def _calibrated(
    epsilon: float, delta: float, clip: float, batch: int, steps: int, sampling: float, parameters: int
) -> float:
    return calibrate(
        lambda multiplier: _made(clip, batch, multiplier, sampling, steps, parameters).event(), epsilon, delta
    )


def _mechanism(plan: PrivDistilPlan, multiplier: float, parameters: int, texts: int) -> GradientMechanism:
    domain = plan.domain
    try:
        return _made(domain.clip, domain.batch, multiplier, plan.domain_sampling(texts), domain.steps, parameters)
    except ConclaveError as error:
        raise PlanError(f"[domain] The classifier cannot be trained under this plan: {error}") from None


def _made(
    clip: float, batch: int, multiplier: float, sampling: float, steps: int, parameters: int
) -> GradientMechanism:
    return GradientMechanism(
        clip=clip,
        levels=min(fine_levels(multiplier, parameters), max(1, LARGEST_SUM // (8 * batch))),
        noise_multiplier=multiplier,
        sampling_probability=sampling,
        steps=steps,
        parameters=parameters,
    )


def _there(public: PublicCorpus | None) -> PublicCorpus:
    if public is None:
        raise PlanError("The public corpus and teacher say what is released, and neither was read.")
    return public
