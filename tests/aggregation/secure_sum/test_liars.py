"""Every way to lie that we know of, each refused by the side that can see it, by name."""

import dataclasses

import numpy as np
import pytest

from aggregation.errors import COORDINATOR, Cheated, ConclaveError
from aggregation.secure_sum.advertise import Advertisement, Roster, advertise
from aggregation.secure_sum.consistency import Consents, Survivors
from aggregation.secure_sum.keys import Secrets
from aggregation.secure_sum.mask import MaskedBlock
from aggregation.secure_sum.opening import group_of
from aggregation.secure_sum.participant import Attempts, Participant
from aggregation.secure_sum.share import Inbox, channels, deal


def signed_advertisement(stage, name, secrets, context=None, signing=None):
    return advertise(context or stage.context, name, secrets, (signing or stage.signing).signer(name))


# A party that lies


def test_a_vector_of_the_wrong_length(scene):
    stage = scene(5, length=40)
    stage.up_to("receive")
    block = stage.parties["p02"].block(stage.vectors["p02"][:16])
    for cells in (block.cells[:-1], np.append(block.cells, np.uint32(0))):
        short = MaskedBlock.decode(dataclasses.replace(block, cells=cells).encode(), "p02")
        with pytest.raises(Cheated, match=r"p02 sent masked block 0 with 1[57] cells; it has 16"):
            stage.server.masked(short)


def test_a_vector_with_more_blocks_than_it_has(scene):
    stage = scene(5, length=16)
    stage.up_to("mask")
    more = MaskedBlock(stage.server._group.digest, "p02", 1, np.zeros(16, dtype=np.uint32))
    with pytest.raises(Cheated, match="p02 sent masked block 1 where 1 of 1 was due"):
        stage.server.masked(more)


@pytest.mark.parametrize("count", [5, 18])
@pytest.mark.parametrize("other", [{"attempt": 1}, {"run": "another"}])
def test_a_message_of_an_earlier_attempt_or_another_run(scene, count, other):
    old, new = scene(count), scene(count, **other)
    old.up_to("consent")
    with pytest.raises(Cheated, match="p02 advertised keys for another run, plan, attempt"):
        new.server.advertised(old.parties["p02"].advertise())
    new.up_to("advertise")
    if count == 18:
        new.server.roster()
        opened = old.parties["p02"].open(old.server.roster())
        with pytest.raises(Cheated, match="p02 opened its nonce for another list"):
            new.server.opened(opened)
    new.open(new.names)
    shown = old.server.openings() if count == 18 else old.server.roster()
    if count == 18:
        new.server.openings()
    with pytest.raises(Cheated, match="p02 dealt shares for another attempt"):
        new.server.dealt(old.parties["p02"].share(shown))
    new.share(new.names)
    new.receive(new.names)
    replayed = MaskedBlock.decode(old.sent["mask"][2][1], "p02")
    with pytest.raises(Cheated, match="p02 sent a masked block of another run, attempt"):
        new.server.masked(replayed)
    new.mask(new.names)
    new.server.survivors()
    with pytest.raises(Cheated, match="p02 signed another list of survivors"):
        new.server.consented(old.parties["p02"].consent(old.server.survivors()))
    new.consent(new.names)
    with pytest.raises(Cheated, match="p02 revealed shares for another attempt"):
        new.server.revealed(old.parties["p02"].reveal(old.server.consents()))
    new.reveal(new.names)
    assert np.array_equal(new.total(), new.expected(new.names))


def test_another_identity_in_a_partys_place(scene, signing):
    stage = scene(5)
    minted = signed_advertisement(stage, "p02", Secrets.draw(), signing=signing("minted by the coordinator"))
    with pytest.raises(Cheated, match=r"p02 advertised .* not of the key pinned for it: someone else"):
        stage.server.advertised(minted)
    honest = [stage.parties[n].advertise() for n in stage.names]
    with pytest.raises(Cheated, match=r"p02 advertised .* not of the key pinned") as refusal:
        stage.parties["p00"].share(Roster((*honest[:2], minted, *honest[3:])))
    assert refusal.value.who == "p02"


