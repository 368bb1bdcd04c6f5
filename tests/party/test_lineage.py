"""A shard under another name: what its records were charged for is found again, and its cap with it."""

import contextlib
import csv
import json
import os
import signal
import sqlite3

import pytest
from dp_accounting import GaussianDpEvent

from party.accounts import open_account, read_account
from party.budget import statements
from party.config import PolicyTable, ShardTable
from party.counting import take_census
from party.errors import PartyError
from party.job import Job
from party.ledger import Ledger
from protos.refusal import Reason, Refusal

EVENT = GaussianDpEvent(1.65)
"""Worth epsilon 2.8 of its own; three of them, and no fourth, fit a cap of 6."""
CAP = 6.0
ROWS = [{"text": f"letter {number} of the archive", "who": f"p{number % 5}"} for number in range(20)]


class Archive:
    """One ledger, and lineages that come and go in it: each training reads a real file by the party's own reader."""

    def __init__(self, folder):
        self.folder = folder
        self._runs = 0

    def opens(self, lineage, epsilon=CAP, simulation=False):
        return open_account(self.folder, lineage, epsilon=epsilon, delta=1e-6, simulation=simulation)

    async def trains(
        self, lineage, rows, *, charges=1, epsilon=CAP, simulation=False, name="rows.jsonl", by_user=False, **shard
    ):
        """Train on rows under a lineage that is open, or is opened, and charge for it. Raises `Refusal`."""
        self.opens(lineage, epsilon, simulation)
        ledger = await Ledger.open(self.folder, lineage, epsilon=epsilon, delta=1e-6, simulation=simulation)
        try:
            self._runs += 1
            run = f"run-{self._runs}"
            await ledger.join(run, b"p" * 32, [])
            job = self._job(rows, name, by_user, ledger.census_key, shard)
            take_census(job)
            shared = await ledger.record(self.folder / "census")
            wanted = [(f"release-{number}", EVENT) for number in range(charges)]
            await ledger.afford(run, wanted)
            for release, event in wanted:
                await ledger.reserve(run, release, event)
            return shared
        finally:
            await ledger.close()

    def statement(self, lineage):
        return statements(self.folder, lineage)[0]

    def inherits(self, lineage):
        return {each.account.lineage for each in self.statement(lineage).inherited}

    def spent(self, lineage):
        return self.statement(lineage).budget.spent

    def _job(self, rows, name, by_user, key, shard):
        path = self.folder / name
        if path.suffix == ".csv":
            with path.open("w", newline="") as file:
                table = csv.DictWriter(file, list(rows[0]))
                table.writeheader()
                table.writerows(rows)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Job(
            parent=os.getpid(),
            shard=ShardTable(source=str(path), **shard).model_dump(),
            policy=PolicyTable(epsilon=1.0, delta=1e-6, recipes=["dped"]).model_dump(),
            record="document",
            by_user=by_user,
            vocabulary="",
            window=2,
            release="",
            cache=str(self.folder / "cache"),
            result="",
            census=str(self.folder / "census"),
            census_key=key.hex(),
        )


@pytest.fixture
def archive(tmp_path):
    """A ledger without accounts."""
    return Archive(tmp_path)


async def over(waiting, reason=Reason.BUDGET):
    with pytest.raises(Refusal) as refusal:
        await waiting
    assert refusal.value.reason == reason
    return refusal.value.sentence


async def test_a_record_that_is_added_resets_nothing(archive):
    await archive.trains("north", ROWS, charges=3)
    spent = archive.spent("north")
    assert "of the cap of 6" in await over(archive.trains("north", [*ROWS, {"text": "one more", "who": "p9"}]))
    assert (archive.spent("north"), archive.statement("north").documents) == (spent, 21)
    assert archive.inherits("north") == set()


async def test_a_lineage_with_another_name_inherits_and_says_no_name(archive):
    await archive.trains("north", ROWS, charges=3)
    sentence = await over(archive.trains("south", ROWS))
    assert "the ledger cannot pay for" in sentence
    assert "account" not in sentence, "that records are in two shards is not told outside"
    assert "north" not in sentence
    assert archive.inherits("south") == {"north"}
    assert archive.spent("south") == archive.spent("north") > 0
    assert "shares records with north" in archive.statement("south").log[-1].what


