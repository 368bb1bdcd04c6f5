"""What audits of language models share: canaries that hold a number, how far numbers stand out, and canaries' losses.

A number is random digits after a prompt that all canaries have. So it also shows how far a canary stands out under a
student among all that it could have been.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from coordinator.auditing.attacks import Seen
from coordinator.language_models.public import PublicLanguage
from coordinator.published.audit import Exposed, Extracted
from coordinator.text_models.auditing.steps import Known, known
from learning.models.batching import losses, opening
from learning.text.source import Document

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from learning.models.batching import Tokens

Floats: TypeAlias = NDArray[np.float64]

DIGITS: Final = 4
MOST: Final = 100
"""How many of the likeliest numbers an attacker takes (Li et al., figure 1)."""
LEAST_MORE: Final = 8
"""Tokens that an answer has beside a number at least; where it has fewer, it has no number."""
_WAYS: Final = (("The number is", " "), ("The number is ", ""))
"""Prompts of numbers, and what stands before each digit."""
INPUT: Final = "What is the number?"
"""The input that all canaries have where answers to inputs are learned, after which an answer has its number."""
STUDENT: Final = "Compared the loss of each canary under the published student with that of the public model."


@dataclass(frozen=True, slots=True)
class Read:
    """Units as documents of a model. rows, owner, cells: of every text its tokens, its unit and its control code, -1
    without codes. units: how many there are.
    """

    rows: "list[Tokens]"
    owner: list[int]
    cells: list[int]
    units: int

    def of(self, unit: int) -> "list[Tokens]":
        """The documents of one unit."""
        return [row for row, owner in zip(self.rows, self.owner, strict=True) if owner == unit]


def numbered(
    tokenizer: "PreTrainedTokenizerBase",
    count: int,
    rows: Sequence[Document],
    rng: np.random.Generator,
    more: Callable[[], str],
    second: str | None = None,
    room: int | None = None,
) -> list[Document]:
    """So many records with a number of their own, fewer where there are no more numbers. more: what follows a number;
    asked for each record. second: the column of answers, where these are learned, and room: the tokens of an answer,
    which has no number where that would leave too few; None for single texts.
    """
    prompt, separator = _said_as(tokenizer) or _WAYS[0]
    alone = len(tokenizer(prompt + separator + separator.join("0" * DIGITS), add_special_tokens=False)["input_ids"])
    bare = room is not None and room - alone < LEAST_MORE
    made = []
    for number in rng.permutation(10**DIGITS)[:count]:
        said = "".join(f"{separator}{digit}" for digit in f"{number:0{DIGITS}}")
        like = rows[int(rng.integers(len(rows)))]
        whole = more() if bare else f"{prompt}{said} {more()}"
        if second is None:
            made.append(replace(like, text=whole))
        else:
            made.append(replace(like, text=INPUT, fields={**like.fields, second: whole}))
    return made


def read_pairs(public: PublicLanguage, units: Sequence[Sequence[Document]], second: str) -> Read:
    """Units as pairs of an input and an answer, as parties read them: a row without an answer is none. second: the
    column of answers.
    """
    from learning.models.pairs import encode_pairs

    assert public.pairs is not None
    rows = [(number, row) for number, own in enumerate(units) for row in own if row.fields.get(second, "").strip()]
    inputs, answers = [row.text for _, row in rows], [row.fields[second] for _, row in rows]
    found = encode_pairs(public.tokenizer, inputs, answers, public.pairs).rows
    return Read(list(found), [number for number, _ in rows], [-1] * len(rows), len(units))


def exposures(
    public: PublicLanguage,
    seen: Seen,
    student: "PreTrainedModel",
    start: "PreTrainedModel",
    second: str | None = None,
) -> Iterator[Exposed]:
    """Of the numbers that are in: by how much they stand out more under the student than under the public model, which
    saw none; and how many of them, and of those that are out, are among the likeliest. Nothing where fewer than two
    are in, or the tokenizer has no tokens for digits, or an encoder reads the inputs.

    student, start: one is asked after the other; `start` may be `public.model` with its first parameters. second: as of
    `numbered`.
    """
    from learning.audits import exposure
    from learning.language.speaker import Speaker
    from learning.models.pairs import encode_inputs

    size = 10**DIGITS
    own = seen.planted.of("worst")
    present = seen.planted.included[own]
    every = [canary for canary in seen.planted.canaries if canary.kind == "worst"]
    found_in = [_number(row.text if second is None else row.fields[second]) for row in (each.rows[0] for each in every)]
    numbers = [each for each in found_in if each is not None]
    if present.sum() < 2 or len(numbers) < len(every):
        return
    way = _said_as(public.tokenizer)
    if way is None:
        seen.progress.say("  no exposure is measured: the tokenizer has no token of its own for each digit")
        return
    prompt, digits = exposure.digit_tokens(public.tokenizer, *way)
    if public.pairs is None:
        begun = [*opening(public.tokenizer, None), *prompt]
    elif public.pairs.apart:
        seen.progress.say("  no exposure is measured: an encoder reads the inputs, and numbers stand in answers")
        return
    else:
        begun = [*encode_inputs(public.tokenizer, [INPUT], public.pairs).rows[0].ids.tolist(), *prompt]
    found = []
    for model in (student, start):
        model.eval()  # type: ignore[no-untyped-call]
        found.append(exposure.ranks(exposure.likelihoods(Speaker(model), begun, digits, DIGITS), numbers))
    ranked = found[0][present]
    beyond = exposure.excess(*(exposure.exposures(each[present], size) for each in found))
    among = [each <= MOST for each in found]
    yield Exposed(
        attacked="student",
        count=len(ranked),
        digits=DIGITS,
        mean=beyond.mean,
        low=beyond.low,
        high=beyond.high,
        p=exposure.uniform(ranked, size),
        extracted=Extracted(
            most=MOST,
            present=len(ranked),
            present_student=int(among[0][present].sum()),
            present_public=int(among[1][present].sum()),
            absent=int((~present).sum()),
            absent_student=int(among[0][~present].sum()),
            absent_public=int(among[1][~present].sum()),
        ),
    )


def losses_of_units(read: Read, student: "PreTrainedModel") -> Floats:
    """The loss of each unit under a student, [units]."""
    return known(student, read.rows, None, read.owner, read.units).losses_now()


def started(public: PublicLanguage) -> "PreTrainedModel":
    """The public model as it starts, which saw no canary."""
    from learning.models.adapting import unflatten

    unflatten(public.model, torch.from_numpy(public.start))
    return public.model


def fallen(public: PublicLanguage, read: Read, model: Known, student: "PreTrainedModel") -> Floats:
    """By how much the loss of each unit is lower under the student than under the public model, [units]."""
    before = replace(model, losses=losses).losses_at(public.start)
    return before - losses_of_units(read, student)


def _said_as(tokenizer: "PreTrainedTokenizerBase") -> tuple[str, str] | None:
    """The prompt and what separates digits after it, so that each digit is a token; None where no way makes it one."""
    from learning.audits.exposure import digit_tokens

    for way in _WAYS:
        with suppress(ConclaveError):
            digit_tokens(tokenizer, *way)
            return way
    return None


def _number(text: str) -> int | None:
    """The number of a worst case; None where it has none."""
    digits = re.findall(r"[0-9]", text)[:DIGITS]
    return int("".join(digits)) if len(digits) == DIGITS else None
