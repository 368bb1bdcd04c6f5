"""Plans and party files: whatever is in them, they are read, or refused in a sentence."""

import time
from pathlib import Path

import pytest

from coordinator.errors import PlanError
from coordinator.systems.dped.plan import DpedPlan
from coordinator.systems.registry import read_plan, template
from party.config import read_config
from party.shard_table import ShardTable, located
from protos.console.mistakes import SettingsError
from protos.console.settings import check_settings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PARTY = """name = "north"
listen = "127.0.0.1:7443"
folder = "kept"
account = "north-2026"
drain_seconds = 10.0

[metrics]
listen = "127.0.0.1:9464"

[shard]
source = "notes-*.jsonl"
text = "text"
user = "who"
part = { by = "dirichlet", parts = 3, part = 1, alpha = 0.5, label = "who", seed = 3 }

[policy]
epsilon = 20.0
delta = 1e-6
recipes = ["dped"]
tell = ["size-to-nearest-1000"]
declared_size = 7000
minimum_noise = 0.5

[identity]
certificate = "north.pem"
key = "north.key"
authority = "SHA256:0000000000000000000000000000000000000000000000000000000000000000"

[peers]
south = "SHA256:0000000000000000000000000000000000000000000000000000000000000000"
"""


@pytest.fixture(scope="module")
def plans():
    found = [path.read_text() for path in EXAMPLES.glob("*/*.toml") if "[federation]" in path.read_text()]
    return [
        template(launch, recipe) for launch in ("ray", "connect") for recipe in ("dped", "dp_sgd", "distildp", "swing")
    ] + found


@pytest.mark.slow
def test_a_plan_is_read_or_refused_in_a_sentence(fuzz, hostile, tmp_path, plans):
    path = tmp_path / "plan.toml"

    @fuzz(hostile.damaged_toml(*plans))
    def _(text):
        path.write_bytes(text)
        try:
            plan = read_plan(path)
        except PlanError as error:
            hostile.check_sentence(error)
        else:
            assert plan.document()
            assert plan.minimum_parties
            assert plan.block_rows if isinstance(plan, DpedPlan) else plan.MODELS


@pytest.mark.slow
def test_a_party_file_is_read_or_refused_in_a_sentence(fuzz, hostile, tmp_path):
    path = tmp_path / "party.toml"
    (tmp_path / "notes-1.jsonl").write_text('{"text": "apple", "who": "p1"}\n')

    @fuzz(hostile.damaged_toml(PARTY, PARTY.replace("notes-*", "notes-1")))
    def _(text):
        path.write_bytes(text)
        try:
            config = read_config(path)
            located(config.shard, tmp_path)
        except SettingsError as error:
            hostile.check_sentence(error)
        else:
            assert config.home(tmp_path).is_absolute()


def test_a_key_that_nobody_knows_is_named_whatever_it_looks_like(tmp_path):
    with pytest.raises(SettingsError, match=r"there is no key \[2J"):
        check_settings({"[2J": 1}, ShardTable, "manifest.json")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("source = " + "[" * 900, "nested too deep"),
        ("source = " + "[" * 40 + "]" * 40, "nested too deep"),
        (".".join("a" * 600) + " = 1", "nested too deep"),
        ("source = " + "9" * 5000, "not TOML: Exceeds the limit"),
        ("declared_size = 0x" + "f" * 5000, "more than 64 bits"),
        ('"sour\\nce\\u001b[2J" = "notes.jsonl"', r"no key \[shard\] sour\?ce\?\[2J"),
        (f'"{"x" * 9000}" = 1', r"\.\.\.$"),
    ],
)
def test_each_kind_of_odd_toml_has_its_sentence(hostile, tmp_path, line, says):
    (tmp_path / "party.toml").write_text(f'name = "north"\n[shard]\n{line}\n[policy]\n')
    with pytest.raises(SettingsError, match=says) as caught:
        read_config(tmp_path / "party.toml")
    hostile.check_sentence(caught.value)


def test_a_source_in_the_home_of_nobody_is_not_there(tmp_path):
    with pytest.raises(SettingsError, match="there is no such file or folder"):
        located(ShardTable(source="~nobody-here/notes.jsonl"), tmp_path)


def test_a_source_that_no_file_can_be_called_is_not_there(tmp_path):
    shard = ShardTable(source="x" * 300)
    assert located(shard, tmp_path) == shard  # perhaps the name of a hub's dataset
    with pytest.raises(SettingsError, match="there is no such file"):
        located(ShardTable(source="x" * 300 + ".jsonl"), tmp_path)


def test_the_line_of_a_mistake_is_looked_for_in_little_time(tmp_path):
    (tmp_path / "party.toml").write_text('name = "north"\nlistem = """\n[' + " " * 50_000 + '"""\n')
    begun = time.process_time()
    with pytest.raises(SettingsError, match="there is no key listem"):
        read_config(tmp_path / "party.toml")
    assert time.process_time() - begun < 5


def test_a_file_without_an_end_is_not_read():
    with pytest.raises(SettingsError, match="larger than 16 MiB"):
        read_config(Path("/dev/zero"))
