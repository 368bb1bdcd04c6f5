"""A federation's folder: what is in it, whom it vouches for, and what it refuses to sign."""

import json
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from coordinator.console.command import main
from coordinator.errors import RunError
from coordinator.identity import provisioning
from protos.identity.certificates import IdentityError, Role, Use, fingerprint, read_bundle
from protos.identity.identity import load_identity, parse_identity, write_private
from protos.identity.requests import key_pem, make_request, new_keys
from protos.identity.validity import check_certificate

NAME = "coordinator.consortium.example"


@pytest.fixture
def federation(tmp_path):
    """The folder of a federation."""
    provisioning.make(tmp_path / "federation", NAME)
    return tmp_path / "federation"


def own(folder, **asked):
    return load_identity(
        folder / "coordinator.pem",
        folder / "coordinator.key",
        role=Role.COORDINATOR,
        authority=provisioning.authority_fingerprint(folder),
        revoked=folder / "revoked.pem",
        **asked,
    )


def request(folder, name="north", keys=None):
    """A party's key file and its request; returns the request's path."""
    keys = keys or new_keys()
    write_private(folder / f"{name}.key", key_pem(*keys), replace=True)
    path = folder / f"{name}.request.pem"
    path.write_bytes(make_request(name, *keys))
    return path


def signed(folder, path, **asked):
    return provisioning.sign(folder, path, told=provisioning.request_of(path).fingerprint, **asked)


def party(folder, federation, name="north"):
    """What a party reads of the files that it has."""
    return load_identity(
        folder / f"{name}.pem",
        folder / f"{name}.key",
        role=Role.PARTY,
        name=name,
        authority=provisioning.authority_fingerprint(federation),
        revoked=federation / "revoked.pem",
    )


def test_a_federation_is_an_authority_and_a_coordinators_own_identity(tmp_path):
    folder = tmp_path / "federation"
    told = provisioning.make(folder, NAME)
    assert {path.name for path in folder.iterdir()} == {
        "ca.pem", "ca.key", "coordinator.pem", "coordinator.key", "revoked.pem", "issued",
    }  # fmt: skip
    assert told == provisioning.authority_fingerprint(folder)
    assert own(folder).name == NAME
    assert provisioning.issued_to(folder) == []
    assert [path.name for path in tmp_path.iterdir()] == ["federation"], "nothing is left beside it"


