"""Advertisements are bound to one attempt and one pinned key; a list that not everybody could be shown is refused."""

import dataclasses

import pytest

from aggregation.errors import COORDINATOR, AttemptLost, Cheated
from aggregation.secure_sum.advertise import Advertisement, Advertisements, Roster, advertise, check_roster
from aggregation.secure_sum.keys import Secrets


@pytest.fixture
def made(scene):
    """A scene, everybody's advertisements and the list of them."""
    stage = scene(5)
    all_ = {n: stage.parties[n].advertise() for n in stage.names}
    return stage, all_, Roster(tuple(all_.values()))


def test_a_list_comes_back_from_its_bytes_and_every_field_counts(made):
    stage, all_, roster = made
    assert Roster.decode(roster.encode()) == roster
    one = all_["p01"]
    for field in ("context", "share_key", "mask_key", "seed_hash", "nonce_hash"):
        changed = dataclasses.replace(one, **{field: bytes(32)})
        other = Roster((all_["p00"], changed, *(all_[n] for n in stage.names[2:])))
        assert other.digest != roster.digest
        with pytest.raises(Cheated, match="p01 advertised"):
            check_roster(stage.context, other, all_["p00"], stage.signing.verify)


def test_an_honest_list_is_accepted_by_all_even_without_the_drop_outs(made):
    stage, all_, roster = made
    for n in stage.names:
        check_roster(stage.context, roster, all_[n], stage.signing.verify)
    shorter = Roster(roster.advertisements[:4])
    check_roster(stage.context, shorter, all_["p00"], stage.signing.verify)


def test_a_list_without_us_or_with_other_keys_of_ours_is_refused(made):
    stage, all_, roster = made
    other = advertise(stage.context, "p00", Secrets.draw(), stage.signing.signer("p00"))
    for shown in (Roster(roster.advertisements[1:]), Roster((other, *roster.advertisements[1:]))):
        with pytest.raises(Cheated, match="without the advertisement that p00 sent") as refusal:
            check_roster(stage.context, shown, all_["p00"], stage.signing.verify)
        assert refusal.value.who == COORDINATOR


def test_a_list_too_short_twice_or_out_of_order_is_refused(made):
    stage, all_, roster = made
    ads = roster.advertisements
    for shown, said in (
        (ads[:3], "needs at least 4"),
        ((*ads, ads[4]), "twice or out of order"),
        ((ads[1], ads[0], *ads[2:]), "twice or out of order"),
    ):
        with pytest.raises(Cheated, match=said):
            check_roster(stage.context, Roster(shown), all_["p00"], stage.signing.verify)


def test_a_copied_key_is_refused(made):
    stage, all_, _ = made
    copied = dataclasses.replace(all_["p02"], mask_key=all_["p01"].mask_key)
    copied = dataclasses.replace(copied, signature=stage.signing.sign("p02", copied.statement))
    shown = Roster((all_["p00"], all_["p01"], copied, all_["p03"], all_["p04"]))
    with pytest.raises(Cheated, match="p02 advertised a key that p01 advertised too"):
        check_roster(stage.context, shown, all_["p00"], stage.signing.verify)


def test_a_stranger_on_the_list_is_refused(made):
    stage, all_, roster = made
    stranger = dataclasses.replace(all_["p04"], party="p99")
    with pytest.raises(Cheated, match="p99"):
        check_roster(stage.context, Roster((*roster.advertisements[:4], stranger)), all_["p00"], stage.signing.verify)


def test_the_coordinator_waits_for_enough_and_keeps_the_first_of_each(made):
    stage, all_, _ = made
    collected = Advertisements(stage.context, stage.signing.verify)
    for n in stage.names[:3]:
        collected.add(all_[n])
    with pytest.raises(AttemptLost, match="3 parties advertised"):
        collected.close()
    collected.add(all_["p03"])
    collected.add(all_["p03"])
    assert [a.party for a in collected.close().advertisements] == stage.names[:4]
    again = advertise(stage.context, "p03", Secrets.draw(), stage.signing.signer("p03"))
    with pytest.raises(Cheated, match="p03 advertised two different sets of keys"):
        collected.add(again)


def test_bytes_that_are_no_advertisement_name_their_sender(made):
    _, all_, _ = made
    data = all_["p00"].encode()
    for wrong in (b"", data[:-1], data + b"x", b"\xff" * 40):
        with pytest.raises(Cheated, match="p00"):
            Advertisement.decode(wrong, "p00")
    with pytest.raises(Cheated, match="p01 sent a message in the name of 'p00'"):
        Advertisement.decode(data, "p01")
