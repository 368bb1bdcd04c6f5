"""A recipe's name binds: what a plan of it may release, and by which tasks; who borrows a name is refused."""

import itertools
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from party.admission.admit import admit
from party.admission.recipes import kind_of, task_of, tasks_of, why_not
from party.errors import PartyError
from party.recipes.recipe import Kind
from party.recipes.registry import find_recipe, recipe_names
from party.releasing.mechanisms import mechanism_of
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.console.mistakes import SettingsError
from protos.digest import artefact_digest
from protos.refusal import Reason, Refusal

pytestmark = pytest.mark.usefixtures("trains_here")

VOTES, HIDDEN = plan_pb2.VotesMechanism(classes=2), plan_pb2.HiddenMechanism(layers=1, width=4)
MADE = {
    Kind.COUNTS: plan_pb2.Release(form=plan_pb2.FORM_SUMMED, counts=plan_pb2.CountsMechanism(clip=1.0)),
    Kind.MOMENTS: plan_pb2.Release(form=plan_pb2.FORM_SUMMED, vectors=plan_pb2.VectorMechanism(clip=1.0)),
    Kind.VOTES: plan_pb2.Release(form=plan_pb2.FORM_SUMMED, joint=plan_pb2.JointMechanism(votes=VOTES)),
    Kind.HIDDEN: plan_pb2.Release(form=plan_pb2.FORM_SUMMED, joint=plan_pb2.JointMechanism(hidden=HIDDEN)),
    Kind.VOTES_AND_HIDDEN: plan_pb2.Release(
        form=plan_pb2.FORM_SUMMED, joint=plan_pb2.JointMechanism(votes=VOTES, hidden=HIDDEN)
    ),
    Kind.CLEAR_VOTES: plan_pb2.Release(
        form=plan_pb2.FORM_CLEAR_VOTES, thresholded=plan_pb2.ThresholdedVotes(classes=2)
    ),
    Kind.TRAINING: plan_pb2.Release(form=plan_pb2.FORM_TRAINING, gradients=plan_pb2.GradientMechanism(clip=1.0)),
    Kind.ANSWERS: plan_pb2.Release(
        form=plan_pb2.FORM_FREE, free=plan_pb2.FreeAnswers(after="t", classes=0, layers=1, width=4)
    ),
    Kind.SCORES: plan_pb2.Release(
        form=plan_pb2.FORM_FREE, free=plan_pb2.FreeAnswers(after="t", classes=0, layers=1, width=1, clip=1.0)
    ),
    Kind.TEXTS: plan_pb2.Release(form=plan_pb2.FORM_SAID, texts=plan_pb2.FreeTexts(after="t", longest=8)),
    Kind.TARGETS: plan_pb2.Release(form=plan_pb2.FORM_SAID, targets=plan_pb2.FreeTargets(after="x", top=4, tokens=100)),
    Kind.DIFFERENCES: plan_pb2.Release(
        form=plan_pb2.FORM_SUMMED, differences=plan_pb2.DifferencesMechanism(tokens=3, outcomes=4)
    ),
    Kind.SOFTENED: plan_pb2.Release(form=plan_pb2.FORM_SAID, softened=plan_pb2.SoftenedTargets(top=4, tokens=100)),
    Kind.SAMPLES: plan_pb2.Release(form=plan_pb2.FORM_SAMPLES, samples=plan_pb2.SamplesMechanism(rows=4)),
    Kind.SEQUENCES: plan_pb2.Release(form=plan_pb2.FORM_SAMPLES, sequences=plan_pb2.SequencesMechanism(rows=4)),
    Kind.STEPS: plan_pb2.Release(gradients=plan_pb2.GradientMechanism(clip=1.0), form=plan_pb2.FORM_STEPPED),
    Kind.WEIGHTS: plan_pb2.Release(gradients=plan_pb2.GradientMechanism(clip=1.0), form=plan_pb2.FORM_WEIGHTS),
}
ODD = (
    plan_pb2.Release(gradients=plan_pb2.GradientMechanism(clip=1.0), form=plan_pb2.FORM_SUMMED),
    plan_pb2.Release(gradients=plan_pb2.GradientMechanism(clip=1.0)),
    plan_pb2.Release(counts=plan_pb2.CountsMechanism(clip=1.0), form=plan_pb2.FORM_WEIGHTS),
    plan_pb2.Release(joint=plan_pb2.JointMechanism(votes=VOTES), form=plan_pb2.FORM_STEPPED),
    plan_pb2.Release(form=plan_pb2.FORM_SUMMED, joint=plan_pb2.JointMechanism()),
    plan_pb2.Release(),
)
"""What is of no kind: two kinds at once, or nothing."""


