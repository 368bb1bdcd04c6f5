"""Commands and Python on pages, done word for word in a copy of the project's examples with small numbers and made-up
text.

Commands run in this process, and so do the parties that a run starts; those that the page starts are processes. What
installs takes no action: its extras have to be here. Words in capitals, hosts and folders of a machine are others.
"""

import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

from coordinator.console.command import main as coordinator_command
from party.console.command import main as party_command

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("docs_blocks", ROOT / "docs/making/blocks.py")
blocks = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = blocks
_spec.loader.exec_module(blocks)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MINE = blocks.executed_by("tests/docs/test_commands.py")
COMMANDS = {"coordinator": coordinator_command, "party": party_command}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
PARTIES = (7441, 7442, 7443, 7444)
"""The ports in examples/dped/parties."""
WORDS = {
    "RUN": "my-run", "PLAN": "plan.toml", "DIR": "compared", "/mnt/shared/notes": "handed-out/notes",
    "published/regional-embeddings": "my-run/student", "ca.pem": "~/.conclave/identity/ca.pem",
}  # fmt: skip
"""What stands for words of pages; `House.others` has more."""
LESS = {
    "compare": ["--epsilons", "8", "--seeds", "1"],
    "audit": ["--canaries", "20", "--records", "60", "--texts", "20"],
}
"""What is added to commands that would take long: a later option goes before an earlier one."""
ROWS = {"dped": "counts,unigram", "privdistil": "scratch,fine_tune", "distildp": "public", "swing": "swing,public"}
"""The rows of a comparison that are quick, one of them the system's own, by its recipe."""


DATA = {
    "sst2": (("train", 300), ("dev", 40)),
    "ag_news": (("train", 300), ("dev", 40)),
    "imdb": (("train", 200),),
    "novels": (("passages", 120),),
    "aeslc": (("train", 300), ("dev", 40), ("test", 40)),
}
"""Files that the plans of examples name, which Conclave does not ship, and how many rows stand in for them."""
MOST = {
    "declared_size": 240, "size": 300, "dimension": 8, "steps": 1, "batch": 16, "per_party": 2, "passes": 1,
    "limit": 100, "texts": 40, "rows": 40, "clusters": 3, "epochs": 1,  "layers": 2, "dimensions": 4,
}  # fmt: skip
"""The largest numbers in the plans of examples, by their keys: what takes an hour with theirs takes seconds."""


def smaller(text):
    """A plan with numbers of at most `MOST`, and of divided documentation a tenth."""

    def least(found):
        return f"{found[1]}{min(MOST[found[2]], int(found[3].replace('_', '')))}"

    text = re.sub(rf"(?m)^((?:teachers_)?({'|'.join(MOST)})\s*= *)([\d_]+)", least, text)
    return re.sub(r'(by = "package", parties = 4) }', r"\1, of = 40 }", text).replace("parts = 4,", "parts = 40,")


