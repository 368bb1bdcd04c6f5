"""One kind of share of each peer, decided by the list; secrets are rebuilt, checked, and misfits named."""

import dataclasses

import numpy as np
import pytest

from aggregation.errors import AttemptLost, Cheated, IntegrityError
from aggregation.secure_sum.consistency import Consents
from aggregation.secure_sum.field import SHARE_BYTES
from aggregation.secure_sum.mask import MemoryBlocks
from aggregation.secure_sum.unmask import Kind, Recovery, Revealed, totals


@pytest.fixture
def stage(scene):
    """Seven parties, one lost in mid-vector: one may be lost, one colludes, five shares rebuild a secret."""
    made = scene(7)
    made.up_to("consent", lost=["p03"], at="mask")
    return made


def shares_of(stage, names):
    consents = stage.server.consents()
    return {n: stage.parties[n].reveal(consents) for n in names}


def recovery(stage):
    return Recovery(stage.server._group, frozenset(stage.names), stage.server.survivors())


def left(stage):
    return [n for n in stage.names if n != "p03"]


def with_share(revealed, owner, share):
    changed = tuple((o, kind, share if o == owner else s) for o, kind, s in revealed.shares)
    return dataclasses.replace(revealed, shares=changed)


def test_survivors_seeds_and_the_losts_mask_keys_are_revealed(stage):
    for name, revealed in shares_of(stage, left(stage)).items():
        kinds = {owner: kind for owner, kind, _ in revealed.shares}
        assert kinds == {n: Kind.MASK_KEY if n == "p03" else Kind.SEED for n in stage.names}
        assert Revealed.decode(revealed.encode(), name) == revealed
        assert "shares" not in repr(revealed)


def test_the_list_is_remembered_before_and_once(stage):
    consents = stage.server.consents()
    party = stage.parties["p00"]
    first = party.reveal(consents)
    assert party.reveal(consents) == first
    assert stage.remembered["p00"] == [stage.server.survivors().digest]


def test_nothing_is_revealed_when_the_disk_fails(stage, monkeypatch):
    def broken(_digest):
        raise OSError("disk full")

    party = stage.parties["p00"]
    monkeypatch.setattr(party, "_remember", broken)
    with pytest.raises(OSError, match="disk full"):
        party.reveal(stage.server.consents())
    monkeypatch.setattr(party, "_remember", stage.remembered["p00"].append)
    party.reveal(stage.server.consents())
    assert len(stage.remembered["p00"]) == 1


def test_nothing_is_revealed_before_the_list_was_signed(scene):
    early = scene(7)
    early.up_to("mask")
    with pytest.raises(Cheated, match="asks p00 for shares in clear before"):
        early.parties["p00"].reveal(Consents(()))


def test_the_sum_of_the_survivors_comes_out(stage):
    stage.reveal(left(stage))
    assert np.array_equal(stage.total(), stage.expected(left(stage)))


def test_a_threshold_of_shares_is_enough_and_one_less_is_not(stage):
    needed = left(stage)[: stage.context.threshold]
    rebuilt = recovery(stage)
    for revealed in shares_of(stage, needed[:-1]).values():
        rebuilt.add(revealed)
    assert not rebuilt.enough
    with pytest.raises(AttemptLost, match="Too few shares"):
        rebuilt.close()
    rebuilt.add(shares_of(stage, needed)[needed[-1]])
    assert rebuilt.enough
    total = np.concatenate(list(totals(stage.server._group, stage.server.survivors(), rebuilt.close(), stage.blocks)))
    assert np.array_equal(total, stage.expected(left(stage)))


def test_a_share_that_does_not_fit_is_named_and_done_without(stage):
    revealed = shares_of(stage, left(stage))
    revealed["p00"] = with_share(revealed["p00"], "p05", bytes(SHARE_BYTES))
    for each in revealed.values():
        stage.server.revealed(each)
    assert np.array_equal(stage.total(), stage.expected(left(stage)))
    (misfit,) = stage.server.misfits
    assert misfit.who == "p00"
    assert "p00 revealed a share of p05's seed that does not fit" in str(misfit)


def test_shares_that_do_not_reconstruct_leave_the_sum_masked(stage):
    needed = left(stage)[: stage.context.threshold]
    for owner, what in (("p05", "seed"), ("p03", "mask key")):
        rebuilt = recovery(stage)
        revealed = shares_of(stage, needed)
        revealed["p00"] = with_share(revealed["p00"], owner, bytes(SHARE_BYTES))
        for each in revealed.values():
            rebuilt.add(each)
        with pytest.raises(Cheated, match=f"{owner} dealt shares of its {what} that do not reconstruct it"):
            rebuilt.close()


def test_the_coordinator_refuses_shares_it_did_not_ask_for(stage):
    revealed = shares_of(stage, ["p00"])["p00"]
    (owner, _, share), *rest = revealed.shares
    for changed, said in (
        (dataclasses.replace(revealed, party="p03"), "p03 revealed shares without being a survivor"),
        (dataclasses.replace(revealed, survivors=bytes(32)), "another list of survivors"),
        (dataclasses.replace(revealed, shares=tuple(rest)), "one share of each neighbour"),
        (dataclasses.replace(revealed, shares=((owner, Kind.MASK_KEY, share), *rest)), "one share of each neighbour"),
        (with_share(revealed, "p01", b"short"), "wrong length"),
    ):
        with pytest.raises(Cheated, match=said):
            recovery(stage).add(changed)


def test_no_sum_is_taken_when_a_survivors_block_is_gone(stage):
    stage.reveal(left(stage))
    remove = stage.server._recovery.close()
    with pytest.raises(IntegrityError, match="no longer has block 0 of p00"):
        next(totals(stage.server._group, stage.server.survivors(), remove, MemoryBlocks(stage.context)))


def test_bytes_that_are_no_shares_are_refused(stage):
    data = shares_of(stage, ["p00"])["p00"].encode()
    for wrong in (data[:-1], data.replace(b"seed", b"sead")):
        with pytest.raises(Cheated, match="p00"):
            Revealed.decode(wrong, "p00")
