"""The party's own rules against a plan: a refusal names the rule and what would be right."""

import math

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from dp_accounting import LaplaceDpEvent

from aggregation.accounting.events import noise_multiplier_of as noise_of
from party.admission import company
from party.admission.admit import admit, event_of, queries_of
from party.admission.company import admit_peers
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.console.mistakes import SettingsError
from protos.identity.certificates import Role, fingerprint
from protos.identity.identity import self_made
from protos.refusal import Reason, Refusal


@pytest.mark.slow
def test_a_plan_within_the_rules_is_admitted(terms, config):
    assert admit(terms(), config()) is None


def refused(terms, config):
    with pytest.raises(Refusal) as refusal:
        admit(terms, config)
    assert "\n" not in refusal.value.sentence
    return refusal.value


@pytest.mark.parametrize(
    ("plan", "party", "rule", "said"),
    [
        ({"recipe": "swing"}, {}, "recipes", "this plan runs swing"),
        ({}, {"minimum_parties": 5}, "minimum_parties", "minimum_parties = 5, this plan has 2"),
        ({"trust": plan_pb2.TRUST_SECURE_SUM, "parties": ["east", "north"]}, {}, "peers", "east is not pinned here"),
        ({"insecure_reproducible_noise": True}, {}, "simulation", "protects nobody"),
        ({}, {"declared_size": 2**26}, "declared_size", "levels up to 31"),
        ({"unit": plan_pb2.UNIT_USER}, {}, "shard.user", "no user column"),
    ],
)
def test_a_rule_of_the_party_is_named(terms, config, plan, party, rule, said):
    refusal = refused(terms(**plan), config(policy=party))
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, rule)
    assert said in refusal.sentence


def test_a_plan_that_could_shrink_below_the_rule_is_refused(terms, config):
    plan = terms(parties=["a", "b", "north"], minimum_parties=2, shares=2)
    assert refused(plan, config(policy={"minimum_parties": 3})).rule == "minimum_parties"


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"parties": ["east", "west"]}, "this party is north"),
        ({"parties": ["south", "north"]}, "not sorted"),
        ({"epsilon": 0.0}, "promise nothing"),
        ({"epsilon": float("inf")}, "promise nothing"),
        ({"delta": 1.0}, "promise nothing"),
        ({"noise_multiplier": 0.2}, "above the 8 it promises"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier"),
        ({"noise_multiplier": 1e300}, "cannot be drawn"),
        ({"noise_multiplier": 1e-300}, "cannot be drawn"),
        ({"releases": [plan_pb2.Release(name="votes", charges=1)] * 65}, "more than 64 releases"),
        ({"clip": 0.0}, "clip"),
        ({"clip": -1.0}, "clip"),
        ({"levels": 0}, "levels"),
        ({"shares": 3}, "counts on 3 noise shares"),
        ({"shares": 2, "dropouts": 1}, "counts on 2 noise shares"),
        ({"colluders": 2, "trust": plan_pb2.TRUST_SECURE_SUM}, "too many for a secure sum"),
        ({"dropouts": 1, "trust": plan_pb2.TRUST_SECURE_SUM}, "too many for a secure sum"),
        ({"dropouts": 2}, "leave no honest party"),
        ({"colluders": 1}, "a trusted aggregator has neither"),
        ({"attempts": 2}, "a trusted aggregator has neither"),
        ({"attempts": 11, "trust": plan_pb2.TRUST_SECURE_SUM}, "charge a release 11 times"),
        ({"trust": plan_pb2.TRUST_UNSPECIFIED}, "does not say who is trusted"),
        ({"minimum_parties": 1}, "would go on with 1"),
        ({"releases": [plan_pb2.Release(name="votes", charges=1)]}, "no mechanism that this party knows"),
        ({"unit": plan_pb2.UNIT_UNSPECIFIED}, "what it protects"),
        ({"record": plan_pb2.RECORD_UNSPECIFIED}, "what a record is"),
    ],
)
def test_terms_that_cannot_be_right_are_refused(terms, config, plan, said):
    refusal = refused(terms(**plan), config())
    assert refusal.reason == Reason.PLAN
    assert said in refusal.sentence


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", "x" * 65])
def test_a_release_cannot_name_a_path(terms, config, name):
    plan = terms()
    plan.releases[0].name = name
    assert "no name for a release" in refused(plan, config()).sentence


