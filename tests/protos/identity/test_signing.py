"""What an end states: whole, of one kind, under its own certificate; every change is found."""

import dataclasses
import json
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from protos.identity.certificates import IdentityError, Role, pem_of
from protos.identity.identity import self_made
from protos.identity.signing import LONGEST, Signed, check, sign, signed_of
from protos.identity.validity import RevocationList

KIND = "conclave test 1"
FIELDS = {"party": "north", "list": [1, 2.5, None, True], "word": "naïve ☃", "nested": {"b": 1, "a": 2}}


def refused(signed, authority, kind=KIND, role=Role.PARTY, **asked):
    with pytest.raises(IdentityError) as error:
        check(signed, kind, authority=authority.certificate, role=role, **asked)
    return str(error.value)


def test_a_statement_travels_and_is_read_back_as_it_was_made(authority, party):
    signed = sign(party(), KIND, FIELDS)
    again = signed_of(signed.message())
    assert again == signed
    said = check(again, KIND, authority=authority.certificate, role=Role.PARTY, name="north")
    assert said == {"kind": KIND, **FIELDS}


def test_the_payload_is_canonical_json(party):
    payload = sign(party(), KIND, {"b": 1, "a": "ä"}).payload
    assert payload == '{"a":"ä","b":1,"kind":"conclave test 1"}'.encode()


def test_openssl_verifies_it_from_three_files(party, tmp_path):
    signed = sign(party(), KIND, FIELDS)
    (tmp_path / "payload.json").write_bytes(signed.payload)
    (tmp_path / "payload.sig").write_bytes(signed.signature)
    (tmp_path / "signer.pem").write_bytes(pem_of(x509.load_der_x509_certificate(signed.certificate)))

    def openssl(*words):
        return subprocess.run(["openssl", *words], cwd=tmp_path, capture_output=True, text=True, check=False)

    (tmp_path / "key.pem").write_text(openssl("x509", "-in", "signer.pem", "-pubkey", "-noout").stdout)
    verify = ("pkeyutl", "-verify", "-pubin", "-inkey", "key.pem", "-rawin", "-in", "payload.json")
    assert openssl(*verify, "-sigfile", "payload.sig").returncode == 0
    (tmp_path / "payload.json").write_bytes(signed.payload + b" ")
    assert openssl(*verify, "-sigfile", "payload.sig").returncode != 0


OWN = self_made("north", Role.PARTY, None)
SIGNED = sign(OWN, KIND, FIELDS)


@pytest.mark.slow
@given(
    part=st.sampled_from(["payload", "signature", "certificate"]), place=st.integers(0, 2**16), bit=st.integers(0, 7)
)
def test_one_flipped_bit_anywhere_is_found(part, place, bit):
    changed = bytearray(getattr(SIGNED, part))
    changed[place % len(changed)] ^= 1 << bit
    with pytest.raises(IdentityError):
        check(dataclasses.replace(SIGNED, **{part: bytes(changed)}), KIND, authority=OWN.authority, role=Role.PARTY)


def test_each_fault_has_a_sentence_of_its_own(authority, stranger, party, coordinator, tmp_path):
    own = party()
    signed = sign(own, KIND, FIELDS)
    now = datetime.now(UTC)
    (tmp_path / "revoked.pem").write_bytes(authority.revocation_list([own.signing.serial_number]))
    revoked = RevocationList(tmp_path / "revoked.pem", authority.certificate)
    payload = b'{"kind": "conclave test 1"}'
    spaced = dataclasses.replace(signed, payload=payload, signature=own.signing_key.sign(payload))
    twice = b'{"a":1,"a":2,"kind":"conclave test 1"}'
    doubled = dataclasses.replace(signed, payload=twice, signature=own.signing_key.sign(twice))
    transport = dataclasses.replace(signed, certificate=own.transport.public_bytes(Encoding.DER))
    found = {
        "does not bear the signature": refused(dataclasses.replace(signed, payload=signed.payload + b" "), authority),
        'is a "conclave test 1", not a "conclave other 1"': refused(signed, authority, "conclave other 1"),
        "was issued by another authority": refused(sign(party(by=stranger), KIND, FIELDS), authority),
        "where party south was expected": refused(signed, authority, name="south"),
        "was revoked": refused(signed, authority, revoked=revoked),
        "expired": refused(signed, authority, at=now + timedelta(days=400)),
        "is not valid before": refused(signed, authority, at=now - timedelta(hours=1)),
        "is not a party's for signing": refused(sign(coordinator(), KIND, FIELDS), authority),
        "is not canonical JSON": refused(spaced, authority),
        "is not for signing": refused(transport, authority),
        "cannot be read": refused(dataclasses.replace(signed, certificate=b"x"), authority),
    }
    for said, sentence in found.items():
        assert said in sentence
    assert "is not canonical JSON" in refused(doubled, authority)


def test_another_ends_certificate_beside_a_signature_is_found(authority, party):
    signed = sign(party(), KIND, FIELDS)
    other = sign(party("south"), KIND, FIELDS)
    assert "does not bear the signature" in refused(
        Signed(signed.payload, signed.signature, other.certificate), authority
    )


def test_what_is_no_canonical_json_is_not_signed(party):
    with pytest.raises(ValueError, match="JSON compliant"):
        sign(party(), KIND, {"epsilon": float("nan")})
    with pytest.raises(ValueError, match="kind"):
        sign(party(), KIND, {"kind": "another"})


def test_without_an_authority_the_signature_and_the_name_still_count(stranger, party):
    own = party(by=stranger)
    signed = sign(own, KIND, FIELDS)
    assert check(signed, KIND, authority=None, role=Role.PARTY, name="north")["word"] == "naïve ☃"
    with pytest.raises(IdentityError, match="south was expected"):
        check(signed, KIND, authority=None, role=Role.PARTY, name="south")


@pytest.mark.slow
@given(
    fields=st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | st.integers(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=5,
        ),
    )
)
def test_whatever_can_be_signed_can_be_checked(fields):
    fields.pop("kind", None)
    try:
        signed = sign(OWN, KIND, fields)
    except UnicodeEncodeError:
        return
    assert check(signed, KIND, authority=OWN.authority, role=Role.PARTY) == json.loads(signed.payload)


def test_a_statement_beyond_all_bounds_is_refused_before_it_is_read(authority, party):
    signed = sign(party(), KIND, {"list": [[]] * 400_000})
    assert len(signed.payload) > LONGEST
    assert "has at most 1,048,576" in refused(signed, authority)
