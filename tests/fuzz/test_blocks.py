"""Blocks on the wire: whatever a party sends is the tensor that was asked for, or is refused before it is believed."""

import numpy as np
from google.protobuf.message import DecodeError

from protos.codec import CHUNK_BYTES, MalformedTensor, TensorReader
from protos.conclave.v1 import party_pb2, tensor_pb2
from protos.framing import framed, unframed

SMALL = np.arange(12, dtype=np.int32).reshape(3, 4)
LARGE = np.arange(CHUNK_BYTES // 4 + 3, dtype=np.int32).reshape(1, -1)
VALID = [*framed(3, SMALL), *framed(0, np.zeros((0, 4), np.int32)), *framed(2**63, SMALL[:1])]
HEADER = tensor_pb2.TensorHeader(dtype=tensor_pb2.DTYPE_INT32, shape=SMALL.shape)
ANSWER = party_pb2.AnswerResponse(batch=3, chunk=tensor_pb2.TensorChunk(header=HEADER, data=SMALL.tobytes()))


def test_damaged_messages_are_read_as_protobuf_reads_them_or_refused(fuzz, hostile):
    @fuzz(hostile.damaged(*VALID), examples=[b"\x08" + b"\xff" * 9 + b"\x7f", b"\x08" + b"\xff" * 9 + b"\x01"])
    def _(message):
        try:
            piece = unframed(message)
        except DecodeError:
            return
        expected = party_pb2.AnswerResponse.FromString(message)
        assert piece.batch == expected.batch
        assert piece.offset == expected.chunk.offset
        assert bytes(piece.data) == expected.chunk.data
        assert (piece.header or tensor_pb2.TensorHeader()) == expected.chunk.header


def test_a_reader_takes_the_tensor_that_was_asked_for_and_nothing_else(fuzz, hostile):
    numbers = [0, 3, 4, 12, 47, 48, 49, 2**31, 2**63, 2**64 - 1]

    def chunk(rng):
        shape = [rng.choice(numbers) for _ in range(rng.randrange(5))]
        other = tensor_pb2.TensorHeader(dtype=rng.choice([0, 1, 2, 5, 6, -1, 2**31 - 1]), shape=shape)
        offset = rng.choice([0, 0, 0, 12, 24, 36, *numbers])
        return rng.choice([HEADER, HEADER, None, None, other]), offset, rng.randbytes(rng.choice([0, 12, 24, 36, 49]))

    @fuzz(hostile.made(lambda rng: [chunk(rng) for _ in range(rng.randint(1, 5))]))
    def _(parts):
        reader, taken, whole = TensorReader(np.int32, SMALL.shape), b"", None
        try:
            for header, offset, data in parts:
                whole = reader.put(header, offset, data)
                taken += data
        except MalformedTensor as error:
            hostile.check_sentence(error)
            return
        if whole is not None:
            assert whole.shape == SMALL.shape
            assert whole.tobytes() == taken


def test_damaged_answers_end_as_the_tensor_or_as_malformed(fuzz, hostile):
    def make(rng):
        known = [hostile.damage(rng, *VALID), hostile.damage_message(rng, ANSWER).SerializeToString(), VALID[0]]
        return [rng.choice(known) for _ in range(rng.randint(1, 3))]

    long = party_pb2.AnswerResponse(chunk=tensor_pb2.TensorChunk(header=tensor_pb2.TensorHeader(dtype=1)))
    long.chunk.header.shape.extend([3] * 70_000)

    @fuzz(hostile.made(make), examples=[[long.SerializeToString()]])
    def _(messages):
        reader = TensorReader(np.int32, SMALL.shape)
        try:
            for message in messages:
                piece = unframed(message)
                reader.put(piece.header, piece.offset, piece.data)
        except (MalformedTensor, DecodeError) as error:
            hostile.check_sentence(error)


def test_a_tensor_of_several_messages_is_whole_or_refused_whichever_message_is_damaged(fuzz, hostile):
    sent = list(framed(1, LARGE))

    @fuzz(hostile.made(lambda rng: (rng.randrange(len(sent)), rng.randrange(40), rng.randrange(256))), share=0.2)
    def _(change):
        which, place, value = change
        reader, whole = TensorReader(np.int32, LARGE.shape), None
        try:
            for number, message in enumerate(sent):
                if number == which:
                    message = message[:place] + bytes([value]) + message[place + 1 :]
                piece = unframed(message)
                whole = reader.put(piece.header, piece.offset, piece.data)
        except (MalformedTensor, DecodeError):
            return
        assert whole is None or whole.shape == LARGE.shape
