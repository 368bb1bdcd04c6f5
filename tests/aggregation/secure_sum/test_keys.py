"""Two ends agree on a key that is bound to its purpose; secrets are drawn afresh and stay where they are."""

import pickle

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from aggregation.errors import Cheated
from aggregation.secure_sum.keys import Secrets, agree, commitment, derive, public_of, verified
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


def test_claims_checked_ahead_are_not_checked_again_and_hold_or_not_as_before():
    asked = []

    def verify(*claim):
        asked.append(claim)
        return claim[2] == b"good"

    claims = [("north", b"x", b"good"), ("south", b"x", b"bad")]
    ahead = verified(verify, iter(claims))
    assert sorted(asked) == claims
    assert [ahead(*claim) for claim in claims] == [True, False]
    assert len(asked) == 2
    assert ahead("south", b"x", b"good")
    assert not ahead("north", b"x", b"other")
    assert len(asked) == 4
