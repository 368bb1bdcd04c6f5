"""Scores public texts with a domain classifier that this party trained alone under DP-SGD and does not release.

It is used where a policy lets no parameters leave. PrivDistil selects public text by such scores.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.free import FreeAnswers
from aggregation.mechanisms.joint import TeacherSignal
from learning.classification.training import predict, probabilities
from learning.models import encoders
from learning.models.batching import encode
from party.tasks.text.model import DOMAINS, Loaded

_AT_ONCE: Final = 2048
"""Texts that are tokenised and scored between two reports of progress."""


def score(
    mechanism: FreeAnswers, found: Loaded, texts: Sequence[str], progress: Callable[[int], None], *, longest: int
) -> NDArray[np.int32]:
    """Score public texts with a trained domain classifier: int32 [texts, 1], 0 to `levels`.

    A text's score is the probability that it is this party's text (class 0), rounded to 1/levels. Scoring is
    post-processing of the training, whose event is charged before this begins and whose noise is all this party's own:
    it costs nothing and needs no noise, however many texts are scored. The parameters end with the process. longest:
    maximum tokens in an example. progress: is told percentages from 80 on, after those of the training. Memory: the
    texts; the tokens of `_AT_ONCE` texts, of which `learning.models.batching.TOKENS` are in the model at a time; 4
    bytes a text.
    """
    most = encoders.longest(found.model, longest)
    scores = np.empty((len(texts), 1), np.int32)
    own = DOMAINS.names.index("private")
    for start in range(0, len(texts), _AT_ONCE):
        rows = encode(found.tokenizer, texts[start : start + _AT_ONCE], longest=most).rows
        chances = np.nan_to_num(probabilities(predict(found.model, rows))[:, own])  # parameters may be mere noise
        bounded = mechanism.contribute(TeacherSignal(None, chances[None, :, None, None]))
        scores[start : start + len(rows)] = bounded.toarray()
        progress(min(99, 80 + 20 * (start + len(rows)) // len(texts)))
    return scores
