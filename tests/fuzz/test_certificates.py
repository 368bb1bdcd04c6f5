"""Certificates, keys, requests, lists and statements: read, or refused in a sentence; nothing damaged is believed."""

import re
import shutil
from base64 import b64decode, encodebytes
from contextlib import suppress

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from coordinator.errors import RunError
from coordinator.identity import provisioning
from party.config import check_config
from party.console.checking import check
from party.console.enrolling import enroll
from party.errors import PartyError
from protos.identity.authority import new_authority
from protos.identity.certificates import (
    IdentityError,
    Role,
    Use,
    fingerprint,
    read_bundle,
    read_certificate,
    subject_of,
)
from protos.identity.identity import load_identity, parse_identity
from protos.identity.requests import Request, key_pem, make_request, new_keys, read_keys, read_request
from protos.identity.signing import Signed, sign
from protos.identity.signing import check as check_statement
from protos.identity.validity import RevocationList, check_certificate

NAME = "north"


class Made:
    """One of everything that an authority, a coordinator and a party have."""

    def __init__(self):
        self.authority = new_authority("the tests' federation")
        self.transport, self.signing = new_keys()
        self.keys = key_pem(self.transport, self.signing)
        self.request = make_request(NAME, self.transport, self.signing)
        asked = Request(NAME, self.transport.public_key(), self.signing.public_key())
        self.bundle = self.authority.issue(asked, Role.PARTY).pem()
        self.other = self.authority.issue(asked, Role.COORDINATOR).pem()
        self.revoked = self.authority.revocation_list([1, 2**64, 7])
        self.identity = parse_identity(self.bundle, self.keys, role=Role.PARTY)
        self.der = self.identity.signing.public_bytes(Encoding.DER)
        encrypted = (Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
        self.odd_keys = [
            self.transport.private_bytes(*encrypted) + self.signing.private_bytes(*encrypted),
            self.transport.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()),
        ]


MADE = Made()
_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----\n(.*?)\n?-----END \1-----\n?", re.DOTALL)


def pems(hostile, *valid):
    """PEM files damaged as text, or inside: one block's bytes are damaged and wrapped again, blocks change places."""

    def make(rng):
        if rng.random() < 0.3:
            return hostile.damage(rng, *valid)
        blocks = [[kind, b64decode(body)] for kind, body in _BLOCK.findall(rng.choice(valid))]
        ders = [der for _, der in blocks]
        for _ in range(rng.randint(1, 2)):
            place = rng.randrange(len(blocks))
            match rng.randrange(8):
                case 0:
                    blocks.append(blocks[place])
                case 1 if len(blocks) > 1:
                    del blocks[place]
                case 2:
                    blocks.reverse()
                case 3:
                    blocks[place] = [rng.choice([b"CERTIFICATE", b"PRIVATE KEY", b"X509 CRL"]), blocks[place][1]]
                case 4 | 5:
                    blocks[place] = [blocks[place][0], _one_byte(rng, blocks[place][1])]
                case _:
                    blocks[place] = [blocks[place][0], hostile.damage(rng, *ders)]
        return b"".join(
            b"-----BEGIN %b-----\n%b-----END %b-----\n" % (kind, encodebytes(der), kind) for kind, der in blocks
        )

    return hostile.made(make)


def _one_byte(rng, der):
    place = rng.randrange(max(1, len(der)))
    return der[:place] + bytes([rng.randrange(256)]) + der[place + 1 :]


def refused(hostile, kind, act):
    """What `act` gives, or None where it raised what it may."""
    try:
        return act()
    except kind as error:
        hostile.check_sentence(error)
        return None


@pytest.mark.slow
def test_a_bundle_is_of_the_one_who_asked_or_is_refused(fuzz, hostile):
    @fuzz(pems(hostile, MADE.bundle, MADE.other))
    def _(pem):
        bundle = refused(hostile, IdentityError, lambda: read_bundle(pem, "north.pem"))
        if bundle is not None:
            for certificate, use in ((bundle.transport, Use.TRANSPORT), (bundle.signing, Use.SIGNING)):
                subject_of(certificate)
                fingerprint(certificate)
                for authority in (None, bundle.authority, MADE.authority.certificate):
                    refused(
                        hostile,
                        IdentityError,
                        lambda c=certificate, a=authority, u=use: check_certificate(
                            c, authority=a, role=Role.PARTY, use=u, name=NAME
                        ),
                    )
        identity = refused(hostile, IdentityError, lambda: parse_identity(pem, MADE.keys, role=Role.PARTY))
        if identity is not None:
            assert identity.fingerprint == MADE.identity.fingerprint


