"""A federation to test with: one authority, another that is not it, and identities issued by either."""

from collections.abc import Callable
from typing import Any

import pytest

from protos.identity.authority import Authority, new_authority
from protos.identity.certificates import Role
from protos.identity.identity import Identity
from protos.identity.requests import Request, key_pem, new_keys


def made(authority: Authority, name: str, role: Role, **when: Any) -> Identity:
    """An identity that `authority` issued, for fresh keys, whether or not it is valid now."""
    transport_key, signing_key = new_keys()
    request = Request(name, transport_key.public_key(), signing_key.public_key())
    bundle = authority.issue(request, role, **when)
    return Identity(name, role, bundle.transport, key_pem(transport_key), bundle.signing, signing_key, bundle.authority)


@pytest.fixture(scope="session")
def authority() -> Authority:
    return new_authority("a federation")


@pytest.fixture(scope="session")
def stranger() -> Authority:
    """Another authority, under the same name."""
    return new_authority("a federation")


@pytest.fixture
def party(authority: Authority) -> Callable[..., Identity]:
    """Makes a party's identity."""
    return lambda name="north", by=authority, **when: made(by, name, Role.PARTY, **when)


@pytest.fixture
def end(authority: Authority) -> Callable[..., Identity]:
    """Makes an identity of any role."""
    names = {Role.PARTY: "north", Role.SUBMITTER: "ann"}
    return lambda role, by=authority, **when: made(by, names.get(role, "coordinator.example"), role, **when)


@pytest.fixture
def coordinator(authority: Authority) -> Callable[..., Identity]:
    """Makes a coordinator's identity."""
    return lambda by=authority, **when: made(by, "coordinator.example", Role.COORDINATOR, **when)