def named(recipe, kinds, *odd):
    made = [MADE[kind] for kind in kinds] + list(odd)
    terms = plan_pb2.Terms(recipe=recipe, releases=made)
    for number, release in enumerate(terms.releases):
        release.name = f"release-{number}"
    return terms


def honest(recipe, kinds):
    """What an honest plan may have, said without the table: by the papers' algorithms and what a plan's file allows."""
    has, many = set(kinds), Counter(kinds)
    once = all(each == 1 for kind, each in many.items() if kind is not Kind.WEIGHTS)
    trained = {Kind.TRAINING, Kind.SCORES}
    match recipe:
        case "dped":
            words = has & {Kind.COUNTS, Kind.MOMENTS}
            said = has - words
            teachers = said in ({Kind.VOTES}, {Kind.VOTES_AND_HIDDEN}) or said <= {Kind.CLEAR_VOTES, Kind.HIDDEN}
            privately = has <= {Kind.TRAINING, Kind.ANSWERS}
            return once and ((len(words) < 2 and teachers) or privately)
        case "dp_sgd":
            return once and (has <= {Kind.STEPS} or (has <= {Kind.WEIGHTS} and many[Kind.WEIGHTS] <= 50))
        case "pate":
            return once and has <= {Kind.VOTES}
        case "nvdp":
            return once and (has <= {Kind.SAMPLES} or has <= {Kind.SEQUENCES})
        case "swing":
            return max(many.values(), default=1) == 1 and (
                has <= {Kind.DIFFERENCES, Kind.WEIGHTS} or has <= {Kind.SOFTENED}
            )
        case "privdistil":
            student = has - trained
            domain = not has & trained
            steps = student <= {Kind.STEPS, Kind.WEIGHTS} and many[Kind.WEIGHTS] <= (1 if domain else 0)
            rounds = student <= {Kind.WEIGHTS} and many[Kind.WEIGHTS] <= (51 if domain else 50)
            return once and (steps or rounds)
        case "distildp":
            learned = has - {Kind.COUNTS}
            single = all(each == 1 for kind, each in many.items() if kind is not Kind.COUNTS)
            kept = learned <= {Kind.TRAINING, Kind.TEXTS, Kind.TARGETS}
            return single and many[Kind.COUNTS] <= 2 and (kept or learned in ({Kind.STEPS}, {Kind.WEIGHTS}))
    return False


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_mixture_of_three_releases_is_refused_unless_an_honest_plan_has_it(recipe):
    for length in range(4):
        for kinds in itertools.combinations_with_replacement(Kind, length):
            found = why_not(named(recipe, kinds))
            assert (found is None) == honest(recipe, kinds), (kinds, found)


@given(recipe=st.sampled_from(recipe_names()), kinds=st.lists(st.sampled_from(list(Kind)), max_size=64))
def test_no_longer_mixture_is_taken_either(recipe, kinds):
    found = why_not(named(recipe, kinds))
    assert (found is None) == honest(recipe, kinds)
    assert found is None or len(found) < 2000


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("rounds", [50, 51, 52])
def test_rounds_are_as_many_as_a_plan_may_have(recipe, rounds):
    for others in ((), (Kind.STEPS,), (Kind.TRAINING, Kind.SCORES)):
        kinds = [Kind.WEIGHTS] * rounds + list(others)
        assert (why_not(named(recipe, kinds)) is None) == honest(recipe, kinds)


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("odd", ODD)
def test_what_is_of_no_kind_is_of_no_recipe(recipe, odd):
    assert kind_of(odd) is None
    assert why_not(named(recipe, (), odd)) is not None
    terms = named(recipe, (), odd)
    assert tasks_of(terms, terms.releases[0]) == frozenset()


def test_every_kind_is_told_from_the_others():
    assert {kind: kind_of(release) for kind, release in MADE.items()} == {kind: kind for kind in Kind}


