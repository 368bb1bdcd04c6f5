"""In whose company a party takes part, and whom it trusts with the sum, whatever parties a coordinator makes up."""

import pytest

from party.admission.admit import admit
from party.admission.company import certain_shares, unproven
from protos.conclave.v1 import plan_pb2
from protos.console.mistakes import SettingsError
from protos.refusal import Reason, Refusal

AGGREGATOR, SECURE = plan_pb2.TRUST_TRUSTED_AGGREGATOR, plan_pb2.TRUST_SECURE_SUM
INVENTED = sorted(["north", "south", *(f"site-{number}" for number in range(998))])
"""A thousand parties of whom north knows two."""
THOUSAND = {"parties": INVENTED, "minimum_parties": 1000, "shares": 1000, "levels": 4096}
SOME_KEY = "SHA256:" + "0" * 64


def pinned(*names):
    return dict.fromkeys(names, SOME_KEY)


def rule_of(terms, config):
    """By which rule the terms are refused; None where they are admitted."""
    try:
        admit(terms, config)
    except Refusal as error:
        refusal = error
    else:
        return None
    assert refusal.reason == Reason.POLICY, refusal.sentence
    assert len(refusal.sentence) < 600
    assert "\n" not in refusal.sentence
    return refusal.rule


@pytest.mark.parametrize(
    ("own", "rule"),
    [
        ({"policy": {"trust": None}}, "trust"),
        ({"policy": {"trust": None}, "peers": {}}, "trust"),
        ({"policy": {"trust": "secure-sum"}}, "trust"),
        ({}, "shares"),
        ({"peers": {}}, "shares"),
        ({"policy": {"minimum_parties": 3}}, "minimum_parties"),
        ({"policy": {"minimum_noise": 0.5}}, "shares"),
    ],
    ids=["pinned", "unpinned", "insists", "trusts", "trusts, unpinned", "company", "noise"],
)
async def test_a_thousandth_of_the_noise_beside_invented_parties_is_not_joined(opened, terms, own, rule):
    caller = await opened(plan=terms(**THOUSAND), **own)
    with pytest.raises(Refusal) as refused:
        await caller.join()
    assert (refused.value.reason, refused.value.rule) == (Reason.POLICY, rule)
    assert f"policy {rule}" in refused.value.sentence
    with pytest.raises(Refusal) as unknown:
        await caller.train()
    assert unknown.value.reason == Reason.NOT_JOINED


async def test_among_proven_parties_the_same_noise_is_joined(opened, terms):
    caller = await opened(plan=terms(), policy={"minimum_parties": 2})
    await caller.join()
    with pytest.raises(Refusal, match="the coordinator gives no certificate"):
        await (await opened(node=caller.node, plan=terms(seed=8))).join(peers=[])


@pytest.mark.parametrize("simulation", [False, True])
@pytest.mark.parametrize("trust", [None, "secure-sum", "trusted-aggregator"])
@pytest.mark.parametrize("peers", [(), ("south",)])
def test_a_plan_trusts_nobody_more_than_the_policy_does(terms, config, trust, peers, simulation):
    own = config(policy={"trust": trust, "simulation": simulation}, peers=pinned(*peers))
    aggregated = rule_of(terms(shares=1), own)
    if trust == "secure-sum" or (trust is None and not simulation):
        assert aggregated == "trust"
    else:
        assert aggregated is None
    assert rule_of(terms(shares=1, trust=SECURE), own) == (None if peers else "peers")


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"peers": {}}, 'or write trust = "trusted-aggregator" in [policy]'),
        ({}, "as wherever peers are pinned and the party file does not say otherwise"),
    ],
)
def test_a_policy_without_a_trust_says_what_to_write(terms, config, own, said):
    with pytest.raises(Refusal) as refused:
        admit(terms(), config(policy={"trust": None}, **own))
    assert said in refused.value.sentence


def test_nobody_else_may_be_trusted(config):
    with pytest.raises(SettingsError, match=r"\[policy\] trust = \"everybody\" is not one of 'secure-sum' or"):
        config(policy={"trust": "everybody"})


FIVE = ("east", "north", "south", "up", "west")


@pytest.mark.parametrize(
    ("peers", "dropouts", "fewest", "certain"),
    [
        (("east", "south", "up", "west"), 0, 5, 5),
        (("east", "south", "up", "west"), 1, 4, 4),
        (("east", "south", "up", "west"), 0, 2, 2),
        (("east", "south"), 0, 5, 3),
        (("east", "south"), 0, 4, 2),
        (("east", "south"), 1, 4, 2),
        (("east", "south"), 4, 1, 1),
        ((), 0, 5, 1),
        (("elsewhere", "north"), 0, 5, 1),
    ],
)
def test_shares_are_counted_on_of_proven_parties_that_are_surely_there(terms, config, peers, dropouts, fewest, certain):
    own = config(peers=pinned(*peers))
    plan = {"parties": FIVE, "minimum_parties": fewest, "dropouts": dropouts}
    assert certain_shares(terms(**plan), own) == certain
    assert rule_of(terms(**plan, shares=certain), own) is None
    if certain + dropouts < fewest:
        assert rule_of(terms(**plan, shares=certain + 1), own) == "shares"


