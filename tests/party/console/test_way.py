"""`party check` of a party that dials: the way to the gate is tried, and what is wrong with it is told apart."""

import contextlib
import dataclasses
import functools
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from coordinator.transport.dialled import gate as gates
from coordinator.transport.dialled import places
from coordinator.transport.dialled.way import opened_gate
from party.config import read_config
from party.console.checking import check
from party.console.checks import way
from party.console.command import main
from party.dialling.destination import destination
from party.dialling.dialler import dialling
from party.dialling.reaching import Met
from party.node.identity import own_identity
from protos import PROTOCOL_VERSION, software_version
from protos.console.checklist import State
from protos.dialling.greeting import check_proof
from protos.dialling.sockets import socket_folder
from protos.identity import validity
from protos.identity.authority import new_authority
from protos.identity.certificates import Role
from protos.identity.identity import parse_identity
from protos.identity.requests import Request, key_pem, new_keys

HOUR = 3600.0


def coordinator_of(authority):
    transport, signing = new_keys()
    request = Request("coordinator.here", transport.public_key(), signing.public_key())
    bundle = authority.issue(request, Role.COORDINATOR)
    return parse_identity(bundle.pem(), key_pem(transport, signing), role=Role.COORDINATOR)


@pytest.fixture
def gate(authority):
    """This federation's gate, open for north."""
    with opened_gate("127.0.0.1:0", ["north"], coordinator_of(authority)) as ways:
        yield ways["north"].gate


def found(path, connect, proxy="none"):
    return {line.what: line for line in check(path, connect, proxy)}


def wrong(lines, what):
    """What the only line says that is to be done."""
    assert {each for each, line in lines.items() if line.state is State.TO_DO} == {what}, lines
    return lines[what].said


