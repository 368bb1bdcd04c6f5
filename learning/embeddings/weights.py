"""A skip-gram as bytes: safetensors of three tensors, for a public start that travels to parties and for teachers kept
on disk.
"""

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from aggregation.errors import IntegrityError
from learning.embeddings.skipgram import SkipGram

_AXES = {"inputs": 2, "outputs": 2, "bias": 1}


def to_bytes(model: SkipGram) -> bytes:
    """Write the tensors inputs [V, d], outputs [V, d] and bias [V], float32: the same model gives the same bytes.

    Raises `IntegrityError` for a model that holds NaN or infinity.
    """
    tensors = {name: np.ascontiguousarray(getattr(model, name), dtype=np.float32) for name in sorted(_AXES)}
    for name, tensor in tensors.items():
        _check_finite(name, tensor)
    return bytes(save(tensors))


def from_bytes(content: bytes) -> SkipGram:
    """Read what `to_bytes` wrote.

    Raises `IntegrityError` for bytes that are not safetensors, for a tensor missing or too many, for another type than
    float32, for shapes that do not fit one another, and for NaN or infinity.
    """
    try:
        tensors: dict[str, NDArray[np.float32]] = load(content)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:  # unknown types raise KeyError or TypeError
        raise IntegrityError("The skip-gram is not in the safetensors format, or was cut short.") from error
    missing = sorted(_AXES.keys() - tensors.keys())
    if missing:
        raise IntegrityError(f"The skip-gram lacks the tensor {missing[0]!r}.")
    unknown = sorted(tensors.keys() - _AXES.keys())
    if unknown:
        raise IntegrityError(f"The skip-gram has a tensor {unknown[0]!r}, which no skip-gram has.")
    for name, axes in _AXES.items():
        tensor = tensors[name]
        if tensor.dtype != np.float32:
            raise IntegrityError(f"The skip-gram's {name} are {tensor.dtype}, not float32.")
        if tensor.ndim != axes or tensor.size == 0:
            raise IntegrityError(f"The skip-gram's {name} have shape {tensor.shape}, not {axes} axes with values.")
        _check_finite(name, tensor)
    return SkipGram(tensors["inputs"], tensors["outputs"], tensors["bias"])


def _check_finite(name: str, tensor: NDArray[np.float32]) -> None:
    if not np.isfinite(tensor).all():
        raise IntegrityError(f"The skip-gram's {name} hold NaN or infinity. Train it again.")
