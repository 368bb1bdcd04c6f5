"""The node over real gRPC: what it does when asked rightly, and the one sentence it says when not."""

import asyncio
import copy
import hashlib
import os
import stat
import subprocess
import sys

import grpc
import numpy as np
import psutil
import pytest
from dp_accounting import SelfComposedDpEvent
from grpc_health.v1 import health_pb2, health_pb2_grpc
from scipy import sparse

from aggregation.accounting.events import leaves
from aggregation.mechanisms.counts import CountsMechanism
from aggregation.noise.stream import NoiseStream
from learning.embeddings.cooccurrence import unit_counts
from learning.text.words import Vocabulary, tokenize
from party.errors import PartyError
from party.ledger.accounts import read_account
from party.node.lifecycle import start
from party.node.training import Training
from party.releasing import answers as answers_module
from party.releasing.answers import noised
from party.releasing.mechanisms import mechanism_of
from party.tasks import process
from party.tasks.job import Failure
from party.tasks.result import load_counts
from protos import PROTOCOL_VERSION, software_version
from protos.conclave.v1 import party_pb2
from protos.identity.credentials import bearer
from protos.refusal import Reason, Refusal

TEXTS = ("apple bread cheese", "door egg fish apple", "bread bread cheese door", "fish egg apple apple unknown")
SIMULATED = {"policy": {"simulation": True}}

either_way = pytest.mark.parametrize("dials", ["listens", "dials"], indirect=True)
"""Do a test with a party at a port, and with one that dials."""


async def refused(waiting):
    with pytest.raises(Refusal) as refusal:
        await waiting
    assert refusal.value.sentence
    assert "\n" not in refusal.value.sentence
    assert "Traceback" not in refusal.value.sentence
    return refusal.value


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_it_says_who_it_is_and_what_the_policy_lets_it_tell(opened):
    caller = await opened(policy={"tell": ["size-to-nearest-1000"], "declared_size": 7330})
    described = await caller.describe()
    assert described.name == "north"
    assert described.protocol_version == PROTOCOL_VERSION
    assert list(described.trains) == [
        "cooccurrence", "moments", "teachers", "step", "text_model", "ensemble", "tokens", "codes",
        "grading", "language_teachers", "samples",
    ]  # fmt: skip
    assert dict(described.facts) == {"size-to-nearest-1000": "7000"}


@pytest.mark.usefixtures("trains_here")
async def test_it_tells_no_size_unasked(opened):
    assert not (await (await opened(policy={"declared_size": 7330})).describe()).facts


@pytest.mark.slow
async def test_what_it_answers_is_the_bounded_counts_plus_its_noise(opened, terms):
    """With reproducible noise the noise can be taken off again; what is left must be the clipped counts themselves."""
    caller = await opened(plan=terms(insecure_reproducible_noise=True), **SIMULATED)
    await caller.ready()
    first, second = await caller.answer(caller.batch(0, 0, 4), caller.batch(1, 4, 6))
    mechanism = CountsMechanism(4.0, 64, 1.0, 2)
    clean = bounded(caller, mechanism)
    for batch, rows, block in [(0, slice(0, 4), first), (1, slice(4, 6), second)]:
        stream = NoiseStream.insecure(7, "north", "counts", str(batch))
        noise = mechanism.noise_share(block.shape, stream)
        np.testing.assert_array_equal(block - noise, clean[rows])


def bounded(caller, mechanism):
    """The noise-free counts that this party answers with, [words, words]."""
    vocabulary = Vocabulary(caller.vocabulary.words)
    units = [[vocabulary.encode(tokenize(text))] for text in TEXTS]
    return mechanism.contribute(unit_counts(units, 6, 2)).toarray().reshape(6, 6)


@pytest.mark.usefixtures("trains_here")
async def test_real_noise_differs_between_batches_of_a_release(opened):
    """Rows of the same noise would show the difference of their counts."""
    caller = await opened()
    await caller.ready()
    first, second = await caller.answer(caller.batch(0, 0, 3), caller.batch(1, 3, 6))
    clean = bounded(caller, CountsMechanism(4.0, 64, 1.0, 2))
    one, two = first - clean[:3], second - clean[3:]
    assert one.any()
    assert two.any()
    assert (one != two).sum() > 12  # of 18; of a deviation of 45, two are equal once in 160


