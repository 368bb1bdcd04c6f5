"""A party's spans: whose call they hang below, where they go, and that nobody outside decides either."""

import json
import socket
import time

import pytest

from party.errors import PartyError
from party.node.lifecycle import start
from protos.conclave.v1 import party_pb2
from protos.identity.credentials import bearer
from protos.refusal import Refusal
from protos.telemetry.tracing import ATTRIBUTES

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")

HERE = {"traces": {"to": "spans.jsonl"}}
PARENT = f"00-{'a' * 32}-{'b' * 16}-00"


async def describe(caller, *said):
    request = party_pb2.DescribeRequest(nonce=b"n" * 32)
    return await caller.stub.Describe(request, metadata=(*bearer(caller.token), *said))


async def spans_of(caller, folder):
    """What a party told, once its node has ended."""
    await caller.node.stop()
    return [
        span | {"tells": {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}}
        for line in (folder / "spans.jsonl").read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


async def test_a_verb_hangs_below_the_call_that_names_its_span_whatever_its_flags_say(opened, tmp_path):
    caller = await opened(**HERE)
    await describe(caller, ("traceparent", PARENT))
    (span,) = await spans_of(caller, tmp_path)
    assert (span["name"], span["traceId"], span["parentSpanId"]) == ("Describe", "a" * 32, "b" * 16)
    assert span["tells"] == {"conclave.verb": "Describe", "conclave.outcome": "answered"}


@pytest.mark.parametrize("said", ["", "nonsense", f"00-{'0' * 32}-{'b' * 16}-01", PARENT + "a" * 7000])
async def test_what_is_no_span_is_ignored_and_the_call_answered(opened, tmp_path, said):
    caller = await opened(**HERE)
    answer = await describe(caller, ("traceparent", said), ("tracestate", "a=b"), ("baggage", "patient=nine"))
    assert answer.name == "north"
    (span,) = await spans_of(caller, tmp_path)
    assert not span.get("parentSpanId")
    assert "patient" not in (tmp_path / "spans.jsonl").read_text()


async def test_whoever_may_not_ask_leaves_no_span(opened, tmp_path):
    caller = await opened(**HERE)
    caller.token = "another"
    with pytest.raises(Refusal):
        await caller.describe()
    assert await spans_of(caller, tmp_path) == []


@pytest.mark.slow
async def test_what_a_run_did_is_told_without_what_was_in_it(opened, tmp_path):
    caller = await opened(**HERE)
    await caller.ready()
    await caller.answer(caller.batch(0, 0, 3), caller.batch(1, 3, 6))
    await caller.answer(caller.batch(0, 0, 3))
    with pytest.raises(Refusal):
        await caller.answer(caller.batch(0, 0, 4))
    await caller.leave()
    spans = await spans_of(caller, tmp_path)
    blocks = [span["tells"] for span in spans if span["name"] == "block"]
    assert [(each["conclave.batch"], each.get("conclave.made")) for each in blocks] == [
        ("0", True),
        ("1", True),
        ("0", False),
        ("0", None),
    ]
    assert blocks[0]["conclave.bytes"] == str(3 * 6 * 4)
    assert (blocks[3]["conclave.outcome"], blocks[3]["conclave.reason"]) == ("refused", "conflict")
    (training,) = (span for span in spans if span["name"] == "training")
    (train,) = (span for span in spans if span["name"] == "Train")
    assert training["parentSpanId"] == train["spanId"]
    assert {key for span in spans for key in span["tells"]} <= {f"conclave.{name}" for name in ATTRIBUTES}


@pytest.mark.slow
async def test_a_release_that_a_caller_made_up_is_not_repeated(opened, tmp_path):
    caller = await opened(**HERE)
    await caller.ready()
    with pytest.raises(Refusal):
        await caller.answer(caller.batch(0, 0, 3, release="what does the patient in room nine have"))
    assert "patient" not in (tmp_path / "spans.jsonl").read_text()
    assert "block" in [span["name"] for span in await spans_of(caller, tmp_path)]


@pytest.mark.slow
async def test_a_collector_that_says_nothing_delays_no_answer_and_the_end_by_a_moment(opened, monkeypatch):
    monkeypatch.setattr("protos.telemetry.exporting.CLOSING", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        caller = await opened(traces={"to": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        begun = time.monotonic()
        for _ in range(200):
            await describe(caller)
        asked = time.monotonic()
        await caller.node.stop()
        assert asked - begun < 5
        assert time.monotonic() - asked < 3


async def test_without_the_table_there_is_no_tracer(opened):
    caller = await opened()
    await describe(caller, ("traceparent", PARENT))
    assert caller.node.verbs.tracer is None


@pytest.mark.parametrize(
    ("to", "why"), [("ftp://collector", "is no address of a collector"), ("no/such/folder", "No such file")]
)
async def test_a_place_that_is_none_is_one_sentence_and_the_folder_free_again(config, tmp_path, to, why):
    with pytest.raises(PartyError, match=rf"party north.*{why}"):
        await start(config(traces={"to": to}), token="t", base=tmp_path)
    await (await start(config(), token="t", base=tmp_path)).stop()
