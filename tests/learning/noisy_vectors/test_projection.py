"""The projection: what public text sets, and that no file makes a vector longer than 1."""

import json
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load, save

from aggregation.errors import IntegrityError
from learning.noisy_vectors.projection import Projection, class_directions, clipped


def _texts(count=400, features=20, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, features)) * np.geomspace(1, 0.05, features) + 3


def _squared(vector):
    return sum(Fraction(float(each)) ** 2 for each in vector)


anything = st.floats(allow_nan=True, allow_infinity=True, width=64)


@pytest.mark.slow
@given(arrays.arrays(np.float64, (3, 5), elements=anything), st.booleans())
def test_no_vector_is_longer_than_one_whatever_it_was(vectors, normalised):
    """In exact arithmetic, with NaN, infinities, subnormals and the largest numbers among the values."""
    made = clipped(vectors, normalised=normalised)
    for given_row, row in zip(vectors, made, strict=True):
        assert np.isfinite(row).all()
        assert _squared(row) <= 1
        if not np.isfinite(given_row).all():
            assert not row.any()
        elif normalised and given_row.any():
            assert _squared(row) > Fraction(999, 1000)


def test_a_short_vector_stays_as_it_is_and_a_long_one_keeps_its_direction():
    short, long = np.array([[0.3, 0.4]]), np.array([[30.0, 40.0]])
    assert np.array_equal(clipped(short), short)
    assert clipped(long) == pytest.approx(np.array([[0.6, 0.8]]))


@pytest.mark.slow
@given(
    arrays.arrays(np.float64, (4,), elements=anything),
    arrays.arrays(np.float64, (4,), elements=st.floats(allow_nan=False, allow_infinity=False)),
    arrays.arrays(np.float64, (4, 2), elements=st.floats(allow_nan=False, allow_infinity=False)),
    st.floats(min_value=5e-324, allow_nan=False, allow_infinity=False),
    st.booleans(),
)
def test_no_projection_that_is_admitted_makes_a_longer_vector(features, centre, matrix, scale, normalised):
    hostile = Projection(centre, matrix, scale, normalised, np.zeros(2), np.zeros((2, 2)), 0.5)
    (row,) = hostile.applied(features[None])
    assert _squared(row) <= 1


def test_a_vector_has_the_same_bits_whatever_else_is_projected():
    texts = _texts(300).astype(np.float32)
    made = Projection.fitted(texts, 6)
    together = made.applied(texts)
    assert np.array_equal(together[[7]], made.applied(texts[[7]]))
    assert np.array_equal(together[100:107], made.applied(texts[100:107]))
    broken = texts.copy()
    broken[3] = np.nan
    beside = made.applied(broken)
    assert not beside[3].any()
    assert np.array_equal(np.delete(beside, 3, 0), np.delete(together, 3, 0))


def test_principal_components_explain_what_they_should_and_use_the_ball():
    texts = _texts()
    made = Projection.fitted(texts, 5, quantile=0.6)
    values = np.linalg.eigvalsh(np.cov(texts, rowvar=False, bias=True))[::-1]
    assert made.explained == pytest.approx(values[:5].sum() / values.sum())
    public = made.applied(texts)
    assert np.mean(np.linalg.norm(public, axis=1) < 0.999999) == pytest.approx(0.6, abs=0.01)
    assert made.mean == pytest.approx(public.mean(axis=0))
    assert made.covariance == pytest.approx(np.cov(public, rowvar=False, bias=True))
    angles = made.matrix.T @ made.matrix
    assert angles - np.diag(np.diag(angles)) == pytest.approx(np.zeros((5, 5)), abs=1e-9)


def test_directions_come_first_and_take_their_part_of_the_norm():
    texts = _texts()
    weak = np.zeros((20, 1))
    weak[17] = -2.0  # hardly any of the variance: no principal component would be it
    for emphasis in (0.3, 0.7):
        made = Projection.fitted(texts, 4, directions=weak, emphasis=emphasis, quantile=1.0)
        own = made.applied(texts)
        first = (texts[:, 17] - texts[:, 17].mean()) * -1
        assert np.corrcoef(own[:, 0], first)[0, 1] == pytest.approx(1)
        power = (own**2).mean(axis=0)
        assert power[0] / power.sum() == pytest.approx(emphasis, abs=0.02)
        assert abs(made.matrix[17, 1:]).max() < 1e-9


