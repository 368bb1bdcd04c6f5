"""Whole runs: a plan, real party processes, and the student that comes out.

The quick ones use a small vocabulary; the slow ones compare the two ways of starting parties byte for byte.
"""

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from aggregation.accounting.events import to_json
from coordinator import api
from coordinator.console.command import main
from coordinator.identity import provisioning
from coordinator.store import lease, output
from coordinator.store.index import RunIndex
from coordinator.store.store import RunStore
from coordinator.systems.registry import price_of, read_plan, template
from coordinator.transport.grpc_link import GrpcLink
from party.console.command import main as party_command
from protos.identity.certificates import fingerprint, read_bundle
from protos.identity.identity import write_private
from protos.identity.requests import key_pem, make_request, new_keys

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(os.environ.get("CONCLAVE_DATA") or ROOT.parent / "shared/data")
SMALL = (
    template("ray")
    .replace('signals   = ["moments"]', 'signals   = ["counts"]\nclip      = 10.0')
    .replace("size   = 1000", "size   = 60")
    .replace("dimension = 100", "dimension = 8")
    .replace('source = "documentation"', 'source = "letters.jsonl"')
    .replace('source = "documentation-topics"', 'source = "public.jsonl"')
    .replace('source = "documentation-heldout"', 'source = "public.jsonl"\nlabel = "mood"')
    .replace('by = "package", parties = 4', 'by = "sender", parties = 2')
)
FOUR = SMALL.replace("parties = 2 }", "parties = 4 }")
INSECURE = "insecure_reproducible_noise = true\ndropouts = 0"


def write_texts(folder):
    """Letters of twelve senders, and public text in the same made-up words."""
    rng = np.random.default_rng(0)
    first = ("ba", "di", "fo", "gu", "ke", "lo", "mi", "na")
    words = [a + b for a in first for b in ("lam", "ner", "pos", "qui", "rit", "sol", "tun", "vex")]
    frequency = 1 / np.arange(1, len(words) + 1)

    def letter():
        return " ".join(rng.choice(words, 40, p=frequency / frequency.sum()))

    rows = [{"text": letter(), "sender": f"s{number % 12}"} for number in range(300)]
    (folder / "letters.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    moods = [
        {"text": f"{letter()} {'balam' if number % 3 else 'navex navex'}", "mood": number % 3} for number in range(60)
    ]
    (folder / "public.jsonl").write_text("\n".join(json.dumps(each) for each in moods))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path)
    return tmp_path


def toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value)


@pytest.fixture(scope="module")
def serving(warm_parties):
    """`serving(...)`: `party serve` processes, as a context manager that yields their addresses by name."""
    return partial(served, warm_parties)


@contextmanager
def served(warm, tables, folder, federation=None):
    """Party processes with these tables as their files.

    federation: a folder whose authority vouches for them; in plain text without one.
    """
    with ExitStack() as stack:
        nodes = {}
        identities = {} if federation is None else {name: identified(name, folder, federation) for name in tables}
        for name, party in tables.items():
            file = folder / f"{name}.toml"
            lines = [f'name = "{name}"', 'listen = "127.0.0.1:0"']
            if federation is None:
                lines += ["plaintext = true"]
            else:
                pins = {other: key for other, (_, key) in identities.items() if other != name}
                lines += [f"identity = {toml(identities[name][0])}", f"peers = {toml(pins)}"]
            lines += [f"{table} = {toml(party[table])}" for table in ("shard", "policy")]
            file.write_text("\n".join(lines))
            if not party["policy"]["simulation"]:
                with redirect_stdout(StringIO()):
                    assert party_command(["account", "open", "--config", str(file)]) == 0
            serve = ["serve", "--config", str(file), "--json"]
            with (folder / f"{name}.log").open("a") as log:
                nodes[name] = warm.start(serve, cwd=folder, environment=dict(os.environ), stderr=log)
            stack.callback(stop, nodes[name])
        yield {name: json.loads(node.stdout.readline())["address"] for name, node in nodes.items()}


def identified(name, folder, federation):
    """The `[identity]` of a party that the federation vouches for, and the fingerprint that its peers pin."""
    keys = new_keys()
    bundle = provisioning.vouched(federation, name, make_request(name, *keys))
    (folder / f"{name}.pem").write_bytes(bundle)
    write_private(folder / f"{name}.key", key_pem(*keys))
    told = provisioning.authority_fingerprint(federation)
    key = fingerprint(read_bundle(bundle, name).signing)
    return {"certificate": f"{name}.pem", "key": f"{name}.key", "authority": told}, key


