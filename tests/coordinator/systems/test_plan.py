"""A wrong plan fails before anything is contacted, in one sentence with the key and what would be right."""

import json
import re
import typing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import BaseModel

from coordinator import api
from coordinator.errors import PlanError
from coordinator.plan.federation import PartyEntry
from coordinator.plan.named import named
from coordinator.pricing.release import rounded_up
from coordinator.serving.config import ServeConfig
from coordinator.systems.registry import names, price_of, read_plan, system, template
from coordinator.text_models.plan import ModelPlan
from party.config import PartyConfig
from protos.console import settings
from protos.console.mistakes import SettingsError
from protos.console.settings import check_settings
from protos.digest import plan_hash

ROOT = Path(__file__).resolve().parents[3]
RAY = template("ray").replace('signals   = ["moments"]', 'signals   = ["counts"]\nclip      = 10.0')
CONNECT = template("connect").replace('signals   = ["moments"]', 'signals   = ["counts"]\nclip      = 10.0')
LISTEN = 'listen = "0.0.0.0:7444"'
EXAMPLES = sorted(path for path in ROOT.glob("examples/*/*.toml") if path.name != "pyproject.toml")


def read(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return read_plan(path)


def complaint(tmp_path, text):
    with pytest.raises(PlanError) as caught:
        read(tmp_path, text)
    return str(caught.value)


@pytest.mark.parametrize("launch", ["ray", "connect"])
def test_the_plan_that_init_writes_is_a_good_one(tmp_path, launch):
    plan = with_clip(read(tmp_path, template(launch)))
    assert price_of(plan).guarantee.epsilon <= plan.privacy.epsilon


class Queries(list):
    """Texts that are asked, as far as a plan's price depends on them."""

    ids = range(4000)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_a_good_plan(example):
    plan = read_plan(example)
    if isinstance(plan, ModelPlan):
        model = SimpleNamespace(start=np.zeros(770, np.float32))
        corpus = SimpleNamespace(text=model, domain=model, opposed=1000)  # of PrivDistil
        language = SimpleNamespace(start=model.start, tokens=8192)
        taught = SimpleNamespace(queries=Queries([0] * 100), tokens=8192, trainable=770)
        public = {"privdistil": corpus, "distildp": language, "swing": taught}.get(plan.run.recipe, model)
        priced = price_of(plan, public)
        assert priced.private == plan.privacy.guarantee
        assert not priced.private or 0 < priced.guarantee.epsilon <= plan.privacy.epsilon
    else:
        assert price_of(with_clip(plan)).guarantee.epsilon > 0


def with_clip(plan):
    """The plan with a clip of its own, which public text would else suggest."""
    return plan.model_copy(update={"dped": plan.dped.model_copy(update={"moments_clip": 1000.0})})


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("epsilon = 8.0", "epsilom = 8.0", r'line \d+: there is no key \[privacy\] epsilom\. Did you mean "epsilon"\?'),
        ("epsilon = 8.0", "epsilon = 0", r"line \d+: \[privacy\] epsilon = 0 should be greater than 0"),
        ("epsilon = 8.0", "epsilon = -1.0", "should be greater than 0"),
        (
            "delta   = 1e-6",
            "delta   = 0.1",
            r"delta = 0.1: this is too large.*one record in 10 outright.*at most 0.001",
        ),
        ("delta   = 1e-6", "delta   = 0.0", "delta must be above 0"),
        ('unit    = "record"', 'unit    = "usr"', r"unit = \"usr\" is not one of 'record' or 'user'"),
        ('unit    = "record"', 'unit    = "user"', r"needs \[federation.shards\] user"),
        ("parties = 4", "parties = 0", r"\[federation\] shards split parties = 0 should be greater than or equal to 1"),
        ("size   = 1000", "size   = 1", r"\[vocabulary\] size = 1 should be greater than or equal to 2"),
        ('signals   = ["counts"]', 'signals   = ["voices"]', r"signals.*'counts'"),
        ('signals   = ["counts"]', "signals   = []", "a recipe needs a signal"),
        ('recipe = "dped"', 'recipe = "magic"', "is not one of 'distildp', 'dped'"),
        ('"trusted-aggregator"', '"secure-sum"\ncolluders = 4', "2 x dropouts . colluders must be less"),
        ("dropouts = 0", "attempts = 2", "attempts has a meaning under"),
        ("dropouts = 0", 'noise = "laplace"', "noise.*'gaussian', 'skellam' or 'discrete-gaussian'"),
        ("dropouts = 0", "dropouts = 4", "leaves nobody of 4 parties. Use at most 3"),
        ("dropouts = 0", "colluders = 1", "colluders has a meaning under"),
        (
            '"documentation-topics"',
            '"documentation"',
            r"\[vocabulary\] source = \"documentation\" is the parties' own text",
        ),
        ('"documentation-heldout"', '"documentation"', r"\[evaluation\] source.*name public text"),
        ('by = "package"', 'by = "dirichlet"', "needs a label column and an alpha"),
        ('launch = "ray" ', 'launch = "connect" ', r"\[federation.shards\] belongs to launch = \"ray\""),
        ("[dped]", "[dpde]", 'there is no key dpde. Did you mean "dped"'),
        ('name   = "my-embeddings"', 'name   = " mine"', r"\[run\] name = \" mine\": a run's name is one line of text"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(tmp_path, old, new, says):
    assert old in RAY
    said = complaint(tmp_path, RAY.replace(old, new))
    assert re.search(says, said), said
    assert said.startswith("plan.toml")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (re.search(r"parties = \[.*?\]\n", CONNECT, re.S).group(), "parties = []\n", "at least one party"),
        ('"south"', '"north"', 'names "north" twice'),
        ("minimum_parties = 2", "minimum_parties = 3", "minimum_parties = 3, but the plan has 2 parties"),
        ("minimum_parties = 2", "minimum_parties = 1", "the noise of 2 of 2 parties is needed. Set dropouts = 1"),
        ("127.0.0.1:7443", "north", r"parties 1 address"),
        (
            "minimum_parties = 2",
            "minimum_parties = 2\nretry_seconds = -1",
            r"line \d+: \[federation\] retry_seconds = -1 should be greater than or equal to 0",
        ),
        (
            "minimum_parties = 2",
            'minimum_parties = 2\nstragglers = "drop"',
            r'line \d+: \[federation\] stragglers = "drop": .* Use stragglers = "wait", or stragglers = { drop_after',
        ),
        (
            "minimum_parties = 2",
            "minimum_parties = 2\nstragglers = { drop_after = 1 }",
            r"line \d+: a party that is slow is waited for, or dropped.*at least 2 seconds",
        ),
        ("minimum_parties = 2", "minimum_parties = 2\nstragglers = { after = 60 }", "drop_after = 600"),
        ("minimum_parties = 2", "minimum_parties = 2\nstragglers = { train_within = 60 }", "drop_after = 600"),
        (
            "minimum_parties = 2",
            "minimum_parties = 2\nstragglers = { drop_after = 60, train_within = 1 }",
            "train_within = 7200 beside it|bounds one training",
        ),
        ('launch = "connect"', 'launch = "ray"', 'belongs to launch = "connect"'),
        ('address = "127.0.0.1:7443"', "dials = true", r"listen is missing: north dials the coordinator"),
        (
            'address = "127.0.0.1:7443"',
            'address = "127.0.0.1:7443", dials = true',
            "either an address.*or dials = true",
        ),
        (', address = "127.0.0.1:7443"', "", "either an address.*or dials = true"),
        ("minimum_parties = 2", f"minimum_parties = 2\n{LISTEN}", "listen is for parties that dial, and none does"),
        (
            'minimum_parties = 2\nparties = [\n  { name = "north", address = "127.0.0.1:7443" }',
            f'minimum_parties = 2\n{LISTEN}\nparties = [\n  {{ name = "north", dials = true }}',
            "identity is missing: north dials, and only a certificate",
        ),
        ("minimum_parties = 2", 'minimum_parties = 2\nlisten = "7444"', r"\[federation\] listen"),
    ],
)
def test_a_plan_with_parties_elsewhere_is_checked_too(tmp_path, old, new, says):
    assert old in CONNECT
    assert re.search(says, complaint(tmp_path, CONNECT.replace(old, new)))


