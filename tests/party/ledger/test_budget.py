"""Accounts opened on purpose and on record, and `party budget`: what was charged, what is left, what was inherited."""

import asyncio
import contextlib
import getpass
import json
import sqlite3

import pytest
from dp_accounting import GaussianDpEvent

from aggregation.accounting.price import LifetimeFilter, price
from party.config import check_config
from party.console.command import main
from party.errors import PartyError
from party.ledger.accounts import open_account, read_account
from party.ledger.budget import statements, to_json
from party.ledger.ledger import Ledger
from party.ledger.protection import Protection
from party.node.lifecycle import start

EVENT = GaussianDpEvent(4.0)
CAP = {"epsilon": 20.0, "delta": 1e-6, "simulation": False}


@pytest.fixture
def party_file(tmp_path):
    """`party_file(...)`: writes the file of party north, whose folder is `north.party`, with changes; its path."""

    def writes(epsilon=20.0, simulation="false", account="north", **about):
        path = tmp_path / "party.toml"
        path.write_text(
            f'name = "north"\naccount = "{account}"\nlisten = "127.0.0.1:0"\nshard = {{ source = "notes.jsonl" }}\n'
            f'policy = {{ epsilon = {epsilon}, delta = 1e-6, recipes = ["dped"], simulation = {simulation}'
            + "".join(f', {key} = "{value}"' for key, value in about.items())
            + " }\n"
        )
        return str(path)

    return writes


@pytest.fixture
def home(tmp_path):
    """The folder of party north, with account `north` open."""
    folder = tmp_path / "north.party"
    folder.mkdir(mode=0o700)
    open_account(folder, "north", **CAP)
    return folder


async def charge(home, run, releases, lineage="north", **cap):
    ledger = await Ledger.open(home, lineage, **CAP | cap)
    await ledger.join(run, b"p" * 32, [])
    for release, attempt in releases:
        await ledger.reserve(run, release, EVENT, attempt=attempt)
    charged = await ledger.charged(run)
    await ledger.close()
    return charged


def said(capsys):
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured


async def test_a_node_without_an_open_account_does_not_start_and_says_how_to_open_one(tables, tmp_path):
    config = check_config(tables(account="archive"), "party.toml")
    with pytest.raises(PartyError, match=r"no account archive.*party account open archive --config party\.toml"):
        await start(config, token="t", base=tmp_path)
    open_account(tmp_path / "north.party", "archive", **CAP)
    await (await start(config, token="t", base=tmp_path)).stop()


@pytest.mark.parametrize("change", ["deleted", "renamed"])
async def test_neither_a_deleted_ledger_nor_another_name_gives_a_fresh_account(home, change):
    await charge(home, "one", [("counts", 0)])
    if change == "deleted":
        for path in home.glob("ledger.sqlite*"):
            path.unlink()
    with pytest.raises(PartyError, match="party account open"):
        await Ledger.open(home, "north" if change == "deleted" else "fresh", **CAP)


async def test_the_account_of_a_simulation_opens_by_itself_and_is_on_record(tmp_path):
    ledger = await Ledger.open(tmp_path, "north", **CAP | {"simulation": True})
    await ledger.close()
    (line,) = statements(tmp_path, "north")[0].log
    assert line.what == "opened with epsilon 20 at delta 1e-06 for a document, added or removed, a simulation"
    assert getpass.getuser() in line.by


def test_opening_is_explicit_logged_and_done_once(party_file, tmp_path, capsys):
    path = party_file()
    assert main(["account", "open", "--config", path]) == 0
    out = said(capsys).out
    assert "north is open, for good: epsilon 20 (delta 1e-06) for a document, added or removed." in out
    assert "A first run may spend epsilon 18.63 of it: the cap holds for every run to come" in out
    account = read_account(tmp_path / "north.party" / "ledger.sqlite", "north").id
    assert main(["account", "open", "--config", path, "--json"]) == 0
    assert json.loads(said(capsys).out) == {
        "account": "north", "id": account, "opened": False, "unit": "document", "relation": "add-or-remove",
        "guarantee": True,
    }  # fmt: skip
    assert main(["account", "open", "letters.2027", "--config", path]) == 0
    assert main(["budget", "--all", "--config", path, "--json"]) == 0
    said_ = said(capsys).out.splitlines()[-1]
    found = {each["account"]: each for each in json.loads(said_)}
    assert list(found) == ["north", "letters.2027"]
    for each in found.values():
        ((what, by),) = [(line["what"], line["by"]) for line in each["log"]]
        assert what == "opened with epsilon 20 at delta 1e-06 for a document, added or removed"
        assert getpass.getuser() in by


@pytest.mark.parametrize(
    ("changes", "arguments", "code", "says"),
    [
        ({"epsilon": 30.0}, [], 1, "A cap holds for the life of the data"),
        ({"simulation": "true"}, [], 1, "was opened for private text"),
        ({"epsilon": 0.0001}, ["other"], 1, "admits nothing"),
        ({"record": "sentence"}, [], 1, "was opened for a document, added or removed; the policy now says a sentence"),
        ({"unit": "user"}, ["other"], 2, "needs [shard] user"),
        ({}, ["../other"], 2, "is no name for an account"),
    ],
)
def test_an_account_that_cannot_be_is_one_sentence(home, party_file, capsys, changes, arguments, code, says):
    assert main(["account", "open", *arguments, "--config", party_file(**changes)]) == code
    error = said(capsys).err
    assert says in error
    assert error.count("\n") == 1
    assert [each.account.lineage for each in statements(home)] == ["north"]