async def test_it_is_charged_for_both_ways(archive):
    assert await archive.trains("north", ROWS, charges=1) == ()
    assert await archive.trains("south", ROWS, charges=1) == ("north",)
    assert await archive.trains("south", ROWS, charges=0) == ()
    assert archive.inherits("north") == {"south"}
    await archive.trains("north", ROWS, charges=1)
    for lineage in ("north", "south"):
        await over(archive.trains(lineage, ROWS))


async def test_a_shard_in_another_file_order_column_and_format_is_the_same_shard(archive):
    await archive.trains("north", ROWS, charges=3)
    other = [{"body": row["text"], "ward": "b"} for row in reversed(ROWS)]
    await over(archive.trains("south", other, name="other.csv", text="body"))


async def test_a_shard_that_is_split_takes_its_past_to_both_halves(archive):
    await archive.trains("whole", ROWS, charges=2)
    await archive.trains("left", ROWS[:10], charges=1)
    assert archive.inherits("left") == {"whole"}
    sentence = await over(archive.trains("right", ROWS[10:]))
    assert "the ledger cannot pay for" in sentence


async def test_shards_that_are_merged_bring_what_both_were_charged(archive):
    await archive.trains("left", ROWS[:10], charges=2)
    await archive.trains("right", ROWS[10:], charges=1)
    assert archive.inherits("left") == archive.inherits("right") == set()
    await over(archive.trains("merged", ROWS))
    assert archive.inherits("merged") == {"left", "right"}


async def test_one_record_of_many_is_enough(archive):
    await archive.trains("north", ROWS, charges=3)
    strangers = [{"text": f"another archive's letter {number}", "who": f"q{number}"} for number in range(500)]
    await over(archive.trains("south", [*strangers, ROWS[7]]))


async def test_edited_texts_are_known_by_their_user_or_their_id(archive):
    edited = [{"text": row["text"].upper(), "who": row["who"]} for row in ROWS]
    await archive.trains("north", ROWS, charges=3, user="who")
    await over(archive.trains("by-user", edited, user="who", by_user=True))
    numbered = [row | {"number": f"n{number}"} for number, row in enumerate(ROWS)]
    await archive.trains(
        "numbered", [{"text": f"new {n}", "number": f"n{n}"} for n in range(3)], id="number", charges=3
    )
    await over(archive.trains("by-id", numbered, id="number"))
    assert archive.inherits("numbered") == {"by-id", "by-user", "north"}


async def test_a_shard_with_nothing_in_common_inherits_nothing(archive):
    await archive.trains("north", ROWS, charges=3, user="who")
    other = [{"text": f"something else {number}", "who": f"q{number}"} for number in range(20)]
    assert await archive.trains("south", other, charges=3, user="who") == ()
    assert archive.inherits("south") == archive.inherits("north") == set()


async def test_a_fresh_account_with_a_larger_cap_does_not_raise_the_cap_of_old_records(archive):
    await archive.trains("north", ROWS, charges=3)
    await over(archive.trains("south", ROWS, epsilon=60.0))
    assert archive.statement("south").budget.left < 2.8
    assert archive.statement("south").budget.cap == 60.0


@pytest.mark.parametrize("first", [True, False])
async def test_a_simulation_and_private_text_share_no_record(archive, first):
    await archive.trains("one", ROWS, simulation=first, epsilon=60.0)
    sentence = await over(archive.trains("other", ROWS, simulation=not first, epsilon=60.0), Reason.POLICY)
    assert "share no record" in sentence
    assert read_account(archive.folder / "ledger.sqlite", "other").reservations == ()


async def test_a_simulation_that_was_refused_private_text_does_not_end_its_account(archive):
    await archive.trains("north", ROWS)
    await over(archive.trains("trial", ROWS, simulation=True), Reason.POLICY)
    await archive.trains("north", ROWS)
    assert archive.inherits("north") == set()


async def test_what_is_linked_counts_when_a_run_joins(archive):
    await archive.trains("north", ROWS, charges=3)
    await over(archive.trains("south", ROWS))
    ledger = await Ledger.open(archive.folder, "south", epsilon=CAP, delta=1e-6, simulation=False)
    try:
        assert "the ledger cannot pay for" in await over(ledger.join("new", b"p" * 32, [("counts", EVENT)]))
        assert "the ledger cannot pay for" in await over(ledger.can_pay([("counts", EVENT)]))
        assert await ledger.joined("new") is None
    finally:
        await ledger.close()


