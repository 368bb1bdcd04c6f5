"""One list of survivors an attempt, long enough, with us in it, signed by enough of those on it."""

import dataclasses

import pytest

from aggregation.errors import COORDINATOR, AttemptLost, Cheated
from aggregation.secure_sum.consistency import Agreement, Consent, Consents, Survivors, check_consents


@pytest.fixture
def stage(scene):
    """Six parties whose vectors have arrived; one may be lost, one colludes, so four signatures are needed."""
    made = scene(6)
    made.up_to("mask")
    return made


def test_every_field_of_a_list_counts_and_it_comes_back(stage):
    survivors = stage.server.survivors()
    assert Survivors.decode(survivors.encode()) == survivors
    assert survivors.digest != dataclasses.replace(survivors, group=bytes(32)).digest
    assert survivors.digest != dataclasses.replace(survivors, names=survivors.names[1:]).digest


def test_a_list_that_protects_too_few_is_refused(stage):
    survivors = stage.server.survivors()
    names = survivors.names
    for changed, said in (
        (names[:4], "sum of 4 parties; .* needs the noise of 5"),
        (names[1:], "counts p00 as lost"),
        ((*names, "p99"), "took no part"),
        ((*names, names[-1]), "twice, out of order"),
        ((names[1], names[0], *names[2:]), "twice, out of order"),
    ):
        with pytest.raises(Cheated, match=said) as refusal:
            stage.parties["p00"].consent(dataclasses.replace(survivors, names=changed))
        assert refusal.value.who == COORDINATOR
    with pytest.raises(Cheated, match="another attempt"):
        stage.parties["p00"].consent(dataclasses.replace(survivors, group=bytes(32)))
    assert stage.parties["p00"].consent(survivors).party == "p00"


def test_a_party_signs_one_list_and_the_same_again(stage):
    survivors = stage.server.survivors()
    first = stage.parties["p00"].consent(survivors)
    assert stage.parties["p00"].consent(survivors) == first
    with pytest.raises(Cheated, match=r"showed a list of survivors to p00 twice .* and not the same"):
        stage.parties["p00"].consent(dataclasses.replace(survivors, names=survivors.names[:5]))


def test_a_party_signs_nothing_before_its_vector_has_left(scene):
    early = scene(6)
    early.up_to("receive")
    with pytest.raises(Cheated, match="asks p00 for consent before"):
        early.parties["p00"].consent(Survivors(early.server._group.digest, tuple(early.names)))


def test_too_few_foreign_or_forged_signatures_reveal_nothing(stage):
    survivors = stage.server.survivors()
    given = [stage.parties[n].consent(survivors) for n in stage.names]
    group, verify = stage.server._group, stage.signing.verify
    check_consents(group, survivors, Consents(tuple(given[:4])), verify)
    other = dataclasses.replace(survivors, names=survivors.names[:5])
    signature = stage.signing.sign("p05", given[0].signature)
    for consents, said in (
        (given[:3], "signatures of 3 parties; 4 are needed"),
        ([given[0]] * 6, "signatures of 1 parties; 4 are needed"),
        ([*given[:5], dataclasses.replace(given[5], survivors=other.digest)], "p05 signed another list"),
        ([*given[:5], dataclasses.replace(given[5], signature=signature)], "p05 signed .* not the one pinned"),
        ([*given[:5], dataclasses.replace(given[5], party="p99")], "p99 signed a list .* does not stand"),
        ([*given[:5], dataclasses.replace(given[5], party="p00")], "p00 signed .* not the one pinned"),
    ):
        with pytest.raises(Cheated, match=said):
            check_consents(group, survivors, Consents(tuple(consents)), verify)
        with pytest.raises(Cheated, match=said):
            stage.parties["p00"].reveal(Consents(tuple(consents)))
    assert stage.remembered["p00"] == []


def test_the_coordinator_shows_as_many_signatures_as_are_needed(stage):
    agreement = Agreement(stage.server._group, stage.names, stage.signing.verify)
    for n in stage.names[:3]:
        agreement.add(stage.parties[n].consent(agreement.survivors))
    assert not agreement.enough
    with pytest.raises(AttemptLost, match="3 parties signed"):
        agreement.close()
    for n in stage.names[3:]:
        agreement.add(stage.parties[n].consent(agreement.survivors))
    assert len(agreement.close().consents) == stage.context.threshold
    assert Consents.decode(agreement.close().encode()) == agreement.close()


def test_nothing_is_agreed_on_with_too_few_whole_vectors(stage):
    with pytest.raises(AttemptLost, match=r"4 masked vectors .* are whole"):
        Agreement(stage.server._group, stage.names[:4], stage.signing.verify)


def test_a_consent_in_anothers_name_is_refused(stage):
    given = stage.parties["p00"].consent(stage.server.survivors())
    with pytest.raises(Cheated, match="p01 sent a message in the name of 'p00'"):
        Consent.decode(given.encode(), "p01")
