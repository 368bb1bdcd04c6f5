"""What a frozen public encoder says of texts token by token: the vectors that a bottleneck reads, made once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor
from torch.nn import functional

from aggregation.errors import ConclaveError
from learning.models.batching import TOKENS, Tokens, batches, encode, inputs_of
from learning.models.compute import moved
from learning.models.encoders import longest

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SHARPNESS: Final = 10.0
"""How much likelier a token is taken for the counterpart of another by their cosine."""
_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class TokenStates:
    """Texts as an encoder's token vectors, or pairs of texts (`paired_states`).

    vectors: float16 [texts, tokens, width], 0 where no token is. mask: bool [texts, tokens]. pieces: the tokens'
    numbers in the tokenizer's vocabulary, int32 [texts, tokens], -1 where none is: what an attack tries to read.
    """

    vectors: Tensor
    mask: Tensor
    pieces: Tensor

    def __len__(self) -> int:
        return len(self.mask)

    def of(self, some: slice | Tensor) -> "TokenStates":
        """Those of some of the texts."""
        return TokenStates(self.vectors[some], self.mask[some], self.pieces[some])


def token_states(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], *, tokens: int
) -> TokenStates:
    """The last layer's vectors of single texts.

    model: an encoder without a head (`learning.models.encoders.encoder`). tokens: of a text at most, its special ones
    included. The other texts of a batch change a vector by rounding. Raises `ConclaveError` for more tokens than the
    model takes.
    """
    if longest(model, tokens) < tokens:
        raise ConclaveError(f"The encoder takes {longest(model, tokens):,} tokens, not {tokens:,}. Ask for fewer.")
    return states_of_rows(model, encode(tokenizer, texts, longest=tokens).rows, tokens=tokens)


def states_of_rows(model: "PreTrainedModel", rows: Sequence[Tokens], *, tokens: int) -> TokenStates:
    """The same of texts that are tokens already; those beyond `tokens` are left out."""
    rows = [Tokens(row.ids[:tokens], min(row.second, tokens)) for row in rows]
    vectors = torch.zeros((len(rows), tokens, model.config.hidden_size), dtype=torch.float16)
    mask = torch.zeros((len(rows), tokens), dtype=torch.bool)
    pieces = torch.full((len(rows), tokens), -1, dtype=torch.int32)
    model.train(False)
    for places in batches(rows, TOKENS):
        some = [rows[place] for place in places]
        with torch.no_grad():
            said = model(**moved(inputs_of(model.config, some), model)).last_hidden_state.cpu()
        for place, row, found in zip(places, some, said, strict=True):
            vectors[place, : len(row)] = found[: len(row)].half()
            mask[place, : len(row)] = True
            pieces[place, : len(row)] = torch.from_numpy(row.ids)
    return TokenStates(vectors, mask, pieces)


def paired_states(first: TokenStates, second: TokenStates) -> TokenStates:
    """Pairs of texts as one sequence: the tokens of both, each with what the other text has for it.

    A frozen encoder of single texts says nothing of a pair by itself. So a token's vector x is followed by |x - c|, c
    the mean of the other text's vectors y weighted by softmax(<x, y> / (|x| |y|) * `SHARPNESS`): without parameters
    and public, as the encoder is. Result: [pairs, tokens of both, 2 width]. Source: the comparing step of Parikh et al.
    2016, "A Decomposable Attention Model". Raises `ConclaveError` for texts that are not as many.
    """
    if len(first) != len(second):
        raise ConclaveError(f"{len(first):,} first texts and {len(second):,} second ones are no pairs. Give as many.")
    sides = [_compared(first, second), _compared(second, first)]
    return TokenStates(
        torch.cat(sides, dim=1),
        torch.cat([first.mask, second.mask], dim=1),
        torch.cat([first.pieces, second.pieces], dim=1),
    )


def _compared(own: TokenStates, other: TokenStates) -> Tensor:
    found = []
    for at in range(0, len(own), _AT_ONCE):
        some = slice(at, at + _AT_ONCE)
        x, y, there = own.vectors[some].float(), other.vectors[some].float(), other.mask[some]
        alike = functional.normalize(x, dim=2) @ functional.normalize(y, dim=2).transpose(1, 2)
        weights = torch.softmax((alike * SHARPNESS).masked_fill(~there[:, None, :], -1e9), dim=2)
        apart = (x - weights @ y).abs().masked_fill(~own.mask[some].unsqueeze(2), 0.0)
        found.append(torch.cat([x, apart], dim=2).half())
    return torch.cat(found)
