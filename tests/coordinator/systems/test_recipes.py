"""Every honest plan, and all that it asks parties to train, is what they let a plan of its recipe have."""

import itertools
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from coordinator.pricing import priced_plan
from coordinator.pricing.release import PricedPlan
from coordinator.systems.dped.public import prepare
from coordinator.systems.privdistil.recipe import _student, domain_classifiers
from coordinator.systems.registry import names, plan_of, read_plan, system
from coordinator.systems.swing.public import prepare as asked_texts
from coordinator.systems.swing.questions import public_outcomes
from coordinator.text_models.federated_training import descend
from party.admission.recipes import kind_of, task_of, tasks_of, why_not
from party.recipes.registry import find_recipe, recipe_names

FOLDER = Path(__file__).parents[3] / "examples"
EXAMPLES = sorted(path for path in FOLDER.glob("*/*.toml") if path.name != "pyproject.toml")
TRUST = ("trusted-aggregator", "secure-sum")
PARAMETERS = 66


class Asked(Exception):
    """All was asked that can be asked before there is a sum."""


class Federation:
    """Parties that take everything, train nothing, and of whom no sum comes: what they were asked is in `requests`."""

    def __init__(self, parties=()):
        self.requests = []
        self.present = parties

    async def provide(self, kind, content):
        pass

    async def train(self, request, *ignored, **settings):
        self.requests += request.values() if isinstance(request, dict) else [request]

    async def sum_securely(self, release, terms, rows, store, before=None):
        if before is not None:
            await before(0)
        raise Asked

    async def aggregate(self, *ignored):
        raise Asked

    async def gather(self, *ignored, odd=None):
        raise Asked


class Store(SimpleNamespace):
    """A run's store that keeps nothing."""

    def fact(self, name):
        return None

    def note(self, **facts):
        pass

    def write(self, name, content):
        pass

    def finished(self, stage):
        return True

    def block_counts(self):
        return {}


class Queries(list):
    """Texts that are asked, as tokens."""

    ids = range(40)


@contextmanager
def stage(name):
    yield {}


def text(**more):
    """What is public of a small model, as far as it is told to parties."""
    start = np.zeros(PARAMETERS, np.float32)
    return SimpleNamespace(start=start, files={}, sha256={"config.json": bytes(32)}, digest="d", longest=16, **more)


def public_of(plan):
    """The same of a whole plan, for a recipe of classifiers."""
    if plan.run.recipe == "swing":
        return text(queries=Queries([[1] * 10] * 4), tokens=100, clues=b"", trainable=PARAMETERS)
    if plan.run.recipe == "distildp":
        return text(tokens=100, openings=((0,),), tokenizer=range(50))
    if plan.run.recipe != "privdistil":
        return text(queries=[("good",)] * 4)
    corpus = SimpleNamespace(count=lambda: 10, blocks=lambda rows: iter([["good", "bad"]]))
    domain = text() if plan.selection.scored else None
    samples = dict.fromkeys(plan.federation.names, b"[]")
    return SimpleNamespace(text=text(), domain=domain, opposed=40, corpus=corpus, samples=samples)


def bound_of(plan, public, multiplier=2.0):
    """A plan whose noise was chosen without looking for its price, which takes long and is no matter here."""
    recipe = system(plan.run.recipe).recipe(plan, public)
    releases = recipe.releases(multiplier)
    return PricedPlan(plan, releases, SimpleNamespace(epsilon=1.0), priced_plan._message(recipe, releases))


def asks_what_its_recipe_has(priced, requests):
    terms = priced.binding.terms
    assert why_not(terms) is None
    assert requests
    named = {release.name: release for release in terms.releases}
    for request in requests:
        release = named[getattr(request, request.WhichOneof("task")).release.partition(".")[0]]
        assert task_of(request) in tasks_of(terms, release), (task_of(request), release.name)


async def asked_of(priced, public, tmp_path):
    """All that parties are asked to train before there is a first sum."""
    federation, store = Federation(priced.plan.federation.names), Store(folder=tmp_path)
    recipe = system(priced.plan.run.recipe).recipe(priced.plan, public)
    if priced.plan.run.recipe == "privdistil":
        with pytest.raises(Asked) if public.domain is not None else stage(""):
            await domain_classifiers(priced, public, federation, store)
        with pytest.raises(Asked):
            await descend(priced, _student(priced), public.text, federation, store)
    else:
        with pytest.raises(Asked):
            await recipe.collect(priced, federation, store, stage)
    return federation.requests


