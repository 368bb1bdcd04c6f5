"""docs/sites.md, followed to the letter: its blocks are run, in their order, in one folder a site. What travels by post
or over the telephone in the document is carried by the test; only addresses are others. The parties' notes are made by
the document's own maker of public ones, under other seeds.

All of it is done twice: as it stands, and with two of the parties at sites that admit nothing from outside, as
docs/dialling.md says.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).parents[2] / "docs/sites.md"
PARTIES = ("north", "south", "east", "west")
FINGERPRINT = re.compile(r"SHA256:[0-9a-f]{64}")
SECONDS = 600


@dataclass(frozen=True)
class Block:
    """One block of the document: where it is done, what it is, and the text."""

    language: str
    at: str
    file: str | None
    background: bool
    text: str


def blocks():
    found = []
    for language, words, text in re.findall(r"```(\w+) (at=[^\n]*)\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL):
        said = dict(word.partition("=")[::2] for word in words.split())
        found.append(Block(language, said["at"], said.get("file"), "background" in said, text))
    return found


def as_party(text, party):
    """The text of north, as another party has it: the two change places."""
    swapped = {"north": party, party: "north", "NORTH": party.upper(), party.upper(): "NORTH"}
    return re.sub(rf"\b(?:{'|'.join(swapped)})\b", lambda found: swapped[found.group()], text)


class Sites:
    """A folder a site, and what they told each other."""

    def __init__(self, folder, dialling=()):
        self.folder, self.dialling = folder, dialling
        self.ports = {}
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.gate = f"127.0.0.1:{probe.getsockname()[1]}"
        for party in PARTIES:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                self.ports[party] = probe.getsockname()[1]
        self.heard = {}
        self.served = []
        self.said = {}
        for number, site in enumerate((*PARTIES, "coordinator", "anyone")):
            (folder / site).mkdir()
            if site in PARTIES:
                write_notes(folder / site, 100 + number)

    def do(self, block, site):
        text = as_party(block.text, site) if site in PARTIES else block.text
        for name, value in self.heard.items():
            text = text.replace(f'"{name}"', f'"{value}"')
        for party in self.dialling:
            text = re.sub(f'(name = "{party}", +)address = "{party}.example:7443"', r"\1dials = true", text)
        if "launch   = " in text and self.dialling:
            text = text.replace("launch   = ", f'listen   = "{self.gate}"\nlaunch   = ')
        text = text.replace("0.0.0.0:7443", f"127.0.0.1:{self.ports.get(site, 0)}")
        for party, port in self.ports.items():
            text = text.replace(f"{party}.example:7443", f"127.0.0.1:{port}")
        if block.file is not None:
            with (self.folder / site / block.file).open("a") as file:
                file.write(text)
        elif block.background:
            self.serve(f"{text.strip()} --connect {self.gate}" if site in self.dialling else text, site)
        elif site == "coordinator" and "provision sign" in text:
            for party in PARTIES:
                self.signed(as_party(block.text, party), party)
        else:
            self.run(text, site)

    def run(self, text, site):
        done = subprocess.run(
            ["bash", "-euc", text],
            cwd=self.folder / site,
            env=self.environment(site),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        self.said[site] = self.said.get(site, "") + done.stdout
        assert done.returncode == 0, f"{site}: {text}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        if "provision federation" in text:
            (self.heard["AUTHORITY"],) = set(FINGERPRINT.findall(done.stdout))
        if "party enroll" in text:
            (self.heard[site.upper()],) = set(FINGERPRINT.findall(done.stdout)) - {self.heard["AUTHORITY"]}

    def signed(self, text, party):
        """The post brings a request to the coordinator and the certificates back."""
        shutil.copy(self.folder / party / f"{party}.request.pem", self.folder / "coordinator")
        self.run(text.replace(f'"{party.upper()}"', f'"{self.heard[party.upper()]}"'), "coordinator")
        for each in (f"{party}.pem", "federation/revoked.pem"):
            shutil.copy(self.folder / "coordinator" / each, self.folder / party)

    def serve(self, text, site):
        with (self.folder / f"{site}.log").open("w") as log:
            process = subprocess.Popen(
                ["bash", "-euc", f"exec {text.strip()}"], cwd=self.folder / site, env=self.environment(site),
                stdout=log, stderr=log,
            )  # fmt: skip
        self.served.append(process)
        deadline = time.monotonic() + SECONDS
        while not re.search("listening|dialling", said := (self.folder / f"{site}.log").read_text()):
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)

    def environment(self, site):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return os.environ | {"PATH": path, "CONCLAVE_HOME": str(self.folder / f"{site}-home")}

    def end(self):
        for process in self.served:
            process.terminate()
        for process in self.served:
            process.wait(SECONDS)


def write_notes(folder, seed):
    """Two hundred notes of the document's kind; no two sites have the same."""
    (maker,) = [block.text for block in blocks() if block.file == "made_up_notes.py"]
    command = [sys.executable, "-c", maker, "notes.jsonl", "200", str(seed)]
    subprocess.run(command, cwd=folder, check=True, timeout=SECONDS)


