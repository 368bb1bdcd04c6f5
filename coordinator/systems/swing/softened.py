"""Softened outcomes of the parties' teachers, the published form of swing distillation: gathered, their mean kept."""

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import IntegrityError
from aggregation.mechanisms.said import SoftenedTargets
from coordinator.federation.federation import Federation
from coordinator.pricing.release import Release
from coordinator.store.private_files import private_folder
from coordinator.store.store import RunStore
from coordinator.systems.swing.plan import SwingPlan
from coordinator.systems.swing.public import PublicSwing

if TYPE_CHECKING:
    from learning.language.soft_targets import Targets

SAID: Final = "artefacts/softened"
_ROWS: Final = 4096
"""Rows of a matrix in one request."""


async def softened_by_parties(
    plan: SwingPlan, public: PublicSwing, release: Release, federation: Federation, store: RunStore, note: str
) -> None:
    """Gather what every party's teacher says, softened, and store the mean. What is stored is not asked again."""
    from learning.language.soft_targets import averaged

    if store.fact("softened"):
        return
    mechanism = release.under(SoftenedTargets)

    def odd(rows: NDArray[np.int64]) -> str:
        try:
            mechanism.targets(rows)
        except IntegrityError:
            return "what it says of the texts are no outcomes of tokens"
        return ""

    matrices = await federation.gather(release.name, release.rows, release.columns, _ROWS, note, odd=odd)
    folder = store.folder / SAID
    private_folder(folder)
    averaged(
        [mechanism.targets(matrices[name]) for name in sorted(matrices)],
        stops=public.queries.stops,
        tokens=public.tokens,
        temperature=plan.swing.temperature,
        folder=folder,
    )
    store.begin_sum(release.name, list(matrices))
    store.note(softened=True)


def softened_of(plan: SwingPlan, public: PublicSwing, store: RunStore) -> "Targets":
    """What was stored. Raises `IntegrityError` where it is damaged."""
    from learning.language.soft_targets import opened

    stops = public.queries.stops
    return opened(store.folder / SAID, stops, plan.distil.top, public.tokens, plan.swing.temperature)
