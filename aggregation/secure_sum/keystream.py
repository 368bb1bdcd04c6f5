"""Masks: AES-256 in counter mode, added to vectors of 32-bit cells, from any cell on, on every core."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from aggregation.secure_sum.cores import hands, spread

Cells = NDArray[np.uint32]
"""`[cells]`, each modulo 2^32."""

CELL_BYTES = 4
CELLS_A_CIPHER_BLOCK = 4
_CHUNK = 1 << 15  # cells: vector, key stream and zeros stay in a core's second-level cache
_ALONE = 1 << 18  # below this many cells, one thread is faster than several
_ZEROS = memoryview(bytes(_CHUNK * CELL_BYTES))


@dataclass(frozen=True, slots=True)
class Mask:
    """One key's stream, added or subtracted; cell i is the i-th little-endian 32-bit word of AES-256-CTR from 0.

    A key serves one mask only: the counter starts at 0 for cell 0 of the vector.
    """

    key: bytes = field(repr=False)
    negative: bool = False

    @property
    def opposite(self) -> "Mask":
        """The mask that removes this one."""
        return Mask(self.key, not self.negative)


class Masks:
    """Several masks added together. Any thread may use them; concurrent threads have ciphers of their own."""

    def __init__(self, masks: Sequence[Mask]) -> None:
        self._masks = tuple(masks)
        self._idle: list[_Streams] = []

    def cover(self, start: int, values: NDArray[np.integer[Any]]) -> Cells:
        """Add the masks' cells from `start` on to integers `[cells]`, modulo 2^32, in a new array.

        start: a multiple of 4, where a cipher block begins. Memory beyond the new array: for each thread at work (at
        most `cores.MOST`) 128 KiB, and about 1 KiB a mask. Raises `ValueError` for another start.
        """
        if start % CELLS_A_CIPHER_BLOCK:
            raise ValueError(f"a block begins at a multiple of {CELLS_A_CIPHER_BLOCK} cells, not at {start}")
        covered = np.empty(len(values), dtype=np.uint32)
        alone = len(covered) * len(self._masks) <= _ALONE
        size = _piece(len(covered), 1 if alone else hands())

        def cover_piece(piece: int) -> None:
            at = piece * size
            cells = covered[at : at + size]
            np.copyto(cells, values[at : at + size], casting="unsafe")
            self._add(start + at, cells)

        spread(cover_piece, -(-len(covered) // size), alone=alone)
        return covered

    def _add(self, start: int, cells: Cells) -> None:
        try:
            streams = self._idle.pop()
        except IndexError:
            streams = _Streams(self._masks)
        streams.add(start, cells)
        self._idle.append(streams)


class _Streams:
    """The state with which one thread adds masks: a cipher for every key, and a buffer for its key stream."""

    def __init__(self, masks: Sequence[Mask]) -> None:
        begin = modes.CTR(bytes(16))
        self._streams: list[tuple[Any, Callable[..., Cells]]] = [
            (Cipher(algorithms.AES256(mask.key), begin).encryptor(), np.subtract if mask.negative else np.add)
            for mask in masks
        ]
        self._buffer = bytearray(_CHUNK * CELL_BYTES)
        self._words = np.frombuffer(self._buffer, dtype="<u4")

    def add(self, start: int, cells: Cells) -> None:
        """Add to at most `_CHUNK` cells, in place."""
        counter = (start // CELLS_A_CIPHER_BLOCK).to_bytes(16, "big")
        zeros, words = _ZEROS[: cells.nbytes], self._words[: len(cells)]
        for cipher, combine in self._streams:
            cipher.reset_nonce(counter)
            cipher.update_into(zeros, self._buffer)
            combine(cells, words, cells)


def _piece(cells: int, threads: int) -> int:
    """Cells in a piece: whole cipher blocks, at most a chunk, and as many pieces for each of the threads."""
    pieces = max(1, -(-cells // (_CHUNK * threads)) * threads)
    return max(1, -(-cells // (pieces * CELLS_A_CIPHER_BLOCK))) * CELLS_A_CIPHER_BLOCK
