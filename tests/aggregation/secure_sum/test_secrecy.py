"""What the coordinator receives in one sum tells nothing of one party's vector beyond the sum.

The coordinator here does all it can with every message of every round: it rebuilds the survivors' seeds and the lost
party's mask key and takes off each single vector every mask it knows. What is left of each must be uniform, and must
not go along with the true vector. The secrets of the runs come from fixed seeds, so the tests repeat.
"""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy import stats

from aggregation.secure_sum.field import combine
from aggregation.secure_sum.keys import Secrets, agree
from aggregation.secure_sum.keystream import Masks
from aggregation.secure_sum.mask import MaskedBlock, Masking, pair_mask, self_mask
from aggregation.secure_sum.unmask import Kind, Revealed

LOST, LENGTH, RUNS = "p05", 2048, 24
LIMIT = 1e-5


@pytest.fixture
def drawn_from_a_seed(monkeypatch):
    """Secrets from a fixed generator, in place of the operating system's."""
    rng = np.random.default_rng(20_26)

    def draw():
        key = X25519PrivateKey.from_private_bytes
        return Secrets(key(rng.bytes(32)), key(rng.bytes(32)), rng.bytes(32), rng.bytes(32))

    monkeypatch.setattr(Secrets, "draw", draw)


@pytest.fixture
def without_pair_masks(monkeypatch):
    """The negative control: every vector leaves under its self mask alone, which the coordinator may take off."""
    honest = Masking.__init__

    def alone(self, *args):
        honest(self, *args)
        self._masks = Masks(self._masks._masks[:1])

    monkeypatch.setattr(Masking, "__init__", alone)


def votes(rng):
    """A vector such as a party sends: a few votes, small noise."""
    return rng.poisson(0.2, LENGTH) + np.rint(rng.normal(0, 3, LENGTH)).astype(np.int64)


def whole_sum(scene, seed, count=6):
    """One sum with a party lost in mid-vector."""
    rng = np.random.default_rng(seed)
    names = [f"p{i:02}" for i in range(count)]
    stage = scene(count, length=LENGTH, run=f"run {seed}", vectors={n: votes(rng) for n in names})
    stage.up_to("reveal", lost=[LOST], at="mask")
    return stage


def residues(stage, pair_masks=True):
    """Each party's vector after the coordinator took off every mask that it can, by name; the lost one's first block.

    From the bytes it received and the group, which is public to it. pair_masks: False in the negative control, where
    the lost party left none to take off.
    """
    group = stage.server._group
    vectors = {}
    for name, data in stage.sent["mask"]:
        vectors.setdefault(name, []).append(MaskedBlock.decode(data, name).cells)
    vectors = {name: np.concatenate(blocks) for name, blocks in vectors.items()}
    shares = {}
    for name, data in stage.sent["reveal"]:
        for owner, kind, share in Revealed.decode(data, name).shares:
            shares.setdefault((owner, kind), {})[group.points[name]] = share
    secrets = {key: combine(dict(list(held.items())[: group.threshold])) for key, held in shares.items()}
    private = X25519PrivateKey.from_private_bytes(secrets[LOST, Kind.MASK_KEY])
    for name, cells in vectors.items():
        masks = []
        if name != LOST:
            masks.append(self_mask(group, name, secrets[name, Kind.SEED]).opposite)
        lost_pairs = group.near[name] - {LOST} if name == LOST else group.near[name] & {LOST}
        for peer in lost_pairs if pair_masks else ():
            other = group.roster.by_party[peer if name == LOST else name].mask_key
            masks.append(pair_mask(group, name, peer, agree(private, other, peer)).opposite)
        vectors[name] = Masks(masks).cover(0, cells)
    return vectors


