"""What parties release is told to whoever watches, and reaches whoever asks unchanged."""

import asyncio

import numpy as np

from coordinator.auditing.watching import Watch, watched
from coordinator.transport.link import Answered, Batch

BATCHES = [Batch(0, 0, 2), Batch(1, 2, 3)]


class Party:
    """Answers with its own number, in every cell."""

    def __init__(self, number):
        self.name, self.traffic, self.number = f"party-{number}", 0, number
        self.provided = []

    async def provide(self, kind, content):
        self.provided.append(kind)
        return Answered(None)

    async def answer(self, release, batches, columns):
        for batch in batches:
            yield Answered(np.full((batch.stop - batch.start, columns), self.number, np.int32))


def run(watch, releases, numbers=(1, -3)):
    parties = [Party(number) for number in numbers]
    links = watched(parties, watch)

    async def asks():
        found = []
        for step, release in enumerate(releases):
            for link in links:
                await link.provide("parameters", np.full(4, step, "<f4").tobytes())
            for link in links:
                found += [outcome.value async for outcome in link.answer(release, BATCHES, 2)]
        return found

    return parties, asyncio.run(asks())


def test_sums_and_the_parameters_they_begin_at_are_kept_step_by_step():
    watch = Watch(frozenset(), 2)
    parties, found = run(watch, ["steps.0", "steps.1", "counts"])
    assert [block.shape for block in found[:2]] == [(2, 2), (1, 2)]
    assert parties[0].provided == ["parameters"] * 3
    assert [point.tolist() for point, _ in watch.steps("steps")] == [[0.0] * 4, [1.0] * 4]
    assert all((total == -2).all() and total.shape == (3, 2) for _, total in watch.steps("steps"))
    assert (watch.sums["counts"][1] == -2).all()
    assert watch.steps("counts") == []


def test_models_that_are_in_no_sum_stay_apart():
    watch = Watch(frozenset({"round-0"}), 2)
    run(watch, ["round-0"])
    assert {name: int(values[0, 0]) for name, values in watch.alone["round-0"].items()} == {
        "party-1": 1,
        "party--3": -3,
    }
    assert watch.sums == {}


def test_sums_wrap_as_those_of_a_federation():
    watch = Watch(frozenset(), 2)
    run(watch, ["counts"], numbers=(2**31 - 1, 1))
    assert (watch.sums["counts"][1] == -(2**31)).all()
