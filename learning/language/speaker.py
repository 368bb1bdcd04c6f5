"""A language model as it speaks: its logits tilted, its distribution mixed with a floor.

With logits z, a tilt b, a temperature T, a distribution u of tokens and its weight w, the probability of a token is
(1 - w) softmax((z + b) / T) + w u. What stands before a text, its opening, is given and never asked. Texts of each
control code can have a tilt and a floor of their own.

A causal model reads the opening and the text in one; a model with an encoder and a decoder (BART, T5) reads the opening
by its encoder, and says the text by its decoder.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from aggregation.errors import ConclaveError
from learning.models.batching import Tokens, inputs_of, logits_of
from learning.models.compute import device_of, moved, passing
from learning.models.encoders import tokens_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True, slots=True)
class Speaker:
    """A model, a tilt and a floor, float32 [tokens] each, and the floor's weight.

    A tilt and a floor of each control code are float32 [codes + 1, tokens]; the last row is for texts without one.
    Raises `ConclaveError` for a tilt or floor of another shape or not finite, a floor that is no distribution above 0,
    and a weight outside [0, 1).
    """

    model: "PreTrainedModel"
    tilt: Tensor | None = None
    floor: Tensor | None = None
    weight: float = 0.0

    def __post_init__(self) -> None:
        size = tokens_of(self.model)
        for name, each in (("tilt", self.tilt), ("floor", self.floor)):
            if each is not None and (
                each.ndim not in (1, 2) or each.shape[-1] != size or not torch.isfinite(each).all()
            ):
                raise ConclaveError(
                    f"A {name} of {tuple(each.shape)} numbers, or one that is not finite, does not fit a model of "
                    f"{size:,} tokens."
                )
        if self.floor is not None and (
            float(self.floor.min()) <= 0 or float((self.floor.double().sum(dim=-1) - 1).abs().max()) > 1e-3
        ):
            raise ConclaveError("A floor must give every token a probability above 0, and all together 1.")
        if not 0 <= self.weight < 1 or (self.weight and self.floor is None):
            raise ConclaveError(f"A floor's weight of {self.weight:g} makes no sense. Give one from 0 to under 1.")

    def log_probabilities(
        self, logits: Tensor, temperature: float | Tensor = 1.0, cells: Tensor | None = None
    ) -> Tensor:
        """Of logits [..., tokens] the log-probabilities of what is said, float32 of the same shape, on their device.

        temperature: of all, or of each, [..., 1]. cells: the control codes of the texts, int64, of a shape that
        broadcasts to [...]; -1 for a text without one, as all are where it is None.
        """
        tilted = logits if self.tilt is None else logits + self._of(self.tilt, cells).to(logits.device)
        said = torch.log_softmax(tilted / temperature, dim=-1)
        if not self.weight:
            return said
        assert self.floor is not None
        floor = self._of(self.floor.log(), cells).to(logits.device) + math.log(self.weight)
        return torch.logaddexp(said + math.log1p(-self.weight), floor)

    @staticmethod
    def _of(each: Tensor, cells: Tensor | None) -> Tensor:
        if each.ndim == 1:
            return each
        return each[-1] if cells is None else each[cells]

    def logits(self, rows: Sequence[Tokens]) -> Tensor:
        """The model's own logits of some rows, float32 [rows, length, tokens], padded on the right; of its decoder,
        where it has one.
        """
        return logits_of(self.model, inputs_of(self.model.config, rows))


def own_logits(model: nn.Module, rows: Sequence[Tokens], *, hidden: bool = False) -> tuple[Tensor, Tensor | None]:
    """What a model says of every token of the rows' own texts: logits, float32 [own tokens, tokens], one row after the
    other, and, where asked, the last hidden states there, [own tokens, width]; on its device.

    Those of a token are what the tokens before it lead to. A causal model's first token is said by nothing.
    """
    config = cast("PretrainedConfig", model.config)
    with passing(device_of(model)):
        found = model(**moved(inputs_of(config, rows), model), output_hidden_states=hidden)
    mask = own(rows, found.logits.shape[1], decoder=bool(getattr(config, "is_encoder_decoder", False)))
    mask = mask.to(found.logits.device)
    logits: Tensor = found.logits[:, :-1].float()[mask]
    if not hidden:
        return logits, None
    states = found.decoder_hidden_states if getattr(config, "is_encoder_decoder", False) else found.hidden_states
    return logits, states[-1][:, :-1].float()[mask]


def own(rows: Sequence[Tokens], length: int, *, decoder: bool = False) -> Tensor:
    """Which positions say a token of the rows' own text: bool [rows, length - 1]; position j says token j + 1.

    A row's first token is said by nothing. decoder: whether positions are those of a decoder, whose first token stands
    before the text itself.
    """
    places = torch.arange(1, length)
    begins = torch.tensor([1 if decoder else row.begins for row in rows])
    ends = torch.tensor([len(row) - row.begins + 1 if decoder else len(row) for row in rows])
    return (places >= begins[:, None]) & (places < ends[:, None])
