"""Teachers: skip-grams that each learn from one part of a shard, and what they say about public words.

As in PATE (Papernot et al. 2017) and DPED (Feng & Hong, equation (1): the mean of their hidden states, and votes).

A teacher depends on its own units and on public values alone: its counts, the public reference, the seed. Its hidden
vectors mean something beside another teacher's only if both live in one space. Either all start from the public
reference and stay near it where their own text says nothing, or each starts at random and is rotated onto the reference
afterwards; a mean over teachers in spaces of their own tends to zero. Nothing that leaves this module is noised:
`aggregation` bounds and noises it.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from aggregation.errors import ConclaveError, IntegrityError
from learning.embeddings.optimising import fixed_threads, minimise
from learning.embeddings.skipgram import RIDGE, SkipGram, fit

Alignment = Literal["initialisation", "procrustes"]
Layer = Literal["centre", "context"]
Words = NDArray[np.int64] | NDArray[np.int32]

BLOCK_CELLS = 1 << 22
"""Cells of [centres, V] or [queries, classes] worked on at a time: 16 MiB an array."""
BIAS_RIDGE = 1.0
"""Prior precision of a teacher's bias about the reference's, in counts."""


def train_teacher(
    counts: sparse.csr_array, reference: SkipGram, *, alignment: Alignment, seed: int, steps: int = 40
) -> SkipGram:
    """Fit a teacher to the exact counts [V, V] of its units, in the space of the public reference.

    alignment: "initialisation" starts from the reference and minimises the counts' negative log-likelihood plus `RIDGE`
    / 2 |vectors - reference|^2, without which 40 steps forget the reference's space; `seed` plays no part. "procrustes"
    starts from random vectors of the seed and is rotated onto the reference. A teacher without any pair is still a
    teacher. Changing one unit may change the teacher in any way. Memory: as of `fit`. Raises `IntegrityError` like
    `fit`, `ConclaveError` for an alignment that is neither.
    Source: teachers on disjoint parts: PATE (Papernot et al. 2017) and DPED (Feng & Hong), section 3.2.
    """
    if alignment == "initialisation":
        return _adapt(counts, reference, steps)
    if alignment == "procrustes":
        model = fit(counts, dimension=reference.inputs.shape[1], seed=seed, steps=steps)
        return align(model, reference) if model.finite else model  # parameters that went to infinity cannot be rotated
    raise ConclaveError(f"alignment is {alignment!r}; it must be 'initialisation' or 'procrustes'.")


def _adapt(counts: sparse.csr_array, reference: SkipGram, steps: int) -> SkipGram:
    """The most probable skip-gram under exact counts and a normal prior about the reference."""
    matrix, size = sparse.csr_array(counts, dtype=np.float32), len(reference.bias)
    if matrix.shape != (size, size):
        raise IntegrityError(f"A teacher's counts are {matrix.shape}, and its reference has {size:,} words.")
    if not np.isfinite(matrix.data).all() or (matrix.data < 0).any():
        raise IntegrityError("A teacher's counts are finite and not negative.")
    rows = max(1, BLOCK_CELLS // size)
    blocks = [(slice(first, first + rows), matrix[first : first + rows]) for first in range(0, size, rows)]
    columns = torch.from_numpy(np.asarray(matrix.sum(axis=0), dtype=np.float32))
    centre_bias, centre = (
        torch.from_numpy(reference.bias),
        torch.from_numpy(np.concatenate([reference.inputs, reference.outputs])),
    )

    buffers = [torch.empty(min(rows, size), size) for _ in range(3)]  # new arrays every time would fragment memory

    def objective(bias: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        by_bias, by_vectors = BIAS_RIDGE * (bias - centre_bias), RIDGE * (vectors - centre)
        loss = ((bias - centre_bias) * by_bias).sum(dtype=torch.float64) / 2
        loss += ((vectors - centre) * by_vectors).sum(dtype=torch.float64) / 2
        for place, block in blocks:
            seen, products, logarithms = (each[: block.shape[0]] for each in buffers)
            block.toarray(out=seen.numpy())
            inputs = vectors[:size][place]
            torch.addmm(bias, inputs, vectors[size:].T, out=products)
            torch.log_softmax(products, dim=1, out=logarithms)
            loss -= torch.mul(seen, logarithms, out=products).sum(dtype=torch.float64)
            slope = logarithms.exp_().mul_(seen.sum(1, keepdim=True)).sub_(seen)
            by_bias += slope.sum(0)
            by_vectors[:size][place] += slope @ vectors[size:]
            by_vectors[size:] += slope.T @ inputs
        return loss, by_bias, by_vectors

    scales = (columns + BIAS_RIDGE).sqrt(), (0.1 * columns + RIDGE).sqrt().repeat(2)[:, None]
    with torch.no_grad(), fixed_threads(size):
        bias, vectors = minimise((centre_bias, centre), scales, objective, steps, None)
    return SkipGram(vectors[:size].numpy().copy(), vectors[size:].numpy().copy(), (bias - bias.mean()).numpy().copy())


def align(model: SkipGram, reference: SkipGram) -> SkipGram:
    """Rotate a model so that its inputs come nearest to the reference's; its predictions stay what they were.

    The rotation R minimises |inputs R - reference inputs| over orthogonal matrices: R = U V' where
    U S V' = inputs' reference inputs. Outputs turn with the inputs.
    Raises `IntegrityError` for models of different shape.
    Source: Schoenemann 1966.
    """
    if model.inputs.shape != reference.inputs.shape:
        raise IntegrityError(f"A model of shape {model.inputs.shape} cannot be aligned to {reference.inputs.shape}.")
    inputs = model.inputs.astype(np.float64)
    left, _, right = np.linalg.svd(inputs.T @ reference.inputs.astype(np.float64))
    rotation = left @ right
    outputs = model.outputs.astype(np.float64) @ rotation
    return SkipGram((inputs @ rotation).astype(np.float32), outputs.astype(np.float32), model.bias)


def hidden_states(model: SkipGram, queries: Words, layers: Sequence[Layer]) -> NDArray[np.float32]:
    """What the model holds about words, [queries, layers, width]: "centre" is inputs[word], "context" outputs[word].

    Raises `IntegrityError` for a query outside the vocabulary, `ConclaveError` for no layer or an unknown one.
    Source: h_i(x) of DPED (Feng & Hong), equation (1).
    """
    check_words(queries, len(model.bias), "query")
    return np.stack([layer_of(model, layer)[queries] for layer in check_layers(layers)], axis=1)


def votes_of(
    model: SkipGram, queries: Words, classes: Words, *, relative_to: NDArray[np.float64] | None = None
) -> NDArray[np.int64]:
    """The class that the model names as context of each query: an index into `classes`, int64 [queries].

    classes: public word positions [classes]. It is the class j of highest p(j | query), the first of equals. With
    relative_to, public log-frequencies [V], it is the class of highest log p(j | query) - relative_to[j]: the one that
    the query makes likelier than it is anyway, and not the most frequent word for every query.
    Works in blocks of 16 MiB. Raises `IntegrityError` for positions outside the vocabulary or a broken `relative_to`.
    Source: y_i(x) of DPED (Feng & Hong), equation (1), as one vote; "relative_to" is our own.
    """
    size = len(model.bias)
    check_words(queries, size, "query")
    check_words(classes, size, "class")
    if not len(classes):
        raise IntegrityError("A vote needs one class or more to choose from.")
    level = model.bias[classes]
    if relative_to is not None:
        if relative_to.shape != (size,) or not np.isfinite(relative_to).all():
            raise IntegrityError(f"relative_to must be {size:,} finite log-frequencies, one for every word.")
        level = level - relative_to[classes].astype(np.float32)
    contexts = model.outputs[classes].T
    votes = np.empty(len(queries), dtype=np.int64)
    rows = max(1, BLOCK_CELLS // len(classes))
    for first in range(0, len(queries), rows):
        asked = model.inputs[queries[first : first + rows]]
        votes[first : first + rows] = (asked @ contexts + level).argmax(axis=1)  # the softmax's divisor is one per row
    return votes


def layer_of(model: SkipGram, layer: Layer) -> NDArray[np.float32]:
    """The whole layer, [V, width]."""
    return model.inputs if layer == "centre" else model.outputs


def check_layers(layers: Sequence[Layer]) -> Sequence[Layer]:
    """The layers themselves; raises `ConclaveError` for none, an unknown one, or one named twice."""
    for layer in layers:
        if layer not in ("centre", "context"):
            raise ConclaveError(f"A skip-gram has no layer {layer!r}; its layers are 'centre' and 'context'.")
    if not layers or len(set(layers)) != len(layers):
        raise ConclaveError(f"layers are {list(layers)}; name 'centre', 'context' or both, each once.")
    return layers


def check_words(words: Words, size: int, what: str) -> None:
    """Raises `IntegrityError`, naming the first offender's index, unless all are positions in 0..size-1."""
    if words.ndim != 1 or not np.issubdtype(words.dtype, np.integer):
        raise IntegrityError(f"Each {what} is a word's position: give integers of one axis, not {words.dtype}.")
    outside = np.flatnonzero((words < 0) | (words >= size))
    if outside.size:
        index = int(outside[0])
        raise IntegrityError(
            f"The {what} at index {index} is {int(words[index])}, and the vocabulary has words 0..{size - 1}."
        )