@contextlib.contextmanager
def program(answer):
    """A program that answers the first bytes of a connection in plain text and hangs up; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def talk():
            with contextlib.suppress(OSError):
                while True:
                    with listening.accept()[0] as raw:
                        raw.settimeout(5)
                        raw.recv(4096)
                        raw.sendall(answer)

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def unused():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_the_way_to_the_gate_and_back_is_tried_and_takes_no_place_there(site, gate):
    lines = found(site(), gate.address)
    assert {line.state for line in lines.values()} == {State.OK}, lines
    assert lines["gate"].said.startswith(f"{gate.address} let this party in: coordinator.here, valid until ")
    assert lines["gate clock"].said.endswith("this machine's")
    assert lines["gate versions"].said == f"Conclave {software_version()}, protocol {PROTOCOL_VERSION}"
    assert "port" not in lines
    assert not gate.places["north"].there
    assert "its `party check` came through" in gate.absent("north")


def test_the_partys_file_says_where_it_dials_and_the_command_line_goes_first(site, gate, capsys):
    path = site(top=f'connect = "{gate.address}"')
    assert main(["check", "--config", str(path), "--proxy", "none"]) == 0
    assert f"{gate.address} let this party in" in capsys.readouterr().out
    assert main(["check", "--config", str(path), "--connect", unused(), "--proxy", "none"]) == 1
    assert "nothing listens at" in capsys.readouterr().out
    assert main(["check", "--config", str(site()), "--proxy", "http://proxy:1"]) == 1
    assert "it goes with --connect, or connect in its file" in capsys.readouterr().out


@pytest.mark.parametrize("connect", ["gate.example", "gate.example:0"])
def test_what_is_no_address_in_the_partys_file_is_told_with_its_line(site, connect):
    (line, _) = check(site(top=f'connect = "{connect}"'))
    assert (line.what, line.state) == ("party file", State.TO_DO)
    assert "connect" in line.said


def test_a_node_that_is_connected_already_is_told_and_left_alone(site, gate, tmp_path):
    path = site()
    own = own_identity(read_config(path), tmp_path / "north.party", tmp_path, "", None)
    with socket_folder() as folder, dialling(destination(gate.address, "none"), own, folder / "node.sock"):
        deadline = time.monotonic() + 10
        while not gate.places["north"].there:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        lines = found(path, gate.address)
        assert {line.state for line in lines.values()} == {State.OK}, lines
        assert lines["gate"].said.endswith("; a node of this party is connected there now")
        assert gate.places["north"].there


def test_an_address_that_is_wrong_or_closed_is_told(site):
    path = site()
    assert "there is no host nowhere.invalid. Mend --connect" in wrong(found(path, "nowhere.invalid:7444"), "gate")
    closed = unused()
    said = wrong(found(path, closed), "gate")
    assert f"nothing listens at {closed} now" in said
    assert "compare --connect" in said
    assert "a host and a port" in wrong(found(path, "nowhere"), "gate")


def test_another_program_at_the_gates_port_is_told(site):
    with program(b"HTTP/1.1 400 Bad Request\r\n\r\n") as at:
        assert "speaks plain text, and a gate speaks TLS" in wrong(found(site(), at), "gate")


PROXIES = {
    "a password": (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "wants a user and a password (407"),
    "not allowed": (b"HTTP/1.1 403 Forbidden\r\n\r\n", "Ask whoever runs it to allow CONNECT"),
    "no proxy": (b"SSH-2.0-OpenSSH\r\n", "is not an HTTP proxy"),
}


@pytest.mark.parametrize(("answer", "words"), PROXIES.values(), ids=PROXIES)
def test_a_proxy_that_does_not_connect_is_told_from_the_gate(site, gate, answer, words):
    with program(answer) as at:
        lines = found(site(), gate.address, f"http://{at}")
    assert words in wrong(lines, "proxy")
    assert "gate" not in lines


def test_a_proxy_that_connects_is_told_from_what_is_wrong_behind_it(site, gate):
    with program(b"HTTP/1.1 200 OK\r\n\r\n") as at:
        lines = found(site(), gate.address, f"http://{at}")
    assert lines["proxy"].state is State.OK
    assert f"{gate.address} (through the proxy {at}) hung up" in wrong(lines, "gate")


def test_a_coordinator_of_another_federation_is_told_and_hears_no_name(site):
    with opened_gate("127.0.0.1:0", ["north"], coordinator_of(new_authority("elsewhere"))) as ways:
        gate = ways["north"].gate
        said = wrong(found(site(), gate.address), "gate")
        assert gate.places["north"].refused is None
        assert gate.places["north"].looked is None
    assert "is not the coordinator of this party's federation" in said
    assert "was issued by another authority" in said


def test_a_party_of_another_federation_is_turned_away_with_the_reason(site, authority):
    mixed = dataclasses.replace(coordinator_of(authority), authority=new_authority("elsewhere").certificate)
    with opened_gate("127.0.0.1:0", ["north"], mixed) as ways:
        said = wrong(found(site(), ways["north"].gate.address), "gate")
    assert "turned this party away: the certificate of party north was issued by another authority" in said


def test_a_party_that_the_plan_does_not_name_is_turned_away(site, authority):
    with opened_gate("127.0.0.1:0", ["south"], coordinator_of(authority)) as ways:
        assert "party north is not one that dials" in wrong(found(site(), ways["south"].gate.address), "gate")


def test_a_clock_that_is_an_hour_off_is_a_warning_with_its_seconds(site, gate, monkeypatch):
    monkeypatch.setattr(gates, "time", SimpleNamespace(time=lambda: time.time() + HOUR, monotonic=time.monotonic))
    line = found(site(), gate.address)["gate clock"]
    assert line.state is State.WARNING
    assert line.said.startswith(("3,600 s ahead of this machine's", "3,599 s", "3,601 s"))
    assert "set the one that is wrong by a time server" in line.said.lower()


def test_a_clock_by_which_certificates_are_not_valid_is_to_be_set(site, gate, monkeypatch):
    early = functools.partial(check_proof, at=datetime.now(UTC) - timedelta(hours=1))
    monkeypatch.setattr(gates, "check_proof", early)
    said = wrong(found(site(), gate.address), "gate")
    assert "turned this party away: the certificate of party north is not valid before" in said
    assert "set both by a time server" in said


def test_a_gate_that_takes_what_its_own_clock_forbids_is_no_reason_to_go_on(site, tmp_path, authority):
    own = own_identity(read_config(site()), tmp_path / "north.party", tmp_path, "", None)
    for ahead, state in ((-HOUR, State.TO_DO), (400 * 24 * HOUR, State.TO_DO), (HOUR, State.WARNING), (59.0, State.OK)):
        assert way._clock(Met(authority.certificate, ahead), own).state is state
    assert way._clock(Met(authority.certificate, None), own).state is State.WARNING


def test_a_coordinators_certificate_that_ends_soon_is_a_warning(site, gate, monkeypatch):
    monkeypatch.setattr(validity, "EXPIRING", timedelta(days=366))
    lines = found(site(days=800), gate.address)
    assert [what for what, line in lines.items() if line.state is State.WARNING] == ["gate"]
    assert "coordinator provision renew" in lines["gate"].said


@pytest.mark.parametrize(
    ("about", "state", "words"),
    [
        ({"software": "9.9.9", "protocol": PROTOCOL_VERSION}, State.OK, "Conclave 9.9.9, protocol"),
        ({"software": "9.9.9", "protocol": PROTOCOL_VERSION + 1}, State.TO_DO, "Install the same version at both ends"),
        ({"software": "0.1", "protocol": PROTOCOL_VERSION - 1}, State.TO_DO, f"protocol {PROTOCOL_VERSION - 1}; here"),
        ({}, State.WARNING, "of an earlier version, and does not say which"),
        ({"software": "\x1b[2J" * 100, "protocol": True}, State.WARNING, "does not say which"),
        ({"software": [1], "protocol": -3}, State.WARNING, "does not say which"),
    ],
)
def test_the_versions_of_both_ends_are_named(site, gate, monkeypatch, about, state, words):
    monkeypatch.setattr(gates, "about", lambda: about)
    line = found(site(), gate.address)["gate versions"]
    assert line.state is state
    assert words in line.said
    assert f"Conclave {software_version()}" in line.said
    assert line.said.isprintable()


def test_a_gate_of_before_takes_the_check_for_a_node_and_forgets_it(site, gate, monkeypatch):
    monkeypatch.setattr(gates, "hello_of", lambda fields: dataclasses.replace(gates_hello(fields), looks=False))
    monkeypatch.setattr(places, "about", dict)
    lines = found(site(), gate.address)
    assert lines["gate"].state is State.OK
    deadline = time.monotonic() + 5
    while gate.places["north"].there:
        assert time.monotonic() < deadline
        time.sleep(0.01)


gates_hello = gates.hello_of