def test_shares_dealt_of_something_else(scene):
    """The coordinator finds out when it rebuilds, and nobody's vector is open."""
    stage = scene(5)
    stage.up_to("open")
    liar = stage.parties["p02"]
    honest = liar._secrets
    liar._secrets = dataclasses.replace(honest, seed=bytes(32))
    stage.share(stage.names)
    liar._secrets = honest
    for round_ in ("receive", "mask", "consent", "reveal"):
        getattr(stage, round_)(stage.names)
    with pytest.raises(Cheated, match="p02 dealt shares of its seed that do not reconstruct it, or one of p00, p01"):
        stage.server.totals()


def test_one_bad_share_dealt_to_one_peer(scene):
    stage = scene(6)
    stage.up_to("open")
    roster = stage.server.roster()
    group = group_of(stage.context, roster, None)
    secrets = stage.parties["p02"]._secrets
    wrong = deal(group, "p02", secrets, channels(group, "p02", secrets))[1]
    stage.share(stage.names)
    inboxes = stage.server.inboxes()
    sealed = {**dict(inboxes["p00"].sealed), "p02": dict(wrong.sealed)["p00"]}
    inboxes["p00"] = dataclasses.replace(inboxes["p00"], sealed=tuple(sorted(sealed.items())))
    for n in stage.names:
        stage.parties[n].receive(inboxes[n])
    for round_ in ("mask", "consent", "reveal"):
        getattr(stage, round_)(stage.names)
    assert np.array_equal(stage.total(), stage.expected(stage.names))
    assert [(m.who, "unless p02 dealt it so" in str(m)) for m in stage.server.misfits] == [("p00", True)]


def test_two_sets_of_keys_from_one_party(scene):
    stage = scene(5)
    stage.up_to("advertise")
    with pytest.raises(Cheated, match="p02 advertised two different sets of keys"):
        stage.server.advertised(signed_advertisement(stage, "p02", Secrets.draw()))


# A party and the coordinator that lie together, or the coordinator alone


def two_views(stage):
    """Rosters that differ in p04's keys, both of them signed by p04."""
    honest = [stage.parties[n].advertise() for n in stage.names]
    other = signed_advertisement(stage, "p04", Secrets.draw())
    return Roster(tuple(honest)), Roster((*honest[:4], other))


def test_two_different_keys_to_two_peers_are_found_when_shares_are_opened(scene):
    stage = scene(5)
    one, other = two_views(stage)
    parcels = {n: stage.parties[n].share(one if n == "p00" else other) for n in stage.names[:4]}
    group = group_of(stage.context, one, None)
    sealed = tuple((n, dict(parcels[n].sealed)["p00"]) for n in ("p01", "p02", "p03"))
    with pytest.raises(Cheated, match=r"p01 dealt p00 shares that do not open: p01 made them wrongly"):
        stage.parties["p00"].receive(Inbox(group.digest, "p00", sealed))


def test_two_different_keys_to_two_peers_are_found_at_consistency(scene):
    stage = scene(5)
    stage.up_to("mask")
    _, other = two_views(stage)
    theirs = Survivors(group_of(stage.context, other, None).digest, tuple(stage.names))
    with pytest.raises(Cheated, match="another attempt or another list of parties") as refusal:
        stage.parties["p00"].consent(theirs)
    assert refusal.value.who == COORDINATOR
    ours = stage.server.survivors()
    given = {n: stage.parties[n].consent(ours) for n in stage.names}
    misled = dataclasses.replace(given["p03"], survivors=theirs.digest)
    with pytest.raises(Cheated, match="p03 signed another list of survivors: not everybody was shown the same keys"):
        stage.parties["p00"].reveal(Consents((given["p01"], given["p02"], misled, given["p04"])))


def test_a_coordinator_that_drops_honest_parties_to_isolate_one(scene):
    stage = scene(6)
    stage.up_to("mask")
    alone = Survivors(stage.server._group.digest, ("p00", "p05"))
    with pytest.raises(Cheated, match=r"wants to unmask the sum of 2 parties; .* single a party out") as refusal:
        stage.parties["p00"].consent(alone)
    assert refusal.value.who == COORDINATOR


