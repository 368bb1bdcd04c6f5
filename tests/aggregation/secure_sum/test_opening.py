"""The graph is drawn from nonces that were committed before anybody saw one."""

import dataclasses

import pytest

from aggregation.errors import COORDINATOR, AttemptLost, Cheated
from aggregation.secure_sum.advertise import Roster
from aggregation.secure_sum.opening import Nonces, Openings, group_of

COUNT = 18


@pytest.fixture
def made(scene):
    """A scene of 18, the list of advertisements, and everybody's openings."""
    stage = scene(COUNT, dropouts=3)
    roster = Roster(tuple(stage.parties[n].advertise() for n in stage.names))
    return stage, roster, tuple(stage.parties[n].open(roster) for n in stage.names)


def test_everybody_computes_the_same_group(made):
    stage, roster, openings = made
    one = group_of(stage.context, roster, Openings(openings))
    other = group_of(stage.context, Roster.decode(roster.encode()), Openings.decode(Openings(openings).encode()))
    assert one.digest == other.digest
    assert one.near == other.near
    assert one.threshold < len(one.holders("p00")) < COUNT


def test_the_group_is_another_when_a_nonce_is_left_out(made):
    stage, roster, openings = made
    all_, fewer = (group_of(stage.context, roster, Openings(x)) for x in (openings, openings[1:]))
    assert all_.digest != fewer.digest
    assert "p00" not in fewer.near


def test_another_nonce_than_committed_is_refused(made):
    stage, roster, openings = made
    changed = dataclasses.replace(openings[3], nonce=bytes(32))
    with pytest.raises(Cheated, match="p03 opened another nonce than it committed to"):
        group_of(stage.context, roster, Openings((*openings[:3], changed, *openings[4:])))


def test_a_nonce_for_another_list_is_refused(made):
    stage, roster, openings = made
    other = Roster(roster.advertisements[1:])
    with pytest.raises(Cheated, match="the lists shown are not all alike"):
        group_of(stage.context, other, Openings(openings[1:]))


def test_too_few_twice_strangers_or_out_of_order_are_refused(made):
    stage, roster, openings = made
    for shown, said in (
        (openings[:14], "showed nonces of 14 parties"),
        ((*openings, openings[-1]), "twice or out of order"),
        ((openings[1], openings[0], *openings[2:]), "twice or out of order"),
        ((*openings, dataclasses.replace(openings[0], party="p99")), "who advertised none"),
    ):
        with pytest.raises(Cheated, match=said) as refusal:
            group_of(stage.context, roster, Openings(shown))
        assert refusal.value.who == COORDINATOR


def test_the_round_is_neither_skipped_nor_put_where_none_is_due(made, scene):
    stage, roster, _ = made
    with pytest.raises(Cheated, match="left out the round"):
        group_of(stage.context, roster, None)
    with pytest.raises(Cheated, match="left out the round"):
        stage.parties["p00"].share(roster)
    small = scene(4, colluders=0)
    with pytest.raises(Cheated, match="where no graph is drawn"):
        small.parties["p00"].open(Roster(tuple(small.parties[n].advertise() for n in small.names)))


def test_a_party_refuses_nonces_without_its_own(made):
    stage, _, openings = made
    with pytest.raises(Cheated, match="showed p00 a list of nonces without its own"):
        stage.parties["p00"].share(Openings(openings[1:]))


def test_the_coordinator_waits_for_enough(made):
    stage, roster, openings = made
    nonces = Nonces(stage.context, roster)
    for each in openings[:14]:
        nonces.add(each)
    with pytest.raises(AttemptLost, match="14 parties opened"):
        nonces.close()
    with pytest.raises(Cheated, match="another nonce"):
        nonces.add(dataclasses.replace(openings[14], nonce=bytes(32)))
    nonces.add(openings[14])
    assert len(nonces.close().openings) == 15
