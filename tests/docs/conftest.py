"""What the tests of pages take from those of the coordinator, which is no package."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _at(name, path):
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_coordinator = _at("docs_coordinator", "tests/coordinator/conftest.py")
launching, here_for_all = _coordinator.launching, _coordinator.here_for_all
news, opinions, public_texts = _coordinator.news, _coordinator.opinions, _coordinator.public_texts
distildp_tables, swing_tables = _coordinator.distildp_tables, _coordinator.swing_tables
hub = _at("docs_hub", "tests/coordinator/run/test_handing_out.py").hub
