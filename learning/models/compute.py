"""Where a model runs, and how exactly: its device, the precision of its passes, and the processor's threads.

A model is put on the device where it is loaded (`on_device`); batches follow the model. Only passes through a model
are in the wanted precision (`passing`): parameters, optimisers and whatever a bound stands on are in float32 or
float64. Code that is not told runs on the processor in float32. Importing this needs no torch.
"""

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from learning.errors import ComputeError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Module = TypeVar("Module", bound=nn.Module)

Precision = Literal["float32", "bfloat16", "float16"]
PRECISIONS: Final[tuple[Precision, ...]] = ("float32", "bfloat16", "float16")
DEVICE: Final = r"auto|cpu|mps|cuda(:(0|[1-9][0-9]{0,2}))?"
"""Pattern of what a device may be called."""
SCALE: Final = 2.0**10
"""What every loss is multiplied by in float16, and what comes back divided by: so that small slopes do not become 0.
Public and fixed, for a factor that follows losses would follow private text. A power of two, so that it rounds nothing.
"""


@dataclass(frozen=True, slots=True)
class Compute:
    """What is asked for. device: "cuda" is the first such device that this process sees; "auto" that, else "mps", else
    "cpu". precision: of passes through a model. threads: of the processor; 0 leaves their number.

    Of several devices one process takes one. The others are for those that name them ("cuda:1"), or that are left to
    see nothing else (`CUDA_VISIBLE_DEVICES`): Ray leaves a party those it gives it, which then count from "cuda:0".

    Raises `ComputeError` for words that are none of these.
    """

    device: str = "auto"
    precision: Precision = "float32"
    threads: int = 0

    def __post_init__(self) -> None:
        if not re.fullmatch(DEVICE, self.device):
            raise ComputeError(f'There is no device "{self.device}". Use auto, cpu, cuda, cuda:1 and so on, or mps.')
        if self.precision not in PRECISIONS:
            raise ComputeError(f'There is no precision "{self.precision}". Use {", ".join(PRECISIONS)}.')
        if self.threads < 0:
            raise ComputeError(f"threads = {self.threads} is no number of threads. Use 0 to leave it, or 1 or more.")


PROCESSOR: Final = Compute("cpu")
"""What code runs on that is not told: the processor, in float32."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A device that is there, and a precision that it has."""

    device: "torch.device"
    precision: Precision = "float32"
    threads: int = 0

    @property
    def dtype(self) -> "torch.dtype":
        """The precision as torch calls it."""
        import torch

        found: torch.dtype = getattr(torch, self.precision)
        return found

    @property
    def described(self) -> str:
        """As a report names it: reproducible runs are so on this device and in this precision."""
        return f"{_described(self.device)}, {self.precision}"


@dataclass(frozen=True, slots=True)
class Available:
    """A device of this machine. device: as `Compute` calls it. name: its maker's, "" if unknown. memory: its own, in
    bytes; 0 where it uses the machine's. precisions: those it has.
    """

    device: str
    name: str
    memory: int
    precisions: tuple[Precision, ...]

    def __str__(self) -> str:
        told = [each for each in (self.name, f"{self.memory / 2**30:,.0f} GiB" if self.memory else "") if each]
        return f"{self.device} ({', '.join(told)})" if told else self.device


_current: ContextVar[Placement | None] = ContextVar("placement", default=None)


def placement(compute: Compute) -> Placement:
    """The device that is asked for. Raises `ComputeError`, naming what there is, where it or its precision is not."""
    import torch

    there = _devices()
    wanted = {"auto": there[0], "cuda": "cuda:0"}.get(compute.device, compute.device)
    if wanted not in there:
        raise ComputeError(
            f'There is no device "{compute.device}" on this machine. It has {" and ".join(map(str, available()))}. Use '
            'one of these, or "auto".'
        )
    device = torch.device(wanted)
    has = _precisions(device)
    if compute.precision not in has:
        raise ComputeError(
            f"The device {_described(device)} cannot compute in {compute.precision}. It has {' and '.join(has)}. Use "
            "one of these."
        )
    return Placement(device, compute.precision, compute.threads)


