"""Choosing public texts: algorithm 1's round over clusters, its baselines, and the same choice however rows arrive."""

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from aggregation.errors import ConclaveError, IntegrityError
from learning.errors import DataError
from learning.selection import selecting
from learning.selection.selecting import METHODS, Method, Rows, Selector, hashed


def literal(scores: np.ndarray, clusters: np.ndarray, k: int, m: int) -> list[int]:
    """Algorithm 1, lines 11 to 20, as it stands: a scan for the best of a cluster at every pick."""
    left = [[int(row) for row in np.flatnonzero(clusters == c)] for c in range(k)]
    chosen: list[int] = []
    while len(chosen) < m:
        for rows in left:
            if rows and len(chosen) < m:
                best = max(rows, key=lambda row: (scores[row], -row))
                rows.remove(best)
                chosen.append(best)
    return chosen


def select(
    blocks: Iterable[Rows], method: Method, m: int | None = None, *, clusters: int = 1, seed: int = 0
) -> np.ndarray:
    """Row numbers chosen of a stream, in the order in which they were picked."""
    selector = Selector(method, m, clusters=clusters, seed=seed)
    for rows in blocks:
        selector.offer(rows)
    return selector.choose()


def corpus(n: int, k: int, seed: int = 0, kinds: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores and clusters of very unequal sizes; `kinds` different scores only, so that many tie."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(k, 0.3))
    scores = rng.integers(0, kinds, n) / kinds if kinds else rng.random(n)
    return scores, rng.choice(k, n, p=shares).astype(np.int32)


def blocks(scores: np.ndarray, clusters: np.ndarray, sizes: list[int], order: int | None = None) -> Iterator[Rows]:
    """Blocks of these sizes, over and over; their rows shuffled, as explicit numbers, where an order is given."""
    numbers = np.arange(len(scores))
    if order is not None:
        numbers = np.random.default_rng(order).permutation(numbers)
    at, turn = 0, 0
    while at < len(scores):
        part = numbers[at : at + sizes[turn % len(sizes)]]
        yield Rows(part if order is not None else at, scores[part], clusters[part])
        at, turn = at + len(part), turn + 1


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.integers(1, 120), st.integers(1, 9), st.integers(0, 10**6), st.sampled_from([0, 1, 3]), st.data())
def test_ais_is_the_papers_loop_in_the_papers_order(n: int, k: int, seed: int, kinds: int, data: st.DataObject) -> None:
    scores, clusters = corpus(n, k, seed, kinds)
    m = data.draw(st.integers(1, n))
    assert select([Rows(0, scores, clusters)], "ais", m, clusters=k).tolist() == literal(scores, clusters, k, m)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.data())
def test_the_choice_is_the_same_however_rows_arrive_and_little_is_held(data: st.DataObject) -> None:
    n, k, buffer = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 9)), data.draw(st.integers(1, 12))
    m = data.draw(st.integers(1, n))
    method = data.draw(st.sampled_from(METHODS))
    scores, clusters = corpus(n, k, data.draw(st.integers(0, 10**6)), data.draw(st.sampled_from([0, 1, 3])))
    whole = select([Rows(0, scores, clusters)], method, m, clusters=k, seed=5)
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selecting, "LEAST_BUFFER", buffer)
        selector = Selector(method, m, clusters=k, seed=5)
        for rows in blocks(scores, clusters, sizes, data.draw(st.integers(0, 99))):
            selector.offer(rows)
            assert method == "all" or selector.candidates < m + max(m, buffer)
        np.testing.assert_array_equal(selector.choose(), whole)
        assert selector.offered == n
        assert selector.candidates == (n if method == "all" else m)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(st.data())
def test_what_is_not_chosen_of_a_part_is_never_needed(data: st.DataObject) -> None:
    """Path independence, the law that the bound of m rows rests on."""
    n, k = data.draw(st.integers(2, 80)), data.draw(st.integers(1, 7))
    scores, clusters = corpus(n, k, data.draw(st.integers(0, 10**6)), data.draw(st.sampled_from([0, 2])))
    cut = data.draw(st.integers(1, n - 1))
    m = data.draw(st.integers(1, cut))
    kept = select([Rows(0, scores[:cut], clusters[:cut])], "ais", m, clusters=k)
    rest = np.concatenate([kept, np.arange(cut, n)])
    again = select([Rows(rest, scores[rest], clusters[rest])], "ais", m, clusters=k)
    np.testing.assert_array_equal(again, select([Rows(0, scores, clusters)], "ais", m, clusters=k))


