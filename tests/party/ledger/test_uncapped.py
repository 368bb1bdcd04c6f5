"""An account without a cap: it promises nothing, and records everything that leaves without a guarantee."""

import asyncio
import contextlib
import json
import sqlite3
from types import SimpleNamespace

import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, SelfComposedDpEvent

from aggregation.accounting.events import to_json as event_json
from learning.text.source import Document
from party.console.command import main
from party.errors import PartyError
from party.ledger.accounts import open_account, read_account
from party.ledger.attesting import attestation
from party.ledger.budget import shown, statements, to_json
from party.ledger.census import written
from party.ledger.ledger import Ledger
from party.ledger.protection import Protection
from party.node.metrics import Metrics
from party.shard_table import ShardTable
from protos.conclave.v1 import plan_pb2
from protos.identity.certificates import Role
from protos.identity.identity import self_made
from protos.refusal import Reason, Refusal

LEAK = SelfComposedDpEvent(NonPrivateDpEvent(), 40)
NOISE = GaussianDpEvent(4.0)
FIRST, SECOND = [f"letter {number}" for number in range(10)], [f"note {number}" for number in range(10)]


def cap(capped, unit="document"):
    promised = {"epsilon": 8.0, "delta": 1e-6} if capped else {"epsilon": None, "delta": None}
    return promised | {"simulation": False, "protection": Protection(unit, "add-or-remove" if capped else "none")}


@pytest.fixture
def releases(tmp_path):
    """`await releases(lineage, capped, texts)`: a run of one release; returns whether it was made from text."""
    runs = iter(range(100))

    async def trains(lineage, capped, texts, *, unit="document"):
        open_account(tmp_path, lineage, **cap(capped, unit))
        ledger = await Ledger.open(tmp_path, lineage, **cap(capped, unit))
        run, event = f"run-{next(runs)}", NOISE if capped else LEAK
        try:
            await ledger.join(run, b"p" * 32, [("outcomes", event)])
            await ledger.reserve(run, "outcomes", event)
            shard = ShardTable(source="letters.jsonl")
            with written(tmp_path / "census", ledger.census_key, shard, unit) as census:
                for text in texts:
                    census.note(Document(text, text, {}))
            await ledger.record(tmp_path / "census")
            text = await ledger.afford(run, lambda: [("outcomes", event)], release="outcomes")
            await ledger.claim(run, "outcomes", event, 0, b"d" * 32, (0, 40))
            return text
        finally:
            await ledger.close()

    return trains


def statement(folder, lineage="north"):
    return statements(folder, lineage)[0]


def lines(folder, lineage="north"):
    return [line for _, line in shown(statement(folder, lineage))]


async def test_every_release_is_on_disk_before_anything_leaves_and_counted_once(tmp_path):
    open_account(tmp_path, "north", **cap(False))
    ledger = await Ledger.open(tmp_path, "north", **cap(False))
    await ledger.join("run", b"p" * 32, [("outcomes", LEAK)])
    key = await ledger.reserve("run", "outcomes", LEAK)
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as sql:
        ((event, answered),) = sql.execute("SELECT event, answered_at FROM reservations")
    assert (json.loads(event), answered) == (event_json(LEAK), None)
    assert await ledger.reserve("run", "outcomes", LEAK) == key
    claim = await ledger.claim("run", "outcomes", LEAK, 0, b"d" * 32, (0, 40))
    assert claim.noise_key == key
    assert await ledger.charged("run") == (("outcomes", 0, LEAK),)
    await ledger.close()
    ledger = await Ledger.open(tmp_path, "north", **cap(False))
    assert await ledger.reserve("run", "outcomes", LEAK) == key
    await ledger.close()


async def test_no_number_of_releases_is_too_many_and_none_has_an_epsilon(tmp_path, releases):
    for _ in range(12):
        assert await releases("north", False, FIRST)
    found = statement(tmp_path)
    assert "no cap: 12 releases without a guarantee, in 12 runs" in lines(tmp_path)
    assert sum("no guarantee: a heuristic" in line for line in lines(tmp_path)) == 12
    assert not any("epsilon" in line or "inf" in line for line in lines(tmp_path))
    told = to_json(found)
    assert {told[key] for key in ("cap", "spent", "left", "delta", "order")} == {None}
    assert (told["guarantee"], told["releases_without_guarantee"], told["relation"]) == (False, 12, "none")
    assert {run["epsilon"] for run in told["runs"]} == {None}
    assert json.loads(json.dumps(told, allow_nan=False)) == told


async def test_what_a_party_signs_says_that_nothing_is_guaranteed(tmp_path):
    privacy = plan_pb2.Privacy(unproven=True, unit=plan_pb2.UNIT_RECORD, record=plan_pb2.RECORD_DOCUMENT)
    run = SimpleNamespace(id="run", plan_hash=b"p" * 32, terms=plan_pb2.Terms(privacy=privacy))
    signer = self_made("north", Role.PARTY, None)
    said = json.loads(attestation(signer, run, [("outcomes", 0, LEAK)], "00" * 16, simulation=False).payload)
    assert (said["guarantee"], said["relation"]) == (False, "none")
    assert said["releases"] == [{"name": "outcomes", "attempt": 0, "event": event_json(LEAK)}]
    run.terms.privacy.unproven = False
    assert "guarantee" not in json.loads(attestation(signer, run, [], "00" * 16, simulation=False).payload)


