"""What counts as getting on: never a sign of life alone. By a clock that only the test moves."""

import pytest

from coordinator.transport.silence import Patience, Stuck, TrainingPatience


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def held(patience, clock, beats, every=1.0):
    """Seconds until a training that gives these signs, one every so often, is given up; None where it is not."""
    began = clock.now
    for percent in beats:
        clock.now += every
        patience.told(percent)
        try:
            patience.check()
        except Stuck:
            return clock.now - began
    return None


@pytest.mark.parametrize(
    ("beats", "seconds", "why"),
    [
        ([0] * 50, 11, "no further than 0% for 10 s"),
        ([0, 5] * 50, 12, "no further than 5% for 10 s"),
        ([7, 6, 5, 4, 3, 2, 1, 0] * 9, 11, "no further than 7% for 10 s"),
        ([40, None] * 50, 11, "no further than 40% for 10 s"),
        ([None] * 2000, 1000, "not done after 1000 s"),
        ([each // 9 for each in range(2000)], 1000, "not done after 1000 s"),
    ],
    ids=["0 for ever", "up and down", "down", "one percent and none", "none for ever", "it creeps"],
)
def test_heartbeats_without_progress_hold_nobody_beyond_the_limits(clock, beats, seconds, why):
    patience = TrainingPatience(10.0, None, clock=clock)
    assert held(patience, clock, beats) == pytest.approx(seconds, abs=1)
    with pytest.raises(Stuck, match=why):
        patience.check()


def test_a_training_that_rises_in_time_or_reads_for_long_is_waited_for(clock):
    assert held(TrainingPatience(10.0, None, clock=clock), clock, range(101), every=9.5) is None
    assert held(TrainingPatience(10.0, None, clock=clock), clock, [None] * 500 + [0, 1, 2]) is None


def test_a_training_s_own_limit_counts_from_when_it_was_first_asked_for(clock):
    patience = TrainingPatience(10.0, 60.0, began=clock.now - 58.0, clock=clock)
    assert held(patience, clock, range(100)) == pytest.approx(2.0)
    with pytest.raises(Stuck, match="not done after 60 s"):
        patience.check()


def test_who_is_waited_for_is_never_given_up(clock):
    assert held(TrainingPatience(None, None, clock=clock), clock, [0] * 100, every=1e6) is None
    patience = Patience(None, clock)
    clock.now += 1e9
    patience.check()


def test_silence_is_told_from_signs_of_life(clock):
    for made in (Patience, lambda limit, clock: TrainingPatience(limit, None, clock=clock)):
        patience = made(10.0, clock)
        clock.now += 9.9
        patience.check()
        clock.now += 0.2
        with pytest.raises(Stuck, match="no sign of its work for 10 s, though its node serves"):
            patience.check()
