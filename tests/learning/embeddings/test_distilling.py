"""The student: the paper's loss as written, and the likelihood, which believes no signal more than its noise allows."""

import itertools

import numpy as np
import pytest
import torch
from scipy import sparse

from aggregation.errors import ConclaveError, IntegrityError
from learning.embeddings import distilling
from learning.embeddings.distilling import OBSERVATIONS, UNQUERIED, distil
from learning.embeddings.evaluation import context_perplexity
from learning.embeddings.released_answers import ABSTAINED, ReleasedAnswers
from learning.embeddings.skipgram import SkipGram, fit

SIZE, WIDTH, TOPICS = 60, 5, 3


def _counts(topical=4.0, pairs=60_000.0):
    frequency = 1 / (np.arange(SIZE) + 5.0)
    topic = np.arange(SIZE) % TOPICS
    expected = np.outer(frequency, frequency) * np.where(topic[:, None] == topic, topical, 1.0)
    return sparse.csr_array(expected * pairs / expected.sum())


TRUTH = fit(_counts(), dimension=WIDTH, seed=0, steps=60)
START = fit(_counts(topical=1.5), dimension=WIDTH, seed=1, steps=60)
"""A public model that knows the frequencies well and the topics a little."""
QUERIES = np.arange(0, SIZE, 2)
ONCE = np.ones(len(QUERIES), dtype=np.int64)


def _answers(**signals):
    return ReleasedAnswers(QUERIES, **{"weights": ONCE, **signals})


def _labels(seed=0):
    return np.random.default_rng(seed).integers(0, SIZE, len(QUERIES))


def _hidden(model, noise, layers, seed=0):
    values = np.stack([(model.inputs if layer == "centre" else model.outputs)[QUERIES] for layer in layers], axis=1)
    return values + np.random.default_rng(seed).normal(0, noise, values.shape) if noise else values


def _paper_loss(model, answers, output_loss):
    """Equations (3) and (4) as they stand, each query as often as it is asked."""
    loss, asked = 0.0, 0
    for row, (query, times) in enumerate(zip(answers.queries, answers.weights, strict=True)):
        if answers.labels is not None and answers.labels[row] == ABSTAINED:
            continue
        asked += times
        probable = np.exp(model.log_probabilities(np.array([query]))[0].astype(np.float64))
        target = np.zeros(SIZE)
        if answers.labels is not None:
            target[answers.labels[row]] = 1
        if answers.histogram is not None:
            target[answers.classes] = answers.histogram[row]
        if answers.labels is not None or answers.histogram is not None:
            squared = output_loss == "squared"
            loss += times * (np.square(probable - target).sum() if squared else -(target * np.log(probable)).sum())
        if answers.hidden is not None:
            for index, layer in enumerate(answers.layers):
                state = (model.inputs if layer == "centre" else model.outputs)[query]
                loss += times * np.square(state - answers.hidden[row, index]).sum()
    return loss / asked


SIGNALS = {
    "labels": {"labels": np.where(np.arange(len(QUERIES)) % 5, _labels(), ABSTAINED)},
    "histogram": {
        "histogram": np.random.default_rng(3).normal(0.1, 0.1, (len(QUERIES), 10)),
        "classes": np.arange(5, 15),
        "histogram_noise": 0.1,
    },
    "hidden": {
        "hidden": _hidden(TRUTH, 0.1, ["centre", "context"]),
        "layers": ["centre", "context"],
        "hidden_noise": 0.1,
    },
}
COMBINATIONS = [
    names
    for count in (1, 2)
    for names in itertools.combinations(SIGNALS, count)
    if not {"labels", "histogram"} <= set(names)
]


