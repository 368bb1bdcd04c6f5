"""Conversion between messages and values by field name, and between enum numbers and readable words."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from google.protobuf.message import Message


class Enum(Protocol):
    """A protobuf enum of ours: every name begins with the enum's own, and 0 is unspecified."""

    def items(self) -> Iterable[tuple[str, Any]]: ...


def fill(message: Message, values: Mapping[str, Any]) -> None:
    """Set every field of a message to the value of that name; None leaves a field out, which for a number means 0.

    Raises `TypeError` unless values and fields have the same names: a value without a field would be lost silently.
    """
    names = message.DESCRIPTOR.fields_by_name
    if set(names) != set(values):
        raise TypeError(f"{message.DESCRIPTOR.name} has fields {sorted(names)}, and the values are {sorted(values)}")
    message.SetInParent()
    for name, value in values.items():
        if isinstance(value, Mapping):
            fill(getattr(message, name), value)
        elif value is not None:
            setattr(message, name, value)


def read(message: Message) -> dict[str, Any]:
    """The fields of a message by name: an inner message as a dictionary, None where it is absent."""
    return {name: _value(message, name) for name in message.DESCRIPTOR.fields_by_name}


def _value(message: Message, name: str) -> Any:
    if message.DESCRIPTOR.fields_by_name[name].message_type is None:
        return getattr(message, name)
    return read(getattr(message, name)) if message.HasField(name) else None


def words(enum: Enum) -> dict[int, str]:
    """An enum's numbers with their words, without the unspecified 0: UNIT_RECORD is "record"."""
    named = dict(enum.items())
    unspecified = next(name for name, number in named.items() if number == 0)
    prefix = unspecified.removesuffix("UNSPECIFIED")
    return {
        number: name.removeprefix(prefix).lower().replace("_", "-") for name, number in named.items() if number != 0
    }


def number(enum: Enum, word: str) -> Any:
    """The number of a word. Raises `KeyError` for one that the enum does not have."""
    return {each: number for number, each in words(enum).items()}[word]


def word(enum: Enum, number: int) -> str:
    """The word of a number, also of an unknown one."""
    known = {0: "unspecified"} | words(enum)
    return known.get(number, f"the unknown number {number}")
