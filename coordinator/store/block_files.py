"""Files with blocks of a noisy sum in NumPy's format; a header is trusted only where the file's bytes agree with it."""

from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coordinator.store.faults import broken

_HEADER_BYTES: Final = 10_000
"""The most bytes of a block file's header: more than NumPy needs to describe the rest."""


def packed(block: NDArray[np.int64]) -> bytes:
    """The bytes of a block's file."""
    content = BytesIO()
    np.save(content, block, allow_pickle=False)
    return content.getvalue()


def unpacked(content: bytes, rows: int, path: Path) -> NDArray[np.int64]:
    """The rows in a block's file, int64 [rows, columns]. Raises `RunError` unless it is a block of so many rows."""
    file = BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file, max_header_size=_HEADER_BYTES)
        whole = len(shape) == 2 and shape[0] == rows and min(shape) >= 0 and dtype == np.int64 and not fortran
        if whole and shape[0] * shape[1] * dtype.itemsize == len(content) - file.tell():
            return np.frombuffer(content, np.int64, offset=file.tell()).reshape(shape).copy()
    except (ValueError, TypeError, SyntaxError, TokenError, RecursionError):
        pass
    raise broken(path, f"it is not a block of {rows} rows")
