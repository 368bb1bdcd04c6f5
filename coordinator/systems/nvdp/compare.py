"""NVDP and its baselines in a comparison: noisy vectors, what training without their noise in mind makes of them, the
public text's own rule, DP-SGD at the same epsilon, and the paper's own forms, which have no epsilon.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.comparing.comparable import ComparisonRequest, Method, Outcome, changed
from coordinator.comparing.simulated_run import driven
from coordinator.progress.progress import Silent
from coordinator.systems.nvdp.pair_student import pair_metrics
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.systems.nvdp.pooling import rows_of
from coordinator.systems.nvdp.public import PublicVectors, prepare
from coordinator.systems.nvdp.releases import mechanism_of
from coordinator.systems.nvdp.rules import floor_of, naive_of, said_by
from coordinator.systems.nvdp.sequences.published import Answered, KeptStates, sampled
from coordinator.text_models.compare import ClassifierComparison
from coordinator.text_models.folder import metrics_of
from coordinator.text_models.methods import TextData, federated, in_clear
from coordinator.text_models.non_private import simulated_text
from coordinator.text_models.student import measured

if TYPE_CHECKING:
    from learning.bottleneck.forms import Name

Rule = dict[str, NDArray[np.float64]]


class NvdpComparison(ClassifierComparison):
    """A `coordinator.comparing.comparable.Comparable`. A model is a rule of `rules.Tensors`, or the trained parameters
    of the public encoder.
    """

    def __init__(self, given: ComparisonRequest) -> None:
        super().__init__(given)
        self.plan: NvdpPlan = given.plan
        self._states = KeptStates(given.base, given.cache)

    @property
    def methods(self) -> Mapping[str, Method]:
        public = self.plan.public
        if public.label is None and public.alike is None and not self.plan.text.second:
            return {method.name: method for method in METHODS[:2] + METHODS[3:]}
        forms = () if self.plan.text.pairs else PUBLISHED
        rows = [Method(each, label, partial(sampled, name=each, kept=self._states), private=False, heuristic=True)
                for each, label in forms]  # fmt: skip
        return {method.name: method for method in (*METHODS[:-1], *rows, METHODS[-1])}

    def data(self, seed: int, folder: Path) -> TextData:
        plan = changed(self.plan, seed=seed)
        public = prepare(plan, self._given.base, self._given.cache)
        if self._text is None:
            self._text = simulated_text(self._given, plan, public, folder)
        return TextData(plan, public, self._text, Silent(), self._given.recipe)

    def metrics(self, data: TextData, model: Any) -> dict[str, Any]:
        plan, public = _of(data)
        if isinstance(model, dict):
            said = said_by(plan, public, model)
        else:
            said = model.said if isinstance(model, Answered) else self.said(data, model)
        found = pair_metrics(plan, public, said) if plan.text.pairs else metrics_of(measured(plan, public, said))
        return {name: value for name, value in found.items() if name != "examples"}


def _of(data: TextData) -> tuple[NvdpPlan, PublicVectors]:
    assert isinstance(data.plan, NvdpPlan)
    assert isinstance(data.public, PublicVectors)
    return data.plan, data.public


def _samples(data: TextData, epsilon: float) -> Outcome:
    """The recipe `nvdp` over simulated parties: rows, and the rule that knows their noise."""
    return _drawn(data, epsilon, naive=False)


def _naive(data: TextData, epsilon: float) -> Outcome:
    """The same rows, and an ordinary regression on them, as if they were clean."""
    return _drawn(data, epsilon, naive=True)


def _drawn(data: TextData, epsilon: float, *, naive: bool) -> Outcome:
    from safetensors.numpy import load

    plan = changed(data.plan, epsilon=epsilon)
    with driven(data.recipe("nvdp", plan, data.public), data.text.shards, data.progress) as run:
        mechanism = mechanism_of(run.priced.releases)
        kept = load(run.content)
        rule = {"weights": kept["weights"], "bias": kept["bias"]}
        if naive:
            own, public = _of(data)
            rule = naive_of(own, public, mechanism, rows_of(run.store, mechanism))
        return Outcome(rule, mechanism.event(), notes={"noise_multiplier": mechanism.noise_multiplier})


def _floor(data: TextData, epsilon: float) -> Outcome:
    """The rule of public text alone."""
    rule = floor_of(*_of(data))
    assert rule is not None
    return Outcome(rule, None)


def _clear(data: TextData, epsilon: float) -> Outcome:
    """Without privacy: the encoder's last layer on all parties' text together."""
    return Outcome(in_clear(data), None)


PUBLISHED: Final[tuple[tuple["Name", str], ...]] = (
    ("nvib", "the paper's layer"),
    ("vtdp", "the paper's VTDP"),
    ("vib-fixed", "the paper's VIB-fixed"),
    ("vib-learned", "the paper's VIB-learned"),
)
"""Forms of the paper that are rows where public text has labels to train their layers on."""

METHODS: Final = (
    Method("nvdp", "noisy vectors, training that knows the noise", _samples),
    Method("naive", "the same vectors, ordinary training", _naive),
    Method("public", "public text alone", _floor, private=False),
    Method("dp_sgd", "federated DP-SGD", federated),
    Method("fine_tune", "no privacy", _clear, private=False),
)
