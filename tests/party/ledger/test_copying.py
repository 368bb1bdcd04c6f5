"""Copies of a ledger: whole, without keys, never opened by mistake; and put back they forget nothing that was spent."""

import asyncio
import contextlib
import json
import math
import os
import resource
import shutil
import sqlite3
import stat
import threading

import pytest
from dp_accounting import GaussianDpEvent

from party.console.command import main
from party.errors import PartyError
from party.ledger import copying, database
from party.ledger.accounts import open_account, read_account
from party.ledger.budget import statements
from party.ledger.copying import RELEASE, back_up, restore
from party.ledger.ledger import Ledger
from party.ledger.protection import Protection
from party.node.lifecycle import start
from party.store.runs import Runs
from protos.conclave.v1 import plan_pb2
from protos.refusal import Reason, Refusal

CAP = {"epsilon": 20.0, "delta": 1e-6, "simulation": False}
EVENT = GaussianDpEvent(2.0)
PLAN = b"p" * 32


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "north.party"
    folder.mkdir(mode=0o700)
    open_account(folder, "north", **CAP)
    return folder


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "copy.sqlite"


@contextlib.asynccontextmanager
async def opened(home, lineage="north", **changes):
    ledger = await Ledger.open(home, lineage, **CAP | changes)
    try:
        yield ledger
    finally:
        await ledger.close()


async def charge(home, run, count=1, lineage="north"):
    async with opened(home, lineage) as ledger:
        await ledger.join(run, PLAN, [])
        for number in range(count):
            await ledger.reserve(run, f"release-{number}", EVENT)


def lose(home):
    for ending in copying.BESIDE:
        (home / f"ledger.sqlite{ending}").unlink(missing_ok=True)


def budget(home, lineage="north"):
    (found,) = statements(home, lineage)
    return found.budget


async def test_a_copy_made_while_a_ledger_is_written_has_every_charge_and_no_noise_key(home, copy):
    async with opened(home) as ledger:
        await ledger.join("run", PLAN, [])
        key = await ledger.reserve("run", "counts", EVENT)
        made = back_up(home, copy)
        assert await ledger.reserve("run", "counts", EVENT) == key, "the ledger itself goes on as it was"
    assert (made.accounts, made.charges) == (1, 1)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert key not in copy.read_bytes()
    assert key in b"".join(each.read_bytes() for each in home.glob("ledger.sqlite*"))
    assert sorted(each.name for each in copy.parent.iterdir()) == ["copy.sqlite", "north.party"]


def test_copies_made_during_ten_thousand_writes_are_each_whole(home, tmp_path):
    with contextlib.closing(database.connect(home / "ledger.sqlite")) as sql:
        census = [(number.to_bytes(32), 1, 0) for number in range(10_000)]
        over = threading.Event()

        def copies():
            number = 0
            while not over.is_set() or number < 3:
                back_up(home, tmp_path / f"copy-{number}.sqlite")
                number += 1

        thread = threading.Thread(target=copies)
        thread.start()
        for begin in range(0, len(census), 100):
            with database.transaction(sql):
                sql.executemany("INSERT INTO units VALUES (?, ?, ?)", census[begin : begin + 100])
        over.set()
        thread.join()
    counts = []
    for path in sorted(tmp_path.glob("copy-*.sqlite"), key=lambda path: path.stat().st_mtime_ns):
        with contextlib.closing(sqlite3.connect(path)) as sql:
            assert sql.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            counts.append(sql.execute("SELECT COUNT(*) FROM units").fetchone()[0])
    assert all(count % 100 == 0 for count in counts), counts
    assert counts == sorted(counts)


@pytest.mark.parametrize("link", [False, True])
def test_a_copy_takes_no_other_files_place(home, copy, link):
    if link:
        copy.symlink_to("nowhere")
    else:
        copy.write_text("an earlier copy")
    with pytest.raises(PartyError, match="takes no other's place"):
        back_up(home, copy)
    assert link or copy.read_text() == "an earlier copy"


def test_a_disk_that_fills_leaves_no_half_of_a_copy(home, copy):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40960, limits[1]))
    try:
        with pytest.raises(PartyError, match=r"cannot be written: .*Nothing was changed"):
            back_up(home, copy)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [each.name for each in copy.parent.iterdir()] == ["north.party"]
    back_up(home, copy)


def test_no_ledger_makes_no_copy(tmp_path, copy):
    with pytest.raises(PartyError, match="party account open"):
        back_up(tmp_path, copy)
    assert not copy.exists()


