"""From what parties released to a student: the teachers' probabilities out of their noise, and a distillation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from aggregation.mechanisms.vectors import DifferencesMechanism
from coordinator.language_models.students import first_student
from coordinator.pricing.release import PricedPlan
from coordinator.progress.progress import Progress
from coordinator.store.private_files import private_folder
from coordinator.store.store import RunStore
from coordinator.systems.swing.plan import SwingPlan
from coordinator.systems.swing.public import PublicSwing
from coordinator.systems.swing.questions import start_of, stored_outcomes
from coordinator.systems.swing.releases import DIFFERENCES

if TYPE_CHECKING:
    from learning.language.soft_targets import Targets

LEARNING, TARGETS = "artefacts/learning", "artefacts/targets"


def corrected(priced: PricedPlan[SwingPlan], public: PublicSwing, present: int, store: RunStore) -> "Targets":
    """What the teachers say of every token, as far as it stands out of the noise; the public model's word elsewhere.

    present: how many parties are in the sum. Post-processing of the release.
    """
    from learning.language.soft_targets import stored
    from learning.swing.answers import cells_kept
    from learning.swing.shrinking import answers_of

    release = priced.releases[0]
    total = np.concatenate([block for _, _, block in store.blocks(DIFFERENCES)])
    said = release.under(DifferencesMechanism).release(total, present)
    asked = stored_outcomes(priced.plan, public, store)
    found = answers_of(said, cells_kept(asked.ids, asked.codes), present * priced.plan.teachers.per_party)
    folder = store.folder / TARGETS
    private_folder(folder)
    named = np.asarray(asked.ids, np.int64)
    stops, tokens = public.queries.stops, public.tokens
    store.note(heeded=float(found.weights.mean()))
    return stored(
        named, found.chances[:, :-1], stops=stops, tokens=tokens, temperature=1.0, folder=folder, weights=found.weights
    )


def taught(plan: SwingPlan, public: PublicSwing, targets: "Targets", store: RunStore, progress: Progress) -> bytes:
    """The student's parameters as safetensors. targets: what is said of every token of the texts, and the temperature
    that the student has for it.

    Raises `ConclaveError` as learning does.
    """
    from safetensors.torch import save

    from learning.language.distilling import distil

    student = first_student(plan, public, start_of(public))
    # Without the t^2 of other distillations: see `learning.language.distilling`.
    settings = replace(plan.distil.settings(), temperature=targets.temperature, squared=False)
    folder = store.folder / LEARNING
    private_folder(folder)

    def on_step(done: int, total: int, losses: Mapping[str, float]) -> None:
        progress.bar("learning", done, total, "updates")

    with store.stage("learn") as result:
        outcome = distil(
            student,
            public.queries,
            public.before,
            targets,
            settings,
            seed=plan.run.seed,
            checkpoint=folder,
            on_step=on_step,
        )
        result |= {
            "steps": outcome.steps,
            "best": outcome.best,
            "losses": {name: round(value, 5) for name, value in outcome.losses.items()},
            "parameters": sum(each.numel() for each in student.parameters()),
        }
    content: bytes = save({name: each.detach().cpu().contiguous() for name, each in student.named_parameters()})
    return content
