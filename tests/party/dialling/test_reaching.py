"""What a party is told when its gate cannot be reached: every cause in words of its own."""

import asyncio
import socket
import time
from datetime import UTC, datetime, timedelta

import pytest

from coordinator.transport.dialled.gate import Gate
from party.dialling import proxies, reaching
from party.dialling.destination import destination
from party.dialling.reaching import Unreached, reach
from protos.console.mistakes import SettingsError
from protos.dialling.frames import Kind, frame, spoken
from protos.dialling.greeting import new_challenge, new_process
from protos.identity import validity
from protos.identity.authority import new_authority
from protos.identity.certificates import Role

WELCOME = frame(Kind.WELCOME, b"{}")


@pytest.fixture
async def gate(identities, folder):
    made = Gate("127.0.0.1:0", ["north"], identities.coordinator, folder)
    await made.open()
    yield made
    await made.close()


async def why(identity, address, proxy="none"):
    with pytest.raises(Unreached) as error:
        await reach(destination(address, proxy), identity, new_process())
    return str(error.value)


def unused():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def silent(reader, writer):
    await asyncio.sleep(60)


async def test_a_gate_lets_its_party_in(gate, identities):
    stream, met = await reach(destination(gate.address, "none"), identities.north, new_process())
    assert met.certificate == identities.coordinator.transport
    assert abs(met.ahead) < 5
    assert await gate.places["north"].here(1)
    stream.close()


async def test_a_closed_port_is_told_with_when_a_gate_is_open(identities):
    said = await why(identities.north, unused())
    assert "nothing listens at 127.0.0.1:" in said
    assert "A gate is open while its coordinator runs or checks a plan" in said


async def test_a_host_that_is_none_is_told(identities):
    assert "there is no host nowhere.invalid. Mend --connect." in await why(identities.north, "nowhere.invalid:7444")


async def test_an_address_that_swallows_everything_is_told(identities, monkeypatch):
    monkeypatch.setattr(reaching, "CONNECT_SECONDS", 0.3)

    async def swallowed(*_):
        await asyncio.sleep(60)

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", swallowed)
    assert "A firewall may let nothing out to it" in await why(identities.north, "192.0.2.1:7444")


async def test_a_program_in_plain_text_is_told(identities, listens):
    async def http(reader, writer):
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    assert "speaks plain text, and a gate speaks TLS" in await why(identities.north, await listens(http))


async def test_one_that_says_nothing_at_all_is_told(identities, listens, monkeypatch):
    monkeypatch.setattr(reaching, "GREETING_SECONDS", 0.3)
    assert "did not answer in TLS for" in await why(identities.north, await listens(silent))


async def test_one_that_hangs_up_is_told(identities, listens):
    async def hangs_up(reader, writer):
        await reader.read(1)

    assert "hung up during the TLS handshake" in await why(identities.north, await listens(hangs_up))


ALERTS = {"15030300020246": "older TLS than 1.3", "15030300020228": "refused the TLS handshake (handshake failure)"}


@pytest.mark.parametrize(("alert", "said"), ALERTS.items(), ids=["version", "failure"])
async def test_an_older_tls_and_one_that_refuses_are_told(identities, listens, alert, said):
    async def alerts(reader, writer):
        await reader.read(10)
        writer.write(bytes.fromhex(alert))
        await writer.drain()
        await reader.read()

    assert said in await why(identities.north, await listens(alerts))


@pytest.mark.parametrize("role", [Role.COORDINATOR, Role.PARTY])
async def test_a_coordinator_of_another_federation_is_told_from_the_pinned_one(identities, listens, shows, role):
    name = "coordinator.here" if role is Role.COORDINATOR else "east"
    stranger = identities.of(name, role, new_authority("elsewhere"))
    said = await why(identities.north, await listens(silent, shows(stranger)))
    assert "is not the coordinator of this party's federation" in said
    assert "was issued by another authority" in said


