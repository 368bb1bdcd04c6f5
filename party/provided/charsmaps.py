"""Checks a character replacement table of a SentencePiece model before any text is looked up in it.

The table is a double-array trie (Darts) over UTF-8 bytes, followed by the replacement texts, each ended by a zero byte.
The library follows it without bounds checks, and crashes at an invalid place. So every place that some text could reach
is visited beforehand.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from party.provided.documents import wrong

MOST_UNITS: Final = 1 << 20
"""The most units of the trie. That of SentencePiece's own rules has 60,000."""

_FILE: Final = "tokenizer.json"
_LEAF: Final = 1 << 8
_LABEL: Final = (1 << 31) | 0xFF
_VALUE: Final = (1 << 31) - 1
_AT_ONCE: Final = 4096


def check_charsmap(content: bytes) -> None:
    """Raises `TrainingError` for an invalid table, or one that leads some text out of its bounds."""
    size = int.from_bytes(content[:4], "little") if len(content) >= 4 else 0
    if size % 4 or not 4 <= size <= min(4 * MOST_UNITS, len(content) - 4):
        raise wrong(_FILE, "has a table of characters that cannot be read")
    units = np.frombuffer(content, "<u4", size // 4, 4).astype(np.int64)
    texts = content[4 + size :]
    try:
        texts.decode()
    except UnicodeDecodeError:
        raise wrong(_FILE, "has a table of characters whose texts are no UTF-8") from None
    values = _values(units)
    begins = np.frombuffer(texts, np.uint8)
    if values.size and (values.max() >= len(begins) or bool((begins[values] & 0xC0 == 0x80).any())):
        raise wrong(_FILE, "has a table of characters that names texts which are not in it")


def _values(units: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values of all reachable leaves. Memory: `_AT_ONCE` times 255 numbers, and a few for every node."""
    offsets = (units >> 10) << ((units & (1 << 9)) >> 6)
    letters = np.arange(1, 256, dtype=np.int64)
    seen = np.zeros(len(units), bool)
    values = []
    waiting = np.array([int(offsets[0])], np.int64)
    while waiting.size:
        some, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
        places = some[:, None] ^ letters
        if int(places.max()) >= len(units):
            raise wrong(_FILE, "has a table of characters that leads out of itself")
        taken = places[units[places] & _LABEL == letters]
        taken = np.unique(taken[~seen[taken]])
        seen[taken] = True
        after = taken ^ offsets[taken]
        leaves = after[units[taken] & _LEAF != 0]
        if leaves.size:
            if int(leaves.max()) >= len(units):
                raise wrong(_FILE, "has a table of characters that leads out of itself")
            values.append(units[leaves] & _VALUE)
        waiting = np.concatenate([waiting, after])
    return np.unique(np.concatenate(values)) if values else np.empty(0, np.int64)
