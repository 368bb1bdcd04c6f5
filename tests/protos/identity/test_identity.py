"""An end's own files: keys that only it can read, certificates that are its own, and identities of its own making."""

import os
import stat
import threading
from datetime import UTC, datetime, timedelta

import pytest

import protos.identity.identity
from protos.identity.certificates import IdentityError, Role, fingerprint, read_bundle
from protos.identity.identity import load_identity, parse_identity, self_made, write_private
from protos.identity.requests import Request, key_pem, new_keys


@pytest.fixture
def files(authority, tmp_path):
    """Writes a party's bundle and key file and a revocation list; returns how to load them."""

    def writes(*, by=authority, role=Role.PARTY, revoked=(), mode=0o600, keys=None, **when):
        transport_key, signing_key = new_keys()
        request = Request("north", transport_key.public_key(), signing_key.public_key())
        bundle = by.issue(request, role, **when)
        (tmp_path / "north.pem").write_bytes(bundle.pem())
        write_private(tmp_path / "north.key", key_pem(*(keys or (transport_key, signing_key))), replace=True)
        (tmp_path / "north.key").chmod(mode)
        serials = [getattr(bundle, each).serial_number for each in revoked]
        (tmp_path / "revoked.pem").write_bytes(by.revocation_list(serials))

        def loads(**asked):
            known = {"role": Role.PARTY, "authority": fingerprint(authority.certificate)}
            known["revoked"] = tmp_path / "revoked.pem"
            return load_identity(tmp_path / "north.pem", tmp_path / "north.key", **known | asked)

        return loads

    return writes


def refused(loads, **asked):
    with pytest.raises(IdentityError) as error:
        loads(**asked)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_identity_is_read_from_its_files(files, authority):
    own = files()(name="north")
    assert (own.name, own.role, own.self_made) == ("north", Role.PARTY, False)
    assert own.fingerprint == fingerprint(own.signing)
    assert own.authority == authority.certificate
    assert not own.revoked.revoked(own.transport)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620, 0o601])
def test_a_key_that_others_can_reach_is_refused_with_the_command_that_mends_it(files, tmp_path, mode):
    loads = files(mode=mode)
    said = refused(loads)
    assert f"chmod 600 {tmp_path / 'north.key'}" in said
    assert f"{mode:04o}" in said
    (tmp_path / "north.key").chmod(0o600)
    assert loads().name == "north"


def test_each_wrong_file_has_a_sentence_of_its_own(files, authority, stranger, tmp_path):
    own = fingerprint(authority.certificate)
    other = files(by=stranger)
    found = {f"and {own} was expected": refused(other)}
    found["the transport key in"] = refused(files(keys=(new_keys()[0], new_keys()[1])))
    found["was revoked"] = refused(files(revoked=["signing"]))
    found["where party south was expected"] = refused(files(), name="south")
    found["is not a party's"] = refused(files(role=Role.COORDINATOR))
    found["expired"] = refused(files(not_before=datetime.now(UTC) - timedelta(days=9), days=5))
    found["is not valid before"] = refused(files(not_before=datetime.now(UTC) + timedelta(hours=1)))
    (tmp_path / "north.key").write_bytes(b"nothing")
    found["does not hold a transport key"] = refused(lambda: _broken(tmp_path, own))
    (tmp_path / "north.key").unlink()
    found["there is no such file"] = refused(lambda: _broken(tmp_path, own))
    for said, sentence in found.items():
        assert said in sentence
    assert "party enroll" in found["there is no such file"]


def _broken(folder, authority):
    return load_identity(folder / "north.pem", folder / "north.key", role=Role.PARTY, authority=authority, revoked=None)


def test_a_revoked_transport_certificate_counts_as_much_as_a_signing_one(files):
    assert "was revoked" in refused(files(revoked=["transport"]))


def test_the_half_of_another_key_is_named(files):
    transport_key, _ = new_keys()
    said = refused(files(keys=(transport_key, new_keys()[1])))
    assert "was issued for" in said


def test_what_was_issued_in_memory_is_checked_too(authority):
    transport_key, signing_key = new_keys()
    bundle = authority.issue(Request("north", transport_key.public_key(), signing_key.public_key()), Role.PARTY)
    assert parse_identity(bundle.pem(), key_pem(transport_key, signing_key), role=Role.PARTY).name == "north"
    with pytest.raises(IdentityError, match="the transport key"):
        parse_identity(bundle.pem(), key_pem(*new_keys()), role=Role.PARTY)
    with pytest.raises(IdentityError, match="where party south was expected"):
        parse_identity(bundle.pem(), key_pem(transport_key, signing_key), role=Role.PARTY, name="south")


def test_a_private_file_is_0600_whatever_the_umask_and_is_never_overwritten(tmp_path):
    path = tmp_path / "key"
    for umask in (0o000, 0o277):
        before = os.umask(umask)
        try:
            write_private(path, b"first")
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(IdentityError, match="exists already and was left alone"):
            write_private(path, b"second")
        assert path.read_bytes() == b"first"
        path.unlink()
    write_private(path, b"first")
    write_private(path, b"second", replace=True)
    assert path.read_bytes() == b"second"
    assert [each.name for each in tmp_path.iterdir()] == ["key"]


def test_a_private_file_that_cannot_be_written_whole_is_not_there(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_private(tmp_path / "key", b"secret")
    assert list(tmp_path.iterdir()) == []


def test_a_self_made_identity_lives_on_in_its_folder(tmp_path):
    folder = tmp_path / "identity"
    first, second = (self_made("north", Role.PARTY, folder) for _ in range(2))
    assert first.self_made
    assert first.signing == second.signing
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in folder.iterdir())
    assert self_made("north", Role.PARTY, None).fingerprint != first.fingerprint


def test_a_self_made_identity_keeps_its_keys_under_another_name_and_when_its_certificate_ends(tmp_path, monkeypatch):
    first = self_made("north", Role.PARTY, tmp_path / "identity")
    renamed = self_made("south", Role.PARTY, tmp_path / "identity")
    assert (renamed.name, renamed.fingerprint) == ("south", first.fingerprint)
    monkeypatch.setattr(protos.identity.identity, "SELF_MADE_DAYS", 30)
    other = self_made("north", Role.PARTY, tmp_path / "identity")
    monkeypatch.undo()
    renewed = self_made("north", Role.PARTY, tmp_path / "identity")
    assert renewed.fingerprint == other.fingerprint == first.fingerprint
    assert renewed.signing.not_valid_after_utc > other.signing.not_valid_after_utc
    assert read_bundle((tmp_path / "identity/self-made.pem").read_bytes(), "kept").signing == renewed.signing


def test_two_processes_that_make_it_at_once_end_with_one_key(tmp_path):
    found = []
    makers = [
        threading.Thread(target=lambda: found.append(self_made("north", Role.PARTY, tmp_path / "identity").fingerprint))
        for _ in range(4)
    ]
    for each in makers:
        each.start()
    for each in makers:
        each.join()
    assert len(found) == 4
    assert len(set(found)) == 1


def test_a_self_made_key_that_others_can_read_is_refused(tmp_path):
    self_made("north", Role.PARTY, tmp_path)
    (tmp_path / "self-made.key").chmod(0o644)
    with pytest.raises(IdentityError, match="chmod 600"):
        self_made("north", Role.PARTY, tmp_path)
