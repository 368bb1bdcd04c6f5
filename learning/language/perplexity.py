"""How surprised a speaker is by texts: the perplexity of a token, its own text alone, openings left out."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from learning.language.memory import freed_is_kept
from learning.language.speaker import Speaker, own
from learning.models.batching import Tokens, batches

LARGEST: Final = 1e300
"""The largest perplexity that is told: JSON has no infinity."""
_TOKENS: Final = 1024


@dataclass(frozen=True, slots=True)
class Perplexity:
    """perplexity: exp of the mean negative log-probability of a token. tokens: how many were measured."""

    perplexity: float
    tokens: int


def perplexity(
    speakers: Sequence[Speaker],
    rows: Sequence[Tokens],
    cells: Sequence[int] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Perplexity:
    """The perplexity of texts under a speaker, or under the mean of what several say. A row's own text begins at
    `Tokens.second`; before it is its opening. cells: the control code of each, as of `Speaker`. progress: is told how
    many texts of how many are measured.

    Memory: each one's log-probabilities of 1,024 tokens, [tokens, vocabulary].
    """
    nats, tokens, met = 0.0, 0, 0
    with torch.inference_mode(), freed_is_kept():
        for places in batches(rows, _TOKENS):
            some = [rows[place] for place in places]
            of = None if cells is None else torch.tensor([cells[place] for place in places])[:, None]
            each = [speaker.log_probabilities(speaker.logits(some)[:, :-1], cells=of) for speaker in speakers]
            said = each[0] if len(each) == 1 else torch.stack(each).logsumexp(dim=0) - math.log(len(each))
            length = said.shape[1] + 1
            paired = bool(getattr(speakers[0].model.config, "is_encoder_decoder", False))
            mask = own(some, length, decoder=paired).to(said.device)
            ids = torch.zeros(len(some), length, dtype=torch.int64)
            for place, row in enumerate(some):
                skipped = row.begins - 1 if paired else 0  # a decoder's first token stands for the opening
                ids[place, : len(row) - skipped] = torch.from_numpy(row.ids[skipped:].astype("int64"))
            found = said.gather(2, ids[:, 1:, None].to(said.device))[..., 0][mask]
            nats -= float(found.double().sum())
            tokens += int(mask.sum())
            met += len(some)
            progress(met, len(rows))
    if not tokens:
        return Perplexity(LARGEST, 0)
    mean = nats / tokens
    return Perplexity(min(LARGEST, math.exp(mean)) if mean < math.log(LARGEST) else LARGEST, tokens)
