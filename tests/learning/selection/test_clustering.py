"""Clusters of a corpus read in blocks: as good as scikit-learn's in memory, the same however it is cut."""

import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from aggregation.errors import ConclaveError, IntegrityError
from learning.errors import DataError
from learning.selection import clustering
from learning.selection.clustering import Clustering, Grouping, RandomClustering, k_means

Stream = Callable[[], Iterator[np.ndarray]]


@pytest.fixture(autouse=True)
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small corpora are larger than the sample."""
    monkeypatch.setattr(clustering, "SAMPLE", 1_500)


def mixture(n: int, k: int, width: int, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Texts about k centres, of unequal numbers and widths, and which centre each is of."""
    rng = np.random.default_rng(seed)
    true = rng.choice(k, n, p=rng.dirichlet(np.full(k, 3.0)))
    widths = rng.uniform(0.5, 1.5, k)
    centres = rng.normal(size=(k, width)) * spread
    return (centres[true] + rng.normal(size=(n, width)) * widths[true, None]).astype(np.float32), true


def stream(texts: np.ndarray, *sizes: int) -> Stream:
    """A source of blocks of these sizes, over and over, all in the same memory."""

    def blocks() -> Iterator[np.ndarray]:
        memory = np.empty((max(sizes), texts.shape[1]), np.float32)
        at = turn = 0
        while at < len(texts):
            part = texts[at : at + sizes[turn % len(sizes)]]
            memory[: len(part)] = part
            yield memory[: len(part)]
            at, turn = at + len(part), turn + 1

    return blocks


@pytest.mark.slow
@pytest.mark.parametrize(("k", "spread"), [(10, 3.0), (10, 0.7), (25, 1.0), (3, 0.3)])
def test_it_is_as_good_as_scikit_learns_in_memory(k: int, spread: float) -> None:
    texts, _ = mixture(10_000, k, 24, spread)
    found = k_means(stream(texts, 3_000), k, seed=0)
    other = KMeans(k, n_init=3, random_state=0).fit(texts)
    assert found.inertia < 1.03 * other.inertia_
    by_hand = np.square(texts.astype(float)[:, None] - found.centres).sum(axis=-1)
    assert found.inertia == pytest.approx(by_hand.min(axis=1).sum(), rel=1e-9)
    np.testing.assert_array_equal(found.assign(texts), by_hand.argmin(axis=1))
    np.testing.assert_array_equal(found.sizes, np.bincount(by_hand.argmin(axis=1), minlength=k))


def test_clusters_that_are_apart_are_found_as_they_are() -> None:
    texts, true = mixture(10_000, 10, 32, 4.0)
    found = k_means(stream(texts, 1_000), 10, seed=1)
    assert adjusted_rand_score(true, found.assign(texts)) > 0.999
    assert found.settled
    assert found.passes < 10


def test_a_corpus_far_from_the_origin_is_clustered_as_well() -> None:
    texts, true = mixture(10_000, 6, 16, 4.0)
    found = k_means(stream(texts + np.float32(3_000), 999), 6, seed=1)
    assert adjusted_rand_score(true, found.assign(texts + np.float32(3_000))) > 0.999


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1,), (13, 1, 700), (4_096,), (4_097, 0), (9_000,)])
def test_blocks_of_any_sizes_give_the_same_bytes(sizes: tuple[int, ...]) -> None:
    texts, _ = mixture(9_000, 5, 8, 0.5)
    whole = k_means(lambda: iter([texts]), 5, seed=3)
    cut = k_means(stream(texts, *sizes), 5, seed=3)
    np.testing.assert_array_equal(cut.centres, whole.centres)
    np.testing.assert_array_equal(cut.sizes, whole.sizes)
    assert (cut.inertia, cut.passes, cut.settled) == (whole.inertia, whole.passes, whole.settled)


@pytest.mark.slow
def test_a_seed_gives_the_same_again_and_another_its_own() -> None:
    texts, _ = mixture(12_000, 8, 6, 0.2)
    first, again, other = (k_means(stream(texts, 5_000), 8, seed=seed, passes=2) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first.centres, again.centres)
    assert not np.array_equal(first.centres, other.centres)


