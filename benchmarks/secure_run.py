"""What the secure sum costs a run: time and bytes beside the clear sum, over mutual TLS, and the memory of a large one.

    python benchmarks/secure_run.py [--parties N] [--words N] [--repeats N] [--out FILE]

Party processes are `party serve`, provisioned by a federation made here; the plan releases counts of words x words
cells. The two kinds of sum take turns; what is compared is the stage in which parties answer. The large sum (10,000 x
10,000 cells, ten parties) is made in one process: every party's masked vector with its noise, one after the other, and
the coordinator with its files; so its memory bounds that of each of them.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from protos.identity.requests import key_pem, make_request, new_keys

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

BIG = 10_000 * 10_000
BIG_PARTIES = 10
PLAN = """
[run]
name = "secure-run"
recipe = "dped"
seed = 3
[privacy]
epsilon = 8.0
delta = 1e-6
{privacy}
[federation]
launch = "connect"
identity = "federation"
parties = [{parties}]
[vocabulary]
source = "public.jsonl"
size = {words}
[dped]
signals = ["counts"]
dimension = 8
[student]
publish = "published"
"""
KINDS = {"clear": "", "secure": 'trust = "secure-sum"\ndropouts = 2\ncolluders = 1'}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parties", type=int, default=10)
    parser.add_argument("--words", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="secure-run-") as folder:
        found: dict[str, Any] = {"run": ends(Path(folder), options.parties, options.words, options.repeats)}
    with tempfile.TemporaryDirectory(prefix="secure-run-") as folder:
        found["large"] = large(Path(folder))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def ends(folder: Path, parties: int, words: int, repeats: int) -> dict[str, Any]:
    """Seconds of the stage in which parties answer, and bytes, for either kind of sum."""
    from coordinator.store.store import RunStore

    write_texts(folder, words)
    with serving(folder, [f"party-{number:02}" for number in range(1, parties + 1)]) as addresses:
        entries = ", ".join(f'{{ name = "{name}", address = "{address}" }}' for name, address in addresses.items())
        seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        traffic: dict[str, int] = {}
        for repeat in range(repeats):
            for kind in sorted(KINDS, reverse=bool(repeat % 2)):
                plan = folder / f"{kind}.toml"
                plan.write_text(PLAN.format(privacy=KINDS[kind], parties=entries, words=words))
                output = folder / f"{kind}-{repeat}"
                subprocess.run(
                    [beside("coordinator"), "run", plan, "--output", output],
                    cwd=folder,
                    env=environment(folder),
                    check=True,
                    capture_output=True,
                )
                with closing(RunStore(output)) as store:
                    began, ended, result = store.stages()["aggregate"]
                assert ended is not None
                seconds[kind].append(round(ended - began, 3))
                traffic[kind] = result["bytes"]
    medians = {kind: statistics.median(each) for kind, each in seconds.items()}
    return {
        "parties": parties,
        "cells": words * words,
        "seconds": seconds,
        "median_seconds": medians,
        "time_ratio": round(medians["secure"] / medians["clear"], 2),
        "bytes": traffic,
        "byte_ratio": round(traffic["secure"] / traffic["clear"], 4),
    }


@contextmanager
def serving(folder: Path, names: list[str]) -> Iterator[dict[str, str]]:
    """Provisioned `party serve` processes that have pinned each other, by their addresses."""
    from coordinator.identity import provisioning
    from protos.identity.certificates import fingerprint, read_bundle
    from protos.identity.identity import write_private

    federation = folder / "federation"
    provisioning.make(federation, "coordinator.example")
    told = provisioning.authority_fingerprint(federation)
    signing: dict[str, str] = {}
    for name in names:
        keys = new_keys()
        bundle, private = provisioning.vouched(federation, name, make_request(name, *keys)), key_pem(*keys)
        (folder / f"{name}.pem").write_bytes(bundle)
        write_private(folder / f"{name}.key", private)
        signing[name] = fingerprint(read_bundle(bundle, name).signing)
    with ExitStack() as stack:
        nodes = {}
        for number, name in enumerate(names):
            pins = "".join(f'{other} = "{key}"\n' for other, key in signing.items() if other != name)
            part = f"{{ parts = {len(names)}, part = {number} }}"
            (folder / f"{name}.toml").write_text(
                f'name = "{name}"\nlisten = "127.0.0.1:0"\n'
                f'[shard]\nsource = "letters.jsonl"\npart = {part}\n'
                '[policy]\nepsilon = 1000.0\ndelta = 1e-6\nrecipes = ["dped"]\nsimulation = true\n'
                f'[identity]\ncertificate = "{name}.pem"\nkey = "{name}.key"\nauthority = "{told}"\n[peers]\n{pins}'
            )
            node = subprocess.Popen(
                [beside("party"), "serve", "--config", folder / f"{name}.toml", "--json"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            stack.callback(node.wait)
            stack.callback(node.terminate)
            nodes[name] = node
        yield {name: json.loads(node.stdout.readline())["address"] for name, node in nodes.items() if node.stdout}


def write_texts(folder: Path, words: int) -> None:
    """Letters in so many made-up words, and public text of all of them."""
    rng = np.random.default_rng(0)
    known = [f"w{chr(97 + n // 676 % 26)}{chr(97 + n // 26 % 26)}{chr(97 + n % 26)}" for n in range(words + 100)]
    with (folder / "letters.jsonl").open("w") as file:
        for _ in range(400):
            file.write(json.dumps({"text": " ".join(rng.choice(known, 40))}) + "\n")
    with (folder / "public.jsonl").open("w") as file:
        for _ in range(60):
            file.write(json.dumps({"text": " ".join(rng.permutation(known)[:400])}) + "\n")


def large(folder: Path) -> dict[str, Any]:
    """Seconds and peak memory, MiB, of one party and of the coordinator in a sum of 10,000 x 10,000 cells."""
    script = [sys.executable, __file__, "--large", str(folder)]
    done = subprocess.run(script, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def large_here(folder: Path) -> None:
    """All parties, one after the other, and the coordinator in this process: its memory bounds that of each of them."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from aggregation.noise.rounded_gaussian import RoundedGaussian
    from aggregation.noise.stream import NoiseStream
    from aggregation.secure_sum.context import Context
    from aggregation.secure_sum.mask import BLOCK_CELLS
    from aggregation.secure_sum.participant import Attempts, Participant
    from aggregation.secure_sum.summation import Summation
    from coordinator.federation.masked_vectors import MaskedFiles

    names = [f"party-{number:02}" for number in range(BIG_PARTIES)]
    keys = {name: Ed25519PrivateKey.generate() for name in names}

    def verify(name: str, statement: bytes, signature: bytes) -> bool:
        keys[name].public_key().verify(signature, statement)
        return True

    context = Context.of(
        run="r", plan_hash="00", sum="counts", attempt=0, parties=names, length=BIG, dropouts=2, colluders=1
    )
    parties = {
        name: Participant(
            context, name, attempts=Attempts(), sign=keys[name].sign, verify=verify, remember=lambda _: None
        )
        for name in names
    }
    total = Summation(context, verify, MaskedFiles(folder / "masked", context))
    for party in parties.values():
        total.advertised(party.advertise())
    for party in parties.values():
        total.dealt(party.share(total.roster()))
    noise, masking = RoundedGaussian(300.0), []
    for name, inbox in total.inboxes().items():
        began, stream = time.perf_counter(), NoiseStream.from_system()
        parties[name].receive(inbox)
        for start in range(0, BIG, BLOCK_CELLS):
            cells = noise.sample((min(BLOCK_CELLS, BIG - start),), stream)
            total.masked(parties[name].block(cells))
        masking.append(time.perf_counter() - began)
    survivors = total.survivors()
    for party in parties.values():
        total.consented(party.consent(survivors))
    for party in parties.values():
        total.revealed(party.reveal(total.consents()))
    began, cells_out = time.perf_counter(), 0
    for block in total.totals():
        cells_out += len(block)
    assert cells_out == BIG
    print(
        json.dumps(
            {
                "parties": BIG_PARTIES,
                "cells": BIG,
                "party_seconds": round(statistics.median(masking), 2),
                "unmasking_seconds": round(time.perf_counter() - began, 2),
                "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                "disk_mib": round(sum(each.stat().st_size for each in (folder / "masked").iterdir()) / 2**20),
            }
        )
    )


def beside(command: str) -> Path:
    """A command of this environment."""
    return Path(sys.executable).with_name(command)


def environment(folder: Path) -> dict[str, str]:
    """A run store of this benchmark's own."""
    return os.environ | {"CONCLAVE_HOME": str(folder / "home")}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--large"]:
        large_here(Path(sys.argv[2]))
    else:
        main()
