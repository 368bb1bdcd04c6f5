"""Runs at a coordinator that stays up, as real processes: the embedded student and charges, whatever is killed."""

import json
import os
import re
import shutil
import signal
import tempfile
import urllib.error
import urllib.request
from contextlib import contextmanager

import psutil
import pytest

from coordinator.identity import provisioning
from coordinator.submitting.submitter import enroll
from protos.identity.certificates import Role

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FILE = """
identity = "federation"
keep = "kept"
public = "shared"
drain_seconds = 30
parties = [{{ name = "north", dials = true }}, {{ name = "south", address = "{south}" }}]

[gate]
listen = "127.0.0.1:{gate}"
sockets = "{sockets}"

[submit]
listen = "127.0.0.1:{submit}"
spare = 0

[status]
listen = "127.0.0.1:{status}"
"""


class Site:
    """A scene whose coordinator stays up, and ann, who may submit runs to it."""

    def __init__(self, scenes, scene, sockets):
        self.scenes, self.scene, self.folder = scenes, scene, scene.folder
        self.submit, self.status = scenes.free_port(), scenes.free_port()
        self.at = f"127.0.0.1:{self.submit}"
        provisioning.serve(self.folder / "federation")
        (self.folder / "shared").mkdir()
        shutil.copy(self.folder / "public.jsonl", self.folder / "shared/public.jsonl")
        ports = {"gate": scene.gate, "submit": self.submit, "status": self.status}
        text = FILE.format(south=scene.address("south"), sockets=sockets, **ports)
        (self.folder / "coordinator.toml").write_text(text)
        self.ann = self.folder / "ann"
        self.ann.mkdir()
        made = enroll("ann", scene._authority, self.ann)
        provisioning.sign(self.folder / "federation", made.request, told=made.fingerprint, role=Role.SUBMITTER)
        self.plan = self.ann / "plan.toml"
        plan = re.sub(r"(?m)^(identity|listen) = .*$", "", scene.plan().read_text())
        names = ", ".join(f'{{ name = "{name}" }}' for name in scene.parties)
        self.plan.write_text(re.sub(r"parties = \[.*\]", f"parties = [{names}]", plan))

    def serve(self):
        """Start the coordinator, and wait until it listens."""
        self.server = self.scene.coordinator("serve", "--config", self.folder / "coordinator.toml", "--json")
        line = self.server.stdout.readline()
        assert line, self.scene.said(self.server.called)
        assert json.loads(line)["submit"] == self.at
        return self.server

    def ask(self, command, *arguments):
        """Start a command of ann's."""
        given = (*arguments, "--at", self.at, "--as", self.ann / "submitter.toml", "--json")
        return self.scene.coordinator(command, *given)

    def submitted(self):
        """The id of the one submission, once it is there."""
        kept = self.folder / "kept/submissions"
        self.scenes.until(lambda: kept.exists() and any(kept.iterdir()), "a submission began")
        (found,) = kept.iterdir()
        return found.name

    def run_folder(self, submission):
        return f"kept/submissions/{submission}/run"

    def child(self, submission):
        """The run's process; None where none lives."""
        try:
            found = psutil.Process(int((self.folder / f"kept/submissions/{submission}/process").read_text()))
            return found if found.status() != psutil.STATUS_ZOMBIE else None
        except (OSError, ValueError, psutil.NoSuchProcess):
            return None

    def page(self, path="/"):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.status}{path}", timeout=10) as answer:
            return answer.read().decode()

    def fact(self, submission, key):
        asked = f"SELECT value FROM facts WHERE key = '{key}'"
        return json.loads(self.scene._asked(self.run_folder(submission), asked, "null"))

    def fetched(self):
        """The student that ann has: every file but those that tell of the run."""
        folder = self.ann / "published"
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        found = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
        return {name: content for name, content in found.items() if not self.scenes.TELLING.match(name)}

    @contextmanager
    def held_up(self, submission, blocks):
        """Within it the run stands still, some of its blocks stored: its party at an address does not move."""
        self.scenes.until(
            lambda: self.scene.stored(self.run_folder(submission)) >= blocks, f"{blocks} blocks are stored"
        )
        south = self.scene.nodes["south"]
        south.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            south.send_signal(signal.SIGCONT)

    def finished(self, client, undisturbed):
        """Check that ann's run finished, as it does undisturbed; the submission's id."""
        code, said = self.scene.outcome(client)
        assert code == 0, said + self.scene.said(self.server.called)
        assert "Traceback" not in said
        done = self.scenes.last_json(said)
        run = done["verdict"]["run"]
        assert self.scene.differs(undisturbed, run, self.run_folder(done["submission"])) == []
        assert self.fetched() == undisturbed.student
        return done["submission"]

    def stop(self):
        self.server.terminate()
        assert self.server.wait(self.scenes.SECONDS) == 0
        self.scene.stop()
        assert [each for each in self.scene.left() if "tmp/conclave-" not in each] == []


