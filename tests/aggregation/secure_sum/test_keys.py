"""Two ends agree on a key that is bound to its purpose; secrets are drawn afresh and stay where they are."""

import pickle

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from aggregation.errors import Cheated
from aggregation.secure_sum.keys import Secrets, agree, commitment, derive, public_of
from aggregation.secure_sum.wire import pack


def test_both_ends_of_a_pair_agree():
    north, south = Secrets.draw(), Secrets.draw()
    one = agree(north.mask_key, public_of(south.mask_key.private_bytes_raw()), "south")
    assert one == agree(south.mask_key, public_of(north.mask_key.private_bytes_raw()), "north")


@pytest.mark.parametrize("forced", [bytes(32), (1).to_bytes(32, "little")])
def test_a_key_that_forces_the_secret_is_refused(forced):
    with pytest.raises(Cheated, match="south advertised a key that is no X25519 key") as refusal:
        agree(Secrets.draw().mask_key, forced, "south")
    assert refusal.value.who == "south"


def test_derived_keys_are_hkdf_and_differ_by_purpose():
    secret = bytes(range(32))
    theirs = HKDF(SHA256(), 32, salt=b"conclave secure sum v1", info=pack("shares", b"x")).derive(secret)
    assert derive(secret, "shares", b"x") == theirs
    assert derive(secret, "share", b"sx") != derive(secret, "shares", b"x")


def test_commitments_of_the_same_bytes_differ_by_what_they_are_for():
    assert commitment("seed", bytes(32)) != commitment("nonce", bytes(32))


def test_secrets_are_fresh_are_not_printed_and_cannot_be_sent():
    one, other = Secrets.draw(), Secrets.draw()
    assert one.seed != other.seed
    assert one.mask_key.private_bytes_raw() != other.mask_key.private_bytes_raw()
    assert repr(one) == "Secrets()"
    with pytest.raises(TypeError, match="stay in the memory"):
        pickle.dumps(one)