def stop(node):
    node.terminate()
    try:
        node.wait(60)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()
    node.stdout.close()


def connected(text, addresses):
    """The same plan with the parties at addresses."""
    entries = ", ".join(f'{{ name = "{name}", address = "{address}" }}' for name, address in addresses.items())
    shards = re.search(r"\[federation\.shards\].*?(?=\n\[)", text, re.S).group()
    return text.replace(shards, "").replace('launch = "ray"', f'launch = "connect"\nparties = [{entries}]')


def files_of(student):
    """The model's files: what tells of the run, and what was signed at a time, differs from run to run."""
    telling = r"(privacy|plan|manifest)\.json$|README\.md$|manifest\.sig$|coordinator\.pem$|attestations/"
    names = sorted(path.relative_to(student) for path in student.rglob("*") if path.is_file())
    return {str(name): (student / name).read_bytes() for name in names if not re.match(telling, str(name))}


@pytest.fixture
def plan():
    Path("plan.toml").write_text(SMALL)
    return read_plan(Path("plan.toml"))


def run_connected(text, addresses, output, *options):
    Path("connect.toml").write_text(connected(text, addresses))
    return main(["run", "connect.toml", "--output", output, *options])


@pytest.fixture(scope="module")
def addresses(serving, tmp_path_factory):
    """Parties that serve for all tests here, and can pay for all of them."""
    folder = tmp_path_factory.mktemp("parties")
    write_texts(folder)
    (folder / "plan.toml").write_text(SMALL)
    tables = api.party_tables(read_plan(folder / "plan.toml"))
    for party in tables.values():
        party["policy"]["epsilon"] = 1000.0
    with serving(tables, folder) as found:
        yield found


@pytest.fixture(scope="module")
def published(addresses, tmp_path_factory):
    """One run, for the tests that look at what is left of it: its folder, home, output and errors."""
    folder = tmp_path_factory.mktemp("run")
    write_texts(folder)
    placed = SMALL.replace('"public.jsonl"', json.dumps(str(folder / "public.jsonl")))
    (folder / "connect.toml").write_text(connected(placed, addresses))
    command = [Path(sys.executable).with_name("coordinator"), "run", "connect.toml", "--output", "out", "--json"]
    environment = os.environ | {"CONCLAVE_HOME": str(folder / "home")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, umask=0o022)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_a_run_with_parties_of_their_own_publishes_a_student_with_its_promise(published):
    folder, said = published
    result = json.loads(said.stdout.splitlines()[-1])
    assert set(result) >= {"run", "student", "epsilon", "delta", "unit", "metrics"}
    student = folder / "out/student"
    assert Path(result["student"]) == student
    assert 7.9 < result["epsilon"] <= 8.0
    assert (result["delta"], result["unit"], result["record"]) == (1e-6, "record", "document")
    assert result["metrics"]["perplexity"] > 1
    assert 0 < result["metrics"]["sentiment"] <= 1
    privacy = json.loads((student / "privacy.json").read_text())
    assert privacy["epsilon"] == result["epsilon"]
    assert privacy["relation"] == "add or remove one unit at one party"
    multiplier = privacy["releases"][0]["mechanism"]["noise_multiplier"]
    assert privacy["releases"][0]["event"] == {"kind": "gaussian", "noise_multiplier": multiplier}
    card = (student / "README.md").read_text()
    for needed in ("license: apache-2.0", "language: en", "epsilon = 8.000", "Trusted aggregator", "Transport"):
        assert needed in card
    for needed in ("perplexity", "floor", "WordSim", "sentiment probe", "Not protected"):
        assert needed in card
    assert "nearest words" in said.stdout
    assert f"next: coordinator report {result['run']}" in said.stdout
    assert "party-1 ready" in said.stderr
    assert [path for path in folder.rglob("*") if "part" in path.suffix] == []


