"""The party file: every mistake is one sentence that names the file, the key and what would be right."""

import pytest

from party.config import read_config
from party.shard_table import located
from protos.console.mistakes import SettingsError

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
        (('name = "north"', 'name = "north"\nplaintext = true'), "simulation = true"),
        (('name = "north"', 'name = "north"\nplaintext = true\nlisten = "0.0.0.0:7443"'), "from other machines"),
        (('name = "north"', 'name = "north"\nidentity = { key = "k" }'), "[identity] certificate is missing"),
        (
            ('name = "north"', 'name = "north"\nplaintext = true\nidentity = { certificate = "c", key = "k" }'),
            "contradict each other",
        ),
        (
            ("[policy]", '[identity]\ncertificate = "c"\nkey = "k"\nauthority = "SHA256:12"\n[policy]'),
            "64 digits or letters from a to f",
        ),
        (("[policy]", f'[peers]\nsouth = "SHA256:{"A" * 64}"\n[policy]'), "this is no fingerprint"),
        (("[policy]", f'[peers]\nSouth = "SHA256:{"a" * 64}"\n[policy]'), "South"),
        (('name = "north"', 'name = "north"\nlisten = "127.0.0.1"'), "a host and a port"),
        (('name = "north"', 'name = "north"\nlisten = "127.0.0.1:99999"'), "99999 is not a port"),
        (('name = "north"', 'name = "north"\ndrain_seconds = -1'), "drain_seconds = -1"),
        (("[policy]", '[metrics]\nlisten = "9464"\n[policy]'), "[metrics] listen"),
        (("[policy]", "[metrics]\nport = 9464\n[policy]"), "Known here: listen"),
        (('source = "notes.jsonl"', 'source = "a"\npart = { parts = 2, part = 2 }'), "part = 2 is not one of 0 to 1"),
        (('source = "notes.jsonl"', 'source = "a"\npart = { by = "dirichlet", parts = 2, part = 1 }'), "needs a label"),
        (('source = "notes.jsonl"', 'source = "a"\nsecond = "text"'), "is the text or the label already"),
        (('source = "notes.jsonl"', 'source = "a"\nvalues = ["0", "1"]'), "Add labels"),
        (('source = "notes.jsonl"', 'source = "a"\nlabels = ["no", "yes"]'), "Name that column: label"),
        (('source = "notes.jsonl"', 'source = "a"\nlabel = "l"\nlabels = ["no"]'), "two classes or more"),
        (('source = "notes.jsonl"', 'source = "a"\nlabel = "l"\nlabels = ["no", "no"]'), "'no' twice"),
        (('source = "notes.jsonl"', f'source = "a"\nlabel = "l"\nlabels = ["no", "{"y" * 201}"]'), "200 at most"),
        (('source = "notes.jsonl"', 'source = "a"\nlabel = "l"\nlabels = ["no", "a\\u0007"]'), "cannot be shown"),
        (
            ('source = "notes.jsonl"', 'source = "a"\nlabel = "l"\nlabels = ["no", "yes"]\nvalues = ["0"]'),
            "2 classes and 1 values",
        ),
        (
            ('source = "notes.jsonl"', f'source = "a"\nlabel = "l"\nlabels = {[str(n) for n in range(1001)]}'),
            "1,000 at most",
        ),
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


def test_plaintext_is_for_a_simulation_on_this_machine(config):
    simulated = {"plaintext": True, "policy": {"simulation": True}}
    for listen in ("127.0.0.1:7443", "[::1]:7443", "localhost:7443"):
        assert config(listen=listen, **simulated).plaintext


def test_an_identity_and_peers_are_read_as_they_are_written(tmp_path):
    path = tmp_path / "party.toml"
    told = f"SHA256:{'0a' * 32}"
    identity = f'[identity]\ncertificate = "n.pem"\nkey = "n.key"\nauthority = "{told}"\nrevoked = "r.pem"\n'
    path.write_text(GOOD.replace("[shard]", f'listen = "0.0.0.0:7443"\n{identity}[peers]\nsouth = "{told}"\n[shard]'))
    config = read_config(path)
    assert config.identity.authority == told
    assert (config.identity.certificate, config.identity.key, config.identity.revoked) == ("n.pem", "n.key", "r.pem")
    assert config.peers == {"south": told}


def test_the_map_of_a_label_column_is_read_as_it_is_written(tmp_path):
    path = tmp_path / "party.toml"
    stated = 'text = "premise"\nsecond = "hypothesis"\nlabel = "l"\nlabels = ["no", "yes"]\nvalues = ["0", "1"]'
    path.write_text(GOOD.replace('source = "notes.jsonl"', f'source = "notes.jsonl"\n{stated}'))
    shard = read_config(path).shard
    assert (shard.second, shard.labels, shard.values) == ("hypothesis", ["no", "yes"], ["0", "1"])


def test_a_source_that_is_not_there_is_named(config, tmp_path):
    for source in ("missing.csv", "folder/*.jsonl", "/nowhere/at/all", "./missing"):
        with pytest.raises(SettingsError, match=r"there is no such file|no file matches"):
            located(config(shard={"source": source}).shard, tmp_path)


def test_sources_are_relative_to_the_file_and_names_are_left_alone(config, tmp_path):
    assert located(config().shard, tmp_path).source == str(tmp_path / "notes.jsonl")
    assert located(config(shard={"source": "documentation"}).shard, tmp_path).source == "documentation"
    assert located(config(shard={"source": "owner/dataset"}).shard, tmp_path).source == "owner/dataset"
