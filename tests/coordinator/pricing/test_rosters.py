"""Releases of some parties alone: a plan costs what the party pays that pays most, not what all of them pay."""

import pytest

from aggregation.accounting.price import price
from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.mechanism import Form
from coordinator.pricing.release import Release, borne, dearest, graphs_delta

DELTA = 1e-6
SUMMED = Release("said", CountsMechanism(4.0, 64, 1.2, 2), 5, 5, parties=("east", "north"))
LEARNED = Release(
    "learned", GradientMechanism(1.0, 400, 1.0, 0.1, 20, 30), 1, 30, form=Form.WEIGHTS, parties=("clinic",)
)
OF_ALL = Release("counts", CountsMechanism(4.0, 64, 3.0, 2), 5, 5)


def names(lists):
    return [[release.name for release in each] for each in lists]


def test_each_list_is_what_some_party_bears():
    assert names(borne([SUMMED, LEARNED])) == [["learned"], ["said"]]
    assert names(borne([OF_ALL, SUMMED, LEARNED])) == [["counts"], ["counts", "learned"], ["counts", "said"]]
    assert names(borne([OF_ALL])) == [["counts"]]
    both = Release("more", OF_ALL.mechanism, 5, 5, parties=("clinic", "east"))
    assert names(borne([SUMMED, LEARNED, both])) == [["learned", "more"], ["said"], ["said", "more"]]


@pytest.mark.slow
def test_disjoint_releases_cost_the_dearer_of_them():
    one, other = (price([each.event], DELTA).epsilon for each in (SUMMED, LEARNED))
    assert dearest([SUMMED, LEARNED], DELTA).epsilon == max(one, other)
    assert price([SUMMED.event, LEARNED.event], DELTA).epsilon > 1.05 * max(one, other)


@pytest.mark.slow
def test_a_party_in_two_releases_pays_for_both():
    both = [SUMMED, Release("more", OF_ALL.mechanism, 5, 5, parties=("clinic", "east"))]
    assert dearest(both, DELTA).epsilon == price([each.event for each in both], DELTA).epsilon


@pytest.mark.slow
def test_every_attempt_is_paid_for():
    twice = Release("said", SUMMED.mechanism, 5, 5, attempts=2, parties=SUMMED.parties)
    assert dearest([twice, LEARNED], DELTA).epsilon == price([SUMMED.event] * 2, DELTA).epsilon


def test_graphs_are_those_of_each_releases_parties(monkeypatch):
    monkeypatch.setattr("coordinator.pricing.release.failing", lambda parties, *others: parties * 1e-9)
    many = Release("said", SUMMED.mechanism, 5, 5, parties=tuple(f"p{number:02}" for number in range(30)))
    assert graphs_delta([many, OF_ALL], 31, 2, 1) == pytest.approx(61e-9)


@pytest.mark.parametrize("party", ["east", "clinic", "nobody"])
def test_a_release_concerns_its_own_parties_and_one_of_all_everybody(party):
    assert OF_ALL.concerns(party)
    assert SUMMED.concerns(party) == (party == "east")
