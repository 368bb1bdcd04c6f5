"""A coordinator that calls one thing another gains nothing: a form that its mechanism does not have is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregation.mechanisms.registry import MECHANISMS
from party.admission.admit import admit, times
from party.releasing.mechanisms import answering, form_of
from protos.conclave.v1 import plan_pb2
from protos.fields import word
from protos.refusal import Reason, Refusal

ALLOWED = {
    "counts": {plan_pb2.FORM_SUMMED},
    "vectors": {plan_pb2.FORM_SUMMED},
    "joint": {plan_pb2.FORM_SUMMED},
    "thresholded": {plan_pb2.FORM_CLEAR_VOTES},
    "training": {plan_pb2.FORM_TRAINING, plan_pb2.FORM_STEPPED, plan_pb2.FORM_WEIGHTS},
    "free": {plan_pb2.FORM_FREE},
    "texts": {plan_pb2.FORM_SAID},
    "targets": {plan_pb2.FORM_SAID},
}
VECTORS = plan_pb2.Release(
    name="moments",
    charges=1,
    form=plan_pb2.FORM_SUMMED,
    vectors=plan_pb2.VectorMechanism(clip=1.0, levels=64, noise_multiplier=1.0, shares=2, distribution="gaussian"),
)
SAID = {
    "texts": plan_pb2.Release(
        name="texts",
        charges=9,
        form=plan_pb2.FORM_SAID,
        texts=plan_pb2.FreeTexts(after="training", longest=40),
    ),
    "targets": plan_pb2.Release(
        name="targets",
        charges=9,
        form=plan_pb2.FORM_SAID,
        targets=plan_pb2.FreeTargets(after="texts", top=64, tokens=8192),
    ),
}
FORMS = [*plan_pb2.Form.values(), 8, 2**31 - 1]
CONTRADICTIONS = [(name, form) for name, allowed in ALLOWED.items() for form in FORMS if form not in allowed]
TRUSTING = {"clear_votes": True, "weights": True}


@pytest.fixture
def one(terms, releases):
    """Terms of an honest plan that has a release under this mechanism, and that release."""

    def make(name):
        others = releases("training") if name in ("free", *SAID) else []
        if name == "counts":
            plan = terms()
        elif name in SAID:
            said = [SAID["texts"]] if name == "texts" else [SAID["texts"], SAID["targets"]]
            plan = terms(releases=[*others, *said], epsilon=30.0)
        elif name == "vectors":
            plan = terms(releases=[VECTORS])
        else:
            plan = terms(releases=[*others, *releases(name)], epsilon=30.0)
        return plan, plan.releases[-1]

    return make


@pytest.mark.parametrize("name", ALLOWED)
def test_the_honest_form_is_admitted(one, config, name):
    plan, release = one(name)
    if name != "training" and name not in SAID:  # the recipe has no training alone, and no language model
        assert admit(plan, config(policy=TRUSTING)) is None
    assert release.form in ALLOWED[name]
    assert form_of(release) == word(plan_pb2.Form, release.form)


@pytest.mark.parametrize(("name", "form"), CONTRADICTIONS)
def test_a_form_that_contradicts_the_mechanism_is_refused(one, config, name, form):
    plan, release = one(name)
    release.form = form
    with pytest.raises(Refusal) as refused:
        admit(plan, config(policy=TRUSTING))
    assert refused.value.reason == Reason.PLAN
    assert release.name in refused.value.sentence
    assert "\n" not in refused.value.sentence


@pytest.mark.parametrize(("name", "form"), CONTRADICTIONS)
def test_nothing_is_answered_under_such_a_form(one, name, form):
    _, release = one(name)
    release.form = form
    with pytest.raises(Refusal):
        answering(release)


def test_no_form_at_all_is_refused_in_words(one, config):
    plan, release = one("counts")
    release.ClearField("form")
    with pytest.raises(Refusal, match="release counts is of the form unspecified, and counts are summed"):
        admit(plan, config())


def test_a_sum_called_free_is_not_tried_as_often_as_free_answers(one, config):
    """Free answers may be asked for as often as any plan's sums; noise that is charged may not."""
    plan, release = one("counts")
    assert times(release, plan) == 1
    release.form = plan_pb2.FORM_FREE
    assert times(release, plan) > 1
    with pytest.raises(Refusal, match="is of the form free, and counts are summed"):
        admit(plan, config())


def test_a_sum_called_weights_does_not_leave_by_answer_under_a_secure_sum(one, config):
    plan, release = one("joint")
    plan.privacy.trust = plan_pb2.TRUST_SECURE_SUM
    release.form = plan_pb2.FORM_WEIGHTS
    with pytest.raises(Refusal, match="is of the form weights, and joint are summed"):
        admit(plan, config(policy=TRUSTING))


def test_noise_of_several_parties_is_never_one_partys_own(one, config):
    """Of a model that a party trained alone no sum completes the noise, so a share of it would be too little."""
    for form in (plan_pb2.FORM_WEIGHTS, plan_pb2.FORM_TRAINING):
        plan, release = one("training")
        release.form, release.gradients.shares = form, 2
        with pytest.raises(Refusal, match="counts on 2 noise shares, and each party trains alone"):
            admit(plan, config(policy=TRUSTING))


@given(st.integers(-(2**31), 2**31 - 1), st.sampled_from(sorted(MECHANISMS)))
def test_a_release_without_numbers_is_a_refusal_whatever_its_form(form, kind):
    release = plan_pb2.Release(name="one", charges=1, form=form)
    getattr(release, kind).SetInParent()
    with pytest.raises(Refusal):
        form_of(release)
