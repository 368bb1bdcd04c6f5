"""Why there is no connection: each reason from a real server in that state, each with a sentence of its own."""

import asyncio
import contextlib
import dataclasses
import os
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta

import grpc
import pytest

from protos.identity.certificates import pem_of
from protos.identity.probing import diagnose
from protos.identity.tls import server_credentials
from protos.identity.validity import RevocationList

NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)
LONG_AGO = {"not_before": NOW - timedelta(days=100)}
ENDED = {"not_before": NOW - timedelta(days=100, hours=1), "days": 100}
TO_COME = {"not_before": NOW + HOUR}


@pytest.fixture
async def node():
    """`await node(identity)`: a gRPC server under it, in plain text with None; its address."""
    servers = []

    async def serves(identity):
        server = grpc.aio.server()
        servers.append(server)
        if identity is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            port = server.add_secure_port("127.0.0.1:0", server_credentials(identity))
        await server.start()
        return f"127.0.0.1:{port}"

    yield serves
    for server in servers:
        await server.stop(0)


@pytest.fixture
def alerting(tmp_path):
    """`alerting(identity, ...)`: a server of OpenSSL's, which sends an alert where gRPC's hangs up; its address."""
    with contextlib.ExitStack() as stack:

        def serves(identity, trusted=None, revocations=b"", version=None):
            for name, content in {
                "chain.pem": identity.transport_key + pem_of(identity.transport),
                "trusted.pem": pem_of((trusted or identity).authority) + revocations,
            }.items():
                (tmp_path / name).write_bytes(content)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tmp_path / "chain.pem")
            context.load_verify_locations(tmp_path / "trusted.pem")
            context.verify_mode = ssl.CERT_REQUIRED
            context.set_alpn_protocols(["h2"])
            if version is not None:
                context.maximum_version = version
            if revocations:
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
            return stack.enter_context(accepting(lambda raw: refuse(context, raw)))

        yield serves