@pytest.mark.parametrize("recipe", ["dped", "fine_tune"])
def test_a_recipe_that_reads_text_alone_has_no_labels(recipe):
    assert why_not(plan_pb2.Terms(recipe=recipe, labelled=plan_pb2.LabelledText(labels=["no", "yes"]))) is not None


@pytest.mark.slow
@pytest.mark.usefixtures("distildp")
def test_of_language_models_every_mixture_of_four_releases_is_refused_unless_an_honest_plan_has_it():
    for kinds in itertools.combinations_with_replacement(Kind, 4):
        assert (why_not(named("distildp", kinds)) is None) == honest("distildp", kinds), kinds


TASKS = {
    "cooccurrence": party_pb2.TrainRequest(cooccurrence=party_pb2.CooccurrenceTask()),
    "moments": party_pb2.TrainRequest(moments=party_pb2.MomentsTask()),
    "teachers": party_pb2.TrainRequest(teachers=party_pb2.TeachersTask()),
    "step": party_pb2.TrainRequest(step=party_pb2.StepTask()),
    "language step": party_pb2.TrainRequest(step=party_pb2.StepTask(objective=party_pb2.OBJECTIVE_LANGUAGE)),
    "tokens": party_pb2.TrainRequest(tokens=party_pb2.TokensTask()),
    "codes": party_pb2.TrainRequest(codes=party_pb2.CodesTask()),
    "ensemble": party_pb2.TrainRequest(ensemble=party_pb2.EnsembleTask()),
    "language teachers": party_pb2.TrainRequest(language_teachers=party_pb2.LanguageTeachersTask()),
    "labels": party_pb2.TrainRequest(text_model=party_pb2.TextModelTask(objective=party_pb2.OBJECTIVE_LABELS)),
    "domain": party_pb2.TrainRequest(text_model=party_pb2.TextModelTask(objective=party_pb2.OBJECTIVE_DOMAIN)),
    "language": party_pb2.TrainRequest(text_model=party_pb2.TextModelTask(objective=party_pb2.OBJECTIVE_LANGUAGE)),
    "no objective": party_pb2.TrainRequest(text_model=party_pb2.TextModelTask()),
    "nothing": party_pb2.TrainRequest(),
}
GIVES = [
    # recipe, what else is released, of which kind, the only tasks that give it
    ("dped", (), Kind.COUNTS, {"cooccurrence"}),
    ("dped", (), Kind.MOMENTS, {"moments"}),
    ("dped", (Kind.COUNTS,), Kind.VOTES, {"teachers"}),
    ("dped", (Kind.CLEAR_VOTES,), Kind.HIDDEN, {"teachers"}),
    ("dped", (Kind.HIDDEN,), Kind.CLEAR_VOTES, {"teachers"}),
    ("dped", (Kind.TRAINING,), Kind.ANSWERS, {"teachers"}),
    ("dped", (Kind.ANSWERS,), Kind.TRAINING, set()),
    ("dp_sgd", (), Kind.STEPS, {"step"}),
    ("dp_sgd", (Kind.WEIGHTS,), Kind.WEIGHTS, {"labels"}),
    ("pate", (), Kind.VOTES, {"ensemble"}),
    ("swing", (), Kind.DIFFERENCES, {"language teachers"}),
    ("privdistil", (Kind.STEPS,), Kind.WEIGHTS, {"domain"}),
    ("privdistil", (Kind.WEIGHTS,), Kind.STEPS, {"step"}),
    ("privdistil", (Kind.WEIGHTS,), Kind.WEIGHTS, {"domain", "labels"}),
    ("privdistil", (Kind.TRAINING, Kind.SCORES), Kind.WEIGHTS, {"labels"}),
    ("privdistil", (Kind.TRAINING, Kind.STEPS), Kind.SCORES, {"domain"}),
    ("privdistil", (Kind.SCORES, Kind.STEPS), Kind.TRAINING, set()),
    ("distildp", (Kind.COUNTS, Kind.STEPS), Kind.COUNTS, {"tokens", "codes"}),
    ("distildp", (Kind.COUNTS, Kind.COUNTS), Kind.STEPS, {"language step"}),
    ("distildp", (Kind.COUNTS,), Kind.WEIGHTS, {"language"}),
]


