"""Framing makes protobuf's own bytes and reads whatever protobuf may make."""

import zlib

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from protos.codec import CHUNK_BYTES, MalformedTensor, TensorReader
from protos.conclave.v1 import party_pb2, tensor_pb2
from protos.framing import framed, unframed


def chunks(array):
    """The tensor's chunks as messages, made by protobuf alone."""
    content = array.tobytes()
    for offset in range(0, max(len(content), 1), CHUNK_BYTES):
        header = tensor_pb2.TensorHeader(dtype=tensor_pb2.DTYPE_INT32, shape=array.shape, crc32=zlib.crc32(content))
        first = header if offset == 0 else None
        yield tensor_pb2.TensorChunk(header=first, offset=offset, data=content[offset : offset + CHUNK_BYTES])


SHAPES = [(), (0,), (0, 5), (1,), (3, 4), (CHUNK_BYTES // 4,), (CHUNK_BYTES // 4 + 1,), (700, 1024)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [0, 1, 300, 2**63])
def test_the_bytes_are_those_of_protobuf(shape, batch):
    array = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    ours = list(framed(batch, array))
    theirs = [
        party_pb2.AnswerResponse(batch=batch, chunk=chunk).SerializeToString(deterministic=True)
        for chunk in chunks(array)
    ]
    assert ours == theirs


@pytest.mark.parametrize("shape", SHAPES)
def test_a_tensor_comes_back(shape):
    array = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    reader = TensorReader(np.int32, shape)
    found = None
    for message in framed(7, array):
        piece = unframed(message)
        assert piece.batch == 7
        found = reader.put(piece.header, piece.offset, piece.data)
    np.testing.assert_array_equal(found, array)


def test_a_message_with_fields_it_does_not_know_is_read_all_the_same():
    (message,) = framed(3, np.array([1, 2], dtype=np.int32))
    for unknown in (b"\x7d\x01\x02\x03\x04", b"\x78\x05", b"\x7a\x02hi"):
        piece = unframed(message + unknown)
        assert (piece.batch, bytes(piece.data)) == (3, np.array([1, 2], dtype="<i4").tobytes())


@given(st.binary(max_size=60))
def test_any_bytes_are_read_as_protobuf_reads_them_or_refused(message):
    try:
        expected = party_pb2.AnswerResponse.FromString(message)
    except DecodeError:
        with pytest.raises(DecodeError):
            unframed(message)
        return
    try:
        piece = unframed(message)
    except DecodeError:
        return  # stricter than protobuf is allowed
    assert piece.batch == expected.batch
    assert bytes(piece.data) == expected.chunk.data
    assert piece.offset == expected.chunk.offset


def test_a_cut_message_is_never_a_whole_tensor():
    (message,) = framed(3, np.arange(100, dtype=np.int32))

    def read(cut):
        piece = unframed(cut)
        if TensorReader(np.int32, (100,)).put(piece.header, piece.offset, piece.data) is None:
            raise MalformedTensor("not whole")

    read(message)
    for end in range(1, len(message)):
        with pytest.raises((DecodeError, MalformedTensor)):
            read(message[:end])