async def test_a_copy_in_the_ledgers_place_is_neither_served_nor_shown(home, copy):
    await charge(home, "before")
    back_up(home, copy)
    await charge(home, "after")
    lose(home)
    shutil.copy(copy, home / "ledger.sqlite")
    for opens in (lambda: open_account(home, "north", **CAP), lambda: statements(home)):
        with pytest.raises(PartyError, match=r"is a copy of a ledger.*party account restore"):
            opens()
    with pytest.raises(PartyError, match="is a copy of a ledger"):
        await Ledger.open(home, "north", **CAP)


async def test_a_copy_that_lacks_nothing_is_put_back_as_it_was_and_its_runs_end(home, copy):
    await charge(home, "run", 2)
    before = read_account(home / "ledger.sqlite", "north")
    back_up(home, copy)
    lose(home)
    found = restore(home, copy, None)
    assert (found.accounts, found.ended) == (("north",), 1)
    after = read_account(home / "ledger.sqlite", "north")
    assert (after.id, after.reservations) == (before.id, before.reservations)
    assert not statements(home)[0].account.uncounted
    assert "restored from a copy of" in statements(home)[0].log[-1].what
    assert "stated: nothing was charged since" in statements(home)[0].log[-1].what
    async with opened(home) as ledger:
        with pytest.raises(Refusal) as refusal:
            await ledger.join("run", PLAN, [])
        assert refusal.value.reason is Reason.NOT_JOINED
        await ledger.join("anew", PLAN, [("counts", EVENT)])


@pytest.mark.slow
async def test_what_a_copy_lacks_is_charged_when_it_is_put_back(home, copy):
    """The attack: charges that a restored ledger forgot would be admitted a second time."""
    await charge(home, "before", 3)
    back_up(home, copy)
    forgotten = budget(home)
    await charge(home, "after", 9)
    lost = budget(home)
    lose(home)
    restore(home, copy, math.ceil(lost.spent * 100) / 100)
    found = budget(home)
    assert forgotten.spent < lost.spent <= found.spent <= lost.spent + 0.02
    assert found.left <= lost.left < forgotten.left
    (statement,) = statements(home)
    assert [each.release for run in statement.runs for each in run.charged].count(RELEASE) == 1
    assert "spent in all" in statement.log[-1].what


@pytest.mark.slow
@pytest.mark.parametrize("spent", [math.inf, 1000.0])
async def test_nothing_is_left_where_nobody_knows_what_a_copy_lacks(home, copy, spent):
    await charge(home, "before")
    back_up(home, copy)
    lose(home)
    restore(home, copy, spent)
    assert budget(home).left == 0
    async with opened(home) as ledger:
        with pytest.raises(Refusal) as refusal:
            await ledger.join("anew", PLAN, [("counts", GaussianDpEvent(1e6))])
    assert refusal.value.reason is Reason.BUDGET


async def test_an_account_that_is_opened_after_a_copy_was_put_back_inherits_what_it_lacks(home, copy):
    """It may be the account of records that were charged since, under a name that the copy does not know."""
    back_up(home, copy)
    lose(home)
    restore(home, copy, math.inf)
    open_account(home, "opened-since", **CAP)
    assert budget(home, "opened-since").left == 0
    async with opened(home, "opened-since") as ledger:
        with pytest.raises(Refusal) as refusal:
            await ledger.join("anew", PLAN, [("counts", EVENT)])
    assert refusal.value.reason is Reason.BUDGET


@pytest.mark.slow
async def test_every_account_is_charged_up_to_what_was_stated(home, copy):
    open_account(home, "south", epsilon=4.0, delta=1e-6, simulation=False)
    open_account(home, "open", epsilon=None, delta=None, simulation=False, protection=Protection(relation="none"))
    await charge(home, "run", 2)
    back_up(home, copy)
    lose(home)
    restore(home, copy, 8.0)
    found = {each.account.lineage: each for each in statements(home)}
    assert found["south"].budget.left == 0
    assert [each.release for run in found["south"].runs for each in run.charged] == [RELEASE]
    assert "what left since is not in it" in found["open"].log[-1].what
    assert not found["open"].runs


@pytest.mark.slow
async def test_less_than_the_copy_says_is_not_taken_for_what_was_spent(home, copy):
    await charge(home, "before", 3)
    back_up(home, copy)
    lose(home)
    with pytest.raises(PartyError, match=r"alone says that north has spent epsilon 4\.\d+, and no more than 1 in all"):
        restore(home, copy, 1.0)
    assert sorted(each.name for each in home.iterdir()) == ["lock"]


@pytest.mark.parametrize("ending", copying.BESIDE)
def test_a_copy_takes_no_ledgers_place(home, copy, ending):
    back_up(home, copy)
    lose(home)
    (home / f"ledger.sqlite{ending}").write_text("what was charged")
    with pytest.raises(PartyError, match="what that one was charged would be forgotten"):
        restore(home, copy, None)
    assert (home / f"ledger.sqlite{ending}").read_text() == "what was charged"


