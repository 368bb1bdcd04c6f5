"""Certificates: what is issued, what is refused and by which sentence, and what is taken back."""

import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from protos.identity.certificates import (
    SIGNING_USAGE,
    IdentityError,
    Role,
    Use,
    check_name,
    fingerprint,
    pem_of,
    read_bundle,
    subject_of,
)
from protos.identity.requests import Request, key_pem, make_request, new_keys, read_keys, read_request
from protos.identity.validity import RevocationList, check_certificate

NOW = datetime.now(UTC)


def refused(certificate, authority, role=Role.PARTY, use=Use.TRANSPORT, **asked):
    with pytest.raises(IdentityError) as error:
        check_certificate(certificate, authority=authority.certificate, role=role, use=use, **asked)
    assert "\n" not in str(error.value)
    return str(error.value)


def extension(certificate, kind):
    return certificate.extensions.get_extension_for_class(kind)


@pytest.mark.parametrize("role", list(Role))
def test_an_end_has_a_certificate_for_each_use_and_neither_passes_for_another(authority, end, role):
    own = end(role)
    for certificate, use in ((own.transport, Use.TRANSPORT), (own.signing, Use.SIGNING)):
        check_certificate(certificate, authority=authority.certificate, role=role, name=own.name, use=use)
        assert subject_of(certificate) == (role, own.name, use)
        other_use = Use.SIGNING if use is Use.TRANSPORT else Use.TRANSPORT
        assert f"is not a {role}'s for {other_use}" in refused(certificate, authority, role, other_use)
        for other_role in set(Role) - {role}:
            assert f"is not a {other_role}'s for {use}" in refused(certificate, authority, other_role, use)