def test_the_student_loads_in_plain_gensim_and_sentence_transformers(published):
    from gensim.models import KeyedVectors
    from safetensors.numpy import load_file
    from sentence_transformers import SentenceTransformer

    student = published[0] / "out/student"
    vectors = KeyedVectors.load_word2vec_format(student / "vectors.txt")
    inputs = load_file(student / "skipgram.safetensors")["inputs"]
    assert np.array_equal(vectors.vectors, inputs)
    encoder = SentenceTransformer(str(student), device="cpu")
    first, second = vectors.index_to_key[:2]
    encoded = encoder.encode([first, f"{first.upper()}, {second}! 12", "neverseenword"])
    assert np.allclose(encoded[0], vectors[first], atol=1e-6)
    assert np.allclose(encoded[1], (vectors[first] + vectors[second]) / 2, atol=1e-6)
    assert np.allclose(encoded[2], 0)


def test_the_student_is_what_sentence_transformers_itself_saves_byte_for_byte(published, tmp_path):
    from sentence_transformers import SentenceTransformer

    student, saved = published[0] / "out/student", tmp_path / "saved"
    SentenceTransformer(str(student), device="cpu").save(str(saved), create_model_card=False)
    names = {path.name for path in saved.iterdir()}
    assert names >= {"config_sentence_transformers.json", "model.safetensors", "modules.json", "tokenizer.json"}
    for name in names:
        assert (student / name).read_bytes() == (saved / name).read_bytes(), name


def test_what_a_run_keeps_is_for_its_owner_and_what_it_publishes_for_everybody(published):
    folder, _ = published
    kept = [folder / "out", *(folder / "out").rglob("*"), folder / "home", folder / "home/runs.sqlite"]
    for path in kept:
        public = path.is_relative_to(folder / "out/student")
        wanted = (0o755 if public else 0o700) if path.is_dir() else (0o644 if public else 0o600)
        assert path.stat().st_mode & 0o777 == wanted, path


def test_no_place_on_this_machine_is_published(published):
    """The plan names its public text by an absolute path; its name is published, and no folder's."""
    folder, _ = published
    student = folder / "out/student"
    for path in student.rglob("*"):
        assert not path.is_file() or os.fsencode(folder) not in path.read_bytes(), path
    assert "public.jsonl" in (student / "plan.json").read_text()


def test_a_run_makes_nothing_in_its_folder_that_is_not_known_for_its_own(published):
    assert output.strangers(published[0] / "out") == []