def teaching(*lines, signals=("votes", "hidden"), text=RAY):
    """The plan of `init` with other signals and these lines of `[dped]`; one of another table starts with its name."""
    text = text.replace('signals   = ["counts"]', f"signals   = {json.dumps(list(signals))}")
    for line in lines:
        table, _, setting = line.rpartition("| ")
        if not table:
            text = text.replace("[dped]\n", f"[dped]\n{line}\n")
        elif f"[{table}]" in text:
            key = setting.split(" = ")[0]
            text = re.sub(rf"(?m)^{key} *= .*$", setting, text, count=1)
        else:
            text = text.replace("[student]", f"[{table}]\n{setting}\n\n[student]")
    return text


PRIVATE = "dped.private_training| units_per_teacher = 5000"


@pytest.mark.parametrize(
    ("lines", "signals", "says"),
    [
        (["queries = 1001"], ("votes",), r"\[dped\] queries = 1,001, but the vocabulary has 1,000 words"),
        (["queries = 0"], ("votes",), r"\[dped\] queries"),
        (["queries = []"], ("votes",), r"\[dped\] queries.*a query is missing"),
        (["classes = 1001"], ("votes",), r"\[dped\] classes = 1,001, but the vocabulary has 1,000 words"),
        (["classes = 1"], ("votes",), r"\[dped\] classes"),
        (['classes = ["the"]'], ("votes",), r"\[dped\] classes.*two classes or more"),
        (['classes = ["the", "a", "the"]'], ("votes",), r'\[dped\] classes.*"the" is there twice'),
        (
            ["threshold = 13.0"],
            ("votes",),
            r"threshold = 13 is more votes than 12 teachers have: no query can reach it",
        ),
        (["threshold = 0.0"], ("votes",), r"\[dped\] threshold"),
        (["threshold = 5.0"], ("hidden",), r'\[dped\] threshold is one of votes. Add "votes" to signals'),
        (["threshold = 5.0"], ("counts",), r"\[dped\] threshold is one of votes"),
        (['noise_at = "coordinator"'], ("votes",), r'noise_at = "coordinator" tests a threshold. Set threshold'),
        (
            ['noise_at = "coordinator"', "threshold = 5.0", "privacy| dropouts = 1"],
            ("votes",),
            r"\[privacy\] dropouts = 1 makes each party's share of the noise larger.*Set dropouts = 0",
        ),
        (['below_threshold = "guess"'], ("votes",), r"below_threshold"),
        (["answered = 0.0"], ("votes",), r"\[dped\] answered"),
        (["answered = 1.5"], ("votes",), r"\[dped\] answered"),
        (
            ["teachers_per_party = 1", "federation.shards| split = { parties = 1 }"],
            ("votes",),
            r"teachers_per_party = 1 with one party is one teacher.*Use several teachers or parties",
        ),
        (["teachers_per_party = 0"], ("votes",), r"\[dped\] teachers_per_party"),
        (["layers = []"], ("hidden",), r"\[dped\] layers.*hidden states are of a layer"),
        (['layers = ["centre", "centre"]'], ("hidden",), r'\[dped\] layers.*"centre" is there twice'),
        (['layers = ["last"]'], ("hidden",), r"\[dped\] layers.*'centre' or 'context'"),
        (["hidden_clip = 0.0"], ("hidden",), r"\[dped\] hidden_clip"),
        ([], ("votes", "votes"), r'\[dped\] signals.*"votes" is there twice'),
        (["dped.budget| votes = 0.0"], ("votes",), r"\[dped\] budget votes"),
        ([PRIVATE], ("counts",), r'private_training\] trains teachers. Add "votes" or "hidden"'),
        ([PRIVATE], ("counts", "votes"), r'private_training\] takes the whole budget.*"votes"'),
        (
            [PRIVATE, 'privacy| dropouts = 0\nnoise = "skellam"'],
            ("votes",),
            'noise = "skellam" is of noise that parties add',
        ),
        (
            ["threshold = 5.0", 'noise_at = "coordinator"', 'privacy| dropouts = 0\nnoise = "discrete-gaussian"'],
            ("votes",),
            'noise = "discrete-gaussian" is of noise that parties add by shares',
        ),
        (
            [PRIVATE, "threshold = 5.0", 'noise_at = "coordinator"'],
            ("votes",),
            r'private_training\] makes answers free: noise_at = "coordinator" has no use',
        ),
        ([PRIVATE + "\nbatch = 5001"], ("votes",), r"batch = 5001 is more than units_per_teacher = 5000"),
        (["dped.private_training| batch = 5"], ("votes",), r"units_per_teacher"),
        ([PRIVATE, 'privacy| record = "pair"'], ("votes",), r'record = "pair" makes each pair one'),
    ],
)
def test_what_is_wrong_about_teachers_is_named_before_anything_is_asked(tmp_path, lines, signals, says):
    said = complaint(tmp_path, teaching(*lines, signals=signals))
    assert re.search(says, said), said
    assert said.startswith("plan.toml")
    assert "\n" not in said