async def test_a_party_of_the_same_federation_is_no_gate(identities, listens, shows):
    said = await why(identities.north, await listens(silent, shows(identities.of("east"))))
    assert "the certificate of party east is not a coordinator's" in said


async def test_a_party_says_nothing_to_a_gate_that_is_not_its_coordinators(identities, listens, shows):
    heard = []

    async def listening(reader, writer):
        heard.append(await asyncio.wait_for(reader.read(), 5))

    stranger = identities.of("coordinator.here", Role.COORDINATOR, new_authority("elsewhere"))
    await why(identities.north, await listens(listening, shows(stranger)))
    await asyncio.sleep(0.1)
    assert heard in ([], [b""])


async def test_an_own_clock_that_is_off_is_told(identities, listens, shows, monkeypatch):
    class Late(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz or UTC) - timedelta(hours=1)

    at = await listens(silent, shows(identities.coordinator))
    monkeypatch.setattr(validity, "datetime", Late)
    said = await why(identities.north, at)
    assert "is not valid before" in said
    assert "set both by a time server" in said


async def test_the_gates_reason_is_passed_on_and_is_no_escape_code(identities, listens, shows):
    async def refuses(reader, writer):
        await reader.read(10)
        writer.write(spoken(Kind.REFUSED, why="\x1b[2Jgo away\u202e" + "!" * 3000))
        await writer.drain()
        await reader.read()

    said = await why(identities.north, await listens(refuses, shows(identities.coordinator)))
    assert "turned this party away: ?[2Jgo away?!!!" in said
    assert len(said) < 1300
    assert said.isprintable()


async def test_a_clock_of_the_gate_that_is_far_off_is_told_with_its_reason(identities, listens, shows):
    async def refuses(reader, writer):
        await reader.read(10)
        writer.write(spoken(Kind.REFUSED, why="expired.", clock=time.time() + 3600))
        await writer.drain()
        await reader.read()

    said = await why(identities.north, await listens(refuses, shows(identities.coordinator)))
    assert "s ahead of the one here: set both by a time server" in said


GARBAGE = {
    "noise": b"\xff" * 4000,
    "an oversized frame": bytes([Kind.CHALLENGE, 0xFF, 0xFF]) + b"x" * 70_000,
    "a challenge that is no text": spoken(Kind.CHALLENGE, challenge=7),
    "an endless challenge": spoken(Kind.CHALLENGE, challenge="0" * 4000),
    "no JSON": frame(Kind.CHALLENGE, b"\xff"),
    "a welcome that proves nothing": WELCOME,
    "go": frame(Kind.GO),
}


@pytest.mark.parametrize("said", GARBAGE.values(), ids=GARBAGE)
async def test_a_gate_that_sends_garbage_is_told(identities, listens, shows, said):
    async def garbles(reader, writer):
        writer.write(said)
        await writer.drain()
        await reader.read()

    at = await listens(garbles, shows(identities.coordinator))
    assert "does not speak this protocol" in await why(identities.north, at)


async def test_a_gate_that_challenges_and_hangs_up_is_told(identities, listens, shows, monkeypatch):
    async def leaves(reader, writer):
        writer.write(spoken(Kind.CHALLENGE, challenge=new_challenge()))
        await writer.drain()

    assert "hung up during the greeting" in await why(
        identities.north, await listens(leaves, shows(identities.coordinator))
    )
    monkeypatch.setattr(reaching, "GREETING_SECONDS", 0.3)
    assert "did not answer the greeting" in await why(
        identities.north, await listens(silent, shows(identities.coordinator))
    )


# The proxy on the way.


async def test_a_proxy_carries_it_with_and_without_a_password(gate, identities, listens, http_proxy):
    for password, user in (("", ""), ("ann:s3cret", "ann:s3cret@")):
        proxy = http_proxy(password)
        at = await listens(proxy.talk)
        stream, _ = await reach(destination(gate.address, f"http://{user}{at}"), identities.north, new_process())
        assert proxy.asked[0][:2] == [f"CONNECT {gate.address} HTTP/1.1", f"Host: {gate.address}"]
        stream.close()


