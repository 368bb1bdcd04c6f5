"""Troubles of a party as its administrator meets them: each ends with the code of the page that says more."""

import json
import sqlite3
from datetime import UTC, datetime, timedelta

import pytest

from party.console.command import main
from protos.console.explaining import divided, page
from protos.identity.authority import new_authority
from protos.identity.certificates import Role, fingerprint, read_bundle
from protos.identity.requests import make_request, new_keys, read_request

NOW = datetime.now(UTC)


@pytest.fixture
def code(capsys):
    """`code("serve", ...)`: the code that the command ends with; its page is there, and its output no trace."""

    def run(*arguments):
        assert main(list(arguments)) in (1, 2)
        said = capsys.readouterr().err
        assert "Traceback" not in said
        found = divided(said.rstrip())[1]
        assert page(found)
        return found

    return run


def of_another_federation(site, folder):
    path = site()
    bundle = new_authority("another").issue(read_request(make_request("north", *new_keys())), Role.PARTY, 365, None)
    (folder / "north.pem").write_bytes(bundle.pem())
    return path


def revoked(site, folder):
    site()
    serials = [read_bundle((folder / "north.pem").read_bytes(), "").transport.serial_number]
    bundle = (folder / "north.pem").read_bytes()
    path = site(revoked=serials)
    (folder / "north.pem").write_bytes(bundle)
    return path


def readable(site, folder):
    path = site()
    (folder / "north.key").chmod(0o644)
    return path


def of_a_newer_version(site, folder):
    path = site()
    with sqlite3.connect(folder / "north.party/ledger.sqlite") as ledger:
        ledger.execute("PRAGMA user_version = 999")
    return path


def damaged(site, folder):
    path = site()
    (folder / "north.party/ledger.sqlite").write_text("no ledger\n" * 999)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "wanted"),
    [
        (lambda site, folder: site(not_before=NOW - timedelta(days=9), days=1), "C402"),
        (lambda site, folder: site(not_before=NOW + timedelta(days=9)), "C403"),
        (of_another_federation, "C404"),
        (revoked, "C405"),
        (readable, "C401"),
        (lambda site, folder: site(account=False), "C604"),
        (of_a_newer_version, "C504"),
        (damaged, "C605"),
        (lambda site, folder: site(port=folder), "C105"),
        (lambda site, folder: site(policy="epsilom = 3"), "C104"),
        (lambda site, folder: site(policy="[["), "C103"),
        (lambda site, folder: site(top='compute = { device = "cuda:99" }'), "C303"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_keeps_a_node_from_serving_has_a_code(site, tmp_path, code, trouble, wanted):
    assert code("serve", "--config", str(trouble(site, tmp_path))) == wanted


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["dance"], "C101"),
        (["serve", "--config", "gone.toml"], "C102"),
        (["serve", "--connect", "gate.example:7444", "--proxy", "socks5://proxy:1"], "C503"),
        (["purge", "run-2"], "C702"),
        (["account", "backup", "notes.jsonl"], "C107"),
        (["account", "backup", "notes.jsonl/copy"], "C302"),
    ],
)
def test_a_command_that_cannot_do_its_work_has_a_code(site, tmp_path, monkeypatch, code, arguments, wanted):
    site()
    monkeypatch.chdir(tmp_path)
    assert code(*arguments) == wanted


@pytest.mark.parametrize(
    ("content", "changes", "wanted"),
    [
        (None, {"source": "*.csv"}, "C201"),
        (b"caf\xe9\n", {}, "C202"),
        (b'{"body": "a"}\n', {}, "C203"),
        (b"", {}, "C204"),
    ],
)
def test_text_that_cannot_be_used_has_a_code(site, tmp_path, code, content, changes, wanted):
    path = site(**changes)
    if content is not None:
        (tmp_path / "notes.jsonl").write_bytes(content)
    assert code("preview", "--config", str(path)) == wanted


def test_a_fingerprint_that_was_not_learned_is_asked_for(site, tmp_path, code, authority):
    path = site()
    path.write_text(path.read_text().replace(f'authority = "{fingerprint(authority.certificate)}"\n', ""))
    assert code("serve", "--config", str(path)) == "C401"


def test_a_line_that_people_copy_stays_whole_and_the_code_comes_after_it(site, capsys):
    assert main(["serve", "--config", str(site(account=False))]) == 1
    *_, command, said = capsys.readouterr().err.splitlines()
    assert command.endswith("party account open north --config party.toml")
    assert said == "  [C604]"


def test_json_on_standard_output_is_of_results_alone(site, tmp_path, capsys):
    assert main(["budget", "--config", str(site(account=False)), "--json"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert main(["budget", "--config", str(site()), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["account"] == "north"
