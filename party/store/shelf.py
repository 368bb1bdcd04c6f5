"""What the simulated parties of one process were provided: a file that one received is linked into the others' folders.

A model of 90 MB would else come a thousand times. A party has a file under the digest that whoever received it checked.
Only parties of a simulation share a shelf: that a file need not be sent tells that another party has it.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

MOST: Final = 1024
"""The most files that are known; the one that was longest not asked for is forgotten first."""


class Shelf:
    """Where each file of a run lies at one party that has it, by the run and the file's name."""

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[str, str], Path] = OrderedDict()
        self._coming: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def alone(self, path: Path) -> AsyncIterator[None]:
        """One party at a time receives a file; those that wait find it then."""
        key = _key(path)
        lock, waiting = self._coming.get(key, (asyncio.Lock(), 0))
        self._coming[key] = lock, waiting + 1
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._coming.pop(key)
            if waiting > 1:
                self._coming[key] = lock, waiting - 1

    def link(self, path: Path) -> bool:
        """Link the file to this place, in a run's folder, if another party has it; returns whether it did."""
        other = self._places.get(_key(path))
        if other is None:
            return False
        try:
            os.link(other, path)
        except FileExistsError:
            return True
        except OSError:  # that party left the run, or its folder lies on another disk
            return False
        self._places.move_to_end(_key(path))
        return True

    def put(self, path: Path) -> None:
        """Note that a file lies there, whole."""
        self._places[_key(path)] = path
        while len(self._places) > MOST:
            self._places.popitem(last=False)


def _key(path: Path) -> tuple[str, str]:
    return path.parent.name, path.name
