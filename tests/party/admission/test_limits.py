"""What a coordinator that is admitted cannot make a node do: too many calls, queries, runs, rows or bytes."""

import asyncio
import logging
import re
import time

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from party.admission.limits import Limits, Pace, Quieter
from party.config import LimitsTable
from party.node.serving import SERVER_OPTIONS
from protos.conclave.v1 import party_pb2
from protos.console.mistakes import SettingsError
from protos.identity.credentials import bearer
from protos.refusal import Reason, Refusal, refusal_of

VERBS = [method.name for method in party_pb2.DESCRIPTOR.services_by_name["Party"].methods]


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.slow
@given(
    st.floats(0.5, 1000),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50)), max_size=60),
)
def test_no_more_is_taken_than_the_rate_and_one_seconds_worth(rate, asked):
    clock = Clock()
    pace, taken = Pace(rate, clock), 0
    for waited, amount in asked:
        clock.now += waited
        taken += amount if pace.take(amount) else 0
        assert taken <= max(1.0, rate) + rate * clock.now + 1e-6


@pytest.mark.slow
@given(st.floats(0.5, 1000), st.lists(st.integers(1, 5000), min_size=1, max_size=20))
def test_whoever_waits_as_told_keeps_to_the_rate_and_loses_nothing(rate, asked):
    clock = Clock()
    pace = Pace(rate, clock)
    for amount in asked:
        clock.now += pace.borrow(amount)
    assert clock.now == pytest.approx(max(0.0, (sum(asked) - max(1.0, rate)) / rate), abs=1e-6 * sum(asked))


def test_a_flood_of_refusals_is_a_few_lines_that_count_the_rest():
    clock = Clock()
    quieter = Quieter(clock)
    lines = [quieter.line("no") for _ in range(1000)]
    assert lines == ["no"] * 10 + [None] * 990
    clock.now = 60.0
    assert quieter.line("no") == "no (990 more refusals were not written)"
    assert quieter.line("no") == "no"


async def refused(waiting):
    with pytest.raises(Refusal) as refusal:
        await waiting
    assert "\n" not in refusal.value.sentence
    return refusal.value


@pytest.mark.slow
async def test_calls_above_the_rate_are_refused_as_busy_and_a_flood_is_a_few_log_lines(opened, caplog):
    caller = await opened(limits={"calls_per_second": 50.0})
    with caplog.at_level(logging.INFO, "conclave.party"):
        began = time.monotonic()
        answers = await asyncio.gather(*(caller.describe() for _ in range(400)), return_exceptions=True)
        seconds = time.monotonic() - began
    busy = [each for each in answers if isinstance(each, Refusal)]
    assert {each.reason for each in busy} == {Reason.BUSY}
    assert "[limits]" in busy[0].sentence
    assert 0 < len(answers) - len(busy) <= 50 * (1 + seconds)
    assert 0 < sum("busy" in record.getMessage() for record in caplog.records) <= 10 * (1 + seconds) + 1
    await asyncio.sleep(0.1)
    assert (await caller.describe()).name == "north"


@pytest.mark.slow
@pytest.mark.usefixtures("trains_here")
async def test_a_run_goes_on_among_calls_with_a_wrong_token(opened):
    caller = await opened(limits={"calls_per_second": 200.0})
    stranger = await opened(node=caller.node, token="guessed")
    ended = asyncio.Event()
    flood = {"made": 0, "unauthenticated": 0}

    async def hostile():
        while not ended.is_set():
            calls = [
                stranger.describe(),
                stranger.join(),
                stranger.attest(),
                stranger.leave(),
                stranger.answer(caller.batch(0, 0, 6)),
            ]
            for said in await asyncio.gather(*calls, return_exceptions=True):
                flood["made"] += 1
                flood["unauthenticated"] += isinstance(said, Refusal) and said.reason == Reason.AUTHENTICATION

    hostiles = [asyncio.create_task(hostile()) for _ in range(8)]
    try:
        await caller.ready()
        blocks = [await caller.answer(caller.batch(number, number, number + 1)) for number in range(6)]
    finally:
        ended.set()
        await asyncio.gather(*hostiles)
    assert len(blocks) == 6
    assert flood["made"] == flood["unauthenticated"] > 50


