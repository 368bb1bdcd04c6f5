"""What simulated parties of one process share of a text model: it is placed and loaded once, and tried once."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from party.shard.memory import Memory
from party.tasks.text import kept
from party.tasks.text.kept import Kept


@pytest.fixture
def done(monkeypatch):
    """What was done, in order; a model is the same where its name is."""
    said = []

    def units_of(reading, model, lesson, found, vectors):
        return getattr(vectors, "keywords", {}).get("agreeing")

    monkeypatch.setattr(kept, "same_model", lambda job, work: work.model)
    monkeypatch.setattr(kept, "placed", lambda model, memory: said.append(f"place {model}") or nullcontext())
    monkeypatch.setattr(kept, "loaded", lambda shard, model, lesson, by_user: said.append(f"load {model}") or object())
    monkeypatch.setattr(kept, "units_of", units_of)
    return said


def stepped(keeps, party, model="one"):
    """A step as `party.tasks.step.training` takes it; what is known of the model's batches."""
    job = SimpleNamespace(reads=f"{party} {model}", memory=0, by_user=False, reading=SimpleNamespace(shard=party))
    work = SimpleNamespace(model=model, lesson=None)
    with keeps.placed(job, work):
        keeps.loaded(job, work)
    return keeps.units(job, work)


def test_a_model_is_placed_loaded_and_tried_once_for_all_parties_of_a_process(done):
    shared = Memory()
    north, south = Kept(shared), Kept(shared)
    tried = stepped(north, "north")
    tried[8] = (16, 4, 1)
    assert stepped(south, "south") is tried
    assert done == ["place one", "load one"]


def test_another_model_is_placed_and_tried_for_itself(done):
    shared = Memory()
    north, south = Kept(shared), Kept(shared)
    tried = stepped(north, "north")
    assert stepped(south, "south", "other") is not tried
    assert stepped(north, "north", "third") is not tried
    assert done == ["place one", "load one", "place other", "load other", "place third", "load third"]


def test_a_party_with_a_process_of_its_own_shares_nothing(done):
    for party in ("north", "south"):
        assert stepped(Kept(), party) is None
    assert done == ["place one", "load one"] * 2