def test_rows_that_are_turned_away_at_once_cost_nothing_of_the_choice() -> None:
    n, k, m = 300_000, 10, 5_000
    scores, clusters = corpus(n, k, 3)
    clusters[clusters == 4] = 0
    clusters[-40:] = 4  # a cluster that appears at the end, when all places are taken
    selector = Selector("ais", m, clusters=k)
    for rows in blocks(scores, clusters, [7_000, 1, 20_000]):
        selector.offer(rows)
        assert selector.candidates < m + selecting.LEAST_BUFFER
    chosen = selector.choose()
    np.testing.assert_array_equal(chosen, select([Rows(0, scores, clusters)], "ais", m, clusters=k))
    assert set(range(n - 40, n)) <= set(chosen.tolist())


def test_clusters_share_alike_until_one_runs_out() -> None:
    sizes = [3, 50, 0, 20]
    clusters = np.repeat(np.arange(4), sizes).astype(np.int32)
    chosen = select([Rows(0, np.random.default_rng(0).random(73), clusters)], "ais", 41, clusters=4)
    assert np.bincount(clusters[chosen], minlength=4).tolist() == [3, 19, 0, 19]
    assert clusters[chosen[:9]].tolist() == [0, 1, 3] * 3
    assert clusters[chosen[9:13]].tolist() == [1, 3, 1, 3]


def test_ais_of_one_cluster_is_the_classifier() -> None:
    scores, _ = corpus(500, 1, kinds=40)
    one = select([Rows(0, scores, np.zeros(500, np.int32))], "ais", 100, clusters=1)
    np.testing.assert_array_equal(one, select([Rows(0, scores)], "classifier", 100))
    np.testing.assert_array_equal(one, np.lexsort((np.arange(500), -scores))[:100])


def test_all_is_every_row_in_its_order() -> None:
    scores, clusters = corpus(1_000, 3)
    chosen = select(blocks(scores, clusters, [7, 90], order=1), "all")
    np.testing.assert_array_equal(chosen, np.arange(1_000))


def test_random_takes_every_row_alike_and_another_seed_others() -> None:
    n, m, seeds = 60, 20, 600
    drawn = np.zeros(n)
    first = np.zeros(n)
    for seed in range(seeds):
        chosen = select([Rows(0, np.arange(n, dtype=float))], "random", m, seed=seed)
        assert len(set(chosen.tolist())) == m
        drawn[chosen] += 1
        first[chosen[0]] += 1
    # Each row's count is binomial(seeds, m / n); given the sum, variances shrink by (1 - m / n).
    statistic = float((np.square(drawn - seeds * m / n) / (seeds * m / n * (1 - m / n))).sum() * (n - 1) / n)
    assert 25 < statistic < 110  # chi-square of 59 degrees, p = 1e-5 at either side
    assert chisquare(first).pvalue > 1e-5


def test_random_of_a_large_corpus_comes_from_all_over_it() -> None:
    chosen = select([Rows(0, np.zeros(100_000))], "random", 2_000, seed=3)
    assert kstest(chosen / 100_000, "uniform").pvalue > 1e-4
    assert kstest(chosen[:200] / 100_000, "uniform").pvalue > 1e-4


def test_random_does_not_look_at_scores() -> None:
    scores, clusters = corpus(400, 2)
    chosen = select([Rows(0, scores, clusters)], "random", 50, seed=1)
    np.testing.assert_array_equal(chosen, select([Rows(0, -scores)], "random", 50, seed=1))


