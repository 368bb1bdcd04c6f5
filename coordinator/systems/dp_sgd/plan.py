"""The plan of the recipe `dp_sgd`."""

from coordinator.text_models.plan import ClassifierPlan


class DpSgdPlan(ClassifierPlan):
    """A plan whose model all parties train under DP-SGD, configured in `[dp_sgd]`."""

    def _check_learning(self) -> None:
        self.check_descent()

    @property
    def shares_noise(self) -> bool:
        return self.dp_sgd.form != "local"
