"""The bounded sum of a party's token counts, before any noise. No weights are loaded."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy import sparse

from aggregation.mechanisms.counts import CountsMechanism
from learning.models.batching import form_of
from learning.models.checkpoints import tokenizer_of
from learning.text.codes import MOST_COUNTS
from party.errors import TrainingError
from party.provided.settings import tokens_of
from party.shard.coded import Cells, counted
from party.shard.memory import Memory
from party.shard.plain import PlainUnits
from party.tasks.job import Job, Private
from party.tasks.text.documents import codes_in, documents
from party.tasks.text.kept import documents_once
from party.tasks.text.model import placed
from party.tasks.text.trials import try_codes, try_tokenizer
from party.tasks.tokens.request import TokensWork

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNITS_AT_ONCE: Final = 4096
TOKENS_AT_ONCE: Final = 1 << 20
"""Units that are counted at a time, and their tokens, but for one unit's more."""


def prepare(job: Job, work: TokensWork, mechanism: CountsMechanism, kept: Memory | None) -> Private:
    """Check everything except the party's units: the tokenizer, on made-up text, and the codes.

    Raises `ConclaveError` where these cannot be used, or make more than `MOST_COUNTS` counts.
    """
    with placed(work.model, job.memory):
        tokenizer, config = tokenizer_of(work.model.folder)
    known, limit = tokens_of(config), form_of(config).longest
    most = work.model.longest if limit is None else min(work.model.longest, limit)
    try_tokenizer(tokenizer, known, most, documents=True, pairs=False)
    if (codes := codes_in(work.coded, job.reading.shard)) is not None:
        try_codes(tokenizer, known, most, codes.texts)
    if work.by_code and codes is not None and codes.codes.cells * known > MOST_COUNTS:
        raise TrainingError(
            f"counts of {known:,} tokens by {codes.codes.cells:,} control codes are more than the {MOST_COUNTS:,} that "
            "a party makes. Plan with [floor] by_code = false."
        )
    return lambda job, progress: count(job, work, mechanism, tokenizer, longest=most, known=known, memory=kept)


def count(
    job: Job,
    work: TokensWork,
    mechanism: CountsMechanism,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    longest: int,
    known: int,
    memory: Memory | None = None,
) -> sparse.csr_array:
    """Count the tokens of every unit's own texts, end tokens included, bound each unit, and sum: int64 [1, tokens], or
    [1, codes * tokens] where texts of each code are counted apart.

    Texts are read and cut as the language model reads them (`party.tasks.text.documents`); what stands before a text is
    not counted, nor is a text that the tokenizer fails on. The mechanism bounds each unit to L2 norm `levels` grid
    units, so adding or removing one unit changes the sum by at most that much. longest: tokens of a document at most;
    known: tokens of the model. Memory: the shard's tokens, 4 bytes each (`party.shard.labelled.TokenRows`), and the
    counts of `UNITS_AT_ONCE` units. Raises `ConclaveError` when the shard cannot be used.
    """
    read = partial(documents, job.reading, tokenizer, work.coded, longest=longest, known=known)
    found = read() if memory is None else documents_once(memory, job.reading, work.model, work.coded, longest, read)
    codes = codes_in(work.coded, job.reading.shard) if work.by_code else None
    columns = known * (1 if codes is None else codes.codes.cells)
    total = sparse.csr_array((1, columns), dtype=np.int64)
    for units in _counts(found, known, columns):
        total = total + mechanism.contribute(units)
    return total


def _counts(read: PlainUnits, known: int, columns: int) -> Iterator[sparse.csr_array]:
    """Chunks of units: how often each has each token, int64 [units, columns], in each code's own columns where there
    are more of them than tokens.
    """
    begins = read.cells if columns > known else None
    chunk: list[Cells] = []
    held = 0
    for unit in range(len(read)):
        places = range(unit, unit + 1) if read.members is None else read.members[unit]
        own = [np.empty(0, np.int64)]
        for place in places:
            row = read.rows[place]
            own.append(row.ids[row.second :].astype(np.int64) + (0 if begins is None else known * int(begins[place])))
        chunk.append(np.concatenate(own))
        held += len(chunk[-1])
        if len(chunk) == UNITS_AT_ONCE or held >= TOKENS_AT_ONCE:
            yield counted(chunk, columns)
            chunk, held = [], 0
    if chunk:
        yield counted(chunk, columns)
