"""Parties that share an actor give the student of parties that have one each, and the report says that they share."""

import json

import numpy as np
import pytest
from pydantic import ValidationError

from coordinator import api
from coordinator.publishing.report import statement_of
from coordinator.store.output import strangers
from coordinator.store.store import RunStore
from coordinator.systems.registry import plan_of
from deploy import dividing, launch
from party import actor

PARTIES = 16


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """`tables(...)`: of a plan of word counts among sixteen parties, whose noise is from its seed."""
    folder = tmp_path_factory.mktemp("letters")
    words = ("apple", "bread", "cider", "dough", "elder", "flour")
    for name, count in (("letters", 400), ("public", 60)):
        rng = np.random.default_rng(count)
        lines = (json.dumps({"text": " ".join(rng.choice(words, 12))}) for _ in range(count))
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")

    def makes(**federation):
        return {
            "run": {"name": "together", "recipe": "dped", "seed": 7},
            "privacy": {"epsilon": 8.0, "delta": 1e-6, "insecure_reproducible_noise": True},
            "federation": {
                "launch": "ray",
                "shards": {"source": str(folder / "letters.jsonl"), "split": {"by": "hash", "parties": PARTIES}},
            } | federation,
            "vocabulary": {"source": str(folder / "public.jsonl"), "size": 6},
            "dped": {"signals": ["counts"], "dimension": 4, "clip": 10.0},
        }  # fmt: skip

    return makes


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))


def ran(tables, folder):
    result = api.run(plan_of(tables), output=folder)
    store = RunStore(folder)
    try:
        trust = statement_of(store)["privacy"].get("trust_says") or (folder / "student/README.md").read_text()
    finally:
        store.close()
    weights = {path.name: path.read_bytes() for path in result.student.glob("*.safetensors")}
    assert weights
    return weights, trust


@pytest.mark.slow
def test_sixteen_parties_give_the_same_student_in_two_actors_as_in_sixteen(tables, home, tmp_path):
    apart, says_apart = ran(tables(parties_per_actor=1), tmp_path / "apart")
    together, says_together = ran(tables(parties_per_actor=8), tmp_path / "together")
    assert together == apart
    assert strangers(tmp_path / "together") == []
    assert len(list((tmp_path / "together/parties").glob("*/training-1.log"))) == 2, "of each actor its own"
    assert "Shared processes: up to 8 of the simulated parties" in says_together
    assert "Shared processes" not in says_apart


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["trusted-aggregator", "secure-sum"])
def test_parties_of_two_actors_take_the_same_steps_as_those_of_an_actor_each(home, tmp_path, tiny_bert, trust):
    """Under the secure sum so many that they draw a graph, which share more in one actor than in two."""
    parties = 6 if trust == "trusted-aggregator" else 20
    split = {"by": "hash", "parties": parties}
    rng = np.random.default_rng(parties)
    rows = [{"text": f"the film was {rng.choice(['good', 'great'])}", "label": "yes"} for _ in range(20 * parties)]
    rows += [{"text": f"the film was {rng.choice(['bad', 'awful'])}", "label": "no"} for _ in range(20 * parties)]
    rows = [row | {"text": f"{row['text']} {number}"} for number, row in enumerate(rows)]
    (tmp_path / "films.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")

    def makes(most):
        return {
            "run": {"name": "steps", "recipe": "dp_sgd", "seed": 7},
            "privacy": {
                "epsilon": 8.0, "delta": 1e-5, "declared_size": len(rows), "insecure_reproducible_noise": True,
                "trust": trust,
            },
            "federation": {
                "launch": "ray", "parties_per_actor": most,
                "shards": {"source": str(tmp_path / "films.jsonl"), "label": "label", "split": split},
            },
            "text": {"kind": "single", "labels": ["no", "yes"], "longest": 16},
            "model": {"name": str(tiny_bert), "adapt": "head"},
            "dp_sgd": {"form": "federated", "steps": 2, "batch": 100, "clip": 1.0},
        }  # fmt: skip

    first, second = (1, 3) if trust == "trusted-aggregator" else (10, 20)
    apart, _ = ran(makes(first), tmp_path / "apart")
    together, _ = ran(makes(second), tmp_path / "together")
    assert together == apart


@pytest.mark.slow
def test_a_process_of_many_parties_that_cannot_start_one_names_it(tables, home, tmp_path, monkeypatch):
    made = tables(parties_per_actor=16)
    made["federation"]["shards"]["split"]["parties"] = 4
    monkeypatch.setattr(launch, "room_for_files", lambda parties: "too few files")
    with pytest.raises(Exception, match="too few files"):
        api.run(plan_of(made), output=tmp_path / "run")


def test_parties_elsewhere_share_nothing(tables):
    made = tables()
    del made["federation"]["shards"]
    made["federation"] |= {
        "launch": "connect", "parties_per_actor": 4, "parties": [{"name": "north", "address": "north:7443"}],
    }  # fmt: skip
    with pytest.raises(ValidationError, match="parties_per_actor belongs to launch"):
        plan_of(made)


@pytest.mark.parametrize("most", [0, 1001])
def test_so_many_parties_in_an_actor_make_no_sense(tables, most):
    with pytest.raises(ValidationError, match="parties_per_actor"):
        plan_of(tables(parties_per_actor=most))


def test_a_process_may_open_as_many_files_as_its_parties_need_or_says_why_not(monkeypatch):
    seen = []
    monkeypatch.setattr(actor.resource, "getrlimit", lambda what: (100, 2000))
    monkeypatch.setattr(actor.resource, "setrlimit", lambda what, limits: seen.append(limits))
    assert actor.room_for_files(1) is None
    assert seen[-1][0] > 100
    sentence = actor.room_for_files(100_000)
    assert "parties_per_actor" in sentence
    assert "ulimit" in sentence


@pytest.mark.parametrize(("cores", "sizes"), [(1, [4]), (2, [2, 2]), (3, [2, 2]), (4, [1, 1, 1, 1])])
def test_by_default_there_is_an_actor_a_processor(monkeypatch, cores, sizes):
    monkeypatch.setattr(dividing.os, "cpu_count", lambda: cores)
    assert [len(group) for group in dividing.divided([f"p{n}" for n in range(4)], None)] == sizes
