"""What a forecast says of the device on which it was timed, where that is not the processor in single precision."""

from dataclasses import replace
from typing import Final

from coordinator.forecasting.forecast import Forecast
from learning.models.compute import Available
from protos.computed import Computed
from protos.console.checklist import size

SHARE: Final = "party training"
"""The process whose models, batches and gradients are on a party's device."""


def on_device(found: Forecast, computed: Computed, device: Available | None) -> Forecast:
    """The forecast with what it supposes of devices. device: the one it was timed on; None for the processor.

    The bound of a process' memory is one of its device's too: all that is there is counted in it.
    """
    if computed.usual:
        return found
    plan, most = found.plan, found.memory[SHARE]
    said, warnings = f"Timed on {computed if device is None else f'{device} in {computed.precision}'}", found.warnings
    if device is not None:
        said += f", where a party's training takes up to {size(most)} of the device's memory"
        together = most * (len(plan.federation.names) if plan.federation.shards is not None else 1)
        if device.memory and together > device.memory:
            warnings = (
                *warnings,
                f"Trainings may take {size(together)} together on {device.device}, which has {size(device.memory)}: "
                "batches are divided until they fit, which takes longer. Train less of the model, or use shorter "
                "texts ([text] longest).",
            )
    said += "; parties are supposed to compute on the same."
    return replace(found, assumptions=(*found.assumptions, said), warnings=warnings)
