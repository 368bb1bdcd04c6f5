"""Noisy vectors: what a plan may ask, what a run learns from rows alone, and that others can train on what it shows."""

import dataclasses
import json
import math
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, SelfComposedDpEvent

from aggregation.accounting.events import RandomizedResponseDpEvent
from aggregation.accounting.price import calibrate, price
from coordinator import api
from coordinator.comparing import table
from coordinator.comparing.comparable import changed
from coordinator.comparing.simulated_run import driven
from coordinator.errors import PlanError
from coordinator.pricing.priced_plan import price_plan
from coordinator.progress.progress import Silent
from coordinator.run.party_files import party_tables
from coordinator.systems.nvdp.compare import NvdpComparison
from coordinator.systems.nvdp.pooling import odd_rows, rows_of
from coordinator.systems.nvdp.public import prepare
from coordinator.systems.nvdp.recipe import Nvdp
from coordinator.systems.nvdp.releases import mechanism_of
from coordinator.systems.nvdp.rules import naive_of, rule_of, said_by
from coordinator.systems.nvdp.sequences import published
from coordinator.systems.nvdp.splitting import deviation, label_epsilon
from coordinator.systems.registry import read_plan
from coordinator.transport.launchers import SimulationRequest, find_launcher
from learning.bottleneck.pinsker import AboveBound
from learning.errors import DataError
from learning.text.labelled import Example

GOOD, BAD = ("good", "great", "bright", "fast"), ("bad", "awful", "dull", "slow")
OTHER = ("the", "a", "film", "was", "plot", "actor")
PLAN = """
[run]
name = "films"
recipe = "nvdp"
seed = 7
[privacy]
epsilon = 8.0
delta = 1e-5
[federation]
launch = "ray"
[federation.shards]
source = "films.jsonl"
label = "stars"
id = "id"
user = "who"
split = { by = "hash", parties = 2 }
[text]
labels = ["no", "yes"]
values = ["0", "1"]
longest = 32
[model]
name = "encoder"
[public]
source = "public.jsonl"
limit = 200
[samples]
rows = 900
dimensions = 4
[evaluation]
source = "heldout.jsonl"
label = "stars"
"""


