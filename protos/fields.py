"""Messages and values: a message filled from values by name and read back, and enums as the words that people read."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from google.protobuf.message import Message


class Enum(Protocol):
    """An enum of ours, whose names all begin with its own and whose 0 is unspecified."""

    def items(self) -> Iterable[tuple[str, Any]]: ...


def fill(message: Message, values: Mapping[str, Any]) -> None:
    """Every value into the field of that name; None leaves a field out, which of a number means 0.

    Raises `TypeError` unless values and fields have the same names: a value that no field holds would be lost unseen.
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
    """The fields of a message by name: a message inside as a dictionary, None where it is not there."""
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
    """The word of a number, also of one that is not known here."""
    known = {0: "unspecified"} | words(enum)
    return known.get(number, f"the unknown number {number}")