async def test_a_run_that_one_account_trained_is_not_charged_to_another(archive):
    """Else its events would be where its records are not."""
    for lineage in ("north", "south"):
        archive.opens(lineage)
    ledger = await Ledger.open(archive.folder, "north", epsilon=CAP, delta=1e-6, simulation=False)
    await ledger.join("run", b"p" * 32, [("counts", EVENT)])
    await ledger.close()
    ledger = await Ledger.open(archive.folder, "south", epsilon=CAP, delta=1e-6, simulation=False)
    try:
        assert await ledger.joined("run") is None
        await over(ledger.join("run", b"p" * 32, [("counts", EVENT)]), Reason.CONFLICT)
        await over(ledger.claim("run", "counts", EVENT, 0, b"d", (0, 5)), Reason.NOT_JOINED)
    finally:
        await ledger.close()


async def test_of_a_training_that_read_nothing_the_ledger_keeps_nothing(archive):
    archive.opens("north")
    ledger = await Ledger.open(archive.folder, "north", epsilon=CAP, delta=1e-6, simulation=False)
    try:
        (archive.folder / "census").write_bytes(b"")
        assert await ledger.record(archive.folder / "census") == ()
    finally:
        await ledger.close()


OLD = """
CREATE TABLE accounts (id TEXT PRIMARY KEY, lineage TEXT UNIQUE NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
  simulation INTEGER NOT NULL, opened_at REAL NOT NULL) STRICT;
CREATE TABLE runs (id TEXT PRIMARY KEY, plan_hash BLOB NOT NULL, joined_at REAL NOT NULL, left_at REAL) STRICT;
CREATE TABLE reservations (id INTEGER PRIMARY KEY, account TEXT NOT NULL REFERENCES accounts(id),
  run TEXT NOT NULL REFERENCES runs(id), release TEXT NOT NULL, attempt INTEGER NOT NULL, event TEXT NOT NULL,
  noise_key BLOB, reserved_at REAL NOT NULL, answered_at REAL, UNIQUE (run, release, attempt)) STRICT;
CREATE TABLE blocks (reservation INTEGER NOT NULL REFERENCES reservations(id), batch INTEGER NOT NULL,
  digest BLOB NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, PRIMARY KEY (reservation, batch)) STRICT;
INSERT INTO accounts VALUES ('a1', 'north', 6.0, 1e-6, 0, 1.0), ('a2', 'idle', 6.0, 1e-6, 0, 2.0);
INSERT INTO runs VALUES ('old', x'70', 3.0, 4.0);
INSERT INTO reservations VALUES
  (1, 'a1', 'old', 'counts', 0, '{"kind": "gaussian", "noise_multiplier": 1.65}', NULL, 3.5, NULL),
  (2, 'a1', 'old', 'votes', 0, '{"kind": "gaussian", "noise_multiplier": 1.65}', NULL, 3.5, NULL),
  (3, 'a1', 'old', 'hidden', 0, '{"kind": "gaussian", "noise_multiplier": 1.65}', NULL, 3.5, NULL);
"""


@pytest.fixture
def old(tmp_path):
    """A ledger from before units were counted: `north` was charged, `idle` never."""
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as sql:
        sql.executescript(OLD)
    return Archive(tmp_path)


async def test_an_old_ledger_is_read_as_it_is_and_brought_up_to_date_when_it_is_written(old):
    before = old.statement("north")
    assert (before.account.id, len(before.runs), before.documents) == ("a1", 1, 0)
    await over(old.trains("north", ROWS))
    after = old.statement("north")
    assert (after.account.id, after.account.uncounted, after.documents) == ("a1", True, 20)
    assert after.budget.spent == before.budget.spent > 0


async def test_a_ledger_from_before_refunds_is_read_whole_and_what_it_charged_stays(tmp_path):
    """Nobody knows of an older charge that it was for a masked vector alone."""
    archive = Archive(tmp_path)
    archive.opens("north")
    await archive.trains("north", ROWS)
    before = archive.statement("north")
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as sql:
        sql.executescript(
            "ALTER TABLE reservations DROP COLUMN masked; ALTER TABLE reservations DROP COLUMN refunded_at; "
            "DROP TABLE disclaimed; PRAGMA user_version = 3"
        )
    assert archive.statement("north") == before
    assert (before.documents, before.account.uncounted) == (20, False)
    ledger = await Ledger.open(tmp_path, "north", epsilon=CAP, delta=1e-6, simulation=False)
    try:
        (run,) = [each.run.id for each in before.runs]
        await ledger.disclaim(run, "release-0", 0)
        with pytest.raises(Refusal, match="stays charged"):
            await ledger.refund(run, "release-0", 0)
    finally:
        await ledger.close()
    assert archive.statement("north") == before


