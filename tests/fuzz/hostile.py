"""Inputs that are nearly right: bytes, JSON, TOML and messages, each made of valid ones by a few changes.

Hypothesis draws one number for an input, and everything else follows from it: that is what makes 100,000 inputs cheap.
"""

import copy
import json
import math
import random

from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

PLACES = 2**20

NUMBERS = (0, 1, -1, 2, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 10**30)
FLOATS = (0.0, -0.0, 1.0, -1.0, 5e-324, 1e-300, 1e-12, 0.5, 1e12, 1e300, 1.7976931348623157e308)
ODD_FLOATS = (math.nan, math.inf, -math.inf)
NAMES = (
    "",
    " ",
    "north",
    "NORTH",
    "../../etc/passwd",
    "/etc/passwd",
    "a/b",
    "..",
    ".",
    "a\0b",
    "a\nb",
    "\x1b[2J",
    "\u202eevil",
    "ﷺ" * 9,
    "é",
    "x" * 41,
    "x" * 300,
    "x" * 70_000,
    "%s%n{0}",
    "'; DROP TABLE runs; --",
    "-" * 64,
    "the coordinator",
    "\udc80",
)
LARGEST_MESSAGE = 200_000
"""Bytes of a message above which it is made no larger."""
SIZES = (0, 1, 12, 16, 31, 32, 33, 64, 300, 70_000)


def made(make):
    """A strategy of what `make(rng)` gives, with a `random.Random` of its own each time."""
    return st.integers(0, 2**48).map(lambda number: make(random.Random(number)))


def changes(rng, kinds):
    """One to four changes: which of so many kinds, and two places."""
    return [(rng.randrange(kinds), rng.randrange(PLACES), rng.randrange(PLACES)) for _ in range(rng.randint(1, 4))]


def check_sentence(error, most=2000):
    """What a person is told: some words on one line, none of them a control character, and never many."""
    said = str(error)
    assert said.strip(), "an error that says nothing"
    assert len(said) <= most, f"{len(said)} characters: {said[:200]}"
    assert all(each.isprintable() for each in said), f"not printable: {said!r}"


def damaged(*valid):
    """Bytes made of valid ones by flips, cuts, copies, insertions, extreme numbers and pieces of another."""
    return made(lambda rng: damage(rng, *valid))


def damage(rng, *valid):
    """One such, or now and then any bytes at all."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(200))
    content = bytearray(rng.choice(valid))
    for kind, one, other in changes(rng, 9):
        size = max(1, len(content))
        start, end = sorted((one % size, other % size))
        match kind:
            case 0 if content:
                content[start] ^= 1 << other % 8
            case 1:
                del content[start:]
            case 2:
                del content[start:end]
            case 3:
                content[end:end] = content[start:end][:4096]
            case 4:
                content[start:start] = rng.randbytes(one % 10)
            case 5:
                number = NUMBERS[other % len(NUMBERS)] % 2**64
                width = (1, 2, 4, 8)[other % 4]
                content[start : start + width] = (number % 2 ** (8 * width)).to_bytes(width, ("big", "little")[one % 2])
            case 6:
                piece = valid[other % len(valid)]
                content[start:end] = piece[one % max(1, len(piece)) :][: other % 64]
            case 7:
                content[start:start] = bytes([other % 256]) * (one % 5000)
            case 8 if content:
                content[start] = other % 256
    return bytes(content)


def odd_value(number):
    """A value that JSON or Python has and a file seldom should."""
    deep = None
    for _ in range(number % 200):
        deep = [deep]
    odd = [None, True, False, [], {}, "\n", deep, {"a": deep}, [1, 2, 3], {"kind": "no-op"}, 10**400, 0.1]
    odd += NUMBERS
    odd += FLOATS + ODD_FLOATS
    odd += NAMES
    return odd[number % len(odd)]


def damaged_json(*valid):
    """JSON values made of valid ones: parts exchanged, left out, doubled, renamed, or replaced by odd ones."""
    return made(lambda rng: damage_json(rng, *valid))


def json_text(*valid):
    """The same as text, and text damaged as text."""
    texts = [json.dumps(each, separators=(",", ":")).encode() for each in valid]
    odd = [b"[" * 100_000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b"1" * 5000, b"NaN", b'{"a":1,"a":2}', b'"\\ud800"']

    def make(rng):
        chance = rng.random()
        if chance < 0.02:
            return rng.choice(odd)
        return damage(rng, *texts) if chance < 0.3 else as_text(damage_json(rng, *valid))

    return made(make)


def as_text(value):
    """JSON as our files have it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


MOST_VALUES = 100_000
"""In one damaged value, before others are copied into it: some ten MiB. Copies of copies would be gigabytes."""


