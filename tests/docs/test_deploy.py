"""docs/deploy.md, followed from a clean folder: north does what the page says, word for word but for addresses and
places.

What the page leaves to others is done by the test: the coordinator signs and runs a plan, two more parties serve, mail
and telephone carry what they carry. Commands for the machine itself find a tree of its own in place of /etc, /opt and
/var, and what installs, or changes users or services, only takes notes.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROJECT = Path(__file__).parents[2]
DOCUMENT = PROJECT / "docs/deploy.md"
FINGERPRINT = re.compile(r"SHA256:[0-9a-f]{64}")
OTHERS = ("south", "east")
SECONDS = 600
NOTES = "".join(
    f'{{"note": "the patient of ward {number % 7} has {what}, and was given {given} on day {number % 5}"}}\n'
    for number, (what, given) in enumerate([("fever", "fluids"), ("a cough", "rest"), ("pain", "aspirin")] * 60)
)
PLAN = """
[run]
name = "three-sites"
recipe = "dped"
seed = 7
[privacy]
epsilon = 8.0
delta = 1e-6
trust = "secure-sum"
dropouts = 0
[federation]
launch = "connect"
identity = "federation"
parties = [{parties}]
[vocabulary]
source = "public.jsonl"
text = "note"
size = 12
like_parties = true
[dped]
signals = ["moments"]
dimension = 4
[student]
publish = "published"
[evaluation]
source = "public.jsonl"
text = "note"
like_parties = true
"""
STAND_IN = '#!/bin/sh\necho "$(basename "$0") $*" >> "$NOTED"\n'
TAKE_NOTES = ("useradd", "systemctl", "pip", "kubectl")


@dataclass(frozen=True)
class Block:
    """One block of the page: where it is done, which file it is part of, what has to happen before, and the text."""

    at: str
    words: frozenset[str]
    file: str | None
    text: str


def blocks():
    for words, text in re.findall(
        r"^```\w+ (at=[^\n]*)\n(.*?)^```", DOCUMENT.read_text("utf-8"), re.DOTALL | re.MULTILINE
    ):
        said = dict(word.partition("=")[::2] for word in words.split())
        yield Block(said["at"], frozenset(said) - {"at", "file"}, said.get("file"), text)


@dataclass
class Site:
    """North's machine, the others, and what they told each other."""

    folder: Path
    ports: dict[str, int] = field(default_factory=dict)
    heard: dict[str, str] = field(default_factory=dict)
    served: dict[str, subprocess.Popen] = field(default_factory=dict)
    said: list[tuple[str, str]] = field(default_factory=list)

    def run(self, text, site, code=0):
        done = subprocess.run(
            ["bash", "-euc", text], cwd=self.folder / site, env=self.environment(site), capture_output=True,
            text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{text}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        self.said.append((text, done.stdout))
        return done.stdout

    def serve(self, site, text="party serve"):
        with (self.folder / f"{site}.log").open("a") as log:
            self.served[site] = subprocess.Popen(
                ["bash", "-euc", f"exec {text.strip()}"], cwd=self.folder / site, env=self.environment(site),
                stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + SECONDS
        while "listening" not in (said := (self.folder / f"{site}.log").read_text()):
            assert self.served[site].poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)

    def end(self, site):
        node = self.served.pop(site)
        node.send_signal(signal.SIGTERM)
        assert node.wait(SECONDS) == 0
        (self.folder / f"{site}.log").unlink()

    def environment(self, site):
        path = f"{self.folder / 'tools'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        noted = {"NOTED": str(self.folder / "noted"), "CONCLAVE_HOME": str(self.folder / f"{site}-home")}
        return os.environ | {"PATH": path} | noted

    def signed(self, site):
        """What mail brings: the request to the coordinator, and back the certificates."""
        shutil.copy(self.folder / site / f"{site}.request.pem", self.folder / "coordinator")
        self.run(
            f"coordinator provision sign {site}.request.pem --federation federation --fingerprint {self.heard[site]}",
            "coordinator",
        )
        shutil.copy(self.folder / "coordinator" / f"{site}.pem", self.folder / site)
        shutil.copy(self.folder / "coordinator/federation/revoked.pem", self.folder / site)

    def filled(self, text, site="north"):
        """The page's text with what north heard, and its own places and address."""
        for name, value in self.heard.items():
            text = text.replace(f'"{name.upper()}"', f'"{value}"')
        text = text.replace("0.0.0.0:7443", f"127.0.0.1:{self.ports[site]}")
        return text.replace("/var/lib/conclave/", "")

    def on_the_machine(self, text):
        """The same command in a tree of its own, where nothing is installed."""
        text = text.replace("/opt/conclave/bin/pip", "pip").replace("-m venv", "-m venv --without-pip")
        text = re.sub(r"(?<![\w.])/(etc|opt|var)/", rf"{self.folder}/machine/\1/", text)
        return text.replace("-o conclave -g conclave ", "")


def enrolled(site, party):
    """A party of the others, set up at once."""
    folder = site.folder / party
    text = "".join(block.text for block in blocks() if block.file == "party.toml")
    swapped = {"north": party, party: "north", party.upper(): "NORTH"}
    folder.joinpath("party.toml").write_text(
        site.filled(re.sub(r"\w+", lambda found: swapped.get(found.group(), found.group()), text), party)
    )
    found = set(FINGERPRINT.findall(site.run("party enroll", party)))
    (site.heard[party],) = found - {site.heard["authority"]}
    site.signed(party)


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("deploy"))
    (site.folder / "tools").mkdir()
    for name in TAKE_NOTES:
        (site.folder / "tools" / name).write_text(STAND_IN)
        (site.folder / "tools" / name).chmod(0o755)
    for name in ("north", *OTHERS, "coordinator", "machine/etc/systemd/system", "machine/opt", "machine/var/lib"):
        (site.folder / name).mkdir(parents=True)
    for number, name in enumerate(("north", *OTHERS)):
        lines = NOTES.splitlines(keepends=True)[number::3]
        (site.folder / name / "notes.jsonl").write_text("".join(lines))
        with socket.create_server(("127.0.0.1", 0)) as probe:
            site.ports[name] = probe.getsockname()[1]
    (site.folder / "coordinator/public.jsonl").write_text(NOTES)
    said = site.run("coordinator provision federation --name coordinator.example", "coordinator")
    (site.heard["authority"],) = set(FINGERPRINT.findall(said))
    try:
        for block in blocks():
            follow(site, block)
        yield site
    finally:
        for node in site.served.values():
            node.kill()
            node.wait()


