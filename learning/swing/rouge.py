"""ROUGE of generated texts against real ones, by Google's rouge-score library, which downloads nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from aggregation.errors import ConclaveError

KINDS: Final = ("rouge1", "rouge2", "rougeL")


@dataclass(frozen=True, slots=True)
class Rouge:
    """Means over texts of the F1 of common words, of common pairs of words, and of the longest common subsequence.

    Each from 0 to 100, as papers print them. texts: how many were compared.
    """

    rouge_1: float
    rouge_2: float
    rouge_l: float
    texts: int


def rouge(generated: Sequence[str], real: Sequence[str], *, stemmed: bool = True) -> Rouge:
    """ROUGE-1, 2 and L of generated texts, each against the real one in its place.

    Words are letters a to z and digits, in lower case: other scripts count as nothing. stemmed: Porter's stems of words
    longer than three letters are compared. Raises `ConclaveError` where there is no text, or not one of each. Source:
    Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries".
    """
    from rouge_score.rouge_scorer import RougeScorer

    if len(generated) != len(real) or not real:
        raise ConclaveError(f"{len(generated):,} texts cannot be compared with {len(real):,}. Give as many of each.")
    scorer = RougeScorer(list(KINDS), use_stemmer=stemmed)
    found = [scorer.score(target, made) for target, made in zip(real, generated, strict=True)]
    one, two, long = (100 * float(np.mean([each[kind].fmeasure for each in found])) for kind in KINDS)
    return Rouge(one, two, long, len(real))
