"""Masked vectors as they arrive, one file per party, on disk until the sum is taken."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from aggregation.secure_sum.context import Context
from aggregation.secure_sum.keystream import Cells
from aggregation.secure_sum.mask import block_length, block_start
from coordinator.store.private_files import private_folder, private_opener

_SUFFIX: Final = ".cells"


class MaskedFiles:
    """The stored blocks of one attempt; implements `aggregation.secure_sum.mask.Blocks`. Memory: one block.

    Blocks that are already on disk are complete, except for a last block that a kill may have cut off, which is sent
    again.
    """

    def __init__(self, folder: Path, context: Context) -> None:
        self._folder = folder
        self._context = context
        private_folder(folder)

    def kept(self, party: str) -> int:
        """How many complete blocks of a party are stored."""
        path = self._path(party)
        cells = path.stat().st_size // 4 if path.exists() else 0
        if cells >= self._context.length:
            return -(-self._context.length // block_length(self._context, 0))
        return cells // block_length(self._context, 0)

    def put(self, party: str, index: int, block: Cells) -> None:
        """Store a block at its place. A block that is there already is identical, and is kept."""
        if index < self.kept(party):
            return
        path = self._path(party)
        with open(path, "r+b" if path.exists() else "wb", opener=private_opener) as file:
            file.seek(4 * block_start(index))
            file.write(block.astype("<u4", copy=False).tobytes())
            file.truncate()

    def blocks(self, index: int) -> Iterator[tuple[str, Cells]]:
        """Every party that sent this block, with its cells."""
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            party = path.name.removesuffix(_SUFFIX)
            if index < self.kept(party):
                yield party, self.block(party, index)

    def block(self, party: str, index: int) -> Cells:
        """One stored block."""
        length = block_length(self._context, index)
        return np.fromfile(self._path(party), "<u4", length, offset=4 * block_start(index)).astype(
            np.uint32, copy=False
        )

    def remove(self) -> None:
        """Remove all blocks, because the sum is taken or the attempt is lost."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, party: str) -> Path:
        return self._folder / f"{party}{_SUFFIX}"