async def test_a_proxy_that_wants_a_password_or_another_one_is_told_without_showing_it(
    gate, identities, listens, http_proxy
):
    at = await listens(http_proxy("ann:s3cret").talk)
    assert "wants a user and a password (407" in await why(identities.north, gate.address, f"http://{at}")
    said = await why(identities.north, gate.address, f"http://ann:wr0ng@{at}")
    assert "does not take this user and password (407" in said
    assert "wr0ng" not in said
    assert "wr0ng" not in repr(destination(gate.address, f"http://ann:wr0ng@{at}"))


PROXIES = {
    "refuses": (b"HTTP/1.1 403 Forbidden\r\n\r\n", "refuses to connect to"),
    "cannot": (b"HTTP/1.0 504 Gateway Timeout\r\n\r\n", "could not connect to"),
    "is none": (b"SSH-2.0-OpenSSH_9.6\r\n", "is not an HTTP proxy"),
    "is none but speaks HTTP": (b"HTTP/1.1 2x0 OK\r\n\r\n", "is not an HTTP proxy"),
    "says more than its answer": (b"HTTP/1.1 200 OK\r\n\r\nand more", "is not an HTTP proxy"),
    "never ends its answer": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 40_000, "is not an HTTP proxy"),
}


@pytest.mark.parametrize(("answers", "said"), PROXIES.values(), ids=PROXIES)
async def test_a_proxy_that_does_not_connect_is_told(gate, identities, listens, http_proxy, answers, said):
    at = await listens(http_proxy(answers=answers).talk)
    assert said in await why(identities.north, gate.address, f"http://{at}")


async def test_a_proxy_that_stalls_and_one_that_is_not_there_are_told(
    gate, identities, listens, http_proxy, monkeypatch
):
    monkeypatch.setattr(proxies, "ANSWER_SECONDS", 0.3)
    at = await listens(http_proxy(answers=None).talk)
    assert "has not answered CONNECT" in await why(identities.north, gate.address, f"http://{at}")
    nobody = unused()
    said = await why(identities.north, gate.address, f"http://{nobody}")
    assert f"the proxy at {nobody} cannot be reached: " in said
    assert "Mend --proxy" in said


async def test_a_gate_behind_a_proxy_that_nothing_listens_at(identities, listens, http_proxy):
    at = await listens(http_proxy().talk)
    assert "could not connect to" in await why(identities.north, unused(), f"http://{at}")


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY"])
def test_the_environment_names_the_proxy_and_who_needs_none(monkeypatch, name):
    for each in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(each, raising=False)
    assert destination("gate.example:7444").proxy is None
    monkeypatch.setenv(name, "http://ann:p%40ss@proxy.example:3128")
    found = destination("gate.example:7444")
    assert (found.proxy.host, found.proxy.port, found.proxy.credentials) == ("proxy.example", 3128, "ann:p@ss")
    assert str(found) == "gate.example:7444 (through the proxy proxy.example:3128)"
    assert destination("gate.example:7444", "none").proxy is None
    assert destination("gate.example:7444", "other.example:80").proxy.host == "other.example"
    monkeypatch.setenv("no_proxy", "localhost,.example")
    assert destination("gate.example:7444").proxy is None


@pytest.mark.parametrize(
    ("connect", "proxy", "said"),
    [
        ("gate.example", None, "a host and a port"),
        ("gate.example:0", None, "a port is 1 to 65535"),
        ("gate.example:99999", None, "is not a port"),
        ("gate.example:7444", "socks5://proxy:1080", "of the kind socks5, and only HTTP proxies"),
        ("gate.example:7444", "https://proxy:443", "of the kind https"),
        ("gate.example:7444", "http://", "names no host"),
        ("gate.example:7444", "http://proxy:port", "is not the URL of a proxy"),
    ],
)
def test_what_is_no_address_or_no_proxy_is_one_sentence(connect, proxy, said):
    with pytest.raises(SettingsError, match=said):
        destination(connect, proxy)
