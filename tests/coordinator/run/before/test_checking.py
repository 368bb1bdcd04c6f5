"""`coordinator check`: parties on real ports are asked whether they would join, and nothing is bound or spent."""

import asyncio
import json
import socket
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator.console.command import main
from coordinator.federation import roll_call
from coordinator.federation.roll_call import clock_line
from coordinator.identity import provisioning
from coordinator.run.before import checking
from coordinator.run.before.checking import check
from coordinator.transport import reachable
from party.config import check_config
from party.dialling.destination import destination
from party.ledger.runs import read_runs
from party.node.lifecycle import start
from protos import PROTOCOL_VERSION, software_version
from protos.console.checklist import State
from protos.identity import validity
from protos.identity.identity import write_private
from protos.identity.requests import key_pem, make_request, new_keys

PLAN = """
[run]
name = "checked"
recipe = "dped"
[privacy]
epsilon = 8.0
delta = 1e-6
[federation]
launch = "connect"
deadline_seconds = 20
{federation}
[vocabulary]
source = "public.jsonl"
size = 12
like_parties = true
[dped]
signals = ["counts"]
dimension = 4
[student]
publish = "published"
"""
SHARDS = '[federation.shards]\nsource = "letters.jsonl"\nsplit = { parties = 3 }'
NAMES = ("north", "south")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    words = ["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op", "qr", "st", "uv", "wx"]
    rows = [json.dumps({"text": " ".join(words[number % 5 :])}) for number in range(20)]
    for name in ("public.jsonl", "letters.jsonl"):
        (tmp_path / name).write_text("\n".join(rows))
    return tmp_path


@pytest.fixture
def federation(home):
    """The folder of a federation that vouches for the parties of these tests; with their keys beside it."""
    folder = home / "federation"
    told = provisioning.make(folder, "coordinator.test")
    for name in (*NAMES, "east"):
        keys = new_keys()
        write_private(home / f"{name}.key", key_pem(*keys))
        (home / f"{name}.request").write_bytes(make_request(name, *keys))
        request = provisioning.request_of(home / f"{name}.request")
        provisioning.sign(folder, home / f"{name}.request", told=request.fingerprint)
    return told


@pytest.fixture
async def serve(home, federation):
    """`await serve(name, policy, **tables)`: the party's node on a free port; its address."""
    async with AsyncExitStack() as nodes:

        async def serves(name, policy=None, dials=None, **tables):
            own = {"certificate": f"{name}.pem", "key": f"{name}.key", "authority": federation}
            whole = {
                "name": name,
                "listen": "127.0.0.1:0",
                "shard": {"source": "public.jsonl"},
                "policy": {"epsilon": 20.0, "delta": 1e-6, "recipes": ["dped"], "simulation": True} | (policy or {}),
                "identity": own,
            }
            if tables.get("plaintext"):
                del whole["identity"]
            node = await start(check_config(whole | tables, "party.toml"), base=home, dials=dials)
            await nodes.enter_async_context(node)
            return node.address

        yield serves


def written(home, addresses, identity='identity = "federation"', **changes):
    parties = ", ".join(f'{{ name = "{name}", address = "{address}" }}' for name, address in addresses.items())
    text = PLAN.format(federation=f"{identity}\nparties = [{parties}]")
    for one, other in changes.pop("replaced", ()):
        text = text.replace(one, other)
    (home / "plan.toml").write_text(text)
    return home / "plan.toml"


async def found(path):
    """The lines by what they are about; the check has a loop and a thread of its own."""
    return {line.what: line for line in await asyncio.to_thread(check, path)}


@pytest.mark.slow
async def test_public_text_that_nobody_has_called_the_parties_kind_is_a_warning(home, serve):
    addresses = {name: await serve(name) for name in NAMES}
    lines = await found(written(home, addresses, replaced=[("like_parties = true", "")]))
    assert lines["public"].state is State.WARNING
    assert "nobody has said that public.jsonl is text of the kind that the parties hold" in lines["public"].said
    assert {line.state for what, line in lines.items() if what != "public"} == {State.OK}


def only_wrong(lines, *wanted):
    """Exactly these are to be done."""
    assert {what for what, line in lines.items() if line.state is State.TO_DO} == set(wanted), lines
    return lines[wanted[0]].said


