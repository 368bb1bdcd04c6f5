"""Make the Python stubs from the `.proto` sources, or check that the committed ones match them.

Run as `python protos/generate.py [--check]` from anywhere; needs the `dev` extra.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("tensor", "plan", "party", "coordinator")
SERVICES = ("party", "coordinator")


def generate(out: Path) -> list[Path]:
    """Write all stubs below `out` and return their paths relative to it."""
    where = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    protoc = [sys.executable, "-m", "grpc_tools.protoc", "-I", "."]
    messages = [f"protos/conclave/v1/{name}.proto" for name in SOURCES]
    services = [f"protos/conclave/v1/{name}.proto" for name in SERVICES]
    run = {"cwd": ROOT, "env": where, "check": True, "stderr": subprocess.DEVNULL}
    subprocess.run([*protoc, f"--python_out={out}", f"--mypy_out={out}", *messages], **run)  # type: ignore[call-overload]
    subprocess.run([*protoc, f"--grpc_python_out={out}", f"--mypy_grpc_out={out}", *services], **run)  # type: ignore[call-overload]
    return sorted(path.relative_to(out) for path in out.glob("protos/conclave/v1/*_pb2*.py*"))


def check() -> int:
    """Return 0 when the committed stubs equal freshly made ones, otherwise name those that differ and return 1."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        made = generate(fresh)
        stale = [
            path
            for path in made
            if not (ROOT / path).exists() or (ROOT / path).read_bytes() != (fresh / path).read_bytes()
        ]
    extra = sorted({p.relative_to(ROOT) for p in ROOT.glob("protos/conclave/v1/*_pb2*.py*")} - set(made))
    for path in [*stale, *extra]:
        print(f"{path} is not what its .proto source gives. Run: make protos")
    return 1 if stale or extra else 0


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(check())
    generate(ROOT)