@pytest.mark.usefixtures("trains_here")
async def test_real_noise_differs_between_releases_of_the_same_text(opened):
    caller = await opened()
    await caller.ready()
    (one,) = await caller.answer(caller.batch(0, 0, 6))
    await caller.leave()
    caller.run.run_id = "run-2"
    await caller.ready()
    (two,) = await caller.answer(caller.batch(0, 0, 6))
    assert (one != two).any()


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_a_batch_asked_again_is_the_same_bytes_at_no_cost(opened, tmp_path):
    caller = await opened()
    await caller.ready()
    (one,) = await caller.answer(caller.batch(0, 0, 3))
    (two,) = await caller.answer(caller.batch(0, 0, 3))
    np.testing.assert_array_equal(one, two)
    assert len(read_account(tmp_path / "north.party" / "ledger.sqlite", "north").reservations) == 1


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_a_batch_is_the_same_after_the_node_was_ended_and_its_blocks_lost(opened, tmp_path):
    caller = await opened()
    await caller.ready()
    (one,) = await caller.answer(caller.batch(0, 0, 3))
    await caller.node.stop()
    for path in (tmp_path / "north.party" / "runs").rglob("*.block"):
        path.unlink()
    again = await opened()
    (two,) = await again.answer(again.batch(0, 0, 3))
    np.testing.assert_array_equal(one, two)


@either_way
@pytest.mark.parametrize(("number", "start", "stop"), [(0, 0, 4), (1, 0, 3), (1, 2, 6), (7, 1, 2)])
@pytest.mark.usefixtures("trains_here")
async def test_a_row_is_never_noised_twice(opened, number, start, stop):
    caller = await opened()
    await caller.ready()
    await caller.answer(caller.batch(0, 0, 3))
    assert (await refused(caller.answer(caller.batch(number, start, stop)))).reason == Reason.CONFLICT


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_the_event_is_in_the_ledger_before_anything_leaves(opened, tmp_path, monkeypatch):
    caller = await opened()
    await caller.ready()

    def broken(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(answers_module, "noised", broken)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await caller.answer(caller.batch(0, 0, 3))
    assert error.value.code() == grpc.StatusCode.INTERNAL
    assert error.value.details() == "party north failed in Answer; its own log says why."
    assert len(read_account(tmp_path / "north.party" / "ledger.sqlite", "north").reservations) == 1


@pytest.mark.usefixtures("trains_here")
async def test_what_text_was_opened_for_is_charged_before_it_is_and_not_again_by_its_answers(
    opened, tmp_path, monkeypatch
):
    seen = []
    monkeypatch.setattr(process, "finished", _watched(process.finished, lambda: seen.append(charged(tmp_path))))
    caller = await opened()
    await caller.join()
    await caller.provide()
    assert charged(tmp_path) == []
    await caller.train()
    assert seen == [charged(tmp_path)]
    assert [release for _, release, _ in charged(tmp_path)] == ["counts"]
    await caller.answer(caller.batch(0, 0, 6))
    assert seen == [charged(tmp_path)]


def _watched(does, first):
    def watched(*given):
        first()
        return does(*given)

    return watched


@pytest.mark.usefixtures("trains_here")
async def test_a_charge_is_for_one_request_and_a_killed_node_trains_no_other_for_it(opened, tmp_path):
    caller = await (await opened()).ready()
    for path in (tmp_path / "north.party" / "runs").rglob("*.operation.json"):
        path.unlink()  # as a node does that was killed before it was done
    refusal = await refused(caller.train(window=3))
    assert refusal.reason == Reason.CONFLICT
    assert "charged for another training" in refusal.sentence
    assert (await caller.train("another-name"))[-1].finished
    assert len(charged(tmp_path)) == 1


@either_way
@pytest.mark.parametrize(
    ("start", "stop", "release", "said"),
    [
        (0, 7, "counts", "not in 0 to 6"),
        (3, 3, "counts", "not in 0 to 6"),
        (5, 2, "counts", "not in 0 to 6"),
        (0, 1, "votes", "no release"),
    ],
)
@pytest.mark.usefixtures("trains_here")
async def test_rows_and_releases_that_are_not_there(opened, start, stop, release, said):
    caller = await opened()
    await caller.ready()
    refusal = await refused(caller.answer(caller.batch(0, start, stop, release)))
    assert (refusal.reason, said in refusal.sentence) == (Reason.REQUEST, True)


@pytest.mark.usefixtures("trains_here")
async def test_a_wrong_digest_is_refused(opened):
    caller = await opened()
    await caller.ready()
    batch = caller.batch(0, 0, 3)
    batch.digest = b"x" * 32
    assert "digest" in (await refused(caller.answer(batch))).sentence


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_nothing_is_answered_before_training(opened):
    caller = await opened()
    await caller.join()
    assert "not trained yet" in (await refused(caller.answer(caller.batch(0, 0, 3)))).sentence


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_an_older_and_a_newer_protocol_are_refused_with_both_versions(opened):
    caller = await opened()
    for other, word in ((0, "an older"), (PROTOCOL_VERSION - 1, "an older"), (PROTOCOL_VERSION + 1, "a newer")):
        refusal = await refused(caller.join(protocol_version=other))
        assert refusal.reason == Reason.PROTOCOL
        both = (
            f"speaks {word} protocol ({other}); party north speaks {PROTOCOL_VERSION} (Conclave {software_version()})"
        )
        assert both in refusal.sentence


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_a_wrong_plan_hash_is_refused(opened):
    caller = await opened()
    caller.run.plan_hash = b"x" * 32
    refusal = await refused(caller.join())
    assert refusal.reason == Reason.PLAN
    assert "hash" in refusal.sentence


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_a_call_under_another_plan_is_refused(opened):
    caller = await opened()
    await caller.join()
    caller.run.plan_hash = b"x" * 32
    assert (await refused(caller.provide())).reason == Reason.PLAN


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_a_rule_of_the_policy_travels_with_its_name(opened, terms):
    caller = await opened(plan=terms(recipe="swing"))
    refusal = await refused(caller.join())
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "recipes")


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_a_party_that_cannot_pay_refuses_to_join(opened):
    caller = await opened(policy={"epsilon": 2.0})
    assert (await refused(caller.join())).reason == Reason.BUDGET


