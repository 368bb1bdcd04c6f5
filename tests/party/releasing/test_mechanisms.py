"""A mechanism and the message that names it are the same thing, and no message makes anything but one sentence."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.free import FreeAnswers
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.mechanisms.joint import JointMechanism
from aggregation.mechanisms.said import FreeTargets, FreeTexts
from aggregation.mechanisms.thresholded import ThresholdedVotes
from aggregation.mechanisms.vectors import DifferencesMechanism, VectorMechanism
from aggregation.mechanisms.votes import VotesMechanism
from party.admission.admit import event_of
from party.releasing.mechanisms import answering, mechanism_of, shares_of
from protos.conclave.v1 import plan_pb2
from protos.refusal import Reason, Refusal

VOTES = VotesMechanism(classes=5, levels=3, noise=20.5, shares=3)
HIDDEN = HiddenMechanism(layers=2, width=7, clip=1.5, levels=99, noise=31.25, shares=3)
KNOWN = {
    "counts": CountsMechanism(clip=4.0, levels=64, noise_multiplier=1.25, shares=2),
    "vectors": VectorMechanism(clip=120.5, levels=4096, noise_multiplier=0.75, shares=2),
    "differences": DifferencesMechanism(12.5, 4096, 0.75, 2, tokens=100, outcomes=30),
    "votes alone": JointMechanism(VOTES, None),
    "hidden states alone": JointMechanism(None, HIDDEN),
    "both": JointMechanism(VOTES, HIDDEN),
    "counts, Skellam": CountsMechanism(4.0, 64, 1.25, 2, "skellam"),
    "vectors, discrete Gaussian": VectorMechanism(120.5, 4096, 0.75, 2, "discrete-gaussian"),
    "both, Skellam": JointMechanism(replace(VOTES, distribution="skellam"), replace(HIDDEN, distribution="skellam")),
    "thresholded": ThresholdedVotes(5, 9, 4.5, 3.0, 6.0, None, 0.25),
    "thresholded, more noise below": ThresholdedVotes(5, 9, 4.5, 3.0, 6.0, 12.0, 0.25),
    "gradients": GradientMechanism(0.5, 300, 1.5, 0.25, 40, 54),
    "free": FreeAnswers("training", 5, 2, 7, 1.5, 2**20),
    "texts": FreeTexts("training", 40),
    "targets": FreeTargets("texts", 64, 8192),
}


FORMS = {
    "counts": plan_pb2.FORM_SUMMED,
    "vectors": plan_pb2.FORM_SUMMED,
    "differences": plan_pb2.FORM_SUMMED,
    "joint": plan_pb2.FORM_SUMMED,
    "thresholded": plan_pb2.FORM_CLEAR_VOTES,
    "gradients": plan_pb2.FORM_TRAINING,
    "free": plan_pb2.FORM_FREE,
    "texts": plan_pb2.FORM_SAID,
    "targets": plan_pb2.FORM_SAID,
}


def message(mechanism):
    """The release of a plan's terms that names a mechanism, written field by field."""
    match mechanism:
        case CountsMechanism(clip=clip, levels=levels, noise_multiplier=noise, shares=shares, distribution=kind):
            parts = {
                "counts": plan_pb2.CountsMechanism(
                    clip=clip, levels=levels, noise_multiplier=noise, shares=shares, distribution=kind
                )
            }
        case VectorMechanism(clip=clip, levels=levels, noise_multiplier=noise, shares=shares, distribution=kind):
            parts = {
                "vectors": plan_pb2.VectorMechanism(
                    clip=clip, levels=levels, noise_multiplier=noise, shares=shares, distribution=kind
                )
            }
        case DifferencesMechanism() as d:
            parts = {
                "differences": plan_pb2.DifferencesMechanism(
                    clip=d.clip,
                    levels=d.levels,
                    noise_multiplier=d.noise_multiplier,
                    shares=d.shares,
                    distribution=d.distribution,
                    tokens=d.tokens,
                    outcomes=d.outcomes,
                )
            }
        case JointMechanism(votes=v, hidden=h):
            votes = v and plan_pb2.VotesMechanism(
                classes=v.classes, levels=v.levels, noise=v.noise, shares=v.shares, distribution=v.distribution
            )
            hidden = h and plan_pb2.HiddenMechanism(
                layers=h.layers,
                width=h.width,
                clip=h.clip,
                levels=h.levels,
                noise=h.noise,
                shares=h.shares,
                distribution=h.distribution,
            )
            parts = {"joint": plan_pb2.JointMechanism(votes=votes, hidden=hidden)}
        case ThresholdedVotes() as t:
            parts = {
                "thresholded": plan_pb2.ThresholdedVotes(
                    classes=t.classes,
                    teachers=t.teachers,
                    threshold=t.threshold,
                    threshold_noise=t.threshold_noise,
                    noise=t.noise,
                    larger_noise=t.larger_noise or 0.0,
                    cap=t.cap,
                )
            }
        case GradientMechanism() as g:
            parts = {
                "gradients": plan_pb2.GradientMechanism(
                    clip=g.clip,
                    levels=g.levels,
                    noise_multiplier=g.noise_multiplier,
                    sampling_probability=g.sampling_probability,
                    steps=g.steps,
                    parameters=g.parameters,
                    shares=g.shares,
                )
            }
        case FreeAnswers() as f:
            parts = {
                "free": plan_pb2.FreeAnswers(
                    after=f.after, classes=f.classes, layers=f.layers, width=f.width, clip=f.clip, levels=f.levels
                )
            }
        case FreeTexts(after=after, longest=longest):
            parts = {"texts": plan_pb2.FreeTexts(after=after, longest=longest)}
        case FreeTargets(after=after, top=top, tokens=tokens):
            parts = {"targets": plan_pb2.FreeTargets(after=after, top=top, tokens=tokens)}
    (kind,) = parts
    return plan_pb2.Release(name="one", charges=1, form=FORMS[kind], **parts)


