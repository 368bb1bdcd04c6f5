"""What surviving costs: the journal's share of a run's time, and how long a run with a million stored answers needs.

    python benchmarks/resuming.py [--out FILE]

The journal is everything that the coordinator's store, a party's ledger and its kept blocks write and wait for, in a
run of the example plan over party processes; the share is of the run's whole time. Resuming is what a resumed run does
before it can ask for the first missing answer: open, take the lease, and learn what is stored; then reading all back.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

ANSWERS = 1_000_000
COLUMNS = 16
BLOCK = 2_000
PARTY = """
import atexit, json, sys, time
from party.console.command import main
from party.ledger.ledger import Ledger
from party.store.runs import Run
spent = [0.0]
def timed(owner, name):
    inner = getattr(owner, name)
    def outer(*arguments, **named):
        begun = time.monotonic()
        try:
            return inner(*arguments, **named)
        finally:
            spent[0] += time.monotonic() - begun
    setattr(owner, name, outer)
for name in ("claim", "join", "leave", "answered", "reserve", "mask"):
    timed(Ledger, name)
for name in ("keep_block", "keep_operation"):
    timed(Run, name)
atexit.register(lambda: open(sys.argv.pop(), "w").write(str(spent[0])))
main(sys.argv[1:-1])
"""


def timed(owner: type, name: str, spent: list[float]) -> None:
    """Add up how long a method takes."""
    inner: Callable[..., Any] = getattr(owner, name)

    def outer(*arguments: object, **named: object) -> object:
        begun = time.monotonic()
        try:
            return inner(*arguments, **named)
        finally:
            spent[0] += time.monotonic() - begun

    setattr(owner, name, outer)


def journal(folder: Path) -> dict[str, float]:
    """Seconds of a run, and of its journals at both sides."""
    from coordinator import api
    from coordinator.run.party_files import party_tables
    from coordinator.store.store import RunStore
    from coordinator.systems.registry import plan_of, read_plan

    plan = read_plan(ROOT / "examples/dped/plan.toml")
    document = plan.model_dump()
    document["dped"]["signals"] = ["votes", "hidden", "counts"]
    document["federation"]["shards"]["split"]["parties"] = 2
    document["privacy"]["declared_size"] = None
    plan = plan_of(document)
    spent = [0.0]
    for name in ("put_block", "note", "_begin", "_finish", "begin_sum", "renew"):
        timed(RunStore, name, spent)
    with ExitStack() as stack:
        entries, files = [], []
        for name, tables in party_tables(plan).items():
            config = folder / f"{name}.toml"
            lines = [f'name = "{name}"', 'listen = "127.0.0.1:0"', "plaintext = true"]
            lines += [f"{table} = {_toml(tables[table])}" for table in ("shard", "policy")]
            config.write_text("\n".join(lines))
            files.append(folder / f"{name}.seconds")
            command = [sys.executable, "-c", PARTY, "serve", "--config", config, "--json", files[-1]]
            node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            stack.callback(node.wait)
            stack.callback(node.terminate)
            assert node.stdout is not None
            entries.append({"name": name, "address": json.loads(node.stdout.readline())["address"]})
        document["federation"] |= {"launch": "connect", "parties": entries, "shards": None}
        begun = time.monotonic()
        api.run(plan_of(document), output=folder / "run")
        whole = time.monotonic() - begun
    parties = [float(file.read_text()) for file in files]
    return {
        "run": round(whole, 2),
        "coordinator": round(spent[0], 3),
        "a party": round(max(parties), 3),
        "share": round((spent[0] + max(parties)) / whole, 4),
    }


def resuming(folder: Path, rows_a_block: int) -> dict[str, float]:
    """Seconds that a run with a million stored answers needs until it knows what it has, and to read it back."""
    from coordinator.store import lease
    from coordinator.store.index import RunIndex
    from coordinator.store.store import RunStore

    store = RunIndex(folder / "home").add("million", b"", folder / f"blocks-of-{rows_a_block}")
    store.begin_sum("answers", ["north", "south"])
    block = np.random.default_rng(0).integers(-1000, 1000, size=(rows_a_block, COLUMNS))
    if rows_a_block > 1:
        for number in range(ANSWERS // rows_a_block):
            store.put_block("answers", number, number * rows_a_block, (number + 1) * rows_a_block, block)
    else:  # a file each would measure the file system: here the rows of the journal alone
        with store.transaction() as sql:
            sql.executemany(
                "INSERT INTO blocks VALUES ('answers', ?, ?, ?, '', '', 0)", ((n, n, n + 1) for n in range(ANSWERS))
            )
    store.close()
    begun = time.monotonic()
    with closing(RunStore(folder / f"blocks-of-{rows_a_block}")) as again, lease.held(again):
        kept = len(again.begin_sum("answers", ["north", "south"]))
        known = time.monotonic() - begun
        rows = sum(len(found) for _, _, found in again.blocks("answers")) if rows_a_block > 1 else ANSWERS
    assert rows == ANSWERS
    whole = time.monotonic() - begun
    return {"blocks": kept, "known after": round(known, 3), "read back after": round(whole, 3)}


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["CONCLAVE_HOME"] = str(folder / "home")
        found = {
            "resuming, blocks of 2,000 answers": resuming(folder, BLOCK),
            "resuming, blocks of one answer": resuming(folder, 1),
            "journal": journal(folder),
        }
    for name, figures in found.items():
        print(name, figures)
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