def test_report_and_runs_show_the_run_afterwards(published, capsys, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(published[0] / "home"))
    assert main(["runs", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]
    assert entry["status"] == "finished"
    assert main(["report", entry["id"][:6], "--json"]) == 0
    said = capsys.readouterr().out
    for needed in ("guarantee  epsilon 8.000", "Trusted aggregator", "not protected", "measured", "stages"):
        assert needed in said
    assert json.loads(said.splitlines()[-1])["privacy"]["trust"] == "trusted-aggregator"


def teaching(signals, *lines, text=SMALL):
    """The small plan with other signals, two queries fewer than words, and these lines of `[dped]`."""
    settings = "\n".join(["queries = 58", "teachers_per_party = 2", *lines])
    text = text.replace('signals   = ["counts"]', f"signals   = {json.dumps(signals)}")
    return text.replace("[dped]\n", f"[dped]\n{settings}\n").replace("window    = 5", "window    = 3")


def private_training(text):
    """The same with teachers under DP-SGD, its noise given: finding it takes a while."""
    table = "[dped.private_training]\nunits_per_teacher = 80\nbatch = 40\nsteps = 3\n\n[student]"
    return text.replace("[student]", table).replace("# noise_multiplier = 0.7", "noise_multiplier = 4.0")


THRESHOLD = ('noise_at = "coordinator"', "threshold = 3.0")
RUNS = {
    "votes and hidden states": (teaching(["votes", "hidden"]), {"answers": "joint"}),
    "moments": (teaching(["moments"], "moments_clip = 50.0"), {"moments": "vectors"}),
    "with moments": (
        teaching(["moments", "votes", "hidden"], "moments_clip = 50.0"),
        {"moments": "vectors", "answers": "joint"},
    ),
    "with counts": (teaching(["votes", "hidden", "counts"]), {"counts": "counts", "answers": "joint"}),
    "the paper's loss": (
        teaching(["votes", "hidden"], 'loss = "paper"', "threshold = 2.0", 'layers = ["centre", "context"]'),
        {"answers": "joint"},
    ),
    "other teachers": (teaching(["votes"], 'alignment = "procrustes"', 'vote = "lift"'), {"answers": "joint"}),
    "threshold at the coordinator": (
        teaching(["votes", "hidden"], *THRESHOLD),
        {"votes": "thresholded", "answers": "joint"},
    ),
    "more noise below the threshold": (
        teaching(["votes"], *THRESHOLD, 'below_threshold = "larger-noise"'),
        {"votes": "thresholded"},
    ),
    "private training": (private_training(teaching(["votes", "hidden"])), {"training": "gradients", "answers": "free"}),
}
QUICK = ("moments",)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in RUNS])
def test_teachers_of_party_processes_give_a_student_with_every_release_in_its_promise(addresses, home, capsys, name):
    text, kinds = RUNS[name]
    assert run_connected(text, addresses, "out", "--json") == 0
    said = capsys.readouterr()
    result = json.loads(said.out.splitlines()[-1])
    privacy = json.loads((home / "out/student/privacy.json").read_text())
    priced = price_of(read_plan(Path("connect.toml")))
    assert result["epsilon"] == privacy["epsilon"] == priced.guarantee.epsilon <= 8.0
    assert [each["name"] for each in privacy["releases"]] == list(kinds)
    for shown, release in zip(privacy["releases"], priced.releases, strict=True):
        assert shown["event"] == to_json(release.event)
        assert shown["charges"] == release.charges
        assert {key: value for key, value in shown["mechanism"].items() if value is not None}
    sent = [each.WhichOneof("mechanism") for each in priced.binding.terms.releases]
    assert sent == list(kinds.values())
    claimed = privacy["epsilon_by_the_papers_formula"]
    if {"counts", "moments", "training"} & set(kinds):
        assert claimed is None, "the paper knows none of them"
    else:
        assert 0 < claimed < privacy["epsilon"]
    assert main(["report", result["run"]]) == 0
    report = capsys.readouterr().out
    card = (home / "out/student/README.md").read_text()
    for release in privacy["releases"]:
        assert f"{release['name']}: {release['says']}" in report
        assert release["says"] in card
    assert ("would have claimed epsilon" in report) == ("would have claimed epsilon" in card) == (claimed is not None)
    assert ("Votes in clear" in report) == ("Votes in clear" in card) == ("votes" in kinds)
    student = home / "out/student"
    vectors = [line.split() for line in (student / "vectors.txt").read_text().splitlines()]
    assert vectors[0] == ["60", "8"]
    assert np.isfinite(np.array([line[1:] for line in vectors[1:]], dtype=float)).all()
    if name == "threshold at the coordinator":
        check_that_noised_labels_alone_are_kept(home)


def check_that_noised_labels_alone_are_kept(home):
    """What the store of a run has whose noise the coordinator drew."""
    (run,) = api.runs()
    store = RunIndex().find(run.id)
    try:
        (labels,) = (block for _, _, block in store.blocks("labels"))
        assert labels.shape == (58, 1)
        assert labels.min() >= -2
        assert labels.max() < 60
        assert list(store.blocks("votes")) == []
        assert [block.shape[1] for _, _, block in store.blocks("answers")] == [8] * 15
    finally:
        store.close()
    with sqlite3.connect(home / "out/run.sqlite") as sql:
        kept = {name for (name,) in sql.execute("SELECT DISTINCT release FROM blocks")}
    assert kept == {"labels", "answers"}
    assert {path.name for path in (home / "out").iterdir()} >= {"run.sqlite", "student"}


def test_a_party_that_keeps_its_votes_refuses_a_coordinator_that_wants_them(plan, home, capsys, serving):
    tables = api.party_tables(plan)
    tables["party-1"]["policy"]["clear_votes"] = False
    with serving(tables, home) as addresses:
        assert run_connected(teaching(["votes"], *THRESHOLD), addresses, "out") == 1
    said = capsys.readouterr().err
    assert "party party-1 refused to join: policy clear_votes = false" in said
    assert "Nothing was spent.\n  When the plan, or the party, is mended:  coordinator resume " in said
    assert said.endswith("[C505]\n")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['queries = ["balam", "zebra"]'], 'queries names "zebra"'),
        (['classes = ["balam", "yak"]'], 'classes names "yak"'),
        (['reference = "gone.safetensors"'], r"reference = .*no such file"),
    ],
)
def test_what_is_wrong_with_public_words_is_said_before_any_party_is_contacted(home, capsys, lines, says):
    nobody = {"party-1": "127.0.0.1:9", "party-2": "127.0.0.1:9"}
    text = teaching(["votes"]).replace("queries = 58\n", "").replace("[dped]\n", "[dped]\n" + "\n".join(lines) + "\n")
    assert run_connected(text, nobody, "out") == 2
    said = capsys.readouterr().err
    assert re.search(says, said), said
    assert "Traceback" not in said
    assert "lost" not in said
    assert api.runs() == []


