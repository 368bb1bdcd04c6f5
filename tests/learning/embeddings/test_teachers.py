"""Teachers: they live in one space, keep their predictions through alignment, and vote among public classes."""

import numpy as np
import pytest
from scipy import sparse

from aggregation.errors import ConclaveError, IntegrityError
from learning.embeddings import teachers
from learning.embeddings.evaluation import context_perplexity
from learning.embeddings.skipgram import SkipGram, fit
from learning.embeddings.teachers import align, hidden_states, train_teacher, votes_of

SIZE, WIDTH, TOPICS = 60, 6, 3


def _counts(seed=None, pairs=60_000.0):
    """Zipf's frequencies and three topics; with a seed, a sample of that many pairs."""
    frequency = 1 / (np.arange(SIZE) + 5.0)
    topic = np.arange(SIZE) % TOPICS
    expected = np.outer(frequency, frequency) * np.where(topic[:, None] == topic, 4.0, 1.0)
    expected *= pairs / expected.sum()
    return sparse.csr_array(expected if seed is None else np.random.default_rng(seed).poisson(expected).astype(float))


REFERENCE = fit(_counts(seed=99), dimension=WIDTH, seed=0, steps=40)


def _length_of_mean(states):
    """Norm of the mean over teachers, over the mean norm, averaged over queries; states [teachers, queries, width]."""
    return float((np.linalg.norm(states.mean(0), axis=-1) / np.linalg.norm(states, axis=-1).mean(0)).mean())


def _turned(model, seed=1):
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(WIDTH, WIDTH)))
    rotation = rotation.astype(np.float32)
    return SkipGram(model.inputs @ rotation, model.outputs @ rotation, model.bias)


def test_alignment_undoes_a_rotation():
    np.testing.assert_allclose(align(_turned(REFERENCE), REFERENCE).inputs, REFERENCE.inputs, atol=1e-5)