@either_way
@pytest.mark.parametrize("run_id", ["", "../../etc", "a/b", "A", "x" * 65, ".", "run\n"])
@pytest.mark.usefixtures("trains_here")
async def test_a_run_id_cannot_name_a_path(opened, tmp_path, run_id):
    caller = await opened()
    caller.run.run_id = run_id
    assert (await refused(caller.join())).reason == Reason.REQUEST
    assert not any((tmp_path / "north.party" / "runs").iterdir())


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_verbs_of_a_run_that_is_not_joined_are_refused(opened):
    caller = await opened()
    for waiting in (caller.provide(), caller.train(), caller.answer(caller.batch(0, 0, 1))):
        assert (await refused(waiting)).reason == Reason.NOT_JOINED
    await caller.leave()


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_leaving_removes_the_counts_and_the_run_stays_ended(opened, tmp_path):
    caller = await opened()
    await caller.ready()
    await caller.answer(caller.batch(0, 0, 3))
    await caller.leave()
    assert not any((tmp_path / "north.party" / "runs").iterdir())
    assert (await refused(caller.join())).reason == Reason.NOT_JOINED
    assert len(read_account(tmp_path / "north.party" / "ledger.sqlite", "north").reservations) == 1


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_an_artefact_is_sent_once(opened):
    caller = await opened()
    await caller.join()
    assert not (await caller.provide()).known
    assert (await caller.provide()).known


def of_run(caller, name):
    """The same caller in another run of the same plan."""
    other = copy.copy(caller)
    other.run = party_pb2.RunContext(run_id=name, plan_hash=caller.run.plan_hash)
    return other


@pytest.mark.usefixtures("trains_here")
async def test_what_other_runs_were_given_is_not_told_and_is_on_the_disk_once(opened, tmp_path):
    one = await opened()
    two = of_run(one, "run-2")
    for caller in (one, two):
        await caller.join()
        assert not (await caller.provide()).known
    first, second = (tmp_path / "north.party/runs").glob("*/*.artefact")
    assert first.samefile(second)
    await one.leave()
    assert [path.parent.name for path in (tmp_path / "north.party/runs").glob("*/*.artefact")] == ["run-2"]
    await two.train()
    await two.leave()
    assert not any(path.is_file() for path in (tmp_path / "north.party/runs").rglob("*"))