@pytest.mark.parametrize(
    "lines",
    [
        ["queries = 1000", "classes = 1000"],
        ['queries = ["the", "a", "the"]', 'classes = ["the", "a"]'],
        ["threshold = 12.0", 'noise_at = "coordinator"'],
        ["threshold = 6.0", "privacy| dropouts = 1"],
        pytest.param([PRIVATE + "\nbatch = 5000\nsteps = 2"], marks=pytest.mark.slow),
        pytest.param([PRIVATE], marks=pytest.mark.slow),
        ['layers = ["centre", "context"]'],
    ],
)
def test_plans_at_the_edge_of_what_works_are_good_ones(tmp_path, lines):
    plan = read(tmp_path, teaching(*lines))
    assert 0.9 * plan.privacy.epsilon < price_of(plan).guarantee.epsilon <= plan.privacy.epsilon


def test_one_teacher_a_party_is_enough_where_parties_are_several(tmp_path):
    assert read(tmp_path, teaching("teachers_per_party = 1")).teachers == 4


def test_the_same_word_listed_twice_is_one_query(tmp_path):
    assert read(tmp_path, teaching('queries = ["the", "a", "the"]')).queries == 2


@pytest.mark.slow
def test_a_plan_over_its_own_budget_is_refused_with_the_noise_that_would_do(tmp_path):
    plan = read(tmp_path, RAY.replace("# noise_multiplier = 0.7", "noise_multiplier = 0.3"))
    with pytest.raises(
        PlanError, match=r"noise_multiplier = 0.3 costs epsilon 2\d\.\d+ .* over the plan's 8.*Nothing ran"
    ):
        price_of(plan)