async def test_a_cap_never_admits_what_has_no_guarantee(tmp_path):
    open_account(tmp_path, "north", **cap(True) | {"epsilon": 1000.0})
    ledger = await Ledger.open(tmp_path, "north", **cap(True) | {"epsilon": 1000.0})
    with pytest.raises(Refusal) as refusal:
        await ledger.join("run", b"p" * 32, [("outcomes", LEAK)])
    assert refusal.value.reason == Reason.BUDGET
    await ledger.join("run", b"p" * 32, [])
    with pytest.raises(Refusal) as refusal:
        await ledger.reserve("run", "outcomes", LEAK)
    assert refusal.value.reason == Reason.BUDGET
    assert (await ledger.budget()).spent == 0
    await ledger.close()


async def test_records_that_left_without_a_guarantee_are_under_no_cap(tmp_path, releases):
    assert await releases("open", False, FIRST)
    assert not await releases("capped", True, [*SECOND, FIRST[3]])
    why = "open let some of them leave without a guarantee, which no cap covers"
    found = statement(tmp_path, "capped")
    assert found.hindered == why
    assert any(why in line for line in lines(tmp_path, "capped"))
    assert 0 < found.budget.spent < 8, "what has no guarantee is no figure of another account"
    with pytest.raises(Refusal) as refusal:
        await releases("capped", True, SECOND)
    assert "cannot pay for this plan" in refusal.value.sentence


async def test_records_under_a_cap_do_not_leave_without_a_guarantee(tmp_path, releases):
    assert await releases("capped", True, FIRST)
    assert not await releases("open", False, [*SECOND, FIRST[3]])
    assert "under a cap, and this account has none" in statement(tmp_path, "open").hindered
    assert statement(tmp_path, "open").unguaranteed == 0, "what was answered without text told nothing"
    assert await releases("capped", True, FIRST)
    with pytest.raises(Refusal) as refusal:
        await releases("open", False, SECOND)
    assert refusal.value.reason == Reason.BUDGET
    assert "capped" not in refusal.value.sentence
    assert "epsilon" not in refusal.value.sentence


@pytest.mark.parametrize("unit", ["document", "sentence"])
async def test_accounts_that_promise_nothing_do_not_hinder_each_other(tmp_path, releases, unit):
    assert await releases("one", False, FIRST)
    assert await releases("other", False, FIRST, unit=unit)
    assert statement(tmp_path, "one").hindered == statement(tmp_path, "other").hindered == ""
    assert [each.account.lineage for each in statement(tmp_path, "other").inherited] == ["one"]


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
async def test_a_cap_is_neither_given_nor_taken_away_later(tmp_path, before, after):
    open_account(tmp_path, "north", **cap(before))
    for opens in (lambda: open_account(tmp_path, "north", **cap(after)), None):
        with pytest.raises(PartyError, match="That holds for the life of the data: restore it, or name another acc"):
            opens() if opens else await Ledger.open(tmp_path, "north", **cap(after))
    assert (read_account(tmp_path / "ledger.sqlite", "north").epsilon is not None) == before


@pytest.mark.parametrize("odd", [{"epsilon": 8.0}, {"delta": 1e-6}, {"protection": Protection()}])
def test_a_cap_is_whole_or_there_is_none(tmp_path, odd):
    with pytest.raises(PartyError, match="either a cap with epsilon and delta, or none of these"):
        open_account(tmp_path, "north", **cap(False) | odd)


def test_the_file_has_no_epsilon_where_there_is_none(tmp_path):
    open_account(tmp_path, "north", **cap(False))
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as sql:
        assert sql.execute("SELECT epsilon, delta, relation FROM accounts").fetchall() == [(None, None, "none")]
        assert sql.execute("PRAGMA foreign_key_check").fetchall() == []
        with pytest.raises(sqlite3.IntegrityError):
            sql.execute("UPDATE accounts SET epsilon = 1.0")


async def test_figures_of_such_an_account_are_no_numbers(tmp_path):
    open_account(tmp_path, "north", **cap(False))
    ledger = await Ledger.open(tmp_path, "north", **cap(False))
    metrics = Metrics()
    metrics.served = True
    await metrics.refresh(ledger)
    await ledger.close()
    for name in ("cap", "spent", "left"):
        value = metrics.registry.get_sample_value(f"conclave_party_epsilon_{name}")
        assert value != value, name


FILE = """
name = "north"
listen = "127.0.0.1:0"
shard = { source = "notes.jsonl" }
policy = { guarantee = false, recipes = ["dped"] }
"""


def test_opening_it_says_in_plain_words_that_there_is_no_cap(tmp_path, releases, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "party.toml").write_text(FILE)
    (tmp_path / "notes.jsonl").write_text('{"text": "one"}\n')
    assert main(["account", "open"]) == 0
    said = capsys.readouterr().out
    assert "Account north is open, for good, and has no cap: it promises nothing for its records." in said
    assert "epsilon" not in said
    assert main(["account", "open", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["guarantee"], told["relation"], told["opened"]) == (False, "none", False)
    assert main(["budget"]) == 0
    said = capsys.readouterr().out
    assert "no cap: 0 releases without a guarantee, in 0 runs" in said
    assert "opened with no cap: it promises nothing, and records what leaves without a guarantee" in said
    main(["check"])
    said = "".join(capsys.readouterr())
    assert "north: no cap; every release without a guarantee is recorded" in said
    assert "no guarantee: a heuristic, and no other plans" in said
    home = tmp_path / "north.party"
    for path in home.glob("ledger.sqlite*"):
        path.rename(tmp_path / path.name)
    asyncio.run(releases("archive", True, FIRST))
    asyncio.run(releases("north", False, FIRST))
    for path in tmp_path.glob("ledger.sqlite*"):
        path.rename(home / path.name)
    main(["check"])
    assert "every plan is refused: archive was charged for a document" in capsys.readouterr().out
