"""What a run has cost so far grows with what its parties release, and ends at what the run promises."""

import math
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
from dp_accounting import SelfComposedDpEvent

from aggregation.accounting.price import price
from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.mechanism import Form
from coordinator.pricing.release import SAMPLER_SHARE, Release
from coordinator.progress.events import Unobserved
from coordinator.run.spending import Spending, charged, spent
from coordinator.store.index import RunIndex
from protos.steps import step_name

DELTA = 1e-6
STEPS = 5


@pytest.fixture
def store(tmp_path):
    with closing(RunIndex(tmp_path / "home").add("demo", b"h" * 32, None)) as store:
        yield store


@pytest.fixture
def priced(counts, gradients):
    privacy = SimpleNamespace(delta=DELTA, guarantee=True)
    return SimpleNamespace(releases=(counts, gradients), plan=SimpleNamespace(privacy=privacy), private=True)


@pytest.fixture
def counts():
    return Release("tokens", CountsMechanism(1.0, 4, 2.0, 2), 1, 8)


@pytest.fixture
def gradients():
    mechanism = GradientMechanism(1.0, 2**10, 1.0, 0.1, STEPS, 8)
    return Release("steps", mechanism, 1, 8, form=Form.STEPPED)


def names(found):
    return [(release.name, count) for release, count in found]


def test_nothing_is_charged_before_parties_release_anything(priced, store):
    assert charged(priced, store) == ()
    assert spent((), DELTA) == 0.0


def test_a_sum_in_hand_and_those_that_are_stored_are_charged(priced, store):
    store._begin("train")
    assert names(charged(priced, store)) == [("tokens", 1)]
    store.begin_sum("tokens", ["north", "south"])
    store._finish("train", {})
    assert names(charged(priced, store)) == [("tokens", 1)]
    store._begin("aggregate")
    assert names(charged(priced, store)) == [("tokens", 1), ("steps", 1)]
    for number in range(2):
        store.begin_sum(step_name("steps", number), ["north", "south"])
    assert names(charged(priced, store)) == [("tokens", 1), ("steps", 3)]
    for number in range(2, STEPS):
        store.begin_sum(step_name("steps", number), ["north", "south"])
    assert names(charged(priced, store)) == [("tokens", 1), ("steps", STEPS)]


def test_an_attempt_that_was_lost_is_charged(priced, store):
    store._begin("train")
    store.note(**{"attempt tokens": 2})
    assert names(charged(priced, store)) == [("tokens", 3)]


def test_in_the_end_all_is_charged_that_the_plan_releases(priced, store):
    store._begin("distil")
    assert names(charged(priced, store)) == [("tokens", 1), ("steps", STEPS)]


@pytest.mark.slow
def test_the_epsilon_is_that_of_an_accountant_and_grows_to_the_whole(priced, counts, gradients):
    whole = price([counts.event, gradients.event], DELTA).epsilon
    some = spent(((counts, 1), (gradients, 2)), DELTA)
    assert spent(((counts, 1),), DELTA) == price([counts.event], DELTA).epsilon < some < whole
    assert spent(((counts, 1), (gradients, STEPS)), DELTA) == pytest.approx(whole)
    twice = price([SelfComposedDpEvent(counts.event, 2)], DELTA).epsilon
    assert spent(((counts, 2),), DELTA) == pytest.approx(twice)


def test_parties_that_have_no_part_in_a_release_do_not_pay_for_it(counts):
    north = Release("north", counts.mechanism, 1, 8, parties=("north",))
    south = Release("south", counts.mechanism, 1, 8, parties=("south",))
    assert spent(((north, 1), (south, 1)), DELTA) == price([counts.event], DELTA).epsilon


class Heard(Unobserved):
    def __init__(self):
        self.told = []

    def spent(self, epsilon):
        self.told.append(epsilon)


def test_whoever_watches_is_told_when_it_grew_and_it_is_kept(priced, store, counts):
    heard = Heard()
    store._begin("train")
    with Spending(priced, store, heard):
        until = time.monotonic() + 30
        while not heard.told and time.monotonic() < until:
            time.sleep(0.05)
    assert heard.told == [price([counts.event], DELTA * (1 - SAMPLER_SHARE)).epsilon]
    assert store.fact("spent") == heard.told[0]
    assert math.isfinite(heard.told[0])


def test_nothing_is_told_where_nothing_is_promised(priced, store):
    priced.private = False
    heard = Heard()
    store._begin("train")
    with Spending(priced, store, heard):
        time.sleep(1.5)
    assert heard.told == []