@pytest.mark.slow
def test_two_releases_cost_more_than_one(terms, config, releases):
    plan = terms(epsilon=6.0)
    assert admit(plan, config()) is None
    plan.releases.add().CopyFrom(plan.releases[0])
    assert "listed twice" in refused(plan, config()).sentence
    plan.releases[1].CopyFrom(releases("joint")[0])
    plan.releases[1].charges = 40
    assert "above the 6" in refused(plan, config()).sentence


def test_charges_are_priced(terms, config):
    plan = terms()
    for charges in (0, 2**62):
        plan.releases[0].charges = charges
        assert f"charged {charges} times" in refused(plan, config()).sentence
    plan.releases[0].charges = 100
    assert "above the 8" in refused(plan, config()).sentence
    assert event_of(plan.releases[0]).count == 100


def test_insecure_noise_is_admitted_for_a_simulation_alone(terms, config):
    assert admit(terms(insecure_reproducible_noise=True), config(policy={"simulation": True})) is None


def with_releases(terms, releases, *words, **changes):
    return terms(releases=releases(*words), epsilon=30.0, **changes)


@pytest.mark.parametrize("words", [("joint",), ("thresholded",), ("training", "free"), ("training",)])
def test_teachers_answers_are_admitted_under_every_mechanism_of_theirs(terms, config, releases, words):
    assert admit(with_releases(terms, releases, *words), config(policy={"clear_votes": True})) is None


def test_votes_in_clear_are_admitted_only_where_the_policy_says_so(terms, config, releases):
    refusal = refused(with_releases(terms, releases, "thresholded"), config())
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "clear_votes")
    assert "clear_votes = false; release votes sends this party's votes to the coordinator" in refusal.sentence


def test_answers_are_free_after_a_training_of_the_same_terms_alone(terms, config, releases):
    said = "release answers is free after 'training', which trains nothing privately"
    assert said in refused(with_releases(terms, releases, "free"), config()).sentence
    plan = with_releases(terms, releases, "joint", "free")
    plan.releases[0].name = "training"
    assert said in refused(plan, config()).sentence
    itself = with_releases(terms, releases, "free")
    itself.releases[0].free.after = "answers"
    assert "which trains nothing privately" in refused(itself, config()).sentence


@pytest.mark.parametrize(("gives", "said"), [("weights", "gives its parameters"), ("stepped", "gives its steps")])
def test_a_training_that_gives_something_itself_frees_no_answers(terms, config, releases, gives, said):
    """Its noise key would serve two trainings, of which one is charged."""
    plan = with_releases(terms, releases, "training", "free")
    plan.releases[0].form = getattr(plan_pb2, f"FORM_{gives.upper()}")
    refusal = refused(plan, config(policy={"weights": True}))
    assert refusal.reason == Reason.PLAN
    assert f"release answers is free after 'training', which {said} itself" in refusal.sentence


def test_one_training_is_one_set_of_teachers(terms, config, releases):
    plan = with_releases(terms, releases, "training", "free", "free")
    plan.releases[2].name = "more"
    assert "two releases are free after 'training'" in refused(plan, config()).sentence
    second = plan.releases.add()
    second.CopyFrom(plan.releases[0])
    second.name = plan.releases[2].free.after = "training-2"
    assert refused(plan, config()).rule == "recipes"  # each is paid for, and no recipe has two