def unused():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def test_a_federation_that_is_ready_is_ok_in_every_line_and_is_bound_to_nothing(home, serve):
    addresses = {name: await serve(name) for name in NAMES}
    lines = await found(written(home, addresses))
    assert {line.state for line in lines.values()} == {State.OK}, lines
    own = ["plan", "device", "identity", "store", "publish", "memory", "disk"]
    asked = [f"{name} {what}" for name in NAMES for what in ("address", "name", "versions", "clock", "plan", "device")]
    assert list(lines) == [*own, *asked, "versions"]
    for name in NAMES:
        assert read_runs(home / f"{name}.party" / "ledger.sqlite") == ()
        assert not list((home / f"{name}.party").glob("runs/*"))


def dialling(home, *, listen, addresses):
    """A plan whose north dials."""
    entries = "".join(f', {{ name = "{name}", address = "{address}" }}' for name, address in addresses.items())
    parties = f'identity = "federation"\nlisten = "{listen}"\nparties = [{{ name = "north", dials = true }}{entries}]'
    (home / "plan.toml").write_text(PLAN.format(federation=parties))
    return home / "plan.toml"


@pytest.mark.slow
async def test_a_party_that_dials_is_waited_for_and_asked_the_same(home, serve, monkeypatch):
    monkeypatch.setattr(roll_call, "SAY_SECONDS", 0.3)
    listen, heard = unused(), []
    path = dialling(home, listen=listen, addresses={"south": await serve("south")})
    checked = asyncio.create_task(asyncio.to_thread(check, path, say=heard.append))
    while not any("waiting for north" in line for line in heard):
        await asyncio.sleep(0.05)
    await serve("north", dials=destination(listen, "none"))
    lines = {line.what: line for line in await checked}
    assert {line.state for line in lines.values() if line.what != "public"} == {State.OK}, lines
    assert lines["north address"].said == "dialled in, mutual TLS"
    assert f"the gate is open at {listen} for north" in heard[0]


@pytest.mark.slow
async def test_a_party_that_does_not_dial_in_is_told_with_what_came_in_its_place(home, serve, monkeypatch):
    monkeypatch.setattr(roll_call, "DIAL_SECONDS", 1.5)
    listen = unused()
    path = dialling(home, listen=listen, addresses={"south": await serve("south")})
    assert f"it has not dialled in at {listen}" in only_wrong(await found(path), "north address")
    await serve("east", dials=destination(listen, "none"))
    monkeypatch.setattr(roll_call, "DIAL_SECONDS", 6)
    said = only_wrong(await found(path), "north address")
    assert "as east was turned away: party east is not one that dials in the plan" in said


async def test_a_gate_whose_port_is_in_use_is_one_line(home, serve):
    path = dialling(home, listen=(at := await serve("south")), addresses={"south": at})
    assert "the port is in use. Another run or check" in only_wrong(await found(path), "gate")


async def test_every_party_is_looked_at_when_one_is_away(home, serve):
    addresses = {"north": unused(), "south": await serve("south")}
    lines = await found(written(home, addresses))
    assert f"nothing listens at {addresses['north']}. Start the party there" in only_wrong(lines, "north address")
    assert "north plan" not in lines
    assert lines["south plan"].state is State.OK


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"minimum_parties": 5}, "policy minimum_parties = 5, this plan has 2"),
        ({"minimum_noise": 50.0}, "policy minimum_noise = 50; release counts"),
        ({"trust": "secure-sum"}, 'policy trust = "secure-sum"; this plan has the coordinator see each party'),
        ({"recipes": ["pate"]}, "policy recipes = pate; this plan runs dped"),
        ({"epsilon": 1.0}, "the ledger cannot pay for this plan within this party's cap of epsilon 1"),
    ],
)
async def test_a_partys_own_rule_and_its_budget_are_told_beforehand(home, serve, policy, said):
    addresses = {"north": await serve("north", policy), "south": await serve("south")}
    assert said in only_wrong(await found(written(home, addresses)), "north plan")


