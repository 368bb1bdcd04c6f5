"""Parties share actors where they are more than processors, and on a cluster only those that ask for the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.transport.launchers import Cluster, Place
from deploy.dividing import ACTOR_MIB, by_default, divided

GIB = 2**30


@given(st.integers(1, 1200), st.integers(1, 64), st.integers(0, 64 * GIB))
def test_by_default_there_are_as_many_actors_as_processors_and_memory_allow_and_no_more_than_parties(
    parties, cores, free
):
    most = by_default(parties, cores, free)
    room = max(1, free // (ACTOR_MIB * 2**20))
    assert -(-parties // most) <= min(cores, room)
    assert most == 1 or -(-parties // (most - 1)) > min(cores, room)


@pytest.mark.slow
@given(st.integers(1, 300), st.integers(1, 300))
def test_every_party_is_in_one_actor_in_order_and_actors_are_even(parties, most):
    names = [f"p{number}" for number in range(parties)]
    found = divided(names, most)
    assert [name for group in found for name in group] == names
    sizes = {len(group) for group in found}
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("places", "most", "sizes"),
    [
        ({}, None, [1, 1, 1, 1]),
        ({}, 4, [4]),
        ({"p1": Place(gpus=1.0), "p2": Place(gpus=1.0)}, 4, [1, 1, 1, 1]),
        ({"p2": Place(resources={"site": 1.0}), "p3": Place(resources={"site": 1.0})}, 4, [2, 2]),
    ],
)
def test_on_a_cluster_parties_share_only_what_they_all_ask_for(places, most, sizes):
    names = ["p0", "p1", "p2", "p3"]
    cluster = Cluster("auto", places=places)
    assert [len(group) for group in divided(names, most, cluster)] == sizes
