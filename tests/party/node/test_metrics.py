"""A party's figures and logs: of budget, work and traffic, never of its text."""

import asyncio
import json
import socket
import urllib.request

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from aggregation.accounting.price import LifetimeFilter
from party.errors import PartyError
from party.ledger.accounts import read_account
from party.node.lifecycle import start
from party.node.metrics import Metrics
from party.node.training import Training
from party.tasks.job import Failure
from protos.refusal import Refusal
from protos.telemetry.logs import FIELDS

SERVED = {"metrics": {"listen": "127.0.0.1:0"}}


async def figures(port):
    """All samples by name, or by name and the value of their one label."""

    def read():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return answer.read().decode()

    families = text_string_to_metric_families(await asyncio.to_thread(read))
    samples = [each for family in families for each in family.samples if not each.name.endswith("_created")]
    return {(each.name, *each.labels.values()): each.value for each in samples}


@pytest.mark.usefixtures("trains_here")
async def test_the_figures_are_those_of_what_happened(opened, tmp_path):
    caller = await opened(**SERVED)
    port = caller.node.metrics_port
    seen = await figures(port)
    assert seen[("conclave_party_epsilon_cap",)] == 20.0
    assert (seen[("conclave_party_epsilon_spent",)], seen[("conclave_party_runs_open",)]) == (0.0, 0.0)
    whole = seen[("conclave_party_epsilon_left",)]
    assert 0 < whole <= 20.0
    await caller.ready()
    assert (await figures(port))[("conclave_party_runs_open",)] == 1.0
    await caller.answer(caller.batch(0, 0, 3), caller.batch(1, 3, 6))
    await caller.answer(caller.batch(0, 0, 3))
    for _ in range(2):
        with pytest.raises(Refusal):
            await caller.answer(caller.batch(0, 0, 4))
    seen = await figures(port)
    assert seen[("conclave_party_blocks_total", "made")] == 2
    assert seen[("conclave_party_blocks_total", "resent")] == 1
    assert seen[("conclave_party_block_seconds_count",)] == 2
    assert 3 * 72 < seen[("conclave_party_sent_bytes_total",)] < 3 * 150
    assert seen[("conclave_party_trainings_total", "finished")] == 1
    assert seen[("conclave_party_trainings_running",)] == 0
    assert seen[("conclave_party_refusals_total", "conflict")] == 2
    events = [each.event for each in read_account(tmp_path / "north.party" / "ledger.sqlite", "north").reservations]
    own = LifetimeFilter(20.0, 1e-6)
    assert seen[("conclave_party_epsilon_left",)] == pytest.approx(own.left(events))
    assert 0 < seen[("conclave_party_epsilon_spent",)] < 20.0
    await caller.leave()
    seen = await figures(port)
    assert seen[("conclave_party_runs_open",)] == 0.0
    assert 0 < seen[("conclave_party_epsilon_left",)] < whole


async def test_trainings_that_run_and_fail_are_counted(opened, monkeypatch, terms, releases):
    goes_on = asyncio.Event()

    async def fails(training, job, charge):
        await charge()
        await goes_on.wait()
        return Failure("TrainingError", "it failed.")

    monkeypatch.setattr(Training, "_work", fails)
    caller = await opened(
        plan=terms(releases=releases("training", "free"), epsilon=20.0), policy={"epsilon": 90.0}, **SERVED
    )
    await caller.ready_to_teach()
    training = asyncio.create_task(caller.teach())
    while not (await figures(caller.node.metrics_port))[("conclave_party_trainings_running",)]:
        await asyncio.sleep(0.02)
    goes_on.set()
    with pytest.raises(Refusal):
        await training
    seen = await figures(caller.node.metrics_port)
    assert seen[("conclave_party_trainings_running",)] == 0
    assert seen[("conclave_party_trainings_total", "failed")] == 1
    assert seen[("conclave_party_trainings_total", "finished")] == 0
    assert seen[("conclave_party_refusals_total", "training")] == 1
    assert seen[("conclave_party_epsilon_spent",)] > 0, "a training is charged before it opens the shard"


async def test_without_the_table_nothing_is_served(opened):
    caller = await opened()
    assert caller.node.metrics_port == 0
    listening = [each.laddr.port for each in psutil.Process().net_connections("tcp") if each.status == "LISTEN"]
    assert 9464 not in listening


async def test_the_port_is_free_again_when_the_node_ended(opened, config, tmp_path):
    caller = await opened(**SERVED)
    port = caller.node.metrics_port
    await caller.node.stop()
    node = await start(config(metrics={"listen": f"127.0.0.1:{port}"}), token="t", base=tmp_path)
    assert node.metrics_port == port
    await node.stop()


async def test_a_metrics_port_in_use_is_one_sentence_and_the_folder_free_again(config, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PartyError, match=rf"cannot serve metrics on 127.0.0.1:{port}: address already in use"):
            await start(config(metrics={"listen": f"127.0.0.1:{port}"}), token="t", base=tmp_path)
    await (await start(config(), token="t", base=tmp_path)).stop()


def test_every_figure_has_a_name_of_its_own_and_is_described():
    families = list(Metrics().registry.collect())
    assert len({each.name for each in families}) == len(families)
    for family in families:
        assert family.name.startswith("conclave_party_")
        assert family.documentation.endswith(".")
        assert not {"record", "word", "user", "unit", "document"} & set(family.name.split("_"))


@pytest.mark.slow
async def test_the_json_log_tells_events_and_never_the_text(opened, killable, tmp_path):
    log = tmp_path / "log"
    serve = ("-m", "party.console.command", "serve", "--json", "--log-json", "--config")
    with log.open("w") as file:
        process, node = killable(serve, log=file, drain_seconds=0.0)
    caller = await opened(node=node)
    await caller.ready()
    await caller.answer(caller.batch(0, 0, 3))
    with pytest.raises(Refusal):
        await caller.answer(caller.batch(0, 0, 4))
    await caller.leave()
    process.terminate()
    assert await asyncio.to_thread(process.wait, 10) == 0
    text = log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [each["event"] for each in lines if each["event"] != "other"] == [
        "joined",
        "trained",
        "answered",
        "refused",
        "left",
        "draining",
    ]
    by_event = {each["event"]: each for each in lines}
    assert by_event["joined"]["run"] == "run-1"
    assert (
        "joined run run-1 of coordinator coordinator.here: dped, epsilon 8 at delta 1e-06"
        in by_event["joined"]["message"]
    )
    assert "releases counts" in by_event["joined"]["message"]
    assert "a noisy sum of " in by_event["answered"]["message"]
    assert by_event["trained"]["release"] == "counts"
    assert {"release", "batch", "bytes"} <= by_event["answered"].keys()
    assert by_event["refused"]["reason"] == "conflict"
    for each in lines:
        assert each.keys() <= FIELDS | {"time", "level", "event", "message", "logger", "error"}
    for word in ("apple", "bread", "cheese", str(tmp_path)):
        assert word not in text
    own = tmp_path / "north.party" / "training.log"
    assert own.stat().st_mode & 0o777 == 0o600
