"""Says what might stand in the place of every token of given texts, by the model that wrote this party's own.

Nothing is trained, and the shard is not opened: the parameters are those that a charged training left.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from aggregation.mechanisms.said import FreeTargets
from learning.language.generation import Texts
from learning.language.soft_targets import graded
from learning.models.adapting import flatten, merged, unflatten
from learning.models.encoders import longest, tokens_of
from party.errors import TrainingError
from party.provided.written import Written, written
from party.store.runs import private_folder
from party.tasks.grading.request import GradingWork
from party.tasks.job import Job, Private
from party.tasks.result import wrapped
from party.tasks.text.kept import Keeps, Kept
from party.tasks.text.model import Loaded, placed
from party.tasks.text.voice import speaker_of

FOLDER: Final = ".grading"


def prepare(job: Job, work: GradingWork, mechanism: FreeTargets, kept: Keeps | None) -> Private:
    """Prepare the model, with the parameters that were trained here, and the texts.

    Raises `ConclaveError` as `party.tasks.text.model.placed` and `speaker_of` do, and `TrainingError` for texts that
    the model cannot read, or parameters that are not its own.
    """
    kept = kept or Kept()
    with placed(work.model, job.memory):
        given = written(Path(work.written), texts=True)
        found = kept.loaded(job, work)
        _check(mechanism, found, given, work)
        vector = torch.from_numpy(np.fromfile(work.parameters, "<f4").astype(np.float32, copy=False))
        if len(vector) != len(flatten(found.trained)):
            raise TrainingError("the model that was provided is not the one that wrote the texts. Start a new run.")
        unflatten(found.trained, vector)
        speaker_of(found.model, work.voice, len(given.openings))
    return lambda job, progress: grade(mechanism, found, given, work, Path(job.result), progress)


def grade(
    mechanism: FreeTargets,
    found: Loaded,
    given: Written,
    work: GradingWork,
    result: Path,
    progress: Callable[[int], None],
) -> NDArray[np.int32]:
    """The likeliest outcomes of every token of the texts: int32 [tokens, columns], as of `FreeTargets`.

    It is post-processing of the training that made the parameters, and of public texts: it costs nothing and needs no
    noise. Blocks are kept beside the result until it is whole. Memory: three times the result, and as of
    `learning.language.soft_targets.graded`.
    """
    folder = result.with_suffix(FOLDER)
    private_folder(folder)
    texts = Texts.joined([np.array(each, np.int32) for each in given.texts], 0)
    targets = graded(
        [speaker_of(merged(found.model), work.voice, len(given.openings))],
        texts,
        [given.before],
        top=mechanism.top,
        temperature=work.temperature,
        folder=folder,
        cells=given.codes,
        progress=lambda done, total: progress(min(99, 100 * done // total)),
    )
    made = wrapped(mechanism.contribute((targets.ids, targets.codes)))
    del targets
    shutil.rmtree(folder, ignore_errors=True)
    return made


def _check(mechanism: FreeTargets, found: Loaded, given: Written, work: GradingWork) -> None:
    tokens = tokens_of(found.model)
    if mechanism.tokens != tokens or given.largest >= tokens:
        raise TrainingError(
            f"the model has {tokens:,} tokens, the plan's terms say {mechanism.tokens:,}, and the texts hold "
            f"{given.largest:,}."
        )
    if max(map(len, given.texts)) + given.longest_opening > longest(found.model, work.model.longest):
        raise TrainingError("the model that was provided reads no texts of this length. Provide another model.")