def test_an_epsilon_is_never_shown_as_less_than_it_is():
    assert rounded_up(7.99939) == "8.000"
    assert rounded_up(2.0, 2) == "2.00"
    assert rounded_up(2.001, 2) == "2.01"
    assert rounded_up(float("inf")) == "infinity"
    assert rounded_up(0.0) == "0.000"
    assert rounded_up(0.0011) == "0.002"
    assert rounded_up(0.000123) == "0.00013"
    assert rounded_up(1e-5) == "0.000010"
    assert rounded_up(5e-324) == "0.000000000000001"


def test_noise_that_is_given_is_kept_and_priced(tmp_path):
    priced = price_of(read(tmp_path, RAY.replace("# noise_multiplier = 0.7", "noise_multiplier = 2.0")))
    assert priced.release("counts").mechanism.noise_multiplier == 2.0
    assert priced.guarantee.epsilon < 3


def test_the_claim_is_within_the_budget_and_close_to_it(tmp_path):
    priced = price_of(read(tmp_path, RAY))
    assert 7.9 < priced.guarantee.epsilon <= 8.0


def test_parties_are_waited_for_unless_the_plan_says_when_to_drop_them(tmp_path):
    federation = read(tmp_path, CONNECT).federation
    assert (federation.retry_seconds, federation.drop_after) == (300.0, None)
    text = CONNECT.replace("minimum_parties = 2", "minimum_parties = 2\nstragglers = { drop_after = 60 }")
    assert read(tmp_path, text).federation.drop_after == 60.0
    assert read(tmp_path, text).federation.train_within is None
    text = text.replace("drop_after = 60", "drop_after = 60, train_within = 7200")
    assert read(tmp_path, text).federation.train_within == 7200.0


