"""A disk that takes nothing more: one sentence, nothing broken, and the same call works when there is room again."""

import asyncio
import contextlib
import errno
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from party.errors import PartyError
from party.ledger.accounts import open_account, read_account
from party.ledger.ledger import Ledger
from party.node.lifecycle import start
from party.store import runs
from party.store.disk import full, is_full
from protos.refusal import Reason, Refusal

EVENT = GaussianDpEvent(100.0)


async def no_room(waiting, *, party="north"):
    with pytest.raises(Refusal) as refusal:
        await waiting
    assert refusal.value.reason == Reason.STORAGE
    assert f"party {party} cannot write" in refusal.value.sentence
    assert "/" not in refusal.value.sentence


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_full_or_read_only_disk_is_told_from_everything_else(number):
    error = OSError(number, "no")
    assert is_full(error)
    wrapped = ValueError("a library's own")
    wrapped.__cause__ = error
    assert is_full(wrapped)
    assert not is_full(OSError(errno.EACCES, "no"))
    assert not is_full(sqlite3.OperationalError("no such table"))
    assert not is_full(None)
    loop = ValueError()
    loop.__cause__ = loop
    assert not is_full(loop)
    assert full("north").reason == Reason.STORAGE


@pytest.fixture
async def ledger(tmp_path):
    """A ledger with a run that joined."""
    cap = {"epsilon": 20.0, "delta": 1e-6, "simulation": False}
    open_account(tmp_path, "north", **cap)
    opened = await Ledger.open(tmp_path, "north", **cap)
    await opened.join("run", b"p" * 32, [])
    yield opened
    await opened.close()


@pytest.mark.parametrize(
    ("takes_nothing", "takes_all"),
    [
        ("PRAGMA query_only = ON", "PRAGMA query_only = OFF"),
        ("PRAGMA max_page_count = 1", "PRAGMA max_page_count = 1000000"),
    ],
    ids=["read-only", "full"],
)
async def test_a_ledger_that_cannot_be_written_charges_nothing_and_goes_on_afterwards(
    ledger, tmp_path, takes_nothing, takes_all
):
    await ledger._write(lambda: ledger._connection.execute(takes_nothing).fetchall())
    charged, error = 0, None
    while error is None and charged < 1000:  # a full file has room in its last pages at first
        try:
            await ledger.reserve("run", "counts", EVENT, attempt=charged)
            charged += 1
        except sqlite3.OperationalError as found:
            error = found
    assert is_full(error)
    events = [each.event for each in read_account(tmp_path / "ledger.sqlite", "north").reservations]
    assert len(events) == charged
    assert await ledger.joined("run") == b"p" * 32
    await ledger._write(lambda: ledger._connection.execute(takes_all).fetchall())
    await ledger.claim("run", "other", EVENT, 0, b"d", (0, 5))
    assert read_account(tmp_path / "ledger.sqlite", "north").reservations[-1].release == "other"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
@pytest.mark.usefixtures("trains_here")
async def test_every_verb_says_so_and_works_when_there_is_room(opened, monkeypatch, tmp_path, number):
    caller = await opened()

    @contextlib.contextmanager
    def without_room():
        def fails(*_):
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            yield

    for verb in (
        caller.join,
        caller.provide,
        caller.train,
        lambda: caller.answer(caller.batch(0, 0, 6)),
    ):
        with without_room():
            await no_room(verb())
        assert [path.name for path in (tmp_path / "north.party").rglob(".*")] == []
        found = await verb()
    again = await caller.answer(caller.batch(0, 0, 6))
    np.testing.assert_array_equal(found[0], again[0])
    assert len(read_account(tmp_path / "north.party" / "ledger.sqlite", "north").reservations) == 1


async def test_a_node_does_not_start_where_it_cannot_write(config, tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(runs, "private_folder", fails)
        with pytest.raises(PartyError, match=r"party north cannot write in .*: the disk is full or read-only"):
            await start(config(), token="t", base=tmp_path)
    await (await start(config(), token="t", base=tmp_path)).stop()


SMALL = """
import os, sys
folder, config = sys.argv[1:]
mount = 'mount -t tmpfs -o size=2m,mode=700 none "$0" && "$1" -m party.console.command'
mount += ' account open --config "$2" > /dev/null'
mount += ' && exec "$1" -m party.console.command serve --json --config "$2"'
private = ["unshare", "--user", "--map-root-user", "--mount"]
os.execvp("unshare", [*private, "sh", "-c", mount, folder, sys.executable, config])
"""


def can_mount(folder):
    """Whether this user may mount a small disk that nobody else sees."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", str(folder)]
    return shutil.which("unshare") and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def filler(tmp_path):
    """`filler(process)`: fills the process' small disk to the last byte; what it returns makes room again."""

    def fills(process):
        path = Path(f"/proc/{process.pid}/root") / (tmp_path / "north.party" / "filler").relative_to("/")
        with path.open("ab", buffering=0) as file:
            for size in (65536, 512, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * size)
        return path.unlink

    return fills


@pytest.mark.slow
async def test_on_a_disk_that_is_full_every_call_is_refused_and_works_afterwards(opened, killable, filler, tmp_path):
    home = tmp_path / "north.party"
    home.mkdir()
    if not can_mount(home):
        pytest.skip("this user may not mount a small disk")
    process, node = killable(("-c", SMALL, str(home)), policy={"simulation": True})
    inside = Path(f"/proc/{process.pid}/root") / home.relative_to("/")
    caller = await opened(node=node)
    found = None
    for verb in (
        caller.join,
        caller.provide,
        caller.train,
        lambda: caller.answer(caller.batch(0, 0, 6)),
    ):
        makes_room = await asyncio.to_thread(filler, process)
        await no_room(verb())
        assert process.poll() is None
        await asyncio.to_thread(makes_room)
        found = await verb()
    assert found is not None
    np.testing.assert_array_equal(found, await caller.answer(caller.batch(0, 0, 6)))
    left = {path.name for path in inside.rglob(".*")}
    assert left <= {".heartbeat.json.part"}  # is written anew every second
    copy = tmp_path / "ledger"
    copy.mkdir()
    for path in inside.glob("ledger.sqlite*"):
        shutil.copy(path, copy)
    assert [each.release for each in read_account(copy / "ledger.sqlite", "north").reservations] == ["counts"]