SIGNALS = [
    ("counts",),
    ("moments",),
    ("votes",),
    ("hidden",),
    ("votes", "hidden"),
    ("votes", "counts"),
    ("votes", "moments"),
    ("hidden", "moments"),
    ("votes", "hidden", "counts"),
    ("votes", "hidden", "moments"),
]
AT_COORDINATOR = {"noise_at": "coordinator", "threshold": 2.0}
PRIVATE = {"private_training": {"units_per_teacher": 200, "batch": 100, "steps": 4}}
LISTED = [
    *((signals, {}) for signals in SIGNALS),
    *((signals, AT_COORDINATOR) for signals in SIGNALS if "votes" in signals),
    *((signals, PRIVATE) for signals in SIGNALS if not {"counts", "moments"} & set(signals)),
]

WORDS = [
    (signals, settings, trust)
    for signals, settings in LISTED
    for trust in TRUST
    if settings is not AT_COORDINATOR or trust == "trusted-aggregator"  # which no plan of the other may say
]


@pytest.fixture(scope="module")
def dped(tmp_path_factory):
    """`dped(signals, trust, **settings)`: a plan for word embeddings with a few words, and what is public of it."""
    folder = tmp_path_factory.mktemp("words")
    (folder / "public.jsonl").write_text('{"text": "ab cd ef gh ij ab ef cd"}\n' * 20)

    def makes(signals, trust, **settings):
        names = [{"name": f"party-{number}", "address": f"127.0.0.1:{7000 + number}"} for number in range(4)]
        plan = plan_of(
            {
                "run": {"name": "demo", "recipe": "dped", "seed": 7},
                "privacy": {"epsilon": 6.0, "delta": 1e-6, "trust": trust},
                "federation": {"launch": "connect", "parties": names},
                "vocabulary": {"source": str(folder / "public.jsonl"), "size": 5},
                "dped": {"signals": list(signals), "dimension": 2, "moments_clip": 1.0} | settings,
            }
        )
        return plan, prepare(plan, folder, folder / "cache")

    return makes


@pytest.mark.parametrize(("signals", "settings", "trust"), WORDS)
async def test_all_that_word_embeddings_may_be_made_of_is_theirs(dped, tmp_path, signals, settings, trust):
    plan, public = dped(signals, trust, **settings)
    priced = bound_of(plan, public)
    asks_what_its_recipe_has(priced, await asked_of(priced, public, tmp_path))


LOCAL = {"form": "local", "rounds": 2}
MOST_LOCAL = {"form": "local", "steps": 100, "rounds": 50}
CLASSIFIERS = [
    ("dp_sgd", {}, "trusted-aggregator"),
    ("dp_sgd", {}, "secure-sum"),
    ("dp_sgd", {"dp_sgd": LOCAL}, "trusted-aggregator"),
    ("dp_sgd", {"dp_sgd": MOST_LOCAL}, "trusted-aggregator"),
    ("pate", {}, "trusted-aggregator"),
    ("pate", {}, "secure-sum"),
]
SPOKEN = [("federated", "coordinator"), ("local", "coordinator"), ("local", "parties")]
CHOICES = [{"method": "ais"}, {"method": "classifier"}, {"method": "random"}, {"method": "all"}]


@pytest.mark.parametrize(("recipe", "changes", "trust"), CLASSIFIERS)
async def test_all_that_classifiers_may_be_made_of_is_theirs(classifier_plan, tmp_path, recipe, changes, trust):
    plan = classifier_plan(recipe, privacy={"trust": trust}, **changes)
    public = public_of(plan)
    priced = bound_of(plan, public)
    asks_what_its_recipe_has(priced, await asked_of(priced, public, tmp_path))


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("release", ["weights", "scores"])
@pytest.mark.parametrize("choice", CHOICES, ids=lambda each: each["method"])
async def test_all_that_a_distilled_classifier_may_be_made_of_is_its(privdistil_plan, tmp_path, local, release, choice):
    changes = {"dp_sgd": MOST_LOCAL} if local else {}
    plan = privdistil_plan(domain={"release": release, "epsilon": 3.0}, selection=choice, **changes)
    public = public_of(plan)
    priced = bound_of(plan, public)
    asks_what_its_recipe_has(priced, await asked_of(priced, public, tmp_path))