def test_every_party_that_may_be_lost_makes_the_shares_larger(tmp_path):
    none = price_of(read(tmp_path, RAY)).release("counts").mechanism
    one = price_of(read(tmp_path, RAY.replace("dropouts = 0", "dropouts = 1"))).release("counts").mechanism
    assert (none.shares, one.shares) == (4, 3)
    assert none.noise_multiplier == one.noise_multiplier


def test_a_pair_is_clipped_to_the_one_that_it_counts(tmp_path):
    assert (
        price_of(read(tmp_path, RAY.replace('record  = "document"', 'record  = "pair"')))
        .release("counts")
        .mechanism.clip
        == 1.0
    )


def test_noise_too_fine_for_its_grid_is_refused_in_the_plans_own_words(tmp_path):
    plan = read(tmp_path, RAY.replace("clip      = 10.0", "levels = 2\nclip      = 10.0"))
    with pytest.raises(PlanError, match=r"\[dped\] The counts cannot be released under this plan: .*levels"):
        price_of(plan)


def hash_of(tmp_path, text):
    return plan_hash(price_of(read(tmp_path, text)).binding)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("127.0.0.1:7443", "127.0.0.2:1234"),
        ('launch = "connect"', 'launch = "connect"\nidentity = "federation"'),
        ("minimum_parties = 2", "minimum_parties = 2\ndeadline_seconds = 5"),
        ("minimum_parties = 2", "minimum_parties = 2\nretry_seconds = 0"),
        ("minimum_parties = 2", "minimum_parties = 2\nstragglers = { drop_after = 600 }"),
        ("minimum_parties = 2", "minimum_parties = 2\nstragglers = { drop_after = 600, train_within = 7200 }"),
        ("published/my-embeddings", "another/place"),
        (
            'minimum_parties = 2\nparties = [\n  { name = "north", address = "127.0.0.1:7443" }',
            f'minimum_parties = 2\nidentity = "fed"\n{LISTEN}\nparties = [\n  {{ name = "north", dials = true }}',
        ),
    ],
)
def test_the_plan_hash_does_not_cover_addresses_deadlines_and_places(tmp_path, old, new):
    assert old in CONNECT
    assert hash_of(tmp_path, CONNECT.replace(old, new)) == hash_of(tmp_path, CONNECT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("epsilon = 8.0", "epsilon = 7.0"),
        ("seed   = 7", "seed   = 8"),
        ('"south"', '"west"'),
        ("window    = 5", "window    = 4"),
        ("size   = 1000", "size   = 999"),
        ("dimension = 100", "dimension = 50"),
        ('signals   = ["counts"]', 'signals   = ["votes"]'),
        ("[dped]", "[dped]\nteachers_per_party = 4"),
        ("[dped]", "[dped]\nqueries = 999"),
        ("[dped]", "[dped]\nhidden_clip = 1.5"),
    ],
)
def test_the_plan_hash_covers_what_affects_data_privacy_and_result(tmp_path, old, new):
    assert old in CONNECT
    assert hash_of(tmp_path, CONNECT.replace(old, new)) != hash_of(tmp_path, CONNECT)


