"""The same plan embedded, on a Ray cluster, and over three sites of which two dial out: is it the same student?

    python benchmarks/three_sites.py [--small] [--first-answer] [--repeats 3] [--out FILE]

The sites are networks of their own on this machine, with addresses of their own, and a firewall between that drops what
would come in to two of them (`separate_networks`). Certificates, mutual TLS and the secure sum are as at real sites;
only the noise is reproducible, so that students can be compared byte for byte. Everybody computes with one thread: with
two a sum of gradients is rounded otherwise. Tried: DPED, and a classifier.

With --first-answer nothing is compared: how long it takes from `coordinator run` to the end of the first answer that a
party gave, embedded, on a cluster, at three sites that listen, and at three that dial, in turn.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from launching import answers, cluster
from separate_networks import Networks, Rule, lacking

BINARIES = Path(sys.executable).parent
PARTIES = ("party-1", "party-2", "party-3")
DIALLING = ("party-2", "party-3")
PORT, GATE = 7443, 7444
SECONDS = 600
UNITS, SEED = 240, 7
TELLING = re.compile(r"(privacy|plan|manifest)\.json$|README\.md$|manifest\.sig$|coordinator\.pem$|attestations/")
"""Files of a student that tell of the run, or were signed at a time; all others have to be the same."""

COMMON = """\
[run]
name = "three-sites"
recipe = "{recipe}"
seed = {seed}
threads = 1

[privacy]
epsilon = 8.0
delta = 1e-5
trust = "{trust}"
dropouts = 0
insecure_reproducible_noise = true
{privacy}

[federation]
launch = "ray"

[federation.shards]
source = "notes.jsonl"
label = "mood"
split = {{ by = "site", parties = 3 }}

[evaluation]
source = "public.jsonl"
label = "mood"

[student]
publish = "published"

"""
DPED = """\
[vocabulary]
source = "public.jsonl"
size = 30

[dped]
signals = ["moments"]
dimension = 8
"""
CLASSIFIER = """\
[text]
labels = ["negative", "positive"]
values = ["0", "1"]
longest = 16

[model]
name = "encoder"

[dp_sgd]
steps = 2
batch = 60
learning_rate = 0.1
"""


def plan(recipe: str, trust: str = "secure-sum") -> str:
    """A small plan of a recipe, for parties that the run starts."""
    privacy = f"declared_size = {UNITS}" if recipe == "dp_sgd" else 'noise = "skellam"'
    if trust != "secure-sum":
        privacy = privacy.replace('noise = "skellam"', "")
    return COMMON.format(recipe=recipe, seed=SEED, trust=trust, privacy=privacy) + (
        CLASSIFIER if recipe == "dp_sgd" else DPED
    )


def at_sites(text: str, networks: Networks, dialling: Sequence[str]) -> str:
    """The same plan for parties at their sites: no more than its `[federation]` changes."""
    entries = ", ".join(
        f'{{ name = "{name}", dials = true }}'
        if name in dialling
        else f'{{ name = "{name}", address = "{networks.addresses[name]}:{PORT}" }}'
        for name in PARTIES
    )
    gate = f'listen = "{networks.addresses["coordinator"]}:{GATE}"' if dialling else ""
    federation = f'[federation]\nlaunch = "connect"\nidentity = "federation"\n{gate}\nparties = [{entries}]\n\n'
    return re.sub(r"\[federation\]\n.*?(?=\[evaluation\])", federation, text, flags=re.DOTALL)


def write_texts(folder: Path) -> list[dict[str, str]]:
    """`notes.jsonl` of all parties, `public.jsonl`, and an encoder that knows their words; returns the notes."""
    rng = np.random.default_rng(0)
    words = [a + b for a in ("ba", "di", "fo", "gu", "ke", "lo") for b in ("lam", "ner", "pos", "qui", "rit", "sol")]
    frequency = 1 / np.arange(1, len(words) + 1)

    def rows(count: int) -> Iterator[dict[str, str]]:
        for number in range(count):
            mood = int(rng.integers(2))
            text = [*rng.choice(words, 10, p=frequency / frequency.sum()), ("bad", "good")[mood]]
            yield {"text": " ".join(map(str, rng.permutation(text))), "site": f"s{number % 12}", "mood": str(mood)}

    notes, public = list(rows(UNITS)), list(rows(80))
    for name, found in (("notes", notes), ("public", public)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    return notes


def write_encoder(folder: Path, texts: Sequence[Mapping[str, str]]) -> None:
    """A BERT of 2 layers of width 32 that knows the words of these texts."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    known = [*special.values(), *sorted({word for row in texts for word in row["text"].split()})]
    found = Tokenizer(models.WordPiece({token: place for place, token in enumerate(known)}, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    found.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", known.index("[CLS]")), ("[SEP]", known.index("[SEP]"))],
    )
    PreTrainedTokenizerFast(tokenizer_object=found, **special).save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(known), max_position_embeddings=32, initializer_range=0.2, **shape)
    BertModel(config).save_pretrained(folder)


