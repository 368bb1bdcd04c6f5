"""A published folder after any change: `verify` ends with a verdict, soon, and nothing altered is found well."""

import json
import os
import shutil
from base64 import encodebytes
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from aggregation.errors import IntegrityError
from coordinator.errors import RunError
from coordinator.published import manifest
from coordinator.verifying.check import Trust
from coordinator.verifying.verify import lines, record, verify
from protos.digest import canonical, plan_hash
from protos.identity.certificates import pem_of
from protos.identity.signing import sign

RECOMPUTING = 1024
"""MiB that pricing hostile events may take: what the accountant itself needs for the worst that it accepts."""


@pytest.fixture(scope="module")
def federation(tests):
    beside = tests("coordinator/verifying/test_verify.py")
    return beside.Federation()


@pytest.fixture(scope="module")
def original(federation, tmp_path_factory):
    return federation.publish(tmp_path_factory.mktemp("published") / "student")


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "copy")


def judged(hostile, folder, trust):
    """The verdict, every sentence of which a terminal may show."""
    verdict = verify(folder, trust)
    for line in lines(verdict):
        assert line.isprintable(), line
        assert len(line) < 3000
    json.dumps(record(verdict), allow_nan=False)
    return verdict


def restored(folder, original, path):
    """Put back what one input changed."""
    place = folder / path
    if place.is_symlink() or place.is_file() or place.is_fifo():
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(original / path, place)


@pytest.mark.slow
def test_no_change_to_the_bytes_of_a_file_is_found_well(fuzz, hostile, federation, original, folder):
    paths = sorted(path.relative_to(original).as_posix() for path in original.rglob("*") if path.is_file())
    contents = {path: (original / path).read_bytes() for path in paths}

    def make(rng):
        path = rng.choice(paths)
        return path, hostile.damage(rng, contents[path], contents[rng.choice(paths)][:5000])

    @fuzz(hostile.made(make), share=0.4)
    def _(change):
        path, damaged = change
        (folder / path).write_bytes(damaged)
        verdict = judged(hostile, folder, federation.trust if len(damaged) % 4 else None)
        assert verdict.ok == (damaged == contents[path])
        (folder / path).write_bytes(contents[path])


@pytest.mark.slow
def test_no_other_thing_in_place_of_a_file_is_followed_or_found_well(fuzz, hostile, federation, original, folder):
    paths = sorted(path.relative_to(original).as_posix() for path in original.rglob("*") if path.is_file())

    def make(rng):
        names = [name for name in hostile.NAMES if "\0" not in name and "\udc80" not in name and len(name) < 200]
        return rng.choice(paths), rng.randrange(7), rng.choice([*paths, *names])

    @fuzz(hostile.made(make), share=0.1)
    def _(change):
        path, kind, other = change
        place = folder / path
        place.unlink()
        match kind:
            case 0:
                place.symlink_to(original / path)
            case 1:
                place.mkdir()
            case 2:
                os.mkfifo(place)
            case 3:
                place.symlink_to("/dev/zero")
            case 4:
                place.symlink_to(place.name)
            case 5:
                shutil.copy(original / other, place) if (original / other).is_file() and other != path else None
            case 6:
                (place.parent / f"{Path(other).name or 'x'}.more").write_bytes(b"more")
        assert not judged(hostile, folder, federation.trust).ok
        for each in folder.rglob("*.more"):
            each.unlink()
        restored(folder, original, path)