async def test_a_copy_is_not_put_back_under_a_node_that_serves(home, copy):
    back_up(home, copy)
    async with opened(home):
        lose(home)
        with pytest.raises(PartyError, match="Stop that node first"):
            restore(home, copy, None)


def damaged(copy):
    content = bytearray(copy.read_bytes())
    content[4096:40960] = os.urandom(36864)
    copy.write_bytes(content)


def newer(copy):
    with contextlib.closing(sqlite3.connect(copy)) as sql:
        sql.execute(f"PRAGMA user_version = {database.VERSION + 1}")


WRONG = {
    "text": (lambda copy: copy.write_text("no ledger at all, and long enough to be read as one" * 40), "is no copy"),
    "nothing": (lambda copy: copy.write_bytes(b""), "is no copy"),
    "damaged": (damaged, "is no copy"),
    "newer": (newer, "newer version"),
    "missing": (lambda copy: copy.unlink(), "there is no such file"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_copy_is_refused_in_a_sentence_and_nothing_is_there(home, copy, wrong):
    back_up(home, copy)
    lose(home)
    spoil, sentence = WRONG[wrong]
    spoil(copy)
    with pytest.raises(PartyError, match=sentence):
        restore(home, copy, None)
    assert sorted(each.name for each in home.iterdir()) == ["lock"]


async def test_a_ledger_copied_by_other_means_is_put_back_too_with_its_charges_and_without_its_keys(home, copy):
    await charge(home, "run")
    shutil.copy(home / "ledger.sqlite", copy)
    with contextlib.closing(sqlite3.connect(copy)) as sql:
        (key,) = sql.execute("SELECT noise_key FROM reservations").fetchone()
    lose(home)
    restore(home, copy, math.inf)
    assert budget(home).left == 0
    assert key not in (home / "ledger.sqlite").read_bytes()


def keep(home, run):
    Runs(home / "runs").make(run, PLAN, plan_pb2.Plan())


async def test_a_ledger_that_is_older_than_files_of_runs_is_not_served(home, tables, tmp_path):
    """Put back by a copy of files, an earlier ledger carries no mark; the folder of a later run tells."""
    await charge(home, "before")
    keep(home, "before")
    earlier = shutil.copy(home / "ledger.sqlite", tmp_path)
    await charge(home, "after")
    keep(home, "after")
    lose(home)
    shutil.copy(earlier, home / "ledger.sqlite")
    with pytest.raises(PartyError, match=r"does not know run after.*it is older.*party account restore"):
        await start(tables(), base=tmp_path, token="launched")
    lose(home)
    restore(home, tmp_path / "ledger.sqlite", math.inf)
    assert not (home / "runs").exists()
    async with await start(tables(), base=tmp_path, token="launched"):
        pass


@pytest.fixture
def tables(tmp_path):
    from party.config import check_config

    (tmp_path / "notes.jsonl").write_text('{"text": "apple bread"}\n')

    def party():
        policy = {"epsilon": 20.0, "delta": 1e-6, "recipes": ["dped"]}
        return check_config(
            {"name": "north", "listen": "127.0.0.1:0", "shard": {"source": "notes.jsonl"}, "policy": policy}, "north"
        )

    return party


def test_the_commands_say_what_they_did(home, copy, tmp_path, capsys):
    asyncio.run(charge(home, "run"))
    file = tmp_path / "party.toml"
    file.write_text(
        'name = "north"\nshard = { source = "notes.jsonl" }\n'
        'policy = { epsilon = 20.0, delta = 1e-6, recipes = ["dped"] }\n'
    )
    option = ["--config", str(file)]
    assert main(["account", "backup", str(copy), *option]) == 0
    assert "1 account with 1 charge." in capsys.readouterr().out
    assert main(["account", "backup", str(copy), *option]) == 1
    lose(home)
    assert main(["account", "restore", str(copy), *option]) == 2
    for odd in ("-1", "nan", "inf", "some"):
        assert main(["account", "restore", str(copy), f"--spent={odd}", *option]) == 2
        assert "is no epsilon" in capsys.readouterr().err
    assert main(["account", "restore", str(copy), "--spent", "all", *option]) == 0
    said = capsys.readouterr().out
    assert "back as on" in said
    assert "1 run that went on then ended here" in said
    assert main(["budget", *option]) == 0
    said = capsys.readouterr().out
    assert "0.00 is left for one more release" in said
    assert "what was charged since is not known, so nothing is left" in said
    lose(home)
    assert main(["account", "restore", str(copy), "--spent", "same", "--json", *option]) == 0
    assert json.loads(capsys.readouterr().out)["accounts"] == ["north"]
