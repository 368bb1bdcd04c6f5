"""A plan of the recipe `pate`."""

from coordinator.text_models.plan import ClassifierPlan


class PatePlan(ClassifierPlan):
    """A plan whose parties' classifiers vote on the public texts of `[pate]`."""

    def _check_learning(self) -> None:
        self.check_votes()
