"""The census: keyed hashes of what a training read, by which a ledger recognises records under any later name.

A hash is the first 16 bytes of an HMAC-SHA256 under a secret of the party's. The file holds nothing else, and is
removed once it is in the ledger. Two documents are the same when their text, their user or their explicit id is the
same. Where parts of documents are protected (sentences or pairs), they are also the same when they share one identical
sentence. Edited text is recognised only by its user or id: near-duplicates count as other records.
"""

import hmac
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Literal

from learning.text.source import Document
from learning.text.words import sentences
from party.errors import PartyError
from party.shard_table import ShardTable

TEXT: Final = 0
USER: Final = 1
ID: Final = 2
SENTENCE: Final = 3

_ROLES: Final = {TEXT: b"text\0", USER: b"user\0", ID: b"id\0", SENTENCE: b"sentence\0"}
_HASH: Final = 16
_ROW: Final = _HASH + 1
_CHUNK: Final = 1 << 16
_BUFFER: Final = 1 << 18


class Census:
    """Writes the hashes of documents as they are read: one row of 17 bytes a hash, whose last byte is its kind.

    parts: also hash each document's sentences, for units that are part of a document, so that the unit and all text
    that contains it are recognised. Memory: the file's buffer, 256 kB, and the last user.
    """

    def __init__(self, file: BinaryIO, key: bytes, shard: ShardTable, *, parts: bool) -> None:
        self._file = file
        self._key = key
        self._shard = shard
        self._parts = parts
        self._user = ""

    def note(self, document: Document) -> None:
        """Hash one document that the training reads in this party's part."""
        self._write(TEXT, document.text)
        if self._parts:
            for sentence in sentences(document.text):
                self._write(SENTENCE, sentence)
        shard = self._shard
        if shard.id is not None:
            self._write(ID, document.id)
        if shard.user is not None:
            user = document.text if shard.user == shard.text else document.fields.get(shard.user, "")
            if user and user != self._user:  # rows of one user often follow each other
                self._write(USER, user)
                self._user = user

    def _write(self, kind: int, value: str) -> None:
        digest = hmac.digest(self._key, _ROLES[kind] + value.encode(), "sha256")
        self._file.write(digest[:_HASH] + bytes((kind,)))


@contextmanager
def written(
    path: Path,
    key: bytes,
    shard: ShardTable,
    record: Literal["document", "sentence", "pair"] = "document",
    *,
    by_user: bool = False,
) -> Iterator[Census]:
    """A census in the file at `path`, mode 0600, complete when the context ends. An existing file is replaced.

    record, by_user: the training's unit, as `party.shard.units.units` takes it.
    """
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "wb", buffering=_BUFFER) as file:
        yield Census(file, key, shard, parts=record != "document" and not by_user)


def chunks(path: Path) -> Iterator[list[bytes]]:
    """The rows of a census, sorted and distinct within each chunk of 2**16.

    Memory: about 15 MB. Raises `PartyError` for a file that ends within a row.
    """
    with path.open("rb") as file:
        while block := file.read(_ROW * _CHUNK):
            if len(block) % _ROW:
                raise PartyError("The census of a training is not whole.", code="C605")
            yield sorted({block[start : start + _ROW] for start in range(0, len(block), _ROW)})