async def test_a_party_without_room_says_so(home, serve, monkeypatch):
    monkeypatch.setattr("party.admission.needs.free_memory", lambda: 10**6)
    addresses = {name: await serve(name) for name in NAMES}
    said = only_wrong(await found(written(home, addresses)), "north plan", "south plan")
    assert "1.0 MB of memory are free at this party" in said


async def test_another_party_at_an_address_is_told_from_the_right_one(home, serve):
    addresses = {"north": await serve("south"), "east": await serve("east")}
    assert "south" in only_wrong(await found(written(home, addresses)), "north address")


async def test_an_address_without_a_host_and_one_that_swallows_everything_are_told(home, serve, monkeypatch):
    addresses = {"north": "nowhere.invalid:7443", "south": await serve("south")}
    said = only_wrong(await found(written(home, addresses)), "north address")
    assert said == "there is no such host: nowhere.invalid:7443. Mend the address in [federation] parties."

    async def swallows(host, port):
        await asyncio.sleep(60)

    monkeypatch.setattr(reachable, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(reachable, "asyncio", SimpleNamespace(timeout=asyncio.timeout, open_connection=swallows))
    addresses["north"] = "192.0.2.1:7443"
    for proxy, cure in (("", "can dial (`party serve"), ("http://proxy:1", "a coordinator calls parties without")):
        monkeypatch.setenv("https_proxy", proxy)
        lines = await found(written(home, addresses))
        assert "no answer from 192.0.2.1:7443 for 0.2 s. Is the machine on" in lines["north address"].said
        assert cure in lines["north address"].said


async def test_another_program_at_a_partys_port_is_told(home, serve):
    async def http(reader, writer):
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(http, "127.0.0.1", 0)
    addresses = {"north": f"127.0.0.1:{server.sockets[0].getsockname()[1]}", "south": await serve("south")}
    assert "speaks neither TLS nor gRPC" in only_wrong(await found(written(home, addresses)), "north address")
    server.close()


async def test_a_party_of_another_federation_and_a_coordinator_that_is_not_the_pinned_one_are_told(home, serve):
    """Each end has only its own authority to go by, and the party says nothing to a caller that it does not know."""
    addresses = {name: await serve(name) for name in NAMES}
    provisioning.make(home / "elsewhere", "coordinator.elsewhere")
    lines = await found(written(home, addresses, identity='identity = "elsewhere"'))
    only_wrong(lines, "north address", "south address")
    said = lines["north address"].said
    assert "showed a certificate that cannot be trusted: the certificate of party north was issued by another" in said
    assert provisioning.authority_fingerprint(home / "elsewhere") in said


@pytest.mark.slow
async def test_certificates_that_end_soon_are_warnings_that_say_whose(home, serve, monkeypatch):
    addresses = {name: await serve(name) for name in NAMES}
    monkeypatch.setattr(validity, "EXPIRING", timedelta(days=366))
    lines = await found(written(home, addresses))
    warned = [what for what, line in lines.items() if line.state is State.WARNING]
    assert warned == ["identity", "north name", "south name"]
    assert "renew it soon: coordinator provision renew" in lines["identity"].said
    assert "sign its request again" in lines["north name"].said
    monkeypatch.setattr(validity, "EXPIRING", timedelta(days=20_000))
    assert "make a new federation before" in (await found(written(home, addresses)))["identity"].said


@pytest.mark.slow
async def test_parties_of_another_version_work_or_are_refused_with_both_versions_named(home, serve, monkeypatch):
    addresses = {name: await serve(name) for name in NAMES}
    path = written(home, addresses)
    monkeypatch.setattr("party.node.node.software_version", lambda: "0.0.1")
    lines = await found(path)
    assert {line.state for line in lines.values()} == {State.OK}
    here = f"here it is Conclave {software_version()}, protocol {PROTOCOL_VERSION}"
    assert lines["north versions"].said == f"Conclave 0.0.1, protocol {PROTOCOL_VERSION}; {here}, which go together"
    for other in (PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1):
        for module in ("party.node.node", "party.node.joined"):
            monkeypatch.setattr(f"{module}.PROTOCOL_VERSION", other)
        lines = await found(path)
        assert f"Conclave 0.0.1, protocol {other}; {here}. Install the same" in lines["north versions"].said
        assert f"speaks {other} (Conclave " in lines["north plan"].said, "the party refuses by itself"


@pytest.mark.slow
async def test_the_folder_that_a_run_is_to_have_is_looked_at_with_its_disk(home, serve, monkeypatch):
    path = written(home, {name: await serve(name) for name in NAMES})
    looked = []
    monkeypatch.setattr(checking, "free_disk", lambda folder: looked.append(folder) or 10**12)
    lines = {line.what: line for line in await asyncio.to_thread(check, path, output=home / "out")}
    assert {line.state for line in lines.values()} == {State.OK}, lines
    assert lines["output"].said == f"{home / 'out'} is free"
    assert "publish" not in lines
    assert looked[0] == home / "out"
    (home / "out").mkdir()
    (home / "out" / "mine").touch()
    lines = {line.what: line for line in await asyncio.to_thread(check, path, output=home / "out")}
    assert "holds what is no run's: mine" in only_wrong(lines, "output")


async def test_a_disk_without_room_for_temporary_files_is_told(home, monkeypatch):
    monkeypatch.setattr(checking.tempfile, "gettempdir", lambda: "/scratch")
    monkeypatch.setattr(checking, "free_disk", lambda folder: 10**6 if folder == Path("/scratch") else 10**12)
    assert "are free in /scratch" in only_wrong(await found(launched(home)), "disk")


async def test_plain_text_and_tls_are_told_apart(home, serve):
    addresses = {"north": await serve("north", plaintext=True), "south": await serve("south")}
    lines = await found(written(home, addresses))
    assert "plain text" in only_wrong(lines, "north address")
    lines = await found(written(home, addresses, identity=""))
    assert "TLS" in only_wrong(lines, "south address")
    assert lines["north plan"].state is State.OK


async def test_another_key_than_the_pinned_one_is_told_with_its_party(home, serve):
    pinned = f"SHA256:{'0' * 64}"
    addresses = {"north": await serve("north", peers={"south": pinned}), "south": await serve("south")}
    said = only_wrong(await found(written(home, addresses)), "north plan")
    assert "party south is pinned" in said
    assert pinned in said


async def test_a_pinned_party_that_is_away_does_not_make_the_other_one_refuse(home, serve):
    addresses = {"north": await serve("north", peers={"south": f"SHA256:{'0' * 64}"}), "south": unused()}
    lines = await found(written(home, addresses))
    only_wrong(lines, "south address")
    assert lines["north plan"].state is State.WARNING


@pytest.mark.slow
async def test_a_party_that_never_answers_is_not_waited_for_longer_than_the_deadline(home, serve):
    async def silent(reader, writer):
        await reader.read()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    addresses = {
        "north": f"127.0.0.1:{server.sockets[0].getsockname()[1]}",
        "south": await serve("south"),
    }
    path = written(home, addresses, replaced=[("deadline_seconds = 20", "deadline_seconds = 10")])
    began = time.monotonic()
    lines = await found(path)
    assert time.monotonic() - began < 60
    assert "does not answer" in only_wrong(lines, "north address")
    assert lines["south plan"].state is State.OK
    server.close()


async def test_a_clock_off_by_an_hour_is_a_warning(home, serve, monkeypatch):
    addresses = {name: await serve(name) for name in NAMES}
    monkeypatch.setattr(roll_call, "time", SimpleNamespace(time=lambda: time.time() - 3600))
    lines = await found(written(home, addresses))
    for name in NAMES:
        assert lines[f"{name} clock"].state is State.WARNING
        assert "3,600 s ahead of this machine's" in lines[f"{name} clock"].said
        assert "set this machine's" in lines[f"{name} clock"].said
        assert lines[f"{name} plan"].state is State.OK


@pytest.mark.parametrize(
    ("ahead", "everyones", "state", "said"),
    [
        (0.2, [0.2], State.OK, "0.2 s ahead of this machine's"),
        (-60.0, [-60.0], State.OK, "60 s behind this machine's"),
        (61.0, [61.0], State.WARNING, "set the one that is wrong"),
        (
            -300.0,
            [-300.0, 0.0],
            State.WARNING,
            "300 s behind this machine's. Most clocks agree with this one: set north's",
        ),
        (300.0, [300.0, 301.0], State.WARNING, "set this machine's"),
        (300.0, [300.0, 301.0, 2.0], State.WARNING, "set the one that is wrong"),
    ],
)
def test_the_clock_that_most_do_not_agree_with_is_the_one_to_set(ahead, everyones, state, said):
    line = clock_line("north", ahead, everyones)
    assert line.state is state
    assert said in line.said


def test_a_plan_that_is_wrong_is_a_line_too(home, capsys):
    assert main(["check", str(home / "none.toml")]) == 1
    assert "there is no such file" in capsys.readouterr().out


def test_parties_are_looked_at_though_the_plan_cannot_be_bound(home, capsys):
    path = written(home, {"north": unused()}, identity="", replaced=[("size = 12", "size = 13")])
    assert main(["check", str(path), "--json"]) == 1
    lines = {each["what"]: each for each in json.loads(capsys.readouterr().out.splitlines()[-1])["lines"]}
    assert "size = 12" in lines["plan"]["said"]
    assert lines["north address"]["state"] == "to do"


def launched(home):
    path = home / "plan.toml"
    path.write_text(PLAN.format(federation=SHARDS).replace('"connect"', '"ray"'))
    return path


@pytest.mark.slow
async def test_parties_that_the_run_starts_itself_share_this_machine(home, monkeypatch):
    lines = await found(launched(home))
    assert {line.state for line in lines.values()} == {State.OK}, lines
    assert list(lines) == [
        "plan",
        "device",
        "identity",
        "store",
        "publish",
        "memory",
        "disk",
        "launcher",
        "data",
        "versions",
    ]
    assert "coordinator and 3 parties" in lines["memory"].said
    monkeypatch.setattr(checking, "free_memory", lambda: 10**9)
    monkeypatch.setattr(checking, "free_disk", lambda folder: 10**6)
    only_wrong(await found(launched(home)), "memory", "disk")


def test_the_command_prints_a_line_each_and_ends_well_when_all_is_well(home, capsys):
    assert main(["check", str(launched(home))]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["ok"] * 10


def test_a_place_to_publish_that_is_taken_is_told(home):
    (home / "published").mkdir()
    (home / "published" / "model").write_text("mine")
    (line,) = [line for line in check(launched(home)) if line.what == "publish"]
    assert line.state is State.TO_DO
    assert "exists already" in line.said


def test_a_store_that_cannot_be_written_is_told(home, monkeypatch):
    (home / "file").write_text("no folder")
    monkeypatch.setenv("CONCLAVE_HOME", str(home / "file"))
    assert "CONCLAVE_HOME" in only_wrong({each.what: each for each in check(launched(home))}, "store", "identity")


def test_a_launcher_that_is_not_there_is_told(home):
    path = launched(home)
    path.write_text(path.read_text().replace('"ray"', '"slurm"'))
    assert "is not installed" in only_wrong({each.what: each for each in check(path)}, "launcher")


async def test_devices_are_told_for_the_coordinator_and_each_party(home, serve):
    lines = await found(written(home, {name: await serve(name) for name in NAMES}))
    assert lines["device"].state is State.OK
    assert lines["device"].said == "cpu in float32: this recipe has no text model, which another device could run"
    assert lines["north device"].said == "would compute on cpu in float32"


async def test_threads_that_are_not_there_are_to_be_done(home, serve):
    addresses = {name: await serve(name) for name in NAMES}
    lines = await found(written(home, addresses, replaced=[('recipe = "dped"', 'recipe = "dped"\nthreads = 4000')]))
    only_wrong(lines, "device")
    assert "[run]: threads = 4000 are more than the" in lines["device"].said
    assert lines["north plan"].state is State.OK


def test_a_device_that_is_not_there_is_to_be_done(classifier_plan, monkeypatch):
    line = checking._device(classifier_plan(run={"device": "cuda:99"}))
    assert line.state is State.TO_DO
    assert '[run]: There is no device "cuda:99" on this machine' in line.said
    assert checking._device(classifier_plan(run={"precision": "bfloat16"})).said.startswith(
        "text models run on cpu in bfloat16"
    )
