"""`benchmarks/three_sites.py` in its small form: one plan embedded, on a Ray cluster, and over three sites of which two
dial out of networks that let nothing in, gives one student, of DPED and of a classifier (this one on no cluster).
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
specification = importlib.util.spec_from_file_location("separate_networks", BENCHMARKS / "separate_networks.py")
networks = importlib.util.module_from_spec(specification)
sys.modules["separate_networks"] = networks
specification.loader.exec_module(networks)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why := networks.lacking()), reason=why or "-")]


def test_a_firewall_lets_through_what_is_named_and_drops_the_rest():
    with networks.Networks(("coordinator", "north", "south")) as found:
        found.admit([networks.Rule("coordinator", "north", 7443), networks.Rule("south", "coordinator", 7444)])
        assert found.reaches("coordinator", "north", 7443)
        assert found.reaches("south", "coordinator", 7444)
        assert found.dropped() == 0
        for source, to, port in (
            ("coordinator", "south", 7443),
            ("north", "south", 7443),
            ("coordinator", "north", 22),
        ):
            assert not found.reaches(source, to, port, seconds=0.5), (source, to, port)
        assert found.dropped() >= 3


@pytest.mark.timeout(900)
def test_the_same_plan_gives_the_same_student_embedded_on_a_cluster_and_at_three_sites(tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, str(BENCHMARKS / "three_sites.py"), "--small", "--out", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert {"embedded", "cluster", "sites"} <= found["dped"].keys()
    for recipe in ("dped", "dp_sgd"):
        assert {"embedded", "sites"} <= found[recipe].keys()
        assert found[recipe]["same"] is True, found[recipe]["differ"]
        assert any(name.endswith(".safetensors") for name in found[recipe]["files"])
    assert found["firewall"]["nothing_comes_in"] == {"party-2": True, "party-3": True}
    assert found["firewall"]["dropped"] > 0
