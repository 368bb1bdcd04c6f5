"""The party file: every mistake is one sentence that names the file, the key and what would be right."""

import pytest

from party.config import located, read_config
from protos.settings import SettingsError

GOOD = """
name = "north"
[shard]
source = "notes.jsonl"
[policy]
epsilon = 10.0
delta = 1e-6
recipes = ["dped"]
"""


def test_defaults_listen_on_this_machine_alone(tmp_path):
    path = tmp_path / "party.toml"
    path.write_text(GOOD)
    config = read_config(path)
    assert config.listen.startswith("127.0.0.1:")
    assert config.home(tmp_path) == tmp_path / "north.party"
    assert config.lineage == "north"
    assert not config.policy.simulation
    assert config.metrics is None
    assert config.drain_seconds == 10.0


def test_metrics_are_served_on_this_machine_unless_the_file_says_otherwise(tmp_path):
    path = tmp_path / "party.toml"
    path.write_text(GOOD + "[metrics]\n")
    assert read_config(path).metrics.listen == "127.0.0.1:9464"
    path.write_text(GOOD + '[metrics]\nlisten = "0.0.0.0:9464"\n')
    assert read_config(path).metrics.listen == "0.0.0.0:9464"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('name = "north"', 'name = "North Pole"'), "name"),
        (("epsilon = 10.0", "epsilon = 0"), "[policy] epsilon = 0"),
        (("delta = 1e-6", "delta = 1.0"), "[policy] delta = 1.0"),
        (("recipes", "recipe"), 'Did you mean "recipes"?'),
        (('recipes = ["dped"]', 'recipes = ["dped"]\ntell = ["size"]'), "size-to-nearest-1000"),
        (('recipes = ["dped"]', 'recipes = ["dped"]\ntell = ["size-to-nearest-1000"]'), "needs declared_size"),
        (('name = "north"', 'name = "north"\nlisten = "0.0.0.0:7443"'), "TLS is not there yet"),
        (('name = "north"', 'name = "north"\nlisten = "127.0.0.1"'), "a host and a port"),
        (('name = "north"', 'name = "north"\nlisten = "127.0.0.1:99999"'), "99999 is not a port"),
        (('name = "north"', 'name = "north"\ndrain_seconds = -1'), "drain_seconds = -1"),
        (("[policy]", '[metrics]\nlisten = "9464"\n[policy]'), "[metrics] listen"),
        (("[policy]", "[metrics]\nport = 9464\n[policy]"), "Known here: listen"),
        (('source = "notes.jsonl"', 'source = "a"\npart = { parts = 2, part = 2 }'), "part = 2 is not one of 0 to 1"),
        (('source = "notes.jsonl"', 'source = "a"\npart = { by = "dirichlet", parts = 2, part = 1 }'), "needs a label"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, change, said):
    path = tmp_path / "party.toml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(SettingsError) as error:
        read_config(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert "party.toml" in str(error.value)


def test_plaintext_off_this_machine_must_be_asked_for(config):
    assert config(listen="0.0.0.0:7443", plaintext=True).listen == "0.0.0.0:7443"


def test_a_source_that_is_not_there_is_named(config, tmp_path):
    for source in ("missing.csv", "folder/*.jsonl", "/nowhere/at/all", "./missing"):
        with pytest.raises(SettingsError, match=r"there is no such file|no file matches"):
            located(config(shard={"source": source}).shard, tmp_path)


def test_sources_are_relative_to_the_file_and_names_are_left_alone(config, tmp_path):
    assert located(config().shard, tmp_path).source == str(tmp_path / "notes.jsonl")
    assert located(config(shard={"source": "documentation"}).shard, tmp_path).source == "documentation"
    assert located(config(shard={"source": "owner/dataset"}).shard, tmp_path).source == "owner/dataset"