def test_a_party_is_a_server_a_coordinator_a_client_and_signing_is_for_no_connection(party, coordinator):
    usages = {
        Use.TRANSPORT: [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
        Use.SIGNING: [SIGNING_USAGE, SIGNING_USAGE],
    }
    for own, place in ((party(), 0), (coordinator(), 1)):
        for certificate, use in ((own.transport, Use.TRANSPORT), (own.signing, Use.SIGNING)):
            usage = extension(certificate, x509.ExtendedKeyUsage)
            assert list(usage.value) == [usages[use][place]]
            assert usage.critical == (use is Use.SIGNING)
            assert not extension(certificate, x509.BasicConstraints).value.ca
    names = extension(party("south").transport, x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["south.party.conclave"]


def test_openssl_accepts_the_chain_and_no_signing_certificate_as_a_server(party, authority, tmp_path):
    own = party()
    (tmp_path / "ca.pem").write_bytes(pem_of(authority.certificate))
    for use, certificate in ((Use.TRANSPORT, own.transport), (Use.SIGNING, own.signing)):
        (tmp_path / f"{use}.pem").write_bytes(pem_of(certificate))
        command = ["openssl", "verify", "-CAfile", tmp_path / "ca.pem", "-purpose", "sslserver"]
        found = subprocess.run([*command, tmp_path / f"{use}.pem"], capture_output=True, text=True, check=False)
        assert (found.returncode == 0) == (use is Use.TRANSPORT), found.stderr


def test_each_fault_has_a_sentence_of_its_own_that_says_what_to_do(authority, stranger, party, tmp_path):
    good = party()
    (tmp_path / "revoked.pem").write_bytes(authority.revocation_list([good.transport.serial_number]))
    revoked = RevocationList(tmp_path / "revoked.pem", authority.certificate)
    early = party(not_before=NOW + timedelta(hours=1)).transport
    late = party(not_before=NOW - timedelta(days=10), days=5).transport
    found = {
        "foreign": refused(party(by=stranger).transport, authority),
        "early": refused(early, authority),
        "late": refused(late, authority),
        "revoked": refused(good.transport, authority, revoked=revoked),
        "name": refused(good.transport, authority, name="south"),
        "use": refused(good.signing, authority),
    }
    assert len(set(found.values())) == len(found)
    assert "another authority" in found["foreign"]
    assert "coordinator provision sign" in found["foreign"]
    assert fingerprint(authority.certificate) in found["foreign"]
    assert "is not valid before" in found["early"]
    assert "One of the clocks may be wrong" in found["early"]
    assert found["early"].count(" UTC") == 2
    assert "expired at" in found["late"]
    assert "coordinator provision sign" in found["late"]
    assert "was revoked" in found["revoked"]
    assert "where party south was expected" in found["name"]
    for sentence in found.values():
        assert sentence.startswith("the certificate of party north")


def test_an_expired_coordinator_renews_itself(authority, coordinator):
    own = coordinator(not_before=NOW - timedelta(days=10), days=5)
    assert "coordinator provision renew" in refused(own.transport, authority, Role.COORDINATOR)


def test_a_certificate_is_judged_at_the_time_asked_for(authority, party):
    own = party(not_before=NOW - timedelta(days=10), days=5)
    asked = {"authority": authority.certificate, "role": Role.PARTY, "use": Use.TRANSPORT}
    check_certificate(own.transport, **asked, at=NOW - timedelta(days=7))
    with pytest.raises(IdentityError, match="expired"):
        check_certificate(own.transport, **asked, at=NOW)


def test_a_certificate_is_valid_for_machines_whose_clock_is_minutes_behind(authority, party):
    asked = {"authority": authority.certificate, "role": Role.PARTY, "use": Use.TRANSPORT}
    check_certificate(party().transport, **asked, at=datetime.now(UTC) - timedelta(minutes=4))


def test_without_an_authority_everything_else_is_still_checked(stranger, party):
    own = party(by=stranger)
    check_certificate(own.transport, authority=None, role=Role.PARTY, use=Use.TRANSPORT)
    with pytest.raises(IdentityError, match="where party south was expected"):
        check_certificate(own.transport, authority=None, role=Role.PARTY, use=Use.TRANSPORT, name="south")


def test_an_authority_is_no_end(authority):
    assert "is not a party's" in refused(authority.certificate, authority)


def test_a_fingerprint_is_that_of_the_key_and_survives_a_renewal(authority, tmp_path):
    transport, signing = new_keys()
    request = Request("north", transport.public_key(), signing.public_key())
    first, second = (authority.issue(request, Role.PARTY) for _ in range(2))
    assert first.signing.serial_number != second.signing.serial_number
    assert fingerprint(first.signing) == fingerprint(second.signing) == request.fingerprint
    (tmp_path / "key.der").write_bytes(
        signing.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    )
    digest = subprocess.run(
        ["openssl", "sha256", "-r", tmp_path / "key.der"], capture_output=True, text=True, check=True
    )
    assert request.fingerprint == f"SHA256:{digest.stdout.split()[0]}"


def test_a_request_says_who_asks_for_which_keys(authority):
    transport, signing = new_keys()
    asked = read_request(make_request("north", transport, signing))
    assert asked.name == "north"
    assert asked.fingerprint == fingerprint(signing.public_key())
    assert fingerprint(authority.issue(asked, Role.PARTY).transport) == fingerprint(transport.public_key())


def test_a_request_that_is_not_whole_is_refused():
    transport, signing = new_keys()
    good = make_request("north", transport, signing)
    other = make_request("south", *new_keys())
    half = len(good) // 2
    ending = b"-----END CERTIFICATE REQUEST-----\n"
    first, second = (each + ending for each in good.split(ending)[:2])
    bare = x509.load_pem_x509_csr(second)
    forged = bytearray(bare.public_bytes(Encoding.DER))
    forged[-1] ^= 1
    unsigned = x509.load_der_x509_csr(bytes(forged)).public_bytes(Encoding.PEM)
    weak = make_request("north", generate_private_key(SECP384R1()), signing)
    cases = {
        b"": "not a whole request",
        good[:half]: "not a whole request",
        first + unsigned: "not a whole request",
        good + other: "not a whole request",
        first + other.split(ending)[1] + ending: "do not belong together",
        second + first: "do not belong together",
        weak: "do not belong together",
        make_request("North", transport, signing): '"North" is not a name',
        make_request("no.rth", transport, signing): "is not a name that a party can have",
    }
    for pem, said in cases.items():
        with pytest.raises(IdentityError, match=said):
            read_request(pem)


def test_names_that_cannot_be_are_refused():
    for name in ("", "North", "-north", "north-", "a.b", "a:b", "x" * 41, "north\n"):
        with pytest.raises(IdentityError, match="is not a name"):
            check_name(name, Role.PARTY)
    for name in ("", "Example", "a:b", ".example", "x" * 65):
        with pytest.raises(IdentityError, match="is not a name"):
            check_name(name, Role.COORDINATOR)
    check_name("coordinator.consortium.example", Role.COORDINATOR)


def test_files_of_certificates_and_keys_are_read_back_or_refused_by_name(authority):
    transport, signing = new_keys()
    bundle = authority.issue(Request("north", transport.public_key(), signing.public_key()), Role.PARTY)
    assert read_bundle(bundle.pem(), "north.pem") == bundle
    read = read_keys(key_pem(transport, signing), "north.key")
    assert [fingerprint(each.public_key()) for each in read] == [
        fingerprint(each.public_key()) for each in (transport, signing)
    ]
    unvouched = pem_of(bundle.transport) + pem_of(bundle.signing) + pem_of(bundle.signing)
    for broken in (b"", bundle.pem()[:-40], unvouched, pem_of(bundle.transport)):
        with pytest.raises(IdentityError, match=r"north\.pem is not a bundle"):
            read_bundle(broken, "north.pem")
    for broken in (
        b"",
        key_pem(transport),
        key_pem(signing, transport),
        key_pem(generate_private_key(SECP384R1()), signing),
    ):
        with pytest.raises(IdentityError, match=r"north\.key does not hold"):
            read_keys(broken, "north.key")


def test_a_revocation_list_is_read_again_when_it_changes(authority, party, tmp_path):
    own, path = party(), tmp_path / "revoked.pem"
    path.write_bytes(authority.revocation_list([]))
    revocations = RevocationList(path, authority.certificate)
    assert not revocations.revoked(own.signing)
    path.write_bytes(authority.revocation_list([own.signing.serial_number]))
    assert revocations.revoked(own.signing)
    assert not revocations.revoked(own.transport)


def test_a_revocation_list_that_cannot_be_believed_lets_nobody_in(authority, stranger, party, tmp_path):
    own, path = party(), tmp_path / "revoked.pem"
    with pytest.raises(IdentityError, match=r"revoked\.pem cannot be read"):
        RevocationList(path, authority.certificate)
    path.write_bytes(authority.revocation_list([]))
    revocations = RevocationList(path, authority.certificate)
    for content in (stranger.revocation_list([]), b"-----BEGIN", b""):
        path.write_bytes(content)
        with pytest.raises(IdentityError, match="is not a list of revoked certificates that this federation's"):
            revocations.revoked(own.signing)
    path.unlink()
    with pytest.raises(IdentityError, match=r"cannot be read.*Take revoked\.pem"):
        revocations.revoked(own.signing)


def test_openssl_finds_a_revoked_certificate_in_the_list(authority, party, tmp_path):
    own = party()
    files = {
        "ca.pem": pem_of(authority.certificate),
        "own.pem": pem_of(own.transport),
        "revoked.pem": authority.revocation_list([own.transport.serial_number]),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    command = ["openssl", "verify", "-crl_check", "-CAfile", "ca.pem", "-CRLfile", "revoked.pem", "own.pem"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "certificate revoked" in found.stderr


def test_no_key_shows_in_what_is_printed(authority, party):
    for shown in (repr(authority), repr(party())):
        assert "key=" not in shown
