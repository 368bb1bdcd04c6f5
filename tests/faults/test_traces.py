"""One trace shows a run across the coordinator and its parties, each of which tells only its own administrator."""

import json
import signal
import socket

import pytest

from protos.telemetry.tracing import ATTRIBUTES, ids_of

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
pytestmark = pytest.mark.slow

SECURELY = ('trust = "secure-sum"', "dropouts = 1")
COORDINATOR = ("conclave-coordinator", "")


@pytest.fixture(scope="module")
def told(scenes, warm, tmp_path_factory):
    """Four parties that serve, each of which keeps its spans in a file of its own."""
    with scenes.Scene(tmp_path_factory.mktemp("traces") / "scene", scenes.FOUR, warm) as scene:
        for name in scene.parties:
            with (scene.folder / f"{name}.toml").open("a") as file:
                file.write(f'\n[traces]\nto = "{name}.jsonl"\n')
        scene.serve_all()
        yield scene
        scene.stop()
        assert scene.left() == []


def traced(scene, *arguments):
    """The command with its spans in a file."""
    return scene.coordinator(*arguments, "--json", "--traces", "coordinator.jsonl")


def spans_of(scenes, scene, run):
    """Everything that was told of a run by anyone, by span id, once every party has told that it left."""
    trace = f"{ids_of(run, 0)[0]:032x}"

    def told_by(name):
        return [span for span in read(scene.folder / f"{name}.jsonl") if span["traceId"] == trace]

    for name in scene.parties:
        scenes.until(lambda name=name: "Leave" in [span["name"] for span in told_by(name)], f"{name} told all")
    return {span["spanId"]: span for name in ("coordinator", *scene.parties) for span in told_by(name)}


def read(path):
    """The spans of a file, each with who told it and what it tells."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [
        span | {"who": plain(resource["resource"]), "tells": plain(span)}
        for line in lines
        if line.endswith("\n")
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def plain(holder):
    """Attributes as a dictionary."""
    return {each["key"]: next(iter(each["value"].values())) for each in holder.get("attributes", ())}


def who(span):
    return span["who"]["service.name"], span["who"].get("conclave.party", "")


def above(spans, span):
    """The names of a span's forebears, from the outermost on."""
    names = []
    while parent := span.get("parentSpanId"):
        span = spans[parent]
        names.insert(0, span["name"])
    return names


def test_the_spans_of_a_run_are_one_tree_with_the_coordinator_and_every_party_in_it(scenes, told):
    code, said = told.outcome(traced(told, "run", told.plan(privacy=("dropouts = 1",)), "--output", "clear"))
    assert code == 0, said
    spans = spans_of(scenes, told, told.started("clear"))
    (root,) = (span for span in spans.values() if not span.get("parentSpanId"))
    assert (root["name"], who(root)) == ("run", COORDINATOR)
    assert all(above(spans, span)[:1] == ["run"] for span in spans.values() if span is not root)
    assert {who(span) for span in spans.values()} == {COORDINATOR} | {("conclave-party", name) for name in told.parties}
    stages = ["start", "join", "provide", "train", "aggregate", "attest", "distil", "evaluate", "publish"]
    begun = sorted(spans.values(), key=lambda span: int(span["startTimeUnixNano"]))
    assert [span["tells"]["conclave.stage"] for span in begun if span["name"].startswith("stage")] == stages
    for name in told.parties:
        own = [span for span in spans.values() if who(span) == ("conclave-party", name)]
        blocks = [span for span in own if span["name"] == "block"]
        assert {int(span["tells"]["conclave.batch"]) for span in blocks} == set(range(10))
        assert all(span["tells"]["conclave.made"] and int(span["tells"]["conclave.bytes"]) > 0 for span in blocks)
        assert {tuple(above(spans, span)) for span in blocks} == {("run", "stage aggregate", "call Answer", "Answer")}
        (training,) = (span for span in own if span["name"] == "training")
        assert above(spans, training) == ["run", "stage train", "call Train", "Train"]
        assert {"Describe", "Join", "Provide", "Train", "Answer", "Attest", "Leave"} <= {span["name"] for span in own}
    calls = [span for span in spans.values() if span["name"].startswith("call ")]
    assert {span["tells"]["conclave.outcome"] for span in calls} == {"answered"}
    assert {span["tells"]["conclave.party"] for span in calls} == set(told.parties)


def test_nothing_is_in_them_but_what_is_listed(told):
    keys = {f"conclave.{name}" for name in ATTRIBUTES}
    everything = "".join((told.folder / f"{name}.jsonl").read_text() for name in ("coordinator", *told.parties))
    for line in everything.splitlines():
        for resource in json.loads(line)["resourceSpans"]:
            assert set(resource) == {"resource", "scopeSpans"}
            assert set(plain(resource["resource"])) <= {"service.name", "conclave.party"}
            for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
                assert set(plain(span)) <= keys
                assert not {"events", "traceState"} & set(span)
                assert set(span.get("status", {})) <= {"code"}
    letters = (told.folder / "letters.jsonl").read_text()
    words = {word for line in letters.splitlines() for word in json.loads(line)["text"].split()}
    assert not [word for word in words if word in everything]
    assert str(told.folder) not in everything


def test_a_resumed_run_goes_on_in_the_same_trace_and_shows_the_rounds_of_its_sum(scenes, told):
    dying = ("coordinator.federation.sum_attempt:SumRun._survivors", "after", "1")
    arguments = ["run", told.plan(privacy=SECURELY), "--output", "securely", "--traces", "coordinator.jsonl"]
    assert told.coordinator(*arguments, dying=dying).wait(120) == -signal.SIGKILL
    run = told.started("securely")
    code, said = told.outcome(traced(told, "resume", run))
    assert code == 0, said
    spans = spans_of(scenes, told, run)
    (root,) = (span for span in spans.values() if span["name"] == "run")
    trace, first = ids_of(run, 0)
    (link,) = root["links"]
    assert (int(link["traceId"], 16), int(link["spanId"], 16)) == (trace, first)
    assert int(root["tells"]["conclave.resumed"]) == 1
    for name in told.parties:
        own = [span for span in spans.values() if who(span) == ("conclave-party", name)]
        rounds = [span for span in own if span["name"] == "SecureSum"]
        heard = {span["tells"]["conclave.round"] for span in rounds}
        assert {"advertise", "share", "mask", "consent", "reveal"} <= heard
        after = [span for span in rounds if span["tells"]["conclave.round"] in ("consent", "reveal")]
        assert all(above(spans, span) == ["run", "stage aggregate", "call SecureSum"] for span in after)


def test_a_collector_that_does_not_answer_changes_nothing(calm, undisturbed):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nowhere = f"http://127.0.0.1:{silent.getsockname()[1]}"
        code, said = calm.outcome(calm.coordinator("run", calm.plan(), "--output", "dead", "--traces", nowhere))
    assert code == 0, said
    assert calm.student("dead") == undisturbed.student