@pytest.mark.parametrize(("form", "where"), SPOKEN)
async def test_all_that_a_language_model_may_be_made_of_is_its(distildp_plan, tmp_path, form, where):
    said = {"dp_sgd": {"form": form}, "generation": {"where": where, "longest": 8}}
    plan = distildp_plan(floor={"use": False}, codes=None, **said)
    public = public_of(plan)
    priced = bound_of(plan, public)
    asks_what_its_recipe_has(priced, await asked_of(priced, public, tmp_path))
    counted = distildp_plan(**said)
    priced = bound_of(counted, public)
    requests = await asked_of(priced, public, tmp_path)
    asks_what_its_recipe_has(priced, requests)
    assert [request.WhichOneof("task") for request in requests] == ["tokens"]


@pytest.mark.parametrize("trust", TRUST)
async def test_all_that_teachers_of_language_may_be_asked_is_theirs(swing_plan, tmp_path, trust):
    plan, store = swing_plan(privacy={"trust": trust}), Store(folder=tmp_path)
    public = asked_texts(plan, tmp_path, tmp_path / "cache")
    public_outcomes(plan, public, store, lambda *told: None)
    priced = bound_of(plan, public)
    asks_what_its_recipe_has(priced, await asked_of(priced, public, tmp_path))


@pytest.mark.slow
async def test_all_that_a_teacher_whose_answers_are_softened_may_be_asked_is_its(softened_tables, tmp_path):
    plan = plan_of(softened_tables())
    priced = bound_of(plan, asked_texts(plan, tmp_path, tmp_path / "cache"))
    asks_what_its_recipe_has(priced, await asked_of(priced, asked_texts(plan, tmp_path, tmp_path / "cache"), tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_example_is_of_its_recipe(path, dped):
    plan = read_plan(path)
    public = dped(("moments",), "secure-sum")[1] if plan.run.recipe == "dped" else public_of(plan)
    assert why_not(bound_of(plan, public).binding.terms) is None


def test_every_recipe_that_a_plan_may_name_is_known_to_parties_and_no_other_is():
    assert set(recipe_names()) == set(names())


@pytest.mark.slow
def test_no_part_of_the_table_is_of_no_use(
    dped, classifier_plan, privdistil_plan, distildp_plan, swing_plan, softened_tables, learner_tables, nvdp_tables
):
    """Each kind and number of releases that a recipe may have is one that some honest plan of it has."""
    plans = [dped(signals, "trusted-aggregator", **settings) for signals, settings in LISTED]
    others = [classifier_plan(recipe, **changes) for recipe, changes, _ in CLASSIFIERS]
    for changes, release in itertools.product(({}, {"dp_sgd": MOST_LOCAL}), ("weights", "scores")):
        others.append(privdistil_plan(domain={"release": release, "epsilon": 3.0}, **changes))
    others += [distildp_plan(dp_sgd={"form": form}, generation={"where": where}) for form, where in SPOKEN]
    others += [swing_plan(), plan_of(softened_tables()), plan_of(learner_tables()), plan_of(nvdp_tables("published"))]
    others.append(
        classifier_plan("nvdp", public={"source": "somewhere.jsonl"}, privacy={"trust": "trusted-aggregator"})
    )
    plans += [(plan, public_of(plan)) for plan in others]
    met = [(plan.run.recipe, *_counted(bound_of(plan, public).binding.terms)) for plan, public in plans]
    for name in recipe_names():
        recipe = find_recipe(name)
        for form in recipe.forms:
            whole = sorted((str(kind), each.most) for kind, each in form.items())
            assert (name, *whole) in met, (name, whole)


def _counted(terms):
    kinds = [str(kind_of(release)) for release in terms.releases]
    return sorted((kind, kinds.count(kind)) for kind in set(kinds))
