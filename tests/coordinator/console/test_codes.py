"""Troubles of whoever starts runs: each ends with the code of the page that says more; what Python raises has it."""

import json
import socket
from pathlib import Path

import pytest

from coordinator import api
from coordinator.console.command import main
from coordinator.errors import PlanError
from coordinator.identity import provisioning
from coordinator.systems.registry import template
from protos.console.explaining import divided, page
from protos.identity.requests import make_request, new_keys

PLAN = (
    template("ray")
    .replace('signals   = ["moments"]', 'signals   = ["counts"]\nclip      = 10.0')
    .replace('"documentation-topics"', '"public.txt"')
)
LETTERS = "abcdefghijk"
WORDS = " ".join(f"{a}{b}{c}" for a in LETTERS for b in LETTERS for c in LETTERS)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("public.txt").write_text(WORDS * 3)
    Path("plan.toml").write_text(PLAN)
    return tmp_path


@pytest.fixture
def code(capsys):
    """`code("run", ...)`: the code that the command ends with; its page is there, and its output no trace."""

    def run(*arguments):
        assert main(list(arguments)) in (1, 2)
        said = capsys.readouterr().err
        assert "Traceback" not in said
        found = divided(said.rstrip())[1]
        assert page(found)
        return found

    return run


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["rnu"], "C101"),
        (["run"], "C101"),
        (["compare", "plan.toml", "--epsilons", "some"], "C101"),
        (["run", "none.toml"], "C102"),
        (["run", "public.txt"], "C103"),
        (["init", "plan.toml"], "C107"),
        (["init", "other.toml", "--recipe", "waltz"], "C106"),
        (["init", "plan.toml/other.toml"], "C302"),
        (["init", "other.toml", "--source", "none.csv"], "C201"),
        (["report", "nothing"], "C702"),
        (["verify", "nothing"], "C705"),
        (["verify", "home", "--trust", "none.pem"], "C102"),
        (["verify", "home", "--trust", "plan.toml"], "C401"),
        (["provision", "sign", "north.request.pem", "--federation", "nothing"], "C102"),
    ],
)
def test_a_command_that_cannot_do_its_work_has_a_code(code, home, arguments, wanted):
    Path("home").mkdir()
    assert code(*arguments) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("epsilon = 8.0", "epsilom = 8.0", "C104"),
        ("epsilon = 8.0", "epsilon = 0", "C105"),
        ("delta   = 1e-6", "# no delta", "C105"),
        ('launch = "ray"', 'launch = "rya"', "C106"),
        ('recipe = "dped"', 'recipe = "waltz"', "C106"),
        ('"public.txt"', '"words/*.txt"', "C201"),
        ("size   = 1000", "size   = 99999", "C204"),
        ("dropouts = 0", "noise_multiplier = 0.1", "C602"),
        ("delta   = 1e-6", "delta   = 1e-300", "C602"),
    ],
)
def test_a_plan_that_cannot_run_has_a_code(code, old, new, wanted):
    assert old in PLAN
    Path("plan.toml").write_text(PLAN.replace(old, new))
    assert code("run", "plan.toml", "--output", "out") == wanted


def test_a_port_that_is_taken_has_a_code(code):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert code("run", "plan.toml", "--metrics", f"127.0.0.1:{port}") == "C305"


def test_what_is_not_signed_has_a_code(code, home):
    assert main(["provision", "federation", "--name", "coordinator.example"]) == 0
    assert code("provision", "federation", "--name", "coordinator.example") == "C107"
    Path("north.request.pem").write_bytes(make_request("north", *new_keys()))
    sign = ["provision", "sign", "north.request.pem", "--federation", "federation", "--fingerprint"]
    assert code(*sign, f"SHA256:{'0' * 64}") == "C406"
    told = provisioning.request_of(Path("north.request.pem")).fingerprint
    assert main([*sign, told]) == 0
    assert main(["provision", "revoke", "north", "--federation", "federation"]) == 0
    assert code(*sign, told) == "C405"
    assert code("provision", "revoke", "west", "--federation", "federation") == "C404"
    Path("federation/ca.key").chmod(0o644)
    assert code(*sign, told) == "C401"


def test_what_the_interface_for_python_raises_has_a_code():
    with pytest.raises(PlanError) as caught:
        api.run({"run": {"recipe": "dped", "naem": "x"}})
    assert caught.value.code == "C104"
    with pytest.raises(PlanError) as caught:
        api.run("none.toml")
    assert caught.value.code == "C102"


def test_standard_output_has_no_part_of_an_error(capsys):
    assert main(["run", "none.toml", "--json"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "none.toml: there is no such file. [C102]\n")
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"runs": []}
