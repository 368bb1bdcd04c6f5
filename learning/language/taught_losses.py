"""The loss of a language model that is shown private text and what a teacher says of it, as DPKD has it."""

import torch
from torch import Tensor, nn

from aggregation.errors import ConclaveError
from learning.language.speaker import Speaker
from learning.models.batching import IGNORED, logits_of, next_tokens
from learning.private_training.units import Losses


def taught_losses(teacher: Speaker, mixing: float) -> Losses:
    """One loss an example: the mean over its own tokens of (1 - mixing) CE + mixing KL(teacher || student) up to the
    teacher's entropy, which no gradient depends on.

    The teacher reads the same inputs in every pass, so an example's loss depends on no other example. Raises
    `ConclaveError` for a mixing outside [0, 1]. Source: DPKD, Mireshghallah et al. 2022, at temperature 1.
    """
    if not 0 <= mixing <= 1:
        raise ConclaveError(f"A share of {mixing:g} for what the teacher says makes no sense. Give one from 0 to 1.")

    def losses(model: nn.Module, inputs: dict[str, Tensor], labels: Tensor | None) -> Tensor:
        said = torch.log_softmax(logits_of(model, inputs), dim=-1)
        with torch.no_grad():
            wanted = teacher.log_probabilities(logits_of(teacher.model, inputs)).exp().to(said.device)
        targets = next_tokens(inputs).to(said.device)
        own = targets != IGNORED
        hard = -said.gather(2, targets.clamp(min=0)[..., None])[..., 0]
        soft = -(wanted * said).sum(dim=-1)
        each = ((1 - mixing) * hard + mixing * soft) * own
        return each.sum(dim=1) / own.sum(dim=1).clamp(min=1)

    return losses
