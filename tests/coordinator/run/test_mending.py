"""A run under a plan that was mended: where nothing was spent it goes on in its folder, and where something was it says
what. A coordinator that lies about it gains nothing.

The parties are nodes of this process, which read their own text and keep their own ledgers.
"""

import asyncio
import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from coordinator import api
from coordinator.console.command import main
from coordinator.errors import PartyLost, PartyRefused, PlanError, RunError
from coordinator.federation.federation import Federation
from coordinator.federation.sum_attempt import SumRun
from coordinator.run import mending
from coordinator.store.index import RunIndex
from coordinator.store.store import FAILED, FINISHED, RESUMABLE, RunStore
from coordinator.transport.grpc_link import GrpcLink
from party.ledger.ledger import Ledger

pytestmark = pytest.mark.slow

PARTIES = ("party-1", "party-2", "party-3", "party-4")
STEPS = 4
WRONG = {"values": ["bad", "fine"]}
"""A label map that fits no row: films hold 0 and 1."""


def kept(folder, statement):
    """What every party's ledger has, by its name."""
    found = {}
    for name in PARTIES:
        with closing(sqlite3.connect(folder / "parties" / name / "ledger.sqlite")) as sql:
            found[name] = sql.execute(statement).fetchall()
    return found


def charges(folder):
    return kept(folder, "SELECT run, release, attempt FROM reservations ORDER BY id")


def once(run):
    return [(run, f"steps.{number}", 0) for number in range(STEPS)]


def written(path, tables):
    """The tables as a plan file, whose keys are TOML's."""
    lines = []

    def value(given):
        if isinstance(given, dict):
            return "{ " + ", ".join(f"{key} = {value(each)}" for key, each in given.items()) + " }"
        return json.dumps(given)

    for table, keys in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{key} = {value(each)}" for key, each in keys.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


def every(value):
    """The same for each party."""
    return dict.fromkeys(PARTIES, value)


class Killed(BaseException):
    """What ends a coordinator between two words."""


def dies(*given):
    raise Killed