async def test_calls_at_a_time_are_refused_as_busy_until_one_ends(opened):
    caller = await opened(limits={"calls": 4})
    await caller.join()

    waiting = asyncio.Event()

    async def iter_nothing():
        await waiting.wait()
        return
        yield

    calls = [caller.stub.Answer(iter_nothing(), metadata=bearer(caller.token)) for _ in range(4)]
    reading = [asyncio.create_task(call.read()) for call in calls]
    await asyncio.sleep(0.3)
    assert (await refused(caller.describe())).reason == Reason.BUSY
    waiting.set()
    assert await asyncio.gather(*reading) == [grpc.aio.EOF] * 4
    assert (await caller.describe()).name == "north"


async def test_far_too_many_calls_at_a_time_are_not_even_read(opened):
    caller = await opened(limits={"calls": 4})
    held = asyncio.Event()

    async def never():
        await held.wait()
        return
        yield

    calls = [caller.stub.Provide(never(), metadata=bearer(caller.token)) for _ in range(40)]
    said = [asyncio.create_task(call.code()) for call in calls]
    done, _ = await asyncio.wait(said, timeout=2.0)
    assert {each.result() for each in done} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert 30 <= len(done) <= 36  # but for those that wait for their first message
    held.set()
    await asyncio.gather(*said)


async def test_strangers_calls_that_send_nothing_keep_nobody_out(opened):
    caller = await opened(limits={"calls": 4})
    strange = bearer("guessed")
    calls = [caller.channel.stream_unary(f"/conclave.v1.Party/{verb}")(metadata=strange) for verb in VERBS * 5]
    calls += [caller.channel.stream_unary("/grpc.health.v1.Health/Check")(metadata=strange) for _ in range(5)]
    async with asyncio.timeout(5):
        codes = [await call.code() for call in calls]
    assert grpc.StatusCode.UNAUTHENTICATED in codes
    assert set(codes) <= {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED}  # more than it hears
    assert (await caller.describe()).name == "north"


async def test_a_call_that_ends_without_its_request_is_refused(opened):
    caller = await opened()
    call = caller.channel.stream_unary("/conclave.v1.Party/Describe")(iter(()), metadata=bearer(caller.token))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    assert refusal_of(error.value).reason == Reason.REQUEST


@pytest.mark.parametrize("verb", ["Check", "Watch"])
async def test_the_health_of_a_node_is_nothing_to_strangers_or_garbage(opened, caplog, verb):
    caller = await opened()
    ask = caller.channel.unary_unary(f"/grpc.health.v1.Health/{verb}")
    for metadata, content, code in (
        (bearer("guessed"), b"", grpc.StatusCode.UNAUTHENTICATED),
        (bearer(caller.token), b"\xff", grpc.StatusCode.INVALID_ARGUMENT),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await ask(content, metadata=metadata)
        assert error.value.code() == code
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_connection_that_says_nothing_is_closed(opened, monkeypatch):
    assert dict(SERVER_OPTIONS)["grpc.server_handshake_timeout_ms"] <= 30_000
    short = {**dict(SERVER_OPTIONS), "grpc.server_handshake_timeout_ms": 300}
    monkeypatch.setattr("party.node.lifecycle.SERVER_OPTIONS", tuple(short.items()))
    caller = await opened()
    reader, writer = await asyncio.open_connection("127.0.0.1", caller.node.port)
    async with asyncio.timeout(5):
        while await reader.read(64):  # gRPC speaks first
            pass
    writer.close()


@pytest.mark.usefixtures("trains_here")
async def test_a_run_too_many_is_refused_by_the_limits_name_until_one_ends(opened):
    caller = await opened(limits={"runs": 2})
    for number in (1, 2):
        caller.run.run_id = f"run-{number}"
        await caller.join()
    await caller.join()  # again
    caller.run.run_id = "run-3"
    refusal = await refused(caller.join())
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "runs")
    assert "is in 2 runs" in refusal.sentence
    caller.run.run_id = "run-1"
    await caller.leave()
    caller.run.run_id = "run-3"
    await caller.join()


