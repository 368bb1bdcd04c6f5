"""A plan of the recipe `dped`."""

from typing import Any

from coordinator.plan.plan import Plan
from coordinator.plan.public_text import SourceTable
from coordinator.systems.dped.tables import DpedTable, VocabularyTable


class DpedPlan(Plan):
    """A plan with a vocabulary, whose parties' words become embeddings."""

    vocabulary: VocabularyTable
    dped: DpedTable = DpedTable()

    def public_tables(self) -> dict[str, SourceTable]:
        return {"vocabulary": self.vocabulary, **super().public_tables()}

    def _check_recipe(self) -> None:
        if self.privacy.noise != "gaussian" and (
            self.dped.noise_at == "coordinator" or self.dped.private_training is not None
        ):
            raise ValueError(
                f'[privacy] noise = "{self.privacy.noise}" is of noise that parties add by shares. Private training '
                'and noise_at = "coordinator" draw theirs at one place: leave it out.'
            )
        if self.privacy.trust == "secure-sum" and self.dped.noise_at == "coordinator":
            raise ValueError(
                '[dped] noise_at = "coordinator" shows it every party\'s votes, and [privacy] trust = "secure-sum" '
                'shows it sums alone. Use noise_at = "parties".'
            )
        self._check_teachers()

    def _check_teachers(self) -> None:
        """Raises ValueError for teachers, queries or classes that cannot work."""
        settings, size = self.dped, self.vocabulary.size
        if not settings.teaches:
            return
        if self.teachers < 2:
            raise ValueError(
                "[dped] teachers_per_party = 1 with one party is one teacher: its answers are its whole shard's, "
                "and no noise that hides one of its units leaves anything. Use several teachers or parties."
            )
        for name, asked in (("queries", settings.queries), ("classes", settings.classes)):
            words = asked if isinstance(asked, int) else len(set(asked or ()))
            if words > size:
                raise ValueError(
                    f"[dped] {name} = {words:,}, but the vocabulary has {size:,} words and an answer is given once a "
                    f"word. Use at most {size:,}, or a larger [vocabulary] size."
                )
        if settings.threshold is not None and settings.threshold > self.teachers:
            raise ValueError(
                f"[dped] threshold = {settings.threshold:g} is more votes than {self.teachers} teachers have: no query "
                f"can reach it but by noise. Use at most {self.teachers}, better half of that."
            )
        if settings.noise_at == "coordinator" and self.privacy.dropouts:
            raise ValueError(
                f"[privacy] dropouts = {self.privacy.dropouts} makes each party's share of the noise larger, and "
                '[dped] noise_at = "coordinator" draws none at the parties. Set dropouts = 0, or noise_at = "parties".'
            )
        privately = settings.private_training
        if privately is not None and self.privacy.record == "pair":
            raise ValueError(
                '[dped.private_training] counts a step in units, and [privacy] record = "pair" makes each pair one. '
                'Use record = "sentence" or "document".'
            )

    @property
    def teachers(self) -> int:
        """All parties' teachers together."""
        return len(self.federation.names) * self.dped.teachers_per_party

    @property
    def queries(self) -> int:
        """How many different words teachers are asked about."""
        asked = self.dped.queries
        return self.vocabulary.size if asked is None else asked if isinstance(asked, int) else len(set(asked))

    @property
    def classes(self) -> int:
        """How many words a vote may name."""
        named = self.dped.classes
        return self.vocabulary.size if named is None else named if isinstance(named, int) else len(named)

    @property
    def block_rows(self) -> int:
        """Rows of the count matrix in one block: the plan's figure, or a sixteenth of all, at most 2 MiB a block."""
        return self.rows_at_once(self.vocabulary.size, self.vocabulary.size)

    def rows_at_once(self, rows: int, columns: int) -> int:
        """Rows of a released matrix [rows, columns] that travel in one block."""
        return self.dped.block_rows or max(1, min(-(-rows // 16), 2**19 // columns))

    def _document(self, tables: dict[str, Any]) -> None:
        tables["dped"]["block_rows"] = self.block_rows