def write_sites(folder: Path, notes: Sequence[Mapping[str, str]], networks: Networks) -> None:
    """The federation, and a folder a party with its own notes alone, its keys, its certificates and its file."""
    from coordinator.identity import provisioning
    from party.shard.units import part_of
    from party.shard_table import PartTable
    from protos.identity.certificates import fingerprint, read_bundle
    from protos.identity.identity import write_private
    from protos.identity.requests import key_pem, make_request, new_keys

    federation = folder / "federation"
    provisioning.make(federation, "coordinator.example")
    pins = {}
    for name in PARTIES:
        (folder / name).mkdir()
        keys = new_keys()
        bundle = provisioning.vouched(federation, name, make_request(name, *keys))
        (folder / name / "party.pem").write_bytes(bundle)
        write_private(folder / name / "party.key", key_pem(*keys))
        shutil.copy(federation / "revoked.pem", folder / name)
        pins[name] = fingerprint(read_bundle(bundle, name).signing)
    for part, name in enumerate(PARTIES):
        own = [row for row in notes if part_of(PartTable(by="site", parts=3, part=part, seed=SEED), "", row) == part]
        (folder / name / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
        peers = "".join(f'{other} = "{pins[other]}"\n' for other in PARTIES if other != name)
        (folder / name / "party.toml").write_text(
            f'name = "{name}"\nlisten = "{networks.addresses[name]}:{PORT}"\n'
            '[shard]\nsource = "notes.jsonl"\nlabel = "mood"\n'
            "[policy]\nepsilon = 1000.0\ndelta = 1e-5\nrecipes = ['dped', 'dp_sgd']\nsimulation = true\n"
            "[compute]\nthreads = 1\n"
            "[identity]\ncertificate = 'party.pem'\nkey = 'party.key'\nrevoked = 'revoked.pem'\n"
            f"authority = '{provisioning.authority_fingerprint(federation)}'\n[peers]\n{peers}"
        )


@contextmanager
def serving(folder: Path, networks: Networks, dialling: Sequence[str]) -> Iterator[None]:
    """The parties' nodes, each at its site; those in `dialling` have no port, and nothing comes in to them."""
    networks.admit(
        [Rule("coordinator", name, PORT) for name in PARTIES if name not in dialling]
        + [Rule(name, "coordinator", GATE) for name in dialling]
    )
    with ExitStack() as stack:
        nodes = []
        for name in PARTIES:
            dials = ("--connect", f"{networks.addresses['coordinator']}:{GATE}") if name in dialling else ()
            with (folder / f"{name}.log").open("a") as log:
                node = subprocess.Popen(
                    networks.command(name, BINARIES / "party", "serve", "--json", *dials),
                    cwd=folder / name, stdout=subprocess.PIPE, stderr=log, text=True,
                )  # fmt: skip
            stack.callback(_stop, node)
            nodes.append(node)
        for name, node in zip(PARTIES, nodes, strict=True):
            assert node.stdout is not None
            if not node.stdout.readline():
                raise SystemExit(f"{name} does not serve: {(folder / f'{name}.log').read_text()}")
        yield


def _stop(node: "subprocess.Popen[str]") -> None:
    node.terminate()
    node.communicate()


def run(folder: Path, text: str, way: str, *, inside: Sequence[str] = (), more: Sequence[str] = ()) -> dict[str, Any]:
    """One run of a plan; returns the seconds it took and, where it was traced, those to the first answer."""
    output, traces = folder / way, folder / f"{way}.jsonl"
    (folder / f"{way}.toml").write_text(text)
    shutil.rmtree(output, ignore_errors=True)
    traces.unlink(missing_ok=True)
    began, clock = time.time(), time.monotonic()
    options = ("--output", str(output), "--traces", str(traces), *more)
    done = subprocess.run(
        [*inside, str(BINARIES / "coordinator"), "run", f"{way}.toml", *options],
        cwd=folder, env={**os.environ, "CONCLAVE_HOME": str(folder / "home")},
        capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{way} failed:\n{done.stdout}\n{done.stderr}")
    found = {"seconds": round(time.monotonic() - clock, 2)}
    print(f"{way}: {found['seconds']} s", file=sys.stderr, flush=True)
    times = list(answers(traces))
    return found | ({"first_answer": round(min(times) - began, 2)} if times else {})


def student(folder: Path, way: str) -> dict[str, bytes]:
    """What was learned: the student's files by name."""
    found = folder / way / "student"
    names = sorted(str(path.relative_to(found)) for path in found.rglob("*") if path.is_file())
    return {name: (found / name).read_bytes() for name in names if not TELLING.match(name)}


def compared(folder: Path, networks: Networks, ways: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Every recipe by its ways, and whether the students are the same byte for byte."""
    report: dict[str, Any] = {recipe: {} for recipe in ways}
    with ExitStack() as stack:
        head = stack.enter_context(cluster(folder, ("127.0.0.2",))) if "cluster" in str(ways) else ""
        for recipe, wanted in ways.items():
            for way, more in (("embedded", ()), ("cluster", ("--ray-address", head))):
                if way in wanted:
                    report[recipe][way] = run(folder, plan(recipe), f"{recipe}-{way}", more=more)
    with serving(folder, networks, DIALLING):
        closed = {name: not networks.reaches("coordinator", name, PORT) for name in DIALLING}
        for recipe in ways:
            text = at_sites(plan(recipe), networks, DIALLING)
            there = networks.command("coordinator")
            report[recipe]["sites"] = run(folder, text, f"{recipe}-sites", inside=there)
    for recipe, wanted in ways.items():
        first, *others = (student(folder, f"{recipe}-{way}") for way in wanted)
        report[recipe]["files"] = sorted(first)
        report[recipe]["differ"] = sorted(
            {name for other in others for name in first if other.get(name) != first[name]}
        )
        report[recipe]["same"] = bool(first) and all(other == first for other in others)
    return report | {"firewall": {"nothing_comes_in": closed, "dropped": networks.dropped()}}


def first_answers(folder: Path, networks: Networks, repeats: int) -> dict[str, list[float]]:
    """Seconds to the first answer, by way, in turn, so that what else the machine does falls on all."""
    found: dict[str, list[float]] = {"embedded": [], "cluster": [], "sites": [], "dialling": []}
    text = plan("dped", "trusted-aggregator")
    with cluster(folder, ("127.0.0.2",)) as head:
        for number in range(repeats):
            found["embedded"].append(run(folder, text, f"embedded-{number}")["first_answer"])
            found["cluster"].append(
                run(folder, text, f"cluster-{number}", more=("--ray-address", head))["first_answer"]
            )
            for way, dialling in (("sites", ()), ("dialling", PARTIES)):
                with serving(folder, networks, dialling):
                    time.sleep(3)  # parties wait for runs, not runs for parties
                    told = at_sites(text, networks, dialling)
                    there = networks.command("coordinator")
                    found[way].append(run(folder, told, f"{way}-{number}", inside=there)["first_answer"])
    return {way: sorted(seconds) for way, seconds in found.items()}


def main() -> None:
    """Try or measure, print, and write what was found where --out says."""
    parser = argparse.ArgumentParser(description="The same plan embedded, on a cluster, and at three sites.")
    parser.add_argument("--recipes", default="dped,dp_sgd")
    parser.add_argument("--ways", default="embedded,cluster,sites", help="one or more; the sites are always among them")
    parser.add_argument("--small", action="store_true", help="the classifier on no cluster")
    parser.add_argument("--first-answer", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if why := lacking():
        raise SystemExit(why)
    folder = Path(tempfile.mkdtemp(prefix="cs-", dir="/tmp"))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what it started ends too
    try:
        notes = write_texts(folder)
        write_encoder(folder / "encoder", notes)
        with Networks(("coordinator", *PARTIES)) as networks:
            write_sites(folder, notes, networks)
            if given.first_answer:
                found: dict[str, Any] = {"first_answer_seconds": first_answers(folder, networks, given.repeats)}
            else:
                ways = {each: [*given.ways.split(",")] for each in given.recipes.split(",")}
                if given.small:
                    ways["dp_sgd"] = ["embedded", "sites"]
                found = compared(folder, networks, ways)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found, indent=1))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    if not all(found[recipe]["same"] for recipe in given.recipes.split(",") if recipe in found):
        raise SystemExit("the students differ")


if __name__ == "__main__":
    main()
