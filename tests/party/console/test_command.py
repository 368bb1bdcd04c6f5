"""The `party` command: what it prints, how it ends, and one sentence for every mistake."""

import json
import signal
import socket
import subprocess
import sys

import pytest

from party.console.command import main

FILE = """
name = "north"
listen = "127.0.0.1:{port}"
plaintext = true
[shard]
source = "{source}"
text = "{text}"
[policy]
epsilon = 10.0
delta = 1e-6
recipes = ["dped"]
simulation = true
"""


@pytest.fixture
def party_file(tmp_path):
    """Writes a party file and its shard; returns the file's path."""
    (tmp_path / "notes.jsonl").write_text(
        '{"text": "the cat sat", "ward": "a"}\n{"text": "the dog", "ward": "b"}\n{"text": ""}\n'
    )

    def writes(port=0, source="notes.jsonl", text="text"):
        path = tmp_path / "party.toml"
        path.write_text(FILE.format(port=port, source=source, text=text))
        return path

    return writes


def said(capsys):
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured


HEAVY = """
heavy = {"numpy", "scipy", "torch", "ray", "datasets", "transformers", "gensim", "sklearn", "matplotlib", "mpmath"}
heavy |= {"pydantic", "cryptography", "grpc", "asyncio"}
print(sorted(heavy & sys.modules.keys()))
"""


def test_version(capsys):
    assert main(["--version"]) == 0
    assert said(capsys).out.startswith("party 0.")


@pytest.mark.slow
def test_what_help_says_needs_no_numbers():
    """`party --help` answers in a third of a second; any of these would double that."""
    code = "import sys, party.console.command\n" + HEAVY
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_what_prices_is_not_loaded_before_something_is_priced():
    code = "import party.console.command, party.console.checking, sys; print('dp_accounting' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_preview_shows_columns_counts_skipped_rows_and_coverage(party_file, capsys):
    assert main(["preview", "--config", str(party_file()), "--words", "1"]) == 0
    shown = said(capsys).out
    for expected in ("ward", "records", "no text", "40.0%"):
        assert expected in shown


def test_preview_measures_a_vocabulary_file(party_file, tmp_path, capsys):
    from learning.text.words import Vocabulary

    (tmp_path / "vocabulary.json").write_bytes(Vocabulary(("cat", "dog")).to_bytes())
    arguments = ["preview", "--config", str(party_file()), "--vocabulary", str(tmp_path / "vocabulary.json"), "--json"]
    assert main(arguments) == 0
    found = json.loads(said(capsys).out)
    assert (found["records"], found["words"], found["coverage"]) == (2, 5, 0.4)
    assert found["vocabulary_is_public"]


def test_preview_counts_labels_and_those_outside_the_file_s_map(tmp_path, capsys):
    rows = [("good", "1"), ("bad", "0"), ("fine", "1"), ("odd", "maybe"), ("none", "")]
    (tmp_path / "notes.jsonl").write_text("\n".join(json.dumps({"text": t, "stars": s, "more": t}) for t, s in rows))
    text = FILE.format(port=0, source="notes.jsonl", text="text")
    shard = 'label = "stars"\nsecond = "more"\nlabels = ["low", "high"]\nvalues = ["0", "1"]\n'
    (tmp_path / "party.toml").write_text(text.replace("[policy]", f"{shard}[policy]"))
    assert main(["preview", "--config", str(tmp_path / "party.toml"), "--json"]) == 0
    found = json.loads(said(capsys).out)["labels"]
    assert (found["rows"], found["outside_the_map"]) == ({"1": 2, "0": 1, "maybe": 1}, 1)
    assert found["left_out"] == {"no label": 1}
    assert main(["preview", "--config", str(tmp_path / "party.toml")]) == 0
    shown = said(capsys).out
    for expected in ("more (second)", "stars (label)", "'1' 2", "1 outside the map"):
        assert expected in shown


