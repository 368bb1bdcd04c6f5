"""Which dealers are left out of an attempt, and when nobody is. The sums themselves are met in tests/party."""

from contextlib import closing

import pytest

from aggregation.secure_sum.context import Context
from coordinator.federation.sum_attempt import SumRun, Wanted, suspected, without
from coordinator.store.store import RunStore

NAMES = tuple(f"p{i}" for i in range(6))


@pytest.mark.parametrize(
    ("named", "spoke", "found"),
    [
        ({"p1": "p0", "p2": "p0"}, "p0 p1 p2 p3", {"p0": (2, 3)}),
        ({"p1": "p0", "p2": "p0"}, "p0 p1 p2 p3 p4", {}),
        ({"p1": "p0"}, "p0 p1", {}),
        ({"p0": "p0", "p1": "p0"}, "p0 p1", {}),
        ({"p1": "p0", "p2": "p0", "p0": "p3"}, "p0 p1 p2", {"p0": (2, 2)}),
        ({"p1": "p0", "p2": "p0", "p0": "p3", "p4": "p3"}, "p0 p1 p2 p4", {"p0": (2, 3)}),
        ({}, "p0 p1", {}),
    ],
    ids=["most", "half", "one alone", "its own word", "the liar names another", "two each", "nobody"],
)
def test_a_dealer_is_suspected_when_two_peers_and_most_that_spoke_name_it(named, spoke, found):
    assert suspected(named, spoke.split()) == found


@pytest.mark.parametrize(
    ("minimum", "dropouts", "stay"),
    [(2, 2, "p2 p3 p4 p5"), (5, 2, "p1 p2 p3 p4 p5"), (2, 1, "p1 p2 p3 p4 p5"), (6, 2, "p0 p1 p2 p3 p4 p5")],
)
def test_suspects_are_left_out_as_long_as_the_plan_and_the_noise_have_enough_parties(minimum, dropouts, stay):
    context = Context.of(
        run="r", plan_hash="ab", sum="counts", attempt=1, parties=NAMES, length=1, dropouts=dropouts, colluders=0
    )
    rest, told = without(NAMES, {"p0": "why", "p1": "why", "gone": "why"}, context, minimum)
    assert rest == tuple(stay.split())
    assert len(told) == 2
    assert all(line.endswith("why") for line in told)
    assert sum("is left out of sum 'counts', attempt 1" in line for line in told) == len(NAMES) - len(rest)


def test_an_attempt_whose_vectors_a_killed_coordinator_may_have_asked_for_counts_as_charged(tmp_path):
    context = Context.of(
        run="r", plan_hash="ab", sum="steps.3", attempt=1, parties=NAMES, length=1, dropouts=1, colluders=0
    )

    def begun():
        return SumRun(context, Wanted("steps.3", 1, 1, 1), lambda *given: True, store, None)

    with closing(RunStore.create(tmp_path / "run", "r", "demo", b"h" * 32)) as store:
        assert not begun().charged
        store.note(**{"sum steps.3 0 share": {"p0": ""}, "sum steps.3 1 advertise": {"p0": ""}})
        assert not begun().charged
        store.note(**{"sum steps.3 1 share": {"p0": ""}})
        assert begun().charged
