"""`transformers`, its models imported without what no model here needs: torch's compiler, tensors that are spread over
a cluster, and the optimisers of scipy.

These are some 800 modules, and took a quarter of the time until a model was loaded. The library is told that torch has
no clusters, as is true on some systems; names of the others are looked up when they are first used. A model computes
the same.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch.compiler
import transformers
from torch.nn import init
from transformers.utils import import_utils

from aggregation.imports import later
from learning.text.hub import held

_MODELS: Final = ("transformers.generation.utils", "transformers.modeling_layers", "transformers.modeling_utils")
"""What every model imports, and what imports the rest."""
_DRAWN: Final = "_no_grad_normal_"


def _unmarked(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    """A function as it is, where the compiler would mark it as not its own."""
    return _unmarked if function is None else function


_LATER: Final[dict[str, dict[str, object]]] = {
    "scipy.optimize": {},
    "torch._dynamo": {"allow_in_graph": _unmarked, "assume_constant_result": _unmarked},
    "torch._dynamo._trace_wrapped_higher_order_op": {},
}


@contextmanager
def _without() -> Iterator[None]:
    """A context in which these modules are not imported, and torch has neither clusters nor a compiler to mark for."""
    asked = "is_torch_distributed_available"
    with (
        later(_LATER),
        held(import_utils, asked, _no),
        held(transformers.utils, asked, _no),
        held(torch.compiler, "disable", _unmarked),
    ):
        yield


def _no() -> bool:
    return False


def _drawn(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """What draws a new layer's weights, but none for a layer on no device, whose weights have no values: every model
    that is loaded begins as such, and torch finds out by its compiler's rules that there is nothing to draw.
    """

    def drawn(tensor: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        return tensor if tensor.is_meta else plain(tensor, *given, **named)

    return drawn


def _import() -> None:
    """Import the models' modules; as they are, where another version of the library wants more of what is left out."""
    before = set(sys.modules)
    try:
        with _without():
            for name in _MODELS:
                importlib.import_module(name)
    except Exception:  # noqa: BLE001  what has another reason is raised again below
        for name in set(sys.modules) - before:
            if name.startswith("transformers."):
                del sys.modules[name]
        for name in _MODELS:
            importlib.import_module(name)


if not any(name in sys.modules for name in _MODELS):
    _import()
if hasattr(init, _DRAWN):
    setattr(init, _DRAWN, _drawn(getattr(init, _DRAWN)))

__all__ = ["transformers"]