@pytest.mark.slow
def test_every_mechanism_with_shares_is_looked_at(terms, config, releases, descent):
    own = config(peers={}, policy={"recipes": ["dped", "dp_sgd"], "epsilon": 200.0})
    moments = plan_pb2.VectorMechanism(clip=1.0, levels=64, noise_multiplier=1.0, shares=2, distribution="gaussian")
    shared = [
        terms(),
        terms(releases=releases("joint"), epsilon=30.0),
        terms(releases=[plan_pb2.Release(name="moments", charges=1, form=plan_pb2.FORM_SUMMED, vectors=moments)]),
        terms(releases=[descent(shares=2)], epsilon=100.0, recipe="dp_sgd"),
    ]
    assert [rule_of(each, own) for each in shared] == ["shares"] * 4
    assert rule_of(terms(releases=releases("training", "free"), epsilon=30.0), own) is None
    assert rule_of(terms(releases=[descent()], epsilon=100.0, recipe="dp_sgd"), own) is None


@pytest.mark.parametrize(
    ("peers", "plan", "rule"),
    [
        (("east", "south"), {"minimum_parties": 3}, None),
        (("east", "south"), {"minimum_parties": 2}, "minimum_parties"),
        (("east", "south"), {"parties": FIVE, "minimum_parties": 5}, None),
        (("east", "south"), {"parties": FIVE, "minimum_parties": 4}, "minimum_parties"),
        (("east",), {"minimum_parties": 3}, "minimum_parties"),
        ((), {"parties": INVENTED, "minimum_parties": 1000}, "minimum_parties"),
    ],
)
def test_company_is_made_of_proven_parties(terms, config, peers, plan, rule):
    whole = {"parties": ["east", "north", "south"], "shares": 1} | plan
    own = config(peers=pinned(*peers), policy={"minimum_parties": 3})
    assert rule_of(terms(**whole), own) == rule
    simulated = config(peers=pinned(*peers), policy={"minimum_parties": 3, "simulation": True})
    assert rule_of(terms(**whole), simulated) == (rule if whole["minimum_parties"] < 3 else None)


def test_in_a_simulation_nobody_has_to_be_proven(terms, config):
    own = config(peers={}, policy={"simulation": True, "trust": None})
    assert unproven(terms(**THOUSAND), own) == []
    assert rule_of(terms(**THOUSAND), own) is None


def test_under_the_secure_sum_those_who_are_not_pinned_are_the_first_of_the_colluders(terms, config):
    own = config(peers=pinned("east", "south"))
    plan = {"parties": FIVE, "minimum_parties": 5, "trust": SECURE, "colluders": 2}
    assert certain_shares(terms(**plan), own) == 3
    assert rule_of(terms(**plan, shares=3), own) is None
    assert rule_of(terms(**plan | {"colluders": 1}, shares=3), own) == "peers"
    insists = config(peers=pinned("east", "south"), policy={"minimum_parties": 4})
    assert rule_of(terms(**plan, shares=3), insists) == "minimum_parties"


@pytest.mark.parametrize("distribution", ["gaussian", "skellam", "discrete-gaussian"])
def test_the_least_noise_is_that_of_a_share_where_an_aggregator_sees_it(terms, config, distribution):
    def own(least):
        return config(policy={"minimum_noise": least}, peers=pinned("east", "south", "up", "west"))

    plan = {"parties": FIVE, "minimum_parties": 4, "dropouts": 1, "shares": 4, "noise_multiplier": 3.0}
    plan |= {"distribution": distribution}
    assert rule_of(terms(**plan), own(1.499)) is None
    assert rule_of(terms(**plan), own(1.501)) == "minimum_noise"
    assert rule_of(terms(**plan, trust=SECURE), own(2.999)) is None
    assert rule_of(terms(**plan, trust=SECURE), own(3.001)) == "minimum_noise"
    with pytest.raises(Refusal, match=r"at each party, as the aggregator sees it, a noise multiplier of 1\.5"):
        admit(terms(**plan), own(2.0))


def test_noise_that_is_all_a_partys_own_is_not_divided(terms, config, releases):
    plan = terms(releases=releases("training", "free"), epsilon=30.0)
    assert rule_of(plan, config(policy={"minimum_noise": 2.0})) is None
    votes = terms(releases=releases("thresholded"), epsilon=30.0)
    assert rule_of(votes, config(policy={"minimum_noise": 1.414, "clear_votes": True})) is None
