"""A shard under another name: what its records were charged for is found again, and its cap with it."""

import contextlib
import csv
import json
import math
import os
import signal
import sqlite3
from typing import NamedTuple

import pytest
from dp_accounting import GaussianDpEvent, get_epsilon_gaussian

from aggregation.accounting.price import LifetimeFilter
from learning.text.source import NOTHING
from party.errors import PartyError
from party.ledger.accounts import open_account
from party.ledger.budget import statements
from party.ledger.ledger import Ledger
from party.ledger.protection import Protection
from party.shard.counted import take_census
from party.shard.reading import Reading
from party.shard_table import ShardTable
from party.tasks import process
from party.tasks.result import load_counts
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

    def opens(self, lineage, epsilon=CAP, simulation=False, unit="document"):
        cap = {"epsilon": epsilon, "delta": 1e-6, "simulation": simulation}
        return open_account(self.folder, lineage, **cap, protection=Protection(unit))

    async def trains(self, lineage, rows, *, charges=1, name="rows.jsonl", by_user=False, record="document", **more):
        """Train on rows under a lineage that is open, or is opened, as a node does: charge, read, and ask what with.

        more: the account's `epsilon`, `simulation`, `unit`, and settings of the shard. Raises `Refusal`.
        """
        account = {key: more.pop(key) for key in ("epsilon", "simulation", "unit") if key in more}
        self.opens(lineage, **account)
        cap = {"epsilon": CAP, "simulation": False} | account
        protection = Protection(cap.pop("unit", "document"))
        ledger = await Ledger.open(self.folder, lineage, **cap, delta=1e-6, protection=protection)
        try:
            self._runs += 1
            run = f"run-{self._runs}"
            await ledger.join(run, b"p" * 32, [])
            wanted = [(f"release-{number}", EVENT) for number in range(charges)]
            take_census(self._reading(rows, name, by_user, record, ledger.census_key, more))
            if not charges:
                return Trained(await ledger.record(self.folder / "census"), await ledger.afford(run, list))
            shared, text = (), True
            for release, event in wanted:
                await ledger.reserve(run, release, event)
                shared += await ledger.record(self.folder / "census")
                text &= await ledger.afford(run, lambda: wanted, release=release)
                await ledger.claim(run, release, event, 0, b"d" * 32, (0, 1))
            return Trained(shared, text)
        finally:
            await ledger.close()

    def statement(self, lineage):
        return statements(self.folder, lineage)[0]

    def inherits(self, lineage):
        return {each.account.lineage for each in self.statement(lineage).inherited}

    def spent(self, lineage):
        return self.statement(lineage).budget.spent

    def _reading(self, rows, name, by_user, record, key, shard):
        path = self.folder / name
        if path.suffix == ".csv":
            with path.open("w", newline="") as file:
                table = csv.DictWriter(file, list(rows[0]))
                table.writeheader()
                table.writerows(rows)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Reading(
            shard=ShardTable(source=str(path), **shard),
            record=record,
            by_user=by_user,
            cache=self.folder / "cache",
            frank=False,
            census=self.folder / "census",
            census_key=key,
        )


def spent_by(count):
    """What a budget says of so many charges and no others."""
    own = LifetimeFilter(CAP, 1e-6)
    return get_epsilon_gaussian(math.sqrt(own.order / (2 * own.spent([EVENT] * count))), 1e-6)


class Trained(NamedTuple):
    """Which lineages were found to share records, and whether text was used, or noise alone was to leave."""

    shared: tuple[str, ...]
    text: bool


@pytest.fixture
def archive(tmp_path):
    """A ledger without accounts."""
    return Archive(tmp_path)


async def over(waiting, reason=Reason.BUDGET):
    with pytest.raises(Refusal) as refusal:
        await waiting
    assert refusal.value.reason == reason
    return refusal.value.sentence


async def blank(waiting):
    """A training that is charged and answered like any other, without text."""
    trained = await waiting
    assert not trained.text
    return trained.shared


