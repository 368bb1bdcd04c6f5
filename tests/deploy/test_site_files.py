"""The files of deploy/site: what the tools that read them say, and what docs/deploy.md promises of them."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from party.config import read_config
from party.node.draining import SENDING

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "deploy/site"
UNITS = ("conclave-party.service", "conclave-coordinator.service")
COMPOSED = ("compose.party.yaml", "compose.coordinator.yaml")
OWN = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
BOUND = 15
"""The largest exposure that `systemd-analyze security` may find, in tenths; 1.2 is what it finds."""

with_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def tool(name):
    """A tool that a package of the tests brought, beside their Python; skipped where there is none for this system."""
    found = Path(sys.executable).with_name(name)
    if not found.exists():
        pytest.skip(f"{name} is not in this environment: pip install -c constraints.txt -e '.[dev]'")
    return str(found)


def said(*command, given=None, code=0):
    done = subprocess.run(
        list(map(str, command)), input=given, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


# The image


def test_the_linter_of_images_finds_nothing():
    assert said(tool("hadolint"), FOLDER / "Dockerfile") == ""


def test_the_linter_of_images_finds_what_is_wrong(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM debian\nRUN cd /tmp && sudo true\n")
    assert "DL3006" in said(tool("hadolint"), tmp_path / "Dockerfile", code=1)


def stages():
    """The image's stages by name, each with what it is made from and its instructions."""
    text = re.sub(r"\\\n\s*", "", (FOLDER / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found, name = {}, None
    for line in lines:
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            parent, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()
            found[name] = (parent, [])
        elif name is not None:
            found[name][1].append((word, rest))
    return found


@pytest.mark.parametrize(("role", "health"), [("party", "party"), ("coordinator", "7446/health")])
def test_what_runs_is_no_root_and_says_whether_it_is_up(role, health):
    parent, own = stages()[role]
    _, shared = stages()[parent]
    assert ("USER", "10001:10001") in shared
    assert shared.index(("USER", "10001:10001")) > [word for word, _ in shared].index("COPY")
    (check,) = [rest for word, rest in own if word == "HEALTHCHECK"]
    assert health in check
    (entry,) = [rest for word, rest in own if word == "ENTRYPOINT"]
    assert entry == f'["{role}"]'
    assert not [rest for word, rest in own + shared if word == "COPY" and "key" in rest]


def test_what_is_installed_is_pinned_and_our_own_version():
    text = (FOLDER / "Dockerfile").read_text()
    assert set(re.findall(r"conclave_distill-([^-]+)-py3", text)) == {OWN}
    assert set(re.findall(r"--tag conclave-\w+:(\S+)", text)) == {OWN}
    assert len(re.findall(r"pip install", text)) == len(re.findall(r"-c \S*constraints\.txt", text)) == 1


# Compose


@pytest.mark.parametrize("name", COMPOSED)
def test_compose_takes_the_file(name):
    said(tool("docker-compose"), "--file", FOLDER / name, "config", "--quiet")


def test_compose_refuses_a_misspelt_key(tmp_path):
    wrong = (FOLDER / COMPOSED[0]).read_text().replace("read_only:", "readonly:")
    (tmp_path / "compose.yaml").write_text(wrong)
    assert "readonly" in said(tool("docker-compose"), "--file", tmp_path / "compose.yaml", "config", "--quiet", code=1)


@pytest.mark.parametrize("name", COMPOSED)
def test_a_container_has_no_rights_and_writes_in_one_volume(name):
    (service,) = yaml.safe_load((FOLDER / name).read_text())["services"].values()
    assert service["read_only"] is True
    assert service["user"] == "10001:10001"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert [each for each in service["volumes"] if not each.endswith(":ro")] == [
        f"{'ledger' if 'party' in name else 'runs'}:/var/lib/conclave"
    ]
    assert service["image"] == f"conclave-{name.split('.')[1]}:{OWN}"
    assert not {"privileged", "pid", "network_mode", "devices"} & service.keys()


# Units of systemd


def settings(name):
    found = {}
    for line in (FOLDER / name).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@with_systemd
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_unit(name, tmp_path):
    """Only a program that is installed is found, so one that always is stands for ours."""
    text = re.sub(r"^(ExecStart=)\S+", r"\1/bin/true", (FOLDER / name).read_text(), flags=re.MULTILINE)
    (tmp_path / name).write_text(text)
    assert name not in said("systemd-analyze", "verify", tmp_path / name)
    (tmp_path / name).write_text(text.replace("ProtectClock=", "ProtectClocks="))
    assert "ProtectClocks' in section [Service], ignoring" in said("systemd-analyze", "verify", tmp_path / name)


@with_systemd
@pytest.mark.parametrize("name", UNITS)
def test_a_service_is_exposed_less_than_the_guide_says(name, tmp_path):
    command = ("systemd-analyze", "security", "--offline=true", f"--threshold={BOUND}")
    said(*command, FOLDER / name)
    (tmp_path / name).write_text("[Service]\nExecStart=/bin/true\n")
    said(*command, tmp_path / name, code=1)
    assert "below 1.5" in (PROJECT / "docs/deploy.md").read_text()


@pytest.mark.parametrize("name", UNITS)
def test_a_service_that_is_told_to_end_gets_the_time_to(name):
    found = settings(name)
    assert found["KillMode"] == ["mixed"], "trainings and runs are ended by their own process"
    drain = 10.0 if "party" in name else 60.0
    assert int(found["TimeoutStopSec"][0]) >= SENDING + drain
    composed = yaml.safe_load((FOLDER / COMPOSED[UNITS.index(name)]).read_text())
    (service,) = composed["services"].values()
    assert int(service["stop_grace_period"].removesuffix("s")) >= SENDING + drain


def test_the_drain_of_a_party_is_what_is_counted_on(tmp_path):
    (tmp_path / "party.toml").write_text(
        'name = "north"\nshard = { source = "notes" }\npolicy = { epsilon = 1.0, delta = 1e-6, recipes = ["dped"] }\n'
    )
    assert read_config(tmp_path / "party.toml").drain_seconds == 10.0
