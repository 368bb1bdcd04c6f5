"""What parties are asked: the texts, and of every token of them the public model's most probable outcomes."""

import json
from typing import TYPE_CHECKING, Final

import numpy as np

from aggregation.mechanisms.said import FreeTargets
from coordinator.federation.aside import Told
from coordinator.store.private_files import private_folder
from coordinator.store.store import RunStore
from coordinator.systems.swing.plan import SwingPlan
from coordinator.systems.swing.public import PublicSwing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from learning.language.soft_targets import Targets

PUBLIC: Final = "artefacts/public"


def start_of(public: PublicSwing) -> "PreTrainedModel":
    """The public start that teachers and student begin from."""
    import torch

    from learning.models.adapting import merged, unflatten

    unflatten(public.model, torch.from_numpy(public.start))
    return merged(public.model)


def public_outcomes(plan: SwingPlan, public: PublicSwing, store: RunStore, told: Told) -> None:
    """Have the public model say what might stand in every token's place, and store the `top` most probable outcomes."""
    from learning.language.soft_targets import graded
    from learning.language.speaker import Speaker

    folder = store.folder / PUBLIC
    private_folder(folder)
    graded(
        [Speaker(start_of(public))],
        public.queries,
        [public.before],
        top=plan.distil.top,
        temperature=1.0,
        folder=folder,
        progress=lambda done, total: told("public model", done, total),
    )


def stored_outcomes(plan: SwingPlan, public: PublicSwing, store: RunStore) -> "Targets":
    """What `public_outcomes` stored. Raises `IntegrityError` where it is damaged."""
    from learning.language.soft_targets import opened

    return opened(store.folder / PUBLIC, public.queries.stops, plan.distil.top, public.tokens, 1.0)


def written_content(public: PublicSwing) -> bytes:
    """The texts as parties are sent them."""
    texts = [each.tolist() for each in public.queries]
    openings = list(dict.fromkeys(public.before))
    place = {each: number for number, each in enumerate(openings)}
    said = {"openings": openings, "codes": [place[each] for each in public.before], "texts": texts}
    return json.dumps(said, separators=(",", ":")).encode()


def outcomes_content(plan: SwingPlan, public: PublicSwing, store: RunStore) -> bytes:
    """The public model's outcomes as parties are sent them, int32 [tokens, columns] of `FreeTargets`, little-endian."""
    stored = stored_outcomes(plan, public, store)
    rows = FreeTargets("public", plan.distil.top, public.tokens).contribute((stored.ids, stored.codes))
    return (rows & 0xFFFFFFFF).astype(np.uint32).astype("<u4").tobytes()
