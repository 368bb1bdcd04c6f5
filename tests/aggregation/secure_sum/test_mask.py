"""A masked block comes once, in turn and at its length; the parties' blocks stay apart."""

import dataclasses
import tracemalloc

import numpy as np
import pytest

from aggregation.errors import Cheated, IntegrityError
from aggregation.secure_sum import mask
from aggregation.secure_sum.mask import (
    Arrivals,
    MaskedBlock,
    MemoryBlocks,
    block_count,
    block_length,
    pair_mask,
    self_mask,
)
from aggregation.secure_sum.summation import Summation


@pytest.fixture
def stage(scene):
    """Five parties about to send 40 cells: blocks of 16, 16 and 8."""
    made = scene(5, length=40)
    made.up_to("receive")
    return made


def test_blocks_cover_the_vector_once(stage):
    assert [block_length(stage.context, i) for i in range(block_count(stage.context))] == [16, 16, 8]


@pytest.mark.parametrize("name", ["p", "p1", "p12", "p123", "Söder"])
def test_a_block_comes_back_from_its_bytes_without_a_copy(name):
    block = MaskedBlock(bytes(32), name, 3, np.arange(7, dtype=np.uint32))
    data = block.encode()
    back = MaskedBlock.decode(data, name)
    assert (back.group, back.party, back.index) == (block.group, name, 3)
    assert np.array_equal(back.cells, block.cells)
    assert back.cells.flags.aligned
    assert not back.cells.flags.owndata


def test_broken_bytes_are_refused():
    data = MaskedBlock(bytes(32), "p1", 0, np.arange(7, dtype=np.uint32)).encode()
    for wrong in (data[:-1], data + b"\0", data[:-32] + (27).to_bytes(4, "big") + data[-28:-1]):
        with pytest.raises(Cheated, match="p1"):
            MaskedBlock.decode(wrong, "p1")


def test_values_are_taken_modulo_two_to_the_32_and_left_alone(stage):
    values = np.array([-1, 2**32 - 1, 2**40 + 5, -(2**40), *range(12)], dtype=np.int64)
    same = values.copy()
    one = stage.parties["p00"].block(values).cells
    assert np.array_equal(values, same)
    assert one[0] != one[1]  # masks differ from cell to cell
    stage.vectors["p00"][:16] = values
    assert stage.expected(["p00"])[:3].tolist() == [2**32 - 1, 2**32 - 1, 5]


@pytest.mark.parametrize(
    "values", [np.zeros(15, dtype=np.int64), np.zeros((16, 1), dtype=np.int64), np.zeros(16), np.zeros(17, np.uint32)]
)
def test_anything_but_a_blocks_integers_is_not_masked_and_costs_no_turn(stage, values):
    with pytest.raises(IntegrityError, match=r"Block 0 .* has 16 integers"):
        stage.parties["p00"].block(values)
    assert stage.parties["p00"].block(np.zeros(16, dtype=np.int64)).index == 0


def test_no_block_is_masked_twice(stage):
    party = stage.parties["p00"]
    blocks = [party.block(np.zeros(size, dtype=np.int64)) for size in (16, 16, 8)]
    assert [b.index for b in blocks] == [0, 1, 2]
    with pytest.raises(IntegrityError, match="masked already"):
        party.block(np.zeros(16, dtype=np.int64))


def test_the_coordinator_refuses_blocks_out_of_turn_of_another_attempt_or_length(stage):
    block = stage.parties["p00"].block(np.zeros(16, dtype=np.int64))
    group = stage.server._group
    arrivals = Arrivals(group, frozenset({"p00", "p01"}), MemoryBlocks(stage.context))
    for changed, said in (
        (dataclasses.replace(block, group=bytes(32)), "another run, attempt"),
        (dataclasses.replace(block, party="p04"), "without having dealt"),
        (dataclasses.replace(block, index=1), "block 1 where 0 of 3"),
        (dataclasses.replace(block, cells=block.cells[:15]), "with 15 cells; it has 16"),
    ):
        with pytest.raises(Cheated, match=said) as refusal:
            arrivals.add(changed)
        assert refusal.value.who == changed.party
    arrivals.add(block)
    with pytest.raises(Cheated, match="block 0 where 1 of 3"):
        arrivals.add(block)
    assert arrivals.whole() == ()


def test_a_vector_is_whole_when_its_last_block_has_come(stage):
    blocks = MemoryBlocks(stage.context)
    arrivals = Arrivals(stage.server._group, frozenset({"p00", "p01"}), blocks)
    for size in (16, 16, 8):
        assert arrivals.whole() == ()
        arrivals.add(stage.parties["p01"].block(np.zeros(size, dtype=np.int64)))
    assert arrivals.whole() == ("p01",)
    assert [name for name, _ in blocks.blocks(2)] == ["p01"]


def test_masks_are_bound_to_the_group_and_to_who_shares_them(scene):
    """The same seed or agreed secret gives another mask in another attempt, for another party or for another pair."""
    groups = []
    for attempt in (0, 1):
        stage = scene(4, colluders=0, attempt=attempt)
        stage.up_to("share")
        groups.append(stage.server._group)
    one, other = groups
    selves = {self_mask(g, n, bytes(32)).key for g in groups for n in ("p00", "p01")}
    pairs = {pair_mask(g, *pair, bytes(32)).key for g in groups for pair in (("p00", "p01"), ("p00", "p02"))}
    assert len(selves | pairs) == 8
    assert pair_mask(one, "p01", "p00", bytes(32)) == pair_mask(one, "p00", "p01", bytes(32)).opposite
    assert one.digest != other.digest


class Discarded:
    """Blocks of a sum so long that only what is asked for exists: every party's cells are zeros."""

    def __init__(self, names):
        self.names = names

    def put(self, party, index, block):
        pass

    def blocks(self, index):
        for name in self.names:
            yield name, np.zeros(mask.BLOCK_CELLS, dtype=np.uint32)


def test_a_vector_of_any_length_is_masked_and_summed_in_the_memory_of_a_few_blocks(scene, monkeypatch):
    """24 blocks of 1 MiB; a 10,000 x 10,000 matrix has 382. A vector held anywhere would be 24 MiB."""
    monkeypatch.setattr(mask, "BLOCK_CELLS", 1 << 18)
    count = 24
    stage = scene(3, length=count << 18, dropouts=0, colluders=0, vectors=dict.fromkeys(("p00", "p01", "p02")))
    stage.blocks = Discarded(stage.names)
    stage.server = Summation(stage.context, stage.signing.verify, stage.blocks)
    stage.up_to("receive")
    values = np.zeros(1 << 18, dtype=np.int64)
    tracemalloc.start()
    try:
        for n in stage.names:
            for _ in range(count):
                stage.server.masked(MaskedBlock.decode(stage.parties[n].block(values).encode(), n))
        stage.consent(stage.names)
        stage.reveal(stage.names)
        assert sum(len(block) for block in stage.server.totals()) == count << 18
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