@pytest.mark.slow
def test_more_passes_over_the_corpus_never_make_it_worse() -> None:
    texts, _ = mixture(12_000, 15, 10, 0.6)
    inertias = [k_means(stream(texts, 8_000), 15, seed=2, passes=passes).inertia for passes in (1, 2, 4, 8)]
    assert inertias == sorted(inertias, reverse=True)
    assert inertias[-1] < inertias[0]


@pytest.mark.slow
def test_it_stops_when_nothing_moves_and_says_when_it_had_to_stop_before() -> None:
    texts, _ = mixture(10_000, 6, 10, 0.4)
    calls = 0

    def counted() -> Iterator[np.ndarray]:
        nonlocal calls
        calls += 1
        return stream(texts, 6_000)()

    long = k_means(counted, 6, seed=0, passes=500)
    assert long.settled
    assert calls == long.passes + 1 < 400
    one_by_one = np.square(texts.astype(float)[:, None] - long.centres).sum(axis=-1).argmin(axis=1)
    means = np.stack([texts[one_by_one == c].astype(float).mean(axis=0) for c in range(6)])
    assert np.square(means - long.centres).sum() <= 2 * clustering.STILL * long.inertia / len(texts)
    assert not k_means(counted, 6, seed=0, passes=1).settled


@pytest.mark.slow
def test_the_sample_is_uniform_whatever_its_size_and_place() -> None:
    """Each text's share over many seeds; the reservoir's replacements are where a bias would come in."""
    texts = np.arange(300, dtype=np.float32)[:, None]
    seen = np.zeros(300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clustering, "_PIECE", 32)
        for seed in range(300):
            sample, count = clustering._sampled(stream(texts, 50), 60, seed)
            assert count == 300
            assert len(np.unique(sample)) == 60
            seen[sample[:, 0].astype(int)] += 1
    assert chisquare(seen).pvalue > 1e-4
    whole, _ = clustering._sampled(stream(texts, 50), 1_000, 0)
    np.testing.assert_array_equal(whole, texts)


def test_an_empty_cluster_moves_to_the_farthest_text() -> None:
    texts, _ = mixture(3_000, 2, 4, 1.0)
    texts = np.concatenate([texts, np.full((40, 4), 50, np.float32), np.full((3, 4), -80, np.float32)])
    start = np.concatenate([np.zeros((1, 4)), np.full((3, 4), 1e6)])  # three of four hold nothing at first
    found = clustering._lloyd(lambda: iter([texts.astype(float)]), start, 40)
    assert (found.sizes > 0).all()
    assert sorted(found.sizes)[:2] == [3, 40]


def test_far_texts_are_the_farthest_of_the_whole_corpus_and_different() -> None:
    rng = np.random.default_rng(0)
    texts, squares = rng.normal(size=(500, 3)), rng.permutation(500).astype(float)
    texts[np.argsort(-squares)[:3]] = 7.0  # the three farthest are one text
    far = clustering._Far(6)
    for at in range(0, 500, 41):
        far.see(texts[at : at + 41], squares[at : at + 41])
    order = np.argsort(-squares)
    np.testing.assert_array_equal(far.distinct(4), texts[order[[0, 3, 4, 5]]])
    np.testing.assert_array_equal(far.distinct(2), texts[order[[0, 3]]])


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 5), st.integers(0, 10**6))
def test_any_small_corpus_is_clustered_with_as_many_clusters_as_it_has_texts(
    n: int, k: int, kinds: int, seed: int
) -> None:
    """Also one of few different texts, where clusters have to stay empty."""
    texts = np.random.default_rng(seed).integers(0, kinds, (n, 2)).astype(np.float32)
    if k > n:
        with pytest.raises(DataError, match=f"has {n} texts and {k} clusters are wanted"):
            k_means(stream(texts, 7), k, seed=seed)
        return
    found = k_means(stream(texts, 7), k, seed=seed)
    different = len(np.unique(texts, axis=0))
    assert found.sizes.sum() == n
    assert np.isfinite(found.centres).all()
    np.testing.assert_array_equal(np.bincount(found.assign(texts), minlength=k), found.sizes)
    if k >= different:
        assert found.inertia < 1e-9 * n * kinds
        assert (found.sizes > 0).sum() == different


@pytest.mark.slow
def test_memory_is_of_the_sample_and_not_of_the_corpus() -> None:
    width, block = 64, 2_000

    def source(blocks: int) -> Stream:
        return lambda: (
            np.random.default_rng(number).normal(size=(block, width)).astype(np.float32) for number in range(blocks)
        )

    def peak(blocks: int) -> int:
        tracemalloc.start()
        try:
            k_means(source(blocks), 4, seed=0, passes=1)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    long = peak(30)
    assert long < 1.2 * peak(6)
    assert long < 30 * block * width * 4 / 2


