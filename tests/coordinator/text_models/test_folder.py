"""A published classifier: the standard library's pipeline says what the model said, and the card says what it is."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from matplotlib.image import imread

from coordinator.systems.registry import plan_of
from coordinator.text_models.folder import PICTURE, ClassifierStudent, card, clear_card, metrics_of, write
from learning.classification.metrics import measure_classifier, measure_regression
from learning.classification.training import Fit, fit, predict, probabilities
from learning.models.adapting import adapt, flatten
from learning.models.batching import encode
from learning.models.checkpoints import ModelError
from learning.models.encoders import classifier
from learning.models.optimisers import Schedule
from learning.text.labelled import LabelMap, ScoreRange

TOPICS = LabelMap(("world", "sci/tech", "a `third`"))
TEXTS = ["a good film", "the plot was dull and slow", "bright", "we saw it not very fast", "an awful start"]
SECOND = ["bad", "it was good", "the actor", "story", "great great end"]
SCORES = ScoreRange(1, 5)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Models here are so small that threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def student(tiny_bert):
    """`student(how, ...)`: a trained student, and what its model said of `TEXTS` before it was published."""

    def makes(how="full", targets=TOPICS, *, pairs=False, measured=True):
        model, tokenizer = classifier(str(tiny_bert), targets, seed=1, pool="mean")
        adapt(model, how, seed=1)
        rows = encode(tokenizer, TEXTS, SECOND if pairs else None, longest=32).rows
        classes = isinstance(targets, LabelMap)
        labels = np.array([0, 1, 2, 1, 0]) if classes else np.linspace(-1, 1, 5).astype(np.float32)
        settings = Fit(epochs=5, batch=5, learning_rate=0.02, schedule=Schedule("constant"))
        fit(model, rows, labels, settings, np.random.default_rng(0))
        logits = predict(model, rows)
        if classes:
            measures, scores = measure_classifier(probabilities(logits), labels), None
        else:
            truth = np.linspace(1, 5, 5)
            measures = measure_regression(logits[:, 0], truth, targets)
            scores = np.array([targets.score(float(each)) for each in logits[:, 0]]), truth
        given = {"measures": measures, "scores": scores} if measured else {}
        metrics = metrics_of(measures) if measured else {}
        return ClassifierStudent(model, tokenizer, targets, pairs, "owner/tiny-bert", how, metrics, **given), logits

    return makes


def piped(folder, inputs):
    """Scores [texts, classes] and names as the standard library's pipeline gives them."""
    from transformers import pipeline

    classify = pipeline("text-classification", str(folder), device="cpu")
    names = list(classify.model.config.id2label.values())
    said = classify(inputs, top_k=None, truncation=True)
    return np.array([[{row["label"]: row["score"] for row in each}[name] for name in names] for each in said]), names


@pytest.mark.slow
@pytest.mark.parametrize(("how", "pairs"), [("full", False), ("lora", False), ("lora-all", False), ("head", True)])
def test_the_pipeline_says_what_the_model_said(student, tmp_path, how, pairs):
    made, logits = student(how, pairs=pairs)
    before = flatten(made.model).clone()
    write(made, tmp_path / "out")
    inputs = [{"text": a, "text_pair": b} for a, b in zip(TEXTS, SECOND, strict=True)] if pairs else TEXTS
    found, names = piped(tmp_path / "out", inputs)
    np.testing.assert_allclose(found, probabilities(logits), atol=1e-5)
    assert np.ptp(found, axis=0).min() > 0.01
    assert tuple(names) == TOPICS.names
    assert torch.equal(before, flatten(made.model))
    assert not any("lora" in name for name in weights(tmp_path / "out"))


def weights(folder):
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "np") as file:
        return list(file.keys())


@pytest.mark.slow
def test_a_regression_says_scores_of_the_declared_range(student, tmp_path):
    made, standard = student(targets=SCORES)
    write(made, tmp_path / "out")
    found, _ = piped(tmp_path / "out", TEXTS)
    np.testing.assert_allclose(found[:, 0], 3 + 2 * standard[:, 0], atol=1e-4)
    assert np.ptp(found) > 0.5
    assert imread(tmp_path / "out" / PICTURE).std() > 0.05


