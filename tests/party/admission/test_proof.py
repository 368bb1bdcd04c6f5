"""A plan without a guarantee meets a party without a cap, and nobody else; nobody admits anything in between."""

import itertools

import pytest

from party.admission.admit import admit, queries_of
from party.admission.protection import admit_unit
from party.admission.recipes import kind_of, tasks_of
from party.config import check_config
from party.ledger.accounts import read_account
from party.recipes.recipe import Kind
from protos.conclave.v1 import plan_pb2
from protos.console.mistakes import SettingsError
from protos.refusal import Reason, Refusal

pytestmark = pytest.mark.usefixtures("softening")

UNCAPPED = {"guarantee": False, "epsilon": None, "delta": None, "recipes": ["softening"]}
CAPPED = {"recipes": ["softening"]}
NOTHING = {"unproven": True, "epsilon": 0.0, "delta": 0.0}


def softened(name="outcomes", charges=40, **changes):
    numbers = {
        "top": 4, "tokens": 100, "protection": "top", "scale": 0.05, "protected": 2,
        "temperature": 1.5, "strength": 8.0, "cap": 12.0,
    }  # fmt: skip
    message = plan_pb2.SoftenedTargets(**numbers | changes)
    return plan_pb2.Release(name=name, charges=charges, form=plan_pb2.FORM_SAID, softened=message)


@pytest.fixture
def softening(installed):
    """A recipe of somebody's package that may ask for softened outcomes, and for counts, in any mixture."""
    installed("softening", 'Recipe(({Kind.SOFTENED: part("grading", most=3), Kind.COUNTS: part("tokens")},))')


@pytest.fixture
def asked(terms):
    """`asked(*releases, **privacy)`: terms of these releases."""

    def makes(*releases, **changes):
        return terms(recipe="softening", releases=list(releases), **changes)

    return makes


def refused(terms, config):
    with pytest.raises(Refusal) as refusal:
        admit(terms, config)
    assert "\n" not in refusal.value.sentence
    return refusal.value


def test_a_plan_without_a_guarantee_is_admitted_where_the_party_s_file_says_so_and_nowhere_else(asked, config):
    plan = asked(softened(), softened("more"), **NOTHING)
    assert admit(plan, config(policy=UNCAPPED)) is None
    refusal = refused(plan, config(policy=CAPPED))
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "guarantee")
    assert "guarantee = true; this plan has no guarantee: a heuristic" in refusal.sentence
    assert "its administrator opens under guarantee = false" in refusal.sentence


def test_a_plan_with_a_guarantee_is_refused_where_there_is_no_cap_to_keep_it(terms, config):
    plan = terms(recipe="softening")
    assert admit(plan, config(policy=CAPPED)) is None
    refusal = refused(plan, config(policy=UNCAPPED))
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "guarantee")
    assert "this party's account has no cap" in refusal.sentence


MIXED = [  # with a softened release, with counts, what the plan says of its privacy
    (softened_too, counts_too, privacy)
    for softened_too, counts_too, privacy in itertools.product(
        (True, False),
        (True, False),
        (
            {},
            NOTHING,
            NOTHING | {"epsilon": 8.0},
            NOTHING | {"epsilon": 1e-300},
            NOTHING | {"delta": 1e-6},
            NOTHING | {"epsilon": float("inf")},
            NOTHING | {"epsilon": float("nan")},
            NOTHING | {"attempts": 2},
            NOTHING | {"trust": plan_pb2.TRUST_SECURE_SUM},
            {"unproven": True},
            {"epsilon": 0.0, "delta": 0.0},
            {"epsilon": float("inf")},
        ),
    )
    if softened_too or counts_too
]


@pytest.mark.parametrize(("softened_too", "counts_too", "privacy"), MIXED)
def test_a_coordinator_gets_no_softened_release_under_a_promise_and_no_promise_beside_one(
    asked, terms, config, softened_too, counts_too, privacy
):
    """Two of all combinations are honest: counts under a promise, and softened outcomes under none."""
    releases = [softened()] * softened_too + list(terms().releases) * counts_too
    plan = asked(*releases, **privacy)
    capped, uncapped = config(policy=CAPPED), config(policy=UNCAPPED)
    honest = {(False, True): {}, (True, False): NOTHING}.get((softened_too, counts_too))
    if privacy == honest:
        assert admit(plan, uncapped if softened_too else capped) is None
        refused(plan, capped if softened_too else uncapped)
    else:
        refused(plan, capped)
        refused(plan, uncapped)


