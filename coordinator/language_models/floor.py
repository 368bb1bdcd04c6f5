"""The floor of a language model's run: what noised counts of tokens say of the parties' text without any training."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import RunError
from coordinator.language_models.plan import LanguagePlan
from coordinator.language_models.public import PublicLanguage
from coordinator.store.store import RunStore

FLOOR: Final = "artefacts/floor.safetensors"

Floats: TypeAlias = NDArray[np.float32]
Told: TypeAlias = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Floor:
    """unigram: the noised distribution of tokens, float32 [tokens], above 0 everywhere. tilt: what is added to the
    public model's logits, float32 [tokens]. by_code: the noised distribution in texts of each control code, float32
    [codes, tokens]; None where they were not counted apart.
    """

    unigram: Floats
    tilt: Floats
    by_code: Floats | None = None

    def voices(self, part: float) -> tuple[Floats, Floats]:
        """The tilt and the distribution of each code's texts, float32 [codes + 1, tokens]; in the last row those of a
        text without code. Without counts apart, both [tokens].

        part: how far a tilt is moved from the counts of all texts to those of the code's, in log-probabilities.
        """
        if self.by_code is None:
            return self.tilt, self.unigram
        away = part * (np.log(self.by_code) - np.log(self.unigram))
        return np.vstack([self.tilt + away, self.tilt]).astype(np.float32), np.vstack([self.by_code, self.unigram])


def floor_of(
    plan: LanguagePlan, public: PublicLanguage, counts: NDArray[np.float64], sigma: float, told: Told
) -> Floor:
    """The floor of noisy counts, [codes, tokens] or [1, tokens], whose noise has this standard deviation, in counts;
    post-processing of them. Each code's are drawn towards those of all texts.

    The public model's own mean is that of texts which it writes itself, drawn from the plan's seed.
    """
    import torch

    from learning.language.floor import own_marginal, tilt, unigram
    from learning.models.adapting import unflatten

    unflatten(public.model, torch.from_numpy(public.start))
    marginal = own_marginal(
        public.model,
        public.bare,
        longest=public.longest,
        seed=plan.run.seed,
        told=lambda done, total: told("floor", done, total),
    )
    found = unigram(counts.sum(axis=0), sigma * math.sqrt(len(counts)), marginal)
    apart = np.stack([unigram(own, sigma, found) for own in counts]).astype(np.float32) if plan.apart else None
    return Floor(found.astype(np.float32), tilt(found, marginal, plan.floor.tilt).astype(np.float32), apart)


def write_floor(store: RunStore, floor: Floor) -> None:
    """Store it."""
    from safetensors.numpy import save

    kept = {"unigram": floor.unigram, "tilt": floor.tilt}
    store.write(FLOOR, save(kept if floor.by_code is None else kept | {"by_code": floor.by_code}))


def read_floor(store: RunStore) -> Floor:
    """The stored floor. Raises `RunError` where it is damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = store.folder / FLOOR
    try:
        kept = load(path.read_bytes())
        return Floor(kept["unigram"], kept["tilt"], kept.get("by_code"))
    except (SafetensorError, OSError, KeyError) as error:
        raise RunError(f"{path} is damaged: {error} The run cannot go on. Run its plan again.", code="C802") from None