def test_evenness_gives_every_dimension_the_same_spread():
    made = Projection.fitted(_texts(2000), 5, evenness=1.0, quantile=1.0)
    spread = np.diag(made.covariance)
    assert spread == pytest.approx(np.full(5, spread.mean()), rel=1e-6)


def test_class_directions_look_past_common_noise_unless_the_ridge_is_large():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 4000)
    texts = rng.normal(size=(4000, 2)) @ np.array([[3.0, 0.0], [0.0, 0.3]])
    texts += (2.0 * labels[:, None] - 1) * np.array([0.4, 0.3])
    means = class_directions(texts, labels, ridge=1e6)[:, 0]
    assert means == pytest.approx(np.array([0.8, 0.6]), abs=0.1)
    told = class_directions(texts, labels, ridge=1e-6)[:, 0]
    assert told[1] > 0.99
    three = class_directions(rng.normal(size=(90, 5)), np.arange(90) % 3)
    assert three.shape == (5, 2)
    assert three.T @ three == pytest.approx(np.eye(2))


def test_a_projection_comes_back_from_its_file_bit_for_bit(tmp_path):
    made = Projection.fitted(_texts(), 6, normalised=True)
    made.save(tmp_path / "projection")
    again = Projection.read(tmp_path / "projection", features=20, dimensions=6)
    assert again.to_bytes() == made.to_bytes()
    assert np.array_equal(again.applied(_texts(seed=5)), made.applied(_texts(seed=5)))
    with pytest.raises(IntegrityError, match="6 dimensions where 7"):
        Projection.read(tmp_path / "projection", dimensions=7)
    with pytest.raises(IntegrityError, match="cannot be read"):
        Projection.read(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("matrix", np.full((20, 3), np.nan)),
        ("matrix", np.zeros((20, 3), np.float32)),
        ("matrix", np.zeros((19, 3))),
        ("matrix", np.zeros((20, 0))),
        ("matrix", np.zeros(20)),
        ("centre", np.full(20, np.inf)),
        ("centre", np.zeros(21)),
        ("settings", np.array([np.inf, 0.0, 0.5])),
        ("settings", np.array([0.0, 0.0, 0.5])),
        ("settings", np.array([-1.0, 0.0, 0.5])),
        ("settings", np.array([1.0, 0.5, 0.5])),
        ("settings", np.array([1.0, 0.0, 1.5])),
        ("settings", np.array([1.0])),
        ("mean", np.array([2.0, 0.0, 0.0])),
        ("mean", np.zeros(4)),
        ("covariance", np.eye(3)),
        ("covariance", np.eye(3) * 1e308),
        ("covariance", -0.1 * np.eye(3)),
        ("covariance", np.array([[0.1, 0.1, 0.0], [0.0, 0.1, 0.0], [0.0, 0.0, 0.1]])),
        ("covariance", np.zeros((3, 2))),
        ("more", np.zeros(2)),
    ],
)
def test_a_file_that_is_no_projection_is_refused(name, value):
    tensors = load(Projection.fitted(_texts(), 3).to_bytes())
    with pytest.raises(IntegrityError) as told:
        Projection.from_bytes(save({**tensors, name: value}))
    assert str(told.value).endswith(".")
    if name in tensors:
        with pytest.raises(IntegrityError):
            Projection.from_bytes(save({key: each for key, each in tensors.items() if key != name}))


def test_damaged_bytes_are_refused():
    whole = Projection.fitted(_texts(), 3).to_bytes()
    header = json.dumps({"matrix": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    strange = struct.pack("<Q", len(header)) + header + b"\0\0"
    for content in (b"", whole[:40], whole[:-1], b"x" * 100, struct.pack("<Q", 1 << 62) + b"{}", strange):
        with pytest.raises(IntegrityError):
            Projection.from_bytes(content)


def test_public_text_that_makes_no_projection_is_refused():
    texts = _texts(10, 4)
    for features, dimensions, more in [
        (texts, 5, {}),
        (texts[:2], 3, {}),
        (np.full((10, 4), np.nan), 2, {}),
        (np.ones((10, 4)), 2, {}),
        (texts, 2, {"quantile": 0.0}),
        (texts, 2, {"emphasis": 1.0, "directions": np.eye(4)[:, :1]}),
        (texts, 2, {"directions": np.zeros((4, 1))}),
        (texts, 2, {"directions": np.eye(3)}),
        (texts, 2, {"directions": np.full((4, 1), np.inf)}),
    ]:
        with pytest.raises(IntegrityError):
            Projection.fitted(features, dimensions, **more)