def test_every_query_is_charged_and_free_answers_are_not(terms, config, releases):
    plan = with_releases(terms, releases, "joint")
    assert event_of(plan.releases[0]).count == 4
    plan.releases[0].charges = 4000
    assert "above the 30" in refused(plan, config()).sentence
    free = terms(releases=releases("training", "free"), epsilon=30.0)
    free.releases[1].charges = 10**6
    assert admit(free, config()) is None
    free.releases[0].gradients.noise_multiplier = 0.1
    assert "above the 30" in refused(free, config()).sentence


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dropouts": 1}, "release answers counts on 2 noise shares"),
        ({"minimum_parties": 1}, "would go on with 1"),
    ],
)
def test_shares_of_teachers_noise_are_counted(terms, config, releases, change, said):
    assert said in refused(with_releases(terms, releases, "joint", **change), config()).sentence
    assert admit(with_releases(terms, releases, "training", "free", **change), config()) is None


MOMENTS = plan_pb2.Release(
    name="moments",
    charges=1,
    form=plan_pb2.FORM_SUMMED,
    vectors=plan_pb2.VectorMechanism(clip=1.0, levels=64, noise_multiplier=1.0, shares=2, distribution="gaussian"),
)


def with_weights(terms, releases):
    plan = terms(releases=releases("training"), epsilon=30.0, recipe="dp_sgd")
    plan.releases[0].form = plan_pb2.FORM_WEIGHTS
    return plan


