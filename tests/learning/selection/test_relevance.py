"""What domain classifiers say together, and that heads of noise alone are called so while informative ones are not."""

import numpy as np
import pytest
from scipy.stats import chi2, norm, spearmanr

from aggregation.errors import ConclaveError, IntegrityError
from learning.models.optimisers import Schedule
from learning.private_training.optimisation import Optimisation, Training
from learning.selection import relevance
from learning.selection.relevance import (
    Measure,
    Worth,
    chance,
    cosines,
    direction,
    freedom,
    mean_scores,
    noise_deviation,
    rank_correlations,
    weight_noise,
    worth,
)

WIDTH, TEXTS = 64, 300
NOTHING = "no more than noise would"


def public_features(seed: int = 0, fall: float = 0.5) -> np.ndarray:
    """Features as sentence encoders give: some directions hold much more of them than others."""
    rng = np.random.default_rng(seed)
    turned = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0]
    return (rng.normal(size=(TEXTS, WIDTH)) * np.arange(1, WIDTH + 1.0) ** -fall) @ turned + rng.normal(size=WIDTH)


def said(directions: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Probabilities of private-like by linear heads, [parties, texts]."""
    return 1 / (1 + np.exp(-(directions @ features.T)))


def noise(parties: int, seed: int, deviation: float = 0.1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, deviation, (parties, WIDTH))


def signal(seed: int = 7) -> np.ndarray:
    """A direction that is as long as noise of deviation 1, on average."""
    return np.random.default_rng(seed).normal(size=WIDTH)


def test_the_mean_is_of_probabilities_and_of_each_text_alone() -> None:
    scores = np.random.default_rng(0).random((3, 50)).astype(np.float32)
    mean = mean_scores(scores)
    assert mean.dtype == np.float64
    np.testing.assert_allclose(mean, scores.astype(float).mean(axis=0))
    np.testing.assert_array_equal(np.concatenate([mean_scores(scores[:, :7]), mean_scores(scores[:, 7:])]), mean)
    np.testing.assert_array_equal(mean_scores(list(scores)), mean)
    assert mean_scores(np.array([[1.0], [0.5]])) == [0.75]  # by logits it would be 1
    assert mean_scores(np.ones((7, 1)) * np.nextafter(1, 0)).max() <= 1
    assert mean_scores(np.ones((2, 0))).shape == (0,)


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.01, 1.01])
def test_what_is_no_probability_is_refused_by_party_and_text(value: float) -> None:
    scores = np.full((3, 9), 0.5)
    scores[2, 6] = value
    with pytest.raises(IntegrityError, match="party 2 gives text 6 "):
        mean_scores(scores)


def test_parties_that_scored_other_texts_are_refused() -> None:
    with pytest.raises(IntegrityError, match=r"party 1 scored texts of the shape \(4,\), that of party 0 \(3,\)"):
        mean_scores([np.ones(3), np.ones(4)])
    with pytest.raises(IntegrityError, match="no scores"):
        mean_scores([])


def test_a_direction_is_private_less_public_less_the_start() -> None:
    head, start = np.array([[1.0, 5.0], [2.0, 3.0]]), np.array([[0.0, 1.0], [1.0, 0.0]])
    assert direction(head).tolist() == [-1, 2]
    assert direction(head, private=1).tolist() == [1, -2]
    assert direction(head, start).tolist() == [0, 1]
    features = np.random.default_rng(0).normal(size=(5, 2))
    logits = features @ head.T
    private = np.exp(logits[:, 0]) / np.exp(logits).sum(axis=1)
    np.testing.assert_allclose(said(direction(head)[None], features)[0], private)
    for wrong in (np.ones(2), np.ones((3, 2)), np.array([[np.nan, 1], [1, 1]])):
        with pytest.raises(IntegrityError, match="head is finite and"):
            direction(wrong)


def test_cosines_and_rank_correlations_are_the_known_ones() -> None:
    vectors = np.random.default_rng(0).normal(size=(4, 30))
    vectors[1] = -2 * vectors[0]
    found = cosines(vectors)
    by_hand = vectors[2] @ vectors[3] / np.linalg.norm(vectors[2]) / np.linalg.norm(vectors[3])
    assert found[2, 3] == pytest.approx(by_hand)
    assert found[0, 1] == pytest.approx(-1)
    ties = np.round(vectors[1:], 0)
    np.testing.assert_allclose(rank_correlations(ties), spearmanr(ties, axis=1).statistic)
    nothing = np.stack([np.zeros(5), np.arange(5.0)])
    assert cosines(nothing)[0, 1] == rank_correlations(nothing)[0, 1] == 0


def test_weight_noise_is_the_share_of_noise_in_a_heads_square() -> None:
    wide = np.random.default_rng(0).normal(0, 0.3, (2, 40_000))
    wide[1, 0] += 0.3 * np.sqrt(3 * 40_000)  # a signal whose square is three times the noise's
    np.testing.assert_allclose(weight_noise(wide, 0.3), [1, 0.25], rtol=0.03)
    np.testing.assert_allclose(weight_noise(wide, [0.3, 0.6]), [1, 1], rtol=0.03)
    assert weight_noise(np.zeros((1, 3)), 0.1)[0] == np.inf


def test_freedom_is_the_number_of_directions_texts_spread_over() -> None:
    rng = np.random.default_rng(0)
    assert freedom(rng.normal(size=(50_000, 6)) + 100) == pytest.approx(6, rel=0.01)
    assert freedom(rng.normal(size=(100, 1))) == pytest.approx(1)
    few = rng.normal(size=(50_000, 3)) @ np.linalg.qr(rng.normal(size=(20, 3)))[0].T
    assert freedom(few) == pytest.approx(3, rel=0.01)
    for wrong in (np.ones((5, 3)), np.ones(5), np.array([[1, np.nan], [2, 3]])):
        with pytest.raises(IntegrityError, match="Features are finite"):
            freedom(wrong)


@pytest.mark.parametrize("parties", [2, 3, 5, 12])
@pytest.mark.parametrize("fall", [0.0, 0.5, 1.0])
def test_noise_passes_as_agreement_about_as_seldom_as_it_may(parties: int, fall: float) -> None:
    """Correlations of random directions under spectra from flat to steep; 3,000 draws, so 30 +- 6 at the level."""
    spectrum = np.arange(1, 101.0) ** -fall  # standard deviations
    freedom_of_it = np.square(spectrum).sum() ** 2 / (spectrum**4).sum()
    heads = np.random.default_rng(parties).normal(size=(3_000, parties, 100)) * spectrum
    heads /= np.linalg.norm(heads, axis=-1, keepdims=True)
    means = (np.square(heads.sum(axis=1)).sum(axis=1) - parties) / (parties * (parties - 1))
    rate = (means > chance(parties, freedom_of_it, 0.01)).mean()
    assert rate <= 0.03
    if fall == 0:
        assert rate > 0.003  # and it is not merely strict


@pytest.mark.slow
@pytest.mark.parametrize("given", ["scores", "heads", "all"])
@pytest.mark.parametrize("parties", [2, 3, 6])
def test_heads_of_noise_alone_are_called_so_nearly_always(parties: int, given: str) -> None:
    features, warned = public_features(), 0
    for seed in range(300):
        heads = noise(parties, seed)
        known = {
            "scores": {},
            "heads": {"directions": heads},
            "all": {"directions": heads, "noise": 0.1, "features": features},
        }[given]
        found = worth(said(heads, features), **known)
        warned += any(NOTHING in sentence for sentence in found.warnings())
        assert (found.informative is False) == any(NOTHING in sentence for sentence in found.warnings())
    assert warned >= 290  # at twice the level, 294 are expected


@pytest.mark.slow
@pytest.mark.parametrize("parties", [2, 3, 6])
def test_plainly_informative_heads_are_never_warned_of(parties: int) -> None:
    features = public_features()
    for seed in range(100):
        heads = 0.1 * (noise(parties, seed, 1.0) + 2.5 * signal())
        found = worth(said(heads, features), directions=heads, noise=0.1, features=features)
        assert found.warnings() == ()
        assert found.informative
        for measure in (found.cosine, found.norm):  # as many directions as the width: the surest two
            assert measure is not None
            assert measure.tells
        assert worth(said(heads, features), directions=heads).warnings() == ()


def test_without_features_agreement_must_be_plainer_still() -> None:
    features = public_features()
    heads = noise(2, 0, 1.0) + 3 * signal()
    with_features, without = (worth(said(heads, features), features=each) for each in (features, None))
    assert with_features.agreement is not None
    assert without.agreement is not None
    assert with_features.agreement.value == without.agreement.value
    assert with_features.agreement.chance < without.agreement.chance < without.agreement.value


@pytest.mark.slow
def test_one_party_is_judged_by_its_noise() -> None:
    features, warned = public_features(), 0
    for seed in range(300):
        head = noise(1, seed)
        found = worth(said(head, features), directions=head, noise=0.1, features=features)
        assert found.agreement is found.cosine is found.reliability is None
        warned += found.informative is False
        head = head + 0.15 * signal()
        assert worth(said(head, features), directions=head, noise=0.1, features=features).warnings() == ()
    assert warned >= 290


def test_one_party_of_unknown_noise_is_not_judged_and_that_is_said() -> None:
    head = 5 * signal()[None]
    found = worth(said(head, public_features()), directions=head)
    assert found.informative is None
    (sentence,) = found.warnings()
    assert "is not known" in sentence


def test_noise_that_is_misjudged_by_a_few_parts_in_a_hundred_does_not_pass_for_signal() -> None:
    wide = np.random.default_rng(0).normal(0, 1.05, (4, 20_000))  # chi-square alone would be beyond doubt
    scores = np.random.default_rng(1).random((4, 50))
    found = worth(scores, directions=wide, noise=1.0)
    assert found.norm == Measure(pytest.approx(1.05, rel=0.01), relevance.MARGIN)
    assert found.informative is False


@pytest.mark.parametrize("parties", [1, 6])
def test_lengths_of_all_parties_are_judged_together(parties: int) -> None:
    """Of one test by chi-square the limit is its quantile, with as many degrees as all heads have numbers."""
    heads = noise(parties, 0)[:, :8]
    found = worth(np.random.default_rng(1).random((parties, 50)), directions=heads, noise=0.1).norm
    tests = 1 if parties == 1 else 3
    assert found is not None
    assert found.chance == pytest.approx(np.sqrt(chi2.isf(0.01 / tests, 8 * parties) / (8 * parties)))
    assert found.value == pytest.approx(np.sqrt(np.square(heads).mean()) / 0.1)


def test_parties_that_learned_different_things_are_told_apart_from_noise() -> None:
    features = public_features()
    heads = noise(2, 0) + np.stack([signal(1), signal(2)])
    found = worth(said(heads / 10, features), directions=heads / 10, noise=0.01, features=features)
    assert found.informative
    (sentence,) = found.warnings()
    assert "learned something, but not the same" in sentence


def test_a_weak_agreement_is_said_to_be_weak() -> None:
    features = public_features(fall=0.0)
    heads = noise(30, 0, 1.0) + 0.17 * signal()
    found = worth(said(heads, features), directions=heads, features=features)
    assert found.informative
    assert found.reliability is not None
    assert 0.1 < found.reliability < relevance.RELIABLE
    (sentence,) = found.warnings()
    assert f"{1 - found.reliability:.0%} is noise" in sentence


def test_reliability_is_the_squared_correlation_with_what_parties_share() -> None:
    rng = np.random.default_rng(0)
    shared = rng.normal(size=20_000)
    odds = shared + 1.5 * rng.normal(size=(5, 20_000))
    found = worth(norm.cdf(odds / 10))
    expected = np.corrcoef(odds.mean(axis=0), shared)[0, 1] ** 2
    assert found.reliability == pytest.approx(expected, abs=0.03)


def test_a_start_that_all_share_is_no_agreement() -> None:
    features, start = public_features(), 0.5 * signal()
    heads = start + noise(3, 3)
    fooled = worth(said(heads, features), features=features)
    found = worth(said(heads, features), features=features, start=said(start[None], features)[0])
    assert fooled.informative
    assert found.informative is False
    alone = worth(said(heads - start, features), features=features)
    assert alone.agreement is not None
    assert found.agreement is not None
    assert found.agreement.value == pytest.approx(alone.agreement.value, abs=0.05)


def test_scores_that_are_all_alike_leave_the_order_to_row_numbers() -> None:
    found = worth(np.ones((2, 50)))
    assert found.tied == 1
    assert found.spread == 0
    assert found.informative is False
    assert "100% of the public texts have one and the same score" in found.warnings()[-1]
    heads = 0.1 * (noise(3, 0, 1.0) + 2 * signal())
    scores = said(heads, public_features())
    scores[:, :30] = scores[:, :1]
    (sentence,) = worth(scores, directions=heads).warnings()
    assert sentence.startswith("10% of the public texts")


def test_a_large_corpus_is_looked_at_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relevance, "ROWS", 100)
    features = public_features()
    heads, start = noise(3, 1), signal()
    scores, begun = said(heads, features), said(start[None], features)[0]
    assert worth(scores, start=begun) == worth(scores[:, ::3], start=begun[::3])


def train(features: np.ndarray, private: np.ndarray, settings: Optimisation, z: float, steps: int, seed: int):
    """DP-SGD of a logistic head, private-like against public, clipped to norm 1: the direction [width]."""
    rng = np.random.default_rng(seed)
    rows = np.concatenate([private, features])
    target = np.repeat([1.0, 0.0], [len(private), len(features)])
    import torch

    descent = Training(torch.zeros(2 * WIDTH), settings, steps)
    for _ in range(steps):
        head = descent.point.numpy().reshape(2, WIDTH)
        batch = rng.random(len(rows)) < settings.expected_batch / len(rows)
        error = 1 / (1 + np.exp(-(rows[batch] @ (head[0] - head[1])))) - target[batch]
        gradients = np.concatenate([error[:, None] * rows[batch], -error[:, None] * rows[batch]], axis=1)
        gradients /= np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), 1)
        total = gradients.sum(axis=0) + rng.normal(0, z, 2 * WIDTH)
        descent.step(total.astype(np.float32))
    return direction(descent.point.numpy().reshape(2, WIDTH))


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_private_training_of_real_heads_is_judged_right(optimiser: str) -> None:
    """Parties train under DP on public text and their own: of another domain, or of the same one."""
    settings = Optimisation(100.0, 0.02, optimiser, Schedule("linear", 0.1))  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    public = rng.normal(size=(1_000, WIDTH))
    domain = 1.5 * signal() / np.sqrt(WIDTH)
    steps, parties = 60, 3

    def judged(z: float, shift: np.ndarray, seed: int) -> Worth:
        shards = [rng.normal(size=(1_000, WIDTH)) + shift for _ in range(parties)]
        heads = np.stack([train(public, each, settings, z, steps, seed + n) for n, each in enumerate(shards)])
        known = noise_deviation(settings, steps, z)
        return worth(said(heads, public), directions=heads, noise=known, features=public)

    assert judged(4.0, domain, 0).warnings() == ()
    nothing = [judged(40.0, 0 * domain, 10 * seed) for seed in range(1, 6)]
    assert sum(each.informative is False for each in nothing) >= 4
    assert np.mean([each.norm.value for each in nothing if each.norm]) == pytest.approx(1, abs=0.1)  # 4 errors


def test_the_noise_of_plain_descent_is_the_one_by_hand() -> None:
    settings = Optimisation(50.0, 0.1, "sgd", Schedule("constant"), momentum=0.0)
    assert noise_deviation(settings, 40, 3.0) == pytest.approx(np.sqrt(2 * 40) * 0.1 * 3.0 / 50, rel=0.02)
    assert noise_deviation(settings, 40, 6.0) == pytest.approx(2 * noise_deviation(settings, 40, 3.0))


@pytest.mark.parametrize(
    ("scores", "more"),
    [
        (np.ones(5), {}),
        (np.ones((2, 2)), {}),
        (np.full((2, 5), 2.0), {}),
        (np.ones((2, 5)), {"directions": np.ones((3, 4))}),
        (np.ones((2, 5)), {"directions": np.full((2, 4), np.nan)}),
        (np.ones((2, 5)), {"features": np.ones((5, 4))}),
        (np.ones((2, 5)), {"features": np.eye(4), "directions": np.ones((2, 5))}),
        (np.ones((2, 5)), {"start": np.ones(4)}),
    ],
)
def test_what_does_not_fit_is_refused(scores: np.ndarray, more: dict[str, np.ndarray]) -> None:
    with pytest.raises(IntegrityError):
        worth(scores, **more)


@pytest.mark.parametrize("deviation", [0.0, -1.0, np.nan])
def test_noise_without_a_deviation_is_refused(deviation: float) -> None:
    with pytest.raises(ConclaveError, match="deviation above 0"):
        worth(np.ones((2, 5)), directions=np.ones((2, 4)), noise=deviation)
