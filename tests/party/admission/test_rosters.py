"""Releases that are of some parties alone: a party's policy, budget and company are asked for its own, and a
coordinator that divides parties as it likes gains nothing.
"""

import pytest

from aggregation.accounting.price import price
from party.admission.admit import admit, affordable, event_of
from party.ledger.accounts import read_account
from protos.conclave.v1 import plan_pb2
from protos.refusal import Reason, Refusal
from protos.roster import own_terms

ALL = ["east", "north", "south"]
SECURE = plan_pb2.TRUST_SECURE_SUM
SOME_KEY = "SHA256:" + "0" * 64
PINNED = {"peers": dict.fromkeys(("east", "south"), SOME_KEY)}
OPEN = {"policy": {"recipes": ["dped"], "weights": False}}


def of(release, *parties, **changes):
    """A copy of a release that is of these parties alone."""
    made = plan_pb2.Release.FromString(release.SerializeToString())
    made.roster.parties.extend(parties)
    for name, value in changes.items():
        setattr(made.counts, name, value)
    return made


@pytest.fixture
def counts(terms):
    return terms().releases[0]


@pytest.fixture
def answers(releases):
    (found,) = releases("joint")
    return found


@pytest.fixture
def divided(terms, counts, answers):
    """Terms of counts of north and south, and of answers of others, which cost more than anybody admits."""
    loud = plan_pb2.Release.FromString(answers.SerializeToString())
    loud.charges = 400
    plan = {"parties": ALL, "minimum_parties": 3}
    return lambda *others, **more: terms(
        releases=[of(counts, "north", "south"), of(loud, *(others or ("east", "south")))], **plan | more
    )


def refused(plan, config):
    with pytest.raises(Refusal) as found:
        admit(plan, config)
    return found.value


@pytest.mark.slow
def test_what_is_of_others_is_neither_priced_nor_held_against_the_policy(divided, config, counts):
    plan = divided()
    own = config(**PINNED)
    assert admit(plan, own) is None
    theirs = event_of(plan.releases[1])
    assert price([theirs], plan.privacy.delta).epsilon > plan.privacy.epsilon
    assert affordable(own_terms(plan, "north")) == [("counts", event_of(counts))]


@pytest.mark.slow
def test_a_party_in_both_bears_both(divided, config):
    refusal = refused(divided("north", "south"), config(**PINNED))
    assert refusal.reason == Reason.PLAN
    assert "above the 8 it promises" in refusal.sentence


def test_two_that_it_could_bear_alone_are_priced_together(terms, counts, answers, config):
    one, other = price([event_of(counts)], 1e-6).epsilon, price([event_of(answers)], 1e-6).epsilon
    most = 1.01 * max(one, other)
    plan = {"parties": ALL, "minimum_parties": 3, "epsilon": most}
    divided = terms(releases=[of(counts, "north", "south"), of(answers, "east", "south")], **plan)
    assert admit(divided, config(**PINNED)) is None
    both = terms(releases=[of(counts, "north", "south"), of(answers, "east", "north")], **plan)
    assert "it promises" in refused(both, config(**PINNED)).sentence


@pytest.mark.parametrize(
    "parties",
    [("south", "north"), ("north", "north"), ("north", "site-1"), ALL],
    ids=["order", "twice", "strange", "all"],
)
def test_a_roster_that_cannot_be_is_refused(terms, counts, config, parties):
    plan = terms(parties=ALL, minimum_parties=3, releases=[of(counts, *parties)])
    refusal = refused(plan, config(**PINNED))
    assert refusal.reason == Reason.PLAN
    assert "the parties of release counts are not some of the plan's" in refusal.sentence


def test_others_cannot_hide_one_that_cannot_be(divided, config):
    plan = divided()
    plan.releases[1].roster.parties[:] = ["south", "east"]
    assert "release answers" in refused(plan, config(**PINNED)).sentence


def test_one_name_for_two_releases_of_different_parties_is_refused(terms, counts, config):
    plan = terms(parties=ALL, minimum_parties=3, releases=[of(counts, "north", "south"), of(counts, "east")])
    assert "release counts is listed twice" in refused(plan, config(**PINNED)).sentence


def test_a_party_without_any_release_is_not_in_the_run(terms, counts, config):
    plan = terms(parties=ALL, minimum_parties=3, releases=[of(counts, "east", "south")])
    refusal = refused(plan, config(**PINNED))
    assert refusal.reason == Reason.PLAN
    assert "this party, north, has a part in none of its releases" in refusal.sentence


