"""Masks: AES-256 in counter mode, added to a vector of 32-bit cells in place, from any cell on."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Cells = NDArray[np.uint32]
"""`[cells]`, each modulo 2^32."""

CELL_BYTES = 4
CELLS_A_CIPHER_BLOCK = 4
_CHUNK = 1 << 15  # cells: vector, key stream and zeros stay in a core's second-level cache
_ZEROS = bytes(_CHUNK * CELL_BYTES)


@dataclass(frozen=True, slots=True)
class Mask:
    """One key's stream, added or subtracted; cell i is the i-th little-endian 32-bit word of AES-256-CTR from 0.

    A key serves one mask only: the counter starts at 0 for cell 0 of the vector.
    """

    key: bytes = field(repr=False)
    negative: bool = False

    @property
    def opposite(self) -> "Mask":
        """What takes this mask off again."""
        return Mask(self.key, not self.negative)


def add_masks(masks: Sequence[Mask], start: int, cells: Cells) -> None:
    """Add the masks' cells start .. start + len(cells) - 1 to `cells`, in place, modulo 2^32.

    start: a multiple of 4, where a cipher block begins. Memory beyond `cells` is constant.
    """
    if start % CELLS_A_CIPHER_BLOCK:
        raise ValueError(f"a block begins at a multiple of {CELLS_A_CIPHER_BLOCK} cells, not at {start}")
    counter = modes.CTR((start // CELLS_A_CIPHER_BLOCK).to_bytes(16, "big"))
    streams = [(Cipher(algorithms.AES256(mask.key), counter).encryptor(), mask.negative) for mask in masks]
    buffer = bytearray(_CHUNK * CELL_BYTES)
    words = np.frombuffer(buffer, dtype="<u4")
    zeros = memoryview(_ZEROS)
    for at in range(0, len(cells), _CHUNK):
        chunk = cells[at : at + _CHUNK]
        size = len(chunk)
        for stream, negative in streams:
            stream.update_into(zeros[: size * CELL_BYTES], buffer)
            if negative:
                np.subtract(chunk, words[:size], out=chunk)
            else:
                np.add(chunk, words[:size], out=chunk)
