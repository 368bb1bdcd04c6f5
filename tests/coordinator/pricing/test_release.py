"""What a plan is bound to: mechanisms that together cost the plan's epsilon, and that parties read as the same ones."""

import math
from dataclasses import replace

import pytest
from dp_accounting import GaussianDpEvent, NoOpDpEvent

from aggregation.accounting.price import calibrate, price
from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.free import FreeAnswers
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.joint import JointMechanism
from aggregation.mechanisms.mechanism import Form
from aggregation.mechanisms.thresholded import ThresholdedVotes
from aggregation.secure_sum.graph import failing
from coordinator.errors import PlanError
from coordinator.pricing.release import SAMPLER_SHARE
from coordinator.published.statement import Privacy
from coordinator.publishing.report import state
from coordinator.systems.dped.releases import parts
from coordinator.systems.registry import plan_of, price_of
from coordinator.verifying.evidence import recomputed
from party.admission.admit import event_of
from party.releasing.mechanisms import form_of, mechanism_of
from protos.digest import plan_hash

DELTA = 1e-6
SPARE = DELTA * (1 - SAMPLER_SHARE)
PRIVATE = {"units_per_teacher": 200, "batch": 100, "steps": 4}


def plan(signals, *, privacy=None, parties=4, **dped):
    """A plan of 50 words in 4 dimensions, 4 parties of 3 teachers."""
    names = [{"name": f"party-{number}", "address": f"127.0.0.1:{7000 + number}"} for number in range(parties)]
    return plan_of(
        {
            "run": {"name": "demo", "recipe": "dped", "seed": 7},
            "privacy": {"epsilon": 6.0, "delta": DELTA} | (privacy or {}),
            "federation": {"launch": "connect", "parties": names},
            "vocabulary": {"source": "public.jsonl", "size": 50},
            "dped": {"signals": list(signals), "dimension": 4} | dped,
        }
    )


def precision(release):
    """What a Gaussian release adds to 1/z^2, however its mechanism writes it."""
    event = release.event
    one, count = (event.event, event.count) if release.charges > 1 else (event, 1)
    return count / one.noise_multiplier**2


SIGNALS = [
    ("votes",),
    ("hidden",),
    ("counts",),
    ("votes", "hidden"),
    ("votes", "counts"),
    ("hidden", "counts"),
    ("votes", "hidden", "counts"),
]


@pytest.mark.parametrize("signals", SIGNALS, ids="-".join)
@pytest.mark.parametrize("where", ["parties", "coordinator"])
def test_all_signals_together_cost_what_one_gaussian_of_the_whole_budget_costs(signals, where):
    changes = {"layers": ["centre", "context"], "budget": {"votes": 1.0, "hidden": 3.0, "counts": 2.0}}
    if where == "coordinator":
        if "votes" not in signals:
            return
        changes |= {"noise_at": "coordinator", "threshold": 6.0}
    priced = price_of(plan(signals, **changes))
    whole = calibrate(GaussianDpEvent, 6.0, SPARE)
    assert sum(precision(each) for each in priced.releases) == pytest.approx(1 / whole**2, rel=1e-6)
    assert priced.guarantee.epsilon == pytest.approx(price([GaussianDpEvent(whole)], SPARE).epsilon, rel=1e-6)
    assert 5.9 < priced.guarantee.epsilon <= 6.0
    assert priced.guarantee.delta == DELTA


def test_the_budget_is_divided_as_the_plan_says():
    asked = plan(("votes", "hidden", "counts"), budget={"votes": 1.0, "hidden": 5.0, "counts": 2.0}, queries=20)
    assert parts(asked) == {"votes": 1 / 8, "hidden": 5 / 8, "counts": 2 / 8}
    counts, answers = price_of(asked).releases
    total = precision(counts) + precision(answers)
    assert precision(counts) / total == pytest.approx(2 / 8, rel=1e-6)
    joint = answers.mechanism
    assert 20 * 2 / joint.votes.noise**2 / total == pytest.approx(1 / 8, rel=1e-6)
    assert 20 * 4 * 2.0**2 / joint.hidden.noise**2 / total == pytest.approx(5 / 8, rel=1e-6)


def test_signals_that_are_not_in_use_get_nothing():
    assert parts(plan(("hidden",), budget={"votes": 9.0})) == {"hidden": 1.0}


