"""Who a party and a gate can show that they are."""

import base64
import time

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from protos.dialling.frames import Garbled
from protos.dialling.greeting import (
    Hello,
    apart,
    check_gate,
    check_proof,
    hello_of,
    new_challenge,
    new_hello,
    new_process,
    prove,
)
from protos.identity.authority import new_authority
from protos.identity.certificates import IdentityError, Role
from protos.identity.identity import parse_identity
from protos.identity.requests import Request, key_pem, new_keys
from protos.identity.signing import DESCRIBED, sign

AUTHORITY = new_authority("here")


def identity_of(name, role=Role.PARTY, authority=AUTHORITY):
    transport, signing = new_keys()
    bundle = authority.issue(Request(name, transport.public_key(), signing.public_key()), role)
    return parse_identity(bundle.pem(), key_pem(transport, signing), role=role)


NORTH, GATE = identity_of("north"), identity_of("coordinator.here", Role.COORDINATOR)


def test_a_proof_is_for_its_challenge_its_gate_and_its_name():
    challenge, hello = new_challenge(), new_hello("north", new_process())
    fields = prove(NORTH, challenge, GATE.transport)
    check_proof(fields, hello, challenge, GATE)
    with pytest.raises(IdentityError, match="repeats old answers"):
        check_proof(fields, hello, new_challenge(), GATE)
    other = identity_of("coordinator.other", Role.COORDINATOR)
    with pytest.raises(IdentityError, match="repeats old answers"):
        check_proof(fields, hello, challenge, other)
    with pytest.raises(IdentityError, match="party south was expected"):
        check_proof(fields, new_hello("south", new_process()), challenge, GATE)
    stranger = prove(identity_of("north", authority=new_authority("elsewhere")), challenge, GATE.transport)
    with pytest.raises(IdentityError, match="another authority"):
        check_proof(stranger, hello, challenge, GATE)


def test_no_other_statement_of_a_party_is_a_proof():
    """A coordinator has statements of its parties from `Describe`: none opens a gate in their name."""

    challenge, hello = new_challenge(), new_hello("north", new_process())
    signed = sign(NORTH, DESCRIBED, {"nonce": challenge, "challenge": challenge, "name": "north"})
    parts = {"payload": signed.payload, "signature": signed.signature, "certificate": signed.certificate}
    fields = {name: base64.b64encode(part).decode() for name, part in parts.items()}
    with pytest.raises(IdentityError, match="one statement was put in place of another"):
        check_proof(fields, hello, challenge, GATE)


@pytest.mark.parametrize("identity", [identity_of("south"), identity_of("coordinator.x", Role.COORDINATOR)])
def test_a_gate_is_a_coordinator(identity):
    shown = identity.transport.public_bytes(Encoding.DER)
    if identity.role is Role.COORDINATOR:
        assert check_gate(shown, NORTH) == identity.transport
    else:
        with pytest.raises(IdentityError, match="is not a coordinator's"):
            check_gate(shown, NORTH)


@pytest.mark.parametrize("shown", [None, b"", b"\x30\x82"])
def test_what_is_no_certificate_is_no_gate(shown):
    with pytest.raises(IdentityError):
        check_gate(shown, NORTH)


@pytest.mark.parametrize(
    "change",
    [
        {"magic": "other"}, {"version": "1"}, {"name": "North"}, {"name": "x" * 41}, {"name": None}, {"process": "0"},
        {"process": 3}, {"clock": "now"},
    ],
)  # fmt: skip
def test_what_is_no_hello_is_garbled(change):
    whole = new_hello("north", new_process()).fields()
    assert isinstance(hello_of(whole), Hello)
    with pytest.raises(Garbled):
        hello_of(whole | change)


def test_clocks_that_are_far_apart_are_told_and_no_number_is_none():
    assert apart(time.time() + 3) == ""
    assert "3,600 s ahead of the one here" in apart(time.time() + 3600.2)
    assert "3,600 s behind the one here" in apart(int(time.time()) - 3599.5)
    for odd in (None, "now", float("nan"), float("inf"), 10**400):
        assert apart(odd) == ""