def test_reproducible_noise_gives_no_guarantee_and_says_so_everywhere(addresses, home, capsys):
    text = SMALL.replace("dropouts = 0", INSECURE)
    assert run_connected(text, addresses, "out", "--json") == 0
    said = capsys.readouterr().out
    result = json.loads(said.splitlines()[-1])
    assert result["epsilon"] is None
    assert result["delta"] is None
    assert "No privacy guarantee" in said
    assert "No privacy guarantee" in (home / "out/student/README.md").read_text()
    assert json.loads((home / "out/student/privacy.json").read_text())["epsilon"] is None


def test_a_party_whose_text_is_private_refuses_reproducible_noise(plan, home, capsys, serving):
    tables = api.party_tables(plan)
    tables["party-2"]["policy"]["simulation"] = False
    provisioning.make(home / "federation", "coordinator.example")
    text = SMALL.replace("dropouts = 0", INSECURE).replace("[federation]", '[federation]\nidentity = "federation"')
    with serving(tables, home, home / "federation") as addresses:
        assert run_connected(text, addresses, "out") == 1
    said = capsys.readouterr().err
    assert "party party-2 refused to join" in said
    assert "insecure_reproducible_noise protects nobody" in said
    assert "Nothing was spent" in said
    assert not (home / "out/student").exists()


@pytest.mark.slow
def test_running_a_plan_again_says_that_it_pays_again_and_draws_other_noise(plan, home, capsys, serving):
    with serving(api.party_tables(plan), home) as addresses:
        Path("connect.toml").write_text(connected(SMALL, addresses))
        assert main(["run", "connect.toml", "--output", "one"]) == 0
        assert "ran before" not in capsys.readouterr().err
        assert main(["run", "connect.toml", "--output", "two"]) == 0
        assert "running it again pays again" in capsys.readouterr().err
        assert (home / "one/student/vectors.txt").read_bytes() != (home / "two/student/vectors.txt").read_bytes()
        capsys.readouterr()
        # The lifetime cap of twice the plan's epsilon is used up now: the ledger, not the coordinator, says no.
        assert main(["run", "connect.toml", "--output", "three"]) == 1
        said = capsys.readouterr().err
    assert re.search(
        r"party party-\d refused to join: the ledger cannot pay.*\n.*coordinator resume .*\n *\[C601\]$", said
    )


def test_a_party_that_is_not_there_is_named_and_nothing_is_published(plan, home, capsys, serving):
    tables = api.party_tables(plan)
    with serving({name: tables[name] for name in list(tables)[:1]}, home) as addresses:
        gone = addresses | {"party-2": "127.0.0.1:9"}
        text = connected(SMALL, gone).replace("[federation]", "[federation]\ndeadline_seconds = 3\nretry_seconds = 0")
        Path("connect.toml").write_text(text)
        assert main(["run", "connect.toml", "--output", "out"]) == 1
    said = capsys.readouterr().err
    assert "party party-2 was lost: " in said
    assert "needs 2 of its parties and 1 are left" in said
    assert not (home / "out/student").exists()
    assert api.runs()[0].status == "resumable"


def test_the_python_api_works_inside_a_running_loop_as_in_a_notebook(addresses):
    Path("connect.toml").write_text(connected(SMALL, addresses))

    async def cell():
        return api.run("connect.toml", output="out")

    result = asyncio.run(cell())
    assert result.student.is_dir()
    assert result.metrics["unigram_floor"] > 1
    assert api.report(result.run)["status"] == "finished"