async def useless(waiting):
    """A training that is refused when it joins, or else goes on without text."""
    try:
        trained = await waiting
    except Refusal as refusal:
        trained = refusal
    assert trained.reason == Reason.BUDGET if isinstance(trained, Refusal) else not trained.text


@pytest.mark.slow
async def test_a_record_that_is_added_resets_nothing(archive):
    await archive.trains("north", ROWS, charges=3)
    spent = archive.spent("north")
    sentence = await over(archive.trains("north", [*ROWS, {"text": "one more", "who": "p9"}]))
    assert "this party's cap of epsilon 6 (delta 1e-06) for a document, added or removed" in sentence
    await archive.trains("north", [*ROWS, {"text": "one more", "who": "p9"}], charges=0)
    assert (archive.spent("north"), archive.statement("north").documents) == (spent, 21)
    assert archive.inherits("north") == set()


@pytest.mark.slow
async def test_a_lineage_with_another_name_inherits_and_tells_its_administrator_alone(archive):
    await archive.trains("north", ROWS, charges=3)
    assert await blank(archive.trains("south", ROWS)) == ("north",)
    assert archive.inherits("south") == {"north"}
    assert archive.spent("south") > archive.spent("north") > 0
    shares, blanked = [each.what for each in archive.statement("south").log[-2:]]
    assert "shares records with north" in shares
    assert "run run-2 is answered without text" in blanked
    assert [charge.blank for run in archive.statement("south").runs for charge in run.charged] == [True]


@pytest.mark.slow
async def test_what_is_answered_without_text_costs_nobody_else_anything(archive):
    await archive.trains("north", ROWS, charges=2)
    await blank(archive.trains("south", ROWS, charges=2))
    assert (archive.spent("north"), archive.spent("south")) == (spent_by(2), spent_by(4))
    assert (await archive.trains("north", ROWS)).text
    await over(archive.trains("south", ROWS, charges=2))  # its own charges count as a coordinator adds them up


async def test_without_text_a_run_goes_on_as_if_nothing_were_shared(archive):
    """Joining again, charging and masking again: what is refused is what the account alone cannot pay."""
    await archive.trains("north", ROWS, charges=3)
    archive.opens("south")
    ledger = await Ledger.open(archive.folder, "south", epsilon=CAP, delta=1e-6, simulation=False)
    wanted = [("counts", EVENT)] * 2
    try:
        await ledger.join("run", b"p" * 32, wanted)
        await ledger.join("other", b"p" * 32, wanted)
        key = await ledger.reserve("run", "counts", EVENT)
        await ledger.record(archive.folder / "census")
        assert not await ledger.afford("run", lambda: wanted, release="counts")
        await ledger.close()
        ledger = await Ledger.open(archive.folder, "south", epsilon=CAP, delta=1e-6, simulation=False)
        assert await ledger.blank("run")
        assert not await ledger.afford("run", list)
        await ledger.join("run", b"p" * 32, wanted)
        assert await ledger.mask("run", "counts", EVENT, 0, most=2) == key
        assert await ledger.mask("run", "counts", EVENT, 1, most=2) != key
        assert await ledger.charged("run") == (("counts", 0, EVENT), ("counts", 1, EVENT))
        await ledger.reserve("other", "counts", EVENT)
        assert await ledger.blank("other"), "found when it was charged, before any text was opened"
        assert not await ledger.afford("other", lambda: wanted, release="counts")
    finally:
        await ledger.close()
    assert archive.spent("north") == spent_by(3)


async def test_a_sum_of_text_is_not_masked_again_beyond_what_those_that_share_records_were_promised(archive):
    archive.opens("south")
    await archive.trains("north", ROWS, charges=1)
    ledger = await Ledger.open(archive.folder, "south", epsilon=CAP, delta=1e-6, simulation=False)
    try:
        await ledger.join("run", b"p" * 32, [("counts", EVENT)] * 2)
        await ledger.reserve("run", "counts", EVENT)
        await ledger.record(archive.folder / "census")
        assert await ledger.afford("run", lambda: [("counts", EVENT)] * 2, release="counts")
        for attempt in range(2):
            await ledger.mask("run", "counts", EVENT, attempt)
        assert "the ledger cannot pay for counts" in await over(ledger.mask("run", "counts", EVENT, 2))
    finally:
        await ledger.close()


