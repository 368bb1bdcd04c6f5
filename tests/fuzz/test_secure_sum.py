"""The secure sum's messages: what the rules forbid raises `Cheated` or `AttemptLost`, in decoders and at both ends."""

import itertools

import pytest

from aggregation.errors import COORDINATOR, AttemptLost, Cheated
from aggregation.secure_sum.advertise import Advertisement, Roster
from aggregation.secure_sum.consistency import Consent, Consents, Survivors
from aggregation.secure_sum.mask import MaskedBlock
from aggregation.secure_sum.opening import Opening, Openings
from aggregation.secure_sum.share import Inbox, Parcels
from aggregation.secure_sum.unmask import Revealed
from aggregation.secure_sum.wire import pack, pack_all, unpack_all

SAID = {
    "advertise": Advertisement,
    "open": Opening,
    "share": Parcels,
    "mask": MaskedBlock,
    "consent": Consent,
    "reveal": Revealed,
}
SHOWN = {
    "advertised": Roster,
    "opened": Openings,
    "relayed": Inbox,
    "survived": Survivors,
    "consented": Consents,
}
DRAWN = 17
"""Parties above whose number a graph is drawn, so that nonces are opened."""


class Heard:
    """A whole sum: what parties said and were shown, and the ends as they were when each message was due."""

    def __init__(self, scenes):
        self.said, self.shown, self.ends = {}, {}, {}
        scene = scenes(DRAWN, dropouts=2, colluders=2)
        for stage, name in itertools.pairwise(["", *scene.ROUNDS]):
            self.ends[name] = scenes(DRAWN, dropouts=2, colluders=2)
            if stage:
                self.ends[name].up_to(stage)
            getattr(scene, name)(scene.names)
        server = scene.server
        self.said = {stage: [data for _, data in sent][:6] for stage, sent in scene.sent.items()}
        self.shown = {
            "advertised": [server.roster().encode()],
            "opened": [server.openings().encode()],
            "relayed": [each.encode() for each in server.inboxes().values()][:4],
            "survived": [server.survivors().encode()],
            "consented": [server.consents().encode()],
        }


@pytest.fixture(scope="module")
def heard(tests):
    return Heard(tests("aggregation/secure_sum/conftest.py").Scene)


def damaged(hostile, valid):
    """Messages damaged as bytes, or field by field, at two depths, and packed again, so that their lengths fit."""

    def make(rng):
        if rng.random() < 0.4:
            return hostile.damage(rng, *valid)
        fields = unpack_all(rng.choice(valid), COORDINATOR)
        for change in hostile.changes(rng, 6):
            fields = changed(hostile, fields, *change)
        return pack_all(fields)

    return hostile.made(make)


def changed(hostile, fields, kind, one, other):
    place = one % max(1, len(fields))
    before, after = fields[:place], fields[place + 1 :]
    if fields and kind < 3:
        try:
            inner = unpack_all(fields[place], COORDINATOR)
        except Cheated:
            inner = []
        if inner:
            return [*before, pack_all(changed(hostile, inner, kind + 2, other, one)), *after]
    match kind:
        case 0 | 3:
            return [*before, hostile.NAMES[other % len(hostile.NAMES)].encode("utf-8", "surrogatepass"), *after]
        case 1 | 4:
            return [*before, bytes(hostile.SIZES[other % len(hostile.SIZES)]), *after]
        case 2:
            return [*before, *after]
    return fields + fields[place : place + 1] * (1 + other % 40)


@pytest.mark.parametrize("stage", SAID)
def test_what_a_party_says_is_read_or_it_cheated_and_cannot_hurt_the_coordinator(fuzz, hostile, heard, stage):
    kind, server = SAID[stage], heard.ends[stage].server
    if stage not in ("advertise", "open"):
        server.roster(), server.openings()
    take = {
        "advertise": server.advertised,
        "open": server.opened,
        "share": server.dealt,
        "mask": server.masked,
        "consent": server.consented,
        "reveal": server.revealed,
    }[stage]
    close = {"open": server.roster, "mask": server.inboxes, "consent": server.survivors, "reveal": server.consents}
    close.get(stage, lambda: None)()

    @fuzz(damaged(hostile, heard.said[stage]), share=0.5)
    def _(data):
        for who in ("p03", COORDINATOR):
            try:
                message = kind.decode(data, who)
                assert kind.decode(message.encode(), who).encode() == message.encode()
                take(message)
            except (Cheated, AttemptLost) as error:
                hostile.check_sentence(error)


@pytest.mark.parametrize("shown", SHOWN)
def test_what_the_coordinator_shows_is_read_or_it_cheated_and_cannot_hurt_a_party(fuzz, hostile, heard, shown):
    kind = SHOWN[shown]
    stage = {"advertised": "open", "opened": "share", "relayed": "receive", "survived": "consent"}.get(shown, "reveal")
    party = heard.ends[stage].parties["p03"]
    take = {
        "advertised": party.open,
        "opened": party.share,
        "relayed": party.receive,
        "survived": party.consent,
        "consented": party.reveal,
    }[shown]

    @fuzz(damaged(hostile, heard.shown[shown]), share=0.5)
    def _(data):
        try:
            message = kind.decode(data)
            assert message.encode() == kind.decode(message.encode()).encode()
            take(message)
        except (Cheated, AttemptLost) as error:
            hostile.check_sentence(error)


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "x" * 201, "\u202eevil", "\0"])
def test_a_name_that_nobody_could_be_shown_is_refused(hostile, name):
    with pytest.raises(Cheated, match="cannot be shown") as caught:
        Survivors.decode(pack("conclave secure sum survivors v1", bytes(32), pack_all([name])))
    hostile.check_sentence(caught.value)


def test_a_message_of_very_many_fields_is_refused_without_listing_them(hostile):
    with pytest.raises(Cheated, match="with 50000 fields, not 2") as caught:
        Survivors.decode(pack("conclave secure sum survivors v1", *(50_000 * [b""])))
    hostile.check_sentence(caught.value)
