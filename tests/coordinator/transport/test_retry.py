"""A party that was lost is asked again: how soon, how long, and what is never asked twice. No clock and no network."""

from itertools import count

import numpy as np
import pytest

from coordinator.transport.link import Answered, Batch, Lost, Refused
from coordinator.transport.retry import Absence, PatientLink, Retry
from protos.conclave.v1 import party_pb2
from protos.refusal import Reason, Refusal

GONE = Lost("nothing answers")
NO = Refused(Refusal(Reason.POLICY, "no."))
BATCHES = [Batch(number, 2 * number, 2 * number + 2) for number in range(4)]


class Time:
    """A clock that moves when somebody sleeps."""

    def __init__(self):
        self.now = 1000.0
        self.naps = []

    async def sleep(self, seconds):
        self.naps.append(seconds)
        self.now += seconds

    def policy(self, limit, **changes):
        rng = np.random.default_rng(0)
        return Retry(limit, rng=rng, sleep=self.sleep, clock=lambda: self.now, **changes)


class Told:
    """Keeps what was told of troubles."""

    def __init__(self):
        self.lines = []

    def slow(self, party, seconds):
        self.lines.append(("slow", party))

    def away(self, party, doing, why):
        self.lines.append(("away", party, doing, why))

    def back(self, party):
        self.lines.append(("back", party))


class Scripted:
    """A link that answers as its script says; each entry of `answer`'s is what comes before the stream breaks."""

    name = "north"
    traffic = 0

    def __init__(self, *script):
        self.script = iter(script)
        self.asked = []

    async def describe(self, nonce):
        return self._next("describe")

    async def join(self, run_id, plan, plan_hash, *, peers=(), needs=None):
        return self._next("join")

    async def leave(self):
        return self._next("leave")

    async def provide(self, kind, content):
        return self._next("provide")

    async def train(self, request, on_percent):
        percents, outcome = self._next(request.operation_id)
        for percent in percents:
            on_percent(percent)
        return outcome

    async def answer(self, release, batches, columns):
        outcomes = self._next([batch.number for batch in batches])
        for outcome in outcomes:
            yield outcome

    def _next(self, asked):
        self.asked.append(asked)
        return next(self.script)


def patient(link, limit=300.0, **changes):
    time, told = Time(), Told()
    return PatientLink(link, time.policy(limit, **changes), told), time, told


def test_pauses_double_up_to_the_longest_and_are_spread_over_all_of_it():
    retry = Time().policy(300.0)
    for tries, most in ((1, 0.5), (2, 1.0), (3, 2.0), (6, 15.0), (60, 15.0), (10_000, 15.0)):
        pauses = [retry.pause(tries) for _ in range(300)]
        assert 0 <= min(pauses) < 0.05 * most
        assert 0.95 * most < max(pauses) <= most


async def test_a_lost_party_is_asked_until_it_answers_and_both_are_told():
    link, time, told = patient(Scripted(GONE, GONE, Answered(None)))
    assert await link.join("r", None, b"") == Answered(None)
    assert len(time.naps) == 2
    assert told.lines == [("away", "north", "join", "nothing answers")] * 2 + [("back", "north")]


async def test_it_is_given_up_when_the_limit_is_over_and_not_before():
    link, time, _ = patient(Scripted(*[GONE] * 1000), limit=40.0)
    outcome = await link.describe(b"n" * 32)
    assert sum(time.naps) == pytest.approx(40.0)
    assert outcome.why == f"nothing answers; asked {len(time.naps) + 1} times in 40 s"


async def test_time_that_a_call_takes_counts_too():
    time = Time()

    class Hanging(Scripted):
        async def describe(self, nonce):
            time.now += 60
            return self._next("describe")

    link = PatientLink(Hanging(*[GONE] * 1000), time.policy(300.0), Told())
    outcome = await link.describe(b"n" * 32)
    assert isinstance(outcome, Lost)
    assert 1360 <= time.now < 1440