def films(count, seed):
    rng = np.random.default_rng(seed)
    for number in range(count):
        words = rng.permutation([*rng.choice(OTHER, 4), *rng.choice(GOOD if number % 2 else BAD, 4)])
        about = {"stars": number % 2, "who": f"p{number % 60}", "id": f"{number}"}
        yield {"text": " ".join(words), "other": "the film"} | about


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Models here are so small that threads would only wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def made(tiny_bert, tmp_path_factory):
    """A plan of made-up films and a sentence encoder beside it."""
    folder = tmp_path_factory.mktemp("films")
    for name, count, seed in (("films", 1800, 0), ("public", 300, 1), ("heldout", 200, 2)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in films(count, seed)))
    shutil.copytree(tiny_bert, folder / "encoder")
    (folder / "encoder/1_Pooling").mkdir()
    (folder / "encoder/1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder


@pytest.fixture(scope="module")
def plan_of(made, tmp_path_factory):
    """`plan_of("rows = 900", "rows = 5")`: the plan with these texts replaced, two by two."""

    def reads(*changes):
        text = PLAN
        for old, new in zip(changes[::2], changes[1::2], strict=True):
            assert text.count(old) == 1
            text = text.replace(old, new)
        path = tmp_path_factory.mktemp("plan") / "plan.toml"
        path.write_text(text)
        return read_plan(path)

    return reads


@pytest.fixture(scope="module")
def drawn(made, tmp_path_factory):
    """`drawn(plan)`: the recipe, its run over simulated parties, the rows, and the published folder."""

    def draws(plan):
        folder = tmp_path_factory.mktemp("simulated")
        recipe = Nvdp(plan, prepare(plan, made, folder / "cache"))
        request = SimulationRequest(party_tables(plan), folder / "parties", made, b"", 0, "document", False)
        with driven(recipe, find_launcher("ray").simulate(request), Silent(), made, folder / "run") as run:
            mechanism = mechanism_of(run.priced.releases)
            rows = rows_of(run.store, mechanism)
            student = recipe.student(run.content, run.priced, run.present, run.store, Silent())
            student.write(folder / "student")
            return recipe, mechanism, rows, student, folder / "student"

    return draws


@pytest.fixture(scope="module")
def clear(plan_of, drawn):
    """A run with little noise, and public text with labels."""
    return drawn(plan_of("epsilon = 8.0", "epsilon = 30.0", "limit = 200", 'limit = 200\nlabel = "stars"'))


@pytest.mark.slow
def test_two_parties_give_as_many_rows_each_and_the_student_learns_from_these(clear):
    _, mechanism, rows, student, _ = clear
    assert rows.vectors.shape == (1800, 4)
    assert rows.parties == 2
    assert student.metrics["accuracy"] > 0.8
    assert student.metrics["public_rule"] > 0.5
    assert mechanism.texts == 1


@pytest.mark.slow
def test_the_published_layer_says_what_the_rule_says_of_projected_texts(clear, made):
    """Encoder, projection and rule are one linear map, but for what the projection clips."""
    from transformers import pipeline

    recipe, mechanism, rows, _, folder = clear
    rule = rule_of(recipe.plan, recipe.read, mechanism, rows)
    said = said_by(recipe.plan, recipe.read, rule).argmax(axis=1)
    classify = pipeline("text-classification", str(folder))
    texts = [each.first for each in recipe.read.heldout]
    published = [int(each["label"] == "yes") for each in classify(texts)]
    assert np.mean(np.array(published) == said) > 0.9


@pytest.mark.slow
def test_the_rows_load_with_the_library_and_what_is_known_of_them_lies_beside(clear):
    from datasets import load_from_disk

    _, mechanism, rows, _, folder = clear
    found = load_from_disk(str(folder / "samples"))
    assert len(found) == 1800
    assert np.array_equal(np.array(found["vector"]), rows.vectors)
    assert found["label"][:] == rows.labels.tolist()
    assert found.features["label"].names == ["no", "yes"]
    known = json.loads((folder / "samples/known.json").read_text())
    assert known["sigma"] == mechanism.sigma
    assert len(known["covariance"]) == 4


@pytest.mark.slow
def test_a_script_that_imports_nothing_of_ours_trains_on_the_rows_by_the_card_alone(clear, tmp_path):
    recipe, *_, folder = clear
    card = (folder / "samples/README.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    shutil.copytree(folder / "samples", tmp_path / "samples")
    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "train.py"), str(tmp_path / "samples")],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not re.search(r"import (learning|coordinator|aggregation|party|protos)|from (learning|coordinator)", script)
    weights = np.load(next(tmp_path.rglob("weights.npy")))
    bias = np.load(next(tmp_path.rglob("bias.npy")))
    clean = recipe.read.projection.applied(recipe.read.vectors)
    truth = np.array([each.target for each in recipe.read.heldout])
    assert ((clean @ weights + bias).argmax(axis=1) == truth).mean() > 0.75


@pytest.mark.slow
def test_the_card_says_that_there_are_rows_and_their_own_card_what_noise_they_have(clear):
    _, mechanism, _, _, folder = clear
    card = (folder / "samples/README.md").read_text()
    assert f"standard deviation {mechanism.sigma:.4g}" in card
    assert "1,800 rows of 2 parties" in card


@pytest.mark.slow
def test_training_as_if_the_rows_were_clean_learns_less(plan_of, drawn):
    seeded = "epsilon = 2.0\ninsecure_reproducible_noise = true"
    plan = plan_of("epsilon = 8.0", seeded, "limit = 200", 'limit = 200\nlabel = "stars"')
    recipe, mechanism, rows, student, _ = drawn(plan)
    truth = np.array([each.target for each in recipe.read.heldout])
    naive = naive_of(plan, recipe.read, mechanism, rows)
    assert (said_by(plan, recipe.read, naive).argmax(axis=1) == truth).mean() < student.metrics["accuracy"] - 0.05


@pytest.mark.slow
def test_labels_and_texts_share_the_plans_epsilon(plan_of, made, tmp_path):
    plan = plan_of()
    priced = price_plan(Nvdp(plan, None))
    mechanism = mechanism_of(priced.releases)
    assert mechanism.label_epsilon == label_epsilon(8.0, 1e-5, 2)
    assert 7.9 < priced.guarantee.epsilon <= 8.0
    public = mechanism_of(price_plan(Nvdp(plan_of("rows = 900", 'rows = 900\nlabels = "public"'), None)).releases)
    assert public.label_epsilon == 0.0
    assert public.sigma < mechanism.sigma
    assert price([public.event()], 1e-5).epsilon <= 8.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "label", "classes", "texts"), [(1.0, 0.5, 2, 1), (4.0, 1.7, 14, 1), (8.0, 1.2, 3, 4)]
)
def test_the_split_prices_as_the_accountant_does(epsilon, label, classes, texts):
    labels = SelfComposedDpEvent(RandomizedResponseDpEvent(label, classes), texts)
    own = calibrate(lambda noise: ComposedDpEvent([GaussianDpEvent(noise), labels]), epsilon, 1e-5)
    assert own == pytest.approx(deviation(epsilon, 1e-5, label, classes, texts), rel=2e-3)


