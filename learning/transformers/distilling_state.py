"""The state of a distilling on disk: parameters, the optimiser's moments, the step, and what training they are of."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import torch
from torch import nn

from aggregation.errors import ConclaveError, IntegrityError
from learning.transformers.losses import Name

CHECKPOINT: Final = "distillation.safetensors"
"""The file in a checkpoint's folder."""

_MOMENTS: Final = ("exp_avg", "exp_avg_sq")


def write_state(
    path: Path,
    training: str,
    parameters: dict[str, nn.Parameter],
    optimiser: torch.optim.Optimizer,
    step: int,
    losses: Mapping[Name, float],
) -> None:
    """Write the state of a training so that the file is the old one or the new one, whatever happens.

    training: what it is of, as a digest. losses: of its last step. Raises `ConclaveError` where it cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    state = {f"parameter {name}": each.detach() for name, each in parameters.items()}
    for name, each in parameters.items():  # a parameter that no loss reaches, such as an unused pooler, has no moments
        state |= {f"{key} {name}": value for key, value in optimiser.state[each].items() if key in _MOMENTS}
    told = {"training": training, "step": str(step), "losses": json.dumps(losses)}
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: each.cpu().contiguous() for name, each in state.items()}, part, told)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            part.unlink()
        raise ConclaveError(
            f"The checkpoint {path} cannot be written: {error}. Make room there, or give another folder. The one "
            "before, if any, is as it was."
        ) from error


def taken_up(
    path: Path, training: str, parameters: dict[str, nn.Parameter], optimiser: torch.optim.Optimizer
) -> tuple[int, dict[Name, float]]:
    """Set parameters and moments as a checkpoint has them; returns its step and losses, 0 and none without one.

    Raises `IntegrityError` for a checkpoint that is broken, or of another training.
    """
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return 0, {}
    try:
        with safe_open(path, "pt") as file:
            told = file.metadata() or {}
            if told.get("training") != training:
                raise IntegrityError(
                    f"The checkpoint {path} is of a training with other models, texts, settings or seed. Remove it to "
                    "begin anew."
                )
            step, losses = int(told["step"]), json.loads(told["losses"])
            there = frozenset(file.keys())
            for name, parameter in parameters.items():
                with torch.no_grad():
                    parameter.copy_(file.get_tensor(f"parameter {name}"))
                if f"{_MOMENTS[0]} {name}" in there:
                    moments = {each: file.get_tensor(f"{each} {name}").to(parameter.device) for each in _MOMENTS}
                    optimiser.state[parameter] = {"step": torch.tensor(float(step)), **moments}
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise IntegrityError(f"The checkpoint {path} cannot be read: {error}. Remove it to begin anew.") from error
    return step, losses
