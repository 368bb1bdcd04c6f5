"""Runs with parties that only dial out, as real processes: the undisturbed student and charges, whatever is cut."""

import asyncio
import base64
import signal
from contextlib import suppress

import pytest

from protos.dialling.thread import LoopThread

pytestmark = pytest.mark.slow

SECURELY = ('trust = "secure-sum"', "dropouts = 1")


@pytest.fixture
def mixed(scenes, warm, tmp_path):
    """A scene in which north dials and south listens."""
    with scenes.Scene(tmp_path / "scene", warm=warm, dials=("north",)) as scene:
        yield scene


def finished(scenes, scene, coordinator):
    """The id of a run that finished."""
    code, said = scene.outcome(coordinator)
    assert code == 0, said
    assert "Traceback" not in said
    return scenes.last_json(said)["run"]


def test_a_run_with_a_party_that_dials_is_the_run_with_one_that_listens(scenes, mixed, undisturbed):
    mixed.serve_all()
    run = finished(scenes, mixed, mixed.run(mixed.plan()))
    assert mixed.differs(undisturbed, run) == []
    assert not scenes.listens(mixed.ports["north"])
    mixed.stop()
    assert mixed.left() == []


def test_check_says_who_dialled_in(scenes, mixed):
    path = mixed.plan()
    mixed.serve("south")
    code, said = mixed.outcome(mixed.coordinator("check", path))
    assert code == 1
    assert "waiting for north to dial in" in said
    assert "it has not dialled in at" in said
    mixed.serve("north")
    code, said = mixed.outcome(mixed.coordinator("check", path))
    assert code == 0, said
    assert "dialled in, mutual TLS" in said
    mixed.stop()
    assert mixed.left() == []


def test_a_coordinator_that_is_killed_and_resumed_is_dialled_again(scenes, mixed, undisturbed):
    mixed.serve_all()
    dies = ("coordinator.store.store:RunStore.put_block", "after", "4")
    assert mixed.run(mixed.plan(), *dies).wait(scenes.SECONDS) == -signal.SIGKILL
    run = finished(scenes, mixed, mixed.resume(mixed.started()))
    assert mixed.differs(undisturbed, run) == []
    mixed.stop()
    assert [each for each in mixed.left() if "tmp/conclave-" not in each] == []


def test_a_party_that_is_killed_and_comes_back_dials_again(scenes, mixed, undisturbed):
    mixed.serve("south")
    north = mixed.serve("north", "party.store.runs:Run.keep_block", "before", "4")
    coordinator = mixed.run(mixed.plan())
    assert north.wait(scenes.SECONDS) == -signal.SIGKILL
    mixed.serve("north")
    run = finished(scenes, mixed, coordinator)
    assert mixed.differs(undisturbed, run) == []
    mixed.stop()
    assert [each for each in mixed.left() if "tmp/conclave-" not in each] == []


@pytest.mark.parametrize("after", [1_500, 4_000])
def test_a_connection_that_is_cut_again_and_again_loses_nothing(scenes, mixed, proxies, undisturbed, after):
    path = mixed.plan()
    with proxies.Proxy(mixed.gate) as proxy:
        mixed.gate, gate = proxy.port, mixed.gate
        mixed.serve_all()
        mixed.gate = gate
        proxy.cut(after, times=6)
        run = finished(scenes, mixed, mixed.run(path))
        assert proxy.struck >= 2
    assert mixed.differs(undisturbed, run) == []
    mixed.stop()
    assert mixed.left() == []


class HttpProxy:
    """An HTTP proxy on a thread of its own that wants `user:password` and connects to one port. `cut` resets all."""

    def __init__(self, port, password):
        self._port = port
        self._wanted = f"Proxy-Authorization: Basic {base64.b64encode(password.encode()).decode()}"
        self._open = []
        self.connected = self.turned = 0

    async def begin(self):
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def cut(self):
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def _talk(self, reader, writer):
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            if head[0] != f"CONNECT 127.0.0.1:{self._port} HTTP/1.1" or self._wanted not in head:
                self.turned += 1
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            else:
                beyond, back = await asyncio.open_connection("127.0.0.1", self._port)
                self.connected += 1
                self._open += [writer, back]
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await asyncio.gather(self._carry(reader, back), self._carry(beyond, writer))
        writer.close()

    async def _carry(self, reader, writer):
        while piece := await reader.read(2**16):
            writer.write(piece)
            await writer.drain()
        writer.close()


def test_a_run_through_a_proxy_with_a_password_that_cuts_now_and_then(scenes, mixed, undisturbed):
    proxy = HttpProxy(mixed.gate, "ann:s3cret")
    with LoopThread("proxy") as thread:
        port = thread.run(proxy.begin())
        mixed.way["north"] = ("--proxy", f"http://ann:s3cret@127.0.0.1:{port}")
        mixed.serve_all()
        coordinator = mixed.run(mixed.plan())
        for blocks in (1, 3, 6):
            scenes.until(lambda blocks=blocks: mixed.stored() >= blocks, "some blocks are stored")
            thread.run(proxy.cut())
        run = finished(scenes, mixed, coordinator)
    assert mixed.differs(undisturbed, run) == []
    assert proxy.connected > 1
    assert proxy.turned == 0
    assert "s3cret" not in mixed.said("north")
    mixed.stop()
    assert mixed.left() == []


def test_a_party_says_why_it_cannot_dial(scenes, mixed):
    proxy = HttpProxy(mixed.gate, "ann:s3cret")
    with LoopThread("proxy") as thread:
        port = thread.run(proxy.begin())
        mixed.way["north"] = ("--proxy", f"http://127.0.0.1:{port}")
        mixed.serve("north")
        scenes.until(lambda: "wants a user and a password (407" in mixed.said("north"), "it says so", 30)
    mixed.stop()
    mixed.way["north"] = ("--proxy", "none")
    mixed.serve("north")
    scenes.until(lambda: "A gate is open while its coordinator runs" in mixed.said("north"), "it says so", 30)
    mixed.stop()
    assert mixed.left() == []


@pytest.mark.parametrize("dials", [("east", "north", "south", "west"), ("north", "west")], ids=["all dial", "two dial"])
def test_a_secure_sum_over_dialled_parties_is_that_over_addresses(scenes, warm, tmp_path, dials):
    with scenes.Scene(tmp_path / "direct", scenes.FOUR, warm) as direct:
        direct.serve_all()
        undisturbed = direct.undisturbed(direct.plan(privacy=SECURELY), "undisturbed")
        direct.stop()
    with scenes.Scene(tmp_path / "dialled", scenes.FOUR, warm, dials=dials) as scene:
        scene.serve_all()
        run = finished(scenes, scene, scene.run(scene.plan(privacy=SECURELY)))
        assert scene.student() == undisturbed.student
        assert scene.in_the_sum() == [list(scenes.FOUR)]
        assert all(len(charges) == 1 for charges in scene.charged(run).values())
        scene.stop()
        assert scene.left() == []