async def test_it_is_charged_for_both_ways(archive):
    assert await archive.trains("north", ROWS, charges=1) == ((), True)
    assert await archive.trains("south", ROWS, charges=1) == (("north",), True)
    assert await archive.trains("south", ROWS, charges=0) == ((), True)
    assert archive.inherits("north") == {"south"}
    assert (await archive.trains("north", ROWS, charges=1)).text
    for lineage in ("north", "south"):
        await blank(archive.trains(lineage, ROWS))


async def test_a_shard_in_another_file_order_column_and_format_is_the_same_shard(archive):
    await archive.trains("north", ROWS, charges=3)
    other = [{"body": row["text"], "ward": "b"} for row in reversed(ROWS)]
    await blank(archive.trains("south", other, name="other.csv", text="body"))


async def test_a_shard_that_is_split_takes_its_past_to_both_halves(archive):
    await archive.trains("whole", ROWS, charges=2)
    await archive.trains("left", ROWS[:10], charges=1)
    assert archive.inherits("left") == {"whole"}
    await blank(archive.trains("right", ROWS[10:]))


async def test_shards_that_are_merged_bring_what_both_were_charged(archive):
    await archive.trains("left", ROWS[:10], charges=2)
    await archive.trains("right", ROWS[10:], charges=1)
    assert archive.inherits("left") == archive.inherits("right") == set()
    await blank(archive.trains("merged", ROWS))
    assert archive.inherits("merged") == {"left", "right"}


async def test_one_record_of_many_is_enough(archive):
    await archive.trains("north", ROWS, charges=3)
    strangers = [{"text": f"another archive's letter {number}", "who": f"q{number}"} for number in range(500)]
    await blank(archive.trains("south", [*strangers, ROWS[7]]))


async def test_edited_texts_are_known_by_their_user_or_their_id(archive):
    edited = [{"text": row["text"].upper(), "who": row["who"]} for row in ROWS]
    await archive.trains("north", ROWS, charges=3, user="who")
    await blank(archive.trains("by-user", edited, user="who", by_user=True))
    numbered = [row | {"number": f"n{number}"} for number, row in enumerate(ROWS)]
    await archive.trains(
        "numbered", [{"text": f"new {n}", "number": f"n{n}"} for n in range(3)], id="number", charges=3
    )
    await blank(archive.trains("by-id", numbered, id="number"))
    assert archive.inherits("numbered") == {"by-id", "by-user", "north"}


async def test_a_shard_with_nothing_in_common_inherits_nothing(archive):
    await archive.trains("north", ROWS, charges=3, user="who")
    other = [{"text": f"something else {number}", "who": f"q{number}"} for number in range(20)]
    assert await archive.trains("south", other, charges=3, user="who") == ((), True)
    assert archive.inherits("south") == archive.inherits("north") == set()


async def test_a_fresh_account_with_a_larger_cap_does_not_raise_the_cap_of_old_records(archive):
    await archive.trains("north", ROWS, charges=3)
    await blank(archive.trains("south", ROWS, epsilon=60.0))
    assert archive.statement("south").budget.left < 2.8
    assert archive.statement("south").budget.cap == 60.0


SHARED = "Signed in ink."
LETTERS = [{"text": f"This is letter {number}. It ends here."} for number in range(5)]


@pytest.mark.parametrize("unit", ["sentence", "pair"])
async def test_a_sentence_in_another_document_is_known_again_where_sentences_are_protected(archive, unit):
    """Else another lineage spends a second cap on it."""
    kind = {"unit": unit, "record": unit}
    await archive.trains("north", [*LETTERS, {"text": f"The first one. {SHARED}"}], charges=3, **kind)
    other = [{"text": f"Written elsewhere {number}."} for number in range(5)]
    assert await archive.trains("apart", other, charges=3, **kind) == ((), True)
    assert await blank(archive.trains("south", [{"text": f"{SHARED} The second one."}], **kind)) == ("north",)


