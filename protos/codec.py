"""Tensors on the wire: a header, then little-endian bytes in chunks under 1 MiB.

A receiver knows which dtype and shape it asked for, so it allocates once, copies each chunk once, and refuses anything
else before it reads a byte of it.
"""

import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from protos.conclave.v1 import tensor_pb2

CHUNK_BYTES: Final = 960 * 1024
"""Bytes of a tensor in one message; with its framing the message stays under 1 MiB."""

MOST_AXES: Final = 8
"""The most axes of a shape in a message."""

_WIRE: Final = {
    np.dtype("<i4"): tensor_pb2.DTYPE_INT32,
    np.dtype("<i8"): tensor_pb2.DTYPE_INT64,
    np.dtype("<f4"): tensor_pb2.DTYPE_FLOAT32,
    np.dtype("<f8"): tensor_pb2.DTYPE_FLOAT64,
    np.dtype("|u1"): tensor_pb2.DTYPE_UINT8,
}


class MalformedTensor(ValueError):
    """Chunks that are not the expected tensor. The message says why."""


def header_and_bytes(array: NDArray[Any]) -> tuple[tensor_pb2.TensorHeader, memoryview]:
    """The header and bytes of a tensor; the bytes are not copied where they already have the right layout.

    Raises ValueError when the dtype is none of int32, int64, float32, float64, uint8.
    """
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    if little.dtype not in _WIRE:
        raise ValueError(
            f"a tensor of dtype {array.dtype} cannot travel; convert it to one of int32, int64, float32, float64, uint8"
        )
    raw = memoryview(little.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    return tensor_pb2.TensorHeader(dtype=_WIRE[little.dtype], shape=array.shape, crc32=zlib.crc32(raw)), raw


class TensorReader:
    """Assembles one tensor of known dtype and shape from its chunks.

    Memory: the tensor itself, allocated at the first valid chunk, and the current chunk.
    """

    def __init__(self, dtype: DTypeLike, shape: tuple[int, ...]) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._shape = tuple(shape)
        self._array: NDArray[Any] | None = None
        self._raw: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._filled = 0
        self._crc32: int | None = None

    def put(self, header: tensor_pb2.TensorHeader | None, offset: int, data: bytes | memoryview) -> NDArray[Any] | None:
        """Take the fields of the next chunk; returns the tensor when it is complete, otherwise None. Raises
        `MalformedTensor`.

        It takes fields, because a message object would copy `data` at every access (`protos.framing`).
        """
        if self._array is None:
            self._open(header)
        elif header is not None:
            raise MalformedTensor("a second header came before the tensor was whole")
        if offset != self._filled:
            raise MalformedTensor(f"bytes at offset {offset} came where {self._filled} was due")
        end = self._filled + len(data)
        if end > self._raw.size:
            raise MalformedTensor(f"{end} bytes came for a tensor of {self._raw.size}")
        if not data and self._raw.size:
            raise MalformedTensor("an empty chunk came before the tensor was whole")
        self._raw[self._filled : end] = np.frombuffer(data, np.uint8)
        self._filled = end
        if end < self._raw.size:
            return None
        if self._crc32 is not None and zlib.crc32(self._raw.data) != self._crc32:
            raise MalformedTensor("its bytes were changed on the way: their checksum is another")
        return self._array

    def _open(self, header: tensor_pb2.TensorHeader | None) -> None:
        if header is None:
            raise MalformedTensor("the first chunk has no header")
        shape = tuple(header.shape)
        if header.dtype != _WIRE[self._dtype]:
            name = tensor_pb2.DType.Name(header.dtype) if header.dtype in _WIRE.values() else header.dtype
            raise MalformedTensor(f"dtype {name} came where {self._dtype.name} was asked for")
        if shape != self._shape:
            came = list(shape) if len(shape) <= MOST_AXES else f"of {len(shape)} axes"
            raise MalformedTensor(f"shape {came} came where {list(self._shape)} was asked for")
        self._crc32 = header.crc32 if header.HasField("crc32") else None
        self._array = np.empty(self._shape, self._dtype)
        self._raw = self._array.reshape(-1).view(np.uint8)
