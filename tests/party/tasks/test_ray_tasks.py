"""Teachers on several machines of a site: the answers of one machine, and nothing left of what was between."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from learning.embeddings.weights import to_bytes
from learning.text.words import Vocabulary
from party.config import PartyConfig, PolicyTable
from party.errors import TrainingError
from party.shard_table import ShardTable
from party.tasks import ray_tasks
from party.tasks.job import Job, Spread
from party.tasks.process import attempt
from party.tasks.ray_tasks import do
from party.tasks.result import load_counts
from party.tasks.teachers.request import TeachersWork

WORDS = ("apple", "bread", "cheese", "door", "egg", "fish")
TEACHERS = 5


class Site:
    """Machines of a site that are this one: they do one part after another, the last first."""

    def __init__(self):
        self.asked = []

    def done(self, address, jobs):
        for path in reversed(jobs):
            self.asked.append((address, Path(path).stat().st_mode & 0o777, json.loads(Path(path).read_text())["part"]))
            do(path)
            yield path


@pytest.fixture
def site(monkeypatch):
    found = Site()
    monkeypatch.setattr(ray_tasks, "find_spreader", lambda: found)
    return found


@pytest.fixture
def job(tmp_path, releases, reference):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 12)) for _ in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "vocabulary").write_bytes(Vocabulary(WORDS).to_bytes())
    (tmp_path / "reference").write_bytes(to_bytes(reference()))
    (tmp_path / "run").mkdir()
    return Job(
        parent=os.getpid(),
        shard=ShardTable(source=str(tmp_path / "rows.jsonl")).model_dump(),
        policy=PolicyTable(epsilon=1.0, delta=1e-6, recipes=["dped"]).model_dump(),
        record="document",
        by_user=False,
        release=releases("joint")[0].SerializeToString().hex(),
        cache=str(tmp_path / "cache"),
        result=str(tmp_path / "run" / "result.npz"),
        census=str(tmp_path / "run" / "census"),
        census_key="0" * 64,
        work=TeachersWork(
            vocabulary=str(tmp_path / "vocabulary"),
            window=2,
            teachers=TEACHERS,
            reference=str(tmp_path / "reference"),
            alignment="initialisation",
            queries=[5, 0, 1, 3],
            classes=[0, 2, 4],
            layers=["centre", "context"],
            vote="probable",
            seed=7,
            slot_key="1" * 64,
            training="",
            training_key="",
            expected_batch=2.0,
            learning_rate=0.5,
        ),
    )


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_answers_are_those_of_one_machine_and_nothing_between_is_left(site, job, tmp_path):
    assert attempt(job, lambda percent: None) is None
    alone = load_counts(Path(job.result)).toarray()
    census = files(tmp_path / "run")["census"]
    for each in (tmp_path / "run").iterdir():
        each.unlink()
    told = []
    assert attempt(replace(job, spread=Spread("head:6379", 2)), told.append) is None
    assert np.array_equal(load_counts(Path(job.result)).toarray(), alone)
    assert np.count_nonzero(alone)
    assert files(tmp_path / "run").keys() == {"census", "result.npz"}
    assert files(tmp_path / "run")["census"] == census
    assert site.asked == [("head:6379", 0o600, [2, 5]), ("head:6379", 0o600, [0, 2])]
    assert told == [50, 99]


@pytest.mark.slow
def test_a_part_that_fails_says_what_one_machine_would(site, job, tmp_path):
    job = replace(job, shard=job.shard | {"source": str(tmp_path / "gone.jsonl")})
    alone = attempt(replace(job, census=""), lambda percent: None)
    assert alone is not None
    assert attempt(replace(job, census="", spread=Spread("auto", 3)), lambda percent: None) == alone
    assert files(tmp_path / "run") == {}
    assert len(site.asked) == 1


def test_a_machine_that_does_not_see_the_folder_is_named(tmp_path):
    with pytest.raises(TrainingError, match=r"cannot read .*gone \(No such file or directory\).*share"):
        do(str(tmp_path / "gone" / "job"))


def test_the_spreader_is_the_one_of_the_ray_clusters():
    from deploy.spreading import RaySpreader

    assert isinstance(ray_tasks.find_spreader(), RaySpreader)


def test_a_job_says_where_its_teachers_are_spread(job):
    spread = replace(job, spread=Spread("auto", 4), part=(1, 3))
    assert Job.from_json(spread.to_json().encode()) == spread


@pytest.mark.parametrize("address", ["head", "ray://head:1", "head:port"])
def test_a_party_file_names_a_cluster_that_can_be(address):
    tables = {
        "name": "north",
        "shard": {"source": "notes.jsonl"},
        "policy": {"epsilon": 1.0, "delta": 1e-6, "recipes": ["dped"]},
    }
    assert PartyConfig.model_validate({**tables, "cluster": {"tasks": 4}}).cluster.address == "auto"
    with pytest.raises(ValueError, match="address"):
        PartyConfig.model_validate({**tables, "cluster": {"address": address}})
