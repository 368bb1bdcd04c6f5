"""Masks come off again, any part of a mask can be had alone, and threads change no bit."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggregation.secure_sum import cores, keystream
from aggregation.secure_sum.keystream import _CHUNK, Mask, Masks

KEY, OTHER = bytes(32), bytes(range(32))
BOTH = [Mask(KEY), Mask(OTHER, negative=True)]


def stream(key, cells):
    """A key's cells from 0, by one cipher in one go."""
    made = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(4 * cells))
    return np.frombuffer(made, dtype="<u4")


def whole(masks, length):
    return Masks(masks).cover(0, np.zeros(length, dtype=np.uint32))


@pytest.fixture
def shared(monkeypatch):
    """Chunks of 64 cells and threads for all of them; takes how many threads."""
    monkeypatch.setattr(keystream, "_CHUNK", 64)
    monkeypatch.setattr(keystream, "_ALONE", 0)

    def threads(count):
        for module in (cores, keystream):
            monkeypatch.setattr(module, "hands", lambda: count)

    return threads


def test_a_mask_is_aes_256_in_counter_mode():
    assert np.array_equal(whole([Mask(OTHER)], 100), stream(OTHER, 100))


@pytest.mark.parametrize("length", [_CHUNK + 1, 5 * _CHUNK + 3])
def test_a_long_mask_is_the_same_stream_to_its_last_cell(length):
    assert np.array_equal(whole(BOTH, length), stream(KEY, length) - stream(OTHER, length))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 1000)), min_size=1, max_size=4))
def test_any_part_in_any_order_by_any_number_of_threads_is_that_part_of_the_whole(shared, threads, parts):
    shared(threads)
    masks, expected = Masks(BOTH), stream(KEY, 2200) - stream(OTHER, 2200)
    for quarter, size in parts:
        found = masks.cover(4 * quarter, np.zeros(size, dtype=np.uint32))
        assert np.array_equal(found, expected[4 * quarter : 4 * quarter + size])


@pytest.mark.parametrize("kind", ["int8", "int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("masks", [[], BOTH])
def test_integers_of_any_kind_are_taken_modulo_two_to_the_32_and_stay_as_they_are(shared, kind, masks):
    shared(2)
    limits = np.iinfo(kind)
    values = np.random.default_rng(5).integers(limits.min, limits.max, 300, kind, endpoint=True)
    values[:2] = limits.min, limits.max
    before = values.copy()
    found = Masks(masks).cover(0, values)
    added = whole(masks, 300).tolist()
    assert found.dtype == np.uint32
    assert found.tolist() == [(value + mask) % 2**32 for value, mask in zip(values.tolist(), added, strict=True)]
    assert np.array_equal(values, before)


@pytest.mark.parametrize("length", [1, _CHUNK - 1, _CHUNK, 2 * _CHUNK + 5])
def test_a_mask_and_its_opposite_leave_the_vector_as_it_was(length):
    values = np.random.default_rng(0).integers(0, 2**32, length, dtype=np.uint32)
    masked = Masks(BOTH).cover(0, values)
    assert not np.array_equal(masked, values)
    assert np.array_equal(Masks([mask.opposite for mask in reversed(BOTH)]).cover(0, masked), values)


def test_several_vectors_are_masked_by_the_same_masks_at_once(shared):
    shared(3)
    masks, expected = Masks(BOTH), stream(KEY, 5000) - stream(OTHER, 5000)
    zeros = np.zeros(5000, dtype=np.uint32)

    with ThreadPoolExecutor(4) as callers:
        assert all(np.array_equal(cells, expected) for cells in callers.map(lambda _: masks.cover(0, zeros), range(40)))


def test_an_error_in_any_thread_surfaces_and_the_masks_stand(shared, monkeypatch):
    shared(2)
    masks, zeros = Masks(BOTH), np.zeros(1000, dtype=np.uint32)

    def fail(*_):
        raise OSError("no cipher")

    with monkeypatch.context() as broken:
        broken.setattr(keystream._Streams, "add", fail)
        with pytest.raises(OSError, match="no cipher"):
            masks.cover(0, zeros)
    assert np.array_equal(masks.cover(0, zeros), stream(KEY, 1000) - stream(OTHER, 1000))


def test_a_block_begins_where_a_cipher_block_does():
    with pytest.raises(ValueError, match="multiple of 4"):
        Masks([Mask(KEY)]).cover(2, np.zeros(4, dtype=np.uint32))


def test_masks_do_not_print_their_keys():
    assert "key" not in repr(Mask(KEY))
    assert "Mask(" not in repr(Masks([Mask(KEY)]))
