"""What the public model and a party's teachers answer to query texts, in the certified form: cells and differences."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggregation.errors import ConclaveError
from learning.language.generation import Texts
from learning.language.soft_targets import STEP
from learning.language.speaker import Speaker, own_logits
from learning.models.batching import Tokens, batches
from learning.models.compute import device_of
from learning.swing.differences import Cells, cells_of, differences

_TOKENS: Final = 4096
"""Tokens in one pass on a device, padding included."""
_ON_PROCESSOR: Final = 1024
"""The same on the processor, where the distributions of more leave its cache: a quarter longer."""


def cells_of_texts(
    public: Speaker,
    texts: Texts,
    openings: Sequence[Sequence[int]],
    temperatures: NDArray[np.float64],
    top: int,
) -> Cells:
    """The public index set of every token of some texts, in the order of `Texts.ids`.

    openings: what stands before each text, one token or more. temperatures: of each token's place, [tokens], as of
    `learning.swing.temperature`. The cells depend on public values alone. But two machines may disagree in the last
    bits of a probability, and so on which token is the last of the `top`: one of them computes the cells, and the
    others are given them. Memory: the cells; of one batch the distributions of 4,096 tokens at the most. Raises
    `ConclaveError` as `cells_of`, and where texts, openings and temperatures do not match.
    """
    ids = np.zeros((len(texts.ids), top), np.int64)
    chances = np.zeros((len(texts.ids), top + 1))
    for places, said in _said(public, texts, openings, temperatures):
        found = cells_of(said, top)
        ids[places], chances[places] = found.ids, found.public
    return Cells(ids, chances)


def cells_kept(ids: NDArray[Any], codes: NDArray[np.uint16]) -> Cells:
    """The cells of the public model's best tokens and their probabilities, both [tokens, top], as
    `learning.language.soft_targets` keeps them: so both ends have the same numbers, to the bit.

    Raises `IntegrityError` for a token that is named twice in one place.
    """
    named = np.exp(codes.astype(np.float64) * -STEP)
    rest = np.maximum(1 - named.sum(axis=1, keepdims=True), 0)
    public = np.concatenate([named, rest], axis=1)
    return Cells(ids.astype(np.int64), public / public.sum(axis=1, keepdims=True))


def differences_of_texts(
    teacher: Speaker,
    texts: Texts,
    openings: Sequence[Sequence[int]],
    temperatures: NDArray[np.float64],
    cells: Cells,
) -> NDArray[np.float64]:
    """A teacher's differences from the public model over the cells of some texts, [tokens, top + 1], not clipped.

    As `cells_of_texts`, under the same temperatures. Raises `ConclaveError` where the cells are of other texts.
    """
    if len(cells.ids) != len(texts.ids):
        raise ConclaveError(f"The cells are of {len(cells.ids):,} tokens, and the texts have {len(texts.ids):,}.")
    found = np.zeros(cells.public.shape)
    for places, said in _said(teacher, texts, openings, temperatures):
        found[places] = differences(said, Cells(cells.ids[places], cells.public[places]))
    return found


def _said(
    speaker: Speaker, texts: Texts, openings: Sequence[Sequence[int]], temperatures: NDArray[np.float64]
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """Log-probabilities [places, tokens] of a batch's own tokens, and which tokens of the texts these are [places]."""
    if len(openings) != len(texts) or temperatures.shape != texts.ids.shape:
        raise ConclaveError(
            f"{len(openings):,} openings and {len(temperatures):,} temperatures are not those of {len(texts):,} texts "
            f"of {len(texts.ids):,} tokens."
        )
    rows = [
        Tokens(np.concatenate([np.asarray(opening, np.int32), ids]), len(opening))
        for opening, ids in zip(openings, texts, strict=True)
    ]
    for some in batches(rows, _ON_PROCESSOR if device_of(speaker.model).type == "cpu" else _TOKENS):
        places = np.concatenate([np.arange(texts.stops[each], texts.stops[each + 1]) for each in some])
        with torch.inference_mode():
            logits, _ = own_logits(speaker.model, [rows[each] for each in some])
            at = torch.from_numpy(temperatures[places].astype(np.float32))[:, None].to(logits.device)
            yield places, speaker.log_probabilities(logits, at).cpu()
