"""Writes texts with a language model that this party trained alone under DP-SGD and does not release.

It is used where a policy lets no parameters leave. DistilDP learns its student from such texts.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from aggregation.mechanisms.said import FreeTexts
from learning.language.generation import Sampling, generate
from learning.models import encoders
from learning.models.adapting import flatten, merged, unflatten
from party.errors import TrainingError
from party.provided.written import Written
from party.store.runs import private_folder, write_whole
from party.tasks.result import wrapped
from party.tasks.text.model import Loaded
from party.tasks.text.voice import speaker_of
from party.tasks.text_model.request import WritingWork

FOLDER: Final = ".writing"


def check(mechanism: FreeTexts, found: Loaded, asked: Written, work: WritingWork, longest: int) -> None:
    """Check with the untrained model what is to be written, before the training is charged.

    Raises `TrainingError` for openings of tokens that the model lacks, or that leave its texts no room; for a tokenizer
    without an end token; and as `speaker_of`.
    """
    tokens = encoders.tokens_of(found.model)
    if asked.largest >= tokens:
        raise TrainingError(f"an opening has the token {asked.largest:,}, and the model has {tokens:,}.")
    if asked.longest_opening + mechanism.longest > encoders.longest(found.model, longest):
        raise TrainingError("the model that was provided reads no texts of this length. Provide another model.")
    if not isinstance(found.tokenizer.eos_token_id, int) or len(found.tokenizer) > tokens:
        raise TrainingError("the tokenizer that was provided has no end token, or more tokens than its model.")
    speaker_of(found.model, work.voice, len(asked.openings))


def write(
    mechanism: FreeTexts,
    found: Loaded,
    asked: Written,
    work: WritingWork,
    result: Path,
    progress: Callable[[int], None],
) -> NDArray[np.int32]:
    """Write the texts with the trained model: int32 [texts, longest], a token's number plus 1, and 0 where a text has
    ended. The model's parameters are kept for `party.tasks.grading`.

    Writing is post-processing of the training, whose event is charged before this begins and whose noise is all this
    party's own: it costs nothing and needs no noise. Texts are drawn from the work's public seed. Blocks of texts are
    kept beside the result until it is whole. progress: is told percentages from 80 on. Memory: as of
    `learning.language.generation.generate`.
    """
    vector = np.nan_to_num(flatten(found.trained).cpu().numpy(), posinf=0.0, neginf=0.0)  # it may be mere noise
    unflatten(found.trained, torch.from_numpy(vector))
    write_whole(Path(work.keeps), vector.astype("<f4", copy=False).tobytes())
    end = found.tokenizer.eos_token_id
    assert isinstance(end, int)
    folder = result.with_suffix(FOLDER)
    private_folder(folder)
    texts = generate(
        speaker_of(merged(found.model), work.voice, len(asked.openings)),
        asked.before,
        Sampling(mechanism.longest, work.top_k, work.top_p, work.temperature, work.batch),
        end=end,
        seed=work.seed,
        folder=folder,
        known=len(found.tokenizer),
        cells=asked.codes,
        progress=lambda done, total: progress(min(99, 80 + 20 * done // total)),
    )
    return wrapped(mechanism.contribute(list(texts)))
