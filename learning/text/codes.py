"""Control codes: what is publicly known of a text, in words, as a language model is shown it before the text. No torch.

A template has columns in braces, for example "Category: {category} | Rating: {rating}". Each column has public values,
so there are finitely many codes, the cells of their joint histogram, and nothing about them depends on anybody's rows.

Source: DistilDP (Flemings & Annavaram 2024, section 4), which takes the codes from Keskar et al. 2019.
"""

import itertools
import string
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from aggregation.errors import ConclaveError
from learning.text.labelled import LabelError, LabelMap

MOST_CELLS: Final = 4096
"""The most codes of a template: a noisy histogram of more says little of any of them."""
MOST_COUNTS: Final = 1 << 22
"""The most counts of tokens by code, codes times tokens, that coordinators plan and parties make: 16 MiB."""
LONGEST_TEMPLATE: Final = 1000
"""The most characters of a template."""


class CodeError(ConclaveError):
    """A template or its columns that no plan can declare."""

    CODE = "C205"


@dataclass(frozen=True, slots=True)
class Codes:
    """A template and the public values of its columns.

    columns: for each name that the template has in braces its values, in order: `names` as a code shows them, `values`
    as rows hold them. Raises `CodeError` for a template without columns, or with others than `columns`, one that is too
    long or cannot be shown, and for more than `MOST_CELLS` codes.
    """

    template: str
    columns: Mapping[str, LabelMap]

    def __post_init__(self) -> None:
        if len(self.template) > LONGEST_TEMPLATE or not self.template.isprintable():
            raise CodeError(
                f"The template of codes is longer than {LONGEST_TEMPLATE:,} characters, or has some that cannot be "
                "shown. Use one short line."
            )
        named = self._named()
        if not named:
            raise CodeError('The template of codes names no column. Use for example "Category: {category}".')
        other = sorted(set(named) ^ set(self.columns))
        if other:
            raise CodeError(
                f"The template of codes names the columns {_listed(named)}, and values are given of "
                f"{_listed(self.columns)}: {other[0]} is in one of them only."
            )
        if self.cells > MOST_CELLS:
            raise CodeError(
                f"The columns of the codes have {self.cells:,} combinations of values, and {MOST_CELLS:,} are the most "
                "whose counts would say anything. Leave out a column, or join its values."
            )

    @property
    def cells(self) -> int:
        """How many codes there are."""
        return prod(len(values.names) for values in self.columns.values())

    def cell(self, fields: Mapping[str, str]) -> int | None:
        """The code of a row, 0 to `cells` - 1; None where a column has another value than the public ones.

        fields: by the columns' names, as rows hold them.
        """
        cell = 0
        for name, values in self.columns.items():
            try:
                cell = cell * len(values.names) + values.index(fields.get(name, ""))
            except LabelError:
                return None
        return cell

    def texts(self) -> list[str]:
        """Every code in words, in the order of the cells."""
        names, shown = list(self.columns), [values.names for values in self.columns.values()]
        return [self.template.format_map(dict(zip(names, each, strict=True))) for each in itertools.product(*shown)]

    def _named(self) -> list[str]:
        """The names in the template's braces, each once."""
        try:
            parts = list(string.Formatter().parse(self.template))
        except ValueError as error:
            raise CodeError(f"The template of codes cannot be read: {error}. Write a brace as two.") from None
        for _, name, spec, conversion in parts:
            if name is not None and (not name.isidentifier() or spec or conversion):
                raise CodeError(
                    f"The template of codes has {{{name}}}, which names no column. Use letters, digits and _ alone."
                )
        return list(dict.fromkeys(name for _, name, _, _ in parts if name is not None))


def _listed(names: Mapping[str, LabelMap] | list[str]) -> str:
    return ", ".join(names) or "none"