def test_a_query_pays_for_the_vote_and_for_the_hidden_state_it_moves():
    """A changed teacher moves one vote by sqrt(2) and each of L vectors from one point of the ball to another, 2C."""
    (release,) = price_of(plan(("votes", "hidden"), layers=["centre", "context"], hidden_clip=1.5, queries=30)).releases
    joint = release.mechanism
    assert (release.rows, release.columns, release.charges) == (30, 50 + 2 * 4, 30)
    one = 2 / joint.votes.noise**2 + 4 * 2 * 1.5**2 / joint.hidden.noise**2
    assert release.event.event.noise_multiplier == pytest.approx(1 / math.sqrt(one), rel=1e-12)
    assert release.event.count == 30
    assert joint.hidden.clip == 1.5


@pytest.mark.parametrize("signals", [("votes",), ("hidden",)])
def test_a_part_alone_is_charged_with_its_own_sensitivity(signals):
    whole = calibrate(GaussianDpEvent, 6.0, SPARE)
    (release,) = price_of(plan(signals, queries=16, hidden_clip=1.0)).releases
    joint = release.mechanism
    sensitivity = math.sqrt(2) if signals == ("votes",) else 2 * 1.0
    noise = joint.votes.noise if signals == ("votes",) else joint.hidden.noise
    assert noise == pytest.approx(whole * math.sqrt(16) * sensitivity, rel=1e-9)


def test_every_party_that_may_be_lost_makes_the_shares_of_teachers_noise_larger():
    none, one = (price_of(plan(("votes", "hidden"), privacy={"dropouts": n})).releases[0].mechanism for n in (0, 1))
    assert (none.votes.shares, none.hidden.shares, one.votes.shares, one.hidden.shares) == (4, 4, 3, 3)
    assert none.votes.noise == one.votes.noise


@pytest.mark.slow
def test_noise_that_is_given_and_too_small_is_refused_with_the_figure_that_would_do():
    needed = calibrate(GaussianDpEvent, 6.0, SPARE)
    for signals in (("hidden",), ("votes", "hidden", "counts")):
        with pytest.raises(
            PlanError, match=rf"noise_multiplier = 0.5 costs epsilon .*Use at least {needed:g},.*Nothing"
        ):
            price_of(plan(signals, privacy={"noise_multiplier": 0.5}))
        assert price_of(plan(signals, privacy={"noise_multiplier": needed})).guarantee.epsilon <= 6.0
    with pytest.raises(PlanError, match="Use at least"):
        price_of(plan(("votes",), privacy={"noise_multiplier": needed - 0.001}))


@pytest.mark.parametrize(("below", "answered"), [("abstain", 1.0), ("abstain", 0.25), ("larger-noise", 0.25)])
def test_thresholded_votes_can_ask_every_query_within_their_cap(below, answered):
    priced = price_of(plan(("votes",), noise_at="coordinator", threshold=6.0, below_threshold=below, answered=answered))
    (release,) = priced.releases
    votes = release.mechanism
    assert (release.name, release.rows, release.columns, release.charges) == ("votes", 50, 3, 1)
    assert (votes.teachers, votes.threshold, votes.classes) == (12, 6.0, 50)
    failed, passed = (float(charge) for charge in votes.charges)
    spent = 50 * (answered * passed + (1 - answered) * failed)
    assert spent <= votes.cap
    assert spent == pytest.approx(votes.cap, rel=1e-6)
    assert (votes.larger_noise is None) == (below == "abstain")
    assert release.event == votes.event()


@pytest.mark.slow
def test_private_training_takes_the_whole_budget_and_its_answers_none():
    priced = price_of(plan(("votes", "hidden"), private_training=PRIVATE, privacy={"noise_multiplier": 5.0}))
    training, answers = priced.releases
    assert priced.guarantee.epsilon == price([training.mechanism.event()], SPARE).epsilon
    assert training.mechanism.noise_multiplier == 5.0
    assert isinstance(training.mechanism, GradientMechanism)
    assert isinstance(answers.mechanism, FreeAnswers)
    assert isinstance(answers.event, NoOpDpEvent)
    assert (training.rows, training.charges, answers.rows, answers.charges) == (0, 1, 50, 1)
    assert answers.mechanism.after == training.name
    assert training.mechanism.parameters == 50 * (2 * 4 + 1)
    assert training.mechanism.sampling_probability == 0.5
    assert training.mechanism.steps == 4