def test_the_document_that_parties_read_is_canonical_and_whole(tmp_path):
    document = read(tmp_path, CONNECT).document()
    tables = json.loads(document)
    assert tables["privacy"]["epsilon"] == 8.0
    assert tables["federation"]["parties"] == ["north", "south"]
    assert "127.0.0.1" not in document
    assert json.dumps(tables, sort_keys=True, separators=(",", ":")) == document


PLACES = [
    ("/home/ann/secret/notes.jsonl", "notes.jsonl"),
    ("~/texts/notes.csv", "notes.csv"),
    ("../shared/notes.txt", "notes.txt"),
    ("data/notes.parquet", "notes.parquet"),
    ("/srv/hospital/*.jsonl", "*.jsonl"),
    ("/srv/hospital/notes/", "notes"),
    ("./notes", "notes"),
    ("a/b/c", "c"),
    ("documentation-topics", "documentation-topics"),
    ("wikitext", "wikitext"),
    ("Salesforce/wikitext", "Salesforce/wikitext"),
]


@pytest.mark.parametrize(("place", "name"), PLACES)
def test_of_a_source_its_name_is_published_and_not_its_place(place, name):
    assert named(place) == name


def test_no_table_of_a_plan_publishes_a_place_and_a_plan_that_moved_has_the_same_hash(tmp_path):
    def text(folder):
        probe = f'{{ name = "p", source = "{folder}/p.csv", test = "{folder}/q.csv" }}'
        return (
            RAY.replace('"documentation"', f'"{folder}/letters.jsonl"')
            .replace('"documentation-topics"', f'"{folder}/words.jsonl"')
            .replace('"documentation-heldout"', f'"{folder}/held.jsonl"\nprobes = [{probe}]')
            .replace("[dped]", f'[dped]\nreference = "{folder}/start.safetensors"')
        )

    one, other = (read(tmp_path, text(folder)) for folder in ("/home/ann/secret", "/mnt/moved"))
    assert "/" not in one.document()
    assert one.document() == other.document()
    assert one.document(places=True) != other.document(places=True)
    for name in ("letters.jsonl", "words.jsonl", "held.jsonl", "p.csv", "q.csv", "start.safetensors"):
        assert f'"{name}"' in one.document()


def test_that_public_text_is_like_the_parties_is_for_people_and_in_no_hash(tmp_path):
    said = CONNECT.replace("[vocabulary]", "[vocabulary]\nlike_parties = true")
    assert read(tmp_path, said).vocabulary.like_parties
    assert hash_of(tmp_path, said) == hash_of(tmp_path, CONNECT)


def test_parties_on_other_machines_are_not_asked_in_plain_text(tmp_path):
    away = CONNECT.replace("127.0.0.1:7443", "elsewhere.example:1234")
    with pytest.raises(PlanError, match=r"identity is missing: north at elsewhere.example:1234.*provision federation"):
        read(tmp_path, away)
    known = away.replace('launch = "connect"', 'launch = "connect"\nidentity = "federation"')
    assert read(tmp_path, known).federation.identity == "federation"


def test_what_a_run_starts_itself_has_no_gate(tmp_path):
    with pytest.raises(PlanError, match=r'listen belongs to launch = "connect"'):
        read(tmp_path, template("ray").replace('launch = "ray"', f'launch = "ray"\n{LISTEN}'))


def test_what_a_run_starts_itself_needs_no_identity(tmp_path):
    with pytest.raises(PlanError, match=r'identity belongs to launch = "connect"'):
        read(tmp_path, template("ray").replace('launch = "ray"', 'launch = "ray"\nidentity = "federation"'))


def on_cluster(tables):
    return RAY.replace("[vocabulary]", f"[federation.cluster]\n{tables}\n\n[vocabulary]", 1)