@pytest.mark.slow
def test_the_hash_is_uniform_and_keyed_by_seed_and_purpose() -> None:
    numbers = np.arange(200_000)
    ways = [hashed(numbers, 0, "a"), hashed(numbers, 1, "a"), hashed(numbers, 0, "b")]
    for each in ways:
        assert len(np.unique(each)) == len(numbers)
        assert kstest(each / 2.0**64, "uniform").pvalue > 1e-4
        assert chisquare(np.bincount((each % np.uint64(97)).astype(int), minlength=97)).pvalue > 1e-4
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(ways[one] / 2.0**64, ways[other] / 2.0**64)[0, 1]) < 5 / np.sqrt(200_000)
    np.testing.assert_array_equal(hashed(numbers[777:], 0, "a"), ways[0][777:])


def test_float32_scores_and_numpy_first_numbers_are_taken() -> None:
    rows = Rows(np.int64(10), np.array([0.1, 0.3, 0.2], np.float32), np.array([0, 1, 1], np.int64))  # type: ignore[arg-type]
    assert select([rows], "ais", 3, clusters=2).tolist() == [10, 11, 12]


def test_more_may_be_offered_after_a_choice() -> None:
    scores, clusters = corpus(200, 4)
    selector = Selector("ais", 30, clusters=4)
    selector.offer(Rows(0, scores[:100], clusters[:100]))
    selector.choose()
    selector.offer(Rows(100, scores[100:], clusters[100:]))
    np.testing.assert_array_equal(selector.choose(), select([Rows(0, scores, clusters)], "ais", 30, clusters=4))


@pytest.mark.parametrize("method", ["ais", "classifier", "random"])
def test_a_corpus_that_is_too_small_is_named_with_both_numbers(method: selecting.Method) -> None:
    with pytest.raises(DataError, match=r"has 3 texts and 1,000 are to be chosen\. Give a larger .* choose 3 or fewer"):
        select([Rows(0, np.ones(3), np.zeros(3, np.int32))], method, 1000)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("method", METHODS)
def test_a_score_that_is_no_number_is_refused_by_row(method: selecting.Method, value: float) -> None:
    selector = Selector(method, 2)
    with pytest.raises(IntegrityError, match="public text 41 is"):
        selector.offer(Rows(40, np.array([0.0, value, 1.0]), np.zeros(3, np.int32)))
    assert selector.offered == selector.candidates == 0


@pytest.mark.parametrize("cluster", [-1, 3])
def test_a_cluster_that_there_is_not_is_refused(cluster: int) -> None:
    with pytest.raises(IntegrityError, match=f"Public text 1 is in cluster {cluster}, and there are 3"):
        Selector("ais", 1, clusters=3).offer(Rows(0, np.ones(2), np.array([0, cluster], np.int32)))


@pytest.mark.parametrize(
    "rows",
    [
        Rows(0, np.ones((2, 2)), np.zeros(2, np.int32)),
        Rows(np.arange(3), np.ones(2), np.zeros(2, np.int32)),
        Rows(np.array([0.0, 1.0]), np.ones(2), np.zeros(2, np.int32)),  # type: ignore[arg-type]
        Rows(-1, np.ones(2), np.zeros(2, np.int32)),
        Rows(0, np.ones(2), np.zeros(3, np.int32)),
        Rows(0, np.ones(2), np.zeros(2)),  # type: ignore[arg-type]
        Rows(0, np.ones(2)),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(rows: Rows) -> None:
    with pytest.raises(IntegrityError):
        Selector("ais", 1, clusters=2).offer(rows)


def test_a_row_offered_twice_is_refused_where_it_would_be_chosen() -> None:
    for method in METHODS:
        selector = Selector(method, 3)
        selector.offer(Rows(0, np.array([5.0, 1.0]), np.zeros(2, np.int32)))
        selector.offer(Rows(0, np.array([5.0, 1.0]), np.zeros(2, np.int32)))
        with pytest.raises(IntegrityError, match="offered twice"):
            selector.choose()


def test_settings_that_choose_nothing_are_refused() -> None:
    with pytest.raises(ConclaveError, match="0 public texts are to be chosen"):
        Selector("classifier", 0)
    with pytest.raises(ConclaveError, match="None public texts"):
        Selector("ais")
    with pytest.raises(ConclaveError, match=r"no way of selecting 'best'\. Use ais, classifier, random, all"):
        Selector("best", 3)  # type: ignore[arg-type]
    with pytest.raises(ConclaveError, match="0 clusters"):
        Selector("ais", 3, clusters=0)
