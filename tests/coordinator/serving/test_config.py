"""`coordinator.toml`: what it says wrong is named, with what would be right."""

import pytest

from coordinator.errors import PlanError, RunError
from coordinator.identity import provisioning
from coordinator.serving.config import Located, read_config
from coordinator.serving.server import _held, identities


@pytest.fixture
def read(tmp_path):
    """`read(text)`: a file with this text, read."""

    def reads(text):
        path = tmp_path / "coordinator.toml"
        path.write_text(text)
        return read_config(path)

    return reads


WHOLE = """
identity = "federation"
parties = [{ name = "north", dials = true }]
[gate]
listen = "0.0.0.0:7444"
[submit]
listen = "0.0.0.0:7445"
"""


def test_a_small_file_is_enough(read, tmp_path):
    config = read(WHOLE)
    located = Located(config, tmp_path)
    assert (located.keep, located.public) == (tmp_path / "kept", tmp_path / "public")
    assert (config.submit.addresses, config.submit.hub, config.submit.simulations) == (False, False, False)
    assert config.status.listen.startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ('[gate]\nlisten = "0.0.0.0:7444"', "", r"\[gate\] is missing: north dials"),
        ("dials = true", 'address = "n:1"', r"\[gate\] is for parties that dial, and none does"),
        ("[submit]", "[submits]", "there is no key submits. Did you mean"),
        ('parties = [{ name = "north", dials = true }]', "", "parties is empty"),
        ("dials = true }]", 'dials = true }, { name = "north", dials = true }]', 'parties names "north" twice'),
        ('"0.0.0.0:7445"', '"7445"', r"\[submit\] listen"),
        ('listen = "0.0.0.0:7445"', 'listen = "0.0.0.0:7445"\nroles = ["party"]', r"\[submit\] roles"),
        ("[submit]", '[submitters]\nann = "SHA256:12"\n[submit]', r"\[submitters\] ann"),
        ("[submit]", '[status]\nlisten = "10.0.0.1:80"\n[submit]', "it is on this machine alone"),
    ],
)
def test_what_is_wrong_is_named(read, was, now, said):
    with pytest.raises(PlanError, match=said):
        read(WHOLE.replace(was, now))


def test_a_folder_too_long_for_sockets_is_told_at_once(read, tmp_path):
    with pytest.raises(RunError, match=r"\[gate\] sockets"):
        Located(read(f'keep = "{"x" * 100}"\n{WHOLE}'), tmp_path)


def test_one_coordinator_serves_from_a_folder(tmp_path):
    told = "another `coordinator serve` keeps its runs in"
    with _held(tmp_path / "kept"), pytest.raises(RunError, match=told), _held(tmp_path / "kept"):
        pass
    with _held(tmp_path / "kept"):
        assert (tmp_path / "kept").stat().st_mode & 0o077 == 0


def test_missing_certificates_say_how_they_are_made(tmp_path, read, monkeypatch):
    config = read(WHOLE)
    located = Located(config, tmp_path)
    with pytest.raises(PlanError, match="coordinator provision FOLDER"):
        identities(located)
    provisioning.make(tmp_path / "federation", "coordinator.example")
    with pytest.raises(PlanError, match="coordinator provision server --federation"):
        identities(located)
    provisioning.serve(tmp_path / "federation")
    assert [each.name for each in identities(located)] == ["coordinator.example"] * 2
