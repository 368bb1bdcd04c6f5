"""Releases in steps: each step a release of its own, charged once, and what no plan can mean by them refused."""

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from hypothesis import given
from hypothesis import strategies as st

from aggregation.mechanisms.gradients import GradientMechanism
from party.admission.admit import admit, affordable, event_of, times
from party.ledger.ledger import Ledger
from party.releasing.mechanisms import answering
from party.store.runs import Run
from protos.conclave.v1 import plan_pb2
from protos.refusal import Reason, Refusal
from protos.steps import MOST_STEPS, charged, is_step, step_name, step_of


def stepped(steps=5, shares=1, charges=1):
    gradients = plan_pb2.GradientMechanism(
        clip=1.0, levels=400, noise_multiplier=2.0, sampling_probability=0.1, steps=steps, parameters=9, shares=shares
    )
    return plan_pb2.Release(name="training", charges=charges, gradients=gradients, form=plan_pb2.FORM_STEPPED)


def test_a_step_is_the_same_mechanism_taken_once():
    step = step_of(stepped(), "training.3")
    assert is_step(step)
    assert step.name == "training.3"
    assert answering(step) == GradientMechanism(1.0, 400, 2.0, 0.1, 1, 9)
    assert event_of(step) == SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), 1)
    assert not is_step(stepped())
    assert step_name("training", 3) == step.name


@pytest.mark.slow
@given(st.one_of(st.text(max_size=20), st.from_regex(r"(training|other)[.](0|-)?[0-9]{1,30}", fullmatch=True)))
def test_only_the_steps_of_a_stepped_release_have_names(name):
    known = {f"training.{step}" for step in range(5)}
    assert (step_of(stepped(), name) is not None) == (name in known)
    whole = stepped()
    whole.form = plan_pb2.FORM_TRAINING
    assert step_of(whole, name) is None


def test_all_steps_are_what_is_charged(tmp_path):
    terms = plan_pb2.Terms(releases=[stepped(), plan_pb2.Release(name="counts", charges=1)])
    assert [each.name for each in charged(terms.releases[0])] == [f"training.{step}" for step in range(5)]
    assert list(charged(terms.releases[1])) == [terms.releases[1]]
    run = Run("run-1", b"h" * 32, terms, tmp_path)
    assert run.release("training.4").gradients.steps == 1
    with pytest.raises(Refusal) as refused:
        run.release("training.5")
    assert refused.value.reason == Reason.REQUEST


def test_each_step_may_be_tried_as_often_as_a_sum_may():
    terms = plan_pb2.Terms(releases=[stepped(2)], privacy=plan_pb2.Privacy(attempts=2))
    assert times(stepped(), terms) == 2
    assert [name for name, _ in affordable(terms)] == ["training.0", "training.0", "training.1", "training.1"]
    whole = stepped()
    whole.form = plan_pb2.FORM_TRAINING
    assert times(whole, terms) == 1


def test_a_release_in_steps_has_no_rows_itself():
    with pytest.raises(Refusal, match="nothing is answered under it"):
        answering(stepped())


@pytest.mark.parametrize(
    ("release", "says"),
    [
        (stepped(MOST_STEPS + 1), "has 10,001 steps; use 10,000 at most"),
        (stepped(shares=3), "counts on 3 noise shares"),
        (stepped(charges=2), "each of its steps is charged once"),
        (
            plan_pb2.Release(
                name="counts",
                charges=1,
                form=plan_pb2.FORM_STEPPED,
                counts=plan_pb2.CountsMechanism(
                    clip=1.0, levels=64, noise_multiplier=2.0, shares=2, distribution="gaussian"
                ),
            ),
            "is taken in steps and has no gradients",
        ),
    ],
)
def test_steps_that_make_no_sense_are_refused(terms, config, release, says):
    with pytest.raises(Refusal, match=says):
        admit(terms(releases=[release]), config())


def test_only_in_steps_is_noise_that_of_several_parties(terms, config):
    whole = stepped(shares=2)
    whole.form = plan_pb2.FORM_TRAINING
    with pytest.raises(Refusal, match="each party trains alone"):
        admit(terms(releases=[whole]), config())


@pytest.mark.slow
def test_steps_within_the_budget_are_admitted(terms, config):
    labelled = plan_pb2.LabelledText(kind=plan_pb2.TEXT_KIND_SINGLE, labels=["no", "yes"])
    plan = terms(recipe="dp_sgd", releases=[stepped(shares=2)], epsilon=5.0, labelled=labelled)
    admit(plan, config(shard={"label": "who"}, policy={"recipes": ["dp_sgd"]}))


async def test_a_run_of_many_steps_joins_when_the_account_can_pay_for_all_of_them(tmp_path):
    step = event_of(step_of(stepped(), "training.0"))
    ledger = await Ledger.open(tmp_path, "north", epsilon=20.0, delta=1e-6, simulation=True)

    def steps(number):
        return [(f"training.{step}", step_event) for step, step_event in enumerate([step] * number)]

    try:
        await ledger.can_pay(steps(1000))
        with pytest.raises(Refusal) as refused:
            await ledger.can_pay(steps(MOST_STEPS))
        assert refused.value.reason == Reason.BUDGET
        await ledger.join("run-1", b"h" * 32, steps(1000))
        for number in range(3):
            await ledger.reserve("run-1", f"training.{number}", step)
        await ledger.join("run-1", b"h" * 32, steps(1000))  # what is charged already is not asked for again
    finally:
        await ledger.close()
