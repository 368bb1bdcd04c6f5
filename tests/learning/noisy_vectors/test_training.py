"""Training on noisy vectors: made-up texts whose classes and covariance are known."""

import numpy as np
import pytest

from aggregation.errors import ConclaveError
from learning.noisy_vectors.moments import believed_covariance, believed_mean, moments_of, null_share
from learning.noisy_vectors.noise import Noise
from learning.noisy_vectors.projection import clipped
from learning.noisy_vectors.public import Public
from learning.noisy_vectors.training import corrected, discriminant, floor, learned, plain

SIZE = 6
SPREADS = np.geomspace(0.5, 0.1, SIZE)


class World:
    """Texts of classes around means; `turned` moves them away from the public ones."""

    def __init__(self, classes=2, apart=0.5, seed=0):
        rng = np.random.default_rng(seed)
        self.public_means = rng.normal(size=(classes, SIZE)) * SPREADS * apart
        self.means = self.public_means.copy()
        self.spreads = SPREADS
        self.normalised = False
        self.rng = rng

    def texts(self, count, means, shares=None):
        labels = self.rng.choice(len(means), count, p=shares)
        spreads = SPREADS if means is self.public_means else self.spreads
        vectors = means[labels] + self.rng.normal(size=(count, SIZE)) * spreads
        return clipped(vectors, normalised=True) if self.normalised else vectors, labels

    def public(self, labelled=True):
        vectors, labels = self.texts(20_000, self.public_means)
        return Public.of(vectors, labels if labelled else None, classes=len(self.public_means))

    def released(self, vectors, labels, noise, null=0):
        rng, rows = self.rng, len(labels) + null
        whole = np.vstack([vectors, np.zeros((null, SIZE))]) + noise.sigma * rng.normal(size=(rows, SIZE))
        others = (labels + rng.integers(1, noise.classes, len(labels))) % noise.classes
        said = np.where(rng.random(len(labels)) < noise.kept, labels, others)
        said = np.concatenate([said, rng.integers(0, noise.classes, null)])
        order = rng.permutation(rows)
        return whole[order], said[order]

    def right(self, rule, shares=None):
        vectors, labels = self.texts(20_000, self.means, shares)
        return float((rule.classes(vectors) == labels).mean())

    def best(self):
        return self.right(
            discriminant(self.means, np.diag(self.spreads**2), np.full(len(self.means), 1 / len(self.means)))
        )


@pytest.mark.parametrize("classes", [2, 4])
def test_corrected_weights_undo_randomised_response_on_average(classes):
    noise = Noise(1.0, 1.2, classes)
    assert noise.response.sum(axis=0) == pytest.approx(np.ones(classes))
    assert noise.corrected(np.arange(classes)).T @ noise.response == pytest.approx(np.eye(classes))
    assert noise.kept / noise.changed == pytest.approx(np.exp(1.2))
    assert Noise(1.0, np.inf, classes).corrected(np.arange(classes)) == pytest.approx(np.eye(classes))


def test_moments_are_those_of_clean_vectors():
    world = World(classes=3)
    noise, public = Noise(1.5, 1.0, 3), world.public()
    vectors, labels = world.texts(300_000, world.means, [0.5, 0.3, 0.2])
    found = moments_of(*world.released(vectors, labels, noise), noise, public)
    assert found.second == pytest.approx(vectors.T @ vectors / len(vectors), abs=0.05)
    assert found.shares == pytest.approx([0.5, 0.3, 0.2], abs=0.03)
    for each in range(3):
        whole = (1 - found.null) * found.shares[each]
        assert found.sums[each] / whole == pytest.approx(world.means[each], abs=0.12)


def test_half_the_rows_being_null_is_noticed_and_corrected():
    world = World(apart=1.5)
    world.normalised = True
    noise, public = Noise(0.3, 2.0, 2), world.public()
    vectors, labels = world.texts(20_000, world.means)
    released = world.released(vectors, labels, noise, null=20_000)
    assert null_share(released[0], noise, public) == pytest.approx(0.5, abs=0.03)
    found = moments_of(*released, noise, public)
    for each in range(2):
        mean = found.sums[each] / (1 - found.null) / found.shares[each]
        assert mean == pytest.approx(vectors[labels == each].mean(axis=0), abs=0.05)
    assert null_share(world.released(vectors, labels, noise)[0], noise, public) < 0.03
    clean = learned(vectors, labels, Noise(0.0, np.inf, 2), public)
    assert world.right(learned(*released, noise, public)) > world.right(clean) - 0.01