@pytest.mark.usefixtures("trains_here")
async def test_a_run_leaves_no_more_artefacts_than_the_party_allows(opened, tmp_path):
    caller = await opened(limits={"artefact_mib": 1, "run_artefacts_mib": 2})
    other = of_run(caller, "run-2")
    for each in (caller, other):
        await each.join()
    parts = [bytes([number]) * 2**19 for number in range(5)]
    for part in parts[:4]:
        await caller.provide(part, kind="texts")
    for kind in ("texts", "parameters", "model"):
        refusal = await refused(caller.provide(parts[4], kind=kind))
        assert refusal.reason == Reason.ARTEFACT
        assert "run run-1 would leave 5 artefacts" in refusal.sentence
        assert "2 MiB ([limits] run_artefacts_mib in the party file)" in refusal.sentence
    assert (await caller.provide(parts[0], kind="texts")).known
    several = [other.provide(part, kind="texts") for part in parts]
    outcomes = await asyncio.gather(*several, return_exceptions=True)
    assert sum(isinstance(each, Refusal) for each in outcomes) == 1
    assert len(list((tmp_path / "north.party/runs/run-2").glob("*.artefact"))) == 4


@pytest.mark.usefixtures("trains_here")
async def test_small_artefacts_are_counted_too(opened, monkeypatch):
    monkeypatch.setattr("party.store.artefacts.MOST_ARTEFACTS", 3)
    caller = await opened()
    await caller.join()
    for number in range(3):
        await caller.provide(str(number).encode(), kind="texts")
    assert "would leave 4 artefacts" in (await refused(caller.provide(b"3", kind="texts"))).sentence


@either_way
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "pickle"}, 'kind "pickle"'),
        ({"sha256": b"short"}, "32 bytes"),
        ({"sha256": b"x" * 32}, "SHA-256"),
        ({"size": 3}, "more than the 3 bytes"),
        ({"size": 30_000}, "of the 30000"),
        ({"size": 2**40}, "over the limit"),
    ],
)
@pytest.mark.usefixtures("trains_here")
async def test_an_artefact_that_is_not_what_it_says_is_not_kept(opened, tmp_path, change, said):
    caller = await opened()
    await caller.join()
    refusal = await refused(caller.provide(**change))
    assert refusal.reason == Reason.ARTEFACT
    assert said in refusal.sentence
    assert not list((tmp_path / "north.party/runs/run-1").glob("*.artefact*"))


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_a_message_over_the_limit_is_refused(opened):
    caller = await opened()
    await caller.join()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await caller.provide(b"x" * (5 * 1024 * 1024))
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_the_same_operation_is_trained_once(opened, tmp_path, monkeypatch):
    caller = await opened()
    await caller.ready()
    counts = next((tmp_path / "north.party" / "runs").rglob("*.counts.npz"))
    before = counts.stat().st_mtime_ns
    progress = await caller.train()
    assert [each.finished for each in progress] == [True]
    assert counts.stat().st_mtime_ns == before


@pytest.mark.usefixtures("trains_here")
async def test_an_operation_id_stands_for_one_request(opened):
    caller = await opened()
    await caller.ready()
    assert (await refused(caller.train(window=3))).reason == Reason.CONFLICT


@pytest.mark.usefixtures("trains_here")
async def test_a_release_is_trained_once(opened):
    """Rows answered from two different countings of one release would be two releases for the price of one."""
    caller = await opened()
    await caller.ready()
    assert (await refused(caller.train("counts-1"))).reason == Reason.CONFLICT


@pytest.mark.usefixtures("trains_here")
async def test_a_release_that_was_answered_is_not_trained_again(opened, tmp_path):
    caller = await opened()
    await caller.ready()
    await caller.answer(caller.batch(0, 0, 3))
    for path in (tmp_path / "north.party" / "runs").rglob("*.json"):
        path.unlink()
    assert (await refused(caller.train())).reason == Reason.CONFLICT


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_callers_of_one_operation_share_it(opened):
    caller = await opened()
    await caller.join()
    await caller.provide()
    both = await asyncio.gather(caller.train(), caller.train())
    assert all(progress[-1].finished for progress in both)


