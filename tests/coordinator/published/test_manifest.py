"""What seals a published folder: a digest of every file, signed so that other tools can check it."""

import hashlib
import json
import shutil
import subprocess
from datetime import UTC, datetime

import numpy as np
import pytest
from cryptography import x509

from coordinator.published import manifest
from coordinator.published.manifest import Manifest, Seal
from coordinator.publishing.publish import publish
from coordinator.publishing.report import state
from coordinator.systems.dped.student import EmbeddingStudent
from coordinator.systems.registry import plan_of, price_of
from coordinator.verifying.verify import verify
from learning.text.words import Vocabulary
from protos.digest import plan_hash
from protos.identity.certificates import Role, fingerprint
from protos.identity.identity import self_made
from protos.identity.signing import canonical_json, sign

PARTIES = ("north", "south")


@pytest.fixture(scope="module")
def priced():
    return price_of(
        plan_of(
            {
                "run": {"name": "demo", "recipe": "dped", "seed": 7},
                "privacy": {"epsilon": 6.0, "delta": 1e-6},
                "federation": {
                    "launch": "connect",
                    "parties": [{"name": name, "address": "127.0.0.1:7443"} for name in PARTIES],
                },
                "vocabulary": {"source": "public.jsonl", "size": 3},
                "dped": {"signals": ["counts"], "dimension": 2},
            }
        )
    )


@pytest.fixture(scope="module")
def seal(priced):
    parties = {name: self_made(name, Role.PARTY, None) for name in PARTIES}
    return Seal(
        run="7f3a-demo",
        plan_hash=plan_hash(priced.binding).hex(),
        binding=priced.binding,
        identity=self_made("coordinator.local", Role.COORDINATOR, None),
        attestations={name: sign(each, "conclave attestation 1", {"party": name}) for name, each in parties.items()},
        not_attested={"west": "lost"},
        attested_at=datetime.now(UTC).timestamp(),
        signed_at=datetime.now(UTC).timestamp(),
    )


@pytest.fixture
def folder(tmp_path, seal):
    folder = tmp_path / "student"
    (folder / "0_StaticEmbedding").mkdir(parents=True)
    (folder / "0_StaticEmbedding/model.safetensors").write_bytes(bytes(range(256)) * 5000)
    (folder / "README.md").write_text("# demo\n")
    manifest.write(folder, seal)
    return folder


def test_every_other_file_is_listed_with_its_size_and_the_digest_that_any_tool_computes(folder):
    read = json.loads((folder / "manifest.json").read_bytes())
    there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert set(read["files"]) == set(there) - {"manifest.json", "manifest.sig"}
    assert {"plan.json", "coordinator.pem", "attestations/north.json", "0_StaticEmbedding/model.safetensors"} <= set(
        there
    )
    for name, file in read["files"].items():
        content = there[name].read_bytes()
        assert file == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def test_the_manifest_is_canonical_and_says_whose_it_is(folder, seal):
    content = (folder / "manifest.json").read_bytes()
    read = json.loads(content)
    assert content == canonical_json(read)
    Manifest.model_validate(read)
    assert (read["run"], read["coordinator"], read["not_attested"]) == (
        "7f3a-demo",
        "coordinator.local",
        {"west": "lost"},
    )
    for name in PARTIES:
        certificate = x509.load_pem_x509_certificate((folder / f"attestations/{name}.pem").read_bytes())
        assert read["parties"][name] == {"fingerprint": fingerprint(certificate)}
        assert (folder / f"attestations/{name}.json").read_bytes() == seal.attestations[name].payload


def test_the_plan_in_the_folder_is_in_the_bytes_that_are_hashed(folder, seal):
    hashed = hashlib.sha256(b"conclave plan 1\n" + (folder / "plan.json").read_bytes()).hexdigest()
    assert hashed == seal.plan_hash


def openssl(folder, payload, signature, certificate):
    key = subprocess.run(
        ["openssl", "x509", "-in", certificate, "-pubkey", "-noout"], cwd=folder, capture_output=True, check=True
    )
    (folder / "key.pem").write_bytes(key.stdout)
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", "key.pem", "-rawin"]
    return subprocess.run([*command, "-in", payload, "-sigfile", signature], cwd=folder, capture_output=True, text=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize(
    "files",
    [
        ("manifest.json", "manifest.sig", "coordinator.pem"),
        ("attestations/north.json", "attestations/north.sig", "attestations/north.pem"),
    ],
    ids=["manifest", "attestation"],
)
def test_openssl_checks_the_signatures(folder, files):
    said = openssl(folder, *files)
    assert (said.returncode, "Signature Verified Successfully" in said.stdout) == (0, True)
    with (folder / files[0]).open("ab") as file:
        file.write(b" ")
    assert openssl(folder, *files).returncode != 0


@pytest.mark.slow
def test_a_student_is_published_sealed(tmp_path, priced, seal):
    words = ("apple", "bread", "cheese")
    vectors = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    metrics = {
        "wordsim": {"spearman": None, "pairs_used": 0, "pairs_total": 353},
        "analogies": {"accuracy": None, "used": 0, "total": 0},
    }
    statement = state(priced, PARTIES, seal.plan_hash, metrics, run=seal.run, sums={"counts": PARTIES})
    student = EmbeddingStudent(Vocabulary(words), vectors, {"inputs": vectors}, metrics, {"apple": ["bread"]})
    publish(student, statement, tmp_path / "student", seal)
    checks = {each.name: each for each in verify(tmp_path / "student").checks}
    assert {name for name, each in checks.items() if each.ok} >= {"files", "signer", "plan", "privacy", "card", "trust"}
    assert not checks["parties"].ok, "what these parties sign here is no attestation"
    assert [each.name for each in tmp_path.iterdir()] == ["student"]