@pytest.mark.parametrize("names", COMBINATIONS)
@pytest.mark.parametrize("output_loss", ["squared", "cross-entropy"])
def test_the_paper_objective_is_the_paper_loss(names, output_loss):
    """Its value differs from the equations by the ridge and by a constant; its gradient is checked numerically."""
    weights = np.random.default_rng(5).integers(1, 6, len(QUERIES))
    answers = ReleasedAnswers(
        QUERIES, weights, **{key: value for name in names for key, value in SIGNALS[name].items()}
    )
    problem = distilling._paper(START, answers, output_loss)
    kept = QUERIES if answers.labels is None else QUERIES[answers.labels != ABSTAINED]
    unasked = np.setdiff1d(np.arange(SIZE), kept)
    rng, differences = np.random.default_rng(6), []
    for _ in range(3):
        parts = [part + rng.normal(0, 0.3, part.shape).astype(np.float32) for part in (START.inputs, START.outputs)]
        model = SkipGram(*parts, START.bias + rng.normal(0, 0.3, SIZE).astype(np.float32))
        bias, vectors = distilling._tensors(model)
        loss, by_bias, by_vectors = problem._objective(bias, vectors)
        moved = sum(
            np.square(getattr(model, name) - getattr(START, name))[unasked].sum()
            for name in ("inputs", "outputs", "bias")
        )
        differences.append(float(loss) - UNQUERIED / 2 * moved - _paper_loss(model, answers, output_loss))
        way = (
            torch.from_numpy(rng.normal(0, 1, vectors.shape)).float(),
            torch.from_numpy(rng.normal(0, 1, SIZE)).float(),
        )
        step = 1e-2
        ahead = problem._objective(bias + step * way[1], vectors + step * way[0])[0]
        behind = problem._objective(bias - step * way[1], vectors - step * way[0])[0]
        slope = float((by_vectors * way[0]).sum() + (by_bias * way[1]).sum())
        assert float(ahead - behind) / (2 * step) == pytest.approx(slope, rel=2e-2, abs=2e-3)
    assert np.ptp(differences) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("output_loss", ["squared", "cross-entropy"])
def test_the_paper_student_believes_its_labels(output_loss):
    labels = _labels()
    student = distil(START, _answers(labels=labels), weighting="paper", output_loss=output_loss)
    assert (student.log_probabilities(QUERIES).argmax(axis=1) == labels).mean() > 0.75


