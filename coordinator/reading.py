"""Reads files from untrusted sources: JSON is parsed strictly, and text is shown printable and short."""

import json
import math
import re
from collections.abc import Iterable
from typing import Any, Final, NoReturn, TypeVar

from aggregation.errors import IntegrityError
from protos.console.mistakes import SettingsError
from protos.console.settings import Settings, check_settings

MOST_SHOWN: Final = 5
DEEPEST: Final = 64
_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}\b")
_PATH: Final = re.compile(r"(?<![\w/])~?/[^\s,;:'\")]+")

Model = TypeVar("Model", bound=Settings)


def shaped(content: bytes, name: str, model: type[Model]) -> Model:
    """Strict JSON (no repeated key, finite numbers, limited depth) of this shape. Raises `IntegrityError`."""
    value = strict_json(content, name)
    if not isinstance(value, dict):
        raise IntegrityError(f"{shown(name)} is not a JSON object.")
    try:
        return check_settings(value, model, name)
    except SettingsError as error:
        raise IntegrityError(shown(error, 300)) from None


def strict_json(content: bytes, name: str) -> Any:
    """The JSON value in `content`. Raises `IntegrityError` where two parsers could read it in two ways."""
    try:
        value = json.loads(content.decode(), object_pairs_hook=_object, parse_constant=_refused, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise IntegrityError(f"{shown(name)} is not UTF-8 text (byte {error.start}).") from None
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else shown(error)
        raise IntegrityError(f"{shown(name)} is not JSON that can be used: {why}.") from None
    layer: list[Any] = [value]
    for _ in range(DEEPEST):
        layer = [inner for each in layer for inner in _inner(each)]
        if not layer:
            return value
    raise IntegrityError(f"{shown(name)} is not JSON that can be used: it is nested too deep.")


def shown(value: object, most: int = 100) -> str:
    """Text from a file as it may be printed on a terminal: only printable characters, and cut to a length."""
    text = "".join(each if each.isprintable() else "?" for each in str(value)[: most + 1])
    return text if len(text) <= most else text[: most - 3] + "..."


def without_places(sentence: str) -> str:
    """A sentence for others, without the addresses and paths that only the coordinator's own user should see."""
    return _PATH.sub("a path", _ADDRESS.sub("its address", sentence))


def some(sentences: Iterable[str]) -> list[str]:
    """The first few sentences, and how many more there are."""
    every = list(sentences)
    more = len(every) - MOST_SHOWN
    return every[:MOST_SHOWN] + ([f"And {more:,} more like these."] if more > 0 else [])


def _inner(value: Any) -> list[Any]:
    found = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [each for each in found if isinstance(each, dict | list)]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no finite number")
    return number
