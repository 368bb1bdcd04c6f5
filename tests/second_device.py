"""A second device in this process: its tensors hold real numbers, say that they are elsewhere, and meet no others.

Every operation on them is done by the processor on the numbers that they hold, so that results are the processor's, bit
for bit. An operation that mixes them with the processor's tensors fails, as on a device with memory of its own; only a
single number may come from the processor, and copies go both ways. `numpy()` of them fails, too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME: Final = "elsewhere"
_aten = torch.ops.aten
_COPIES: Final = (_aten.copy_.default, _aten._to_copy.default)
_LAYERS: Final = frozenset(
    {
        _aten.addmm.default, _aten.mm.default, _aten.bmm.default, _aten.baddbmm.default, _aten.embedding.default,
        _aten.native_layer_norm.default, _aten._softmax.default, _aten._log_softmax.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
    }
)  # fmt: skip
"""What a model's layers are made of."""


class Mixed(Exception):
    """An operation was given tensors of the processor and of the second device together."""


class LeftBehind(Exception):
    """A layer's work was done on the processor."""


class Elsewhere(torch.Tensor):
    """A tensor of the second device. held: its numbers."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "Elsewhere":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=torch.device(NAME, 0),
            requires_grad=False,
        )
        made.held = held
        return made

    def __repr__(self) -> str:
        return f"Elsewhere({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _done(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl


class _Mode(TorchDispatchMode):
    """Sees what makes tensors, which no tensor of the second device has a part in."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _done(func, args, kwargs or {})


def _done(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
    there = [each for each in given if isinstance(each, Elsewhere)]
    wanted = kwargs.get("device")
    if not there and (wanted is None or torch.device(wanted).type != NAME):
        if func in _LAYERS and _there and _there[-1].strict:
            raise LeftBehind(f"{func} of {[list(each.shape) for each in given]} is done on the processor")
        return func(*args, **kwargs)
    here = [each for each in given if not isinstance(each, Elsewhere) and each.ndim]
    if there and here and func not in _COPIES:
        raise Mixed(f"{func}: {len(here)} of its tensors are the processor's: {[list(each.shape) for each in here]}")
    if _there and there:
        _there[-1].done += 1
    goes = wanted is not None and torch.device(wanted).type != NAME
    if wanted is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    made = func(*tree_map(_unwrapped, args), **tree_map(_unwrapped, kwargs))
    if func is _aten.copy_.default:
        return args[0]
    if goes:
        return made
    known = {id(each.held): each for each in there}
    return tree_map(lambda each: known[id(each)] if id(each) in known else _wrapped(each), made)


def _unwrapped(value: Any) -> Any:
    return value.held if isinstance(value, Elsewhere) else value


def _wrapped(value: Any) -> Any:
    return Elsewhere(value) if isinstance(value, torch.Tensor) and not isinstance(value, Elsewhere) else value


@cache
def _registered() -> None:
    torch.utils.backend_registration._setup_privateuseone_for_python_backend(NAME)


class SecondDevice:
    """The device while it is there. done: operations that were done on it. failures: what it raises."""

    failures: Final = (Mixed, LeftBehind)

    def __init__(self) -> None:
        self.device = torch.device(NAME, 0)
        self.strict = True
        self.done = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within it, layers' work may be the processor's."""
        before, self.strict = self.strict, False
        try:
            yield
        finally:
            self.strict = before


_there: list[SecondDevice] = []


@contextmanager
def second_device() -> Iterator[SecondDevice]:
    """Within it, there is the device; models that are moved there keep their parameters' ties."""
    _registered()
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    _there.append(SecondDevice())
    try:
        with _Mode():
            yield _there[-1]
    finally:
        _there.pop()
        torch.__future__.set_swap_module_params_on_conversion(swaps)
