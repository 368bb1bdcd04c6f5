"""What every recipe of a text classifier shares: its public model and text, its forecast, its student."""

from pathlib import Path

from coordinator import classifier_public
from coordinator.classifier_plan import ClassifierPlan
from coordinator.classifier_public import PublicText
from coordinator.classifier_student import PublishedClassifier, student_of
from coordinator.forecast import Forecast
from coordinator.room import Room
from coordinator.store import RunStore
from coordinator.terms import Bound
from protos.conclave.v1 import plan_pb2


class ClassifierRecipe:
    """A part of a `coordinator.recipe.Recipe`. The student's parameters are those that are trained, one vector."""

    def prepare(self, plan: ClassifierPlan, base: Path, cache: Path) -> PublicText:
        return classifier_public.prepare(plan, base, cache)

    def room(self, bound: Bound[ClassifierPlan], public: PublicText, base: Path, cache: Path) -> Room:
        from coordinator.classifier_forecast import room_of

        return room_of(bound, public)

    def forecast(self, plan: ClassifierPlan, base: Path, cache: Path) -> Forecast:
        from coordinator.classifier_forecast import forecast

        return forecast(plan, base, cache)

    def labelled(self, plan: ClassifierPlan) -> plan_pb2.LabelledText:
        return classifier_public.labelled_text(plan)

    def student(
        self,
        content: bytes,
        bound: Bound[ClassifierPlan],
        public: PublicText,
        present: dict[str, int],
        store: RunStore,
    ) -> PublishedClassifier:
        from safetensors.numpy import load

        return student_of(bound.plan, public, load(content)["point"])