@pytest.mark.slow
def test_the_noise_of_private_training_is_the_least_that_the_budget_allows():
    priced = price_of(plan(("votes", "hidden"), private_training=PRIVATE))
    used = priced.releases[0].mechanism
    assert priced.guarantee.epsilon == price([used.event()], SPARE).epsilon
    assert 5.9 < priced.guarantee.epsilon <= 6.0
    less = round(used.noise_multiplier - 0.001, 3)
    with pytest.raises(PlanError, match=f"Use at least {used.noise_multiplier:g}"):
        price_of(plan(("votes", "hidden"), private_training=PRIVATE, privacy={"noise_multiplier": less}))


@pytest.mark.slow
def test_free_answers_of_many_teachers_fit_32_bits():
    priced = price_of(
        plan(("hidden",), private_training=PRIVATE, teachers_per_party=1000, privacy={"noise_multiplier": 5.0})
    )
    assert 4000 * priced.releases[1].mechanism.levels < 2**31


@pytest.mark.parametrize(
    ("signals", "changes", "kinds"),
    [
        (("counts",), {}, [CountsMechanism]),
        (("votes",), {}, [JointMechanism]),
        (("hidden",), {"layers": ["context"]}, [JointMechanism]),
        (("votes", "hidden", "counts"), {}, [CountsMechanism, JointMechanism]),
        (("votes", "hidden"), {"noise_at": "coordinator", "threshold": 4.0}, [ThresholdedVotes, JointMechanism]),
        (
            ("votes",),
            {"noise_at": "coordinator", "threshold": 4.0, "below_threshold": "larger-noise"},
            [ThresholdedVotes],
        ),
        (
            ("votes",),
            {"private_training": PRIVATE, "privacy": {"noise_multiplier": 5.0}},
            [GradientMechanism, FreeAnswers],
        ),
    ],
)
def test_parties_read_the_same_mechanisms_and_prices(signals, changes, kinds):
    priced = price_of(plan(signals, **changes))
    assert [type(each.mechanism) for each in priced.releases] == kinds
    sent = type(priced.binding).FromString(priced.binding.SerializeToString()).terms.releases
    assert [each.name for each in sent] == [each.name for each in priced.releases]
    for message, release in zip(sent, priced.releases, strict=True):
        assert mechanism_of(message) == release.mechanism
        assert event_of(message) == release.event


def test_a_form_goes_to_parties_with_the_mechanism_that_has_it():
    """Who pays when, and what may leave, follows from it at both ends."""
    makes = [
        (("votes", "counts"), {}, [Form.SUMMED, Form.SUMMED]),
        (("votes",), {"noise_at": "coordinator", "threshold": 4.0}, [Form.CLEAR_VOTES]),
        (("votes",), {"private_training": PRIVATE, "privacy": {"noise_multiplier": 5.0}}, [Form.TRAINING, Form.FREE]),
    ]
    for signals, changes, forms in makes:
        priced = price_of(plan(signals, **changes))
        assert [each.form for each in priced.releases] == forms
        assert [form_of(each) for each in priced.binding.terms.releases] == forms


def test_a_release_has_a_form_of_its_mechanism_and_is_asked_under_no_other():
    (counts,) = price_of(plan(("counts",))).releases
    for form in set(Form) - {Form.SUMMED}:
        with pytest.raises(ValueError, match="counts are never"):
            replace(counts, form=form)
    assert counts.under(CountsMechanism) is counts.mechanism
    with pytest.raises(TypeError, match="release counts is under counts, not JointMechanism"):
        counts.under(JointMechanism)


def test_a_grid_that_cannot_carry_the_noise_is_refused_in_the_plans_own_words():
    with pytest.raises(PlanError, match=r"\[dped\] The votes and hidden states cannot be released under this plan"):
        price_of(plan(("hidden",), privacy={"epsilon": 100.0, "noise_multiplier": 1e-6}))


