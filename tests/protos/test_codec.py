"""Tensors survive the wire bit for bit, and nothing that is not the tensor asked for gets in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protos.codec import CHUNK_BYTES, MalformedTensor, TensorReader, header_and_bytes
from protos.conclave.v1 import party_pb2, tensor_pb2
from protos.framing import framed

DTYPES = st.sampled_from(["<i4", "<i8", "<f4", "<f8", "|u1", ">i4", ">f8"])


def chunks(array):
    return [party_pb2.AnswerResponse.FromString(message).chunk for message in framed(0, array)]


def feed(reader, chunk):
    return reader.put(chunk.header if chunk.HasField("header") else None, chunk.offset, chunk.data)


def read(array, parts):
    reader = TensorReader(array.dtype, array.shape)
    whole = None
    for part in parts:
        assert whole is None
        whole = feed(reader, part)
    return whole


@pytest.mark.slow
@given(hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=7)))
def test_a_tensor_comes_out_as_it_went_in(array):
    whole = read(array, chunks(array))
    assert whole is not None
    assert whole.shape == array.shape
    assert whole.tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes()


def test_every_message_of_a_large_tensor_is_under_a_mebibyte_and_they_are_put_together_in_order():
    array = np.arange(3 * CHUNK_BYTES // 4 + 5, dtype=np.int32).reshape(1, -1)
    parts = chunks(array)
    assert len(parts) == 4
    assert max(part.ByteSize() for part in parts) < 2**20
    assert np.array_equal(read(array, parts), array)


def test_a_view_that_is_not_contiguous_travels_too():
    array = np.arange(24, dtype=np.int64).reshape(4, 6)[::2, ::3]
    assert np.array_equal(read(array, chunks(array)), array)


def test_a_dtype_that_cannot_travel_is_refused_before_anything_is_sent():
    with pytest.raises(ValueError, match="float16"):
        chunks(np.zeros(3, np.float16))


def header(dtype=tensor_pb2.DTYPE_INT32, shape=(2, 2)):
    return tensor_pb2.TensorHeader(dtype=dtype, shape=shape)


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ([tensor_pb2.TensorChunk(data=b"0" * 16)], "no header"),
        ([tensor_pb2.TensorChunk(header=header(shape=(2, 3)), data=b"0" * 24)], r"shape \[2, 3\] came where \[2, 2\]"),
        ([tensor_pb2.TensorChunk(header=header(shape=(2**40, 2**40)))], "shape"),
        ([tensor_pb2.TensorChunk(header=header(tensor_pb2.DTYPE_FLOAT64), data=b"0" * 16)], "dtype DTYPE_FLOAT64"),
        ([tensor_pb2.TensorChunk(header=header(77), data=b"0" * 16)], "dtype 77"),
        ([tensor_pb2.TensorChunk(header=header(), offset=4, data=b"0" * 4)], "offset 4 came where 0"),
        ([tensor_pb2.TensorChunk(header=header(), data=b"0" * 17)], "17 bytes came for a tensor of 16"),
        ([tensor_pb2.TensorChunk(header=header(), data=b"")], "empty chunk"),
        (
            [tensor_pb2.TensorChunk(header=header(), data=b"0" * 8), tensor_pb2.TensorChunk(header=header(), offset=8)],
            "second header",
        ),
    ],
)
def test_what_is_not_the_tensor_asked_for_is_refused_by_what_is_wrong(parts, complaint):
    with pytest.raises(MalformedTensor, match=complaint):
        read(np.zeros((2, 2), np.int32), parts)


def test_a_wrong_shape_is_refused_before_memory_is_taken_for_it():
    reader = TensorReader(np.int32, (2, 2))
    with pytest.raises(MalformedTensor):
        feed(reader, tensor_pb2.TensorChunk(header=header(shape=(2**31, 2**31)), data=b""))
    assert reader._array is None


@pytest.mark.parametrize("place", [0, CHUNK_BYTES, 4 * 300_000 - 1])
def test_bytes_that_were_changed_on_the_way_are_noticed_when_the_tensor_is_whole(place):
    array = np.arange(300_000, dtype=np.int32)
    head, raw = header_and_bytes(array)
    changed = bytearray(raw)
    changed[place] ^= 1
    reader = TensorReader(np.int32, array.shape)
    assert reader.put(head, 0, bytes(changed[:CHUNK_BYTES])) is None
    with pytest.raises(MalformedTensor, match="changed on the way"):
        reader.put(None, CHUNK_BYTES, bytes(changed[CHUNK_BYTES:]))
