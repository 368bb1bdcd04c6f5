"""What `compare` measures on is what parties would do: the same counts, teachers and bounds, party by party."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.mechanisms.joint import JointMechanism
from aggregation.mechanisms.votes import VotesMechanism
from aggregation.noise.stream import NoiseStream
from coordinator.transport.launchers import SimulationRequest, TeachersWanted, find_launcher
from coordinator.transport.link import Batch
from deploy.simulation import ClearShards
from learning.embeddings.skipgram import SkipGram
from learning.embeddings.weights import to_bytes
from learning.text.words import Vocabulary
from party.config import check_config
from party.releasing.answers import noised
from party.releasing.mechanisms import mechanism_of
from party.shard_table import located
from party.store.keys import insecure_key
from party.tasks.counts.request import CountsWork
from party.tasks.job import Job
from party.tasks.process import work
from party.tasks.result import load_counts
from party.tasks.teachers.request import TeachersWork
from protos.conclave.v1 import party_pb2, plan_pb2

WORDS = ("apple", "bread", "cheese", "door", "egg", "fish")
PARTIES, WINDOW, SEED = 3, 2, 7
RECORDS = ["document", "sentence", "pair"]


@pytest.fixture
def request_for(tmp_path):
    """Makes the request of a simulation of three parties over one source."""
    rng = np.random.default_rng(1)
    rows = [{"text": " ".join(rng.choice(WORDS, 9)) + ". Egg door egg.", "who": f"u{n % 20}"} for n in range(30)]
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def makes(*, record="document", by_user=False):
        shard = {"source": "notes.jsonl", "user": "who"}
        policy = {"epsilon": 8.0, "delta": 1e-6, "recipes": ["dped"], "simulation": True}
        by = {"by": "who"} if by_user else {}
        tables = {
            f"party-{n}": {
                "name": f"party-{n}",
                "shard": shard | {"part": {"parts": PARTIES, "part": n, "seed": SEED} | by},
                "policy": policy,
            }
            for n in range(PARTIES)
        }
        vocabulary = Vocabulary(WORDS).to_bytes()
        return SimulationRequest(tables, tmp_path / "simulation", tmp_path, vocabulary, WINDOW, record, by_user)

    return makes


@pytest.fixture
def stored(tmp_path):
    """What a party's own training leaves on its disk under a release of the plan's terms: integers [rows, columns]."""

    def works(request, name, release, **teaching):
        config = check_config(dict(request.parties[name]), name)
        vocabulary = tmp_path / "vocabulary"
        vocabulary.write_bytes(request.vocabulary)
        words = {"vocabulary": str(vocabulary), "window": request.window}
        job = Job(
            parent=os.getpid(),
            shard=located(config.shard, tmp_path).model_dump(),
            policy=config.policy.model_dump(),
            record=request.record,
            by_user=request.by_user,
            release=release.SerializeToString().hex(),
            cache=str(tmp_path / "cache"),
            result=str(tmp_path / f"{name}.npz"),
            work=TeachersWork(**words, **teaching) if teaching else CountsWork(**words),
        )
        work(job, lambda percent: None)
        return load_counts(Path(job.result)).toarray()

    return works


@pytest.mark.parametrize(("record", "by_user"), [(record, False) for record in RECORDS] + [("document", True)])
def test_clear_counts_bounded_are_what_each_party_stores(request_for, stored, record, by_user):
    request = request_for(record=record, by_user=by_user)
    mechanism = CountsMechanism(clip=2.0, levels=64, noise_multiplier=1.0, shares=PARTIES)
    message = plan_pb2.CountsMechanism(
        clip=2.0, levels=64, noise_multiplier=1.0, shares=PARTIES, distribution="gaussian"
    )
    release = plan_pb2.Release(name="counts", charges=1, form=plan_pb2.FORM_SUMMED, counts=message)
    found = ClearShards(request).counts()
    assert len(found) == PARTIES
    for name, units in zip(request.parties, found, strict=True):
        bounded = mechanism.contribute(units).toarray().reshape(len(WORDS), len(WORDS))
        assert bounded.any()
        np.testing.assert_array_equal(bounded, stored(request, name, release))


@pytest.mark.slow
@pytest.mark.parametrize("alignment", ["initialisation", "procrustes"])
@pytest.mark.parametrize("vote", ["probable", "lift"])
def test_clear_answers_bounded_are_what_each_party_stores_under_reproducible_noise(
    request_for, stored, tmp_path, alignment, vote
):
    request = request_for()
    rng = np.random.default_rng(0)
    inputs, outputs = (rng.normal(0, 0.3, (6, 4)).astype(np.float32) for _ in range(2))
    reference = to_bytes(SkipGram(inputs, outputs, np.zeros(6, np.float32)))
    wanted = TeachersWanted(2, alignment, (4, 0, 1), (5, 1, 2, 3), ("context", "centre"), vote, SEED)
    mechanism = JointMechanism(VotesMechanism(4, 2, 20.0, PARTIES), HiddenMechanism(2, 4, 1.5, 64, 40.0, PARTIES))
    release = plan_pb2.Release(
        name="answers",
        charges=3,
        form=plan_pb2.FORM_SUMMED,
        joint=plan_pb2.JointMechanism(
            votes=plan_pb2.VotesMechanism(classes=4, levels=2, noise=20.0, shares=PARTIES, distribution="gaussian"),
            hidden=plan_pb2.HiddenMechanism(
                layers=2, width=4, clip=1.5, levels=64, noise=40.0, shares=PARTIES, distribution="gaussian"
            ),
        ),
    )
    (tmp_path / "reference").write_bytes(reference)
    sums = []
    for name, signal in zip(request.parties, ClearShards(request).answers(reference, wanted), strict=True):
        teaching = {
            "teachers": 2,
            "reference": str(tmp_path / "reference"),
            "alignment": alignment,
            "queries": [4, 0, 1],
            "classes": [5, 1, 2, 3],
            "layers": ["context", "centre"],
            "vote": vote,
            "seed": SEED,
            "slot_key": insecure_key(SEED, name, "slots").hex(),
            "training": "",
            "training_key": "",
            "expected_batch": 0.0,
            "learning_rate": 0.0,
        }
        sums.append(mechanism.contribute(signal).toarray())
        np.testing.assert_array_equal(sums[-1], stored(request, name, release, **teaching))
    assert (sums[0] != sums[1]).any()


def test_working_files_stay_in_the_requests_folder(request_for, tmp_path):
    request = request_for()
    ClearShards(request).counts()
    assert request.folder.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in tmp_path.iterdir()} == {"notes.jsonl", "simulation"}


def test_a_launcher_of_simulations_gives_it(request_for):
    assert isinstance(find_launcher("ray").simulate(request_for()), ClearShards)


@pytest.fixture
def joined():
    """`joined(link, noise)`: the link, joined to a plan of counts under reproducible noise of that multiplier."""

    async def joins(link, noise):
        counts = plan_pb2.CountsMechanism(
            clip=2.0, levels=64, noise_multiplier=noise, shares=PARTIES, distribution="gaussian"
        )
        release = plan_pb2.Release(name="counts", charges=1, form=plan_pb2.FORM_SUMMED, counts=counts)
        privacy = plan_pb2.Privacy(record=plan_pb2.RECORD_DOCUMENT, insecure_reproducible_noise=True)
        terms = plan_pb2.Terms(recipe="dped", seed=SEED, privacy=privacy, releases=[release])
        await link.join("simulated", plan_pb2.Plan(terms=terms), b"")
        await link.provide("vocabulary", Vocabulary(WORDS).to_bytes())
        request = party_pb2.TrainRequest(operation_id="counts-0")
        request.cooccurrence.release, request.cooccurrence.window = "counts", WINDOW
        request.cooccurrence.vocabulary_sha256 = Vocabulary(WORDS).sha256
        await link.train(request, lambda percent: None)
        (block,) = [each.value async for each in link.answer("counts", [Batch(0, 0, len(WORDS))], len(WORDS))]
        return release, block

    return joins


async def test_a_link_gives_what_its_party_would_send_under_reproducible_noise(request_for, stored, joined):
    request = request_for()
    for link in ClearShards(request).links():
        release, block = await joined(link, 1.0)
        clean = stored(request, link.name, release)
        stream = NoiseStream.insecure(SEED, link.name, "counts", "0")
        np.testing.assert_array_equal(link.bounded("counts").toarray(), clean)
        np.testing.assert_array_equal(block, noised(clean.astype(np.int32), mechanism_of(release), stream))


async def test_plans_that_differ_in_noise_alone_bound_nothing_twice(request_for, joined):
    link, other = ClearShards(request_for()).links()[:2]
    await joined(link, 1.0)
    first = link.bounded("counts")
    await joined(link, 3.0)
    assert link.bounded("counts") is first
    await joined(other, 3.0)
    assert (other.bounded("counts") != first).nnz
