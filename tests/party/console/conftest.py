"""A party's file and everything that belongs to it, on a machine where it could serve."""

import json

import pytest

from party.ledger.accounts import open_account
from protos.identity.authority import new_authority
from protos.identity.certificates import Role, fingerprint
from protos.identity.requests import key_pem, make_request, new_keys, read_request

TEXT = "patient Xanthippe Quillfeather was seen"
FILE = """
name = "north"
listen = "127.0.0.1:{port}"
{top}
[shard]
source = "{source}"
text = "{text}"
{shard}
[policy]
epsilon = 10.0
delta = 1e-6
recipes = ["dped"]
{policy}
[identity]
certificate = "north.pem"
key = "north.key"
authority = "{authority}"
revoked = "revoked.pem"
[peers]
{peers}
"""


@pytest.fixture
def private_text():
    """What the shard of `site` holds."""
    return TEXT


@pytest.fixture
def authority():
    return new_authority("a federation of these tests")


@pytest.fixture
def site(tmp_path, authority):
    """`site(**changes)`: a party file with all that belongs to it, its account open; returns the file's path."""
    keys = new_keys()

    def issued(not_before=None, days=365):
        bundle = authority.issue(read_request(make_request("north", *keys)), Role.PARTY, days, not_before)
        (tmp_path / "north.pem").write_bytes(bundle.pem())

    def makes(**changes):
        issued(changes.pop("not_before", None), changes.pop("days", 365))
        (tmp_path / "north.key").write_bytes(key_pem(*keys))
        (tmp_path / "north.key").chmod(0o600)
        (tmp_path / "revoked.pem").write_bytes(authority.revocation_list(changes.pop("revoked", ())))
        (tmp_path / "notes.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
        if changes.pop("account", True):
            (tmp_path / "north.party").mkdir(mode=0o700, exist_ok=True)
            open_account(tmp_path / "north.party", "north", epsilon=10.0, delta=1e-6, simulation=False)
        path = tmp_path / "party.toml"
        wanted = {"port": 0, "top": "", "source": "notes.jsonl", "text": "text", "shard": "", "policy": ""}
        wanted |= {"peers": f'south = "SHA256:{"0" * 64}"'}
        path.write_text(FILE.format(**wanted | {"authority": fingerprint(authority.certificate)} | changes))
        return path

    return makes
