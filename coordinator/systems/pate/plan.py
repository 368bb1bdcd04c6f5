"""The plan of the recipe `pate`."""

from coordinator.text_models.plan import ClassifierPlan


class PatePlan(ClassifierPlan):
    """A plan whose parties' classifiers vote on the public texts of `[pate]`."""

    def _check_learning(self) -> None:
        if self.pate is not None and self.text.kind == "regression":
            raise ValueError('[text] kind = "regression": votes are of classes. Use recipe = "dp_sgd" for scores.')
        self.check_votes()