def test_alignment_leaves_predictions_as_they_were():
    model = fit(_counts(seed=1), dimension=WIDTH, seed=5, steps=20)
    words = np.arange(SIZE)
    aligned = align(model, REFERENCE)
    assert not np.allclose(aligned.inputs, model.inputs, atol=0.05)
    np.testing.assert_allclose(aligned.log_probabilities(words), model.log_probabilities(words), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("alignment", ["initialisation", "procrustes"])
def test_teachers_in_one_space_have_a_longer_mean_than_teachers_in_their_own(alignment):
    words = np.arange(30)
    together = [
        train_teacher(_counts(seed=s, pairs=10_000.0), REFERENCE, alignment=alignment, seed=s) for s in range(4)
    ]
    apart = [fit(_counts(seed=s, pairs=10_000.0), dimension=WIDTH, seed=s, steps=40) for s in range(4)]
    in_one_space = _length_of_mean(np.stack([hidden_states(m, words, ["centre"])[:, 0] for m in together]))
    on_their_own = _length_of_mean(np.stack([hidden_states(m, words, ["centre"])[:, 0] for m in apart]))
    assert in_one_space > 0.7
    assert on_their_own < in_one_space - 0.1


def test_a_teacher_keeps_the_reference_for_words_that_its_text_lacks():
    counts = _counts(seed=3).tolil()
    counts[40:] = 0
    counts[:, 40:] = 0
    teacher = train_teacher(sparse.csr_array(counts), REFERENCE, alignment="initialisation", seed=0)
    np.testing.assert_allclose(teacher.inputs[40:], REFERENCE.inputs[40:], atol=1e-3)
    assert not np.allclose(teacher.inputs[:40], REFERENCE.inputs[:40], atol=0.02)
    nothing = train_teacher(sparse.csr_array((SIZE, SIZE)), REFERENCE, alignment="initialisation", seed=0)
    np.testing.assert_allclose(nothing.outputs, REFERENCE.outputs, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("block", [1 << 22, SIZE * 7])
def test_a_teacher_with_much_text_learns_it_whatever_the_reference_says(monkeypatch, block):
    monkeypatch.setattr(teachers, "BLOCK_CELLS", block)
    counts, wrong = _counts(pairs=10_000_000.0), SkipGram(-REFERENCE.inputs, REFERENCE.outputs, -REFERENCE.bias)
    teacher = train_teacher(counts, wrong, alignment="initialisation", seed=0, steps=100)
    best = fit(counts, dimension=WIDTH, seed=0)
    assert context_perplexity(teacher, counts) < 1.01 * context_perplexity(best, counts)


def test_a_teacher_knows_its_text_better_than_the_reference():
    counts = _counts(seed=3, pairs=5_000.0)
    teacher = train_teacher(counts, REFERENCE, alignment="initialisation", seed=0)
    assert context_perplexity(teacher, counts) < context_perplexity(REFERENCE, counts)


@pytest.mark.parametrize("spoiled", [-1.0, np.nan, np.inf])
def test_counts_that_are_none_are_refused(spoiled):
    counts = _counts()
    counts.data[7] = spoiled
    for alignment in ("initialisation", "procrustes"):
        with pytest.raises(IntegrityError, match="not negative"):
            train_teacher(counts, REFERENCE, alignment=alignment, seed=0)
    with pytest.raises(IntegrityError, match="60 words"):
        train_teacher(sparse.csr_array((SIZE, SIZE - 1)), REFERENCE, alignment="initialisation", seed=0)


@pytest.mark.parametrize("alignment", ["initialisation", "procrustes"])
def test_a_teacher_without_pairs_still_answers(alignment):
    teacher = train_teacher(sparse.csr_array((SIZE, SIZE)), REFERENCE, alignment=alignment, seed=0, steps=5)
    assert np.isfinite(hidden_states(teacher, np.arange(SIZE), ["centre", "context"])).all()


def test_the_same_seed_trains_the_same_teacher():
    one, two = (train_teacher(_counts(seed=3), REFERENCE, alignment="procrustes", seed=7, steps=10) for _ in "ab")
    np.testing.assert_array_equal(one.inputs, two.inputs)


def test_an_unknown_alignment_is_refused():
    with pytest.raises(ConclaveError, match="'initialisation' or 'procrustes'"):
        train_teacher(_counts(), REFERENCE, alignment="none", seed=0)


def test_models_of_other_shape_are_not_aligned():
    other = SkipGram(REFERENCE.inputs[:, :3], REFERENCE.outputs[:, :3], REFERENCE.bias)
    with pytest.raises(IntegrityError, match="aligned"):
        align(other, REFERENCE)


def test_hidden_states_are_the_layers_asked_for_in_their_order():
    queries = np.array([4, 0, 59])
    states = hidden_states(REFERENCE, queries, ["context", "centre"])
    assert states.shape == (3, 2, WIDTH)
    assert states.dtype == np.float32
    np.testing.assert_array_equal(states[:, 0], REFERENCE.outputs[queries])
    np.testing.assert_array_equal(states[:, 1], REFERENCE.inputs[queries])


@pytest.mark.parametrize("layers", [[], ["hidden"], ["centre", "centre"]])
def test_layers_that_are_not_there_are_refused(layers):
    with pytest.raises(ConclaveError, match="layer"):
        hidden_states(REFERENCE, np.arange(3), layers)


def test_a_vote_is_the_most_probable_of_the_classes(monkeypatch):
    queries, classes = np.arange(SIZE), np.array([50, 3, 7, 20, 11])
    expected = REFERENCE.log_probabilities(queries)[:, classes].argmax(axis=1)
    votes = votes_of(REFERENCE, queries, classes)
    np.testing.assert_array_equal(votes, expected)
    assert votes.dtype == np.int64
    monkeypatch.setattr(teachers, "BLOCK_CELLS", 35)
    np.testing.assert_array_equal(votes_of(REFERENCE, queries, classes), expected)


def test_relative_to_frequencies_a_vote_is_the_highest_lift():
    queries, classes = np.arange(30), np.arange(30)
    frequency = np.log(np.asarray(_counts().sum(axis=0)) / _counts().sum())
    plain, lifted = (votes_of(REFERENCE, queries, classes, relative_to=f) for f in (None, frequency))
    lift = REFERENCE.log_probabilities(queries)[:, classes] - frequency[classes]
    np.testing.assert_array_equal(lifted, lift.argmax(axis=1))
    assert len(np.unique(lifted)) > len(np.unique(plain))
    assert (classes[lifted] % TOPICS == queries % TOPICS).all()


@pytest.mark.parametrize("outside", [-1, SIZE])
def test_words_outside_the_vocabulary_are_named_by_index(outside):
    inside, broken = np.array([0, 1]), np.array([0, outside])
    with pytest.raises(IntegrityError, match=f"query at index 1 is {outside}"):
        votes_of(REFERENCE, broken, inside)
    with pytest.raises(IntegrityError, match=f"class at index 1 is {outside}"):
        votes_of(REFERENCE, inside, broken)
    with pytest.raises(IntegrityError, match=f"query at index 1 is {outside}"):
        hidden_states(REFERENCE, broken, ["centre"])


def test_votes_without_classes_or_with_broken_frequencies_are_refused():
    words = np.arange(3)
    with pytest.raises(IntegrityError, match="one class"):
        votes_of(REFERENCE, words, np.empty(0, np.int64))
    with pytest.raises(IntegrityError, match="relative_to"):
        votes_of(REFERENCE, words, words, relative_to=np.zeros(SIZE - 1))
    with pytest.raises(IntegrityError, match="relative_to"):
        votes_of(REFERENCE, words, words, relative_to=np.full(SIZE, np.nan))