RULES = {
    # rule: (the policy, terms that break that rule alone, the nearest ones that do not)
    "recipes": (
        {"recipes": ["dped", "pate"]},
        lambda terms, releases: terms(recipe="privdistil"),
        lambda terms, releases: terms(recipe="dped"),
    ),
    "minimum_parties": (
        {"minimum_parties": 3},
        lambda terms, releases: terms(parties=["east", "north"], minimum_parties=2),
        lambda terms, releases: terms(parties=["east", "north", "south"], minimum_parties=3),
    ),
    "simulation": (
        {"simulation": False},
        lambda terms, releases: terms(insecure_reproducible_noise=True),
        lambda terms, releases: terms(),
    ),
    "declared_size": (
        {"declared_size": 2**26},
        lambda terms, releases: terms(levels=32),
        lambda terms, releases: terms(levels=31),
    ),
    "clear_votes": (
        {"clear_votes": False},
        lambda terms, releases: terms(releases=releases("thresholded"), epsilon=30.0),
        lambda terms, releases: terms(releases=releases("joint"), epsilon=30.0),
    ),
    "minimum_noise": (
        {"minimum_noise": 1.25},
        lambda terms, releases: terms(noise_multiplier=math.nextafter(1.25, 0), trust=plan_pb2.TRUST_SECURE_SUM),
        lambda terms, releases: terms(noise_multiplier=1.25, trust=plan_pb2.TRUST_SECURE_SUM),
    ),
    "maximum_queries": (
        {"maximum_queries": 4},
        lambda terms, releases: terms(releases=[*releases("joint"), MOMENTS], epsilon=30.0),
        lambda terms, releases: terms(releases=releases("joint"), epsilon=30.0),
    ),
    "weights": (
        {"weights": False, "recipes": ["dped", "dp_sgd"]},
        with_weights,
        lambda terms, releases: terms(releases=releases("training", "free"), epsilon=30.0),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_refuses_what_breaks_it_alone_and_nothing_just_inside_it(terms, config, releases, rule):
    policy, breaking, inside = RULES[rule]
    own = config(policy=policy, peers=pinned("east", "south"))
    refusal = refused(breaking(terms, releases), own)
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, rule)
    assert refusal.sentence.startswith(f"policy {rule} = ")
    assert admit(inside(terms, releases), own) is None


@pytest.mark.parametrize("policy", [{"minimum_noise": 0.0}, {"maximum_queries": 0}, {"weights": "no"}])
def test_a_rule_that_makes_no_sense_is_a_mistake_in_the_party_file(config, policy):
    with pytest.raises(SettingsError, match=next(iter(policy))):
        config(policy=policy)


@pytest.mark.slow
def test_without_a_figure_noise_and_queries_are_the_plans_own_affair(terms, config, releases):
    assert admit(terms(releases=[*releases("joint"), MOMENTS], epsilon=30.0), config()) is None


def test_weights_leave_where_the_policy_says_so(terms, config, releases):
    assert admit(with_weights(terms, releases), config(policy={"weights": True, "recipes": ["dp_sgd"]})) is None


@pytest.mark.parametrize(
    ("word", "noise"),
    [
        # votes 12 / sqrt(2), hidden 24 / (2 * 1 * sqrt(2)): of one query both together, not the noisier nor the other
        ("joint", 1 / math.sqrt(2 / 12**2 + 4 * 2 / 24**2)),
        ("thresholded", 1 / math.sqrt(0.5)),
        ("training", 2.0),
        ("free", math.inf),
    ],
)
def test_the_noise_of_a_release_is_that_of_its_event(releases, word, noise):
    (release,) = releases(word)
    assert noise_of(event_of(release)) == pytest.approx(noise, rel=1e-12)


@pytest.mark.parametrize("kind", ["skellam", "discrete-gaussian"])
def test_noise_of_another_kind_is_compared_by_the_same_ratio(releases, kind):
    (joint,) = releases("joint")
    gaussian = noise_of(event_of(joint))
    joint.joint.votes.distribution = joint.joint.hidden.distribution = kind
    assert noise_of(event_of(joint)) == pytest.approx(gaussian, rel=1e-9)


def test_noise_that_is_none_of_these_is_below_every_minimum():
    assert noise_of(LaplaceDpEvent(100.0)) == 0.0


@pytest.mark.parametrize("word", ["joint", "thresholded", "training"])
def test_too_little_noise_is_refused_under_every_mechanism(terms, config, releases, word):
    noise = noise_of(event_of(releases(word)[0]))
    votes = {"trust": plan_pb2.TRUST_SECURE_SUM} if word == "joint" else {}
    plan = terms(releases=releases(word), epsilon=30.0, **votes)
    allowed = {"clear_votes": True}
    assert admit(plan, config(policy=allowed | {"minimum_noise": noise})) is None
    refusal = refused(plan, config(policy=allowed | {"minimum_noise": math.nextafter(noise, math.inf)}))
    assert (refusal.rule, plan.releases[0].name in refusal.sentence) == ("minimum_noise", True)


def test_free_answers_have_no_noise_of_their_own_to_look_at(terms, config, releases):
    plan = terms(releases=releases("training", "free"), epsilon=30.0)
    assert admit(plan, config(policy={"minimum_noise": 2.0})) is None
    assert "release training" in refused(plan, config(policy={"minimum_noise": 2.1})).sentence


def test_queries_are_counted_as_they_are_charged(releases):
    joint, thresholded, training, free = releases("joint", "thresholded", "training", "free")
    assert [queries_of(each) for each in (joint, MOMENTS, training, free)] == [4, 1, 1, 0]
    # A failed test costs 1/4^2 of a cap of 1/2.
    assert queries_of(thresholded) == 8
    thresholded.thresholded.larger_noise = 8.0  # and then 2/8^2 more
    assert queries_of(thresholded) == 5


def test_the_refusal_says_which_releases_ask_how_much(terms, config, releases):
    plan = terms(releases=[*releases("joint"), MOMENTS], epsilon=30.0)
    sentence = refused(plan, config(policy={"maximum_queries": 4})).sentence
    assert sentence == "policy maximum_queries = 4; this plan may ask 5 (answers 4, moments 1)."


SOUTH, EAST = self_made("south", Role.PARTY, None), self_made("east", Role.PARTY, None)
OTHER_SOUTH = self_made("south", Role.PARTY, None)


def peer(identity, name=None):
    return party_pb2.Peer(name=name or identity.name, certificate=identity.signing.public_bytes(Encoding.DER))


def test_pinned_peers_with_their_keys_are_admitted_and_unpinned_ones_are_not_looked_at(terms, config):
    plan = terms(parties=["east", "north", "south"])
    assert admit_peers([peer(SOUTH), peer(EAST)], plan, config(peers={"south": SOUTH.fingerprint})) is None
    assert admit_peers([peer(OTHER_SOUTH)], plan, config(peers={})) is None


def test_a_pinned_party_that_the_plan_does_not_name_is_not_waited_for(terms, config):
    assert admit_peers([], terms(parties=["east", "north"]), config(peers={"south": SOUTH.fingerprint})) is None


def test_of_many_peers_each_key_is_read_once_also_for_the_next_party_of_the_process(terms, config, monkeypatch):
    read = []
    own = company.read_certificate
    monkeypatch.setattr(company, "read_certificate", lambda der: read.append(der) or own(der))
    company._fingerprint.cache_clear()
    many = [self_made(f"p{number}", Role.PARTY, None) for number in range(20)]
    plan = terms(parties=sorted(each.name for each in many))
    pinned = config(peers={each.name: each.fingerprint for each in many})
    for _ in range(3):
        assert admit_peers([peer(each) for each in many], plan, pinned) is None
    assert len(read) == 20


@pytest.mark.parametrize(
    ("peers", "shown"),
    [
        ([peer(OTHER_SOUTH)], [OTHER_SOUTH.fingerprint]),
        ([peer(EAST, "south")], [EAST.fingerprint]),
        ([peer(SOUTH), peer(OTHER_SOUTH)], [OTHER_SOUTH.fingerprint]),
        ([peer(EAST)], ["no certificate"]),
        ([], ["no certificate"]),
        ([party_pb2.Peer(name="south", certificate=b"nonsense")], ["something that is no certificate"]),
    ],
)
def test_a_pinned_peer_with_another_key_or_none_is_refused_with_both_fingerprints(terms, config, peers, shown):
    pinned = config(peers={"south": SOUTH.fingerprint})
    with pytest.raises(Refusal) as refusal:
        admit_peers(peers, terms(), pinned)
    assert (refusal.value.reason, refusal.value.rule) == (Reason.POLICY, "peers")
    for each in ("party south", SOUTH.fingerprint, *shown):
        assert each in refusal.value.sentence


def test_a_renewed_certificate_of_the_pinned_key_is_the_same_peer(terms, config, tmp_path):
    first = self_made("south", Role.PARTY, tmp_path / "south")
    (tmp_path / "south" / "self-made.pem").unlink()
    again = self_made("south", Role.PARTY, tmp_path / "south")
    assert again.signing != first.signing
    assert fingerprint(again.signing) == first.fingerprint
    assert admit_peers([peer(again)], terms(), config(peers={"south": first.fingerprint})) is None


FOUR = {"parties": ["east", "north", "south", "west"], "minimum_parties": 4, "trust": plan_pb2.TRUST_SECURE_SUM}


def pinned(*names):
    return dict.fromkeys(names, "SHA256:" + "0" * 64)


def test_under_the_secure_sum_a_party_that_is_not_pinned_counts_as_a_colluder(terms, config):
    assert admit(terms(**FOUR), config(peers=pinned("east", "south", "west"))) is None
    assert admit(terms(**FOUR, colluders=1), config(peers=pinned("east", "south"))) is None
    refusal = refused(terms(**FOUR, colluders=1), config(peers=pinned("east")))
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "peers")
    assert "south, west are not pinned here" in refusal.sentence


def test_the_secure_sum_shows_no_votes(terms, config, releases):
    plan = terms(**FOUR, releases=releases("thresholded"))
    refusal = refused(plan, config(peers=pinned("east", "south", "west"), policy={"clear_votes": True}))
    assert (refusal.reason, "nothing but sums" in refusal.sentence) == (Reason.PLAN, True)


@pytest.mark.slow
def test_every_attempt_that_a_plan_allows_is_in_its_price(terms, config):
    party = config(peers=pinned("east", "south", "west"))
    assert admit(terms(**FOUR, noise_multiplier=0.7), party) is None
    refusal = refused(terms(**FOUR, noise_multiplier=0.7, attempts=2), party)
    assert "above the 8 it promises" in refusal.sentence
    assert admit(terms(**FOUR, noise_multiplier=1.0, attempts=2), party) is None