def test_assign_does_not_depend_on_the_block() -> None:
    texts, _ = mixture(10_000, 5, 8, 0.5)
    found = k_means(stream(texts, 4_000), 5, seed=0)
    whole = found.assign(texts)
    assert whole.dtype == np.int32
    np.testing.assert_array_equal(np.concatenate([found.assign(each, 0) for each in stream(texts, 7, 900)()]), whole)
    assert found.assign(texts[:0]).shape == (0,)


def test_random_clusters_are_even_and_go_by_row_number_alone() -> None:
    texts = np.zeros((50_000, 3), np.float32)
    found = RandomClustering(15, seed=4)
    whole = found.assign(texts, 0)
    assert whole.dtype == np.int32
    assert chisquare(np.bincount(whole, minlength=15)).pvalue > 1e-4
    np.testing.assert_array_equal(found.assign(texts[:100], 777), whole[777:877])
    pairs = np.bincount(whole[:-1] * 15 + whole[1:], minlength=225)
    assert chisquare(pairs).pvalue > 1e-4  # not a stripe, as the row number modulo 15 would be
    assert not np.array_equal(RandomClustering(15, seed=5).assign(texts, 0), whole)
    with pytest.raises(ConclaveError, match="0 clusters"):
        RandomClustering(0, seed=1)


def test_either_kind_is_used_the_same_way() -> None:
    texts, _ = mixture(2_000, 4, 5, 1.0)
    kinds: list[Grouping] = [k_means(stream(texts, 500), 4, seed=0), RandomClustering(4, seed=0)]
    for grouping in kinds:
        found = np.concatenate([grouping.assign(texts[at : at + 300], at) for at in range(0, 2_000, 300)])
        assert set(found.tolist()) == set(range(grouping.clusters))


def bad(kind: str) -> Stream:
    def blocks() -> Iterator[np.ndarray]:
        yield np.ones((10, 3), np.float32)
        second = np.ones((10, 4 if kind == "width" else 3), np.float32)
        if kind == "nan":
            second[7, 1] = np.nan
        if kind == "infinity":
            second[7, 2] = np.inf
        yield {"flat": second[:, 0], "whole": np.ones((10, 3), int)}.get(kind, second)

    return blocks


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("width", "from public text 10 on have 4 numbers, those before 3"),
        ("nan", "of public text 17 is not finite"),
        ("infinity", "of public text 17 is not finite"),
        ("flat", r"from public text 10 on are float32 of the shape \(10,\)"),
        ("whole", "from public text 10 on are int64"),
    ],
)
def test_embeddings_that_cannot_be_are_refused_by_row(kind: str, says: str) -> None:
    with pytest.raises(IntegrityError, match=says):
        k_means(bad(kind), 2, seed=0)


def test_assign_refuses_another_width_and_numbers_that_are_none() -> None:
    found = Clustering(np.zeros((2, 3)), np.array([1, 1]), 0.0, 1, True)
    with pytest.raises(IntegrityError, match="from public text 500 on have 4 numbers"):
        found.assign(np.ones((2, 4), np.float32), 500)
    with pytest.raises(IntegrityError, match="public text 501 is not finite"):
        found.assign(np.array([[0, 0, 0], [0, np.nan, 0]], np.float32), 500)


def test_a_source_that_does_not_start_anew_is_refused() -> None:
    texts, _ = mixture(500, 2, 3, 1.0)
    once = iter([texts])
    with pytest.raises(IntegrityError, match="had 500 texts when it was first read and 0 later"):
        k_means(lambda: once, 2, seed=0)


@pytest.mark.parametrize(("clusters", "passes"), [(0, 3), (3, 0)])
def test_no_cluster_and_no_pass_are_refused(clusters: int, passes: int) -> None:
    with pytest.raises(ConclaveError, match=f"{clusters} clusters in {passes} passes"):
        k_means(stream(np.ones((9, 2), np.float32), 3), clusters, seed=0, passes=passes)


def test_no_text_at_all_is_refused() -> None:
    with pytest.raises(DataError, match="has 0 texts"):
        k_means(lambda: iter([]), 2, seed=0)
