"""The parts that recipes of text models share: their public data, the releases of training or voting, their student."""

from dataclasses import dataclass

from dp_accounting import DpEvent, GaussianDpEvent, SelfComposedDpEvent

from coordinator.errors import PlanError
from coordinator.pricing.release import PricedPlan, Release
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from coordinator.text_models.federated_training import descent_event, descent_releases
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText
from coordinator.text_models.student import PublishedClassifier, student_of
from coordinator.text_models.votes import VOTES, mechanism
from protos.conclave.v1 import plan_pb2


@dataclass(frozen=True, slots=True)
class TextRecipe:
    """Part of a `coordinator.systems.system.Recipe`. The student is one vector: the trained parameters.

    public: None where nothing was read.
    """

    plan: ClassifierPlan
    public: PublicText | None

    @property
    def labelled(self) -> plan_pb2.LabelledText:
        return self.plan.labelled

    def doubts(self) -> list[str]:
        return []

    def student(
        self,
        content: bytes,
        priced: PricedPlan[ClassifierPlan],
        present: dict[str, int],
        store: RunStore,
        progress: Progress,
    ) -> PublishedClassifier:
        from safetensors.numpy import load

        return student_of(self.plan, self.read, load(content)["point"], progress=progress)

    @property
    def read(self) -> PublicText:
        """The public data, where it was read. Raises `PlanError` where it was not."""
        if self.public is None:
            raise PlanError("The public model says how much is trained, and none was read.")
        return self.public


@dataclass(frozen=True, slots=True)
class Trained(TextRecipe):
    """The releases of a model that all parties train under DP-SGD, as `[dp_sgd]` says."""

    fewer_cells = "Use a larger delta, fewer steps, or train less of the model ([model] adapt)."
    finer_grid = "Leave noise out."

    @staticmethod
    def check(plan: ClassifierPlan) -> None:
        """Raises ValueError for a plan whose model cannot be trained this way."""
        plan.check_descent()

    def total_event(self, multiplier: float) -> DpEvent:
        return descent_event(self.plan, multiplier, len(self.read.start))

    def releases(self, multiplier: float) -> tuple[Release, ...]:
        return descent_releases(self.plan, multiplier, len(self.read.start))


@dataclass(frozen=True, slots=True)
class Voted(TextRecipe):
    """The releases of a model that learns from votes of the parties' classifiers, as `[pate]` says."""

    fewer_cells = "Use a larger delta, or fewer [pate] queries."
    finer_grid = "Leave noise out."

    @staticmethod
    def check(plan: ClassifierPlan) -> None:
        """Raises ValueError for a plan under which no votes can be asked."""
        plan.check_votes()

    def total_event(self, multiplier: float) -> DpEvent:
        once = GaussianDpEvent(multiplier)
        attempts = self.plan.privacy.attempts
        return once if attempts == 1 else SelfComposedDpEvent(once, attempts)

    def releases(self, multiplier: float) -> tuple[Release, ...]:
        assert self.plan.pate is not None
        queries = self.plan.pate.queries if self.public is None else len(self.public.queries)
        votes = mechanism(self.plan, multiplier, queries)
        return (Release(VOTES, votes, queries, votes.columns, queries, attempts=self.plan.privacy.attempts),)