@pytest.mark.slow
def test_whatever_the_coordinator_itself_signs_ends_in_a_verdict(fuzz, hostile, federation, original, folder):
    """Statements, plan and manifest with odd values in them, each signed by whose it is, and the rest made to fit."""
    privacy = json.loads((original / manifest.PRIVACY).read_bytes())
    plan = json.loads((original / manifest.PLAN).read_bytes())
    attested = json.loads((original / "attestations/north.json").read_bytes())
    listed = json.loads((original / manifest.MANIFEST).read_bytes())
    binding = federation.priced.binding

    def make(rng):
        chance = rng.random()
        if chance < 0.3:
            return {manifest.PRIVACY: hostile.as_text(hostile.damage_json(rng, privacy))}
        if chance < 0.5:
            odd = hostile.damage_message(rng, binding)
            try:
                digest = plan_hash(odd).hex()
            except ValueError:
                return {manifest.PLAN: b"{}"}
            return {
                manifest.PLAN: canonical(odd),
                manifest.PRIVACY: hostile.as_text(privacy | {"plan_hash": digest}),
            }
        if chance < 0.7:
            return {"attestations/north.json": hostile.as_text(hostile.damage_json(rng, attested))}
        if chance < 0.8:
            return {manifest.PLAN: hostile.as_text(hostile.damage_json(rng, plan))}
        return {manifest.MANIFEST: hostile.as_text(hostile.damage_json(rng, listed))}

    @fuzz(hostile.made(make), mebibytes=RECOMPUTING, seconds=30, share=0.25)
    def _(changed):
        for path, content in changed.items():
            (folder / path).write_bytes(content)
            if path.startswith("attestations/"):
                signature = federation.parties["north"].signing_key.sign(content)
                (folder / path).with_suffix(".sig").write_bytes(signature)
        if manifest.MANIFEST in changed:
            signature = federation.coordinator.signing_key.sign(changed[manifest.MANIFEST])
            (folder / manifest.SIGNATURE).write_bytes(signature)
        else:
            fields = {key: value for key, value in listed.items() if key != "kind"}
            files = {path: manifest.digest_of(folder / path).model_dump() for path in listed["files"]}
            signed = sign(federation.coordinator, manifest.KIND, fields | {"files": files})
            (folder / manifest.MANIFEST).write_bytes(signed.payload)
            (folder / manifest.SIGNATURE).write_bytes(signed.signature)
        judged(hostile, folder, federation.trust)
        for path in (*changed, manifest.MANIFEST, manifest.SIGNATURE, "attestations/north.sig"):
            restored(folder, original, path)


def test_a_damaged_authority_or_list_is_refused_and_never_trusted(fuzz, hostile, federation, folder, tmp_path):
    authority = pem_of(federation.authority.certificate)
    revoked = federation.authority.revocation_list([7])

    @fuzz(
        hostile.made(lambda rng: (hostile.damage(rng, authority), rng.choice([revoked, hostile.damage(rng, revoked)]))),
        share=0.5,
    )
    def _(given):
        (tmp_path / "ca.pem").write_bytes(given[0])
        (tmp_path / "revoked.pem").write_bytes(given[1])
        try:
            trust = Trust.read(tmp_path / "ca.pem", tmp_path / "revoked.pem")
        except RunError as error:
            hostile.check_sentence(error)
        else:
            judged(hostile, folder, trust)


@pytest.mark.parametrize("name", ["nothing", "a\0b", "x" * 5000])
def test_a_folder_that_cannot_be_is_refused(name, hostile, tmp_path):
    with pytest.raises(IntegrityError) as caught:
        verify(tmp_path / name)
    hostile.check_sentence(caught.value)


def test_an_authority_with_a_key_of_an_unknown_kind_is_refused(hostile, federation, tmp_path):
    der = federation.authority.certificate.public_bytes(Encoding.DER)
    unknown = der.replace(bytes.fromhex("06072a8648ce3d0201"), bytes.fromhex("06072a8648ce3d0202"))
    assert unknown != der
    (tmp_path / "ca.pem").write_bytes(
        b"-----BEGIN CERTIFICATE-----\n" + encodebytes(unknown) + b"-----END CERTIFICATE-----\n"
    )
    (tmp_path / "revoked.pem").write_bytes(federation.authority.revocation_list([]))
    with pytest.raises(RunError) as caught:
        Trust.read(tmp_path / "ca.pem", tmp_path / "revoked.pem")
    hostile.check_sentence(caught.value)


def test_a_manifest_with_a_key_in_brackets_has_a_verdict(hostile, federation, folder):
    fields = json.loads((folder / manifest.MANIFEST).read_bytes()) | {"[2J": 1}
    (folder / manifest.MANIFEST).write_bytes(hostile.as_text(fields))
    assert not judged(hostile, folder, federation.trust).ok