def told_apart(scene, count=6, pair_masks=True):
    """For each party: p-values of a chi-square over all bytes and of the correlations with the true vector, bit by bit.

    RUNS runs of LENGTH cells are 49,152 cells, 196,608 bytes. At the limit of 1e-5 the chi-square sees any one byte
    value 0.5% of the bytes too many, and a correlation sees a coefficient of 0.03, with power above 0.98.
    """
    seen, true = {}, {}
    for seed in range(RUNS):
        stage = whole_sum(scene, seed, count)
        for name, cells in residues(stage, pair_masks).items():
            seen.setdefault(name, []).append(cells)
            true.setdefault(name, []).append(stage.vectors[name][: len(cells)])
    found = {}
    for name in seen:
        cells, values = np.concatenate(seen[name]), np.concatenate(true[name])
        uniform = stats.chisquare(np.bincount(cells.view(np.uint8), minlength=256)).pvalue
        related = [stats.pearsonr(cells.view(np.int32).astype(float), values).pvalue]
        related += [stats.pearsonr((cells >> np.uint32(bit)) & np.uint32(1), values).pvalue for bit in range(32)]
        found[name] = uniform, min(related) * len(related)
    return found


@pytest.mark.parametrize("count", [6, pytest.param(18, marks=pytest.mark.slow)])
def test_no_partys_vector_can_be_told_from_uniform(scene, drawn_from_a_seed, count):
    found = told_apart(scene, count)
    assert set(found) == {f"p{i:02}" for i in range(count)}
    for name, (uniform, related) in found.items():
        assert uniform > LIMIT, name
        assert related > LIMIT, name


@pytest.mark.parametrize("count", [6, pytest.param(18, marks=pytest.mark.slow)])
def test_with_the_pair_masks_off_every_survivors_vector_is_told_apart(
    scene, drawn_from_a_seed, without_pair_masks, count
):
    for name, (uniform, related) in told_apart(scene, count, pair_masks=False).items():
        if name != LOST:  # its self mask stays on
            assert uniform < LIMIT, name
            assert related < LIMIT, name


def test_with_the_pair_masks_off_what_is_left_is_the_vector_itself(scene, without_pair_masks):
    stage = whole_sum(scene, 0)
    left = residues(stage, pair_masks=False)
    assert np.array_equal(left["p00"], stage.vectors["p00"].astype(np.uint32))


def test_the_tests_power_is_what_they_say():
    """On uniform cells with so small a leak put in, each test finds it in at least 48 of 50 trials."""
    rng = np.random.default_rng(3)
    cells, bytes_ = RUNS * LENGTH, 4 * RUNS * LENGTH
    caught = np.zeros(2, dtype=int)
    for _ in range(50):
        drawn = rng.integers(0, 256, bytes_, dtype=np.uint8)
        drawn[: bytes_ // 200] = 7
        caught[0] += stats.chisquare(np.bincount(drawn, minlength=256)).pvalue < LIMIT
        value = rng.normal(size=cells)
        caught[1] += stats.pearsonr(0.03 * value + rng.normal(size=cells), value).pvalue * 33 < LIMIT
    assert caught.min() >= 48


def test_no_message_holds_a_vector_or_a_secret_in_clear(scene):
    stage = scene(6, length=64)
    held = {n: stage.parties[n]._secrets for n in stage.names}
    stage.up_to("reveal", lost=[LOST], at="mask")
    received = b"".join(data for sent in stage.sent.values() for _, data in sent)
    for name in stage.names:
        assert stage.vectors[name].astype("<u4").tobytes()[:32] not in received
        assert held[name].seed not in received
        assert held[name].mask_key.private_bytes_raw() not in received
        assert held[name].share_key.private_bytes_raw() not in received


def test_the_same_vector_sent_twice_looks_different_each_time(scene):
    """Fresh keys for every attempt: the difference of two attempts' blocks is not the difference of the vectors."""
    first, second = scene(4, colluders=0), scene(4, colluders=0, attempt=1)
    for stage in (first, second):
        stage.up_to("mask")
    one, other = (MaskedBlock.decode(s.sent["mask"][0][1], "p00").cells for s in (first, second))
    assert np.count_nonzero(one == other) <= 1
