"""The keys of a party file's `[compute]` and a plan's `[run]` that say what a machine computes with."""

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from protos.console.settings import Settings

AUTO: Final = "auto"
PROCESSOR: Final = "cpu"
_DEVICE: Final = r"auto|cpu|cuda(:[0-9]{1,3})?|mps"

Precision = Literal["float32", "bfloat16", "float16"]


def _device(text: str) -> str:
    if re.fullmatch(_DEVICE, text) is None:
        raise ValueError('this is no device. Use "auto", "cpu", "cuda" or "mps"; "cuda:1" is the second of several.')
    return text


class ComputeKeys(Settings):
    """Where models are trained and run, in which precision, and with how many threads of the processor.

    device: "auto" takes an accelerator where there is one, but the processor for noise that is to be reproduced
    (`insecure_reproducible_noise`): runs that are compared byte for byte must not depend on the machine's devices.
    precision: of the model's arithmetic; noise and accounting are on integers whatever it is. threads: 0 leaves the
    number to the libraries and the environment.
    """

    device: Annotated[str, AfterValidator(_device)] = AUTO
    precision: Precision = "float32"
    threads: Annotated[int, Field(ge=0, le=4096)] = 0
