"""The plan of the recipe `distildp`: a private teacher that writes and grades text, and a student of that text."""

from typing import Self

from coordinator.language_models.distil import StudentModelTable
from coordinator.language_models.plan import LanguagePlan
from coordinator.language_models.tables import GenerationTable
from coordinator.plan.audit import TEXTS, AuditTable

HALF = 2
"""A student has one layer for this many of its teacher's, unless the plan says another number."""


class DistilDpPlan(LanguagePlan):
    """A plan whose `[model]` is the teacher's public start; the student is published with the texts it learned from."""

    generation: GenerationTable = GenerationTable()
    distil: StudentModelTable = StudentModelTable()

    @property
    def kept(self) -> bool:
        """Whether parties keep their teachers' parameters, so that teachers write and grade there."""
        return self.generation.where == "parties"

    def _check_recipe(self) -> None:
        super()._check_recipe()
        if self.kept:
            self._check_kept()
        if self.distil.student is not None and self.distil.layers is not None:
            raise ValueError("[distil] layers and student exclude each other: a student that is there has its layers.")
        if self.dp_sgd.rounds > 1:
            raise ValueError(
                f"[dp_sgd] rounds = {self.dp_sgd.rounds}: a teacher that parties train alone is averaged once. Leave "
                "rounds out."
            )
        longest = self.generation.longest
        if longest is not None and longest > self.text.longest:
            raise ValueError(
                f"[generation] longest = {longest} is more than [text] longest = {self.text.longest}, up to which the "
                "teacher is trained. Use at most that."
            )

    def audited_with(self, settings: AuditTable) -> tuple[Self, list[str]]:
        """The same plan with fewer texts to write: they are made of what was released, and cost no privacy."""
        planned, most = self.generation.texts, settings.texts or TEXTS
        if planned <= most:
            return self, []
        parties = len(self.federation.names)
        texts = max(1, most // parties) * parties if self.kept else most
        simulated = self.model_copy(update={"generation": self.generation.model_copy(update={"texts": texts})})
        return simulated, [
            f"The simulated teacher wrote {texts:,} of the plan's {planned:,} texts. The releases are the plan's own; "
            f"the attacks on texts and student see less than was published. --texts {planned} writes them all."
        ]

    def _check_kept(self) -> None:
        if self.dp_sgd.form != "local":
            raise ValueError(
                '[generation] where = "parties": the teacher that all parties train together is nobody\'s to keep. Use '
                '[dp_sgd] form = "local", or leave where out.'
            )
        if self.distil.hidden:
            raise ValueError(
                '[distil] hidden: with [generation] where = "parties" no hidden state of a teacher leaves a party. '
                "Leave hidden out."
            )
        texts, parties = self.generation.texts, len(self.federation.names)
        if texts % parties:
            raise ValueError(
                f"[generation] texts = {texts:,}: {parties} parties write as many each. Use a multiple of {parties}, "
                f"for example {max(1, texts // parties) * parties:,}."
            )