async def test_what_was_charged_before_units_were_counted_may_be_of_any_record(old):
    """Nobody can say which records those were, so no fresh name escapes them."""
    assert "the ledger cannot pay for" in await over(old.trains("south", ROWS))
    assert old.inherits("south") == old.inherits("idle") == {"north"}
    assert not old.statement("idle").account.uncounted


async def test_a_run_from_before_goes_on_under_an_account_from_before_alone(old):
    with contextlib.closing(sqlite3.connect(old.folder / "ledger.sqlite")) as sql:
        sql.execute("INSERT INTO runs VALUES ('open', x'70', 3.0, NULL)")
        sql.commit()
    old.opens("south")
    for lineage, there in (("north", b"p"), ("south", None)):
        ledger = await Ledger.open(old.folder, lineage, epsilon=CAP, delta=1e-6, simulation=False)
        assert await ledger.joined("open") == there
        await ledger.close()
    assert old.inherits("south") == {"north", "idle"}


def test_an_update_that_is_cut_off_leaves_the_old_ledger(old):
    path = old.folder / "ledger.sqlite"
    child = os.fork()
    if not child:
        from party import database

        database.secrets.token_bytes = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        database.connect(path)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    with contextlib.closing(sqlite3.connect(path)) as sql:
        tables = {name for (name,) in sql.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {"accounts", "runs", "reservations", "blocks"}
    old.opens("south")
    assert old.inherits("south") == {"north"}


def test_a_ledger_of_a_newer_version_is_left_alone(old):
    with contextlib.closing(sqlite3.connect(old.folder / "ledger.sqlite")) as sql:
        sql.execute("PRAGMA user_version = 99")
    for act in (lambda: old.opens("south"), lambda: old.statement("north")):
        with pytest.raises(PartyError, match="newer version"):
            act()


async def renamed(opened, tmp_path, first, then, **changes):
    """A party trains and answers a plan, then serves the same folder under another lineage; that one's caller."""
    caller = await opened(plan=first, folder="shared", account="north", **changes)
    await caller.ready()
    await caller.answer(caller.batch(0, 0, 6))
    await caller.node.stop()
    again = await opened(plan=then, folder="shared", account="fresh", **changes)
    again.run.run_id = "run-2"
    await again.join()
    await again.provide()
    return again


def wire(tmp_path):
    return {each.account.lineage: [run.charged for run in each.runs] for each in statements(tmp_path / "shared")}


@pytest.mark.slow
async def test_a_node_under_another_lineage_refuses_before_anything_is_answered(opened, terms, tmp_path):
    """Real text, the real training process, a policy that one run exhausts."""
    policy = {"epsilon": 5.5}
    again = await renamed(opened, tmp_path, terms(), terms(), policy=policy)
    sentence = await over(again.train())
    assert "the ledger cannot pay for" in sentence
    assert "north" not in sentence
    with pytest.raises(Refusal, match="not trained yet"):
        await again.answer(again.batch(0, 0, 6))
    assert wire(tmp_path)["fresh"] == []
    assert list((tmp_path / "shared").rglob(".*.census.part")) == []
    (tmp_path / "others.jsonl").write_text('{"text": "fish fish fish"}\n{"text": "apple door"}\n')
    await again.node.stop()
    other = await opened(
        plan=terms(), folder="shared", account="other", policy=policy, shard={"source": "others.jsonl"}
    )
    other.run.run_id = "run-3"
    await other.ready()
    await other.answer(other.batch(0, 0, 6))
    assert len(wire(tmp_path)["other"]) == 1


@pytest.mark.usefixtures("trains_here")
async def test_a_private_training_that_inherits_too_much_is_refused_before_it_is_charged(
    opened, terms, releases, tmp_path
):
    plan = terms(releases=releases("training", "free"), epsilon=20.0)
    again = await renamed(opened, tmp_path, terms(), plan, policy={"epsilon": 5.5})
    await again.provide_reference()
    assert "the ledger cannot pay for" in await over(again.teach())
    assert wire(tmp_path)["fresh"] == []