@contextlib.contextmanager
def accepting(answer):
    """A thread that gives every connection to `answer` and closes it; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accepts():
            while True:
                try:
                    raw, _ = listener.accept()
                except OSError:
                    return
                with raw, contextlib.suppress(OSError):
                    raw.settimeout(5)
                    answer(raw)

        thread = threading.Thread(target=accepts, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def refuse(context, raw):
    with context.wrap_socket(raw, server_side=True) as stream:
        stream.recv(1)


async def said(address, identity, name="north", **asked):
    found = await asyncio.to_thread(diagnose, address, name, identity, **asked)
    if found is None:
        return None
    assert found.sentence.startswith(f"party {name} at {address}")
    assert "\n" not in found.sentence
    return found.sentence


async def test_nothing_is_said_when_nothing_is_wrong(node, party, coordinator):
    assert await said(await node(party()), coordinator()) is None
    assert await said(await node(None), None) is None


async def test_plain_text_and_tls_are_told_apart_both_ways(node, party, coordinator):
    plain = await said(await node(None), coordinator())
    assert "speaks plain text, and this run wants TLS" in plain
    assert "[identity] in its party file" in plain
    tls = await said(await node(party()), None)
    assert "speaks TLS, and this run has no identity" in tls
    assert '[federation] identity = "FOLDER"' in tls


async def test_what_is_wrong_has_the_code_of_its_page(node, party, coordinator, stranger):
    own = coordinator(**LONG_AGO)
    with accepting(lambda raw: raw.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as another:
        asked = [
            (await node(None), own, "C502"),
            (await node(party()), None, "C502"),
            (another, own, "C502"),
            (await node(party(**ENDED)), own, "C402"),
            (await node(party(**TO_COME)), own, "C403"),
            (await node(party(by=stranger)), own, "C404"),
            (await node(party("south")), own, "C404"),
            (await node(party()), coordinator(**ENDED), "C402"),
        ]
        for address, identity, code in asked:
            assert (await asyncio.to_thread(diagnose, address, "north", identity)).code == code


async def test_each_fault_of_the_partys_certificate_has_a_sentence_of_its_own(
    node, party, coordinator, authority, stranger, tmp_path
):
    revoked_party = party(**LONG_AGO)
    (tmp_path / "revoked.pem").write_bytes(authority.revocation_list([revoked_party.transport.serial_number]))
    own = dataclasses.replace(
        coordinator(**LONG_AGO), revoked=RevocationList(tmp_path / "revoked.pem", authority.certificate)
    )
    found = {
        "expired at": await said(await node(party(**ENDED)), own),
        "is not valid before": await said(await node(party(**TO_COME)), own),
        "was issued by another authority": await said(await node(party(by=stranger)), own),
        "was revoked": await said(await node(revoked_party), own),
        "party south was shown where party north": await said(await node(party("south")), own),
        "is not a party's for transport": await said(await node(coordinator()), own),
    }
    cures = (
        "provision sign",
        "set both by a time server",
        "provision sign",
        "party enroll",
        "Check the address",
        "Use",
    )
    for (words, sentence), cure in zip(found.items(), cures, strict=True):
        assert words in sentence
        assert cure in sentence.partition(words)[2]
        assert "showed a certificate that cannot be trusted" in sentence
    assert len(set(found.values())) == len(found)


async def test_our_own_certificate_that_our_clock_finds_wrong_is_not_shown_to_anybody(
    node, party, coordinator, authority, stranger, tmp_path
):
    address = await node(party())
    (tmp_path / "revoked.pem").write_bytes(authority.revocation_list([(own := coordinator()).transport.serial_number]))
    revoked = dataclasses.replace(own, revoked=RevocationList(tmp_path / "revoked.pem", authority.certificate))
    found = {
        "expired at": await said(address, coordinator(**ENDED)),
        "One of the clocks may be wrong": await said(address, coordinator(**TO_COME)),
        "was revoked": await said(address, revoked),
    }
    for words, sentence in found.items():
        assert words in sentence
        assert "our own certificate is of no use" in sentence
    assert "coordinator provision renew" in found["expired at"]
    assert "showed a certificate" in await said(address, coordinator(by=stranger)), "theirs is as foreign to us"


async def test_a_party_whose_clock_is_an_hour_off_hangs_up_and_is_found_out(node, party, coordinator):
    address = await node(party(**LONG_AGO))
    behind = await said(address, coordinator(**TO_COME), at=NOW + 2 * HOUR)
    assert "hung up when it saw our certificate, which is valid from" in behind
    assert "Its clock is probably behind: set both clocks by a time server" in behind
    ahead = await said(address, coordinator(**ENDED), at=NOW - 2 * HOUR)
    assert "hung up when it saw our certificate, which is valid until" in ahead
    assert "Its clock is probably ahead" in ahead
    assert "coordinator provision renew" in ahead


async def test_a_party_that_trusts_another_authority_hangs_up_and_the_log_is_pointed_at(
    node, party, coordinator, stranger
):
    mixed = dataclasses.replace(party(**LONG_AGO), authority=stranger.certificate)
    sentence = await said(await node(mixed), coordinator(**LONG_AGO))
    assert "did not say why. Its own log does: it may trust another authority" in sentence


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_each_alert_against_our_certificate_has_a_sentence_of_its_own(
    alerting, party, coordinator, authority, stranger, version
):
    there = party(**LONG_AGO)
    own = coordinator(**LONG_AGO)
    foreign = party(by=stranger)
    revocations = authority.revocation_list([own.transport.serial_number])
    found = {
        "refused our certificate as expired": (
            await said(alerting(there, version=version), coordinator(**ENDED), at=NOW - 2 * HOUR)
        ),
        "refused our certificate as bad (bad certificate): by its clock it may not be valid yet": (
            await said(alerting(there, version=version), coordinator(**TO_COME), at=NOW + 2 * HOUR)
        ),
        "issued by an authority that it does not know": (
            await said(alerting(there, trusted=foreign, version=version), own)
        ),
        "refused our certificate as revoked": (
            await said(alerting(there, revocations=revocations, version=version), own)
        ),
        "refused our certificate: it is not one for a party's connections": (
            await said(alerting(there, version=version), party("south", **LONG_AGO))
        ),
    }
    cures = ("provision renew", "Set both clocks", "compare [identity] authority", "renew --new-keys", "Use what")
    for (words, sentence), cure in zip(found.items(), cures, strict=True):
        assert words in sentence
        assert cure in sentence.partition(words)[2]


async def test_another_program_at_the_address_is_told_from_a_party(coordinator):
    with accepting(lambda raw: raw.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
        for own in (coordinator(), None):
            assert "speaks neither TLS nor gRPC" in await said(address, own)


async def test_what_may_pass_is_no_reason(coordinator):
    own = coordinator()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for identity in (own, None):
            assert await said(f"127.0.0.1:{silent.getsockname()[1]}", identity, timeout=0.2) is None
    with accepting(lambda raw: None) as closing:
        for identity in (own, None):
            assert await said(closing, identity) is None
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"[::1]:{port}", "nowhere.invalid:7443"):
        assert await said(address, own) is None


async def test_a_node_that_hangs_up_once_and_then_serves_is_not_given_up(party, coordinator, tmp_path):
    own, there = coordinator(**LONG_AGO), party(**LONG_AGO)
    (tmp_path / "chain.pem").write_bytes(there.transport_key + pem_of(there.transport))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "chain.pem")
    calls = []

    def answer(raw):
        calls.append(raw)
        with context.wrap_socket(raw, server_side=True) as stream:
            if len(calls) > 1:
                stream.recv(1)
                stream.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")

    with accepting(answer) as address:
        assert await said(address, own) is None
    assert len(calls) == 2


async def test_no_key_is_left_in_a_file(node, party, coordinator, tmp_path, monkeypatch):
    address = await node(party())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert await said(address, coordinator()) is None
    assert os.listdir(tmp_path) == []
