"""A coordinator's file and folders, plans that may run there, identities, and a service on a free port."""

import dataclasses

import pytest

from coordinator.serving.config import Located, ServeConfig
from coordinator.serving.submissions import Submissions
from protos.identity.authority import new_authority
from protos.identity.certificates import Role
from protos.identity.identity import parse_identity
from protos.identity.requests import Request, key_pem, new_keys

PLAN = """
[run]
name = "letters"
recipe = "dped"
seed = {seed}

[privacy]
epsilon = 4.0
delta = 1e-6

[federation]
launch = "connect"
parties = [{parties}]

[vocabulary]
source = "public.jsonl"
size = 40

[dped]
signals = ["moments"]
dimension = 8
"""


def plan_of(*parties, seed=1):
    """A plan that asks these parties."""
    named = ", ".join(f'{{ name = "{name}" }}' for name in parties or ("north", "south"))
    return PLAN.format(parties=named, seed=seed)


@pytest.fixture
def plan():
    """`plan(*parties, seed=1)`."""
    return plan_of


@pytest.fixture
def config():
    """`config(**changes)`: a coordinator's file with north, which dials, and south, which listens."""

    def made(**changes):
        tables = {
            "identity": "federation",
            "keep": "kept",
            "parties": [{"name": "north", "dials": True}, {"name": "south", "address": "127.0.0.1:7443"}],
            "gate": {"listen": "127.0.0.1:0"},
            "submit": {"listen": "127.0.0.1:0", "spare": 0},
        }
        for name, change in changes.items():
            tables[name] = tables[name] | change if isinstance(change, dict) and name in tables else change
        return ServeConfig.model_validate(tables)

    return made


@pytest.fixture
def located(tmp_path, config):
    """The folders of that file, with a public file in them and a secret beside them."""
    (tmp_path / "public").mkdir()
    (tmp_path / "public/public.jsonl").write_text('{"text": "some public words"}\n')
    (tmp_path / "secret.jsonl").write_text('{"text": "nobody may read this"}\n')
    (tmp_path / "kept").mkdir(mode=0o700)
    return Located(config(gate={"sockets": "/tmp/short"}), tmp_path)


@pytest.fixture
def submissions(located):
    kept = Submissions(located.keep)
    yield kept
    kept.close()


def identity_of(authority, name, role, **when):
    """An identity that an authority issued; when: its dates."""
    transport, signing = new_keys()
    request = Request(name, transport.public_key(), signing.public_key())
    own = parse_identity(authority.issue(request, role).pem(), key_pem(transport, signing), role=role)
    dated = authority.issue(request, role, **when)
    return dataclasses.replace(own, transport=dated.transport, signing=dated.signing)


@pytest.fixture(scope="session")
def people():
    """`people.of(name, role)`: identities of one federation, or of another authority."""

    class People:
        authority = new_authority("here")
        server = identity_of(authority, "coordinator.here", Role.SERVER)

        def of(self, name, role=Role.SUBMITTER, authority=None, **when):
            return identity_of(authority or self.authority, name, role, **when)

    return People()
