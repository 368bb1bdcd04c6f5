"""What a run owes to parties that it left out of sums: stored once, asked for when they are there, then dropped."""

from contextlib import closing

import pytest

from aggregation.errors import Cheated
from coordinator.federation.refunds import Refunds, owed
from coordinator.store.store import RunStore
from protos.conclave.v1 import party_pb2


@pytest.fixture
def store(tmp_path):
    with closing(RunStore.create(tmp_path / "run", "r", "demo", b"h" * 32)) as store:
        yield store


class Parties:
    """Answers a round: empty messages, or why not."""

    def __init__(self, **why):
        self.why, self.asked = why, []

    async def __call__(self, requests, on_message):
        self.asked += [(name, each.release, each.attempt, each.message) for name, each in requests.items()]
        assert {each.round for each in requests.values()} == {party_pb2.SUM_ROUND_REFUND}
        for name in requests.keys() - self.why.keys():
            on_message(name, b"")
        return {name: self.why[name] for name in requests if name in self.why}


def note(store, release="steps.1", attempt=0, names=("north", "west"), shown=b"shown"):
    store.note(**owed(store, release, attempt, names, shown))


async def test_who_is_there_is_asked_and_whoever_took_its_charge_back_is_not_asked_again(store):
    note(store)
    note(store, "steps.2", 1, ["north"], b"more")
    ask = Parties()
    told = await Refunds(store).settle(["north", "east"], ask)
    assert ask.asked == [("north", "steps.1", 0, b"shown"), ("north", "steps.2", 1, b"more")]
    assert told[0].strip() == "north is not in attempt 1 at the sum of steps.1 and is free of its cost"
    assert Refunds(store).owed == {"west"}
    assert await Refunds(store).settle(["north", "east"], ask, last=True) == []
    note(store, names=("north",))
    assert Refunds(store).owed == {"west"}, "a coordinator that goes on with the attempt owes nothing anew"


async def test_who_refuses_is_told_once_and_asked_once_more_before_the_end(store):
    note(store, names=("north",))
    refunds, ask = Refunds(store), Parties(north="it stays charged")
    for _ in range(3):
        told = await refunds.settle(["north"], ask)
    assert (told, len(ask.asked)) == ([], 1)
    (line,) = await refunds.settle(["north"], ask, last=True)
    assert "may stay charged for it: it stays charged" in line
    assert refunds.owed == {"north"}


async def test_an_answer_that_is_none_frees_nobody(store):
    note(store, names=("north",))

    async def lies(requests, on_message):
        with pytest.raises(Cheated, match="did not say"):
            on_message("north", b"never")
        return {"north": "it lies"}

    await Refunds(store).settle(["north"], lies)
    assert Refunds(store).owed == {"north"}


def test_nobody_left_out_is_nothing_to_store(store):
    assert owed(store, "counts", 0, [], b"shown") == {}