def test_a_certificate_is_read_whole_or_refused(fuzz, hostile):
    ders = [b64decode(body) for pem in (MADE.bundle, MADE.other) for _, body in _BLOCK.findall(pem)]

    @fuzz(hostile.made(lambda rng: rng.choice([hostile.damage(rng, *ders), _one_byte(rng, rng.choice(ders))])))
    def _(der):
        certificate = refused(hostile, IdentityError, lambda: read_certificate(der))
        if certificate is None:
            return
        fingerprint(certificate)
        subject_of(certificate)
        vouched = refused(
            hostile,
            IdentityError,
            lambda: check_certificate(
                certificate, authority=MADE.authority.certificate, role=Role.PARTY, use=Use.SIGNING
            ),
        )
        assert vouched is None


def test_a_request_is_its_makers_or_is_refused(fuzz, hostile):
    @fuzz(pems(hostile, MADE.request, make_request("coordinator.example", MADE.transport, MADE.signing)))
    def _(pem):
        request = refused(hostile, IdentityError, lambda: read_request(pem))
        assert request is None or request.fingerprint == MADE.identity.fingerprint


def test_private_keys_are_two_of_the_right_kinds_or_refused(fuzz, hostile):
    @fuzz(pems(hostile, MADE.keys, *MADE.odd_keys), examples=MADE.odd_keys, share=0.5)
    def _(pem):
        refused(hostile, IdentityError, lambda: read_keys(pem, "north.key"))


def test_a_list_of_revoked_certificates_is_the_authoritys_or_is_refused(fuzz, hostile, tmp_path):
    path = tmp_path / "revoked.pem"
    stranger = new_authority("another").revocation_list([3])

    @fuzz(pems(hostile, MADE.revoked, stranger), share=0.4)
    def _(pem):
        path.write_bytes(pem)
        found = refused(hostile, IdentityError, lambda: RevocationList(path, MADE.authority.certificate).serials)
        assert found is None or found == {1, 2**64, 7}


def test_an_identity_of_damaged_files_is_whole_or_refused(fuzz, hostile, tmp_path):
    names = ("north.pem", "north.key", "revoked.pem")
    valid = dict(zip(names, (MADE.bundle, MADE.keys, MADE.revoked), strict=True))
    for name, content in valid.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    damaged = {name: pems(hostile, content) for name, content in valid.items()}

    def load():
        bundle, keys, revoked = (tmp_path / name for name in names)
        return load_identity(bundle, keys, role=Role.PARTY, name=NAME, authority=None, revoked=revoked)

    for name, strategy in damaged.items():

        @fuzz(strategy, share=0.15)
        def _(content, name=name):
            (tmp_path / name).write_bytes(content)
            identity = refused(hostile, IdentityError, load)
            assert identity is None or identity.fingerprint == MADE.identity.fingerprint

        (tmp_path / name).write_bytes(valid[name])


def test_a_statement_is_what_was_signed_or_is_refused(fuzz, hostile):
    kind, fields = "conclave test 1", {"party": NAME, "list": [1, 2.5, None, True], "nested": {"b": 1}}
    signed = sign(MADE.identity, kind, fields)

    def make(rng):
        if rng.random() < 0.5:
            odd = hostile.damage_json(rng, {"kind": kind, **fields})
            payload = rng.choice([hostile.as_text(odd), hostile.damage(rng, signed.payload), b"[" * 100_000])
            return Signed(payload, MADE.signing.sign(payload), signed.certificate)
        parts = [signed.payload, signed.signature, signed.certificate]
        place = rng.randrange(3)
        parts[place] = hostile.damage(rng, parts[place])
        return Signed(*parts)

    @fuzz(hostile.made(make), share=0.5)
    def _(given):
        said = refused(
            hostile,
            IdentityError,
            lambda: check_statement(given, kind, authority=MADE.authority.certificate, role=Role.PARTY, name=NAME),
        )
        assert said is None or said["kind"] == kind


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory):
    """A federation's folder, with one party certified."""
    folder = tmp_path_factory.mktemp("provisioned") / "federation"
    provisioning.make(folder, "coordinator.example")
    request = folder.parent / "north.request.pem"
    request.write_bytes(MADE.request)
    provisioning.sign(folder, request, told=MADE.identity.fingerprint)
    return folder


