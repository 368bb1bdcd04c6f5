"""Comparing methods for text classifiers: fair prices, cells that are kept, votes and vectors made once."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from aggregation.accounting.events import from_json
from aggregation.accounting.price import price
from coordinator import api
from coordinator.comparing import table as chart
from coordinator.console.command import main
from coordinator.errors import PlanError
from coordinator.pricing.release import SAMPLER_SHARE
from coordinator.systems.registry import read_plan, recipe_of
from coordinator.text_models import methods
from deploy import simulated_memory
from deploy.simulated_links import SimulatedLink
from deploy.simulation import ClearShards
from party.tasks.ensemble import training as ensembles

GOOD, BAD = ("good", "great", "bright", "fast"), ("bad", "awful", "dull", "slow")
OTHER = ("the", "a", "film", "was", "plot", "actor")

PLAN = """
[run]
name = "films"
recipe = "dp_sgd"
seed = 7
[privacy]
epsilon = 4.0
delta = 1e-5
unit = "record"
record = "document"
trust = "secure-sum"
dropouts = 1
declared_size = 240
[federation]
launch = "ray"
[federation.shards]
source = "films.jsonl"
label = "stars"
id = "id"
user = "who"
split = { by = "hash", parties = 4 }
[text]
labels = ["no", "yes"]
values = ["0", "1"]
longest = 32
[model]
name = "encoder"
[dp_sgd]
steps = 20
batch = 60
learning_rate = 0.1
[pate]
source = "public.jsonl"
queries = 120
teachers_per_party = 3
epochs = 15
learning_rate = 0.05
[fine_tune]
epochs = 5
learning_rate = 0.05
[evaluation]
source = "heldout.jsonl"
label = "stars"
"""


def films(count, seed):
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        words = rng.permutation([rng.choice(OTHER), *rng.choice(GOOD if number % 2 else BAD, 3)])
        rows.append({"text": " ".join(words), "stars": number % 2, "who": f"p{number % 60}", "id": f"{number}"})
    return rows


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
    for name, count, seed in (("films", 240, 0), ("public", 120, 1), ("heldout", 60, 2)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in films(count, seed)))
    shutil.copytree(tiny_bert, folder / "encoder")
    (folder / "encoder/1_Pooling").mkdir()
    (folder / "encoder/1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (folder / "plan.toml").write_text(PLAN)
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(made)
    return made


def counting(name, own, asked):
    """A function that counts how often it is called."""

    def counted(*args):
        asked[name] += 1
        return own(*args)

    return counted


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    """Every method at one epsilon and two seeds, with how often parties' text was read and teachers were asked."""
    home = tmp_path_factory.mktemp("home")
    counted = {"labelled": ClearShards, "units_of": simulated_memory, "answers": ensembles}
    asked = dict.fromkeys(counted, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONCLAVE_HOME", str(home))
        for name, owner in counted.items():
            patch.setattr(owner, name, counting(name, getattr(owner, name), asked))
        found = api.compare(made / "plan.toml", epsilons=(8.0, 20.0), seeds=2, output=home / "out")
    return found, asked


@pytest.mark.slow
def test_every_private_cell_costs_no_more_than_its_epsilon_and_the_others_have_none(whole):
    found, _ = whole
    assert {cell.method for cell in found.cells} == set(methods.METHODS)
    assert len(found.cells) == 3 * 2 * 2 + 2
    delta = found.plan.privacy.delta * (1 - SAMPLER_SHARE)
    for cell in found.cells:
        if cell.method == "fine_tune":
            assert (cell.paid, cell.event, cell.epsilon) == (None, None, None)
        else:
            assert 0.9 * cell.epsilon < cell.paid <= cell.epsilon, cell
            assert price([from_json(cell.event)], delta).epsilon == cell.paid
        assert set(cell.metrics) == {"accuracy", "macro_f1", "calibration_error"}
    events = [from_json(cell.event) for cell in found.cells if cell.event]
    assert found.total.epsilon == price(events, delta).epsilon
    assert found.open


@pytest.mark.slow
def test_parties_text_is_read_once_and_teachers_are_asked_once_a_seed(whole):
    _, asked = whole
    # By the coordinator for the row without privacy; by each of four parties for all other rows, epsilons and seeds.
    assert asked == {"labelled": 1, "units_of": 4, "answers": 4 * 2}


@pytest.mark.slow
def test_methods_learn_where_there_is_plenty_of_budget(whole):
    found, _ = whole
    means = {method.name: found.spread(method.name, 20.0, "accuracy")[0] for method in found.methods}
    assert means["fine_tune"] > 0.7
    assert means["dp_sgd"] > 0.65
    assert means["pate"] > 0.65


@pytest.mark.slow
def test_the_table_and_the_picture_show_the_metric_of_classifiers(whole):
    found, _ = whole
    heads, rows = chart.rows(found)
    assert heads == ["method", "epsilon 8", "epsilon 20", "macro F1 at 20", "calibration error at 20"]
    assert all("±" in row[1] for row in rows)
    table = (found.folder / "table.md").read_text()
    assert "Accuracy on public held-out text" in table
    assert "nothing is guaranteed" in table
    assert (found.folder / "comparison.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_cells_that_are_there_are_not_made_again(folder, tmp_path, capsys):
    command = ["compare", "plan.toml", "--recipes", "dp_sgd,fine_tune", "--epsilons", "8", "--seeds", "1", "--json"]
    assert main([*command, "--output", str(tmp_path / "out")]) == 0
    cells = tmp_path / "out/cells"
    before = {path.name: path.stat().st_mtime_ns for path in cells.iterdir()}
    (cells / "dp_sgd-8-7.json").unlink()
    capsys.readouterr()
    assert main([*command, "--output", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert "1 of 2 cells were there already" in said.err
    after = {path.name: path.stat().st_mtime_ns for path in cells.iterdir()}
    assert [name for name in before if before[name] != after[name]] == ["dp_sgd-8-7.json"]
    found = json.loads(said.out.splitlines()[-1])
    assert found["metric"] == "accuracy"
    assert found["accuracy"]["fine_tune"][0] > 0.5


@pytest.mark.slow
def test_a_cell_that_was_stopped_goes_on_after_its_last_step(folder, tmp_path, monkeypatch, capsys):
    own, asked, stop = SimulatedLink.train, set(), {"steps-7-0"}

    async def train(link, request, on_percent):
        if request.operation_id in stop:
            raise KeyboardInterrupt
        asked.add(request.operation_id)
        return await own(link, request, on_percent)

    monkeypatch.setattr(SimulatedLink, "train", train)
    out = tmp_path / "out"
    command = ["compare", "plan.toml", "--recipes", "dp_sgd", "--epsilons", "8", "--seeds", "1", "--output", str(out)]
    assert main(command) == 130
    assert "Run it again to go on" in capsys.readouterr().err
    assert asked == {f"steps-{number}-0" for number in range(7)}
    assert [each.name for each in (out / "work").glob("unfinished*")] == ["unfinished-dp_sgd-8-7"]
    asked.clear()
    stop.clear()
    assert main(command) == 0
    assert asked == {f"steps-{number}-0" for number in range(7, 20)}
    assert not list((out / "work").glob("unfinished*"))


def test_a_plan_without_public_texts_to_vote_on_has_no_votes(folder):
    Path("bare.toml").write_text(PLAN[: PLAN.index("[pate]")] + PLAN[PLAN.index("[fine_tune]") :])
    with pytest.raises(PlanError, match=r'there is no "pate"\. There is dp_sgd, local, fine_tune'):
        api.compare("bare.toml", recipes=["pate"], output="out-bare")


@pytest.mark.slow
@pytest.mark.parametrize("adapt", ["lora", "lora-all", "full"])
def test_more_than_the_head_is_compared_too(folder, tmp_path, adapt):
    Path(f"{adapt}.toml").write_text(PLAN.replace('name = "encoder"', f'name = "encoder"\nadapt = "{adapt}"\nrank = 2'))
    found = api.compare(f"{adapt}.toml", epsilons=[20.0], seeds=1, output=tmp_path / "out")
    assert {cell.method for cell in found.cells} == set(methods.METHODS)
    assert all(cell.paid <= 20.0 for cell in found.cells if cell.epsilon)


@pytest.mark.slow
def test_scores_and_users_are_compared_by_correlation(folder, tmp_path):
    text = PLAN[: PLAN.index("[pate]")] + PLAN[PLAN.index("[fine_tune]") :]
    text = text.replace('labels = ["no", "yes"]\nvalues = ["0", "1"]', 'kind = "regression"\nrange = [0.0, 1.0]')
    Path("scores.toml").write_text(text.replace('unit = "record"', 'unit = "user"').replace("= 240", "= 60"))
    found = api.compare("scores.toml", epsilons=[20.0], seeds=1, output=tmp_path / "out")
    assert found.view.metric == "pearson"
    assert found.spread("fine_tune", 20.0, "pearson")[0] > 0.5


@pytest.mark.slow
def test_a_comparison_trains_on_what_a_party_would(folder, tmp_path):
    """The units in clear, which DPKD trains on, are those that a party's own work reads: the same clipped sum."""
    from aggregation.mechanisms.gradients import GradientMechanism
    from coordinator.comparing.comparable import ComparisonRequest
    from coordinator.progress.progress import Silent
    from coordinator.run.party_files import party_tables
    from coordinator.systems.privdistil.dpkd import trainable
    from coordinator.text_models.compare import ClassifierComparison
    from coordinator.transport.launchers import find_launcher
    from learning.private_training.clipped_sum import clipped_sum
    from learning.private_training.per_example import PerExample
    from party.config import check_config
    from party.shard.reading import Reading
    from party.shard_table import located
    from party.tasks.text.model import loaded, units_of
    from party.tasks.text.request import Lesson, TextModel

    plan = read_plan(Path("plan.toml"))
    tables = party_tables(plan)
    given = ComparisonRequest(plan, find_launcher("ray"), tables, folder, tmp_path / "cache", Silent(), recipe_of)
    comparable = ClassifierComparison(given)
    data = comparable.data(7, tmp_path / "work")
    work = trainable(data, data.public, [part.labels for part in data.text.parts])
    config = check_config(dict(tables[plan.federation.names[1]]), "party")
    where = next(iter(data.public.files.values())).parent
    text = TextModel(files={}, folder=str(where), adapt="head", rank=0, alpha=0, longest=32, seed=7)
    lesson = Lesson(labelled=plan.labelled.SerializeToString().hex())
    reading = Reading(
        shard=located(config.shard, folder), record="document", by_user=False, cache=tmp_path / "party",
        frank=config.policy.simulation,
    )  # fmt: skip
    own = loaded(reading.shard, text, lesson)
    read = units_of(reading, text, lesson, own)
    mechanism = GradientMechanism(1.0, 400, 1.0, 0.5, 1, len(data.public.start))
    sums = [
        clipped_sum(PerExample(module), units.micro_batches(np.arange(len(units))), losses, mechanism)
        for module, units, losses in (
            (work.module, work.units[1], work.losses),
            (own.trained, read, own.losses),
        )
    ]
    assert len(read) == len(work.units[1])
    assert np.linalg.norm(sums[0]) > 0.1
    np.testing.assert_allclose(sums[0], sums[1], rtol=1e-5, atol=1e-5)