def test_the_samplers_own_error_is_kept_within_its_part_of_delta():
    priced = price_of(plan(("votes", "hidden", "counts")))
    slack = sum(release.slack(6.0) for release in priced.releases)
    assert 0 < slack <= DELTA * SAMPLER_SHARE
    with pytest.raises(PlanError, match=r"delta = 1e-25 is too small for .* noisy cells"):
        price_of(plan(("votes", "hidden", "counts"), privacy={"delta": 1e-25}))


OTHER_NOISE = [
    ("skellam", ("counts",), {"levels": 64}),
    ("skellam", ("votes", "hidden"), {}),
    ("skellam", ("votes", "hidden", "counts"), {"layers": ["centre", "context"]}),
    ("discrete-gaussian", ("votes", "hidden", "counts"), {}),
    ("skellam", ("moments",), {"moments_clip": 3.0}),
    ("discrete-gaussian", ("moments",), {"moments_clip": 3.0}),
]


@pytest.mark.parametrize(("noise", "signals", "settings"), OTHER_NOISE, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("attempts", [1, 3])
def test_other_noise_is_as_little_as_its_own_accountant_allows(noise, signals, settings, attempts):
    secure = {"trust": "secure-sum", "attempts": attempts}
    priced = price_of(plan(signals, privacy={"noise": noise} | secure, **settings))
    normal = price_of(plan(signals, privacy=secure, **settings))
    assert priced.guarantee.accountant == "RDP"
    assert 5.9 < priced.guarantee.epsilon <= 6.0
    assert priced.guarantee.epsilon == price([each.at_most for each in priced.releases], SPARE).epsilon
    for release, gaussian, message in zip(priced.releases, normal.releases, priced.binding.terms.releases, strict=True):
        mechanism = mechanism_of(message)
        assert mechanism == release.mechanism
        assert event_of(message) == release.event
        # what the RDP accountant costs more than PLD, never less noise
        assert 1.0 < 1 / noise_ratio(gaussian, release) < 1.12


def noise_ratio(first, second):
    """Noise of the first release over the second's, of the part that both have."""
    kinds = [getattr(each.mechanism, "votes", each.mechanism) for each in (first, second)]
    return kinds[0].noise_multiplier / kinds[1].noise_multiplier


def test_a_multiplier_that_costs_too_much_under_other_noise_is_refused_with_one_that_does_not():
    asked = {"noise": "skellam", "noise_multiplier": calibrate(GaussianDpEvent, 6.0, SPARE)}
    price_of(plan(("counts",), privacy=asked | {"noise": "gaussian"}))
    with pytest.raises(PlanError, match="Use at least") as error:
        price_of(plan(("counts",), privacy=asked))
    enough = float(str(error.value).split("Use at least ")[1].split(",")[0])
    priced = price_of(plan(("counts",), privacy=asked | {"noise_multiplier": enough}))
    assert 5.9 < priced.guarantee.epsilon <= 6.0


def test_a_grid_too_coarse_for_other_noise_is_refused_with_a_remedy():
    with pytest.raises(PlanError, match="more levels") as error:
        price_of(plan(("counts",), parties=40, privacy={"noise": "discrete-gaussian", "epsilon": 90.0}, levels=2))
    assert "\n" not in str(error.value)


GRAPHS = {"trust": "secure-sum", "dropouts": 30, "colluders": 30}


@pytest.mark.slow
def test_what_failing_graphs_take_of_delta_is_stated_and_computed_again():
    priced = price_of(plan(("counts",), parties=300, privacy=GRAPHS))
    names = tuple(sorted(priced.plan.federation.names))
    stated = state(priced, names, plan_hash(priced.binding).hex(), {}, run="r", sums={}).privacy
    sampled = sum(release.slack(priced.guarantee.epsilon) for release in priced.releases)
    assert stated["sampler_delta"] == sampled + failing(300, 30, 30) > sampled
    assert recomputed(Privacy.model_validate(stated), priced.binding, [])[1] == []
    less = Privacy.model_validate(stated | {"sampler_delta": sampled})
    (said,) = recomputed(less, priced.binding, [])[1]
    assert said.startswith("The noise sampler and the graphs of secure sums take")


@pytest.mark.slow
def test_graphs_that_take_more_than_their_part_of_delta_are_refused():
    with pytest.raises(PlanError, match="too small for secure sums of 300 parties against 30 colluders"):
        price_of(plan(("counts",), parties=300, privacy=GRAPHS | {"delta": 1e-7}))
