"""What a transformer student is to have in common with its teacher, token by token, and which tokens are asked.

Where s and t are what student and teacher say at one token of the same input (hidden states h of width d, logits z of a
head for language), T a temperature and y the true token:

    soft     T^2 sum_v p_v (ln p_v - ln q_v),  p = softmax(z_t / T), q = softmax(z_s / T)     Hinton et al. 2015
    hard     -ln softmax(z_s)_y                                                              Devlin et al. 2019
    cosine   1 - <h_s, h_t> / (|h_s| |h_t|)                                                  Sanh et al. 2019
    squared  |h_s - h_t|^2 / d                                                               Jiao et al. 2020

soft, hard and cosine with equal weights are DistilBERT's triple loss and PrivDistil's "multiple objectives, each given
equal weight" (appendix B). squared is TinyBERT's loss of hidden states without its projection, which a student as wide
as its teacher does not need; it holds their length, too. For a causal model hard is the next token's. A batch's loss is
the weighted sum of the means over the tokens each is taken at. Everything here is a *sum* over tokens: divided by the
tokens of the whole batch, the gradients of its parts add up to the batch's. Padding is no token and never counts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from aggregation.errors import ConclaveError
from learning.models.batching import Tokens
from learning.models.checkpoints import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Name = Literal["soft", "hard", "cosine", "squared"]
NAMES: Final[tuple[Name, ...]] = ("soft", "hard", "cosine", "squared")

NOT_ASKED: Final = -100
"""The label of a token that counts for no loss."""
_AS_MASK, _AS_ANY = 0.8, 0.1  # Devlin et al. 2019; of the rest the token stays


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each loss counts; 0 leaves it out. Raises `ConclaveError` for one below 0, and where all are 0.

    Source: equal weights are those of PrivDistil, appendix B.
    """

    soft: float = 1.0
    hard: float = 1.0
    cosine: float = 1.0
    squared: float = 1.0

    def __post_init__(self) -> None:
        each = [self.of(name) for name in NAMES]
        if not all(math.isfinite(weight) and weight >= 0 for weight in each) or not any(each):
            raise ConclaveError(
                f"Losses of weights {', '.join(f'{weight:g}' for weight in each)} teach nothing. Give weights from 0, "
                "and one above."
            )

    def of(self, name: Name) -> float:
        """The weight of one loss."""
        weight: float = getattr(self, name)
        return weight


@dataclass(frozen=True, slots=True)
class Said:
    """A model's output on a batch: the hidden states that are compared, each [texts, length, width], and the logits
    [texts, length, vocabulary] of its head for language, None without one or where they are not needed.
    """

    hidden: tuple[Tensor, ...]
    logits: Tensor | None