def damage_json(rng, *valid):
    """One such value."""
    value = copy.deepcopy(rng.choice(valid))
    for kind, one, other in changes(rng, 6):
        places = list(_places(value))
        if not places:
            return odd_value(one)
        holder, key = places[one % len(places)]
        match kind:
            case 0 | 1:
                holder[key] = odd_value(other)
            case 2:
                del holder[key]
            case 3:
                there, where = places[other % len(places)]
                holder[key] = copy.deepcopy(there[where])
            case 4 if isinstance(holder, list):
                if not _more_than(MOST_VALUES // (other % 300 + 1), holder[key]):
                    holder.extend(copy.deepcopy(holder[key]) for _ in range(other % 300))
            case 4:
                holder[NAMES[other % len(NAMES)]] = holder[key]
            case 5 if isinstance(holder, dict):
                holder[f"{key}x"] = holder.pop(key)
    return value


def _more_than(most, value):
    """Whether a value has more values in it than so many, itself among them."""
    left, found = [value], 0
    while left and found <= most:
        each, found = left.pop(), found + 1
        left += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
    return found > most


def _places(value, deepest=12):
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in list(inside):
        yield value, key
        if deepest:
            yield from _places(each, deepest - 1)


TOML_VALUES = (
    "0",
    "-1",
    "1",
    "3",
    "0.0",
    "-0.0",
    "1e-320",
    "1e308",
    "1e999",
    "nan",
    "inf",
    "true",
    '""',
    '"x"',
    '"\\u0000"',
    '"\\u001b[2J"',
    '"~nobody-here/x"',
    '"../.."',
    "[]",
    "{}",
    "[1, 2]",
    '["", ""]',
    "{ by = 1 }",
    "1979-05-27T07:32:00Z",
    "9" * 19,
    "9" * 5000,
    "0x" + "f" * 5000,
    '"' + "x" * 9000 + '"',
    "[" * 900,
    "[" * 900 + "]" * 900,
    "{ a = " * 300 + "1" + " }" * 300,
    '"""\n[' + " " * 9000 + '"""',
    '"""\n' + "[" * 900 + '"""',
    "a.a.a = 1",
)
TOML_LINES = (
    "x = 1",
    "[x]",
    "[[x]]",
    '"" = 1',
    '"a\\nb" = 1',
    "\ufeff",
    "=",
    "[" * 900,
    ".".join("a" * 600) + " = 1",
    "[" + ".".join("a" * 600) + "]",
    "# " + "x" * 9000,
)


def damaged_toml(*valid):
    """TOML as bytes: lines exchanged, left out, doubled or new, values replaced by odd ones, or any bytes damaged."""
    texts = [text.encode() for text in valid]
    return made(lambda rng: damage(rng, *texts) if rng.random() < 0.2 else _damage_toml(rng, *valid))


def _damage_toml(rng, *valid):
    lines = rng.choice(valid).splitlines()
    for kind, one, other in changes(rng, 6):
        here, there = one % len(lines), other % len(lines)
        match kind:
            case 0 | 1 if "=" in lines[here]:
                lines[here] = f"{lines[here].split('=')[0]}= {TOML_VALUES[other % len(TOML_VALUES)]}"
            case 2 if len(lines) > 1:
                del lines[here]
            case 3:
                lines.insert(there, lines[here])
            case 4:
                lines.insert(here, TOML_LINES[other % len(TOML_LINES)])
            case _:
                lines[here], lines[there] = lines[there], lines[here]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def messages(*valid):
    """Protobuf messages made of valid ones by setting, doubling and clearing fields, at any depth."""
    return made(lambda rng: damage_message(rng, *valid))


def damage_message(rng, *valid):
    """One such."""
    one_of_them = rng.choice(valid)
    message = type(one_of_them)()
    message.CopyFrom(one_of_them)
    for kind, one, other in changes(rng, 6):
        fields = list(_fields(message))
        owner, field = fields[one % len(fields)]
        if message.ByteSize() > LARGEST_MESSAGE:
            return message
        if kind == 2 or (kind == 3 and not field.is_repeated and field.type == FieldDescriptor.TYPE_MESSAGE):
            owner.ClearField(field.name)
        elif _is_map(field):
            continue
        elif field.is_repeated:
            _repeat(getattr(owner, field.name), field, kind, other)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            getattr(owner, field.name).SetInParent()
        else:
            setattr(owner, field.name, _scalar(field, other))
    return message


def _is_map(field):
    return field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry


def _repeat(held, field, kind, other):
    count = (1, 2, 17, 65, 1001, 5000)[other % 6]
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        example = held[other % len(held)] if held and held[other % len(held)].ByteSize() < 5000 else None
        for _ in range(min(count, 300)):
            held.add().CopyFrom(example) if example is not None else held.add()
    elif kind == 0 and held:
        size = len(held[other % len(held)]) if isinstance(held[0], str | bytes) else 8
        held.extend([held[other % len(held)]] * min(count, LARGEST_MESSAGE // (size + 1)))
    elif kind == 1 and held:
        del held[other % len(held)]
    else:
        held.extend([_scalar(field, other)] * (min(count, 5) if other % 2 else 1))


def _fields(message, deepest=6):
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.type == FieldDescriptor.TYPE_MESSAGE and deepest and not _is_map(field):
            held = getattr(message, field.name)
            if field.is_repeated:
                for each in list(held)[:3]:
                    yield from _fields(each, deepest - 1)
            elif message.HasField(field.name):
                yield from _fields(held, deepest - 1)


_BITS = {
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_ENUM: (-(2**31), 2**31 - 1),
}


def _scalar(field, other):
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            sound = [name for name in NAMES if name.isprintable() or "\udc80" not in name]
            return sound[other % len(sound)]
        case FieldDescriptor.TYPE_BYTES:
            return bytes([other % 251]) * SIZES[other % len(SIZES)]
        case FieldDescriptor.TYPE_BOOL:
            return bool(other % 2)
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            odd = FLOATS + ODD_FLOATS
            return odd[other % len(odd)]
    least, most = _BITS[field.type]
    fitting = [number for number in (*NUMBERS, 3, 4, 5, 6, 7, 77) if least <= number <= most]
    return fitting[other % len(fitting)]