def test_the_paper_student_takes_hidden_states_as_they_are():
    hidden = _hidden(TRUTH, 1.0, ["context"])
    student = distil(START, _answers(hidden=hidden, layers=["context"]), weighting="paper")
    np.testing.assert_allclose(student.outputs[QUERIES], hidden[:, 0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(student.inputs, START.inputs, atol=1e-5)


def test_a_query_asked_more_often_weighs_more_in_the_paper_loss():
    """Two queries of one context vector apart: the label asked a hundred times wins the shared outputs."""
    labels = _labels()
    first = np.where(np.arange(len(QUERIES)) == 0, 100, 1)
    few, often = (
        distil(START, _answers(labels=labels, weights=weights), weighting="paper", output_loss="cross-entropy", steps=5)
        for weights in (ONCE, first)
    )
    row = QUERIES[:1]
    assert often.log_probabilities(row)[0, labels[0]] > few.log_probabilities(row)[0, labels[0]]


def test_the_paper_skips_a_query_where_the_aggregator_abstained():
    labels = np.full(len(QUERIES), ABSTAINED)
    signals = {"labels": labels, "hidden": _hidden(TRUTH, 0.0, ["centre"]), "layers": ["centre"], "hidden_noise": 0.0}
    paper = distil(START, _answers(**signals), weighting="paper")
    np.testing.assert_allclose(paper.inputs, START.inputs, atol=1e-5)
    likely = distil(START, _answers(**signals), weighting="likelihood")
    np.testing.assert_allclose(likely.inputs[QUERIES], TRUTH.inputs[QUERIES], atol=0.05)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("repeated", [1, 500])
def test_labels_of_pure_noise_leave_the_likelihood_student_a_language_model(seed, repeated):
    before = context_perplexity(START, _counts())
    answers = ReleasedAnswers(
        np.arange(SIZE), np.full(SIZE, repeated), labels=np.random.default_rng(seed).integers(0, SIZE, SIZE)
    )
    likely = distil(START, answers, weighting="likelihood")
    assert context_perplexity(likely, _counts()) < before * (1 + 1 / OBSERVATIONS)
    paper = distil(START, answers, weighting="paper", output_loss="cross-entropy")
    assert context_perplexity(paper, _counts()) > before * 1.5


@pytest.mark.slow
def test_it_is_the_models_own_prediction_and_not_only_the_ridge_that_withstands_noise(monkeypatch):
    monkeypatch.setattr(distilling, "RIDGE", 1e-3)
    itself = sparse.csr_array(np.exp(START.log_probabilities(np.arange(SIZE))).astype(np.float64))
    answers = ReleasedAnswers(
        np.arange(SIZE), np.ones(SIZE, np.int64), labels=np.random.default_rng(0).integers(0, SIZE, SIZE)
    )
    student = distil(START, answers, weighting="likelihood", steps=200)
    assert context_perplexity(student, itself) < context_perplexity(START, itself) * (1 + 1 / OBSERVATIONS)


def test_a_histogram_moves_no_probability_to_or_from_its_classes(monkeypatch):
    monkeypatch.setattr(distilling, "RIDGE", 1e-3)
    classes = np.arange(10)
    shares = np.exp(TRUTH.log_probabilities(np.arange(SIZE)))[:, classes]
    shares /= shares.sum(axis=1, keepdims=True)
    answers = ReleasedAnswers(
        np.arange(SIZE), np.ones(SIZE, np.int64), histogram=shares, classes=classes, histogram_noise=0.0
    )
    student = distil(START, answers, weighting="likelihood", steps=200)
    before, after = (np.exp(m.log_probabilities(np.arange(SIZE)))[:, classes] for m in (START, student))
    assert abs(after - before).max() > 0.002
    assert abs(after.sum() - before.sum()) / SIZE < 0.002


def test_true_labels_improve_the_likelihood_student():
    truth = np.exp(TRUTH.log_probabilities(np.arange(SIZE)))
    labels = np.array([np.random.default_rng(row).choice(SIZE, p=p / p.sum()) for row, p in enumerate(truth)])
    answers = ReleasedAnswers(np.arange(SIZE), np.ones(SIZE, np.int64), labels=labels)
    student = distil(START, answers, weighting="likelihood")
    assert context_perplexity(student, _counts()) < context_perplexity(START, _counts())


def test_exact_hidden_states_are_taken_whole_and_drowned_ones_not_at_all():
    both = ["centre", "context"]
    exact = _answers(hidden=_hidden(TRUTH, 1e-4, both), layers=both, hidden_noise=1e-4)
    np.testing.assert_allclose(
        distil(START, exact, weighting="likelihood").inputs[QUERIES], TRUTH.inputs[QUERIES], atol=1e-3
    )
    drowned = _answers(hidden=_hidden(TRUTH, 1e3, both), layers=both, hidden_noise=1e3)
    student = distil(START, drowned, weighting="likelihood")
    np.testing.assert_allclose(student.inputs, START.inputs, atol=0.01)
    np.testing.assert_allclose(student.outputs, START.outputs, atol=0.01)
    np.testing.assert_array_equal(student.bias, START.bias)


@pytest.mark.parametrize("noise", [0.1, 0.5, 2.0])
def test_noisy_hidden_states_are_shrunk_to_less_error_than_start_or_signal(noise):
    size, width = 400, 5
    rng = np.random.default_rng(4)
    start = SkipGram(*rng.normal(0, 0.1, (2, size, width)).astype(np.float32), np.zeros(size, np.float32))
    truth = start.inputs + rng.normal(0, 0.2, start.inputs.shape)
    hidden = truth + rng.normal(0, noise, truth.shape)
    answers = ReleasedAnswers(
        np.arange(size), np.ones(size, np.int64), hidden=hidden[:, None], layers=["centre"], hidden_noise=noise
    )
    student = distil(start, answers, weighting="likelihood")

    def error(values):
        return np.square(values - truth).mean()

    assert error(student.inputs) < 1.05 * min(error(hidden), error(start.inputs))
    assert error(student.inputs) < 1.15 * 0.04 * noise**2 / (0.04 + noise**2)


def test_a_histogram_counts_for_no_more_than_its_noise_allows():
    truth = np.exp(TRUTH.log_probabilities(np.arange(SIZE)))
    classes, before = np.arange(20), context_perplexity(START, _counts())
    shares = truth[:, classes] / truth[:, classes].sum(axis=1, keepdims=True)
    results = []
    for noise in (1e-3, 10.0):
        noisy = shares + np.random.default_rng(0).normal(0, noise, shares.shape)
        answers = ReleasedAnswers(
            np.arange(SIZE), np.ones(SIZE, np.int64), histogram=noisy, classes=classes, histogram_noise=noise
        )
        results.append(context_perplexity(distil(START, answers, weighting="likelihood"), _counts()) / before)
    assert results[0] < 1
    assert results[1] < 1 + 1 / OBSERVATIONS


@pytest.mark.parametrize("weighting", ["paper", "likelihood"])
def test_the_same_answers_give_the_same_bytes(weighting):
    answers = _answers(**SIGNALS["labels"], **SIGNALS["hidden"])
    told = []
    one, two = (distil(START, answers, weighting=weighting, steps=15, on_step=told.append) for _ in "ab")
    for name in ("inputs", "outputs", "bias"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes()
    assert told[-1] == 1.0


@pytest.mark.parametrize("weighting", ["paper", "likelihood"])
def test_blocks_do_not_change_the_student(monkeypatch, weighting):
    answers = _answers(**SIGNALS["histogram"], **SIGNALS["hidden"])
    whole = distil(START, answers, weighting=weighting, steps=10)
    monkeypatch.setattr(distilling, "BLOCK_CELLS", 7 * SIZE)
    np.testing.assert_allclose(distil(START, answers, weighting=weighting, steps=10).outputs, whole.outputs, atol=2e-3)


HIDDEN = np.zeros((len(QUERIES), 1, WIDTH))
VOTES = np.zeros((len(QUERIES), 4))


@pytest.mark.parametrize(
    ("signals", "sentence"),
    [
        ({}, "nothing to distil"),
        ({"labels": _labels(), "histogram": VOTES, "classes": np.arange(4)}, "one of the two"),
        ({"histogram": VOTES}, "classes"),
        ({"hidden": HIDDEN}, "layers"),
        ({"hidden": HIDDEN, "layers": ["centre", "context"]}, "hidden has shape"),
        ({"hidden": HIDDEN * np.nan, "layers": ["centre"]}, "NaN"),
        ({"hidden": HIDDEN, "layers": ["centre"], "hidden_noise": -1.0}, "standard deviation"),
        ({"histogram": VOTES[:, 1:], "classes": np.arange(4)}, "histogram has shape"),
        ({"histogram": VOTES, "classes": np.zeros(4, np.int64)}, "distinct"),
        ({"labels": _labels()[1:]}, "labels of shape"),
        ({"labels": _labels(), "weights": ONCE * 0}, "Weights"),
        ({"labels": _labels(), "weights": ONCE[1:]}, "Weights"),
    ],
)
def test_answers_that_do_not_fit_are_refused(signals, sentence):
    with pytest.raises(ConclaveError, match=sentence):
        _answers(**signals)


def test_queries_are_distinct_words():
    with pytest.raises(IntegrityError, match="distinct"):
        ReleasedAnswers(np.array([1, 1]), np.ones(2, np.int64), labels=np.array([0, 1]))


@pytest.mark.parametrize(
    ("answers", "options", "sentence"),
    [
        (ReleasedAnswers(QUERIES + 2, ONCE, labels=_labels()), {}, "query at index 29 is 60"),
        (_answers(labels=np.full(len(QUERIES), -2)), {}, "label at index 0 is -2"),
        (_answers(histogram=VOTES, classes=np.arange(57, 61)), {}, "class at index 3 is 60"),
        (_answers(hidden=HIDDEN[:, :, 1:], layers=["centre"]), {}, "width 4"),
        (_answers(hidden=HIDDEN, layers=["centre"]), {"weighting": "likelihood"}, "needs hidden_noise"),
        (_answers(histogram=VOTES, classes=np.arange(4)), {"weighting": "likelihood"}, "needs histogram_noise"),
        (_answers(labels=_labels()), {"weighting": "both"}, "weighting is 'both'"),
        (_answers(labels=_labels()), {"output_loss": "hinge"}, "output_loss is 'hinge'"),
    ],
)
def test_what_cannot_be_distilled_is_refused(answers, options, sentence):
    with pytest.raises(ConclaveError, match=sentence):
        distil(START, answers, **({"weighting": "paper"} | options))