def test_a_plan_moves_to_a_cluster_by_its_federation_alone(tmp_path):
    plain, moved = read(tmp_path, RAY), read(tmp_path, on_cluster('folder = "kept"\nports = "7500-7503"\ngpus = 0.5'))
    assert moved.document() == plain.document()
    found = moved.federation.cluster.cluster(moved.federation.names, tmp_path, "a1b2-run")
    assert (found.address, found.folder, found.ports) == ("auto", tmp_path / "kept" / "a1b2-run", (7500, 7503))
    assert {place.gpus for place in found.places.values()} == {0.5}
    assert sorted(found.places) == list(moved.federation.names)


def test_a_party_may_ask_for_a_machine_of_its_own(tmp_path):
    tables = """resources = { party = 1 }

[federation.cluster.party.party-2]
labels = { site = "north" }
gpus = 2"""
    places = read(tmp_path, on_cluster(tables)).federation.cluster.cluster(("party-1", "party-2"), tmp_path, "r").places
    assert places["party-1"].resources == {"party": 1.0}
    assert (places["party-2"].resources, places["party-2"].labels, places["party-2"].gpus) == ({}, {"site": "north"}, 2)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ('address = "ray://head:10001"', "is a Ray Client's address"),
        ('address = "head"', 'is no address of a Ray cluster. Use "auto", or "HOST:PORT"'),
        ('address = "head:66000"', "is no address of a Ray cluster"),
        ('ports = "7500"', "is no range of ports"),
        ('ports = "7503-7500"', "is no range of ports"),
        ('ports = "80-443"', "is no range of ports"),
        ('ports = "7500-7502"', "are fewer than 4 parties"),
        ("resources = { CPU = 1 }", "CPU is Ray's own. Leave it out"),
        ("resources = { GPU = 1 }", "GPU is Ray's own. Use gpus"),
        ("gpus = 1.5", "more than one comes whole. Use 1"),
        ("party.party-9.gpus = 1", "party-9: there is no such party. There is party-1"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(tmp_path, tables, said):
    assert said in complaint(tmp_path, on_cluster(tables))


def test_a_cluster_is_where_parties_are_started(tmp_path):
    said = complaint(tmp_path, CONNECT.replace("[vocabulary]", "[federation.cluster]\n\n[vocabulary]", 1))
    assert '[federation.cluster] belongs to launch = "ray"' in said


@pytest.mark.parametrize(
    ("text", "address", "said"),
    [
        (RAY, "somewhere", '--ray-address: "somewhere" is no address of a Ray cluster'),
        (CONNECT, "auto", '--ray-address: a Ray cluster goes with launch = "ray"; with "connect" parties run already.'),
    ],
)
def test_an_address_that_cannot_be_is_refused_before_anything_begins(tmp_path, text, address, said):
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(PlanError, match=re.escape(said)):
        api.run(tmp_path / "plan.toml", ray_address=address)


def _patterns(model, seen):
    """Every pattern of a settings model and of the models in it."""
    if model in seen:
        return
    seen.add(model)
    for field in model.model_fields.values():
        stack = [field, field.annotation]
        while stack:
            part = stack.pop()
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _patterns(part, seen)
            stack += [*getattr(part, "metadata", ()), *typing.get_args(part)]
            if (pattern := getattr(part, "pattern", None)) is not None:
                yield pattern


def test_no_regular_expression_reaches_a_person():
    """What a pattern asks for is said in words, for every key of plans, party files and coordinator files."""
    models = [*(system(name).plan for name in names()), PartyConfig, ServeConfig]
    found = {pattern for model in models for pattern in _patterns(model, set())}
    assert len(found) >= 5
    assert found <= settings._FORMS.keys()
    with pytest.raises(SettingsError, match="is no name: use small letters") as caught:
        check_settings({"name": "North!", "address": "a:1"}, PartyEntry, "plan.toml")
    assert "[a-z" not in str(caught.value)
