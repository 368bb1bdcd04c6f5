"""The sum is exact, and a party lost in any round leaves the others' sum standing where the thresholds allow."""

import numpy as np
import pytest

from aggregation.errors import AttemptLost
from aggregation.secure_sum.mask import MemoryBlocks
from aggregation.secure_sum.summation import Summation

ROUNDS = ("advertise", "open", "share", "receive", "mask", "consent", "reveal")
IN_THE_SUM = {"consent", "reveal"}


@pytest.mark.parametrize("count", [2, 3, 5, 16, 17, 24])
def test_the_sum_of_all_is_exact(scene, count):
    stage = scene(count, dropouts=0, colluders=0)
    stage.up_to("reveal")
    assert np.array_equal(stage.total(), stage.expected(stage.names))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 100])
def test_vectors_of_any_length_travel_in_whole_blocks_and_a_rest(scene, length):
    stage = scene(4, length=length, colluders=0)
    stage.up_to("reveal")
    assert np.array_equal(stage.total(), stage.expected(stage.names))


@pytest.mark.parametrize("count", [6, 18])
@pytest.mark.parametrize("stage_name", ROUNDS)
def test_one_lost_in_any_round_leaves_the_sum_of_the_others(scene, stage_name, count):
    stage = scene(count)
    stage.up_to("reveal", lost=["p02"], at=stage_name)
    present = stage.names if stage_name in IN_THE_SUM else [n for n in stage.names if n != "p02"]
    assert list(stage.server.survivors().names) == present
    assert np.array_equal(stage.total(), stage.expected(present))


@pytest.mark.parametrize("count", [6, 18])
@pytest.mark.parametrize("stage_name", ROUNDS[:5])
def test_one_more_than_may_be_lost_before_the_list_ends_the_attempt_with_nothing_revealed(scene, stage_name, count):
    stage = scene(count)
    with pytest.raises(AttemptLost):
        stage.up_to("reveal", lost=["p02", "p04"], at=stage_name)
    assert "reveal" not in stage.sent
    assert not any(stage.remembered.values())


def test_fewer_signatures_than_the_threshold_reveal_nothing(scene):
    stage = scene(6)
    with pytest.raises(AttemptLost, match="3 parties signed"):
        stage.up_to("reveal", lost=["p02", "p03", "p04"], at="consent")
    assert "reveal" not in stage.sent


def test_fewer_shares_than_the_threshold_leave_the_sum_masked_until_more_come(scene):
    stage = scene(6)
    left = stage.up_to("reveal", lost=["p02", "p03", "p04"], at="reveal")
    assert not stage.server.enough
    with pytest.raises(AttemptLost, match="Too few shares"):
        stage.server.totals()
    assert left == ["p00", "p01", "p05"]
    stage.reveal(["p03"])
    assert stage.server.enough
    assert np.array_equal(stage.total(), stage.expected(stage.names))


def test_different_parties_lost_in_different_rounds_together(scene):
    stage = scene(9, dropouts=3, colluders=0)
    left = list(stage.names)
    for name, lost in zip(ROUNDS, ([], [], ["p00"], ["p01"], ["p02"], ["p03"], []), strict=True):
        if name == "mask":
            stage.block("p02", 0)
        left = [n for n in left if n not in lost]
        getattr(stage, name)(left)
    assert np.array_equal(stage.total(), stage.expected(stage.names[3:]))


def test_blocks_that_come_after_the_list_was_fixed_change_nothing(scene):
    stage = scene(6)
    left = stage.up_to("consent", lost=["p02"], at="mask")
    stage.block("p02", 1)
    stage.block("p02", 2)
    stage.reveal(left)
    assert list(stage.server.survivors().names) == left
    assert np.array_equal(stage.total(), stage.expected(left))


def test_the_coordinator_asks_in_order(scene):
    stage = scene(3, dropouts=0, colluders=0)
    server = Summation(stage.context, stage.signing.verify, MemoryBlocks(stage.context))
    for call in (server.openings, server.inboxes, server.survivors, server.consents, server.totals):
        with pytest.raises(RuntimeError, match="before the one that comes first"):
            call()