@pytest.mark.usefixtures("trains_here")
async def test_a_block_over_the_limit_is_refused_with_the_rows_that_fit(opened, monkeypatch):
    caller = await opened(limits={"block_mib": 1})
    await caller.ready()
    limits = caller.node.verbs.limits
    assert len((await caller.answer(caller.batch(0, 0, 6)))[0]) == 6
    limits.check_block(2**18, 1)
    with pytest.raises(Refusal, match=r"ask for 1 to 262144") as refusal:
        limits.check_block(2**18 + 1, 1)
    assert refusal.value.reason == Reason.REQUEST
    monkeypatch.setattr(limits, "_table", LimitsTable(block_mib=1).model_copy(update={"block_mib": 0}))
    assert (await refused(caller.answer(caller.batch(1, 0, 6)))).reason == Reason.REQUEST


@pytest.mark.usefixtures("trains_here")
async def test_queries_above_the_rate_wait_and_are_answered(opened):
    caller = await opened(limits={"queries_per_second": 4.0})
    await caller.ready()
    begun = asyncio.get_running_loop().time()
    blocks = [await caller.answer(caller.batch(number, number, number + 1)) for number in range(6)]
    assert len(blocks) == 6
    assert asyncio.get_running_loop().time() - begun > 0.4  # four at once, then one each quarter of a second


def test_sums_over_the_memory_of_a_run_are_refused():
    limits = Limits("north", LimitsTable(memory_mib=256))
    limits.check_memory(256 * 2**20)
    with pytest.raises(Refusal, match=r"257 MiB at party north.*memory_mib = 256") as refusal:
        limits.check_memory(257 * 2**20)
    assert refusal.value.reason == Reason.MEMORY


@pytest.mark.slow
async def test_a_training_that_needs_more_memory_than_a_run_may_hold_says_so_in_a_simulation_alone(opened, tmp_path):
    """One record, of as many pairs as are counted of any, takes it: what it then fails or not for is in the text."""
    (tmp_path / "notes.jsonl").write_text('{"text": "' + "apple bread cheese door egg fish " * 30_000 + '"}\n')
    caller = await opened(limits={"memory_mib": 256}, policy={"simulation": True})
    await caller.join()
    await caller.provide()
    refusal = await refused(caller.train(window=1000))
    assert refusal.reason == Reason.MEMORY
    assert "[limits] memory_mib" in refusal.sentence
    await caller.node.stop()
    private = await opened(limits={"memory_mib": 256}, folder="private")
    await private.join()
    await private.provide()
    assert (await private.train(window=1000))[-1].finished


def test_limits_that_make_no_sense_are_named(config):
    with pytest.raises(SettingsError, match=r"\[limits\] runs = 0"):
        config(limits={"runs": 0})
    with pytest.raises(SettingsError, match=r"\[limits\].*queries_per_minute"):
        config(limits={"queries_per_minute": 5})


async def test_what_is_kept_of_batches_does_not_grow_with_them(opened):
    caller = await opened()
    await caller.join()
    for number in range(50):
        request = caller.batch(number, 0, 1)
        assert (await refused(caller.answer(request))).reason == Reason.REQUEST
    assert caller.node.verbs._answers._making == {}


async def test_a_refusal_by_grpc_itself_is_no_message_of_ours(opened):
    caller = await opened()
    big = party_pb2.DescribeRequest(nonce=bytes(5 * 2**20))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await caller.stub.Describe(big, metadata=bearer(caller.token))
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refusal_of(error.value) is None
    assert re.search("larger than max", error.value.details())