@pytest.mark.slow
def test_a_damaged_folder_of_a_federation_is_used_whole_or_refused(fuzz, hostile, provisioned, tmp_path):
    folder = shutil.copytree(provisioned, tmp_path / "federation")
    request = tmp_path / "north.request.pem"
    request.write_bytes(MADE.request)
    paths = sorted(path.relative_to(provisioned).as_posix() for path in provisioned.rglob("*.*"))
    contents = {path: (provisioned / path).read_bytes() for path in paths}
    odd_names = ("north.x.pem", "north..pem", "north.pem", "north.\u00b2.pem", "north.99999999999999999999.pem", ".pem")

    def make(rng):
        path = rng.choice(paths)
        if rng.random() < 0.2:
            return f"{provisioning.ISSUED}/{rng.choice(odd_names)}", MADE.bundle
        if rng.random() < 0.1:
            return path, rng.choice(MADE.odd_keys)
        blocks = [b64decode(body) for _, body in _BLOCK.findall(contents[path])]
        kinds = [kind for kind, _ in _BLOCK.findall(contents[path])]
        place = rng.randrange(len(blocks))
        blocks[place] = _one_byte(rng, blocks[place])
        made = [
            b"-----BEGIN %b-----\n%b-----END %b-----\n" % (kind, encodebytes(der), kind)
            for kind, der in zip(kinds, blocks, strict=True)
        ]
        return path, rng.choice([b"".join(made), hostile.damage(rng, contents[path])])

    @fuzz(hostile.made(make), share=0.1)
    def _(change):
        path, content = change
        (folder / path).write_bytes(content)
        for act in (
            lambda: provisioning.ensure(folder),
            lambda: provisioning.authority_fingerprint(folder),
            lambda: provisioning.vouched(folder, NAME, make_request(NAME, *new_keys())),
            lambda: provisioning.issued_to(folder),
            lambda: provisioning.sign(folder, request, told=MADE.identity.fingerprint),
            lambda: provisioning.revoke(folder, NAME),
            lambda: provisioning.renew(folder),
        ):
            refused(hostile, RunError, act)
        shutil.rmtree(folder)
        shutil.copytree(provisioned, folder)


def test_a_request_file_that_is_damaged_is_refused_in_a_sentence(fuzz, hostile, tmp_path):
    path = tmp_path / "north.request.pem"

    @fuzz(pems(hostile, MADE.request), share=0.5)
    def _(pem):
        path.write_bytes(pem)
        refused(hostile, RunError, lambda: provisioning.request_of(path))


@pytest.mark.parametrize("name", ["*", "../*", "/etc/passwd", "", "a\0b", "[", "x" * 300, "\x1b[2J"])
def test_nothing_is_revoked_under_a_name_that_is_none(hostile, provisioned, tmp_path, name):
    folder = shutil.copytree(provisioned, tmp_path / "federation")
    with pytest.raises(RunError) as caught:
        provisioning.revoke(folder, name)
    hostile.check_sentence(caught.value)


def party(**identity):
    shard = {"source": "notes.jsonl"}
    policy = {"epsilon": 20.0, "delta": 1e-6, "recipes": ["dped"]}
    return check_config(
        {"name": NAME, "shard": shard, "policy": policy, "identity": {"certificate": "c", "key": "k"} | identity}, "x"
    )


def test_a_party_with_damaged_keys_enrolls_with_whole_ones_or_not_at_all(fuzz, hostile, tmp_path):
    config = party(certificate="north.pem", key="north.key")

    @fuzz(pems(hostile, MADE.keys), share=0.5)
    def _(pem):
        (tmp_path / "north.key").write_bytes(pem)
        (tmp_path / "north.key").chmod(0o600)
        enrolled = refused(hostile, PartyError, lambda: enroll(config, tmp_path))
        if enrolled is not None:
            assert read_request(enrolled.request.read_bytes()).fingerprint == enrolled.fingerprint
        assert (tmp_path / "north.key").read_bytes() == pem