async def test_documents_that_have_a_sentence_in_common_are_two_documents(archive):
    await archive.trains("north", [*LETTERS, {"text": f"The first one. {SHARED}"}], charges=3)
    assert (await archive.trains("south", [{"text": f"{SHARED} The second one."}], charges=3)).text


@pytest.mark.parametrize(
    ("first", "then"),
    [("document", "user"), ("user", "document"), ("document", "sentence"), ("sentence", "document"), ("pair", "user")],
)
async def test_of_accounts_for_different_units_of_one_text_the_first_goes_on_alone(archive, first, then):
    """A cap for a document says nothing of a user, and the other way round; whatever is left of either."""

    def kind(unit):
        record = unit if unit in ("sentence", "pair") else "document"
        return {"unit": unit, "record": record, "by_user": unit == "user", "user": "who", "epsilon": 60.0}

    assert (await archive.trains("one", ROWS, **kind(first))).text
    await useless(archive.trains("other", ROWS, **kind(then)))
    statement = archive.statement("other")
    assert statement.hindered == f"one was charged for a {first}, added or removed"
    assert statement.budget.left == 0.0
    assert (await archive.trains("one", ROWS, **kind(first))).text
    assert archive.inherits("one") == set()


@pytest.mark.slow
async def test_documents_and_users_of_other_texts_have_nothing_to_do_with_each_other(archive):
    other = [{"text": f"something else {number}", "who": f"q{number}"} for number in range(20)]
    await archive.trains("documents", ROWS, charges=3, user="who")
    assert (await archive.trains("users", other, charges=3, user="who", unit="user", by_user=True)).text


async def test_parts_of_documents_and_documents_are_taken_to_share_whatever_they_read(archive):
    """An account of documents has no hash of a sentence, so no sentence can be told to be none of its."""
    other = [{"text": f"Something else {number}."} for number in range(3)]
    await archive.trains("documents", ROWS)
    await useless(archive.trains("sentences", other, unit="sentence", record="sentence"))
    assert archive.statement("sentences").hindered == "documents was charged for a document, added or removed"
    assert (await archive.trains("documents", ROWS)).text


@pytest.mark.parametrize("first", [True, False])
async def test_a_simulation_and_private_text_share_no_record(archive, first):
    await archive.trains("one", ROWS, simulation=first, epsilon=60.0)
    await blank(archive.trains("other", ROWS, simulation=not first, epsilon=60.0))
    assert (
        archive.statement("other").hindered == f"one read some of them {'in a simulation' if first else 'in earnest'}"
    )


async def test_a_simulation_without_private_text_does_not_end_its_account(archive):
    await archive.trains("north", ROWS)
    await blank(archive.trains("trial", ROWS, simulation=True))
    assert (await archive.trains("north", ROWS)).text
    assert archive.inherits("north") == set()


@pytest.mark.parametrize("why", ["spent", "simulation", "unit", "own"])
async def test_joining_is_refused_in_the_same_words_whatever_stands_in_the_way(archive, why):
    """What is linked counts when a run joins, and no word or figure says whether it was that."""
    if why != "own":
        kind = {"simulation": {"simulation": True}, "unit": {"unit": "user", "by_user": True, "user": "who"}}.get(
            why, {}
        )
        await archive.trains("north", ROWS, charges=1 if kind else 3, **kind)
        await blank(archive.trains("south", ROWS, user="who"))
    else:
        await archive.trains("south", ROWS, charges=3)
    ledger = await Ledger.open(archive.folder, "south", epsilon=CAP, delta=1e-6, simulation=False)
    try:
        sentence = await over(ledger.join("new", b"p" * 32, [("counts", EVENT)]))
        assert await over(ledger.can_pay([("counts", EVENT)])) == sentence
        assert await ledger.joined("new") is None
    finally:
        await ledger.close()
    assert sentence == (
        "the ledger cannot pay for this plan within this party's cap of epsilon 6 (delta 1e-06) for a document, added "
        "or removed; its administrator sees what is left with party budget. (A cap over all runs to come counts a "
        "release for somewhat more than one plan does for itself.)"
    )


