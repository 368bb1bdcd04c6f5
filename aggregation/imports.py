"""Imports a library without parts of others that it seldom needs: these are imported when they are first used."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _Attribute:
    """One name of a module, looked up when it is called or asked for an attribute."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _found(self) -> Any:
        if isinstance(sys.modules.get(self._module), _Later):
            del sys.modules[self._module]  # wanted at once, within `later`
        return getattr(importlib.import_module(self._module), self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found(), name)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._found()(*given, **named)


class _Later(ModuleType):
    """A module in whose place its importer holds this."""

    def __init__(self, name: str, answers: Mapping[str, object]) -> None:
        super().__init__(name)
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._answers[name] if name in self._answers else _Attribute(self.__name__, name)


@contextmanager
def later(modules: Mapping[str, Mapping[str, object]]) -> Iterator[None]:
    """A context in which imports find a stand-in for each of these modules that is not imported yet.

    modules: what each answers at once, by name; its other names are looked up when they are called, or asked for an
    attribute. What was imported within keeps the stand-ins, and nobody else finds them afterwards.
    """
    stands = {name: _Later(name, answers) for name, answers in modules.items() if name not in sys.modules}
    sys.modules.update(stands)
    try:
        yield
    finally:
        for name, stand in stands.items():
            if sys.modules.get(name) is stand:
                del sys.modules[name]
