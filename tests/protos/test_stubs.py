"""The committed stubs are what their sources give."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def test_the_check_passes_here_and_fails_when_a_source_changed(tmp_path):
    shutil.copytree(ROOT / "protos", tmp_path / "protos", ignore=shutil.ignore_patterns("__pycache__"))
    check = [sys.executable, str(tmp_path / "protos/generate.py"), "--check"]
    good = subprocess.run(check, capture_output=True, text=True)
    assert good.returncode == 0, good.stdout + good.stderr
    source = tmp_path / "protos/conclave/v1/tensor.proto"
    source.write_text(source.read_text().replace("bytes data = 3;", "bytes data = 4;"))
    bad = subprocess.run(check, capture_output=True, text=True)
    assert bad.returncode == 1
    assert "tensor_pb2.py is not what its .proto source gives" in bad.stdout