def soft_targets(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(teacher || student) at a temperature T, summed over tokens: a scalar, in nats.

    student, teacher: logits [tokens, vocabulary].
    Source: Hinton et al. 2015.
    """
    expected = torch.log_softmax(teacher / temperature, dim=-1)
    said = torch.log_softmax(student / temperature, dim=-1)
    return functional.kl_div(said, expected, reduction="sum", log_target=True) * temperature**2


def hard_labels(student: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of true tokens, int64 [tokens], under logits [tokens, vocabulary], summed: a scalar, in nats.

    Source: Devlin et al. 2019.
    """
    return functional.cross_entropy(student, labels, reduction="sum")


def cosine(student: Tensor, teacher: Tensor) -> Tensor:
    """One less the cosine of hidden states [tokens, width], summed over tokens: a scalar.

    Source: DistilBERT (Sanh et al. 2019).
    """
    return (1 - functional.cosine_similarity(student, teacher, dim=-1)).sum()


def squared(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean over the width of the squared difference of hidden states [tokens, width], summed over tokens: a scalar.
    Source: TinyBERT (Jiao et al. 2020), without the projection.
    """
    return (student - teacher).square().mean(dim=-1).sum()


def sums(
    student: Said, teacher: Said, attended: Tensor, labels: Tensor, names: Sequence[Name], *, temperature: float
) -> dict[Name, Tensor]:
    """The named losses of a batch, each a scalar, summed over the tokens it is taken at.

    attended: bool [texts, length], the tokens that are no padding: all of them count for soft, cosine and squared, the
    last two as a mean over the states that are compared. labels: int64 [texts, length], `NOT_ASKED` where hard does not
    count. Raises `ValueError` for soft or hard without the logits it needs.
    Source: those of the losses one by one (`soft_targets`, `hard_labels`, `cosine`, `squared`).
    """
    found: dict[Name, Tensor] = {}
    for name in names:
        if name in ("cosine", "squared"):
            compare = cosine if name == "cosine" else squared
            states = zip(student.hidden, teacher.hidden, strict=True)
            each = [compare(ours[attended].float(), theirs[attended].float()) for ours, theirs in states]
            found[name] = torch.stack(each).mean()
        elif student.logits is None or (name == "soft" and teacher.logits is None):
            raise ValueError(f"The loss {name} needs logits, and there is no head that gives them.")
        elif name == "hard":
            asked = labels != NOT_ASKED
            found[name] = hard_labels(student.logits[asked].float(), labels[asked])
        else:
            assert teacher.logits is not None
            found[name] = soft_targets(student.logits[attended].float(), teacher.logits[attended].float(), temperature)
    return found


def tokens_of(rows: Sequence[Tokens], labels: Sequence[NDArray[np.int64]], names: Sequence[Name]) -> dict[Name, int]:
    """The number of tokens that each loss is summed over, at least 1; the sum is divided by it."""
    attended = sum(len(row) for row in rows)
    asked = sum(int((each != NOT_ASKED).sum()) for each in labels)
    return {name: max(asked if name == "hard" else attended, 1) for name in names}


def total(found: Mapping[Name, Tensor], tokens: Mapping[Name, int], weights: Weights) -> Tensor:
    """The weighted sum of the mean losses, a scalar; of a part of a batch, its part of the batch's.

    Source: the triple loss of DistilBERT (Sanh et al. 2019), and PrivDistil, appendix B, where the weights are equal.
    """
    return torch.stack([weights.of(name) / tokens[name] * each for name, each in found.items()]).sum()


@dataclass(frozen=True, slots=True)
class Masking:
    """BERT's masking: which tokens are hidden, and what stands for them.

    Each ordinary token is chosen with probability `share`; of those chosen 80% become the mask token, 10% any ordinary
    token, and 10% stay. ordinary: bool [tokenizer's tokens], False for the special ones, which are never chosen.
    Source: BERT (Devlin et al. 2019, section 3.1).
    """

    share: float
    token: int
    ordinary: NDArray[np.bool_]

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerBase", share: float) -> "Masking":
        """The masking for a tokenizer. Raises `ModelError` for one without a mask token."""
        token = tokenizer.mask_token_id
        if not isinstance(token, int):
            raise ModelError("The tokenizer has no mask token. Distil with mask_share = 0, or give it one.")
        ordinary = np.ones(len(tokenizer), dtype=np.bool_)
        ordinary[list(tokenizer.all_special_ids)] = False
        return cls(share, token, ordinary)

    def apply(self, rows: Sequence[Tokens], rng: np.random.Generator) -> tuple[list[Tokens], list[NDArray[np.int64]]]:
        """Mask examples anew; labels, int64 [length] each, are what stood where one was chosen, else `NOT_ASKED`."""
        ids = np.concatenate([row.ids for row in rows])
        chosen = (rng.random(len(ids)) < self.share) & self.ordinary[ids]
        labels = np.where(chosen, ids, NOT_ASKED).astype(np.int64)
        how, any_token = rng.random(len(ids)), rng.choice(np.flatnonzero(self.ordinary), len(ids))
        ids = np.where(chosen & (how < _AS_MASK), self.token, ids)
        ids = np.where(chosen & (how >= _AS_MASK) & (how < _AS_MASK + _AS_ANY), any_token, ids).astype(np.int32)
        ends = np.cumsum([len(row) for row in rows])[:-1]
        masked = [Tokens(part, row.second) for part, row in zip(np.split(ids, ends), rows, strict=True)]
        return masked, np.split(labels, ends)


def next_tokens(rows: Sequence[Tokens]) -> list[NDArray[np.int64]]:
    """Labels for a causal model: at each token the one after it, `NOT_ASKED` at the last."""
    return [np.append(row.ids[1:], NOT_ASKED).astype(np.int64) for row in rows]


def padded(labels: Sequence[NDArray[np.int64]]) -> Tensor:
    """Labels of a batch as int64 [texts, length], `NOT_ASKED` at padding."""
    whole = np.full((len(labels), max(map(len, labels))), NOT_ASKED, dtype=np.int64)
    for place, each in enumerate(labels):
        whole[place, : len(each)] = each
    return torch.from_numpy(whole)