def test_one_softened_release_beside_guaranteed_ones_is_named(asked, terms, config):
    refusal = refused(asked(*terms().releases, softened()), config(policy=CAPPED))
    assert refusal.reason == Reason.PLAN
    assert "promises epsilon = 8, and release outcomes of softened has no guarantee: a heuristic" in refusal.sentence
    refusal = refused(asked(softened(), *terms().releases, **NOTHING), config(policy=UNCAPPED))
    assert refusal.reason == Reason.PLAN
    assert "says that nothing is guaranteed, and release counts of counts is" in refusal.sentence


def test_outcomes_that_nothing_softens_leave_in_a_simulation_alone(asked, config):
    plain = {"protection": "none", "scale": 0.0, "protected": 0, "temperature": 1.0, "strength": 0.0}
    plan = asked(softened(**plain), **NOTHING)
    assert admit(plan, config(policy=UNCAPPED | {"simulation": True})) is None
    assert refused(plan, config(policy=UNCAPPED)).rule == "simulation"


def test_the_other_rules_of_a_party_hold_for_it_too(asked, config):
    plan = asked(softened(), **NOTHING)
    assert queries_of(plan.releases[0]) == 40
    assert refused(plan, config(policy=UNCAPPED | {"maximum_queries": 39})).rule == "maximum_queries"
    refusal = refused(plan, config(policy=UNCAPPED | {"minimum_noise": 0.1}))
    assert refusal.rule == "minimum_noise"
    assert "a noise multiplier of 0." in refusal.sentence
    assert refused(plan, config(policy=UNCAPPED | {"trust": "secure-sum"})).rule == "trust"
    impossible = asked(softened(scale=-1.0), **NOTHING)
    assert refused(impossible, config(policy=UNCAPPED)).reason == Reason.PLAN


def test_a_softened_release_is_of_a_kind_of_its_own(asked):
    plan = asked(softened(), **NOTHING)
    assert kind_of(plan.releases[0]) is Kind.SOFTENED
    assert tasks_of(plan, plan.releases[0]) == {"grading"}
    wrong = softened()
    wrong.form = plan_pb2.FORM_FREE
    assert kind_of(wrong) is None


def test_an_account_without_a_cap_is_still_for_one_unit(asked, config):
    plan = asked(softened(), **NOTHING | {"record": plan_pb2.RECORD_SENTENCE})
    with pytest.raises(Refusal, match="this plan reads units of another kind, sentences") as refusal:
        admit_unit(plan, config(policy=UNCAPPED))
    assert refusal.value.rule == "unit"
    assert admit_unit(plan, config(policy=UNCAPPED | {"record": "sentence"})) is None


@pytest.mark.usefixtures("trains_here")
async def test_a_node_joins_what_its_account_is_for_and_spends_nothing_yet(opened, asked, terms, tmp_path):
    caller = await opened(plan=asked(softened(), **NOTHING), policy=UNCAPPED)
    await caller.join(check_only=True)
    await caller.join()
    account = read_account(tmp_path / "north.party/ledger.sqlite", "north")
    assert (account.epsilon, account.delta, account.reservations) == (None, None, ())
    promising = await opened(node=caller.node, plan=terms(recipe="softening"))
    with pytest.raises(Refusal) as refusal:
        await promising.join()
    assert refusal.value.rule == "guarantee"


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"guarantee": False}, r"\[policy\] epsilon is part of a cap, and guarantee = false says"),
        ({"guarantee": False, "epsilon": None}, r"\[policy\] delta is part of a cap"),
        ({"epsilon": None}, r"\[policy\] epsilon is missing\."),
        ({"delta": None}, r"\[policy\] delta is missing\."),
    ],
)
def test_a_party_file_has_a_cap_or_says_that_it_has_none(tables, policy, said):
    with pytest.raises(SettingsError, match=said):
        check_config(tables(policy=policy), "party.toml")
