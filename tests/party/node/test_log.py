"""The log for a party's administrator: who asked for what, on one line, whatever a coordinator sends."""

import logging
from types import SimpleNamespace

import pytest

from coordinator.identity import provisioning
from party.node.node import _log_joined
from protos.conclave.v1 import party_pb2, plan_pb2

pytestmark = pytest.mark.slow


def test_a_run_is_logged_with_its_coordinators_name_its_price_and_its_releases(tmp_path, caplog):
    provisioning.make(tmp_path / "federation", "coordinator.test")
    pem = (tmp_path / "federation" / provisioning.COORDINATOR).read_bytes()
    context = SimpleNamespace(auth_context=lambda: {"x509_pem_cert": [pem]})
    privacy = plan_pb2.Privacy(epsilon=4.0, delta=1e-6)
    releases = [plan_pb2.Release(name="counts"), plan_pb2.Release(name="forged\nleft run run-2")]
    terms = plan_pb2.Terms(recipe="dped", privacy=privacy, releases=releases)
    request = party_pb2.JoinRequest(run={"run_id": "run-1"}, plan={"terms": terms})
    with caplog.at_level(logging.INFO, logger="conclave.party"):
        _log_joined(request, context)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "joined run run-1 of coordinator coordinator.test: dped, epsilon 4 at delta 1e-06, "
        "releases counts, forged?left run run-2"
    )
