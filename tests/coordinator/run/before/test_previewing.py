"""`coordinator preview`, and the line `data` of `coordinator check`: what a run would use, seen before it starts."""

import json
from pathlib import Path

import pytest

from coordinator import api
from coordinator.console.command import main
from coordinator.errors import PlanError
from coordinator.run.before import previewing
from coordinator.run.before.checking import check
from protos.console.checklist import State

WORDS = ["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op", "qr", "st", "uv", "wx"]
DPED = """
[run]
name = "seen"
recipe = "dped"
[privacy]
epsilon = 8.0
delta = 1e-6
{privacy}
[federation]
launch = "ray"
[federation.shards]
source = "letters.jsonl"
{shards}
[vocabulary]
source = "public.jsonl"
size = 6
like_parties = true
[dped]
signals = ["counts"]
dimension = 4
"""
CLASSES = """
[run]
name = "seen"
recipe = "dp_sgd"
[privacy]
epsilon = 8.0
delta = 1e-6
declared_size = {declared}
[federation]
launch = "ray"
[federation.shards]
source = "letters.jsonl"
label = "{label}"
split = {{ parties = 2 }}
[text]
kind = "single"
labels = {labels}
[dp_sgd]
batch = 4
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    public = [json.dumps({"text": " ".join(WORDS[:6] * 2)})]
    (tmp_path / "public.jsonl").write_text("\n".join(public))
    rows = [
        {
            "text": f"{WORDS[number % 12]} {WORDS[(number + 1) % 12]} n{number}",
            "who": f"u{number % 10}",
            "kind": "ab"[number % 2],
        }
        for number in range(60)
    ]
    rows[5]["text"] = ""
    (tmp_path / "letters.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def words(shards="split = { parties = 3 }", privacy=""):
    Path("plan.toml").write_text(DPED.format(shards=shards, privacy=privacy))
    return "plan.toml"


def classes(label="kind", labels='["a", "b"]', declared=60):
    Path("plan.toml").write_text(CLASSES.format(label=label, labels=labels, declared=declared))
    return "plan.toml"


def data(plan):
    """The lines of a check that are about the parties' text."""
    return [line for line in check(plan) if line.what in ("data", "labels", "size")]


def test_every_row_is_somewhere_and_the_vocabulary_is_the_runs():
    found = api.preview(words())
    assert sorted(found.found.parties) == ["party-1", "party-2", "party-3"]
    assert found.units == 59
    assert found.unreadable == {"no text": 1}
    assert found.coverage == pytest.approx(2 * 30 / (3 * 60), abs=0.02)
    assert found.doubts == ()
    assert found.said.startswith("60 rows; ")


def test_users_are_counted_where_they_are_units():
    found = api.preview(words('user = "who"\nsplit = { parties = 3, by = "who" }', 'unit = "user"'))
    assert found.units == 10
    assert sum(each.passages for each in found.found.parties.values()) == 59
    values = [value for each in found.found.parties.values() for value in each.values]
    assert sorted(values) == [f"u{number}" for number in range(10)]
    assert found.unit == "users"


def test_a_part_of_the_rows_is_read_where_no_more_are_asked_for():
    found = api.preview(words(), rows=20)
    assert (found.found.rows, found.found.whole, found.units) == (20, False, 19)
    assert found.said.startswith("the first 20 rows")


def test_labels_are_counted_and_those_outside_the_map_are_told():
    found = api.preview(classes())
    assert found.labels == {"a": 30, "b": 29}
    assert found.doubts == ()
    found = api.preview(classes(labels='["a", "c"]'))
    assert found.left_out == {"a label outside the label map": 29}
    assert [(line.what, line.state) for line in found.doubts] == [("labels", State.WARNING), ("labels", State.TO_DO)]
    assert "c" in found.doubts[1].said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "what", "says"),
    [
        (lambda: words("text = 'letter'\nsplit = { parties = 3 }"), "data", "letter"),
        (lambda: words('split = { parties = 3, by = "ward" }'), "data", "ward"),
        (lambda: classes(label="sort"), "data", "sort"),
        (lambda: classes(labels='["yes", "no"]'), "labels", "No row makes an example"),
        (lambda: words('split = { parties = 3, by = "kind" }'), "data", "2 values for 3 parties"),
        (lambda: classes(declared=6000), "size", "6,000"),
    ],
    ids=["column", "by", "label", "values", "few-values", "size"],
)
def test_check_says_what_a_party_would_refuse_after_the_start(plan, what, says):
    lines = {line.what: line for line in data(plan())}
    assert says in lines[what].said
    assert lines[what].state is (State.WARNING if what == "size" else State.TO_DO)


def test_two_values_that_fall_to_one_party_are_told_and_shown(home, capsys):
    rows = [{"text": f"ab cd {number}", "ward": f"w{number % 3}"} for number in range(30)]
    Path("letters.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for seed in range(20):
        plan = words('split = { parties = 3, by = "ward" }')
        text = Path(plan).read_text().replace('name = "seen"', f'name = "seen"\nseed = {seed}')
        Path(plan).write_text(text)
        if any(len(each.values) == 2 for each in api.preview(plan).found.parties.values()):
            break
    (line,) = data(plan)
    assert 'several values of "ward" fell to one party' in line.said
    assert main(["preview", plan]) == 0
    out = capsys.readouterr().out
    assert any(f"w{one}, w{other}" in out for one in range(3) for other in range(3) if one != other)
    assert "would have no text" in out


def test_a_check_reads_no_more_rows_than_it_says(home, monkeypatch):
    monkeypatch.setattr(previewing, "ROWS", 30)
    (line,) = data(words())
    assert line.state is State.OK
    assert line.said.startswith("the first 30 rows")


def test_an_empty_source_and_one_that_is_not_there(home, capsys):
    Path("letters.jsonl").write_text("\n".join(json.dumps({"text": ""}) for _ in range(4)))
    (line,) = data(words())
    assert line.state is State.TO_DO
    assert "no text" in line.said, line.said
    Path("letters.jsonl").unlink()
    with pytest.raises(PlanError, match=r"\[federation.shards\] source = \"letters\.jsonl\": there is no such file"):
        api.preview(words())
    assert main(["preview", words()]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_command_shows_parties_by_size_and_says_the_same_to_programs(capsys):
    assert main(["preview", classes(), "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    record = json.loads(last)
    assert record["labels"] == {"a": 30, "b": 29}
    assert sum(each["units"] for each in record["parties"].values()) == 59
    text = "\n".join(lines)
    for part in ("party-1", "party-2", "no text 1", "a 30, b 29"):
        assert part in text


def test_parties_that_run_elsewhere_look_at_their_own_text():
    plan = Path(words())
    start, rest = plan.read_text().split("[federation]")
    rest = rest[rest.index("[vocabulary]") :]
    parties = '[federation]\nlaunch = "connect"\nparties = [{ name = "north", address = "127.0.0.1:9" }]\n'
    plan.write_text(start + parties + rest)
    with pytest.raises(PlanError, match="party preview"):
        api.preview(plan)


def test_a_launcher_of_before_there_were_previews_is_told_and_a_check_goes_on(monkeypatch):
    from coordinator.run import connecting

    monkeypatch.setattr(connecting, "find_launcher", lambda name: object())
    with pytest.raises(PlanError, match='launch = "ray" is a launcher that cannot show'):
        api.preview(words())
    assert data(words()) == []