def killed(act, *patched):
    """Do something in which the coordinator dies where this is patched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*patched)
        with pytest.raises(Killed):
            act()


@pytest.fixture
def plans(classifier_tables, tmp_path):
    """`plans(**changes)`: a plan file with changed tables, always the same file."""
    evaluation = {"values": ["0", "1"]}
    path = tmp_path / "plan.toml"

    def makes(**changes):
        return written(path, classifier_tables(**({"evaluation": evaluation} | changes)))

    return makes


@pytest.fixture
def failed(here, plans, tmp_path):
    """The folder of a run whose label map fits no row: its parties refused it."""
    folder = tmp_path / "run"
    with pytest.raises(PartyRefused, match="refused to join: the shard has no example") as refused:
        api.run(plans(text=WRONG), output=folder)
    assert "Nothing was spent." in str(refused.value)
    assert f"coordinator resume {RunIndex().find(str(folder)).id}" in str(refused.value)
    return folder


class Lines:
    """A progress that keeps what is said."""

    def __init__(self):
        self.said = []

    def say(self, line):
        self.said.append(line)

    def party(self, name, state): ...

    def bar(self, label, done, total, note=""): ...

    def expect(self, stages, whole): ...


def test_a_label_map_that_fits_no_row_is_mended_and_the_run_goes_on_and_is_charged_once(
    failed, plans, here, tmp_path, private_but_for_the_student
):
    assert charges(failed) == every([]), "a simulation is told before anything is charged"
    with closing(RunStore(failed)) as store:
        run = store.id
        assert store.status() == FAILED
    cached = {path: path.stat().st_mtime_ns for path in (tmp_path / "home/cache").rglob("*") if path.is_file()}
    lines = Lines()
    plans()  # the same file, mended
    result = api.resume(run, progress=lines)
    assert result.verdict.ok, result.verdict.checks
    assert result.run == run
    assert result.student == failed / "student"
    assert charges(failed) == every(once(f"{run}-2"))
    (told,) = [line for line in lines.said if "mended" in line]
    assert "text.values differ. Nothing was spent before" in told
    assert f"as run {run}-2" in told
    assert "are kept as prepared" in told
    assert {path: path.stat().st_mtime_ns for path in cached} == cached, "what was prepared is not made again"
    private_but_for_the_student(failed)
    (entry,) = api.runs()
    assert (entry.id, entry.status, entry.folder) == (run, FINISHED, failed)
    with closing(RunStore(failed)) as store:
        assert entry.plan_hash == store.plan_hash.hex()
        (former,) = store.fact("former")
        assert former["run"] == run
        assert former["plan_hash"] != entry.plan_hash
    assert RunIndex().find(f"{run}-2").id == run, "a party's administrator knows it by that id"


def test_the_same_is_told_at_the_command_line(failed, plans, capsys):
    plans()
    assert main(["resume", str(failed)]) == 0
    said = capsys.readouterr()
    assert "the plan was mended: text.values differ" in said.err + said.out
    assert main(["verify", str(failed / "student")]) == 0
    assert main(["report", str(failed)]) == 0


def test_every_party_has_signed_that_the_earlier_plan_cost_it_nothing(here, plans, tmp_path, monkeypatch):
    """Three join, and the fourth refuses by its own file: what the three were charged, they say before they leave."""
    here.changes["party-4"] = {"shard": {"labels": ["positive", "negative"], "values": ["1", "0"]}}
    folder, join, joined = tmp_path / "run", GrpcLink.join, set()

    async def last(link, *given, **more):
        while link.name == "party-4" and len(joined) < 3:
            await asyncio.sleep(0.01)
        found = await join(link, *given, **more)
        joined.add(link.name)
        return found

    monkeypatch.setattr(GrpcLink, "join", last)
    with pytest.raises(PartyRefused, match=r"policy \[shard\] labels: of 2 classes"):
        api.run(plans(), output=folder)
    here.changes.clear()
    with closing(RunStore(folder)) as store:
        run, unspent = store.id, store.fact("unspent")
        assert store.fact("left")
    assert set(unspent) == set(PARTIES[:3])
    ended = kept(folder, "SELECT left_at IS NOT NULL FROM runs")
    assert ended == every([(1,)]) | {"party-4": []}, "it ended at every party that joined"
    result = api.resume(folder)  # the same plan: the party was mended
    assert result.verdict.ok
    assert charges(folder) == every(once(f"{run}-2"))


@pytest.fixture
def joined(here, plans, tmp_path):
    """The folder of a run whose coordinator was killed when every party had joined."""
    stage = RunStore._begin

    def begins(store, name):
        return dies() if name == "provide" else stage(store, name)

    folder = tmp_path / "run"
    killed(lambda: api.run(plans(), output=folder), RunStore, "_begin", begins)
    assert kept(folder, "SELECT left_at FROM runs") == every([(None,)])
    return folder


def test_parties_that_joined_sign_that_nothing_was_charged_and_leave_the_earlier_plan(joined, plans):
    lines = Lines()
    result = api.resume(joined, plan=plans(dp_sgd={"learning_rate": 0.2}), progress=lines)
    assert result.verdict.ok
    assert any("dp_sgd.learning_rate differ" in line for line in lines.said), lines.said
    with closing(RunStore(joined)) as store:
        (former,) = store.fact("former")
    assert set(former["signed"]) == set(PARTIES)
    ended = kept(joined, f"SELECT left_at IS NOT NULL FROM runs WHERE id = '{result.run}'")
    assert ended == every([(1,)])
    assert charges(joined) == every(once(f"{result.run}-2"))


def test_a_mended_epsilon_takes_another_account_of_parties_that_the_run_starts(joined, plans):
    """A cap holds for an account's life, of a simulation's, too."""
    result = api.resume(joined, plan=plans(privacy={"epsilon": 9.0}))
    assert result.verdict.ok
    found = kept(
        joined,
        "SELECT lineage, run FROM reservations JOIN accounts ON accounts.id = reservations.account GROUP BY 1, 2",
    )
    assert found == {name: [(f"{name}-2", f"{result.run}-2")] for name in PARTIES}


@pytest.fixture
def charged(here, plans, tmp_path):
    """A run that was charged for its first step and then failed; its folder and id."""
    folder = tmp_path / "run"

    killed(lambda: api.run(plans(privacy={"trust": "secure-sum"}), output=folder), SumRun, "run", dies)
    with closing(RunStore(folder)) as store:
        assert not store.released(), "its own record does not show that anything was spent"
        return folder, store.id


def test_what_a_ledger_was_charged_under_the_earlier_plan_is_named_and_nothing_changes(charged, plans, here):
    folder, run = charged
    assert charges(folder) == every([(run, "steps.0", 0)])
    with pytest.raises(RunError, match=r"text\.values differ\. Charged: party party-1 for steps\.0; party") as refused:
        api.resume(folder, plan=plans(privacy={"trust": "secure-sum"}, text=WRONG | {"values": ["1", "0"]}))
    assert "Restore the plan to resume the run, or start a new run" in str(refused.value)
    assert refused.value.code == "C108"
    assert charges(folder) == every([(run, "steps.0", 0)])
    result = api.resume(folder, plan=plans(privacy={"trust": "secure-sum"}))
    assert result.verdict.ok, "the run goes on under its own plan"
    assert charges(folder) == every(once(run))


def test_a_stored_sum_is_refused_before_any_party_is_asked(here, plans, tmp_path, monkeypatch):
    folder = tmp_path / "run"

    killed(lambda: api.run(plans(), output=folder), RunStore, "drop_blocks", dies)
    monkeypatch.setattr(here, "launch", None)
    with pytest.raises(PlanError, match=r"Parties were charged for steps\.0 ") as no:
        api.resume(folder, plan=plans(text={"values": ["1", "0"]}))
    assert "text.values differ" in str(no.value)
    assert no.value.code == "C108"


def test_a_party_that_does_not_say_what_it_was_charged_holds_the_mended_plan_back(charged, plans, monkeypatch):
    """Its ledger is the judge: no word of the coordinator's stands for it."""
    folder, run = charged
    ledgers = mending.ledgers

    async def silent(*given, **more):
        told = await ledgers(*given, **more)
        told.spent.clear()
        told.signed.pop("party-2", None)
        told.strange.add("party-2")
        return told

    monkeypatch.setattr(mending, "ledgers", silent)
    with pytest.raises(PartyLost, match="party party-2 does not say whether the run cost it anything"):
        api.resume(folder, plan=plans(privacy={"trust": "secure-sum"}, text={"values": ["1", "0"]}))
    with closing(RunStore(folder)) as store:
        assert store.joined_as == run
        assert store.status() == RESUMABLE


