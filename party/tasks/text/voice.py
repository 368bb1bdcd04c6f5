"""How a language model that this party trained alone speaks: the checked request, and the model with its voice."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from party.errors import TrainingError
from party.provided.written import Written, written
from party.tasks.task import Given, wrong
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.refusal import Reason, Refusal

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from learning.language.speaker import Speaker

MOST_TILT: Final = 1000.0
"""The largest size of a tilt's number: the logarithm of the least number in single precision is -103."""


@dataclass(frozen=True, slots=True)
class Voice:
    """A checked `party_pb2.Voice`. path: of its tilts and distributions. weight: of the latter."""

    path: str
    weight: float


def voice_of(message: party_pb2.Voice, given: Given) -> Voice | None:
    """Check how a model is to speak; None where it speaks as it is.

    Raises `Refusal`: REQUEST for a weight that makes no sense, ARTEFACT for voices that never came.
    """
    if not message.voices_sha256:
        if message.weight:
            raise wrong("a distribution has a weight, and none is named.")
        return None
    if not 0 <= message.weight < 1:
        raise wrong(f"a distribution's weight of {message.weight:g} makes no sense; it is from 0 to under 1.")
    return Voice(str(given.provided("voices", message.voices_sha256)), message.weight)


def trained_path(given: Given, training: str) -> str:
    """Where the parameters of a model that this party trained and keeps lie until the run ends."""
    return str(given.run.folder / f"{training}.kept.f32")


def written_fits(
    path: str,
    release: plan_pb2.Release,
    longest: int,
    *,
    room: int = 0,
    part: tuple[int, int] | None = None,
    paid: int | None = None,
) -> Written:
    """What was provided as written. longest: tokens of a text with its opening. room: for a text that is still to be
    written. part: of what is still to be written, as of `written`; None for texts that are there. paid: the most texts;
    None for one a charge of the release.

    Raises `Refusal`: ARTEFACT for what is no such thing, REQUEST for more texts than are paid for, and for longer
    ones than the model reads.
    """
    try:
        found = written(Path(path), texts=True) if part is None else written(Path(path), texts=False, part=part)
    except TrainingError as error:
        raise Refusal(Reason.ARTEFACT, str(error)) from None
    if len(found.codes) > (most := release.charges if paid is None else paid):
        raise wrong(f"{len(found.codes):,} texts are asked, and release {release.name} is of {most:,}.")
    most = max((len(before) + len(ids) for before, ids in zip(found.before, found.texts, strict=False)), default=0)
    if max(most, found.longest_opening + room) > longest:
        raise wrong(f"texts and their openings are longer than the {longest:,} tokens that the model is to read.")
    return found


def speaker_of(model: "PreTrainedModel", voice: Voice | None, codes: int) -> "Speaker":
    """The model with its voice. codes: how many openings there are.

    Raises `TrainingError` for tilts and distributions of another number, or out of range.
    """
    import torch

    from aggregation.errors import ConclaveError
    from learning.language.speaker import Speaker
    from learning.models.encoders import tokens_of

    if voice is None:
        return Speaker(model)
    tokens = tokens_of(model)
    numbers = np.fromfile(voice.path, "<f4").astype(np.float32, copy=False)
    rows, rest = divmod(len(numbers), 2 * tokens)
    if rest or rows not in (1, codes + 1) or Path(voice.path).stat().st_size != 4 * len(numbers):
        raise TrainingError(
            f"the voices that were provided are {len(numbers):,} numbers, and for {codes:,} openings and {tokens:,} "
            f"tokens there are {2 * tokens:,} or {2 * (codes + 1) * tokens:,}."
        )
    tilts, said = (torch.from_numpy(each) for each in np.split(numbers.reshape(2 * rows, tokens), 2))
    if not bool((tilts.abs() <= MOST_TILT).all()):
        raise TrainingError(f"the voices that were provided tilt by NaN, or by more than {MOST_TILT:,.0f}.")
    if rows == 1:
        tilts, said = tilts[0], said[0]
    try:
        return Speaker(model, tilts, said if voice.weight else None, voice.weight)
    except ConclaveError as error:
        raise TrainingError(f"the voices that were provided cannot be used: {error}") from None
