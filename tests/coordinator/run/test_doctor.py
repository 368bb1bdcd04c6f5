"""`coordinator doctor`: a machine before there is a plan, every line true of this machine or of one made for it."""

import json
import os
import socket
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

import pytest

from coordinator.console.command import main
from coordinator.identity import provisioning
from coordinator.run.checks import doctor, libraries
from protos.console.checklist import State
from protos.identity import validity
from protos.identity.requests import make_request, new_keys


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def federation(home):
    """A federation that issued certificates to north."""
    folder = home / "federation"
    provisioning.make(folder, "coordinator.test")
    path = home / "north.request.pem"
    path.write_bytes(make_request("north", *new_keys()))
    provisioning.sign(folder, path, told=provisioning.request_of(path).fingerprint)
    return folder


def found(folder=None):
    return {line.what: line for line in doctor.doctor(folder)}


def test_a_machine_that_is_well_ends_with_0(capsys):
    assert main(["doctor", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    record = json.loads(last)
    assert record["ok"]
    assert [line.split()[0] for line in lines if not line.startswith("warning")] == ["ok"] * (
        len(lines) - sum(line.startswith("warning") for line in lines)
    )
    whats = [line["what"] for line in record["lines"]]
    for what in (
        "python", "versions", "libraries", "extras", "cores", "memory", "disk", "temporary", "device", "store",
        "launcher", "network", "ports", "clock", "models",
    ):  # fmt: skip
        assert what in whats
    assert "federation" not in whats


def test_what_is_told_is_of_this_machine():
    lines = found()
    assert f"torch {metadata.version('torch')}" in lines["libraries"].said
    assert f"{len(os.sched_getaffinity(0))} processor" in lines["cores"].said
    assert "0 runs" in lines["store"].said


def test_a_library_that_is_missing_or_too_old_is_told_and_the_end_is_1(monkeypatch, capsys):
    needed = ["nowhere-to-be-found>=1", "numpy>=999", 'selenium>=1; extra == "minilm"']
    monkeypatch.setattr(libraries.metadata, "requires", lambda name: needed)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert f"nowhere-to-be-found is not installed; numpy {metadata.version('numpy')} is installed, and" in said
    assert "Conclave needs >=999" in said


def test_a_port_in_use_is_a_warning(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(doctor, "PORTS", {server.getsockname()[1]: "a party's node"})
        line = found()["ports"]
    assert (line.state, "is in use; a party's node has it by custom" in line.said) == (State.WARNING, True)


@pytest.mark.parametrize(
    ("name", "what", "state"), [("free_memory", "memory", State.WARNING), ("processors", "cores", State.WARNING)]
)
def test_little_is_told_of(monkeypatch, name, what, state):
    monkeypatch.setattr(doctor, name, lambda: 1)
    assert found()[what].state is state


def test_a_disk_without_room_is_told(monkeypatch):
    monkeypatch.setattr(doctor, "free_disk", lambda folder: 10**6)
    assert (found()["disk"].state, found()["temporary"].state) == (State.WARNING, State.TO_DO)


def test_a_store_that_cannot_be_written_ends_with_1(monkeypatch, home, capsys):
    (home / "file").touch()
    monkeypatch.setenv("CONCLAVE_HOME", str(home / "file" / "below"))
    assert main(["doctor"]) == 1
    assert "cannot be written" in capsys.readouterr().out


def test_a_clock_before_the_installation_is_told(monkeypatch):
    monkeypatch.setattr(doctor.time, "time", lambda: 10**9)
    assert "before Conclave was installed here" in found()["clock"].said


def test_models_that_are_kept_are_named(monkeypatch, home):
    from huggingface_hub import constants

    kept = home / "hub" / "models--sshleifer--tiny" / "snapshots" / "abc"
    kept.mkdir(parents=True)
    (kept / "config.json").touch()
    (home / "hub" / "models--begun--only" / "snapshots").mkdir(parents=True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    said = found()["models"].said
    assert "sshleifer/tiny" in said
    assert "begun" not in said


def test_a_federation_here_is_looked_at(federation):
    lines = found()
    assert {lines[what].state for what in ("federation", "keys", "authority", "certificate")} == {State.OK}
    assert "certificates for north" in lines["federation"].said
    assert "north" not in lines
    assert found(Path("federation")).keys() == lines.keys()


@pytest.mark.slow
def test_certificates_that_end_within_30_days_are_told_with_the_command_that_renews(federation, monkeypatch):
    provisioning.renew(federation, days=20)
    line = found()["certificate"]
    assert line.state is State.WARNING
    assert "coordinator provision renew --federation federation" in line.said
    monkeypatch.setattr(validity, "EXPIRING", timedelta(days=400))
    line = found()["north"]
    assert "sign north's request again" in line.said
    provisioning.revoke(federation, "north")
    assert "north" not in found()


def test_what_has_ended_or_not_begun_is_to_do(federation, monkeypatch):
    from coordinator.run.checks import identities

    class Late(datetime):
        at = datetime.now(UTC) + timedelta(days=500)

        @classmethod
        def now(cls, zone=None):
            return cls.at

    monkeypatch.setattr(identities, "datetime", Late)
    assert "it has ended" in found()["certificate"].said
    Late.at = datetime.now(UTC) - timedelta(days=500)
    assert "Set the one that is wrong" in found()["authority"].said


def test_a_key_that_others_may_read_and_a_damaged_file_are_to_do(federation, capsys):
    (federation / provisioning.COORDINATOR_KEY).chmod(0o644)
    (federation / provisioning.COORDINATOR).write_text("nonsense")
    lines = found()
    assert f"chmod 600 {Path('federation') / provisioning.COORDINATOR_KEY}" in lines["keys"].said
    assert "it is no certificate" in lines["certificate"].said
    assert main(["doctor"]) == 1


def test_a_folder_that_is_no_federation_is_told(home, capsys):
    assert main(["doctor", "--federation", "nowhere"]) == 1
    assert "is not the folder of a federation" in capsys.readouterr().out
