"""The result of a training: a bounded, noise-free sum, in a file of the run's folder, complete or absent."""

import contextlib
import math
import os
import threading
import zipfile
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Sum: TypeAlias = sparse.csr_array | NDArray[np.int32]
"""A bounded, noise-free sum [rows, columns]: sparse integers where few cells are not 0, else all cells modulo 2**32."""

CELL: Final = 4
"""Bytes of a cell of a dense sum."""

_LITTLE: Final = 1 << 20
_READING: Final = threading.Lock()
"""Held while a matrix is read: numpy's reader of headers is not safe for two threads (CPython 3.11, gh-106905)."""
_DENSE_AT_ONCE: Final = 1 << 22


def save_counts(path: Path, counts: Sum) -> None:
    """Write a matrix completely or not at all, with mode 0600; the file is at most as large as all its cells, apart
    from a small constant.
    """
    if not isinstance(counts, np.ndarray) and _bytes(counts) > max(_LITTLE, CELL * math.prod(counts.shape)):
        counts = _dense(counts)
    part = path.with_name(f".{path.name}.part")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    try:
        with os.fdopen(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
            if isinstance(counts, np.ndarray):
                np.savez(file, dense=counts)
            else:
                shape = np.array(counts.shape)
                np.savez(file, data=counts.data, indices=counts.indices, indptr=counts.indptr, shape=shape)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _bytes(counts: sparse.csr_array) -> int:
    return int(counts.data.nbytes + counts.indices.nbytes + counts.indptr.nbytes)


def _dense(counts: sparse.csr_array) -> NDArray[np.int32]:
    """All cells modulo 2**32. Memory: the result, and a part of the input."""
    made = np.empty(counts.shape, np.int32)
    rows = max(1, _DENSE_AT_ONCE // max(1, counts.shape[1]))
    for start in range(0, counts.shape[0], rows):
        made[start : start + rows] = wrapped(counts[start : start + rows].toarray().astype(np.int64, copy=False))
    return made


def load_counts(path: Path) -> Sum:
    """The matrix that `save_counts` wrote."""
    with _READING, np.load(path, allow_pickle=False) as parts:
        if "dense" in parts:
            return np.asarray(parts["dense"])
        return sparse.csr_array((parts["data"], parts["indices"], parts["indptr"]), shape=tuple(parts["shape"]))


def shape_of(path: Path) -> tuple[int, int]:
    """The public shape of the matrix that `save_counts` wrote, without reading its cells."""
    with _READING, zipfile.ZipFile(path) as parts:
        if "dense.npy" not in parts.namelist():
            with np.load(path, allow_pickle=False) as found:
                rows, columns = found["shape"].tolist()
                return rows, columns
        with parts.open("dense.npy") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            rows, columns = read(file)[0]
            return rows, columns


def wrapped(cells: NDArray[np.int64]) -> NDArray[np.int32]:
    """The same integers modulo 2**32."""
    return (cells & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
