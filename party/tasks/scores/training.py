"""Public texts scored by a domain classifier that this party trained alone under DP-SGD and keeps to itself.

It is what is asked where a policy lets no parameters out: PrivDistil selects public text by such scores.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.free import FreeAnswers
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.joint import TeacherSignal
from learning.classification.training import predict, probabilities
from learning.models.batching import encode
from learning.models.encoders import longest
from party.releasing.mechanisms import mechanism_of
from party.shard.public_texts import public_texts
from party.tasks.job import Job, release_of
from party.tasks.text.model import DOMAINS, Loaded, within
from party.tasks.text_model.training import learn, started

_AT_ONCE: Final = 2048
"""Texts that are tokenised and scored between two words of progress."""


def prepare(job: Job, mechanism: FreeAnswers) -> Callable[[Job, Callable[[int], None]], NDArray[np.int32]]:
    """Everything but the party's own units: the model, and the texts to score.

    Raises `ConclaveError` like `party.tasks.text_model.training.started`, and `TrainingError` for texts that are none.
    """
    assert job.text is not None
    training = mechanism_of(release_of(job.text.training))
    assert isinstance(training, GradientMechanism)
    texts = public_texts(Path(job.text.scored), pairs=False)
    found = started(job, training)
    return lambda job, progress: score(job, mechanism, training, found, texts, progress)


def score(
    job: Job,
    mechanism: FreeAnswers,
    training: GradientMechanism,
    found: Loaded,
    texts: Sequence[str],
    progress: Callable[[int], None],
) -> NDArray[np.int32]:
    """Train a domain classifier, and score public texts: int32 [texts, 1], 0 to `levels`.

    A text's score is the probability that it is this party's text (class 0), rounded to 1/levels. It is post-processing
    of the training, whose event is charged before this begins and whose noise is all this party's own: it costs nothing
    and needs no noise, however many texts are scored. The parameters end with the process.
    Memory: as of `party.tasks.text_model.training.learn`; the texts; the tokens of `_AT_ONCE` texts, of which
    `learning.models.batching.TOKENS` are in the model at a time; 4 bytes a text.
    Raises `ConclaveError` like `learn`.
    """
    assert job.text is not None
    learn(job, training, found, within(progress, 0, 80))
    most = longest(found.model, job.text.longest)
    scores = np.empty((len(texts), 1), np.int32)
    own = DOMAINS.names.index("private")
    for start in range(0, len(texts), _AT_ONCE):
        rows = encode(found.tokenizer, texts[start : start + _AT_ONCE], longest=most).rows
        chances = np.nan_to_num(probabilities(predict(found.model, rows))[:, own])  # parameters may be mere noise
        bounded = mechanism.contribute(TeacherSignal(None, chances[None, :, None, None]))
        scores[start : start + len(rows)] = bounded.toarray()
        progress(min(99, 80 + 20 * (start + len(rows)) // len(texts)))
    return scores
