"""A coordinator that sends a student is not trusted: what comes is the student's files, whole, or nothing is kept."""

import hashlib

import pytest

from aggregation.errors import ConclaveError, IntegrityError
from coordinator.submitting import client as clients
from coordinator.submitting.client import _received
from coordinator.submitting.submitter import enroll, identity_of, read_submitter
from protos.conclave.v1 import coordinator_pb2

CONTENT = {"model.safetensors": b"x" * 5000, "attestations/north.json": b"{}", "empty.txt": b""}


def listed(content=CONTENT, **changes):
    files = []
    for path, data in content.items():
        file = {"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} | changes
        files.append(coordinator_pb2.PublishedFile(**file))
    return coordinator_pb2.FetchResponse(files=files)


def sent(*messages):
    return iter(messages)


def pieces(content=CONTENT, size=777):
    whole = b"".join(content.values())
    return [coordinator_pb2.FetchResponse(data=whole[at : at + size]) for at in range(0, len(whole), size)]


def test_files_come_whole_however_their_bytes_are_cut(tmp_path):
    for size in (1, 777, 100_000):
        folder = tmp_path / str(size)
        folder.mkdir()
        _received(sent(listed(), *pieces(size=size)), folder)
        assert {path: (folder / path).read_bytes() for path in CONTENT} == CONTENT


@pytest.mark.parametrize(
    "path", ["../out", "/etc/passwd", "a/../../out", "a//b", "", ".", "a/./b", "a\\b", "a\nb", "x" * 500, "é", "a/"]
)
def test_no_path_leaves_the_folder(tmp_path, path):
    with pytest.raises(IntegrityError, match="is no file of a student"):
        _received(sent(listed({path: b"x"}), *pieces({path: b"x"})), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_same_file_twice_or_none_is_no_list(tmp_path):
    twice = coordinator_pb2.FetchResponse(files=[*listed().files, *listed().files])
    for first in (twice, coordinator_pb2.FetchResponse(), coordinator_pb2.FetchResponse(data=b"x")):
        with pytest.raises(IntegrityError, match="is not the list of a student's files"):
            _received(sent(first), tmp_path)
    with pytest.raises(IntegrityError):
        _received(sent(), tmp_path)


def test_other_bytes_than_the_digest_says_are_not_kept(tmp_path):
    with pytest.raises(IntegrityError, match=r"model\.safetensors came with another digest"):
        _received(sent(listed(), *pieces(CONTENT | {"model.safetensors": b"y" * 5000})), tmp_path)


def test_fewer_and_more_bytes_than_were_said_are_told(tmp_path):
    (tmp_path / "few").mkdir()
    (tmp_path / "many").mkdir()
    with pytest.raises(IntegrityError, match="came without all of"):
        _received(sent(listed(), *pieces()[:-2]), tmp_path / "few")
    with pytest.raises(IntegrityError, match="more came than the student's files"):
        _received(sent(listed(), *pieces(), coordinator_pb2.FetchResponse(data=b"more")), tmp_path / "many")


def test_a_student_that_the_disk_cannot_take_is_not_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(clients, "free_disk", lambda folder: 4000)
    with pytest.raises(ConclaveError, match="the student has 5 kB, and 4 kB are free"):
        _received(sent(listed(), *pieces()), tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConclaveError, match="Make room"):
        _received(sent(listed(bytes=2**63)), tmp_path)


def test_a_fetch_that_fails_leaves_nothing(tmp_path, monkeypatch):
    class Stub:
        def Fetch(self, request):  # noqa: N802
            return Stream()

    class Stream:
        def __init__(self):
            self._messages = sent(listed(), *pieces()[:3])

        def __next__(self):
            return next(self._messages)

        def __iter__(self):
            return self

        def cancel(self):
            pass

    client = clients.Client("127.0.0.1:1", None)
    monkeypatch.setattr(clients.Client, "_stub", Stub())
    with pytest.raises(IntegrityError):
        client.fetch("1a2b", tmp_path / "student")
    assert list(tmp_path.iterdir()) == []


def test_enrolling_makes_keys_that_stay_and_a_file_that_names_the_authority(tmp_path):
    told = f"SHA256:{'0' * 64}"
    made = enroll("ann", told, tmp_path)
    assert (tmp_path / "ann.key").stat().st_mode & 0o077 == 0
    again = enroll("ann", told, tmp_path)
    assert (again.kept, again.fingerprint) == (True, made.fingerprint)
    assert read_submitter(made.file).authority == told
    with pytest.raises(ConclaveError, match="Make the key and a request with `coordinator enroll NAME`"):
        identity_of(made.file)
    with pytest.raises(ConclaveError, match="is not a name that a submitter can have"):
        enroll("Ann!", told, tmp_path)
    with pytest.raises(ConclaveError, match="--as names another"):
        identity_of(tmp_path / "none.toml")
