"""A pass through a model in a reduced precision: products in it, softmax in float32.

The library that casts leaves softmax to float32 on a GPU, and to the reduced precision on a processor. There, attention
that adds a mask in float32 is in float32, and attention of a batch that needs no mask is not: an example would not have
the same bits in both, and could go with no others (`learning.models.agreement`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_SOFTMAX: Final[frozenset[Callable[..., Tensor]]] = frozenset(
    {torch.softmax, Tensor.softmax, functional.softmax, torch.log_softmax, Tensor.log_softmax, functional.log_softmax}
)


@contextmanager
def reduced(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Within it, products on a kind of device are in a reduced precision, whatever they are given in."""
    with torch.autocast(device, dtype=dtype), _Softmax():
        yield


class _Softmax(TorchFunctionMode):
    """Within it, softmax is in float32, whatever it is given in."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if function in _SOFTMAX:
            args = tuple(each.float() if isinstance(each, Tensor) else each for each in args)
        return function(*args, **(kwargs or {}))
