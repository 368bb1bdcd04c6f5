"""`party check`: every line is ok or says what to do, and no line shows the text."""

import contextlib
import json
import socket
import sqlite3
from datetime import UTC, datetime, timedelta

import pytest
from dp_accounting import GaussianDpEvent

from aggregation.accounting.price import LifetimeFilter
from learning.text import source
from party.admission import needs
from party.admission.admit import event_of
from party.admission.needs import Capacity, fits
from party.config import read_config
from party.console.checking import check
from party.console.checks import machine as looks
from party.console.checks.machine import needed_disk, needed_memory
from party.console.command import main
from party.ledger.ledger import Ledger
from party.shard.units import source_of
from party.shard_table import located
from protos.conclave.v1 import party_pb2
from protos.console.checklist import State
from protos.identity import validity
from protos.identity.authority import new_authority
from protos.identity.certificates import fingerprint
from protos.refusal import Reason, Refusal

TEXT = "another note"


def found(path):
    """The lines by what they are about."""
    return {line.what: line for line in check(path)}


def only_wrong(lines, *wanted):
    """Exactly these are to be done."""
    assert {what for what, line in lines.items() if line.state is State.TO_DO} == set(wanted), lines
    return lines[wanted[0]].said


def test_a_party_that_is_ready_is_ok_in_every_line(site, capsys):
    lines = check(site())
    assert [line.what for line in lines if line.state is not State.OK] == []
    assert [line.what for line in lines] == [
        *("party file", "certificates", "authority", "key", "revoked", "clock", "peers", "port", "folder", "account"),
        *("shard", "policy", "disk", "memory", "device", "versions"),
    ]
    assert main(["check", "--config", str(site())]) == 0
    said = capsys.readouterr().out
    assert said.count("\n") == len(lines)
    assert all(line.startswith("ok ") for line in said.splitlines())