@pytest.mark.slow
def test_a_text_longer_than_the_model_is_cut_by_the_tokenizer(student, tmp_path):
    made, _ = student()
    limit = made.tokenizer.model_max_length
    write(made, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["model_max_length"] == 32
    found, _ = piped(tmp_path / "out", ["good " * 200])
    assert found.sum() == pytest.approx(1, abs=1e-5)
    assert made.tokenizer.model_max_length == limit


@pytest.mark.slow
def test_the_folder_shows_how_good_it_is_where_that_was_measured(student, tmp_path):
    made, _ = student()
    for name in ("one", "two"):
        write(made, tmp_path / name)
    assert imread(tmp_path / "one" / PICTURE).std() > 0.1
    assert (tmp_path / "one" / PICTURE).read_bytes() == (tmp_path / "two" / PICTURE).read_bytes()
    write(student(measured=False)[0], tmp_path / "three")
    assert not (tmp_path / "three" / PICTURE).exists()


def test_a_model_that_is_not_finite_is_not_written(student, tmp_path):
    made, _ = student()
    with torch.no_grad():
        next(made.model.parameters())[0, 0] = float("nan")
    with pytest.raises(ModelError, match="NaN or infinity"):
        write(made, tmp_path / "out")


def plan(source="reviews.jsonl", evaluation="held-out/dev.jsonl", guarantee=True):
    """A plan whose student is English, under the MIT licence."""
    table = tomllib.loads(Path("examples/classifier/plan.toml").read_text(encoding="utf-8"))
    table["run"]["name"] = "reviews"
    table["federation"]["shards"]["source"], table["evaluation"]["source"] = source, evaluation
    table["student"] |= {"language": "en", "licence": "mit"}
    made = plan_of(table)
    return (
        made if guarantee else made.model_copy(update={"privacy": made.privacy.model_copy(update={"guarantee": False})})
    )


def told(student, given=None):
    return card(student, "## Promise\n\nepsilon 3\n", first="A verdict.", plan=given or plan(), parties=4)


def test_the_card_says_what_it_is_and_what_is_promised(student):
    made, _ = student("lora", pairs=True)
    whole = told(made)
    front, _, body = whole.removeprefix("---\n").partition("\n---\n")
    said = yaml.safe_load(front)
    (about,) = said.pop("model-index")
    assert said == {
        "language": "en",
        "license": "mit",
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "base_model": "owner/tiny-bert",
        "tags": ["differential-privacy", "text-classification"],
    }
    assert about["name"] == "reviews"
    ((figures),) = about["results"]
    assert figures["dataset"] == {"name": "dev.jsonl", "type": "text"}
    assert {each["type"]: each["value"] for each in figures["metrics"]} == {
        "accuracy": pytest.approx(made.metrics["accuracy"], rel=1e-3),
        "f1": pytest.approx(made.metrics["macro_f1"], rel=1e-3),
    }
    for wanted in (
        "# reviews\n\n**A verdict.**\n\n",
        "labelled text of 4 parties",
        "`owner/tiny-bert`: low-rank adapters",
        'pipeline("text-classification", "this-folder")',
        '"text_pair"',
        "3 classes, with its probability: `world`, `sci/tech`, `` a `third` ``.",
        f"]({PICTURE})",
        "## Promise\n\nepsilon 3\n",
        "coordinator verify this-folder --trust ca.pem",
    ):
        assert wanted in body


@pytest.mark.slow
def test_the_card_of_a_regression_and_of_what_was_not_measured(student):
    scores = told(student(targets=SCORES)[0])
    assert "A regression of texts" in scores
    assert "scores from 1 to 5" in scores
    assert f"![Scores said over true scores]({PICTURE})" in scores
    assert PICTURE not in told(student(measured=False)[0])


@pytest.mark.slow
def test_the_card_of_what_was_trained_in_clear_warns_first_and_says_how_good_it_is(student):
    made, _ = student()
    body = clear_card(made, "NO PRIVACY", plan(), 4).partition("\n---\n")[2]
    assert body.strip().startswith("# reviews\n\n**NO PRIVACY**\n\n**Measured alone: ")
    assert f"| accuracy | {made.metrics['accuracy']:.4f} |" in body
    assert "| examples | 5 |" in body
    assert f"]({PICTURE})" in body
    assert "| pearson |" in clear_card(student(targets=SCORES)[0], "NO PRIVACY", plan(), 4)
    assert "It was not measured" in clear_card(student(measured=False)[0], "NO PRIVACY", plan(), 4)


def test_the_name_of_a_folder_is_no_base_on_the_hub(student):
    from dataclasses import replace

    made, _ = student()
    assert "base_model" not in told(replace(made, base="all-MiniLM-L6-v2"))


def test_the_front_matter_names_what_a_hub_has_and_no_place_on_a_disk(student):
    made, _ = student()
    front = told(made, plan(source="owner/reviews", evaluation="owner/held-out")).partition("\n# ")[0]
    assert yaml.safe_load(front.strip("-\n"))["datasets"] == ["owner/reviews"]
    assert "type: owner/held-out" in front
    for private in ("/srv/secret/reviews.jsonl", "reviews.csv", "documentation"):
        front = told(made, plan(source=private)).partition("\n# ")[0]
        assert "datasets" not in front
        assert "secret" not in front


def test_what_was_not_measured_has_no_figures_for_a_hub(student):
    assert "model-index" not in told(student(measured=False)[0])


def test_a_form_without_a_guarantee_has_no_tag_of_one(student):
    front = told(student()[0], plan(guarantee=False)).partition("\n# ")[0]
    assert "text-classification" in front
    assert "differential-privacy" not in front


def test_metrics_are_those_that_a_report_knows(student):
    assert set(student()[0].metrics) == {"accuracy", "macro_f1", "calibration_error", "examples"}
    assert set(student(targets=SCORES)[0].metrics) == {"pearson", "spearman", "error", "examples"}
