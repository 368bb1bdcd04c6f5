"""Spares a process torch's compiler, which takes a second to import and which nothing here uses."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from aggregation.imports import later


def _no_break() -> None:
    """Where the compiler would end one of its graphs, there is none."""


_ASKED: Final[dict[str, dict[str, object]]] = {"torch._dynamo": {"graph_break": _no_break}}


@contextmanager
def uncompiled() -> Iterator[None]:
    """A context in which making an optimiser and taking its steps do not import the compiler.

    torch keeps what the compiler answered in an attribute of the function; where another torch keeps it elsewhere, the
    compiler is imported as before.
    """
    plain = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
    if plain is not None and not hasattr(plain, "__dynamo_disable"):
        setattr(plain, "__dynamo_disable", plain)
    with later(_ASKED):
        yield
