"""How a teacher's outcomes are softened before they leave: hotter near clue words, with noise on the likeliest."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from aggregation.errors import ConclaveError
from aggregation.mechanisms.said import UNPROTECTED, SoftenedTargets
from aggregation.noise.stream import NoiseStream
from learning.language.generation import Texts
from learning.language.soft_targets import Targets, graded
from learning.language.speaker import Speaker
from learning.swing.clues import marked, read
from learning.swing.protection import Protection, Protector
from learning.swing.temperature import Temperature, temperatures
from party.errors import TrainingError
from party.store.runs import private_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Softening:
    """A heuristic, all of it public: the temperature of every token, the noise, and the public start's parameters.

    each: float64 [tokens of the texts].
    """

    each: NDArray[np.float64]
    protection: Protection
    top: int
    temperature: float
    first: Tensor

    def said(
        self, speaker: Speaker, texts: Texts, before: list[list[int]], stream: NoiseStream, folder: Path
    ) -> Targets:
        """What a teacher says of every token, softened. folder: for working files. Equal texts get equal answers."""
        keys = [(tuple(opening), ids.tobytes()) for opening, ids in zip(before, texts, strict=True)]
        first = {key: place for place, key in reversed(list(enumerate(keys)))}
        once = list(dict.fromkeys(keys))
        places = np.array([first[key] for key in once], np.int64)
        spans = [np.arange(texts.stops[place], texts.stops[place + 1]) for place in places]
        private_folder(folder)
        found = graded(
            [speaker],
            texts.of(places),
            [[before[int(place)] for place in places]],
            top=self.top,
            temperature=self.temperature,
            temperatures=self.each[np.concatenate(spans)],
            protect=None if self.protection.kind == UNPROTECTED else Protector(self.protection, stream),
            folder=folder,
        )
        if len(once) == len(texts):
            return found
        number = {key: place for place, key in enumerate(once)}
        rows = np.concatenate([np.arange(found.stops[number[key]], found.stops[number[key] + 1]) for key in keys])
        return Targets(found.ids[rows], found.codes[rows], None, texts.stops, self.temperature)


def softening_of(
    mechanism: SoftenedTargets,
    clues: Path | None,
    texts: Texts,
    tokenizer: "PreTrainedTokenizerBase",
    tokens: int,
    first: Tensor,
) -> Softening:
    """The softening that a release asks for. clues: the provided clue words; None where no temperature grows.

    Raises `TrainingError` for clue words that cannot be read or found, and a mechanism of another model.
    """
    if mechanism.tokens != tokens:
        raise TrainingError(f"the model has {tokens:,} tokens, and the plan's terms say {mechanism.tokens:,}.")
    found = np.zeros(len(texts.ids), np.bool_)
    try:
        if clues is not None:
            found = marked(read(clues), texts, tokenizer)
        settings = Temperature(mechanism.temperature, mechanism.strength, mechanism.cap)
        kind = cast(Literal["none", "top", "all"], mechanism.protection)
        protection = Protection(kind, mechanism.scale or 1.0, max(1, mechanism.protected))
    except ConclaveError as error:
        raise TrainingError(str(error).replace(str(clues), "the clue words that were provided")) from None
    each = temperatures(settings, found, texts.stops).each
    return Softening(each, protection, mechanism.top, mechanism.temperature, first)