SAME = {
    "moments": (teaching(["moments"], text=FOUR), "discrete-gaussian"),
    "votes, hidden states and counts": (
        teaching(["votes", "hidden", "counts"], 'layers = ["centre", "context"]', text=FOUR),
        "skellam",
    ),
    "threshold at the coordinator": (teaching(["votes", "hidden"], *THRESHOLD, text=FOUR), None),
    "private training": (private_training(teaching(["votes", "hidden"], text=FOUR)), None),
}
"""Plans, and the noise under which a secure sum can be made of them."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SAME)
def test_actors_party_processes_and_a_secure_sum_give_the_same_student_byte_for_byte(home, name, serving):
    text, noise = SAME[name]
    text = text.replace("dropouts = 0", INSECURE if noise is None else f'{INSECURE}\nnoise = "{noise}"')
    Path("plan.toml").write_text(text)
    plan = read_plan(Path("plan.toml"))
    assert main(["run", "plan.toml", "--output", "ray"]) == 0
    by_ray = files_of(home / "ray/student")
    assert any(file.endswith(".safetensors") for file in by_ray)
    with serving(api.party_tables(plan), home) as addresses:
        assert run_connected(text, addresses, "connect") == 0
    assert_same(by_ray, files_of(home / "connect/student"))
    if noise is not None:
        Path("secure.toml").write_text(text.replace('"trusted-aggregator"', '"secure-sum"'))
        assert main(["run", "secure.toml", "--output", "secure"]) == 0
        assert_same(by_ray, files_of(home / "secure/student"))


def assert_same(one, other):
    assert set(one) == set(other)
    assert [name for name in one if one[name] != other[name]] == []


@pytest.mark.slow
def test_ten_provisioned_parties_sum_securely(home, capsys, serving):
    text = SMALL.replace("parties = 2 }", "parties = 10 }").replace('by = "sender"', 'by = "hash"')
    secure = text.replace('"trusted-aggregator"', '"secure-sum"\nnoise = "skellam"')
    secure = secure.replace("dropouts = 0", "dropouts = 2\ncolluders = 1")
    Path("plan.toml").write_text(secure)
    tables = api.party_tables(read_plan(Path("plan.toml")))
    for party in tables.values():
        party["policy"] |= {"simulation": False, "epsilon": 50.0, "minimum_noise": 0.3}
    provisioning.make(home / "federation", "coordinator.example")
    with serving(tables, home, home / "federation") as addresses:
        wanted = secure.replace("[federation]", '[federation]\nidentity = "federation"')
        assert run_connected(wanted, addresses, "out") == 0
    said = capsys.readouterr().out
    assert "verify: ok" in said
    assert "Secure sum: the coordinator learned noisy sums" in said
    privacy = json.loads((home / "out/student/privacy.json").read_text())
    assert privacy["parties"] == {"planned": 10, "in_the_sum": 10, "shares_needed": 7}
    assert privacy["trust"] == "secure-sum"
    assert [each["event"]["kind"] for each in privacy["releases"]] == ["skellam"]
    assert "Skellam noise" in (home / "out/student/README.md").read_text()
    assert main(["verify", "out/student", "--trust", "federation/ca.pem"]) == 0
    assert "excludes a curious coordinator" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "wikitext2").is_dir(), reason=f"needs wikitext2 in CONCLAVE_DATA or {DATA}")
def test_the_demo_runs_on_wikitext_by_changing_its_source(home, capsys):
    text = (ROOT / "examples/dped/demo.toml").read_text()
    for old, new in (
        ('source = "documentation"', f'source = "{DATA / "wikitext2"}/[tv][er]*.jsonl"\ntext = "text"'),
        ('by = "package"', 'by = "title"'),
        ('source = "documentation-topics"', f'source = "{DATA / "wikitext2/valid.jsonl"}"'),
        ('source = "documentation-heldout"', f'source = "{DATA / "wikitext2/valid.jsonl"}"'),
    ):
        assert old in text
        text = text.replace(old, new)
    Path("plan.toml").write_text(text)
    assert main(["run", "plan.toml", "--output", "out", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])["metrics"]
    assert metrics["perplexity"] < 1.1 * metrics["unigram_floor"]
    assert metrics["wordsim"]["pairs_used"] > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_however_the_coordinator_ends_no_process_stays(plan, home, number, code):
    psutil = pytest.importorskip("psutil")
    command = Path(sys.executable).with_name("coordinator")
    process = subprocess.Popen([command, "run", "plan.toml", "--output", "out"], stderr=subprocess.PIPE, text=True)
    family = {}

    def watch():
        root = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                family.update({each.pid: each for each in root.children(recursive=True)})
            except psutil.NoSuchProcess:
                return
            time.sleep(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for line in process.stderr:
        if "ready" in line:
            break
    os.kill(process.pid, number)
    last = process.stderr.read()
    assert process.wait(60) == code
    watcher.join()
    process.stderr.close()
    assert "***" not in last  # the trace that Ray's library writes at SIGTERM, before it aborts
    assert ("stopped" in last) == (number != signal.SIGKILL)
    assert len(family) > 4
    # Ray's own agents look for their parent now and then; what parties run ends at once (tests/deploy).
    deadline = time.monotonic() + 300
    left = list(family.values())
    while left and time.monotonic() < deadline:
        left = [each for each in left if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
        time.sleep(0.2)
    assert [each.cmdline() for each in left] == []
    assert not (home / "out/student").exists()
    assert api.runs()[0].status == "resumable"


def test_the_tables_of_simulated_parties_are_good_party_files(plan):
    for name, tables in api.party_tables(plan).items():
        text = "\n".join(f"{key} = {toml(value)}" for key, value in tables.items())
        assert tomllib.loads(text)["name"] == name
        assert tables["shard"]["part"]["parts"] == 2


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ('{"body": "a letter", "sender": "s1"}', r'"?text"?.*(body|sender)'),
        pytest.param("", "empty|no records|nothing", marks=pytest.mark.slow),
        pytest.param('{"text": "caf\xe9", "sender": "s1"}'.encode("latin-1"), "UTF-8", marks=pytest.mark.slow),
        pytest.param('{"text": "a letter", "sender": "s1"}', "no records|empty|nothing", marks=pytest.mark.slow),
    ],
    ids=["missing column", "empty file", "not UTF-8", "a part with no records"],
)
def test_text_that_a_party_cannot_use_ends_the_run_with_a_sentence_that_names_the_party(
    plan, home, capsys, source, says, serving
):
    bad = home / "bad.jsonl"
    bad.write_bytes(source if isinstance(source, bytes) else source.encode())
    tables = api.party_tables(plan)
    for party in tables.values():
        party["shard"]["source"] = "bad.jsonl"
    with serving(tables, home) as addresses:
        assert run_connected(SMALL, addresses, "out") == 1
    said = capsys.readouterr().err
    assert re.search(r"party party-\d refused to train: ", said), said
    assert re.search(says, said), said
    assert "Nothing was spent" not in said  # it was charged before its text was opened, and is not again
    assert re.search(r"When that is mended:  coordinator resume \S+\n  \[C507\]\n$", said)
    assert "Traceback" not in said
    assert not (home / "out/student").exists()


@pytest.fixture
def stopped(addresses, home, monkeypatch, capsys):
    """The store of a run that was interrupted once while its first block was being stored."""
    put, interrupted = RunStore.put_block, []

    def put_and_interrupt(self, *arguments):
        put(self, *arguments)
        if not interrupted:
            interrupted.append(arguments)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(RunStore, "put_block", put_and_interrupt)
    assert run_connected(SMALL, addresses, "out") == 130
    monkeypatch.undo()
    monkeypatch.setenv("CONCLAVE_HOME", str(home / "home"))
    monkeypatch.chdir(home)
    store = RunIndex().find("out")
    assert f"go on:  coordinator resume {store.id}\n  [C701]\n" in capsys.readouterr().err
    return store


def test_a_run_that_was_stopped_goes_on_and_asks_for_nothing_again(stopped, home, capsys, monkeypatch):
    assert stopped.status() == "resumable"
    kept = stopped.block_counts()["counts"]
    asked, answer = [], GrpcLink.answer

    def counted(self, release, batches, columns):
        asked.append([batch.number for batch in batches])
        return answer(self, release, batches, columns)

    monkeypatch.setattr(GrpcLink, "answer", counted)
    assert main(["resume", stopped.id]) == 0
    assert stopped.status() == "finished"
    total = stopped.block_counts()["counts"]
    assert 0 < kept < total
    assert asked == [list(range(kept, total))] * 2
    assert (home / "out/student/privacy.json").exists()
    assert main(["resume", stopped.id]) == 1
    said = capsys.readouterr().err
    assert "is finished" in said
    assert said.endswith("[C703]\n")


@pytest.mark.slow
def test_a_changed_plan_does_not_go_on_and_the_keys_that_differ_are_named(stopped, home, capsys):
    plan = Path("connect.toml").read_text()
    Path("connect.toml").write_text(
        plan.replace("clip      = 10.0", "clip      = 11.0").replace("seed   = 7", "seed   = 8")
    )
    assert main(["resume", "out"]) == 2
    said = capsys.readouterr().err
    assert "dped.clip" in said
    assert "run.seed" in said
    assert "pays anew" in said
    assert said.endswith("[C108]\n")
    Path("moved.toml").write_text(plan.replace("[federation]", "[federation]\ndeadline_seconds = 33"))
    Path("connect.toml").unlink()
    assert main(["resume", "out", "--plan", "moved.toml"]) == 0


@pytest.mark.slow
def test_a_plan_that_is_gone_goes_on_as_it_was_kept(stopped):
    Path("connect.toml").unlink()
    assert main(["resume", "out"]) == 0
    assert stopped.status() == "finished"


@pytest.mark.slow
def test_a_cancelled_run_is_forgotten_by_its_parties_and_goes_on_no_more(stopped, capsys):
    assert main(["cancel", stopped.id]) == 0
    assert "its parties forgot it" in capsys.readouterr().out
    assert stopped.status() == "cancelled"
    assert main(["resume", stopped.id]) == 1
    assert "was cancelled" in capsys.readouterr().err


def test_a_second_coordinator_is_told_who_drives_the_run(stopped, capsys):
    with lease.held(stopped):
        assert main(["resume", stopped.id]) == 1
        said = capsys.readouterr().err
        assert f"driven by process {os.getpid()}" in said
        assert said.endswith("[C704]\n")
        assert main(["run", "connect.toml", "--output", "out", "--replace"]) == 1
        assert "Cancel it first. [C704]\n" in capsys.readouterr().err


def test_a_block_that_was_damaged_is_not_gone_on_with(stopped, home, capsys):
    block = next((home / "out/blocks").rglob("*.np*"))
    block.write_bytes(block.read_bytes()[:-1] + b"?")
    assert main(["resume", stopped.id]) == 1
    said = capsys.readouterr().err
    assert "is damaged: its digest differs" in said
    assert said.endswith("[C802]\n")


def test_a_disk_without_the_room_that_is_to_stay_free_is_told_before_anything_is_asked(plan, capsys):
    assert main(["run", "plan.toml", "--output", "out", "--spare", str(10**18)]) == 1
    assert capsys.readouterr().err.endswith("[C301]\n")
    assert api.runs() == []


def test_a_cluster_that_is_not_there_is_told_before_anything_is_asked(plan, capsys):
    assert main(["run", "plan.toml", "--output", "out", "--ray-address", "127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.endswith("[C306]\n")


def test_a_party_in_plain_text_is_told_from_one_that_is_away(plan, home, capsys, serving):
    provisioning.make(home / "federation", "coordinator.example")
    text = SMALL.replace("[federation]", '[federation]\nidentity = "federation"')
    with serving(api.party_tables(plan), home) as addresses:
        assert run_connected(text, addresses, "out") == 1
    said = capsys.readouterr().err
    assert "speaks plain text, and this run wants TLS" in said
    assert said.endswith("[C502]\n")


def test_a_run_is_watched_from_its_store_and_logged_as_json(addresses, home, capsys):
    assert run_connected(SMALL, addresses, "out", "--log-json", "--metrics", "127.0.0.1:0") == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["stage"] for line in lines if line["event"] == "stage" and line["state"] == "finished"] == [
        "prepare", "price", "start", "join", "provide", "train", "aggregate", "attest", "distil", "evaluate", "publish",
    ]  # fmt: skip
    with closing(RunIndex().find("out")) as store:
        assert {line["run"] for line in lines} == {store.id}
        assert list(store.stages())[:4] == ["prepare", "price", "start", "join"]
        # What a kill left of an attempt that a finished run did not need is not said to go on.
        store._begin("provide")
    assert main(["watch", "out"]) == 0
    watched = capsys.readouterr().out
    assert "finished" in watched
    assert "so far" not in watched
    assert "unfinished" not in watched
    assert " · publish " in watched
