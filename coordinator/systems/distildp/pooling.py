"""Which texts teachers are to write, and those that are kept of what they wrote."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import RunError
from coordinator.language_models.students import PublicTeacher
from coordinator.systems.distildp.plan import DistilDpPlan

if TYPE_CHECKING:
    from learning.language.generation import Texts

FEWEST: Final = 0.9
"""The least share of the texts that are different ones without a warning."""
LEAST: Final = 4
"""The fewest texts that anything can be learned from."""

Floats: TypeAlias = NDArray[np.float64]
Cells: TypeAlias = NDArray[np.int32]


def drawn(plan: DistilDpPlan, shares: Floats, teachers: int) -> list[Cells]:
    """The control codes of the texts that each teacher is to write, drawn by their shares from the plan's seed."""
    rng = np.random.default_rng([plan.run.seed, 0x636F6465])
    cells = rng.choice(len(shares), plan.generation.texts, p=shares).astype(np.int32)
    return [cells[number::teachers] for number in range(teachers)]


def room(plan: DistilDpPlan, public: PublicTeacher) -> int:
    """Tokens of a text at most, its end included and its opening not."""
    return min(plan.generation.longest or public.longest, public.longest - max(map(len, public.openings)))


def pooled(
    public: PublicTeacher, parts: "Sequence[Texts]", cells: Sequence[Cells]
) -> "tuple[Texts, Cells, dict[str, Any]]":
    """All teachers' texts, each once, the control code of each [texts], and figures for the report.

    cells: the codes of each teacher's texts. Raises `RunError` where nothing is left to learn from.
    """
    from learning.language.generation import Texts

    every = Texts.joined([text for part in parts for text in part], public.end)
    kept = every.distinct(lambda ids: str(public.tokenizer.decode(ids.tolist(), skip_special_tokens=True)))
    if len(kept) < LEAST:
        raise RunError(
            f"the teacher wrote {len(every):,} texts, and only {len(kept):,} of them are different and not empty: "
            "there is nothing to learn from it. The noise may be too large for what is trained; more of epsilon or a "
            "larger [dp_sgd] batch would help. What was released is stored; nothing more was spent.",
            code="C204",
        )
    facts: dict[str, Any] = {"texts": len(every), "distinct": len(kept)}
    if len(kept) < FEWEST * len(every):
        facts["warnings"] = [
            f"Of {len(every):,} texts that the teacher wrote, {len(every) - len(kept):,} were empty or repeated "
            "others: it has learned little, or [generation] top_k, top_p or temperature leave it little to choose from."
        ]
    return every.of(kept), np.concatenate(list(cells))[kept], facts