@pytest.mark.usefixtures("trains_here")
async def test_one_thing_is_trained_at_a_time(opened, monkeypatch):
    here, going, most = Training._work, 0, 0

    async def watched(training, job, charge):
        nonlocal going, most
        going += 1
        most = max(most, going)
        await asyncio.sleep(0.05)
        done = await here(training, job, charge)
        going -= 1
        return done

    monkeypatch.setattr(Training, "_work", watched)
    first = await opened()
    second = await opened(node=first.node)
    second.run.run_id = "run-2"
    for caller in (first, second):
        await caller.join()
        await caller.provide()
    both = await asyncio.gather(first.train(), second.train())
    assert all(progress[-1].finished for progress in both)
    assert most == 1


@either_way
@pytest.mark.usefixtures("trains_here")
async def test_a_caller_that_goes_away_finds_its_training_again(opened, monkeypatch):
    here, begun = Training._work, []

    async def slow(training, job, charge):
        begun.append(job)
        await asyncio.sleep(0.3)
        return await here(training, job, charge)

    monkeypatch.setattr(Training, "_work", slow)
    caller = await opened()
    await caller.join()
    await caller.provide()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(caller.train(), 0.1)
    assert (await caller.train())[-1].finished
    assert len(begun) == 1


@pytest.mark.usefixtures("trains_here")
async def test_training_without_the_vocabulary_is_refused(opened):
    caller = await opened()
    await caller.join()
    assert (await refused(caller.train())).reason == Reason.ARTEFACT


@pytest.mark.parametrize(("window", "operation"), [(0, "a"), (10**6, "a"), (2, "../a"), (2, "")])
@pytest.mark.usefixtures("trains_here")
async def test_a_task_that_makes_no_sense_is_refused(opened, window, operation):
    caller = await opened()
    await caller.join()
    await caller.provide()
    assert (await refused(caller.train(operation, window=window))).reason == Reason.REQUEST


