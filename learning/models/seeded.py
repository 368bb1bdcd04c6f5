"""Initial values, from a seed, of parameters that no checkpoint has: the same bytes on every machine.

Numbers come from the raw bits of a PCG64 stream of the seed and the parameter's own name, by exact arithmetic alone, so
neither a library's version nor the order of parameters has a part in them.
"""

import hashlib
import math

import numpy as np
import torch
from torch import Tensor, nn

DEVIATION = 0.02
"""Standard deviation of a new weight, as BERT's and GPT-2's were (`initializer_range` of their configurations)."""


def draw(name: str, parameter: Tensor, seed: int, bound: float = DEVIATION * math.sqrt(3)) -> None:
    """Fill a parameter with uniform numbers in (-bound, bound), of 24 bits each."""
    digest = hashlib.sha256(f"conclave start {seed}\n{name}".encode()).digest()
    bits = np.random.PCG64(int.from_bytes(digest, "big")).random_raw(parameter.numel()) >> np.uint64(40)
    values = ((bits.astype(np.float64) + 0.5) / 2**23 - 1) * bound
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(values.astype(np.float32)).view(parameter.shape))


def start(model: nn.Module, names: frozenset[str], seed: int) -> None:
    """Initialise these parameters of a model: weights are drawn, biases 0, scales of a normalisation 1."""
    for name, parameter in model.named_parameters():
        if name not in names:
            continue
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.ndim == 1:
            nn.init.ones_(parameter)
        else:
            draw(name, parameter, seed)