def test_what_no_plan_of_the_recipe_has_is_refused_though_it_is_of_others(terms, counts, releases, config):
    (training,) = releases("training")
    plan = terms(parties=ALL, minimum_parties=3, releases=[of(counts, "north", "south"), of(training, "east")])
    assert "never releases these together" in refused(plan, config(**PINNED)).sentence


def test_noise_is_counted_on_from_those_in_the_same_sum_alone(terms, counts, config):
    plan = {"parties": ALL, "minimum_parties": 3, "shares": 3}
    assert admit(terms(**plan), config(**PINNED)) is None
    divided = terms(
        releases=[of(counts, "north", "south", shares=3)],
        parties=ALL,
        minimum_parties=3,
    )
    refusal = refused(divided, config(**PINNED))
    assert refusal.reason == Reason.PLAN
    assert (
        "counts on 3 noise shares; with the dropouts and colluders it allows, 2 may be all there are"
        in refusal.sentence
    )


def test_parties_that_are_pinned_and_in_another_sum_are_no_company(terms, counts, config):
    """Everybody whom north knows is in the plan, and none of them in its sum: an invented party alone would know all of
    the noise but north's.
    """
    names = ["east", "north", "site-1", "south"]
    plan = {"parties": names, "minimum_parties": 4}
    assert admit(terms(releases=[of(counts, "north", "south")], **plan), config(**PINNED)) is None
    beside = terms(releases=[of(counts, "north", "site-1")], **plan)
    refusal = refused(beside, config(**PINNED))
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "shares")
    secure = terms(releases=[of(counts, "north", "site-1", shares=1)], trust=SECURE, **plan)
    assert refused(secure, config(policy={"trust": "secure-sum"}, **PINNED)).rule == "peers"


def test_a_policy_that_wants_company_counts_those_in_the_same_sum(terms, counts, config):
    plan = {"parties": ALL, "minimum_parties": 3}
    wants = config(policy={"minimum_parties": 3}, **PINNED)
    assert admit(terms(**plan, shares=3), wants) is None
    refusal = refused(terms(releases=[of(counts, "north", "south")], **plan), wants)
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "minimum_parties")


def test_of_a_roster_as_many_must_stay_as_its_noise_counts_on(terms, counts, config):
    """Of three parties two may be left: of two of these, one."""
    plan = terms(parties=ALL, minimum_parties=2, releases=[of(counts, "north", "south")])
    assert (
        "it would go on with 1 parties, and release counts counts on 2 noise shares"
        in refused(plan, config(**PINNED)).sentence
    )


def test_a_secure_sum_is_safe_among_its_own_parties(terms, counts, config):
    names = ["east", "north", "south", "west"]
    plan = {"parties": names, "minimum_parties": 3, "dropouts": 1, "trust": SECURE}
    own = config(policy={"trust": "secure-sum"}, peers=dict.fromkeys(("east", "south", "west"), SOME_KEY))
    assert admit(terms(releases=[of(counts, "east", "north", "south", shares=2)], **plan), own) is None
    refusal = refused(terms(releases=[of(counts, "north", "south", shares=1)], **plan), own)
    assert "of 2 parties, 1 dropouts and 0 colluders are too many for a secure sum" in refusal.sentence


@pytest.mark.usefixtures("trains_here")
async def test_a_release_of_others_cannot_be_asked_and_is_charged_to_nobody_here(
    opened, terms, counts, answers, tmp_path
):
    """Whatever is asked of it: training, answering, a round of a secure sum; also after the node was restarted."""
    plan = terms(parties=ALL, minimum_parties=3, releases=[of(counts, "north", "south"), of(answers, "east", "south")])
    caller = await opened(plan=plan)
    await caller.join()
    for _ in range(2):
        await caller.provide()
        await caller.provide_reference()
        with pytest.raises(Refusal, match='the plan has no release "answers"; it has counts') as found:
            await caller.teach()
        assert found.value.reason == Reason.REQUEST
        with pytest.raises(Refusal, match='the plan has no release "answers"'):
            await caller.answer(caller.batch(0, 0, 1, "answers"), columns=11)
        caller.node.verbs._runs._open.clear()
    await caller.train()
    await caller.answer(caller.batch(0, 0, 6))
    account = read_account(caller.node.config.home(tmp_path) / "ledger.sqlite", caller.node.config.lineage)
    assert [each.release for each in account.reservations] == ["counts"]
