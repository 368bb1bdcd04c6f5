"""A tensor's answers as bytes on the wire and back, with one copy at each end.

The bytes are exactly those of `AnswerResponse` messages in protobuf, so either end may use the generated stubs instead.
Only the copies differ: going through message objects, each chunk is copied four times when sent and three times when
received, which costs more than sending it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from protos.codec import CHUNK_BYTES, header_and_bytes
from protos.conclave.v1 import party_pb2, tensor_pb2

_BATCH: Final = party_pb2.AnswerResponse.BATCH_FIELD_NUMBER << 3
_CHUNK: Final = party_pb2.AnswerResponse.CHUNK_FIELD_NUMBER << 3 | 2
_HEADER: Final = tensor_pb2.TensorChunk.HEADER_FIELD_NUMBER << 3 | 2
_OFFSET: Final = tensor_pb2.TensorChunk.OFFSET_FIELD_NUMBER << 3
_DATA: Final = tensor_pb2.TensorChunk.DATA_FIELD_NUMBER << 3 | 2


@dataclass(frozen=True, slots=True)
class Piece:
    """The content of one message. `data` is a view of the message's own bytes; a tensor's first piece has a
    `header`.
    """

    batch: int
    header: tensor_pb2.TensorHeader | None
    offset: int
    data: memoryview


def framed(batch: int, array: NDArray[Any]) -> Iterator[bytes]:
    """A tensor as serialised `AnswerResponse` messages, in order. Raises ValueError for a dtype that cannot be sent."""
    header, raw = header_and_bytes(array)
    for offset in range(0, max(len(raw), 1), CHUNK_BYTES):
        data = raw[offset : offset + CHUNK_BYTES]
        message = tensor_pb2.TensorChunk(header=header if offset == 0 else None, offset=offset)
        chunk = message.SerializeToString()
        if data:
            chunk += _varint(_DATA) + _varint(len(data))
        outside = party_pb2.AnswerResponse(batch=batch).SerializeToString()
        yield b"".join((outside, _varint(_CHUNK), _varint(len(chunk) + len(data)), chunk, data))


def unframed(message: bytes) -> Piece:
    """The piece in a serialised `AnswerResponse`. Raises `DecodeError` for invalid bytes."""
    view = memoryview(message)
    try:
        batch, chunk = 0, view[:0]
        for field, value in _fields(view):
            if field == _BATCH and isinstance(value, int):
                batch = value
            elif field == _CHUNK and isinstance(value, memoryview) and not chunk:
                chunk = value
            else:
                return _parsed(message)
        header, offset, data = None, 0, view[:0]
        for field, value in _fields(chunk):
            if field == _HEADER and isinstance(value, memoryview) and header is None:
                header = tensor_pb2.TensorHeader.FromString(bytes(value))
            elif field == _OFFSET and isinstance(value, int):
                offset = value
            elif field == _DATA and isinstance(value, memoryview):
                data = value
            else:
                return _parsed(message)
    except IndexError:
        raise DecodeError("the message ends within a field, or a number in it has more than 64 bits") from None
    return Piece(batch, header, offset, data)


def _parsed(message: bytes) -> Piece:
    """The same through protobuf itself, for valid messages in a form that this module does not know."""
    answer = party_pb2.AnswerResponse.FromString(message)
    chunk = answer.chunk
    return Piece(answer.batch, chunk.header if chunk.HasField("header") else None, chunk.offset, memoryview(chunk.data))


def _fields(view: memoryview) -> Iterator[tuple[int, int | memoryview | None]]:
    """Tags with their numbers or bytes; None for a wire type that this module does not know. Raises IndexError."""
    at = 0
    while at < len(view):
        tag, at = _number(view, at)
        if tag & 7 == 0:
            value, at = _number(view, at)
            yield tag, value
        elif tag & 7 == 2:
            size, at = _number(view, at)
            if at + size > len(view):
                raise IndexError
            yield tag, view[at : at + size]
            at += size
        else:
            yield tag, None


def _number(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                raise IndexError
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