@pytest.mark.parametrize("classes", [2, 3])
def test_with_many_rows_it_learns_what_public_text_has_wrong(classes):
    """The private classes lie elsewhere: public text alone is far off, and noisy rows say where."""
    world = World(classes, apart=1.0, seed=3)
    public = world.public()
    world.means = World(classes, apart=1.0, seed=4).public_means
    noise = Noise(1.2, 2.0, classes)
    released = world.released(*world.texts(100_000, world.means), noise)
    best = world.best()
    assert world.right(floor(public)) < best - 0.08
    assert world.right(learned(*released, noise, public)) > best - 0.03


def test_with_few_rows_it_stays_with_public_text_where_corrected_means_alone_are_lost():
    noise = Noise(7.46, 1.0, 2)
    lost, kept = [], []
    for seed in range(5):
        world = World(apart=0.6, seed=seed)
        public = world.public()
        released = world.released(*world.texts(2000, world.means), noise)
        base = world.right(floor(public))
        lost.append(base - world.right(corrected(*released, noise, public)))
        kept.append(base - world.right(learned(*released, noise, public)))
    assert np.mean(kept) < 0.03
    assert np.mean(lost) > 0.08


def test_it_beats_the_corrected_means_and_ordinary_training_over_many_worlds():
    noise = Noise(2.16, 2.0, 2)
    found = {each: [] for each in (learned, corrected, plain)}
    for seed in range(8):
        world = World(apart=0.7, seed=100 + seed)
        public = world.public()
        world.means = world.public_means + world.rng.normal(size=(2, SIZE)) * SPREADS * 0.3
        world.spreads = SPREADS * np.exp(0.3 * world.rng.normal(size=SIZE))
        released = world.released(*world.texts(1000, world.means), noise)
        best = world.best()
        for trainer, losses in found.items():
            losses.append(best - world.right(trainer(*released, noise, public)))
    assert np.mean(found[learned]) < np.mean(found[corrected]) - 0.005
    assert np.mean(found[learned]) < np.mean(found[plain]) - 0.02


def test_a_clean_labelled_set_gives_the_best_rule_by_every_trainer():
    world = World(apart=0.8)
    public, noise = world.public(), Noise(0.0, np.inf, 2)
    rows = world.texts(20_000, world.means)
    for trainer in (learned, corrected, plain):
        assert world.right(trainer(*rows, noise, public)) > world.best() - 0.01


def test_without_public_labels_it_learns_and_a_guess_of_the_direction_helps():
    noise = Noise(4.0, 2.0, 2)
    gained = []
    for seed in range(6):
        world = World(apart=1.0, seed=seed)
        unlabelled = world.public(labelled=False)
        true = (world.means[1] - world.means[0]) / SPREADS**2
        released = world.released(*world.texts(5000, world.means), noise)
        alone = world.right(learned(*released, noise, unlabelled))
        guessed = world.right(learned(*released, noise, unlabelled.leaning(true)))
        gained.append(guessed - alone)
    assert np.mean(gained) > 0.02
    with pytest.raises(ConclaveError, match="without labels"):
        floor(unlabelled)


def test_mean_and_covariance_are_public_under_much_noise_and_private_under_little():
    world = World()
    public = world.public()
    shift = np.full(SIZE, 0.2)
    vectors, labels = world.texts(5000, world.means)
    vectors = vectors * 1.5 + shift
    for sigma, near in ((50.0, public.covariance), (0.05, np.cov(vectors, rowvar=False))):
        noise = Noise(sigma, np.inf, 2)
        found = moments_of(vectors + world.rng.normal(size=vectors.shape) * sigma, labels, noise, public)
        mean = believed_mean(found, noise, public)
        close = believed_covariance(found, found.second - np.outer(mean, mean), noise, public.covariance)
        assert np.abs(close - near).max() < 0.12 * np.abs(near).max()
        assert np.linalg.eigvalsh(close)[0] > 0


def test_rows_that_do_not_fit_are_refused():
    world = World()
    public, noise = world.public(), Noise(1.0, 1.0, 2)
    vectors, labels = world.texts(10, world.means)
    for some, said in [
        (vectors[:, :3], labels),
        (vectors, labels[:5]),
        (vectors, labels + 5),
        (vectors * np.nan, labels),
        (vectors[:1], labels[:1]),
    ]:
        with pytest.raises(ConclaveError):
            learned(some, said, noise, public)
    with pytest.raises(ConclaveError, match="2 classes and the rows 3"):
        learned(vectors, labels, Noise(1.0, 1.0, 3), public)
    for settings in [(-1.0, 1.0, 2), (np.nan, 1.0, 2), (1.0, 0.0, 2), (1.0, np.nan, 2), (1.0, 1.0, 1)]:
        with pytest.raises(ConclaveError):
            Noise(*settings)