@pytest.mark.parametrize("count", [8, 18])
def test_a_coordinator_that_keeps_survivors_apart_by_withholding_shares(scene, count):
    """Without masks between them, sums of parts would come out. Each share withheld is found at consistency."""
    stage = scene(count, dropouts=2)
    stage.up_to("share")
    inboxes = stage.server.inboxes()
    kept = inboxes["p00"].sealed[0][0]
    inboxes["p00"] = dataclasses.replace(inboxes["p00"], sealed=inboxes["p00"].sealed[1:])
    for n in stage.names:
        stage.parties[n].receive(inboxes[n])
    stage.mask(stage.names)
    survivors = stage.server.survivors()
    with pytest.raises(Cheated, match=f"counts {kept} as a survivor and kept its shares from p00"):
        stage.parties["p00"].consent(survivors)


def test_a_coordinator_that_shows_different_lists_of_survivors(scene):
    """Two lists in six parties, four signatures needed: neither finds them, and nobody reveals anything."""
    stage = scene(6)
    stage.up_to("mask")
    group = stage.server._group.digest
    lists = Survivors(group, tuple(stage.names)), Survivors(group, tuple(stage.names[:5]))
    given = [[stage.parties[n].consent(lists[0]) for n in ("p00", "p01", "p05")]]
    given.append([stage.parties[n].consent(lists[1]) for n in ("p02", "p03", "p04")])
    for n in stage.names:
        mine = 0 if n in ("p00", "p01", "p05") else 1
        with pytest.raises(Cheated, match=r"signed another list|does not stand"):
            stage.parties[n].reveal(Consents((*given[mine], *given[1 - mine])))
        with pytest.raises(Cheated, match="signatures of 3 parties; 4 are needed"):
            stage.parties[n].reveal(Consents(tuple(given[mine])))
    assert not any(stage.remembered.values())


def test_a_coordinator_that_asks_the_same_attempt_twice(scene):
    stage = scene(5)
    attempts = Attempts()
    ends = {
        "attempts": attempts,
        "sign": stage.signing.signer("p00"),
        "verify": stage.signing.verify,
        "remember": lambda _: None,
    }
    Participant(stage.context, "p00", **ends)
    with pytest.raises(Cheated, match=r"The coordinator asks for sum 'votes', attempt 0, .* again"):
        Participant(stage.context, "p00", **ends)


def test_a_coordinator_that_lowers_the_threshold(scene):
    stage = scene(8)
    with pytest.raises(ConclaveError, match="not safe"):
        dataclasses.replace(stage.context, threshold=4)
    stage.up_to("consent")
    consents = stage.server.consents()
    with pytest.raises(Cheated, match="signatures of 4 parties; 5 are needed"):
        stage.parties["p00"].reveal(Consents(consents.consents[:4]))


@pytest.mark.parametrize("change", [{"colluders": 0, "threshold": 5}, {"dropouts": 2}, {"plan_hash": "00"}])
def test_a_coordinator_that_runs_peers_under_another_plan(scene, change):
    """Fewer colluders, more drop-outs (so less noise) or an old plan: their keys are of another context."""
    stage = scene(8)
    other = dataclasses.replace(stage.context, **change)
    honest = stage.parties["p00"].advertise()
    weaker = [signed_advertisement(stage, n, Secrets.draw(), other) for n in stage.names[1:]]
    with pytest.raises(Cheated, match="p01 advertised keys for another run, plan, attempt or threshold"):
        stage.parties["p00"].share(Roster((honest, *weaker)))


def test_a_coordinator_that_forges_a_keyless_peer(scene):
    stage = scene(5)
    honest = [stage.parties[n].advertise() for n in stage.names]
    forged = Advertisement(stage.context.digest, "p04", *(bytes([i]) * 32 for i in range(1, 5)), b"")
    with pytest.raises(Cheated, match="p04 advertised keys under a signature"):
        stage.parties["p00"].share(Roster((*honest[:4], forged)))


def test_a_key_of_low_order_is_refused_before_anything_is_masked_with_it(scene):
    stage = scene(5)
    honest = [stage.parties[n].advertise() for n in stage.names]
    unsigned = dataclasses.replace(honest[4], share_key=bytes(32))
    forced = dataclasses.replace(unsigned, signature=stage.signing.sign("p04", unsigned.statement))
    with pytest.raises(Cheated, match="p04 advertised a key that is no X25519 key"):
        stage.parties["p00"].share(Roster((*honest[:4], forced)))