@pytest.fixture(scope="module", params=[(), ("west", "east")], ids=["as it stands", "two dial"])
def sites(request, tmp_path_factory):
    sites = Sites(tmp_path_factory.mktemp("sites"), request.param)
    try:
        for block in blocks():
            if block.at == "anyone":
                folder = sites.folder / "anyone"
                shutil.copytree(sites.folder / "coordinator/published/four-sites", folder / "four-sites")
                shutil.copy(sites.folder / "coordinator/federation/ca.pem", folder)
            with ThreadPoolExecutor(len(PARTIES)) as pool:
                list(pool.map(partial(sites.do, block), PARTIES if block.at == "party" else (block.at,)))
        yield sites
    finally:
        sites.end()


def test_the_document_leads_four_sites_to_a_student_that_anyone_can_verify(sites):
    assert "Learned nothing" not in sites.said["coordinator"], sites.said["coordinator"]
    assert "warn" not in sites.said["coordinator"], sites.said["coordinator"]
    said = sites.said["anyone"]
    assert "4 of 4" in said, said
    assert sorted(path.name for path in (sites.folder / "anyone").iterdir()) == ["ca.pem", "four-sites"]
    for party in PARTIES:
        assert "1 run" in sites.said[party], sites.said[party]


def test_no_key_has_left_its_site(sites):
    secrets = {path.read_bytes() for party in PARTIES for path in (sites.folder / party).glob("*.key")}
    assert len(secrets) == len(PARTIES)
    for path in (sites.folder / "coordinator").rglob("*"):
        assert not path.is_file() or path.read_bytes() not in secrets, path


def test_the_folder_does_not_verify_under_another_federations_authority(sites, tmp_path):
    environment = sites.environment("elsewhere")
    command = "coordinator provision other --name coordinator.other.example && cp other/ca.pem ."
    subprocess.run(["bash", "-euc", command], cwd=tmp_path, env=environment, check=True, capture_output=True)
    folder = sites.folder / "anyone/four-sites"
    done = subprocess.run(
        ["coordinator", "verify", folder, "--trust", "ca.pem"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "authority" in done.stdout + done.stderr


def test_a_stranger_gets_nothing_from_a_party_that_serves(sites):
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from protos.conclave.v1 import party_pb2
    from protos.conclave.v1.party_pb2_grpc import PartyStub

    authority = (sites.folder / "anyone/ca.pem").read_bytes()
    address = f"127.0.0.1:{sites.ports['north']}"
    name = (("grpc.ssl_target_name_override", "north.party.conclave"),)
    channels = {
        "plain": grpc.insecure_channel(address),
        "without a certificate": grpc.secure_channel(address, grpc.ssl_channel_credentials(authority), name),
    }
    for how, channel in channels.items():
        party, health = PartyStub(channel), health_pb2_grpc.HealthStub(channel)
        with channel:
            for verb, question in (
                (party.Describe, party_pb2.DescribeRequest(nonce=b"n" * 32)),
                (health.Check, health_pb2.HealthCheckRequest()),
            ):
                with pytest.raises(grpc.RpcError) as failure:
                    verb(question, timeout=10)
                assert failure.value.code() == grpc.StatusCode.UNAVAILABLE, how
