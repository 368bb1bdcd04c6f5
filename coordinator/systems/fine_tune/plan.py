"""The plan of the recipe `fine_tune`."""

from coordinator.text_models.plan import ClassifierPlan


class FineTunePlan(ClassifierPlan):
    """A plan whose model is trained on simulated text alone, as `[fine_tune]` says."""

    def _check_learning(self) -> None:
        if self.federation.shards is None:
            raise ValueError(
                '[run] recipe = "fine_tune" trains on all text in clear, without privacy, and with [federation] launch '
                '= "connect" the text is the parties\' own. Use it with launch = "ray" and [federation.shards], on '
                'text that is nobody\'s secret, or use recipe = "dp_sgd".'
            )