def lies(monkeypatch):
    """A coordinator that says that nothing was spent, whatever ledgers say."""

    async def nothing(*given, **more):
        return mending.Told(signed={})

    monkeypatch.setattr(mending, "ledgers", nothing)
    monkeypatch.setattr(mending, "_unknown", lambda *given, **more: iter(()))
    monkeypatch.setattr(mending, "_check_unspent", lambda *given: None)


def test_a_coordinator_that_lies_pays_again_and_gets_no_key_of_the_earlier_plan(charged, plans, monkeypatch):
    folder, run = charged
    before = kept(folder, "SELECT run, event, hex(noise_key) FROM reservations")
    lies(monkeypatch)
    result = api.resume(folder, plan=plans(privacy={"trust": "secure-sum"}, text={"values": ["1", "0"]}))
    assert result.verdict.ok
    assert charges(folder) == every([(run, "steps.0", 0), *once(f"{run}-2")])
    after = kept(folder, "SELECT run, event, hex(noise_key) FROM reservations ORDER BY id")
    for name in PARTIES:
        assert after[name][0][:2] == before[name][0][:2], "the earlier charge stands"
    whole = {name: [each for each in rows if each[0] == f"{run}-2"] for name, rows in after.items()}
    assert all(len(rows) == STEPS for rows in whole.values())