def available() -> tuple[Available, ...]:
    """The devices of this machine, in the order in which "auto" takes them; the processor is the last."""
    import torch

    found = []
    for each in _devices():
        device = torch.device(each)
        memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
        found.append(Available(each, _name(device), memory, _precisions(device)))
    return tuple(found)


@contextmanager
def running(compute: Compute) -> Iterator[None]:
    """Within it, models are loaded onto what is asked for, and run there in its precision and with its threads.

    On a device of its own, the library's kernels that give the same bits again are used, where there are such. Raises
    `ComputeError` as `placement` does. For the processor in float32, on any threads, torch is not imported.
    """
    if compute == PROCESSOR:
        token = _current.set(None)
        try:
            yield
        finally:
            _current.reset(token)
        return
    # Read by the library when it first multiplies on the device; without it products there may differ from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    where = placement(compute)
    token = _current.set(where)
    threads = torch.get_num_threads()
    same, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filling: Any = torch.utils.deterministic
    fills = filling.fill_uninitialized_memory
    try:
        if where.threads:
            torch.set_num_threads(where.threads)
        if where.device.type != "cpu":
            torch.use_deterministic_algorithms(True, warn_only=True)
            filling.fill_uninitialized_memory = False
        yield
    finally:
        torch.use_deterministic_algorithms(same, warn_only=warns)
        filling.fill_uninitialized_memory = fills
        torch.set_num_threads(threads)
        _current.reset(token)


def current() -> Placement:
    """Where models are loaded to, and in what precision they run: as of the innermost `running`."""
    import torch

    return _current.get() or Placement(torch.device("cpu"))


def on_device(model: "Module") -> "Module":
    """The model itself, moved to the device of the innermost `running`."""
    found = _current.get()
    return model if found is None else model.to(found.device)


def device_of(model: "nn.Module") -> "torch.device":
    """The device that a model is on; batches are moved there. The processor for a model without parameters."""
    import torch

    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def moved(inputs: "dict[str, Tensor]", model: "nn.Module") -> "dict[str, Tensor]":
    """A model's inputs on the model's device."""
    device = device_of(model)
    return {name: each.to(device) for name, each in inputs.items()}


def passing(device: "torch.device") -> AbstractContextManager[object]:
    """Within it, one pass through a model is in the precision of the innermost `running`."""
    found = _current.get()
    if found is None or found.precision == "float32":
        return nullcontext()
    from learning.models.reduced import reduced

    return reduced(device.type, found.dtype)


@contextmanager
def single() -> Iterator[None]:
    """Within it, passes are in float32, whatever is around it: for trials whose tolerance is of that precision."""
    found = _current.get()
    token = _current.set(None if found is None else replace(found, precision="float32"))
    try:
        yield
    finally:
        _current.reset(token)


def exact_device(device: "torch.device") -> "torch.device":
    """Where float64 can be computed for a model on a device: there, or on the processor if it has none, as "mps"."""
    import torch

    return torch.device("cpu") if device.type == "mps" else device


def exact(device: "torch.device") -> AbstractContextManager[object]:
    """Within it, nothing is in a reduced precision, whatever is around it: for what a bound stands on."""
    import torch

    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()


def loss_scale() -> float:
    """What a loss is multiplied by before `backward`, and what comes of it divided by: `SCALE` in float16, else 1."""
    found = _current.get()
    return SCALE if found is not None and found.precision == "float16" else 1.0


def _devices() -> list[str]:
    import torch

    found = [f"cuda:{number}" for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)]
    return [*found, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def _precisions(device: "torch.device") -> tuple[Precision, ...]:
    import torch

    if device.type == "cuda":
        own = torch.cuda.get_device_capability(device)
        has = {"float32": True, "bfloat16": own >= (8, 0), "float16": own >= (5, 3)}
    else:
        has = {name: device.type == "cpu" or _multiplies(device, name) for name in PRECISIONS}
    return tuple(name for name in PRECISIONS if has[name])


def _multiplies(device: "torch.device", precision: str) -> bool:
    import torch

    try:
        some = torch.ones(8, 8, dtype=getattr(torch, precision), device=device)
        return bool((some @ some)[0, 0].cpu() == 8)
    except (RuntimeError, TypeError):
        return False


def _name(device: "torch.device") -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def _described(device: "torch.device") -> str:
    name = _name(device)
    return f"{device} ({name})" if name else str(device)