@pytest.mark.usefixtures("trains_here")
async def test_a_shard_that_cannot_be_read_is_named_in_a_simulation_alone(opened, tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    caller = await opened(shard={"source": "latin.txt"}, **SIMULATED)
    await caller.join()
    await caller.provide()
    refusal = await refused(caller.train())
    assert refusal.reason == Reason.SHARD
    assert "latin.txt" in refusal.sentence
    await caller.node.stop()
    private = await opened(shard={"source": "latin.txt"}, folder="private")
    await private.ready()
    assert (await private.answer(private.batch(0, 0, 6)))[0].any()  # noise alone


@pytest.mark.usefixtures("trains_here")
@pytest.mark.parametrize("simulated", [True, False])
async def test_an_empty_shard_is_refused_naming_the_source_in_a_simulation_alone(opened, tmp_path, simulated):
    rows = tmp_path / "one.jsonl"
    rows.write_text('{"text": "apple bread"}\n')
    shards = [{"source": "one.jsonl", "part": {"parts": 2, "part": n}} for n in range(2)]
    said = []
    for number, shard in enumerate(shards):
        caller = await opened(shard=shard, folder=f"party-{number}", **(SIMULATED if simulated else {}))
        await caller.join()
        await caller.provide()
        said += await asyncio.gather(caller.train(), return_exceptions=True)
    refusals = [each for each in said if isinstance(each, Refusal)]
    assert [each.reason for each in refusals] == [Reason.SHARD] * simulated
    assert all("empty" in each.sentence and "one.jsonl" in each.sentence for each in refusals)


@pytest.mark.usefixtures("trains_here")
async def test_a_vocabulary_that_is_none_fails_at_training_with_a_sentence(opened):
    caller = await opened()
    await caller.join()
    caller.vocabulary = type("Broken", (), {"sha256": None, "to_bytes": lambda self: b"not a vocabulary"})()
    content = caller.vocabulary.to_bytes()
    await caller.provide(content)
    caller.vocabulary.sha256 = hashlib.sha256(content).digest()
    refusal = await refused(caller.train())
    assert refusal.reason == Reason.ARTEFACT
    assert "vocabulary" in refusal.sentence


@pytest.mark.usefixtures("trains_here")
async def test_without_the_token_every_verb_is_refused(opened):
    caller = await opened(token="secret")
    await caller.describe()
    for token in ("", "other", "secre"):
        stranger = await opened(node=caller.node, token=token)
        for waiting in (
            stranger.describe(),
            stranger.join(),
            stranger.leave(),
            stranger.provide(),
            stranger.train(),
            stranger.answer(stranger.batch(0, 0, 1)),
        ):
            assert (await refused(waiting)).reason == Reason.AUTHENTICATION


@pytest.mark.usefixtures("trains_here")
async def test_a_token_given_twice_is_none(opened):
    caller = await opened(token="secret")
    with pytest.raises(grpc.aio.AioRpcError):
        await caller.stub.Describe(party_pb2.DescribeRequest(), metadata=bearer("other") + bearer("secret"))


@pytest.mark.usefixtures("trains_here")
async def test_health_is_served_to_whoever_may_ask_and_to_nobody_else(opened):
    caller = await opened(token="secret")
    health = health_pb2_grpc.HealthStub(caller.channel)
    for service in ("", "conclave.v1.Party"):
        asked = health_pb2.HealthCheckRequest(service=service)
        answer = await health.Check(asked, metadata=bearer("secret"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await health.Check(asked)
        assert failure.value.code() == grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await health.Watch(asked).read()
        assert failure.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.slow
async def test_what_it_keeps_is_private(opened, tmp_path):
    caller = await opened()
    await caller.ready()
    await caller.answer(caller.batch(0, 0, 3))
    home = tmp_path / "north.party"
    for path in [home, *home.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.usefixtures("trains_here")
async def test_a_port_in_use_is_one_sentence(opened, config, tmp_path):
    caller = await opened()
    busy = config(listen=f"127.0.0.1:{caller.node.port}", folder="other")
    with pytest.raises(PartyError, match=rf"cannot listen on 127.0.0.1:{caller.node.port}: address already in use"):
        await start(busy, token="t", base=tmp_path)
    await (await start(config(folder="other"), token="t", base=tmp_path)).stop()


async def test_stopping_ends_training_and_leaves_no_process(opened, tmp_path):
    rows = tmp_path / "long.jsonl"
    rows.write_text('{"text": "apple bread cheese door egg fish"}\n' * 200_000)
    caller = await opened(shard={"source": "long.jsonl"})
    await caller.join()
    await caller.provide()
    training = asyncio.create_task(caller.train())
    for _ in range(200):
        children = [each for each in psutil.Process().children() if "party.tasks.process" in " ".join(each.cmdline())]
        if children:
            break
        await asyncio.sleep(0.05)
    assert children
    await caller.node.stop()
    with pytest.raises((grpc.aio.AioRpcError, Refusal)):
        await training
    psutil.wait_procs(children, timeout=5)
    assert not any(each.is_running() for each in children)


async def teaching(opened, terms, releases, *words, insecure=False, **changes):
    """A caller whose party has trained teachers for the release that is answered."""
    plan = terms(releases=releases(*words), epsilon=20.0, insecure_reproducible_noise=insecure)
    policy = {"epsilon": 90.0, "clear_votes": True, "simulation": insecure}
    caller = await opened(plan=plan, policy=policy, **changes)
    await caller.ready_to_teach()
    await caller.teach(release=plan.releases[-1].name)
    return caller


def charged(tmp_path):
    """What the ledger shows: run, release and event of everything that costs anything, in order."""
    account = read_account(tmp_path / "north.party" / "ledger.sqlite", "north")
    return [(each.run, each.release, each.event) for each in account.reservations if list(leaves(each.event))]


def stored(tmp_path, release):
    (path,) = (tmp_path / "north.party" / "runs").rglob(f"{release}.counts.npz")
    return load_counts(path).toarray()


@pytest.mark.slow
@pytest.mark.usefixtures("trains_here")
async def test_answers_of_teachers_are_their_bounded_sum_plus_this_partys_noise(opened, terms, releases, tmp_path):
    caller = await teaching(opened, terms, releases, "joint", insecure=True)
    blocks = await caller.answer(caller.batch(0, 0, 3, "answers"), caller.batch(1, 3, 4, "answers"), columns=11)
    mechanism = mechanism_of(releases("joint")[0])
    for number, (rows, block) in enumerate(zip((slice(0, 3), slice(3, 4)), blocks, strict=True)):
        noise = mechanism.noise_share(block.shape, NoiseStream.insecure(7, "north", "answers", str(number)))
        assert (noise != 0).mean() > 0.9
        np.testing.assert_array_equal(block - noise, stored(tmp_path, "answers")[rows])


@pytest.mark.slow
@pytest.mark.usefixtures("trains_here")
async def test_all_queries_are_charged_before_the_first_answer_leaves(opened, terms, releases, tmp_path):
    caller = await teaching(opened, terms, releases, "joint")
    (one,) = await caller.answer(caller.batch(0, 0, 1, "answers"), columns=11)
    event = SelfComposedDpEvent(mechanism_of(releases("joint")[0]).event(), 4)
    assert charged(tmp_path) == [("run-1", "answers", event)]
    (again,) = await caller.answer(caller.batch(0, 0, 1, "answers"), columns=11)
    await caller.answer(caller.batch(1, 1, 4, "answers"), columns=11)
    np.testing.assert_array_equal(one, again)
    assert charged(tmp_path) == [("run-1", "answers", event)]
    assert (await refused(caller.answer(caller.batch(2, 0, 1, "answers"), columns=11))).reason == Reason.CONFLICT


@pytest.mark.usefixtures("trains_here")
async def test_thresholded_votes_come_in_clear_and_their_cap_is_charged(opened, terms, releases, tmp_path):
    caller = await teaching(opened, terms, releases, "thresholded")
    (votes,) = await caller.answer(caller.batch(0, 0, 4, "votes"), columns=2)
    np.testing.assert_array_equal(votes, stored(tmp_path, "votes"))
    assert set(votes.ravel()) <= {0, 1, 2}
    assert charged(tmp_path) == [("run-1", "votes", mechanism_of(releases("thresholded")[0]).event())]


@pytest.mark.slow
@pytest.mark.usefixtures("trains_here")
async def test_private_training_is_charged_before_it_begins_and_its_answers_are_free(
    opened, terms, releases, tmp_path, monkeypatch
):
    seen = []
    monkeypatch.setattr(process, "finished", _watched(process.finished, lambda: seen.append(charged(tmp_path))))
    event = mechanism_of(releases("training")[0]).event()
    caller = await teaching(opened, terms, releases, "training", "free")
    assert seen == [[("run-1", "training", event)]]
    (one,) = await caller.answer(caller.batch(0, 0, 4, "answers"), columns=11)
    np.testing.assert_array_equal(one, stored(tmp_path, "answers"))
    assert charged(tmp_path) == [("run-1", "training", event)]
    await caller.leave()
    caller.run.run_id = "run-2"
    await caller.ready_to_teach()
    await caller.teach()
    (two,) = await caller.answer(caller.batch(0, 0, 4, "answers"), columns=11)
    assert (one != two).any()
    assert charged(tmp_path) == [("run-1", "training", event), ("run-2", "training", event)]


@pytest.mark.usefixtures("trains_here")
async def test_a_private_training_that_failed_is_trained_again_with_its_own_noise_and_charged_once(
    opened, terms, releases, tmp_path, monkeypatch
):
    here, keys = Training._work, []

    async def fails_once(training, job, charge):
        keys.append(await charge())
        return Failure("TrainingError", "it failed.") if len(keys) == 1 else await here(training, job, charge)

    monkeypatch.setattr(Training, "_work", fails_once)
    caller = await opened(plan=terms(releases=releases("training", "free"), epsilon=20.0), policy={"epsilon": 90.0})
    await caller.ready_to_teach()
    assert (await refused(caller.teach())).reason == Reason.TRAINING
    assert (await caller.teach())[-1].finished
    assert keys[0] == keys[1] != ""
    assert len(charged(tmp_path)) == 1


@pytest.mark.usefixtures("trains_here")
async def test_a_private_training_that_was_answered_from_is_not_trained_again(opened, terms, releases, tmp_path):
    """Two trainings under one draw of noise, both seen, would be two releases for the price of one."""
    caller = await teaching(opened, terms, releases, "training", "free")
    await caller.answer(caller.batch(0, 0, 2, "answers"), columns=11)
    for path in (tmp_path / "north.party" / "runs").rglob("*.json"):
        path.unlink()
    refusal = await refused(caller.teach())
    assert refusal.reason == Reason.CONFLICT
    assert "answered from already" in refusal.sentence


@pytest.mark.usefixtures("trains_here")
async def test_a_private_training_that_was_stored_is_not_trained_again(opened, terms, releases):
    caller = await teaching(opened, terms, releases, "training", "free")
    assert [each.finished for each in await caller.teach()] == [True]
    for changes in ({"operation": "answers-1"}, {"learning_rate": 0.2}):
        assert (await refused(caller.teach(**changes))).reason == Reason.CONFLICT


@pytest.mark.usefixtures("trains_here")
async def test_a_party_that_cannot_pay_for_the_training_refuses_to_join(opened, terms, releases):
    plan = terms(releases=releases("training", "free"), epsilon=20.0)
    caller = await opened(plan=plan, policy={"epsilon": 0.5})
    assert (await refused(caller.join())).reason == Reason.BUDGET


@pytest.mark.parametrize("words", [("joint",), ("thresholded",), ("training", "free")], ids="-".join)
@pytest.mark.usefixtures("trains_here")
async def test_answers_are_the_same_after_the_node_was_ended_and_its_blocks_lost(
    opened, terms, releases, tmp_path, words
):
    caller = await teaching(opened, terms, releases, *words)
    release = caller.plan.terms.releases[-1].name
    columns = 2 if release == "votes" else 11
    (one,) = await caller.answer(caller.batch(0, 0, 3, release), columns=columns)
    before = charged(tmp_path)
    await caller.node.stop()
    for path in (tmp_path / "north.party" / "runs").rglob("*.block"):
        path.unlink()
    again = await opened(plan=caller.plan.terms, policy={"epsilon": 90.0, "clear_votes": True})
    (two,) = await again.answer(again.batch(0, 0, 3, release), columns=columns)
    np.testing.assert_array_equal(one, two)
    assert charged(tmp_path) == before


@pytest.mark.usefixtures("trains_here")
async def test_units_stay_with_their_teachers_from_run_to_run(opened, terms, releases, tmp_path):
    """The key that assigns them is the party's, made once: then one unit more changes one teacher in every run."""
    caller = await teaching(opened, terms, releases, "thresholded")
    key, first = (tmp_path / "north.party" / "slots.key").read_bytes(), stored(tmp_path, "votes")
    await caller.leave()
    caller.run.run_id = "run-2"
    await caller.ready_to_teach()
    await caller.teach(release="votes")
    assert (tmp_path / "north.party" / "slots.key").read_bytes() == key
    np.testing.assert_array_equal(stored(tmp_path, "votes"), first)


@pytest.mark.slow
async def test_teachers_learn_in_a_process_of_their_own(opened, terms, releases, tmp_path):
    """The one test here without `trains_here`: the job, its keys included, goes through the subprocess' pipe."""
    caller = await teaching(opened, terms, releases, "training", "free")
    (block,) = await caller.answer(caller.batch(0, 0, 4, "answers"), columns=11)
    assert (block[:, :3].sum(axis=1) == 2).all()
    home = tmp_path / "north.party"
    for path in [home, *home.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_wrapping_is_modulo_two_to_the_32():
    class Huge:
        def noise_share(self, shape, stream):
            return np.array([[2**31, -(2**31) - 1, 2**33 + 5]])

    clean = sparse.csr_array(np.array([[1, 0, 2]], dtype=np.int64))
    block = noised(clean, Huge(), None)
    assert block.dtype == np.int32
    assert [int(each) % 2**32 for each in block[0]] == [2**31 + 1, 2**31 - 1, 7]


@pytest.mark.slow
def test_the_node_never_imports_torch():
    code = "import sys, party.node.lifecycle, party.console.command, party.actor\n"
    code += "print({'torch', 'datasets'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout.strip() == "set()"
