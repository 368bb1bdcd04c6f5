"""The two texts of a pair that was tokenised as one example, each by itself."""

from collections.abc import Sequence

import numpy as np

from learning.models.batching import Tokens
from learning.models.checkpoints import ModelError


def told_apart(pair: Tokens) -> bool:
    """Whether it is known where the second text begins."""
    return 0 < pair.second < len(pair.ids)


def sides(pair: Tokens) -> tuple[Tokens, Tokens]:
    """The first text as its encoder reads it alone, and the second: of BERT's [CLS] a [SEP] b [SEP], [CLS] a [SEP] and
    [CLS] b [SEP].

    Texts that were cut to fit together stay cut. Raises `ModelError` where nothing tells where the second begins, which
    is so of tokenizers that give both the same type.
    """
    if not told_apart(pair):
        raise ModelError("The encoder's tokenizer does not tell two texts apart. Name one like BERT for pairs.")
    first, second = pair.ids[: pair.second], np.concatenate([pair.ids[:1], pair.ids[pair.second :]])
    return Tokens(first, len(first)), Tokens(second, len(second))


def all_sides(pairs: Sequence[Tokens]) -> tuple[list[Tokens], list[Tokens]]:
    """The first texts of all pairs, and the second. Raises as `sides`."""
    both = [sides(pair) for pair in pairs]
    return [first for first, _ in both], [second for _, second in both]