@pytest.mark.parametrize(("epsilon", "classes"), [(1.0, 2), (4.0, 2), (8.0, 2), (4.0, 14)])
def test_labels_spend_what_leaves_their_means_the_least_noise(epsilon, classes):
    def noise(label):
        return deviation(epsilon, 1e-5, label, classes) * (math.exp(label) + classes - 1) / math.expm1(label)

    best = label_epsilon(epsilon, 1e-5, classes)
    assert all(noise(best) <= noise(best * factor) for factor in (0.5, 0.8, 1.25, 1.6))


def test_labels_that_cost_more_than_all_leave_no_noise_that_does():
    assert deviation(1.0, 1e-5, 1.5, 2) == math.inf


def test_a_changed_epsilon_changes_what_labels_spend_by_the_same_factor(plan_of):
    plan = plan_of("rows = 900", "rows = 900\nlabel_epsilon = 2.0")
    assert changed(plan, epsilon=4.0).label_epsilon == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "encoder"', 'name = "encoder"\nadapt = "lora"', "nothing of the public encoder is trained"),
        ("rows = 900", "rows = 900\ntexts = 2", "the plan protects records"),
        ("rows = 900", "rows = 900\nlabel_epsilon = 8.0", "leaves nothing"),
        ("rows = 900", 'rows = 900\nlabels = "public"\nlabel_epsilon = 1.0', "Leave one out"),
        ("[text]", '[text]\nkind = "pair"', r"\[public\] second is missing"),
        ("rows = 900", "rows = 0", "rows"),
        ("dimensions = 4", "dimensions = 5000", "dimensions"),
        ("delta = 1e-5", 'delta = 1e-5\nnoise = "skellam"', "adds all noise itself"),
        ("delta = 1e-5", 'delta = 1e-5\ntrust = "secure-sum"\ncolluders = 1', "belong to sums"),
        ('source = "public.jsonl"', 'source = "films.jsonl"', "the parties' own text"),
        ('[public]\nsource = "public.jsonl"\nlimit = 200\n', "", "public"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_by_its_key(plan_of, old, new, said):
    with pytest.raises(PlanError, match=said):
        plan_of(old, new)


def test_too_little_public_text_is_refused(plan_of, made, tmp_path):
    (made / "few.jsonl").write_text((made / "public.jsonl").read_text()[:2000])
    with pytest.raises(DataError, match="usable texts"):
        prepare(plan_of('source = "public.jsonl"', 'source = "few.jsonl"'), made, tmp_path)


@pytest.mark.slow
def test_rows_of_a_party_that_are_none_are_named(plan_of):
    mechanism = mechanism_of(price_plan(Nvdp(plan_of(), None)).releases)
    odd = odd_rows(mechanism)
    assert odd(np.zeros((900, 5), np.int64)) == ""
    assert "no class" in odd(np.full((900, 5), 2))
    assert "900 rows of 5" in odd(np.zeros((900, 4), np.int64))


@pytest.mark.slow
def test_a_run_of_real_parties_publishes_and_verifies(made, tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    (made / "plan.toml").write_text(PLAN)
    result = api.run(made / "plan.toml", output=tmp_path / "out")
    assert api.verify(result.student).ok
    assert (result.student / "samples/known.json").exists()
    assert "What the rows are" in api.page(result.folder)


@pytest.mark.slow
def test_scores_are_learned_from_the_part_of_the_range_that_they_are_in(plan_of, drawn):
    plan = plan_of(
        'labels = ["no", "yes"]\nvalues = ["0", "1"]', 'kind = "regression"\nrange = [0.0, 1.0]',
        "epsilon = 8.0", "epsilon = 30.0", "limit = 200", 'limit = 200\nlabel = "stars"',
    )  # fmt: skip
    _, mechanism, _, student, folder = drawn(plan)
    assert mechanism.classes == plan.samples.bins == 4
    assert student.metrics["pearson"] > 0.5
    assert json.loads((folder / "samples/known.json").read_text())["scores"] == [0.125, 0.375, 0.625, 0.875]


@pytest.mark.slow
def test_a_comparison_has_the_rows_their_control_the_floor_and_private_training(made, tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    plan = PLAN.replace("delta = 1e-5", "delta = 1e-5\ndeclared_size = 1800")
    plan = plan.replace("limit = 200", 'limit = 200\nlabel = "stars"') + "[dp_sgd]\nsteps = 10\nbatch = 200\n"
    plan += "[bottleneck]\ntexts = 300\ntokens = 12\nwidth = 16\nweight = 1e-3\n"
    (made / "compared.toml").write_text(plan)
    found = api.compare(made / "compared.toml", epsilons=(8.0,), seeds=1, output=tmp_path / "out")
    accuracy = {cell.method: cell.metrics["accuracy"] for cell in found.cells}
    published = {"nvib", "vtdp", "vib-fixed", "vib-learned"}
    assert set(accuracy) == {"nvdp", "naive", "public", "dp_sgd", "fine_tune"} | published
    for cell in found.cells:
        if cell.method in published:
            assert cell.epsilon is None
            assert cell.event is None
            assert 0 <= cell.notes["infinite_pairs"] <= 1
            assert cell.notes["named_texts"] >= cell.notes["named_by_chance"] / 2
            assert cell.notes["balanced_accuracy"] <= cell.notes["admitted_accuracy"] + 0.2
    assert "the paper's layer (no guarantee: a heuristic)" in table.markdown(found)
    assert accuracy["nvib"] > 0.7
    assert accuracy["nvdp"] >= accuracy["naive"]
    assert all(cell.epsilon is None or cell.epsilon <= 8.0 for cell in found.cells)


def compared(plan, made, tmp_path):
    return NvdpComparison(SimpleNamespace(plan=plan, base=made, cache=tmp_path))


def test_the_papers_rows_say_that_no_proof_covers_them_and_need_labels_of_public_text(plan_of, made, tmp_path):
    names = {"nvib", "vtdp", "vib-fixed", "vib-learned"}
    assert not names & set(compared(plan_of(), made, tmp_path).methods)
    methods = compared(plan_of("limit = 200", 'limit = 200\nlabel = "stars"'), made, tmp_path).methods
    assert names < set(methods)
    for name in names:
        assert not methods[name].private
        assert "no guarantee" in methods[name].shown


def test_heads_divide_the_width_of_the_papers_layer(plan_of):
    with pytest.raises(PlanError, match="do not divide"):
        plan_of("[samples]", "[bottleneck]\nwidth = 60\n[samples]")


@pytest.mark.slow
def test_an_accuracy_that_the_divergence_beside_it_does_not_admit_stops_the_row(plan_of, monkeypatch):
    import torch

    from learning.bottleneck import divergences
    from learning.bottleneck.fitting import Fitting, fitted, samplers
    from learning.bottleneck.forms import Form
    from learning.bottleneck.states import TokenStates

    truth = torch.arange(300) % 2
    vectors = torch.randn((300, 4, 8), generator=torch.Generator().manual_seed(0))
    vectors[:, :, 0] = (truth * 6.0 - 3)[:, None]
    mask = torch.ones((300, 4), dtype=torch.bool)
    states = TokenStates(vectors.half(), mask, mask.int())
    form = Form("vib-fixed", 8, 8, 4, 2, heads=2, sigma=0.3)
    model = fitted(form, states, truth, Fitting(1e-3, rate=1e-2), 0)
    heldout = [Example("a film", None, int(each)) for each in truth]
    posterior = samplers(model, states)
    notes = published.compared(plan_of(), SimpleNamespace(heldout=heldout), 0, model, posterior)
    assert 0.9 < notes["balanced_accuracy"] <= notes["admitted_accuracy"]
    assert notes["mean_divergence"] <= notes["largest_divergence"] < notes["bayesian_without_constant"]
    assert notes["bayesian_with_constant"] == pytest.approx(notes["bayesian_without_constant"] + np.log(1e5) / 1.1)
    assert notes["divergence_quantile_0.5"] <= notes["divergence_quantile_0.99"] <= notes["largest_divergence"]
    assert not any("epsilon" in name for name in notes)
    found = divergences.divergences(posterior, 1.1)
    monkeypatch.setattr(divergences, "divergences", lambda *_: dataclasses.replace(found, largest=0.19))
    with pytest.raises(AboveBound, match=r"admits 65\.4%"):
        published.compared(plan_of(), SimpleNamespace(heldout=heldout), 0, model, posterior)
