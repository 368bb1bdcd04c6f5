"""Shares reach the one they are for, and nobody else; shares of another attempt or list do not open."""

import dataclasses

import pytest

from aggregation.errors import COORDINATOR, AttemptLost, Cheated
from aggregation.secure_sum.advertise import Roster, advertise
from aggregation.secure_sum.field import combine
from aggregation.secure_sum.keys import Secrets
from aggregation.secure_sum.opening import group_of
from aggregation.secure_sum.share import Inbox, Parcels, Relay, channels, deal, open_inbox


class Dealt:
    """Five parties' secrets, the group, everything they dealt and what the coordinator relays."""

    def __init__(self, stage):
        self.context, self.names = stage.context, stage.names
        self.secrets = {n: Secrets.draw() for n in stage.names}
        ads = tuple(advertise(stage.context, n, s, stage.signing.signer(n)) for n, s in self.secrets.items())
        self.group = group_of(stage.context, Roster(ads), None)
        self.agreed = {n: channels(self.group, n, s) for n, s in self.secrets.items()}
        self.dealt = {n: deal(self.group, n, s, self.agreed[n]) for n, s in self.secrets.items()}
        relay = Relay(self.group)
        for _, parcels in self.dealt.values():
            relay.add(Parcels.decode(parcels.encode(), parcels.party))
        self.inboxes = relay.close()

    def opened(self, name, inbox=None):
        return open_inbox(self.group, name, self.agreed[name], inbox or self.inboxes[name])


@pytest.fixture
def dealt(scene):
    return Dealt(scene(5))


def test_a_threshold_of_receivers_can_rebuild_both_secrets(dealt):
    held = {n: dealt.opened(n)["p00"] for n in dealt.names[1:]}
    held["p00"] = dealt.dealt["p00"][0]
    chosen = list(held)[: dealt.group.threshold]
    points = dealt.group.points
    assert combine({points[n]: held[n].seed for n in chosen}) == dealt.secrets["p00"].seed
    assert combine({points[n]: held[n].mask_key for n in chosen}) == dealt.secrets["p00"].mask_key.private_bytes_raw()


def test_shares_for_another_receiver_or_of_another_sender_do_not_open(dealt):
    sealed = dict(dealt.inboxes["p01"].sealed)
    swapped = {**sealed, "p02": sealed["p03"], "p03": sealed["p02"]}
    with pytest.raises(Cheated, match="p02 dealt p01 shares that do not open"):
        dealt.opened("p01", Inbox(dealt.group.digest, "p01", tuple(sorted(swapped.items()))))
    for_other = dict(dealt.inboxes["p04"].sealed)
    with pytest.raises(Cheated, match="do not open"):
        dealt.opened("p01", Inbox(dealt.group.digest, "p01", (("p00", for_other["p00"]), *sorted(sealed.items())[1:])))


def test_our_own_shares_thrown_back_at_us_do_not_open(dealt):
    """Both directions of a pair share a secret, and not a key."""
    sealed = {**dict(dealt.inboxes["p01"].sealed), "p02": dict(dealt.dealt["p01"][1].sealed)["p02"]}
    with pytest.raises(Cheated, match="p02 dealt p01 shares that do not open"):
        dealt.opened("p01", Inbox(dealt.group.digest, "p01", tuple(sorted(sealed.items()))))


def test_a_changed_byte_does_not_open(dealt):
    (name, sealed), *rest = dealt.inboxes["p01"].sealed
    for at in (0, 20, len(sealed) - 1):
        wrong = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        with pytest.raises(Cheated, match="p00 dealt p01 shares that do not open"):
            dealt.opened("p01", Inbox(dealt.group.digest, "p01", ((name, wrong), *rest)))


def test_who_cannot_open_its_shares_names_the_dealer_and_says_that_it_may_have_been_the_coordinator(dealt):
    (name, sealed), *rest = dealt.inboxes["p01"].sealed
    with pytest.raises(Cheated, match=r"p00 made them wrongly, .* or the coordinator, .* changed them") as refusal:
        dealt.opened("p01", Inbox(dealt.group.digest, "p01", ((name, sealed[:-1]), *rest)))
    assert refusal.value.who == "p00"


def test_an_inbox_that_is_not_ours_or_not_whole_is_refused(dealt):
    inbox = dealt.inboxes["p01"]
    for changed, said in (
        (dataclasses.replace(inbox, group=bytes(32)), "another attempt, group or party"),
        (dealt.inboxes["p02"], "another attempt, group or party"),
        (dataclasses.replace(inbox, sealed=inbox.sealed[::-1]), "twice or out of order"),
        (dataclasses.replace(inbox, sealed=(*inbox.sealed, inbox.sealed[-1])), "twice or out of order"),
        (dataclasses.replace(inbox, sealed=(*inbox.sealed, ("p99", b""))), "no neighbour"),
        (dataclasses.replace(inbox, sealed=inbox.sealed[:2]), "shares of 2 neighbours; with its own, 4 are needed"),
    ):
        with pytest.raises(Cheated, match=said) as refusal:
            dealt.opened("p01", changed)
        assert refusal.value.who == COORDINATOR


def test_the_coordinator_refuses_parcels_that_are_not_one_a_neighbour(dealt):
    parcels = dealt.dealt["p00"][1]
    for changed, said in (
        (dataclasses.replace(parcels, group=bytes(32)), "another attempt"),
        (dataclasses.replace(parcels, party="p99"), "without having a part"),
        (dataclasses.replace(parcels, sealed=parcels.sealed[1:]), "one pair of shares to each"),
        (dataclasses.replace(parcels, sealed=(*parcels.sealed, ("p99", b""))), "one pair of shares to each"),
        (dataclasses.replace(parcels, sealed=(("p01", b"short"), *parcels.sealed[1:])), "one pair of shares to each"),
    ):
        with pytest.raises(Cheated, match=said):
            Relay(dealt.group).add(changed)
    relay = Relay(dealt.group)
    relay.add(parcels)
    with pytest.raises(Cheated, match="p00 dealt shares twice"):
        relay.add(parcels)
    with pytest.raises(AttemptLost, match="1 parties dealt shares"):
        relay.close()


def test_shares_are_not_printed(dealt):
    assert repr(dealt.dealt["p00"][0]) == "Shares()"


def test_bytes_that_are_no_parcels_or_inbox_are_refused(dealt):
    parcels, inbox = dealt.dealt["p00"][1], dealt.inboxes["p00"]
    assert Inbox.decode(inbox.encode()) == inbox
    with pytest.raises(Cheated, match="p00"):
        Parcels.decode(inbox.encode(), "p00")
    with pytest.raises(Cheated, match="The coordinator sent something else"):
        Inbox.decode(parcels.encode())