async def test_figures_that_may_be_served_to_others_are_the_accounts_own(archive):
    await archive.trains("north", ROWS, charges=2)
    assert (await archive.trains("south", ROWS, charges=1)).shared == ("north",)
    ledger = await Ledger.open(archive.folder, "south", epsilon=CAP, delta=1e-6, simulation=False)
    try:
        budget = await ledger.budget()
    finally:
        await ledger.close()
    assert budget.spent == spent_by(1)
    assert archive.spent("south") == spent_by(3)


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


WITHOUT_UNITS = "".join(
    f"ALTER TABLE {table} DROP COLUMN {column};"
    for table, column in [
        ("accounts", "unit"), ("accounts", "relation"), ("runs", "blank"),
        ("reservations", "blank"), ("reservations", "unsent"), ("reservations", "request"),
    ]
)  # fmt: skip


@pytest.fixture
def old(tmp_path):
    """A ledger from before units were counted: `north` was charged, `idle` never."""
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as sql:
        sql.executescript(OLD)
    return Archive(tmp_path)


async def test_an_old_ledger_is_read_as_it_is_and_brought_up_to_date_when_it_is_written(old):
    before = old.statement("north")
    assert (before.account.id, len(before.runs), before.documents) == ("a1", 1, 0)
    with pytest.raises(PartyError, match="party account open north"):
        await Ledger.open(old.folder, "north", epsilon=CAP, delta=1e-6, simulation=False)
    await old.trains("north", ROWS, charges=0)
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
            "DROP TABLE disclaimed; PRAGMA user_version = 3;" + WITHOUT_UNITS
        )
    unstated = archive.statement("north")
    assert unstated.account.protection is None
    assert (unstated.runs, unstated.budget) == (before.runs, before.budget)
    archive.opens("north")
    assert (before.documents, before.account.uncounted) == (20, False)
    ledger = await Ledger.open(tmp_path, "north", epsilon=CAP, delta=1e-6, simulation=False)
    try:
        (run,) = [each.run.id for each in before.runs]
        await ledger.disclaim(run, "release-0", 0)
        with pytest.raises(Refusal, match="stays charged"):
            await ledger.refund(run, "release-0", 0)
    finally:
        await ledger.close()
    after = archive.statement("north")
    assert (after.account, after.runs, after.budget) == (before.account, before.runs, before.budget)


def from_before_units(archive):
    """Bring a ledger back to before accounts kept what they protect."""
    with contextlib.closing(sqlite3.connect(archive.folder / "ledger.sqlite")) as sql:
        sql.executescript("PRAGMA user_version = 4;" + WITHOUT_UNITS)


async def test_an_old_account_that_was_never_charged_takes_its_unit_from_the_policy(archive):
    archive.opens("north")
    from_before_units(archive)
    assert archive.statement("north").account.protection is None
    assert (await archive.trains("north", ROWS, unit="user", by_user=True, user="who")).text
    assert archive.statement("north").account.protection == Protection("user")
    with pytest.raises(PartyError, match="was opened for a user, added or removed; the policy now says a document"):
        archive.opens("north")


async def test_an_old_account_that_was_charged_goes_on_when_its_unit_is_stated_and_not_before(archive):
    await archive.trains("north", ROWS)
    from_before_units(archive)
    with pytest.raises(PartyError, match=r"protected a document, added or removed, say so.*account open north"):
        await Ledger.open(archive.folder, "north", epsilon=CAP, delta=1e-6, simulation=False)
    await blank(archive.trains("south", ROWS))
    assert archive.statement("south").hindered == "nobody has stated what the charges to north protected"
    with pytest.raises(PartyError, match="A cap holds for the life of the data"):
        archive.opens("north", epsilon=60.0)
    assert archive.statement("north").account.protection is None
    archive.opens("north")
    statement = archive.statement("north")
    assert statement.account.protection == Protection()
    assert statement.log[-1].what == (
        "stated to be for a document, added or removed, with all that it was charged before"
    )
    assert (await archive.trains("north", ROWS)).text
    assert archive.statement("south").hindered == ""