@pytest.mark.parametrize("mechanism", KNOWN.values(), ids=KNOWN)
def test_a_message_is_the_mechanism_that_it_was_written_from(mechanism):
    sent = plan_pb2.Release.FromString(message(mechanism).SerializeToString())
    assert mechanism_of(sent) == mechanism
    assert event_of(sent) == mechanism.event()


def test_noise_of_parties_is_counted_on_where_they_add_any():
    assert {name: shares_of(mechanism) for name, mechanism in KNOWN.items() if shares_of(mechanism)} == {
        "counts": 2,
        "vectors": 2,
        "differences": 2,
        "votes alone": 3,
        "hidden states alone": 3,
        "both": 3,
        "counts, Skellam": 2,
        "vectors, discrete Gaussian": 2,
        "both, Skellam": 3,
    }


def test_nothing_is_answered_under_a_training():
    with pytest.raises(Refusal, match="release one is a training; nothing is answered under it") as refusal:
        answering(message(KNOWN["gradients"]))
    assert refusal.value.reason == Reason.REQUEST


def sentence_of(release):
    with pytest.raises(Refusal) as refusal:
        mechanism_of(release)
    assert refusal.value.reason == Reason.PLAN
    sentence = refusal.value.sentence
    assert sentence.startswith("the plan cannot be right: release one")
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert not sentence.endswith("..")
    return sentence


def test_a_release_without_a_mechanism_is_refused():
    said = sentence_of(plan_pb2.Release(name="one", charges=1))
    assert re.search(
        "it knows counts, .*joint, thresholded, gradients, free, texts, targets, softened, differences, samples and "
        "sequences",
        said,
    )


@pytest.mark.parametrize(
    ("name", "path", "value", "says"),
    [
        ("both", "joint.votes.noise", 0.0, "noise is 0"),
        ("both", "joint.votes.noise", math.nan, "noise is nan"),
        ("both", "joint.votes.classes", 1, "classes is 1"),
        ("both", "joint.votes.levels", 0, "levels is 0"),
        ("both", "joint.votes.shares", 2, "same number of shares"),
        ("both", "joint.hidden.shares", 0, "shares is 0"),
        ("both", "joint.hidden.clip", -1.0, "clip is -1"),
        ("both", "joint.hidden.layers", 0, "layers is 0"),
        ("both", "joint.hidden.width", 0, "width is 0"),
        ("both", "joint.hidden.noise", math.inf, "noise is inf"),
        ("thresholded", "thresholded.threshold", 10.0, "no query can reach it"),
        ("thresholded", "thresholded.teachers", 1, "one teacher"),
        ("thresholded", "thresholded.threshold_noise", 0.0, "noise"),
        ("thresholded", "thresholded.larger_noise", 1.0, "below noise"),
        ("thresholded", "thresholded.cap", math.inf, "cap"),
        ("gradients", "gradients.sampling_probability", 1.5, "sampling_probability is 1.5"),
        ("gradients", "gradients.steps", 0, "steps is 0"),
        ("gradients", "gradients.parameters", 2**41, "parameters is"),
        ("gradients", "gradients.noise_multiplier", -2.0, "noise_multiplier is -2"),
        ("free", "free.after", "", "none is named"),
        ("texts", "texts.after", "", "none is named"),
        ("texts", "texts.longest", 0, "0 tokens a text make no sense"),
        ("texts", "texts.longest", 2**21, "tokens a text make no sense"),
        ("targets", "targets.after", "", "none is named"),
        ("targets", "targets.top", 0, "0 outcomes a token make no sense"),
        ("targets", "targets.tokens", 63, "The best 64 of 63 tokens"),
        ("targets", "targets.tokens", 2**31, "tokens make no sense"),
        ("free", "free.levels", 2**21, "levels is"),
        ("free", "free.clip", math.nan, "clip is nan"),
    ],
)
def test_numbers_that_make_no_sense_are_named(name, path, value, says):
    release = message(KNOWN[name])
    *parents, field = path.split(".")
    inside = release
    for parent in parents:
        inside = getattr(inside, parent)
    setattr(inside, field, value)
    assert says in sentence_of(release)


def test_a_joint_release_of_nothing_is_refused():
    release = plan_pb2.Release(name="one", charges=1)
    release.joint.SetInParent()
    assert "votes, hidden states or both" in sentence_of(release)


def filled(descriptor):
    """Messages of a kind with any numbers in their fields."""
    makes = {"double": st.floats(), "uint32": st.integers(0, 2**32 - 1), "uint64": st.integers(0, 2**64 - 1)}
    kinds = {1: makes["double"], 13: makes["uint32"], 4: makes["uint64"], 9: st.text(max_size=3)}
    fields = {
        field.name: st.none() | filled(field.message_type) if field.type == 11 else kinds[field.type]
        for field in descriptor.fields
    }
    return st.fixed_dictionaries(fields).map(
        lambda values: getattr(plan_pb2, descriptor.name)(**{k: v for k, v in values.items() if v is not None})
    )


MECHANISMS = tuple(plan_pb2.Release.DESCRIPTOR.oneofs_by_name["mechanism"].fields)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_numbers_at_all_are_a_price_or_a_sentence(data):
    field = data.draw(st.sampled_from(MECHANISMS))
    release = plan_pb2.Release(name="one", charges=1, **{field.name: data.draw(filled(field.message_type))})
    try:
        event_of(release)
    except Refusal as error:
        refusal = error
    else:
        return
    assert refusal.reason == Reason.PLAN
    assert "\n" not in refusal.sentence