@pytest.fixture
def site(scenes, warm, tmp_path):
    sockets = tempfile.mkdtemp(prefix="conclave-test-")
    with scenes.Scene(tmp_path / "scene", warm=warm, dials=("north",)) as scene:
        scene.serve_all()
        yield Site(scenes, scene, sockets)
    shutil.rmtree(sockets)


def test_a_submitted_run_gives_the_embedded_student_and_costs_once(site, undisturbed):
    site.serve()
    submission = site.finished(site.ask("run", site.plan), undisturbed)
    page = site.page()
    assert submission in page
    assert "finished" in page
    assert "connected" in page
    assert 'state="finished"} 1.0' in site.page("/metrics")
    assert site.page("/health") == "up\n"

    code, said = site.scene.outcome(site.ask("run", site.plan, "--output", site.ann / "again"))
    assert code == 1
    assert f"this plan ran before as {submission}, which is finished" in said
    assert "pays again at every party; if that is meant: --again" in said
    assert not (site.ann / "again").exists()
    code, said = site.scene.outcome(site.ask("runs"))
    assert [each["id"] for each in site.scenes.last_json(said)["runs"]] == [submission]
    code, said = site.scene.outcome(site.ask("fetch", submission[:6], "--output", site.ann / "second"))
    assert code == 0, said
    assert (site.ann / "second/manifest.sig").read_bytes() == (site.ann / "published/manifest.sig").read_bytes()
    code, said = site.scene.outcome(site.ask("cancel", submission))
    assert code == 1
    assert f"{submission} is finished already" in said
    for path in ("", "submissions.sqlite", "held", f"submissions/{submission}/log.txt"):
        assert (site.folder / "kept" / path).stat().st_mode & 0o077 == 0
    site.stop()


def test_a_run_outlives_deaths_of_the_coordinator_and_of_its_own_process(site, undisturbed):
    site.serve()
    client = site.ask("run", site.plan)
    submission = site.submitted()
    with site.held_up(submission, 1):
        process = site.child(submission).pid
        site.server.kill()
        site.server.wait()
        site.serve()
        assert site.child(submission).pid == process, "the process that lives is followed, and there is no second one"
        assert "still has its process" in site.scene.said(site.server.called)
        os.kill(process, signal.SIGKILL)
        site.scenes.until(lambda: (found := site.child(submission)) and found.pid != process, "it is started again")
    with site.held_up(submission, 4):
        site.server.kill()
        site.server.wait()
        site.child(submission).kill()
        site.scenes.until(lambda: site.child(submission) is None, "it is dead")
        site.serve()
        site.scenes.until(lambda: site.child(submission) is not None, "it is started again")
    assert site.finished(client, undisturbed) == submission
    assert site.fact(submission, "resumed") == 2
    site.stop()


def test_a_coordinator_that_ends_in_order_stops_the_run_and_goes_on_with_it_later(site, undisturbed):
    site.serve()
    client = site.ask("run", site.plan)
    submission = site.submitted()
    with site.held_up(submission, 2):
        site.server.terminate()
        site.scenes.until(lambda: "takes no more runs" in site.scene.said(site.server.called), "it drains")
    assert site.server.wait(site.scenes.SECONDS) == 0
    assert site.child(submission) is None
    assert site.fact(submission, "status") == "resumable"
    with pytest.raises(urllib.error.URLError):
        site.page()
    site.serve()
    assert site.finished(client, undisturbed) == submission
    assert site.fact(submission, "resumed") == 1
    site.stop()


def test_a_run_is_cancelled_while_it_goes_on_and_its_parties_forget_it(site):
    site.serve()
    client = site.ask("run", site.plan)
    submission = site.submitted()
    with site.held_up(submission, 1):
        ending = site.ask("cancel", submission)
        site.scenes.until(lambda: site.fact(submission, "cancel"), "it is asked to stop")
    code, said = site.scene.outcome(ending)
    assert code == 0, said
    assert f"{submission} is cancelled" in said
    assert "its parties forgot it" in said
    assert "stays charged" in said
    code, said = site.scene.outcome(client)
    assert code == 1
    assert f"{submission} is cancelled" in said
    code, said = site.scene.outcome(site.ask("run", site.plan))
    assert code == 1
    assert "this plan ran before" in said, "what it cost stays spent, so running it again is asked for in words"
    site.stop()