@pytest.mark.parametrize(
    ("outcome", "limit"), [(GONE, 0.0), (NO, 300.0), (Lost("is no Conclave party", passing=False), 300.0)]
)
async def test_what_asking_again_cannot_help_is_passed_on_as_it_is(outcome, limit):
    link, time, told = patient(Scripted(outcome), limit)
    assert await link.provide("vocabulary", b"") == outcome
    assert time.naps == []
    assert told.lines == []


async def test_leaving_is_asked_once():
    link, time, _ = patient(Scripted(GONE))
    assert await link.leave() == GONE
    assert time.naps == []


async def taken(link):
    return [outcome async for outcome in link.answer("counts", BATCHES, 4)]


def blocks(*numbers):
    return [Answered(f"block {number}") for number in numbers]


async def test_after_a_loss_only_batches_that_did_not_come_are_asked_for_again():
    script = Scripted([*blocks(0, 1), GONE], [GONE], [*blocks(2), GONE], blocks(3))
    link, _, told = patient(script)
    assert await taken(link) == blocks(0, 1, 2, 3)
    assert script.asked == [[0, 1, 2, 3], [2, 3], [2, 3], [3]]
    assert [line[0] for line in told.lines] == ["away", "away", "back", "away", "back"]


async def test_a_refusal_in_the_middle_ends_the_stream():
    link, _, _ = patient(Scripted([*blocks(0), GONE], [NO]))
    assert await taken(link) == [*blocks(0), NO]


async def test_a_party_that_stays_away_ends_the_stream_with_its_loss():
    link, time, _ = patient(Scripted([*blocks(0), GONE], *[[GONE]] * 1000), limit=20.0)
    first, lost = await taken(link)
    assert first == blocks(0)[0]
    assert "nothing answers; asked" in lost.why
    assert sum(time.naps) == pytest.approx(20.0)


async def test_every_block_that_comes_starts_the_limit_anew():
    script = Scripted(*(outcomes for number in range(4) for outcomes in ([GONE], [GONE], [*blocks(number), GONE])))
    link, time, _ = patient(script, limit=10.0, first=4.0, factor=1.0)
    assert await taken(link) == blocks(0, 1, 2, 3)
    assert sum(time.naps) > 10.0


async def trained(link):
    percents = []
    outcome = await link.train(party_pb2.TrainRequest(operation_id="counts-0"), percents.append)
    return outcome, percents


async def test_training_is_asked_for_again_under_the_same_operation():
    script = Scripted(([0, 10], GONE), ([], GONE), ([None, 10, 100], Answered(None)))
    link, _, told = patient(script)
    assert await trained(link) == (Answered(None), [0, 10, None, 10, 100])
    assert script.asked == ["counts-0"] * 3
    assert [line[0] for line in told.lines] == ["away", "away", "back"]


async def test_a_node_that_falls_over_at_the_same_place_again_and_again_is_not_waited_for_without_end():
    link, time, _ = patient(Scripted(*[([0, 40], GONE)] * 1000), limit=60.0)
    outcome, _ = await trained(link)
    assert isinstance(outcome, Lost)
    assert sum(time.naps) == pytest.approx(60.0)


async def test_a_training_that_gets_further_each_time_is_waited_for():
    script = (([percent], GONE) for percent in range(1, 101))
    link, time, _ = patient(Scripted(*script, ([], Answered(None))), limit=1.0, first=0.9)
    assert (await trained(link))[0] == Answered(None)
    assert sum(time.naps) > 10


def test_only_time_away_counts_not_time_at_work():
    time = Time()
    absence = Absence(time.policy(10.0))
    for gone in count(1):
        pause = absence.lost()
        if pause is None:
            break
        time.now += 3.0
        assert absence.seen()
        assert not absence.seen()
        assert absence.seconds == pytest.approx(3.0 * gone)
        time.now += 1000.0
    assert gone == 5