def follow(site, block):
    if block.file is not None:
        if block.at == "party":
            # The pins are filled in once the other parties are there: their keys do not hang on north's.
            with (site.folder / "north" / block.file).open("a") as file:
                file.write(site.filled(block.text))
        return
    if block.at == "machine":
        done = subprocess.run(
            ["bash", "-euc", site.on_the_machine(block.text)], cwd=PROJECT, env=site.environment("machine"),
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
    elif block.at == "cluster":
        site.run(block.text, "north")
    elif "background" in block.words:
        site.serve("north", block.text)
    else:
        before(site, block)
        site.run(block.text, "north")
        after(site, block)


def before(site, block):
    """What happens at the site, and elsewhere, before a block is done."""
    file = site.folder / "north/party.toml"
    if "enroll" in block.text:
        pins = dict.fromkeys(OTHERS, f"SHA256:{'0' * 64}")
        text = file.read_text()
        for party, pin in pins.items():
            text = text.replace(f'"{party.upper()}"', f'"{pin}"')
        file.write_text(text)
    elif "run" in block.words:
        for party in OTHERS:
            site.run("party account open", party)
            site.serve(party)
        entries = ", ".join(f'{{ name = "{name}", address = "127.0.0.1:{port}" }}' for name, port in site.ports.items())
        (site.folder / "coordinator/plan.toml").write_text(PLAN.replace("{parties}", entries))
        site.run("coordinator run plan.toml --output out", "coordinator")
    elif "lost" in block.words:
        site.end("north")
        for ending in ("", "-wal", "-shm"):
            (site.folder / f"north/north.party/ledger.sqlite{ending}").unlink(missing_ok=True)
        shutil.copy(site.folder / "north/copy-1.sqlite", site.folder / "north/north.party/ledger.sqlite")
        with pytest.raises(AssertionError, match="is a copy of a ledger"):
            site.run("party serve", "north")
        (site.folder / "north/north.party/ledger.sqlite").unlink()
    elif "renew" in block.words:
        site.signed("north")


def after(site, block):
    if "enroll" in block.text:
        said = site.said[-1][1]
        (site.heard["north"],) = set(FINGERPRINT.findall(said)) - {site.heard["authority"], f"SHA256:{'0' * 64}"}
        site.signed("north")
        for party in OTHERS:
            site.heard.setdefault("east", f"SHA256:{'0' * 64}")
            enrolled(site, party)
        for party in ("north", *OTHERS):
            pinned(site, party)


def pinned(site, party):
    """Every administrator writes down what the others read out."""
    file = site.folder / party / "party.toml"
    others = "".join(f'{name} = "{site.heard[name]}"\n' for name in ("north", *OTHERS) if name != party)
    file.write_text(re.sub(r"\[peers\].*", f"[peers]\n{others}", file.read_text(), flags=re.DOTALL))


def said_of(site, part):
    found = [said for text, said in site.said if part in text]
    assert found, part
    return found


def test_the_party_is_checked_serves_and_is_charged(followed):
    (checked, *_) = said_of(followed, "party check")
    assert "to do" not in checked, checked
    assert "party north is serving." in said_of(followed, "party health")[0]
    run, restored = said_of(followed, "party budget")
    assert "in 1 run;" in run, run
    assert "restored from a copy" in restored
    assert "spent      epsilon 12.5" in restored


def test_a_lost_ledger_comes_back_with_no_more_left_than_was_stated(followed):
    run, restored = said_of(followed, "party budget")
    left = [float(re.search(r"([\d.]+) is left for one more release", said)[1]) for said in (run, restored)]
    assert 0 < left[1] < left[0]


def test_certificates_that_are_renewed_keep_their_keys(followed):
    before, after = said_of(followed, "party check")
    keys = [re.search(r"signing key (SHA256:\w+)", said)[1] for said in (before, after)]
    assert keys == [followed.heard["north"]] * 2


def test_the_machine_was_told_what_the_page_says(followed):
    noted = (followed.folder / "noted").read_text()
    for command in (
        "useradd --system",
        "pip install --quiet -c constraints.txt .",
        "systemctl enable --now conclave-party",
        "systemctl stop conclave-party",
    ):
        assert command in noted, noted
    assert "kubectl apply --kustomize deploy/kubernetes/party" in noted
    assert (followed.folder / "machine/etc/systemd/system/conclave-party.service").is_file()
    for bases in re.findall(r"--kustomize (\S+)", noted):
        assert (PROJECT / bases / "kustomization.yaml").is_file()


def test_no_key_has_left_the_site(followed):
    key = (followed.folder / "north/north.key").read_bytes()
    for path in (followed.folder / "coordinator").rglob("*"):
        assert not path.is_file() or path.read_bytes() != key