def test_programs_get_the_same_lines_and_the_exit_code_says_whether_all_is_well(site, capsys):
    assert main(["check", "--config", str(site(text="note")), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False
    (wrong,) = [line for line in said["lines"] if line["state"] != "ok"]
    assert (wrong["what"], wrong["state"]) == ("shard", "to do")
    assert "note" in wrong["said"]


def test_a_wrong_party_file_is_a_line_too(tmp_path, capsys):
    assert main(["check", "--config", str(tmp_path / "none.toml")]) == 1
    assert "there is no such file" in capsys.readouterr().out


def test_no_text_of_a_record_is_shown(site, private_text, capsys):
    for changes in ({}, {"text": "note"}):
        main(["check", "--config", str(site(**changes))])
        main(["check", "--config", str(site(**changes)), "--json"])
    said = "".join(capsys.readouterr())
    assert not [word for word in private_text.split() if len(word) > 6 and word in said]


def test_the_shard_is_opened_and_its_first_record_alone_is_read(site, tmp_path, monkeypatch):
    path = site()
    (tmp_path / "notes.jsonl").write_text(f"{json.dumps({'text': TEXT})}\n" * 3)
    really, taken = source.read, []

    def counted(*arguments):
        for document in really(*arguments):
            taken.append(document.id)
            yield document

    monkeypatch.setattr(source, "read", counted)
    assert found(path)["shard"].state is State.OK
    assert len(taken) == 1


def test_a_spreadsheet_of_another_encoding_is_told_before_its_rows_are_lost(site, tmp_path):
    path = site(source="notes.csv")
    (tmp_path / "notes.csv").write_bytes("text,mood\nfirst,1\nschön,0\n".encode("cp1252"))
    line = found(path)["shard"]
    assert (line.state, line.said.partition("; but ")[2]) == (
        State.WARNING,
        'it looks like encoding = "cp1252": set that in [shard], or rows are lost',
    )
    assert found(site(source="notes.csv", shard='encoding = "cp1252"'))["shard"].state is State.OK
    assert "encoding = " in found(site(source="notes.csv", shard='encoding = "utf-16"'))["party file"].said


def test_a_workbook_of_several_sheets_is_read_once_the_party_says_which(site, tmp_path):
    openpyxl = pytest.importorskip("openpyxl", reason="the extra excel is not installed")
    book = openpyxl.Workbook()
    for title in ("2023", "2024"):
        sheet = book.create_sheet(title)
        for row in (["text", "mood"], [f"of {title}", 1]):
            sheet.append(row)
    book.save(tmp_path / "notes.xlsx")
    line = found(site(source="notes.xlsx"))["shard"]
    assert (line.state, 'sheet = "2023"' in line.said) == (State.TO_DO, True)
    path = site(source="notes.xlsx", shard='sheet = "2024"')
    assert found(path)["shard"].state is State.OK
    shard = located(read_config(path).shard, path.parent)
    assert [document.text for document in source.read(source_of(shard), tmp_path)] == ["of 2024"]


@pytest.mark.parametrize(
    ("values", "state", "said"),
    [
        (["yes"] * 3 + ["no"] * 2 + ["", None], State.OK, "'yes' 3, 'no' 2; none in 2 of the first 7 records"),
        ([""] * 3, State.WARNING, "; none in 3 of the first 3 records"),
        ([str(n % 5000) for n in range(6000)], State.WARNING, "and 4,992 more; none in 0 of the first 6,000 records"),
        (["x" * 50], State.OK, f"'{'x' * 20}' 1;"),
    ],
)
def test_what_the_columns_of_codes_hold_is_shown_to_the_administrator(site, tmp_path, values, state, said):
    path = site(shard='codes = { opinion = "stars" }')
    rows = [json.dumps({"text": TEXT, "stars": value}) for value in values]
    (tmp_path / "notes.jsonl").write_text("".join(f"{row}\n" for row in rows))
    line = found(path)["codes"]
    assert line.state is state
    assert 'opinion = "stars": ' in line.said
    assert said in line.said


def test_a_column_of_codes_that_is_not_there_is_a_line(site, tmp_path):
    path = site(shard='codes = { opinion = "stars" }')
    (tmp_path / "notes.jsonl").write_text(f"{json.dumps({'text': TEXT})}\n")
    assert "none in 1 of the first 1 records" in found(path)["codes"].said
    assert "codes" not in found(site())


def test_nothing_is_written(site, tmp_path):
    path = site(account=False)
    before = {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")}
    assert only_wrong(found(path), "account")
    assert {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("changes", "what", "said"),
    [
        ({"source": "gone.jsonl"}, "party file", "there is no such file or folder"),
        ({"text": "note"}, "shard", "note"),
        ({"account": False}, "account", "party account open"),
        ({"policy": "simulation = true"}, "account", "was opened for private text"),
        ({"top": 'account = "other"'}, "account", "has no account other"),
    ],
)
def test_what_is_missing_is_said_with_what_to_do(site, changes, what, said):
    assert said in only_wrong(found(site(**changes)), what)


def test_an_account_under_another_cap_is_told(site):
    path = site()
    path.write_text(path.read_text().replace("epsilon = 10.0", "epsilon = 11.0"))
    assert "was opened with epsilon = 10" in only_wrong(found(path), "account")


def test_an_account_for_another_unit_is_told(site):
    path = site()
    assert "is left for one more release, for a document, added or removed" in found(path)["account"].said
    path.write_text(path.read_text().replace("epsilon = 10.0", 'record = "sentence"\nepsilon = 10.0'))
    assert "was opened for a document, added or removed" in only_wrong(found(path), "account")


@pytest.mark.parametrize("charged", [False, True])
async def test_an_account_from_before_units_were_kept_is_told_where_it_was_charged(site, tmp_path, charged):
    path = site()
    home = tmp_path / "north.party"
    if charged:
        ledger = await Ledger.open(home, "north", epsilon=10.0, delta=1e-6, simulation=False)
        await ledger.join("run-1", b"hash", [])
        await ledger.reserve("run-1", "answers", GaussianDpEvent(4.0))
        await ledger.close()
    with contextlib.closing(sqlite3.connect(home / "ledger.sqlite", isolation_level=None)) as sql:
        sql.execute("UPDATE accounts SET unit = NULL, relation = NULL")
    line = found(path)["account"]
    assert (line.state is State.OK) is not charged
    assert "say so, for good and on record: party account open north" in line.said or not charged


async def test_what_is_left_of_the_account_is_what_the_ledger_admits(site, releases, tmp_path):
    path = site()
    event = event_of(releases("joint")[0])
    ledger = await Ledger.open(tmp_path / "north.party", "north", epsilon=10.0, delta=1e-6, simulation=False)
    await ledger.join("run-1", b"hash", [("answers", event)])
    await ledger.reserve("run-1", "answers", event)
    await ledger.close()
    left = LifetimeFilter(10.0, 1e-6).left([event])
    (said,) = [line.said for line in check(path) if line.what == "account"]
    assert f"epsilon {int(left * 1000) / 1000:g} of 10 at delta 1e-06 is left for one more release" in said


def test_a_key_that_others_may_read_is_told_with_the_command(site, tmp_path):
    path = site()
    (tmp_path / "north.key").chmod(0o640)
    lines = found(path)
    only_wrong(lines, "key", "certificates")
    assert lines["key"].said.endswith(f"Run: chmod 600 {tmp_path / 'north.key'}")


def test_a_certificate_of_another_authority_is_told(site, authority):
    other = new_authority("others")
    said = only_wrong(found(site(authority=fingerprint(other.certificate))), "certificates")
    assert fingerprint(authority.certificate) in said


def test_a_certificate_that_will_end_soon_is_a_warning_and_one_that_ended_is_to_be_renewed(site):
    soon = found(site(days=20))
    only = [line.what for line in soon.values() if line.state is State.WARNING]
    assert only == ["certificates"]
    ended = found(site(days=10, not_before=datetime.now(UTC) - timedelta(days=20)))
    assert "expired" in only_wrong(ended, "certificates")


def test_an_authority_that_will_end_soon_is_a_warning(site, monkeypatch):
    path = site()
    monkeypatch.setattr(validity, "EXPIRING", timedelta(days=20_000))
    lines = found(path)
    assert [what for what, line in lines.items() if line.state is State.WARNING] == ["certificates", "authority"]
    assert "has to make a new one before (coordinator provision federation)" in lines["authority"].said


def test_a_ledger_that_a_newer_version_wrote_is_told(site, tmp_path):
    path = site()
    with contextlib.closing(sqlite3.connect(tmp_path / "north.party" / "ledger.sqlite")) as sql:
        sql.execute("PRAGMA user_version = 99")
    assert "newer version of Conclave. Install that one here." in only_wrong(found(path), "account")


def test_a_clock_that_is_behind_the_certificates_is_told(site):
    lines = found(site(not_before=datetime.now(UTC) + timedelta(hours=1)))
    only_wrong(lines, "clock", "certificates")
    assert "Set this machine's clock" in lines["clock"].said


def test_the_revocation_list_is_looked_at(site, tmp_path):
    path = site()
    (tmp_path / "revoked.pem").unlink()
    lines = found(path)
    only_wrong(lines, "revoked", "certificates")
    path.write_text(path.read_text().replace('revoked = "revoked.pem"', ""))
    assert found(path)["revoked"].state is State.WARNING


def test_a_port_in_use_is_told(site):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in only_wrong(found(site(port=port)), "port")


def test_a_folder_that_others_may_enter_is_told(site, tmp_path):
    path = site()
    (tmp_path / "north.party").chmod(0o755)
    assert only_wrong(found(path), "folder").endswith(f"Run: chmod 700 {tmp_path / 'north.party'}")


def test_a_delta_that_shows_a_whole_record_of_so_many_is_a_warning(site):
    lines = found(site(policy="declared_size = 2_000_000"))
    only = [line for line in lines.values() if line.state is State.WARNING]
    assert [line.what for line in only] == ["policy"]
    assert "5e-07" in only[0].said
    assert found(site(policy="declared_size = 900_000"))["policy"].state is State.OK


@pytest.mark.parametrize(
    ("peers", "policy", "said"),
    [
        ("", "", "none pinned: every other party may be made up"),
        ("", 'trust = "trusted-aggregator"', "a plan that counts on the noise of others is refused"),
        (f'north = "SHA256:{"0" * 64}"', "", "none pinned"),
        (f'south = "SHA256:{"0" * 64}"', "minimum_parties = 3", "less than minimum_parties = 3, so every plan is"),
    ],
)
def test_company_that_is_too_small_for_any_plan_is_a_warning(site, peers, policy, said):
    lines = found(site(peers=peers, policy=policy))
    only = [line for line in lines.values() if line.state is not State.OK]
    assert [(line.what, line.state, said in line.said) for line in only] == [("peers", State.WARNING, True)]


@pytest.mark.parametrize("trust", ["secure-sum", "trusted-aggregator"])
def test_whom_the_policy_trusts_is_shown(site, trust):
    assert f"trust {trust}" in found(site(policy=f'trust = "{trust}"'))["policy"].said
    assert "trust secure-sum" in found(site())["policy"].said


def test_plain_text_in_a_simulation_needs_no_certificates(tmp_path):
    (tmp_path / "notes.jsonl").write_text('{"text": "public"}\n')
    path = tmp_path / "party.toml"
    path.write_text(
        'name = "north"\nlisten = "127.0.0.1:0"\nplaintext = true\n[shard]\nsource = "notes.jsonl"\n'
        '[policy]\nepsilon = 10.0\ndelta = 1e-6\nrecipes = ["dped"]\nsimulation = true\n'
    )
    lines = found(path)
    assert {line.state for line in lines.values()} == {State.OK}
    assert "plain text" in lines["certificates"].said
    assert "key" not in lines


@pytest.mark.parametrize(
    ("to", "wrong"),
    [
        ("spans.jsonl", ""),
        ("notes.jsonl", ""),
        ("http://127.0.0.1:1", ""),
        ("nowhere/spans.jsonl", "Name another file in [traces] to."),
        ("north.party", "Is a directory"),
        ("ftp://collector", "is no address of a collector"),
    ],
)
def test_traces_can_go_where_the_file_says_or_the_line_says_why_not(site, tmp_path, to, wrong):
    pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
    path = site()
    path.write_text(f'{path.read_text()}[traces]\nto = "{to}"\n')
    shard = (tmp_path / "notes.jsonl").read_bytes()
    lines = found(path)
    if wrong:
        assert wrong in only_wrong(lines, "traces")
    else:
        assert lines["traces"].state is State.OK
        assert to in lines["traces"].said
    assert (tmp_path / "notes.jsonl").read_bytes() == shard
    assert not list(tmp_path.rglob("spans.jsonl"))


@pytest.fixture
def machine(monkeypatch):
    """A machine with so much free memory and disk."""

    def has(memory, disk):
        for each in (looks, needs):
            monkeypatch.setattr(each, "free_memory", lambda: memory)
            monkeypatch.setattr(each, "free_disk", lambda folder: disk)

    return has


def test_room_is_measured_against_a_stated_rule(site, machine):
    path = site()
    machine(needed_memory(), needed_disk())
    lines = found(path)
    assert (lines["memory"].state, lines["disk"].state) == (State.OK, State.OK)
    machine(needed_memory() - 1, needed_disk() - 1)
    only_wrong(found(path), "memory", "disk")
    machine(None, needed_disk())
    assert found(path)["memory"].state is State.WARNING


def test_a_shard_with_users_needs_room_to_be_sorted(site, machine, tmp_path):
    path = site(shard='user = "text"')
    size = (tmp_path / "notes.jsonl").stat().st_size
    machine(needed_memory(), needed_disk() + size - 1)
    only_wrong(found(path), "disk")
    machine(needed_memory(), needed_disk() + size)
    assert found(path)["disk"].state is State.OK


def test_a_run_that_does_not_fit_is_told_in_a_sentence_without_the_partys_paths(machine, tmp_path):
    needs = party_pb2.Needs(memory_bytes=3 * 10**9, disk_bytes=5 * 10**9)
    assert fits(needs, Capacity(5 * 10**9, 3 * 10**9)) is None
    assert "2.0 GB of memory are free" in fits(needs, Capacity(5 * 10**9, 2 * 10**9))
    assert "3.0 GB" in fits(needs, Capacity(5 * 10**9, 2 * 10**9))
    machine(3 * 10**9, 4 * 10**9)
    room = Capacity.of(tmp_path, frank=True)
    assert "4.0 GB of disk are free" in fits(needs, room)
    assert str(tmp_path) not in fits(needs, room)


def test_needs_that_nobody_stated_and_memory_that_no_system_tells_are_not_looked_at(machine, tmp_path):
    assert fits(party_pb2.Needs(), Capacity(0, 0)) is None
    machine(None, 1)
    assert fits(party_pb2.Needs(memory_bytes=1), Capacity.of(tmp_path, frank=False)) is None


def test_what_is_free_beside_private_text_is_told_coarsely(machine, tmp_path):
    machine(3_999_999_999, 5_000_000_001)
    assert Capacity.of(tmp_path, frank=False) == Capacity(5 * 10**9, 3 * 10**9)
    assert Capacity.of(tmp_path, frank=True) == Capacity(5_000_000_001, 3_999_999_999)


@pytest.mark.slow
async def test_a_coordinator_that_asks_again_and_again_what_fits_reads_no_size_of_text_or_sums(
    machine, opened, trains_here
):
    """Free bytes to the last, by bisection, around a training, would tell how many cells of a sum are not 0."""

    async def free(caller):
        low, high = 0, 1 << 50
        while high - low > 1:
            middle = (low + high) // 2
            try:
                await caller.join(check_only=True, needs=party_pb2.Needs(disk_bytes=middle))
                low = middle
            except Refusal:
                high = middle
        return low

    machine(3 * 10**9, 5_000_123_456)
    caller = await opened()
    before = await free(caller)
    await caller.ready()
    machine(3 * 10**9, 5_000_120_000)  # what a sum of some non-zeros took
    assert await free(caller) == before == 5 * 10**9


async def test_a_coordinator_cannot_fill_the_disk_to_see_how_much_of_it_is_free(machine, opened):
    machine(3 * 10**9, 2_000_000_000)
    caller = await opened()
    await caller.join()
    caller.node.verbs._intake._most = 10_000  # of half the disk
    await caller.provide(b"a" * 4000)
    other = await opened(node=caller.node)
    other.run.run_id = "run-2"
    await other.join()
    await other.provide(b"b" * 4000)
    with pytest.raises(Refusal, match="all runs together would leave 12,288 bytes of artefacts here") as refusal:
        await other.provide(b"c" * 4000)
    assert refusal.value.reason == Reason.ARTEFACT


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        pytest.param(
            'device = "cuda:99"', 'There is no device "cuda:99" on this machine. It has ', marks=pytest.mark.slow
        ),
        ("threads = 4000", "threads = 4000 are more than the "),
    ],
)
def test_what_is_asked_of_this_machine_and_is_not_there_is_to_be_done(site, keys, said):
    wrong = only_wrong(found(site(peers=f'south = "SHA256:{"0" * 64}"\n[compute]\n{keys}')), "device")
    assert f"[compute]: {said}" in wrong


def test_the_device_is_told_with_its_precision_and_threads(site):
    line = found(site(peers=f'south = "SHA256:{"0" * 64}"\n[compute]\ndevice = "cpu"\nthreads = 1'))["device"]
    assert line.state is State.OK
    assert line.said.startswith("text models run on cpu in float32, 1 of ")