def test_keys_of_the_mended_plan_are_drawn_anew(charged, plans, monkeypatch):
    """The noise keys of both, as reserved: no key of the one is a key of the other."""
    folder, run = charged
    drawn, reserve = [], Ledger.reserve

    async def notes(ledger, run, release, *given, **more):
        key = await reserve(ledger, run, release, *given, **more)
        drawn.append((ledger.account, run, release, key))
        return key

    earlier = {bytes.fromhex(key) for rows in kept(folder, "SELECT hex(noise_key) FROM reservations").values()
               for (key,) in rows}  # fmt: skip
    lies(monkeypatch)
    monkeypatch.setattr(Ledger, "reserve", notes)
    api.resume(folder, plan=plans(privacy={"trust": "secure-sum"}, text={"values": ["1", "0"]}))
    assert {each[1] for each in drawn} == {f"{run}-2"}
    assert earlier.isdisjoint(key for *_, key in drawn)
    assert len({key for *_, key in drawn}) == len(PARTIES) * STEPS


def test_a_coordinator_that_keeps_the_earlier_id_is_refused_by_every_party(failed, plans, here, monkeypatch):
    """Even where nothing was charged: an id stands for one plan, so no charge, key or attempt ever serves another."""
    asks = mending.begin_anew

    def same(store, **facts):
        asks(store, **facts | {"joined_as": store.id})

    async def stays(*given, **more):
        return mending.Told()

    monkeypatch.setattr(mending, "begin_anew", same)
    monkeypatch.setattr(mending, "ledgers", stays)
    plans(dp_sgd={"learning_rate": 0.2})
    opened = Federation.open

    async def twice(federation, run_id, priced, **more):
        await opened(federation, run_id, priced, **more)
        binding = type(priced.binding)()
        binding.CopyFrom(priced.binding)
        binding.terms.seed += 1
        await opened(federation, run_id, replace(priced, binding=binding), **more)

    monkeypatch.setattr(Federation, "open", twice)
    with pytest.raises(PartyRefused, match="is bound to another plan here; start a new run"):
        api.resume(failed)
    assert charges(failed) == every([])


def test_a_coordinator_that_lies_is_stopped_by_the_cap(here, plans, tmp_path, monkeypatch):
    """What was charged counts: an account that is spent pays for no mended plan."""
    folder = tmp_path / "run"

    secure = {"trust": "secure-sum"}
    here.changes = every({"policy": {"epsilon": 3.0}})
    last = (RunStore, "drop_blocks", lambda store, release: dies() if release == "steps.3" else None)
    killed(lambda: api.run(plans(privacy=secure), output=folder), *last)
    run = RunIndex().find(str(folder)).id
    lies(monkeypatch)
    mended = plans(privacy=secure, dp_sgd={"learning_rate": 0.2})
    with pytest.raises(PartyRefused, match="refused to join: the ledger cannot pay for this plan") as refused:
        api.resume(folder, plan=mended)
    assert refused.value.code == "C601"
    assert charges(folder) == every(once(run))


def test_a_cancelled_or_finished_run_is_not_mended(failed, plans):
    plans()
    api.resume(failed)
    with pytest.raises(RunError, match="is finished"):
        api.resume(failed, plan=plans(dp_sgd={"learning_rate": 0.2}))


def test_files_of_the_earlier_plan_are_gone_also_after_a_kill(failed, plans, monkeypatch):
    (failed / "artefacts").mkdir(exist_ok=True)
    (failed / "artefacts/student.safetensors").write_bytes(b"of the earlier plan")
    plans()

    killed(lambda: api.resume(failed), "coordinator.store.mending.remove_stale", dies)
    assert (failed / "artefacts/student.safetensors").exists()
    result = api.resume(failed)
    assert result.verdict.ok
    assert (failed / "artefacts/student.safetensors").read_bytes() != b"of the earlier plan"


def test_parties_that_a_run_starts_by_itself_join_the_mended_plan(plans, tmp_path, monkeypatch):
    """The same over processes: the run's own Ray, its actors, and ledgers on disk between the two starts."""
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    folder = tmp_path / "run"
    with pytest.raises(PartyRefused, match="refused to join: the shard has no example"):
        api.run(plans(text=WRONG), output=folder)
    result = api.resume(folder, plan=plans())
    assert result.verdict.ok, result.verdict.checks
    assert charges(folder) == every(once(f"{result.run}-2"))