async def test_a_simulation_from_before_units_were_kept_goes_on(archive):
    await archive.trains("north", ROWS, simulation=True)
    from_before_units(archive)
    ledger = await Ledger.open(archive.folder, "north", epsilon=CAP, delta=1e-6, simulation=True)
    await ledger.close()
    assert archive.statement("north").account.protection == Protection()


async def test_what_was_charged_before_units_were_counted_may_be_of_any_record(old):
    """Nobody can say which records those were, so no fresh name escapes them."""
    assert "the ledger cannot pay for" in await over(old.trains("south", ROWS))
    old.opens("north")
    await blank(old.trains("south", ROWS, charges=1))
    assert old.inherits("south") == old.inherits("idle") == {"north"}
    assert not old.statement("idle").account.uncounted


async def test_a_run_from_before_goes_on_under_an_account_from_before_alone(old):
    with contextlib.closing(sqlite3.connect(old.folder / "ledger.sqlite")) as sql:
        sql.execute("INSERT INTO runs VALUES ('open', x'70', 3.0, NULL)")
        sql.commit()
    for lineage in ("north", "idle", "south"):
        old.opens(lineage)
    for lineage, there in (("north", b"p"), ("south", None)):
        ledger = await Ledger.open(old.folder, lineage, epsilon=CAP, delta=1e-6, simulation=False)
        assert await ledger.joined("open") == there
        await ledger.close()
    assert old.inherits("south") == {"north", "idle"}


def test_an_update_that_is_cut_off_leaves_the_old_ledger(old):
    path = old.folder / "ledger.sqlite"
    child = os.fork()
    if not child:
        from party.ledger import database

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
async def test_a_node_under_another_lineage_answers_without_text_what_it_may_not_pay_for(opened, terms, tmp_path):
    """Real text, the real training process, a policy that one run exhausts. Nobody outside is told."""
    policy = {"epsilon": 5.5}
    again = await renamed(opened, tmp_path, terms(), terms(), policy=policy)
    assert (await again.train())[-1].finished
    await again.answer(again.batch(0, 0, 6))
    assert load_counts(tmp_path / "shared" / "runs" / again.run.run_id / "counts.counts.npz").nnz == 0
    assert [charge.release for (charge,) in wire(tmp_path)["fresh"]] == ["counts"]
    assert list((tmp_path / "shared").rglob(".*.census.part")) == []
    (tmp_path / "others.jsonl").write_text('{"text": "fish fish fish"}\n{"text": "apple door"}\n')
    await again.node.stop()
    other = await opened(
        plan=terms(), folder="shared", account="other", policy=policy, shard={"source": "others.jsonl"}
    )
    other.run.run_id = "run-3"
    await other.ready()
    await other.answer(other.batch(0, 0, 6))
    assert load_counts(tmp_path / "shared" / "runs" / "run-3" / "counts.counts.npz").nnz > 0
    assert len(wire(tmp_path)["other"]) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("trains_here")
async def test_a_private_training_that_inherits_too_much_is_one_of_nobodys_text(
    opened, terms, releases, tmp_path, monkeypatch
):
    read = []
    monkeypatch.setattr(process, "finished", _watched(process.finished, read))
    plan = terms(releases=releases("training", "free"), epsilon=20.0)
    again = await renamed(opened, tmp_path, terms(), plan, policy={"epsilon": 5.5})
    await again.provide_reference()
    del read[:]
    assert (await again.teach())[-1].finished
    assert read[-1] == NOTHING


def _watched(does, read):
    def watched(private, job, progress):
        read.append(job.shard["source"])
        return does(private, job, progress)

    return watched
