"""What every recipe of a text classifier shares: its public model and text, its forecast, its student."""

from pathlib import Path

from coordinator.forecasting.forecast import Forecast
from coordinator.forecasting.needs import Room
from coordinator.pricing.release import Bound
from coordinator.store.store import RunStore
from coordinator.text_models import public as classifier_public
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText
from coordinator.text_models.student import PublishedClassifier, student_of
from protos.conclave.v1 import plan_pb2


class ClassifierRecipe:
    """A part of a `coordinator.systems.system.Recipe`. The student is one vector: the parameters that are trained."""

    def prepare(self, plan: ClassifierPlan, base: Path, cache: Path) -> PublicText:
        return classifier_public.prepare(plan, base, cache)

    def room(self, bound: Bound[ClassifierPlan], public: PublicText, base: Path, cache: Path) -> Room:
        from coordinator.text_models.forecast import room_of

        return room_of(bound, public)

    def forecast(self, plan: ClassifierPlan, base: Path, cache: Path) -> Forecast:
        from coordinator.text_models.forecast import forecast

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