@pytest.mark.usefixtures("distildp")
@pytest.mark.parametrize(("recipe", "others", "kind", "tasks"), GIVES)
def test_a_release_is_given_by_the_tasks_of_its_recipe_alone(recipe, others, kind, tasks):
    terms = named(recipe, (kind, *others))
    known = tasks_of(terms, terms.releases[0])
    assert {name for name, request in TASKS.items() if task_of(request) in known} == tasks


def test_a_party_file_with_a_recipe_that_does_not_exist_is_told_which_do(config):
    with pytest.raises(SettingsError, match=r'there is no recipe "waltz"\. Known here: .*dp_sgd, dped, fine_tune, '):
        config(policy={"recipes": ["dped", "waltz"]})


def test_a_further_recipe_is_one_package_that_the_administrator_installed(terms, config, installed):
    assert "waltz" not in recipe_names()
    installed("waltz", 'Recipe(({Kind.VOTES: part("ensemble")},))')
    assert "waltz" in recipe_names()
    votes = plan_pb2.VotesMechanism(classes=2, levels=2, noise=12.0, shares=2, distribution="gaussian")
    asked = [
        plan_pb2.Release(name="votes", charges=2, form=plan_pb2.FORM_SUMMED, joint=plan_pb2.JointMechanism(votes=votes))
    ]
    assert admit(terms(recipe="waltz", releases=asked), config(policy={"recipes": ["waltz"]})) is None
    with pytest.raises(Refusal, match="release counts is of counts, and waltz has noised votes"):
        admit(terms(recipe="waltz"), config(policy={"recipes": ["waltz"]}))


def test_a_plan_of_a_recipe_that_nobody_installed_is_refused(terms):
    found = why_not(terms(recipe="nobodys"))
    assert found == "'nobodys' is no recipe that this party knows"
    release = plan_pb2.Release(counts=plan_pb2.CountsMechanism(clip=1.0))
    assert tasks_of(plan_pb2.Terms(recipe="nobodys", releases=[release]), release) == frozenset()


def test_a_package_that_brings_no_recipe_is_said_to_be_broken(installed):
    installed("hollow", "42")
    with pytest.raises(PartyError, match="recipe hollow is installed as somebodys_hollow:RECIPE, which is no party"):
        find_recipe("hollow")
    installed("absent", "Recipe(())")
    (broken,) = (Path(folder) for folder in sys.path if folder.endswith("absent"))
    (broken / "somebodys_absent.py").unlink()
    with pytest.raises(PartyError, match=r"which cannot be loaded: .* Install its package again\."):
        find_recipe("absent")


def test_a_name_that_two_packages_claim_stands_for_neither(installed):
    installed("pate", "Recipe(())")
    with pytest.raises(PartyError, match="two installed packages bring a recipe pate"):
        find_recipe("pate")


async def refused(awaited):
    with pytest.raises(Refusal) as refusal:
        await awaited
    assert (refusal.value.reason, refusal.value.rule) == (Reason.POLICY, "recipes"), refusal.value.sentence
    return refusal.value.sentence


async def test_a_plan_that_borrows_the_name_of_word_embeddings_for_a_domain_classifier_is_not_joined(opened, terms):
    """Every number is one that this party would pay for: what is wrong is that `dped` never asks it."""
    training = plan_pb2.GradientMechanism(
        clip=1.0, levels=256, noise_multiplier=2.0, sampling_probability=0.5, steps=3, parameters=66
    )
    scores = plan_pb2.FreeAnswers(after="domain", classes=0, layers=1, width=1, clip=1.0, levels=1000)
    releases = [
        plan_pb2.Release(name="domain", charges=1, form=plan_pb2.FORM_TRAINING, gradients=training),
        plan_pb2.Release(name="scores", charges=1000, form=plan_pb2.FORM_FREE, free=scores),
    ]
    caller = await opened(plan=terms(releases=releases, epsilon=30.0), policy={"epsilon": 90.0})
    said = await refused(caller.join())
    assert said.startswith("policy recipes = dped; release scores is of free scores, and dped has ")
    assert "free answers of teachers" in said
    both = await opened(node=caller.node, plan=terms(releases=releases, epsilon=30.0, recipe="privdistil"))
    assert "this plan runs privdistil" in await refused(both.join())


