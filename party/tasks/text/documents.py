"""Documents of a language model as a party reads them: the codes before them, and the tilt of the model's logits."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from learning.models.batching import Encoded, encode_documents
from learning.models.pairs import PairForm, encode_pairs
from party.admission.codes import codes_of
from party.errors import TrainingError
from party.shard.coded import RowCodes
from party.shard.plain import PlainUnits, plain_units
from party.shard.reading import Reading
from party.shard_table import ShardTable
from party.tasks.text.voice import MOST_TILT
from protos.conclave.v1 import plan_pb2

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def documents(
    reading: Reading,
    tokenizer: "PreTrainedTokenizerBase",
    coded: str,
    *,
    longest: int,
    known: int,
    slot_of: Callable[[str], int] | None = None,
) -> PlainUnits:
    """This party's units as documents of a language model; `Tokens.second` is where each one's own text begins.

    coded: the plan's message in hexadecimal, empty for a plan without codes. longest, known: as of
    `learning.models.batching.encode_documents`. slot_of, memory and errors: those of
    `party.shard.plain.plain_units`.
    """
    codes = codes_in(coded, reading.shard)
    encoded = partial(_encoded, tokenizer, longest=longest, known=known)
    return plain_units(reading, encoded, longest=longest, codes=codes, slot_of=slot_of)


def answered(
    reading: Reading,
    tokenizer: "PreTrainedTokenizerBase",
    second: str,
    form: PairForm,
    *,
    known: int,
    slot_of: Callable[[str], int] | None = None,
) -> PlainUnits:
    """This party's units as pairs of an input and an answer; `Tokens.second` is where each one's answer begins.

    second: the column of answers. known: as of `learning.models.pairs.encode_pairs`. slot_of, memory and errors: those
    of `party.shard.plain.plain_units`.
    """
    encoded = partial(encode_pairs, tokenizer, form=form, known=known)
    return plain_units(reading, encoded, longest=form.longest, second=second, answered=True, slot_of=slot_of)


def codes_in(coded: str, shard: ShardTable) -> RowCodes | None:
    """The codes of the plan's message that a job holds in hexadecimal; None where the plan has none."""
    return codes_of(plan_pb2.CodedText.FromString(bytes.fromhex(coded)), shard) if coded else None


def tilt_in(path: str, tokens: int) -> Tensor:
    """The provided tilt, float32 [tokens]. tokens: those of the model.

    Raises `TrainingError` where the tilt's numbers are not as many, not finite or above `MOST_TILT`.
    """
    size = Path(path).stat().st_size
    if size != 4 * tokens:
        raise TrainingError(
            f"the tilt that was provided has {size:,} bytes, and the model's {tokens:,} tokens take {4 * tokens:,}."
        )
    tilt = np.fromfile(path, "<f4").astype(np.float32, copy=False)
    if not (np.abs(tilt) <= MOST_TILT).all():
        raise TrainingError(
            f"the tilt that was provided holds NaN, or numbers above {MOST_TILT:,.0f}. Make it from noised counts "
            "again."
        )
    return torch.from_numpy(tilt)


def _encoded(
    tokenizer: "PreTrainedTokenizerBase",
    texts: list[str],
    codes: list[str | None] | None = None,
    *,
    longest: int,
    known: int,
) -> Encoded:
    codes = [None] * len(texts) if codes is None else codes
    return encode_documents(tokenizer, texts, longest=longest, known=known, codes=codes)
