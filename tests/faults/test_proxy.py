"""The proxy that misbehaves: what each of its faults looks like from both sides."""

import socket
import threading
import time
from contextlib import suppress

import pytest


class Echo:
    """A server that sends back what it gets, and remembers how its connections ended."""

    def __init__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.ends = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _serve(self, connection):
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
                self.ends.append("end")
            except OSError:
                self.ends.append("reset")

    def ended(self):
        deadline = time.monotonic() + 5
        while not self.ends and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.ends

    def close(self):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def echo():
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo, proxies):
    with proxies.Proxy(echo.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy):
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        client.settimeout(5)
        yield client


def asked(client, data=b"hello"):
    client.sendall(data)
    return received(client, len(data))


def received(client, size):
    found = b""
    while len(found) < size:
        piece = client.recv(size - len(found))
        if not piece:
            break
        found += piece
    return found


def test_it_passes_bytes_both_ways(proxy, client):
    assert asked(client, b"x" * 300_000) == b"x" * 300_000
    assert proxy.bytes == 300_000
    assert proxy.address == f"127.0.0.1:{proxy.port}"


def test_it_delays_an_open_connection_and_then_does_not(proxy, client):
    asked(client)
    proxy.delay(0.2)
    began = time.monotonic()
    assert asked(client) == b"hello"
    assert time.monotonic() - began >= 0.4
    proxy.passing()
    began = time.monotonic()
    assert asked(client) == b"hello"
    assert time.monotonic() - began < 0.4


def test_it_cuts_after_so_many_bytes_and_both_sides_see_a_reset(proxy, client, echo):
    asked(client)
    proxy.cut(after=10)
    assert asked(client, b"123456") == b"123456"
    client.sendall(b"7890")
    with pytest.raises(ConnectionResetError):
        received(client, 4)
    assert echo.ended() == ["reset"]
    assert proxy.struck == 1


def test_connections_after_a_cut_pass_until_the_next(proxy):
    proxy.cut(after=5, times=2)
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            client.settimeout(5)
            with pytest.raises(ConnectionResetError):
                asked(client)
    assert proxy.struck == 2
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        client.settimeout(5)
        assert asked(client, b"x" * 100) == b"x" * 100
    assert proxy.connections == 3


def test_it_cuts_at_once(proxy, client):
    asked(client)
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_it_ends_the_half_towards_the_client_and_tells_the_target_nothing(proxy, client, echo):
    asked(client)
    proxy.half_close(towards="client")
    assert client.recv(1) == b""
    client.sendall(b"still taken")
    time.sleep(0.1)
    assert echo.ends == []


def test_it_ends_the_half_towards_the_target(proxy, client, echo):
    asked(client)
    proxy.half_close(towards="target")
    assert echo.ended() == ["end"]


def test_a_black_hole_swallows_until_it_passes_again(proxy, client):
    asked(client)
    proxy.black_hole()
    client.sendall(b"hello")
    client.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.recv(1)
    proxy.passing()
    client.settimeout(5)
    assert received(client, 5) == b"hello"


def test_where_nobody_listens_the_client_is_sent_away(proxies):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with proxies.Proxy(port) as proxy, socket.create_connection(("127.0.0.1", proxy.port)) as client:
        client.settimeout(5)
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""


def test_it_changes_a_byte_now_and_then(proxy, client):
    proxy.corrupt(after=4, times=2)
    found = asked(client, b"0123456789abcdef")
    assert len(found) == 16
    assert [
        place for place, (one, other) in enumerate(zip(found, b"0123456789abcdef", strict=True)) if one != other
    ] == [4, 9]
    assert proxy.struck == 2
    assert asked(client) == b"hello"


def test_what_it_throttles_takes_its_time(proxy, client):
    proxy.throttle(10_000)
    began = time.monotonic()
    assert asked(client, b"x" * 2_000) == b"x" * 2_000
    assert time.monotonic() - began >= 0.4