@pytest.mark.slow
async def test_a_task_of_another_recipe_is_refused_after_a_join_that_was_honest(opened, terms, releases, monkeypatch):
    """The terms are those of teachers trained privately; what is asked is a classifier's scores after that training."""
    caller = await opened(plan=terms(releases=releases("training", "free"), epsilon=30.0), policy={"epsilon": 90.0})
    await caller.join()
    monkeypatch.setattr("party.tasks.operations.request_of", lambda *given: pytest.fail("the request was looked at"))
    task = party_pb2.TextModelTask(release="answers", objective=party_pb2.OBJECTIVE_DOMAIN)
    said = await refused(caller.trained(party_pb2.TrainRequest(run=caller.run, operation_id="x", text_model=task)))
    assert said == ("policy recipes: release answers of dped is given by teachers, not by text_model for a domain.")
    ensemble = party_pb2.EnsembleTask(release="answers")
    said = await refused(caller.trained(party_pb2.TrainRequest(run=caller.run, operation_id="x", ensemble=ensemble)))
    assert "not by ensemble" in said


async def test_votes_of_classifiers_are_not_answered_by_teachers_of_words(learner, reference):
    votes = plan_pb2.VotesMechanism(classes=2, levels=2, noise=12.0, shares=2, distribution="gaussian")
    release = plan_pb2.Release(
        name="votes", charges=2, form=plan_pb2.FORM_SUMMED, joint=plan_pb2.JointMechanism(votes=votes)
    )
    caller = await learner(release, recipe="pate")
    await caller.provide()
    await caller.provide_reference()
    said = await refused(caller.teach(release="votes", queries=[0, 1], classes=[2, 3]))
    assert said == "policy recipes: release votes of pate is given by ensemble, not by teachers."


@pytest.mark.parametrize(
    ("recipe", "objective", "said"),
    [
        ("dp_sgd", party_pb2.OBJECTIVE_DOMAIN, "is given by text_model for labels, not by text_model for a domain"),
        ("dp_sgd", party_pb2.OBJECTIVE_LANGUAGE, "is given by text_model for labels, not by text_model for language"),
        ("dp_sgd", party_pb2.OBJECTIVE_UNSPECIFIED, "is given by text_model for labels, not by text_model"),
        ("privdistil", party_pb2.OBJECTIVE_LANGUAGE, "a domain or text_model for labels, not by text_model for lang"),
    ],
)
async def test_a_model_that_leaves_learned_what_its_recipe_learns(learner, descent, recipe, objective, said):
    caller = await learner(descent("weights", weights=True), recipe=recipe)
    given = {"texts_sha256": artefact_digest(b"[]"), "objective": objective}
    assert said in await refused(caller.train_alone(caller.model, np.zeros(66), **given))


OUTSIDE = plan_pb2.Release(
    name="pairs",
    charges=1,
    form=plan_pb2.FORM_SUMMED,
    outside=plan_pb2.OutsideMechanism(kind="own_recipe.presence", numbers="{}"),
)


def test_a_recipe_names_each_mechanism_of_another_package_that_it_releases_under(installed):
    recipe = installed("near", 'Recipe(({outside("own_recipe.presence"): part("cooccurrence")},))')
    terms = plan_pb2.Terms(recipe=recipe, releases=[OUTSIDE])
    assert why_not(terms) is None
    assert tasks_of(terms, OUTSIDE) == {"cooccurrence"}
    other = plan_pb2.Terms(recipe=recipe, releases=[OUTSIDE])
    other.releases[0].outside.kind = "own_recipe.other"
    said = why_not(other)
    assert said is not None
    assert "sums under own_recipe.other, a mechanism of another package" in said
    assert tasks_of(other, other.releases[0]) == frozenset()
    assert why_not(plan_pb2.Terms(recipe="dped", releases=[OUTSIDE])) is not None


def test_a_party_without_the_package_refuses_such_a_release_in_words():
    with pytest.raises(Refusal, match="which is not installed here") as refused:
        mechanism_of(OUTSIDE)
    assert refused.value.reason == Reason.PLAN


@pytest.mark.slow
@given(st.text(max_size=200), st.text(max_size=200), st.integers(0, 20))
def test_whatever_an_outside_mechanism_says_is_a_refusal(kind, numbers, form):
    release = plan_pb2.Release(name="one", charges=1, form=form)
    release.outside.kind, release.outside.numbers = kind, numbers
    with pytest.raises(Refusal) as refused:
        mechanism_of(release)
    assert refused.value.sentence.isprintable()