def write_data(folder):
    """Made-up rows for the files of `DATA`: two kinds of text, which a word tells apart."""
    rng = np.random.default_rng(0)
    words = "the a film was is plot actor and not very slow fast end start story we saw it".split()  # noqa: SIM905
    for name, files in DATA.items():
        (folder / name).mkdir(parents=True)
        for file, count in files:
            rows = []
            for number in range(count):
                kind = int(rng.integers(2))
                text = " ".join([*rng.choice(words, rng.integers(5, 12)), ("bad", "good")[kind]])
                rows.append({"text": text, "label": number % 4 + 1 if name == "ag_news" else kind, "body": text})
            (folder / name / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


class Collector(BaseHTTPRequestHandler):
    """Takes whatever is sent, as a collector of traces does."""

    def do_POST(self):
        self.server.told.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


class House:
    """The folder where it is done, what was done there, and what stands for other words."""

    def __init__(self, folder, warm):
        self.folder, self.warm = folder, warm
        self.done, self.served, self.others = set(), {}, {}

    def follow(self, block):
        """Do a block, line by line; what was done before is not done again."""
        if block.kind == "python":
            self.python(block.text)
        elif block.text.startswith("openssl"):
            shutil.copytree("my-run/student", "by-hand")
            shutil.copy(Path.home() / ".conclave/identity/ca.pem", "by-hand")
            subprocess.run(["bash", "-euc", block.text], cwd="by-hand", check=True)
        else:
            for line in block.text.splitlines():
                self.line(line, block.page)

    def python(self, text):
        """Execute a block in a folder where nothing has been published, beside the plan and the students."""
        folder = self.folder / f"python-{len(list(self.folder.glob('python-*')))}"
        folder.mkdir()
        shutil.copy("plan.toml", folder)
        for run in ("sentiment", "news", *(["my-run"] if "output=" not in text else [])):
            if Path(run).exists():
                (folder / run).symlink_to(Path(run).absolute())
        with contextlib.chdir(folder):
            exec(compile(text, "page", "exec"), {})
        self.done.add(text)

    def line(self, line, page):
        """Do a line of a page."""
        words = shlex.split(line, comments=True)
        if not words or line in self.done:
            return
        program = blocks.program(words[0])
        words = [os.path.expanduser(self.others.get(word, WORDS.get(word, word))) for word in words]
        if words[1] == "serve":
            self.serve(words)
        elif program == "coordinator" or program == "party":
            for place in ("audit", "comparison", "published"):  # which commands take where nothing else is said
                shutil.rmtree(place, ignore_errors=True)
            if words[1] == "run" and Path(words[-1]).exists():
                words.append("--replace")
            assert command(program, words[1:]) == 0, f"{page}: {line}"
        elif program in ("pip", "make"):
            for extra in re.findall(r"\[(\w+)\]|extra `(\w+)`", line):
                assert [distribution(Requirement(each).name) for each in EXTRAS["".join(extra)]]
        else:
            subprocess.run([sys.executable, *words[1:], "--steps", "2"], check=True)
        if "init" in words:
            Path("plan.toml").write_text(smaller(Path("plan.toml").read_text()))
        self.done.add(line)

    def serve(self, words):
        """Start a party, and wait until it listens."""
        node = self.warm.start(words[1:], cwd=self.folder, environment=dict(os.environ), stderr=sys.__stderr__)
        self.served[words[-1]] = node
        assert any("listening" in said for said in iter(node.stdout.readline, "")), words

    def end(self):
        """End every party."""
        for node in self.served.values():
            node.terminate()
            node.wait(120)
            node.stdout.close()


def command(program, words):
    """Do a command in this process; its exit code."""
    if words[0] == "compare":
        words = [*words, "--recipes", ROWS[tomllib.loads(Path(words[1]).read_text())["run"]["recipe"]]]
    words = words + LESS.get(words[0], []) + (["--shadows", "6"] if "--shadows" in words else [])
    return COMMANDS[program](words)


@pytest.fixture(scope="module")
def house(here_for_all, warm_parties, tiny_bert, tiny_gpt2, tmp_path_factory):
    """Examples with small numbers, made-up text where they name files, and small models."""
    here = tmp_path_factory.mktemp("commands")
    house = House(here / "house", warm_parties)
    house.folder.mkdir()
    write_data(here / "shared/data")
    shutil.copytree(ROOT / "examples", house.folder / "examples")
    encoder = f'"{tiny_bert}"\npooling = "mean"'
    ports = {port: free_port() for port in PARTIES}
    for path in (house.folder / "examples").rglob("*.toml"):
        text = smaller(path.read_text()).replace("[domain]", "[domain]\nepsilon = 1.0\nsteps = 1\nbatch = 16")
        if path.parent.name in ("classifier", "privdistil"):
            text = text.replace("[privacy]", "[privacy]\nnoise_multiplier = 2.0")  # which takes seconds to find
        text = text.replace('"all-MiniLM-L6-v2"', encoder if "nvdp" in str(path) else f'"{tiny_bert}"')
        for port, other in ports.items():
            text = text.replace(f'"127.0.0.1:{port}"', f'"127.0.0.1:{other}"')
        path.write_text(text)
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    collector.told = []
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    house.others = {
        "http://127.0.0.1:4318": f"http://127.0.0.1:{collector.server_address[1]}",
        "mlflow:http://mlflow.example:5000": f"mlflow:{(here / 'tracked').as_uri()}",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(house.folder)
        patch.setenv("HOME", str(here / "home"))
        patch.delenv("CONCLAVE_HOME")
        for name in ("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_ALLOW_FILE_STORE"):
            patch.setenv(name, "true")
        for name in ("DIR", "DATA_DIR", "CACHE_DIR"):
            patch.setenv(f"WANDB_{name}", str(here / "wandb"))
        patch.setenv("WANDB_MODE", "offline")
        first = next(block for block in MINE if "public_model.py" in block.text)
        house.line(first.text.splitlines()[0], first.page)
        (here / "shared/models").mkdir()
        longer(tiny_gpt2, here / "shared/models/public-lm")
        shutil.rmtree("examples/public-model")
        Path("examples/public-model").symlink_to(here / "shared/models/public-lm")
        yield house
    house.end()
    collector.shutdown()
    thread.join()
    collector.server_close()


def longer(model, folder):
    """A language model like another, of as many tokens as the library writes unasked."""
    from transformers import AutoConfig, AutoTokenizer, GPT2LMHeadModel

    config = AutoConfig.from_pretrained(model, n_positions=512)
    GPT2LMHeadModel(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def block(page, start):
    (found,) = [each for each in MINE if each.begins(page, start)]
    return found


FIRST = block("README.md", ".venv/bin/coordinator doctor")
NEEDS = {
    block("docs/classifiers.md", "from transformers import pipeline"): block("docs/classifiers.md", "make install"),
    block("docs/distildp.md", "from datasets"): block("docs/distildp.md", ".venv/bin/coordinator forecast"),
    block("docs/auditing-runs.md", "coordinator audit RUN --shadows"): block("docs/classifiers.md", "make install"),
    block("docs/parties.md", ".venv/bin/coordinator run"): block("docs/parties.md", ".venv/bin/party serve"),
}
"""What has to be done before a block, besides the first run."""


@pytest.mark.parametrize("shown", MINE, ids=[each.place for each in MINE])
def test_a_block_of_a_page_does_what_it_says(house, shown, request):
    house.others["RUN"] = "sentiment" if "--shadows" in shown.text else "my-run"
    if "hub:" in shown.text:
        request.getfixturevalue("hub")
    for each in (FIRST, NEEDS.get(shown)):
        if each is not None:
            house.follow(each)
    house.follow(shown)
