"""Masks come off again, and any part of a mask can be had alone."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregation.secure_sum.keystream import _CHUNK, Mask, add_masks

KEY, OTHER = bytes(32), bytes(range(32))


def whole(masks, length):
    cells = np.zeros(length, dtype=np.uint32)
    add_masks(masks, 0, cells)
    return cells


def test_a_mask_is_aes_256_in_counter_mode():
    stream = Cipher(algorithms.AES256(OTHER), modes.CTR(bytes(16))).encryptor().update(bytes(400))
    assert np.array_equal(whole([Mask(OTHER)], 100), np.frombuffer(stream, dtype="<u4"))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 300), st.integers(0, 100))
def test_a_part_is_the_same_part_of_the_whole(quarter, size):
    cells = np.zeros(size, dtype=np.uint32)
    add_masks([Mask(KEY), Mask(OTHER, negative=True)], 4 * quarter, cells)
    assert np.array_equal(cells, whole([Mask(KEY), Mask(OTHER, negative=True)], 4 * quarter + size)[4 * quarter :])


@pytest.mark.parametrize("length", [1, _CHUNK - 1, _CHUNK, 2 * _CHUNK + 5])
def test_a_mask_and_its_opposite_leave_the_vector_as_it_was(length):
    values = np.random.default_rng(0).integers(0, 2**32, length, dtype=np.uint32)
    masked = values.copy()
    add_masks([Mask(KEY), Mask(OTHER, negative=True)], 0, masked)
    assert not np.array_equal(masked, values)
    add_masks([Mask(OTHER, negative=True).opposite, Mask(KEY).opposite], 0, masked)
    assert np.array_equal(masked, values)


def test_a_block_begins_where_a_cipher_block_does():
    with pytest.raises(ValueError, match="multiple of 4"):
        add_masks([Mask(KEY)], 2, np.zeros(4, dtype=np.uint32))


def test_a_mask_does_not_print_its_key():
    assert "key" not in repr(Mask(KEY))
