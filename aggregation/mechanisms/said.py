"""What language models say that parties trained alone and keep: texts, and what might stand in every token's place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from aggregation.arrays import IntArray
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.mechanism import Form, Free

SHORT: Final = 1 << 16
"""Tokens whose number takes 2 bytes."""
MOST: Final = 1 << 20
"""The most tokens of a text, and outcomes of a token."""


@dataclass(frozen=True, slots=True)
class FreeTexts(Free):
    """Texts that a party's own language model wrote, one a row.

    It holds only if the model is the result of the release `after`, whose event was charged before its training began,
    and the texts depend on it and on public values alone. Sensitivity: none is charged.

    after: the name of that release. longest: tokens of a text, its end included. Raises `ConclaveError` for a number
    out of range.
    """

    kind: ClassVar[str] = "texts"
    forms: ClassVar[tuple[Form, ...]] = (Form.SAID,)

    after: str
    longest: int

    def __post_init__(self) -> None:
        _check_after(self.after)
        check_many(self.longest, "tokens a text")

    @property
    def columns(self) -> int:
        """Columns of the released matrix."""
        return self.longest

    def contribute(self, signal: Sequence[NDArray[np.int32]]) -> IntArray:
        """Texts as tokens: integers [texts, longest], a token's number plus 1, and 0 where a text has ended. Raises
        `IntegrityError` for a longer text.
        """
        made = np.zeros((len(signal), self.longest), np.int64)
        for row, ids in zip(made, signal, strict=True):
            if len(ids) > self.longest:
                raise IntegrityError(f"A text has {len(ids):,} tokens, and {self.longest:,} may leave.")
            row[: len(ids)] = np.asarray(ids, np.int64) + 1
        return made

    def texts(self, rows: IntArray) -> list[NDArray[np.int32]]:
        """The texts of received rows [texts, longest]. Raises `IntegrityError` for rows that are no texts."""
        lengths = (rows != 0).sum(axis=1)
        whole = np.arange(rows.shape[1]) < lengths[:, None]
        if rows.shape[1] != self.longest or (rows < 0).any() or ((rows != 0) != whole).any():
            raise IntegrityError("They are no texts.")
        return [(row[:length] - 1).astype(np.int32) for row, length in zip(rows, lengths, strict=True)]

    def described(self, rows: int, columns: int, form: Form) -> str:
        """The release that paid for it."""
        return f"texts of what {self.after} paid for: post-processing, no noise, no charge"


class Outcomes:
    """The wire form of what a language model says might stand in the place of every token of given texts.

    A row is one token; `top` outcomes are kept of it, with their probabilities. tokens: that the model has; below
    65,536 an outcome takes one cell: its number in the upper 16 bits, its probability on its grid in the lower
    (`learning.language.soft_targets`); otherwise two, first all numbers and then all probabilities.
    """

    __slots__ = ()
    top: int
    tokens: int

    @property
    def columns(self) -> int:
        """Columns of the released matrix."""
        return self.top if self.tokens <= SHORT else 2 * self.top

    def contribute(self, signal: tuple[NDArray[Any], NDArray[np.uint16]]) -> IntArray:
        """Numbers of tokens and probabilities on their grid, both [places, top], as integers [places, columns]; a place
        is that of one token of the texts. Raises `IntegrityError` for another shape.
        """
        ids, codes = (np.asarray(each).astype(np.int64) for each in signal)
        if ids.shape != codes.shape or ids.ndim != 2 or ids.shape[1] != self.top:
            raise IntegrityError(f"Of each token {self.top:,} outcomes leave, not {ids.shape[-1:]}.")
        return (ids << 16) | codes if self.tokens <= SHORT else np.hstack([ids, codes])

    def targets(self, rows: IntArray) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
        """The same of received rows, modulo 2**32. Raises `IntegrityError` for numbers that no token has, and for a
        token that is named twice in one place.
        """
        cells = rows & 0xFFFFFFFF
        if self.tokens <= SHORT:
            ids, codes = cells >> 16, cells & 0xFFFF
        else:
            ids, codes = cells[:, : self.top], cells[:, self.top :]
        ordered = np.sort(ids, axis=1)
        twice = bool((ordered[:, 1:] == ordered[:, :-1]).any())
        if rows.shape[1] != self.columns or twice or ids.max(initial=0) >= self.tokens or codes.max(initial=0) >= SHORT:
            raise IntegrityError("They are no outcomes of tokens.")
        return ids.astype(np.uint32), codes.astype(np.uint16)

    def _check_outcomes(self) -> None:
        """Raises `ConclaveError` for a number out of range."""
        check_many(self.top, "outcomes a token")
        if not self.top <= self.tokens < 1 << 31:
            raise ConclaveError(f"The best {self.top:,} of {self.tokens:,} tokens make no sense.")


@dataclass(frozen=True, slots=True)
class FreeTargets(Outcomes, Free):
    """What a party's own language model says might stand in the place of every token of given texts, one token a row.

    Its condition is that of `FreeTexts`, with the model that wrote the release `after`. top, tokens: as of `Outcomes`.
    Raises `ConclaveError` for a number out of range.
    """

    kind: ClassVar[str] = "targets"
    forms: ClassVar[tuple[Form, ...]] = (Form.SAID,)

    after: str
    top: int
    tokens: int

    def __post_init__(self) -> None:
        _check_after(self.after)
        self._check_outcomes()

    def described(self, rows: int, columns: int, form: Form) -> str:
        """The release whose model says it."""
        return (
            f"of every token of the texts the {self.top:,} likeliest outcomes, by what wrote {self.after}: "
            "post-processing, no noise, no charge"
        )


def check_many(many: int, what: str) -> None:
    """Raises `ConclaveError` for a number of tokens or outcomes that is none, or too large."""
    if not 1 <= many <= MOST:
        raise ConclaveError(f"{many:,} {what} make no sense. Use 1 to {MOST:,}.")


def _check_after(after: str) -> None:
    if not after:
        raise ConclaveError("What a model says comes after a release that paid for it, and none is named.")
