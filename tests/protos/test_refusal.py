"""A refusal crosses the wire with its reason, its sentence, and the rule and the party it names."""

import grpc
import pytest

from protos.conclave.v1 import party_pb2
from protos.conclave.v1.party_pb2_grpc import PartyServicer, PartyStub, add_PartyServicer_to_server
from protos.refusal import LONGEST, Reason, Refusal, abort, plain, refusal_of


class Refusing(PartyServicer):
    def __init__(self, refusal):
        self.refusal = refusal

    async def Describe(self, request, context):  # noqa: N802 - grpc's name
        if self.refusal is None:
            await context.abort(grpc.StatusCode.INTERNAL, "a bug")
        await abort(context, self.refusal)


async def ask(refusal):
    server = grpc.aio.server()
    add_PartyServicer_to_server(Refusing(refusal), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await PartyStub(channel).Describe(party_pb2.DescribeRequest())
            return caught.value
    finally:
        await server.stop(0)


@pytest.mark.parametrize("reason", list(Reason))
async def test_every_reason_arrives_as_it_was_sent(reason):
    error = await ask(Refusal(reason, "No, because.", "minimum_parties", who="north"))
    refusal = refusal_of(error)
    assert (refusal.reason, refusal.sentence, refusal.rule) == (reason, "No, because.", "minimum_parties")
    assert refusal.who == "north"
    assert error.code() is not grpc.StatusCode.UNKNOWN


async def test_a_failure_that_is_no_refusal_is_not_taken_for_one():
    assert refusal_of(await ask(None)) is None


def test_what_another_end_calls_itself_is_made_plain_and_short():
    assert plain("north-2 1.0.3+local") == "north-2 1.0.3+local"
    for evil in ("\x1b[2J", "a\nb", "\u202eevil", "<b>", "[a](b)", "`x`", "# x", "a|b", "*a*", "\u0430", "\ud800"):
        assert set(plain(evil)) <= set("?abevilxJ2 "), evil
    assert plain("x" * 1_000_000) == "x" * 60 + "..."


def test_a_sentence_controls_no_terminal_and_fits_into_a_header():
    for evil in ("\x1b[2J", "a\nb", "\u202eevil", "\x07", "\ud800"):
        sentence = Refusal(Reason.OTHER, f"No, {evil}.").sentence
        assert sentence.isprintable(), evil
        assert sentence.startswith("No, ")
    for letter in ("x", "\u00e9", "\U0001f600"):
        sentence = Refusal(Reason.OTHER, letter * 100_000).sentence
        assert len(sentence.encode()) <= LONGEST
        assert sentence.endswith("...")
