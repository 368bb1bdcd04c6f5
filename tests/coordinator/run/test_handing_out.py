"""A student is handed out once more: into a folder, or to a model hub, for which a server on this machine stands in."""

import base64
import hashlib
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from huggingface_hub import constants, snapshot_download

from coordinator import api
from coordinator.console.command import main
from coordinator.errors import RunError
from coordinator.store.store import RunStore
from coordinator.verifying.verify import verify

TOKEN = "hf_of_this_test"
HUGE = 1000
"""Bytes from which on the stand-in wants a file sent apart, as hubs do from 10 MB on."""


class Hub(BaseHTTPRequestHandler):
    """A model hub: repositories by name, each of files; a commit is there whole or not at all."""

    def log_message(self, *_):
        pass

    def _says(self, status, body=None, **headers):
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _read(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _allowed(self):
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return True
        self._says(401, {"error": "Invalid username or password."})
        return False

    def do_POST(self):
        content, hub, path = self._read(), self.server, urlsplit(self.path).path
        if not self._allowed():
            return None
        if path == "/api/repos/create":
            asked = json.loads(content)
            name = "/".join(filter(None, [asked.get("organization"), asked["name"]]))
            if name.startswith("forbidden/"):
                return self._says(403, {"error": "You don't have the rights."})
            known = name in hub.repositories
            if not known:
                hub.repositories[name] = {".gitattributes": b"*.safetensors filter=lfs\n"}
                hub.private[name] = asked.get("private", asked.get("visibility") == "private")
            return self._says(409 if known else 200, {"url": f"{hub.address}/{name}", "name": name})
        if path == "/api/validate-yaml":
            return self._says(200, {"errors": [], "warnings": []})
        if "/preupload/" in path:
            modes = {
                each["path"]: "lfs" if each["size"] >= HUGE else "regular" for each in json.loads(content)["files"]
            }
            files = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]
            return self._says(200, {"files": files})
        if path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**each, "actions": {"upload": {"href": f"{hub.address}/put/{each['oid']}"}}}
                for each in json.loads(content)["objects"]
            ]
            return self._says(200, {"transfer": "basic", "objects": objects})
        if "/commit/" in path:
            name = path.removeprefix("/api/models/").partition("/commit/")[0]
            hub.commits += 1
            if hub.refuses:
                return self._says(500, {"error": "the disk is full"})
            made = dict(hub.repositories[name])
            for line in map(json.loads, content.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    made[value["path"]] = base64.b64decode(value["content"])
                if line["key"] == "lfsFile":
                    made[value["path"]] = hub.sent[value["oid"]]
                if line["key"] == "deletedFile":
                    del made[value["path"]]
            hub.repositories[name] = made
            url = f"{hub.address}/{name}/commit/{hub.commits:040x}"
            return self._says(200, {"commitUrl": url, "commitOid": f"{hub.commits:040x}"})
        return self._says(404, {"error": path})

    def do_PUT(self):
        content = self._read()
        self.server.sent[self.path.rpartition("/")[2]] = content
        self._says(200)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub, path = self.server, urlsplit(self.path).path
        if not self._allowed():
            return None
        if path.startswith("/api/models/"):
            name, _, rest = path.removeprefix("/api/models/").partition("/tree/")
            name = name.partition("/revision/")[0]
            files = hub.repositories.get(name)
            if files is None:
                return self._says(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            listed = [{"type": "file", "path": p, "size": len(each), "oid": _oid(each)} for p, each in files.items()]
            if rest:
                return self._says(200, listed)
            about = {"id": name, "sha": f"{hub.commits:040x}", "siblings": [{"rfilename": each} for each in files]}
            return self._says(200, about)
        name, _, file = path.strip("/").partition("/resolve/")
        content = hub.repositories[name][file.partition("/")[2]]
        return self._says(200, content, ETag=f'"{_oid(content)}"', X_Repo_Commit=f"{hub.commits:040x}")


def _oid(content):
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def hub(monkeypatch):
    """A hub on this machine, which the library takes for the only one there is."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.address = f"http://127.0.0.1:{server.server_address[1]}"
    server.repositories, server.private, server.sent, server.commits, server.refuses = {}, {}, {}, 0, False
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def run(here_for_all, made_tables, tmp_path_factory):
    """A finished run."""
    return api.run(made_tables, output=tmp_path_factory.mktemp("run") / "out")


@pytest.fixture(scope="module")
def made_tables(tmp_path_factory):
    """A small plan for word counts."""
    from coordinator.systems.registry import template

    folder = tmp_path_factory.mktemp("plan")
    text = (
        template("ray")
        .replace('signals   = ["moments"]', 'signals   = ["counts"]\nclip      = 10.0')
        .replace("size   = 1000", "size   = 60")
        .replace("dimension = 100", "dimension = 8")
        .replace("parties = 4 }", "parties = 4, of = 40 }")
    )
    (folder / "plan.toml").write_text(text)
    return folder / "plan.toml"


@pytest.mark.slow
def test_a_folder_gets_the_whole_signed_student(run, tmp_path, capsys):
    assert main(["publish", run.run, "--to", str(tmp_path / "copy"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["place"] == str(tmp_path / "copy")
    assert verify(tmp_path / "copy", None).ok
    with pytest.raises(RunError, match="exists already"):
        api.publish(run.run, tmp_path / "copy")
    with pytest.raises(RunError, match="lies in the student's own folder"):
        api.publish(run.student, run.student / "again")


@pytest.mark.slow
def test_a_hub_gets_one_commit_that_verifies_where_it_is_downloaded(run, hub, tmp_path):
    place = api.publish(run.student, "hub:clinics/notes").place
    assert place.startswith(f"{hub.address}/clinics/notes/commit/")
    assert (hub.commits, hub.private["clinics/notes"]) == (1, True)
    files = {path.relative_to(run.student).as_posix() for path in run.student.rglob("*") if path.is_file()}
    assert set(hub.repositories["clinics/notes"]) == files | {".gitattributes"}
    assert hub.sent, "some file was large enough to be sent apart"
    snapshot_download("clinics/notes", local_dir=tmp_path / "fetched", token=TOKEN)
    verdict = verify(tmp_path / "fetched", None)
    assert verdict.ok, verdict.checks
    assert "a hub's client put there" in " ".join(next(c for c in verdict.checks if c.name == "files").sentences)
    (tmp_path / "fetched/pytorch_model.bin").write_bytes(b"more")
    assert not verify(tmp_path / "fetched", None).ok


@pytest.mark.slow
def test_a_later_student_takes_the_place_of_an_earlier_one_and_of_nothing_else(run, hub):
    api.publish(run.student, "hub:clinics/notes", public=True)
    assert hub.private["clinics/notes"] is False
    hub.repositories["clinics/notes"]["left.over"] = b"of an earlier student"
    api.publish(run.student, "hub:clinics/notes")
    assert "left.over" not in hub.repositories["clinics/notes"]
    hub.repositories["clinics/model"] = {"config.json": b"{}"}
    with pytest.raises(RunError, match="no student of Conclave, and was left alone"):
        api.publish(run.student, "hub:clinics/model")
    assert hub.repositories["clinics/model"] == {"config.json": b"{}"}


@pytest.mark.slow
def test_what_does_not_verify_is_handed_to_nobody(run, hub, tmp_path):
    shutil.copytree(run.student, tmp_path / "student")
    with (tmp_path / "student/README.md").open("a") as card:
        card.write("One more line.\n")
    for to in (tmp_path / "copy", "hub:clinics/notes"):
        with pytest.raises(RunError, match="does not verify, so nothing was handed out"):
            api.publish(tmp_path / "student", to)
    assert (hub.repositories, (tmp_path / "copy").exists()) == ({}, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("hub:notes", "Write hub:OWNER/NAME"),
        ("hub:../../etc", "Write hub:OWNER/NAME"),
        ("hub:forbidden/notes", "does not let this token write to forbidden/notes"),
    ],
)
def test_a_name_that_cannot_be_is_refused_in_words(run, hub, capsys, to, said):
    assert main(["publish", str(run.student), "--to", to]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert said in told
    assert told.endswith("[C803]")
    assert hub.commits == 0


@pytest.mark.slow
def test_a_wrong_token_and_a_hub_that_fails_or_is_not_there_are_told_apart(run, hub, monkeypatch):
    hub.refuses = True
    with pytest.raises(RunError, match=r"published at clinics/notes\. .* answered 500: .*the disk is full"):
        api.publish(run.student, "hub:clinics/notes")
    assert set(hub.repositories["clinics/notes"]) == {".gitattributes"}
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(RunError, match="does not take this token"):
        api.publish(run.student, "hub:clinics/notes")


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached(run, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(RunError, match="cannot be reached"):
        api.publish(run.student, "hub:clinics/notes")


@pytest.mark.slow
def test_a_run_that_is_not_there_or_not_finished_has_no_student(run, monkeypatch):
    with pytest.raises(RunError, match="There is no run"):
        api.publish("0000-nothing", "hub:clinics/notes")
    monkeypatch.setattr(RunStore, "status", lambda store: "stopped")
    with pytest.raises(RunError, match="is stopped, and only a finished run has a student"):
        api.publish(run.run, "hub:clinics/notes")