def test_preview_writes_nothing(party_file, tmp_path):
    path = party_file()
    before = sorted(tmp_path.rglob("*"))
    assert main(["preview", "--config", str(path)]) == 0
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("change", "code", "sentence"),
    [
        ({"source": "gone.csv"}, 2, "gone.csv"),
        ({"text": "note"}, 1, "note"),
        ({"source": "latin.txt"}, 1, "UTF-8"),
        ({"source": "empty.jsonl"}, 1, "empty.jsonl"),
    ],
)
def test_a_shard_that_cannot_be_used_is_one_sentence(party_file, tmp_path, capsys, change, code, sentence):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "empty.jsonl").write_text("")
    assert main(["preview", "--config", str(party_file(**change))]) == code
    error = said(capsys).err
    assert sentence in error
    assert error.count("\n") == 1


def test_a_file_that_is_not_there(tmp_path, capsys):
    for verb in ("serve", "preview"):
        assert main([verb, "--config", str(tmp_path / "gone.toml")]) == 2
        assert said(capsys).err.endswith("gone.toml: there is no such file. [C102]\n")


def test_a_verb_that_is_not_there(capsys):
    assert main(["dance"]) == 2
    assert "dance" in said(capsys).err


def test_a_bug_is_one_sentence_and_its_trace_a_private_file(party_file, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("party.shard_table.located", lambda *_: 1 / 0)
    assert main(["preview", "--config", str(party_file())]) == 1
    error = said(capsys).err
    assert "This is a bug in Conclave (ZeroDivisionError)" in error
    assert error.endswith("[C901]\n")
    (trace,) = tmp_path.glob("conclave-trace-*")
    assert trace.name in error
    assert "ZeroDivisionError" in trace.read_text()
    assert trace.stat().st_mode & 0o777 == 0o600


def test_a_port_in_use_is_one_sentence(party_file, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--config", str(party_file(port=port))]) == 1
    assert f"party north cannot listen on 127.0.0.1:{port}: address already in use" in said(capsys).err


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_serve_says_where_it_listens_and_ends_quietly(party_file, ending, code):
    command = [sys.executable, "-m", "party.console.command", "serve", "--config", str(party_file()), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = json.loads(process.stdout.readline())
        assert line["party"] == "north"
        host, port = line["address"].split(":")
        socket.create_connection((host, int(port)), timeout=5).close()
        process.send_signal(ending)
        assert process.wait(timeout=20) == code
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--proxy", "http://proxy.example:3128"], "--proxy is the way to a coordinator that this party dials"),
        (["--connect", "gate.example"], "--connect gate.example: this should be a host and a port"),
        (["--connect", "gate.example:7444", "--proxy", "socks5://proxy:1"], "only HTTP proxies are known"),
        (["--connect", "gate.example:7444"], "only a certificate shows its coordinator who dials"),
    ],
)
def test_where_a_party_dials_is_checked_before_it_serves(party_file, capsys, arguments, says):
    assert main(["serve", "--config", str(party_file()), *arguments]) == (1 if "certificate" in says else 2)
    assert says in said(capsys).err.replace("\n", " ")


def test_preview_counts_what_a_run_s_own_look_counts(party_file, tmp_path, monkeypatch, capsys):
    """One way of counting: what `party.shard.looking` finds is what is shown, with nothing counted beside it."""
    from party.shard import looking

    looks, seen = looking.look, []

    def one_more(*given, **more):
        found = looks(*given, **more)
        found.passages += 1
        found.labels["planted"] += 1
        seen.append(found)
        return found

    monkeypatch.setattr(looking, "look", one_more)
    (tmp_path / "stars.jsonl").write_text('{"text": "cat", "stars": " 1 "}\n{"text": "dog", "stars": "2"}\n')
    path = party_file(source="stars.jsonl")
    path.write_text(path.read_text().replace("[policy]", 'label = "stars"\n[policy]'))
    assert main(["preview", "--config", str(path), "--json"]) == 0
    found = json.loads(said(capsys).out)
    assert found["records"] == 3
    assert found["labels"]["rows"] == {"1": 1, "2": 1, "planted": 1}
    assert len(seen) == 1, "the shard is read once"
