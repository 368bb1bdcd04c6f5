"""This machine's processors and signs of an accelerator, without torch, whose import takes seconds."""

import os
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from learning.errors import ComputeError
from learning.models.compute import Compute

SIGNS: Final = ("nvidia[0-9]*", "dxg", "kfd")
"""Files in /dev where a driver of an accelerator is loaded: NVIDIA's, the same under Windows' Linux, AMD's."""
_DEVICES: Final = Path("/dev")


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def may_accelerate() -> bool:
    """Whether this machine may have a device besides the processor; where it cannot, torch need not be asked."""
    if sys.platform == "linux":
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
        return not hidden and any(True for sign in SIGNS for _ in _DEVICES.glob(sign))
    return sys.platform != "darwin" or platform.machine() == "arm64"


def settled(wanted: Compute, *, models: bool = True, reproducible: bool = False) -> Compute:
    """What is computed with: the processor in place of "auto" where there is nothing else, or where noise is to be
    reproduced.

    Runs whose noise can be reproduced are compared byte for byte, which must not depend on what machines have; whoever
    names a device gets it all the same. models: whether text models are run; everything else is for the processor.
    """
    if not models:
        return Compute("cpu", threads=wanted.threads)
    if wanted.device == "auto" and (reproducible or not may_accelerate()):
        return replace(wanted, device="cpu")
    return wanted


def check_threads(wanted: Compute) -> None:
    """Raises `ComputeError` for more threads than processors."""
    there = processors()
    if wanted.threads > there:
        raise ComputeError(
            f"threads = {wanted.threads} are more than the {there} processors that this process may use. Use {there} "
            "at most, or 0 to leave their number."
        )