async def test_nothing_is_opened_while_a_node_runs(home, party_file, capsys):
    ledger = await Ledger.open(home, "north", **CAP)
    assert main(["account", "open", "other", "--config", party_file()]) == 1
    assert "in use by another node. Stop that node first, then try again." in said(capsys).err
    await ledger.close()
    assert [each.account.lineage for each in statements(home)] == ["north"]


async def test_what_a_run_was_charged_is_told_by_release_and_attempt(home):
    await charge(home, "zero", [("counts", 0)])
    assert await charge(home, "one", [("counts", 0), ("counts", 1)]) == (("counts", 0, EVENT), ("counts", 1, EVENT))


async def test_a_budget_is_the_filters_and_each_run_has_a_price_of_its_own(home, party_file, capsys):
    await charge(home, "one", [("counts", 0)])
    await charge(home, "two", [("votes", 0), ("votes", 1)])
    found = to_json(statements(home, "north")[0])
    filter_ = LifetimeFilter(20.0, 1e-6)
    assert found["cap"] == 20.0
    assert found["left"] == pytest.approx(filter_.left([EVENT] * 3))
    assert 0 < found["spent"] < 20.0
    assert found["order"] == filter_.order
    assert [each["run"] for each in found["runs"]] == ["one", "two"]
    for run, count in zip(found["runs"], (1, 2), strict=True):
        own = price([EVENT] * count, 1e-6)
        assert (run["epsilon"], run["accountant"]) == (own.epsilon, "PLD")
    assert main(["budget", "--config", party_file()]) == 0
    shown = said(capsys).out
    account = found["id"]
    assert account in shown
    assert (found["unit"], found["relation"], found["hindered"]) == ("document", "add-or-remove", None)
    assert f"epsilon {found['spent']:.2f} of 20.00 (delta 1e-06) for a document, added or removed, in 2 runs" in shown
    assert "votes, votes (attempt 2)" in shown
    assert "(PLD)" in shown
    assert "0 documents charged" in shown
    assert "simulation" not in shown


async def test_a_refunded_attempt_is_shown_at_no_cost(home, party_file, capsys):
    ledger = await Ledger.open(home, "north", **CAP)
    await ledger.join("one", b"p" * 32, [])
    for attempt in (0, 1):
        await ledger.mask("one", "counts", EVENT, attempt)
    await ledger.disclaim("one", "counts", 0)
    await ledger.refund("one", "counts", 0)
    await ledger.close()
    assert main(["budget", "--config", party_file()]) == 0
    assert "counts (attempt 1, refunded, costs nothing), counts (attempt 2)" in said(capsys).out
    found = to_json(statements(home, "north")[0])
    (run,) = found["runs"]
    assert run["epsilon"] == price([EVENT], 1e-6).epsilon
    assert found["left"] == pytest.approx(LifetimeFilter(20.0, 1e-6).left([EVENT]))
    assert [each["refunded_at"] is None for each in run["releases"]] == [False, True]


async def test_a_simulation_says_that_it_is_one(tmp_path, party_file, capsys):
    (tmp_path / "north.party").mkdir()
    await charge(tmp_path / "north.party", "one", [("counts", 0)], simulation=True)
    assert main(["budget", "--config", party_file(simulation="true")]) == 0
    assert "a simulation: its noise may be known to anyone" in said(capsys).out


@pytest.mark.usefixtures("trains_here")
async def test_beside_a_node_that_answers_it_tells_what_was_charged(opened, party_file, capsys):
    caller = await (await opened()).ready()
    await caller.answer(caller.batch(0, 0, 3))
    path = party_file()
    assert await asyncio.to_thread(main, ["budget", "--config", path, "--json"]) == 0
    found = json.loads(said(capsys).out)
    assert found["documents"] == 4
    ((run, releases),) = [(each["run"], each["releases"]) for each in found["runs"]]
    assert (run, [each["release"] for each in releases]) == ("run-1", ["counts"])


@pytest.mark.parametrize(("account", "says"), [("other", "has no account other. It has: north."), ("north", None)])
def test_an_account_that_nobody_opened_has_no_budget(home, party_file, capsys, account, says):
    assert main(["budget", "--config", party_file(account=account)]) == (1 if says else 0)
    assert (says or "") in said(capsys).err


def test_without_a_ledger_it_says_how_to_begin(party_file, tmp_path, capsys):
    assert main(["budget", "--config", party_file()]) == 1
    assert "party account open" in said(capsys).err
    assert not (tmp_path / "north.party").exists()


async def test_what_shares_records_for_another_unit_is_told_with_what_it_was_charged_for(home, party_file, capsys):
    open_account(home, "users", **CAP, protection=Protection("user"))
    await charge(home, "one", [("counts", 0)], lineage="users", protection=Protection("user"))
    with contextlib.closing(sqlite3.connect(home / "ledger.sqlite")) as sql:
        sql.execute("INSERT INTO links VALUES (1, 2), (2, 1)")
        sql.commit()
    assert main(["budget", "--config", party_file()]) == 0
    shown = said(capsys).out
    assert "shares records, for a user, added or removed: 1 release" in shown
    assert "answered without text: users was charged for a user, added or removed" in shown
    assert main(["budget", "--config", party_file(), "--json"]) == 0
    found = json.loads(said(capsys).out)
    assert (found["left"], found["inherited"][0]["unit"]) == (0.0, "user")