@pytest.mark.parametrize("key", ["a\0b", "x" * 300, "/dev/null/x", ".", "/proc/nobody/key"])
def test_a_party_whose_files_cannot_be_enrolls_with_a_sentence(hostile, tmp_path, key):
    with pytest.raises(PartyError) as caught:
        enroll(party(key=key, certificate=key), tmp_path)
    hostile.check_sentence(caught.value)


def test_what_a_party_looks_at_before_it_serves_ends_in_lines_whatever_its_files_hold(fuzz, hostile, tmp_path):
    (tmp_path / "notes.jsonl").write_text('{"text": "apple"}\n')
    (tmp_path / "party.toml").write_text(
        'name = "north"\nlisten = "127.0.0.1:0"\n[shard]\nsource = "notes.jsonl"\n[policy]\nepsilon = 20.0\n'
        'delta = 1e-6\nrecipes = ["dped"]\n[identity]\ncertificate = "north.pem"\nkey = "north.key"\n'
        f'revoked = "revoked.pem"\nauthority = "{fingerprint(MADE.authority.certificate)}"\n'
    )
    valid = {"north.pem": MADE.bundle, "north.key": MADE.keys, "revoked.pem": MADE.revoked}
    for name, content in valid.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)

    def make(rng):
        name = rng.choice(sorted(valid))
        kinds = [(kind, b64decode(body)) for kind, body in _BLOCK.findall(valid[name])]
        place = rng.randrange(len(kinds))
        kinds[place] = (kinds[place][0], _one_byte(rng, kinds[place][1]))
        return name, b"".join(b"-----BEGIN %b-----\n%b-----END %b-----\n" % (k, encodebytes(d), k) for k, d in kinds)

    with suppress(ImportError):
        import pyarrow.parquet  # noqa: F401 - or its first import would count as what an input takes

    version = b64decode(_BLOCK.findall(MADE.bundle)[0][1]).replace(bytes.fromhex("a003020102"), b"\xa0\x03\x02\x01\x37")
    examples = [("north.pem", b"-----BEGIN CERTIFICATE-----\n%b-----END CERTIFICATE-----\n" % encodebytes(version))]

    @fuzz(hostile.made(make), share=0.05, examples=examples)
    def _(change):
        name, content = change
        (tmp_path / name).write_bytes(content)
        for line in check(tmp_path / "party.toml"):
            hostile.check_sentence(line.said)
        (tmp_path / name).write_bytes(valid[name])


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J"])
def test_a_certificate_of_a_name_that_cannot_be_shown_is_nobody_s_and_its_sentence_can(hostile, name):
    stranger = new_authority(name)
    asked = Request(NAME, MADE.transport.public_key(), MADE.signing.public_key())
    certificate = stranger.issue(asked, Role.PARTY).signing
    for given in (stranger.certificate, certificate):
        with pytest.raises(IdentityError) as caught:
            check_certificate(given, authority=MADE.authority.certificate, role=Role.PARTY, use=Use.SIGNING)
        hostile.check_sentence(caught.value)
    with pytest.raises(IdentityError) as caught:
        check_certificate(MADE.identity.signing, authority=stranger.certificate, role=Role.PARTY, use=Use.SIGNING)
    hostile.check_sentence(caught.value)


@pytest.mark.parametrize("keys", MADE.odd_keys)
def test_an_authority_s_key_under_a_password_or_of_another_format_is_refused(hostile, provisioned, tmp_path, keys):
    folder = shutil.copytree(provisioned, tmp_path / "federation")
    (folder / provisioning.CA_KEY).write_bytes(keys)
    with pytest.raises(RunError, match="do not belong together") as caught:
        provisioning.vouched(folder, NAME, make_request(NAME, *new_keys()))
    hostile.check_sentence(caught.value)


@pytest.mark.parametrize("name", ["north.x.pem", "north..pem", "north.\u00b2.pem", f"north.{'9' * 20}.pem"])
def test_a_stray_copy_of_a_bundle_does_not_keep_others_from_being_issued(provisioned, tmp_path, name):
    folder = shutil.copytree(provisioned, tmp_path / "federation")
    (folder / provisioning.ISSUED / name).write_bytes(MADE.bundle)
    request = tmp_path / "north.request.pem"
    request.write_bytes(MADE.request)
    assert provisioning.sign(folder, request, told=MADE.identity.fingerprint).name == NAME
