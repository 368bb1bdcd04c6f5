"""Plans of recipe `privdistil`: public text chosen privately, a student distilled on it, fine-tuned privately."""

from typing import Annotated, Any

from pydantic import Field

from coordinator.systems.privdistil.tables import CorpusTable, DistilTable, DomainTable, SelectionTable
from coordinator.text_models.plan import ClassifierPlan


class PrivDistilPlan(ClassifierPlan):
    """A plan whose `[model]` is the public teacher; what `adapt` says is trained of the student, as `[dp_sgd]` says."""

    corpus: Annotated[list[CorpusTable], Field(min_length=1)]
    domain: DomainTable = DomainTable()
    selection: SelectionTable = SelectionTable()
    distil: DistilTable = DistilTable()

    def _check_recipe(self) -> None:
        super()._check_recipe()
        self.check_descent()
        privacy, domain = self.privacy, self.domain
        if self.selection.scored and domain.epsilon is not None and domain.epsilon >= privacy.epsilon:
            raise ValueError(
                f"[domain] epsilon = {domain.epsilon:g} leaves nothing of [privacy] epsilon = {privacy.epsilon:g} for "
                "training the student. Use a part of it, for example a tenth, or leave it out."
            )
        if privacy.noise_multiplier is not None and self.selection.scored and domain.epsilon is None:
            raise ValueError(
                "[domain] epsilon is missing: with [privacy] noise_multiplier, which is the student's, the "
                "classifier's part has to be said. Give it, or leave noise_multiplier out."
            )
        if self.distil.student is not None and self.distil.layers is not None:
            raise ValueError("[distil] layers and student exclude each other: a student that is there has its layers.")

    @property
    def party_size(self) -> float:
        """Units at a party, roughly and publicly."""
        assert self.privacy.declared_size is not None
        return self.privacy.declared_size / len(self.federation.names)

    def domain_sampling(self, texts: int) -> float:
        """The chance of a unit, or of one of so many public texts, to be taken in a step of a party's classifier."""
        return min(1.0, self.domain.batch / (self.party_size + texts))

    def divide_again(self, tables: dict[str, Any], factor: float) -> None:
        if self.domain.epsilon is not None:
            tables["domain"]["epsilon"] = self.domain.epsilon * factor

    def _document(self, tables: dict[str, Any]) -> None:
        super()._document(tables)
        del tables["selection"]["streamer"]