def test_keys_are_for_their_owner_alone(federation):
    for name in ("ca.key", "coordinator.key"):
        assert stat.S_IMODE((federation / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(federation.stat().st_mode) == 0o700
    (federation / "ca.key").chmod(0o644)
    with pytest.raises(RunError, match="chmod 600"):
        provisioning.vouched(federation, "north", make_request("north", *new_keys()))


def test_a_folder_that_holds_anything_is_left_alone(federation, tmp_path):
    before = (federation / "ca.key").read_bytes()
    for taken in (federation, tmp_path):
        with pytest.raises(RunError, match="exists already and was left alone"):
            provisioning.make(taken, NAME)
    assert (federation / "ca.key").read_bytes() == before
    with pytest.raises(RunError, match="is not a name that a coordinator can have"):
        provisioning.make(tmp_path / "other", "Not A Name")
    (tmp_path / "empty").mkdir()
    provisioning.make(tmp_path / "empty", NAME)


def test_a_signed_request_is_an_identity_of_the_party(federation, tmp_path):
    issued = signed(federation, request(tmp_path), days=30)
    assert issued.path == tmp_path / "north.pem"
    found = party(tmp_path, federation)
    assert (found.name, found.fingerprint) == ("north", issued.fingerprint)
    assert found.signing.not_valid_after_utc < datetime.now(UTC) + timedelta(days=31)
    assert provisioning.issued_to(federation) == ["north"]


def test_a_request_whose_fingerprint_differs_from_what_was_told_is_not_signed(federation, tmp_path):
    path = request(tmp_path)
    with pytest.raises(RunError, match=r"and SHA256:00 was given\. Nothing was signed.*by telephone"):
        provisioning.sign(federation, path, told="SHA256:00")
    assert not (tmp_path / "north.pem").exists()
    assert provisioning.issued_to(federation) == []


def test_what_is_no_request_is_named(federation, tmp_path):
    with pytest.raises(RunError, match=r"north\.request\.pem cannot be read"):
        provisioning.request_of(tmp_path / "north.request.pem")
    (tmp_path / "north.request.pem").write_bytes(b"hello")
    with pytest.raises(RunError, match=r"north\.request\.pem: this is not a whole request"):
        provisioning.sign(federation, tmp_path / "north.request.pem", told="")


def test_the_same_request_is_signed_again_and_pins_stay(federation, tmp_path):
    path = request(tmp_path)
    first, second = signed(federation, path, days=1), signed(federation, path)
    assert first.fingerprint == second.fingerprint
    assert second.until > first.until
    assert party(tmp_path, federation).fingerprint == first.fingerprint


def test_another_key_takes_a_partys_place_only_once_the_first_is_revoked(federation, tmp_path):
    signed(federation, request(tmp_path))
    usurping = request(tmp_path)
    with pytest.raises(RunError, match=r"has certificates for another signing key.*provision revoke north"):
        signed(federation, usurping)
    assert provisioning.revoke(federation, "north") == 2
    signed(federation, usurping)
    assert party(tmp_path, federation).name == "north"


def test_revoking_takes_back_everything_ever_issued_to_a_name_and_nothing_else(federation, tmp_path):
    path = request(tmp_path)
    signed(federation, path)
    signed(federation, path)
    signed(federation, request(tmp_path, "south"))
    assert provisioning.revoke(federation, "north") == 4
    with pytest.raises(IdentityError, match="was revoked"):
        party(tmp_path, federation)
    assert party(tmp_path, federation, "south").name == "south"
    assert provisioning.revoke(federation, "south") == 2
    assert provisioning.revoke(federation, "south") == 0
    with pytest.raises(IdentityError, match="was revoked"):
        party(tmp_path, federation)
    with pytest.raises(RunError, match=r"nothing was issued to west in .*Issued to: north, south\."):
        provisioning.revoke(federation, "west")


def test_a_key_that_was_revoked_is_never_signed_again(federation, tmp_path):
    keys = new_keys()
    path = request(tmp_path, keys=keys)
    signed(federation, path)
    provisioning.revoke(federation, "north")
    with pytest.raises(RunError, match="keys that were revoked"):
        signed(federation, path)
    with pytest.raises(RunError, match="keys that were revoked"):
        signed(federation, request(tmp_path, keys=(keys[0], new_keys()[1])))
    signed(federation, request(tmp_path))
    assert party(tmp_path, federation).name == "north"


def test_the_coordinators_own_are_renewed_for_the_same_keys(federation):
    before = own(federation)
    provisioning.renew(federation)
    after = own(federation)
    assert after.fingerprint == before.fingerprint
    assert after.signing.serial_number != before.signing.serial_number


def test_a_revoked_coordinator_renews_with_fresh_keys_alone(federation):
    before = own(federation)
    assert provisioning.revoke(federation, NAME) == 2
    with pytest.raises(IdentityError, match="was revoked"):
        own(federation)
    with pytest.raises(RunError, match="--new-keys"):
        provisioning.renew(federation)
    provisioning.renew(federation, fresh_keys=True)
    assert own(federation).fingerprint != before.fingerprint


def test_a_party_called_like_the_coordinators_copies_cannot_be(federation, tmp_path):
    path = tmp_path / "request.pem"
    path.write_bytes(make_request("_coordinator", *new_keys()))
    with pytest.raises(RunError, match="is not a name that a party can have"):
        provisioning.request_of(path)


def test_a_folder_that_is_none_or_is_damaged_is_named(federation, tmp_path):
    request = make_request("north", *new_keys())
    with pytest.raises(RunError, match="is not the folder of a federation"):
        provisioning.vouched(tmp_path / "nothing", "north", request)
    provisioning.make(tmp_path / "other", NAME)
    (federation / "ca.pem").write_bytes((tmp_path / "other/ca.pem").read_bytes())
    with pytest.raises(RunError, match="do not belong together"):
        provisioning.vouched(federation, "north", request)


def test_a_party_that_a_run_starts_gets_no_certificates_in_another_name(federation):
    with pytest.raises(RunError, match="party north asked for certificates of south, and got none"):
        provisioning.vouched(federation, "north", make_request("south", *new_keys()))


def test_what_a_run_vouches_for_is_kept_nowhere(federation):
    before = sorted(path.name for path in federation.rglob("*"))
    keys = new_keys()
    bundle = provisioning.vouched(federation, "north", make_request("north", *keys))
    found = parse_identity(bundle, key_pem(*keys), role=Role.PARTY, name="north")
    authority = own(federation).authority
    check_certificate(found.signing, authority=authority, role=Role.PARTY, name="north", use=Use.SIGNING)
    assert sorted(path.name for path in federation.rglob("*")) == before


def test_the_local_folder_is_made_once_and_renewed_when_it_nears_its_end(tmp_path):
    folder = tmp_path / "home" / "identity"
    provisioning.ensure(folder)
    first = own(folder)
    provisioning.ensure(folder)
    assert own(folder).signing == first.signing
    provisioning.renew(folder, days=10)
    provisioning.ensure(folder)
    assert own(folder).fingerprint == first.fingerprint
    assert own(folder).signing.not_valid_after_utc > datetime.now(UTC) + timedelta(days=300)


def test_the_commands_make_sign_revoke_and_renew(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["provision", "federation", "--name", NAME, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["authority"]
    assert told == provisioning.authority_fingerprint(tmp_path / "federation")
    path = request(tmp_path)
    asked = provisioning.request_of(path).fingerprint
    folder = ["--federation", "federation"]
    assert main(["provision", "sign", path.name, *folder, "--fingerprint", asked]) == 0
    assert "send north.pem to north" in capsys.readouterr().out
    assert party(tmp_path, tmp_path / "federation").fingerprint == asked
    assert main(["provision", "renew", *folder]) == 0
    assert NAME in capsys.readouterr().out
    assert main(["provision", "revoke", "north", *folder]) == 0
    assert "revoked 2 certificates of north" in capsys.readouterr().out


def test_options_may_come_before_the_folder_to_make(tmp_path, capsys):
    assert main(["provision", "--name", NAME, str(tmp_path / "federation")]) == 0
    told = provisioning.authority_fingerprint(tmp_path / "federation")
    assert told in capsys.readouterr().out
    assert main(["provision", str(tmp_path / "other")]) == 2
    assert "--name" in capsys.readouterr().err


@pytest.mark.slow
def test_nothing_is_signed_where_nobody_can_be_asked(federation, tmp_path):
    path = request(tmp_path)
    command = [
        sys.executable,
        "-c",
        "import sys; from coordinator.console.command import main; sys.exit(main(sys.argv[1:]))",
    ]
    asked = [*command, "provision", "sign", str(path), "--federation", str(federation)]
    done = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "reads out by telephone" in done.stderr
    assert provisioning.request_of(path).fingerprint not in done.stdout + done.stderr, "it is to be heard, not copied"
    assert not (tmp_path / "north.pem").exists()


@pytest.mark.parametrize(("word", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_on_a_terminal_a_person_compares_the_fingerprint(federation, tmp_path, capsys, monkeypatch, word, code):
    path = request(tmp_path)
    (tmp_path / "said").write_text(f"{word}\n")
    with (tmp_path / "said").open() as said:
        monkeypatch.setattr(sys, "stdin", said)
        monkeypatch.setattr("coordinator.console.provision._at_a_terminal", lambda: True)
        assert main(["provision", "sign", str(path), "--federation", str(federation)]) == code
    assert provisioning.request_of(path).fingerprint in capsys.readouterr().out
    assert (tmp_path / "north.pem").exists() == (code == 0)


def submitter(folder, federation, path, **asked):
    told = provisioning.compared(provisioning.request_of(path), Role.SUBMITTER)
    return provisioning.sign(federation, path, told=told, role=Role.SUBMITTER, **asked)


def test_a_submitter_is_no_party_and_a_party_no_submitter(federation, tmp_path):
    path = request(tmp_path, "ann")
    submitter(tmp_path, federation, path)
    found = load_identity(
        tmp_path / "ann.pem",
        tmp_path / "ann.key",
        role=Role.SUBMITTER,
        authority=None,
        revoked=federation / "revoked.pem",
    )
    for role in (Role.PARTY, Role.COORDINATOR, Role.SERVER):
        for use, certificate in ((Use.TRANSPORT, found.transport), (Use.SIGNING, found.signing)):
            with pytest.raises(IdentityError, match="is not a"):
                check_certificate(certificate, authority=found.authority, role=role, use=use)
    with pytest.raises(RunError, match="ann is the name of a submitter here, and cannot be that of a party"):
        signed(federation, path)
    assert provisioning.revoke(federation, "ann") == 2


def test_a_submitters_fingerprint_is_that_of_the_key_that_its_calls_show(federation, tmp_path):
    path = request(tmp_path, "ann")
    with pytest.raises(RunError, match="`coordinator enroll` printed there"):
        provisioning.sign(federation, path, told=provisioning.request_of(path).fingerprint, role=Role.SUBMITTER)
    assert submitter(tmp_path, federation, path).fingerprint == fingerprint(own_bundle(tmp_path / "ann.pem").transport)


def own_bundle(path):
    return read_bundle(path.read_bytes(), str(path))


def test_a_coordinator_that_stays_up_has_certificates_of_a_server(federation):
    made = provisioning.serve(federation)
    assert stat.S_IMODE((federation / "server.key").stat().st_mode) == 0o600
    found = load_identity(
        federation / "server.pem", federation / "server.key", role=Role.SERVER, authority=None, revoked=None
    )
    assert found.name == NAME
    again = provisioning.serve(federation, days=30)
    assert (again.fingerprint, again.until < made.until) == (made.fingerprint, True), "its keys stay"
    provisioning.renew(federation)
    renewed = own_bundle(federation / "server.pem")
    assert fingerprint(renewed.transport) == made.fingerprint
    assert renewed.transport.not_valid_after_utc > again.until
    provisioning.renew(federation, fresh_keys=True)
    assert fingerprint(own_bundle(federation / "server.pem").transport) != made.fingerprint
