"""How a party asks to be taken in: keys that stay, a request that may go anywhere, and nothing overwritten."""

import json
import stat

import pytest

from party.config import read_config
from party.console.command import main
from party.console.enrolling import enroll
from party.errors import PartyError
from protos.identity.certificates import fingerprint
from protos.identity.identity import read_key_file
from protos.identity.requests import read_request

FILE = """
name = "north"
[shard]
source = "notes.jsonl"
[policy]
epsilon = 10.0
delta = 1e-6
recipes = ["dped"]
"""
IDENTITY = '[identity]\ncertificate = "own/north.pem"\nkey = "own/north.key"\n'


@pytest.fixture
def party_file(tmp_path):
    """Writes a party file, with an identity unless told otherwise; its path."""

    def writes(identity=IDENTITY):
        path = tmp_path / "party.toml"
        path.write_text(FILE + identity)
        return path

    return writes


def test_enrolling_makes_keys_that_stay_and_a_request_without_them(party_file, tmp_path):
    made = enroll(read_config(party_file()), tmp_path)
    assert made.key == tmp_path / "own/north.key"
    assert made.request == tmp_path / "own/north.request.pem"
    assert not made.kept
    assert stat.S_IMODE(made.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.key.parent.stat().st_mode) == 0o700
    asked = read_request(made.request.read_bytes())
    assert (asked.name, asked.fingerprint) == ("north", made.fingerprint)
    transport, signing = read_key_file(made.key)
    assert fingerprint(signing.public_key()) == made.fingerprint
    assert fingerprint(asked.transport) == fingerprint(transport.public_key())
    assert b"PRIVATE" not in made.request.read_bytes()


def test_enrolling_again_keeps_the_keys_and_makes_the_request_anew(party_file, tmp_path):
    config = read_config(party_file())
    first = enroll(config, tmp_path)
    content = first.key.read_bytes()
    first.request.unlink()
    second = enroll(config, tmp_path)
    assert second.kept
    assert second.fingerprint == first.fingerprint
    assert first.key.read_bytes() == content
    assert read_request(first.request.read_bytes()).fingerprint == first.fingerprint


def test_keys_that_others_can_read_or_that_are_none_are_refused_and_left_alone(party_file, tmp_path):
    config = read_config(party_file())
    made = enroll(config, tmp_path)
    made.key.chmod(0o644)
    with pytest.raises(PartyError, match=r"party north: .*chmod 600"):
        enroll(config, tmp_path)
    made.key.chmod(0o600)
    made.key.write_bytes(b"something of somebody's")
    with pytest.raises(PartyError, match="does not hold a transport key"):
        enroll(config, tmp_path)
    assert made.key.read_bytes() == b"something of somebody's"


def test_without_an_identity_the_table_to_add_is_said(party_file, tmp_path):
    with pytest.raises(PartyError, match=r'has no \[identity\].*certificate = "north.pem", key = "north.key"'):
        enroll(read_config(party_file("")), tmp_path)


def test_a_place_that_cannot_be_written_is_named(party_file, tmp_path):
    (tmp_path / "own").write_text("a file where a folder should be")
    with pytest.raises(PartyError, match=r"party north cannot write .*own"):
        enroll(read_config(party_file()), tmp_path)


def test_the_command_says_what_to_read_out_and_what_to_do_next(party_file, tmp_path, capsys):
    path = party_file()
    assert main(["enroll", "--config", str(path)]) == 0
    said = capsys.readouterr().out
    told = read_request((tmp_path / "own/north.request.pem").read_bytes()).fingerprint
    assert told in said
    assert "telephone" in said
    assert "north.request.pem" in said
    assert main(["enroll", "--config", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == told
    assert main(["enroll", "--config", str(party_file(""))]) == 1
    assert "[identity]" in capsys.readouterr().err
