"""A party answers each round once: the same question again gets the same answer, another gets none."""

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from aggregation.errors import Cheated
from aggregation.secure_sum.advertise import Roster
from aggregation.secure_sum.opening import Openings
from aggregation.secure_sum.participant import Attempts
from aggregation.secure_sum.share import Inbox


def test_the_same_question_gets_the_same_answer(scene):
    stage = scene(5)
    stage.up_to("mask")
    roster, inbox = stage.server.roster(), stage.server.inboxes()["p00"]
    party = stage.parties["p00"]
    assert party.advertise() == party.advertise()
    assert party.share(Roster.decode(roster.encode())) == party.share(roster)
    masking = party._masking
    party.receive(Inbox.decode(inbox.encode()))
    assert party._masking is masking


def test_another_list_of_parties_after_the_first_is_refused(scene):
    stage = scene(5)
    stage.up_to("share")
    with pytest.raises(Cheated, match="showed a list of parties to p00 twice"):
        stage.parties["p00"].share(Roster(stage.server.roster().advertisements[:4]))


def test_another_list_after_the_nonce_was_opened_is_refused(scene):
    stage = scene(18, dropouts=2)
    stage.up_to("share")
    with pytest.raises(Cheated, match="showed a list of advertisements to p00 twice"):
        stage.parties["p00"].open(Roster(stage.server.roster().advertisements[:17]))
    with pytest.raises(Cheated, match="showed a list of parties to p00 twice"):
        stage.parties["p00"].share(Openings(stage.server.openings().openings[:17]))


def test_other_shares_after_the_first_are_refused(scene):
    stage = scene(5)
    stage.up_to("receive")
    inbox = stage.server.inboxes()["p00"]
    with pytest.raises(Cheated, match="relayed shares to p00 twice"):
        stage.parties["p00"].receive(Inbox(inbox.group, inbox.party, inbox.sealed[1:]))


def test_two_lists_of_survivors_asked_about_at_once_get_one_signature(scene, monkeypatch):
    stage = scene(6)
    stage.up_to("mask")
    party, full = stage.parties["p00"], stage.server.survivors()
    honest, signed = party._sign, []

    def slow(statement):
        time.sleep(0.05)
        signed.append(statement)
        return honest(statement)

    monkeypatch.setattr(party, "_sign", slow)
    lists = (full, dataclasses.replace(full, names=full.names[:5]))
    with ThreadPoolExecutor(2) as pool:
        outcomes = [each.exception() for each in [pool.submit(party.consent, survivors) for survivors in lists]]
    assert len(signed) == 1
    assert sorted(type(outcome) for outcome in outcomes if outcome) == [Cheated]


def test_rounds_are_not_skipped(scene):
    stage = scene(18)
    stage.up_to("open")
    party = scene(18).parties["p00"]
    with pytest.raises(Cheated, match="asks p00 for nonces before"):
        party.share(stage.server.openings())
    with pytest.raises(Cheated, match="asks p00 for shares before"):
        party.receive(Inbox(bytes(32), "p00", ()))
    with pytest.raises(Cheated, match="asks p00 for masked blocks before"):
        party.block(stage.vectors["p00"][:16])


def test_an_attempt_is_begun_once_and_a_later_one_may_follow(scene):
    attempts = Attempts()
    attempts.begin(scene(5).context)
    with pytest.raises(Cheated, match="attempt 0, of run run again; a retry is a new attempt"):
        attempts.begin(scene(5).context)
    attempts.begin(scene(5, attempt=2).context)
    with pytest.raises(Cheated, match="attempt 1"):
        attempts.begin(scene(5, attempt=1).context)
    attempts.begin(scene(5, run="another").context)


def test_only_a_party_of_the_sum_takes_part(scene):
    stage = scene(5)
    stage.remembered["p99"] = []
    with pytest.raises(ValueError, match="'p99' has no part"):
        stage.participant("p99")
