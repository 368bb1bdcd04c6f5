"""Small runs of every recipe give, byte for byte, what they gave when they were stored; shipped plans bind the same.

`stored/CASE.json` says of a run: what parties were bound to and what that costs, every published file, what was
measured, and every message between the coordinator and each party. After a change that is meant, store again, and read
the difference:

    CONCLAVE_GOLDEN=store python -m pytest tests/golden -m "slow or not slow"

What is learned depends, in its last bits, on the processor and the versions of libraries, which `machine` in the file
tells. On another machine numbers may differ by one in a million, and what is a digest, or measured of a model, is not
compared: of files the names remain, of messages their order and kind (a checksum takes four bytes of one or five). A
warning says so. A plan whose clip is learned is not compared there at all.

Of what is signed, and of manifests, names alone are compared, for times and fresh keys are in them; of pictures too.
"""

import hashlib
import json
import math
import os
import platform
import warnings
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from coordinator.comparing.simulated_run import driven
from coordinator.progress.progress import Silent
from coordinator.run.party_files import party_tables
from coordinator.store.store import RunStore
from coordinator.systems.registry import plan_of, prepared
from coordinator.transport.launchers import SimulationRequest, find_launcher

STORED = Path(__file__).parent / "stored"
EXAMPLES = Path(__file__).parents[2] / "examples"
SECURE = {"trust": "secure-sum"}
ONE_MAY_LEAVE = SECURE | {"dropouts": 1}
FRESH = ("run", "plan_hash", "account", "signed_at", "software")
UNCOMPARED = (".pem", ".sig", ".png", "manifest.json", "plan.json")
"""Names of files that are signed, drawn, or compared apart."""

RUNS = {
    "dped-moments": (("dped", "moments"), {"moments_clip": 480.0}),
    "dped-moments-suggested-clip": (("dped", "moments"), {}),
    "dped-moments-secure-sum": (("dped", "moments"), {"moments_clip": 480.0, "privacy": SECURE}),
    "dped-counts": (("dped", "counts"), {}),
    "dped-counts-skellam": (("dped", "counts"), {"privacy": {"noise": "skellam"}}),
    "dped-moments-discrete-gaussian": (
        ("dped", "moments"),
        {"moments_clip": 480.0, "privacy": {"noise": "discrete-gaussian"}},
    ),
    "dped-votes": (("dped", "votes"), {"queries": 10, "classes": 8}),
    "dped-hidden": (("dped", "hidden"), {"queries": 10, "layers": ["centre", "context"]}),
    "dped-joint-counts": (("dped", "votes", "hidden", "counts"), {"queries": 10, "classes": 8}),
    "dped-joint-secure-sum": (("dped", "votes", "hidden"), {"queries": 10, "classes": 8, "privacy": SECURE}),
    "dped-thresholded": (("dped", "votes"), {"queries": 10, "classes": 8, "noise_at": "coordinator", "threshold": 2.0}),
    "dped-free": (
        ("dped", "votes", "hidden"),
        {"queries": 10, "classes": 8, "private_training": {"units_per_teacher": 40, "batch": 10, "steps": 4}},
    ),
    "dp_sgd-federated": (("dp_sgd",), {}),
    "dp_sgd-federated-secure-sum": (("dp_sgd",), {"privacy": ONE_MAY_LEAVE}),
    "dp_sgd-local": (("dp_sgd",), {"dp_sgd": {"form": "local", "rounds": 2}}),
    "dp_sgd-lora": (("dp_sgd",), {"model": {"adapt": "lora", "rank": 2, "alpha": 4}}),
    "pate": (("pate",), {}),
    "pate-secure-sum": (("pate",), {"privacy": ONE_MAY_LEAVE}),
    "privdistil": (("privdistil",), {}),
    "privdistil-secure-sum": (("privdistil",), {"privacy": ONE_MAY_LEAVE}),
    "privdistil-scores": (("privdistil",), {"domain": {"release": "scores"}}),
    "distildp": (("distildp",), {}),
    "distildp-secure-sum": (("distildp",), {"privacy": SECURE}),
    "distildp-local": (("distildp",), {"dp_sgd": {"form": "local"}}),
    "distildp-kept": (("distildp",), {"dp_sgd": {"form": "local"}, "generation": {"where": "parties"}}),
    "swing": (("swing",), {}),
    "swing-secure-sum": (("swing",), {"privacy": SECURE}),
    "swing-published": (("swing",), {"swing": {"form": "published"}, "teachers": {"per_party": 1}}),
    "nvdp": (("nvdp", "single"), {}),
    "nvdp-pairs": (("nvdp", "pairs"), {}),
    "nvdp-published": (("nvdp", "published"), {}),
    "fine_tune": (("fine_tune",), {}),
}
LEARNED = ("dped-moments-suggested-clip",)
"""Runs whose plans depend on what is learned of public text."""
NOT_SIMULATED = ("fine_tune", "distildp-kept")
"""Runs that ask no party, and one whose students a comparison makes from teachers that the coordinator has."""
QUICK = ("dped-moments", "dped-counts", "fine_tune")


def some_slow(names, quick):
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", some_slow(RUNS, QUICK))
def test_a_run_gives_the_very_same_bytes(name, run):
    given, changes = RUNS[name]
    made = run(*given, **changes)
    found = {
        "bound": made.bound,
        "published": published(made.result.student),
        "result": {"epsilon": made.result.epsilon, "delta": made.result.delta, "metrics": made.result.metrics},
        "wire": made.wire,
    }
    if made.bound is not None:
        assert made.result.verdict.ok, made.result.verdict.checks
        plan = json.loads((made.result.student / "plan.json").read_text())
        assert plan | {"document": json.loads(plan["document"])} == made.bound["plan"]
    compare(name, found)


@pytest.mark.parametrize("name", some_slow([name for name in RUNS if name not in NOT_SIMULATED], QUICK))
def test_simulated_parties_give_what_a_run_stored(name, run, tables, tmp_path):
    """Noise and samples are from the plan's seed, so all numbers are equal; masks of a secure sum cancel."""
    given, changes = RUNS[name]
    made = run(*given, **changes)
    plan = plan_of(tables(*given, **changes))
    by_user = plan.privacy.unit == "user"
    request = SimulationRequest(
        party_tables(plan), tmp_path / "simulated", Path.cwd(), b"", 0, plan.privacy.record, by_user
    )
    system = prepared(plan, Path.cwd(), tmp_path / "cache")
    with driven(system, find_launcher("ray").simulate(request), Silent(), Path.cwd()) as simulated:
        sums = stored(simulated.store)
    with closing(RunStore(made.folder)) as store:
        expected = stored(store)
        content = (store.folder / "artefacts/student.safetensors").read_bytes()
    assert sums.keys() == expected.keys()
    for release, total in expected.items():
        assert np.array_equal(sums[release], total), release
    assert simulated.content == content


def stored(store):
    """Every release's sum, [rows, columns]."""
    return {name: np.concatenate([block for *_, block in store.blocks(name)]) for name in store.block_counts()}


PLANS = sorted(path for path in EXAMPLES.glob("*/*.toml") if path.name != "pyproject.toml")
PLANS_QUICK = ("dped-demo", "dped-four-parties")


@pytest.mark.parametrize("name", some_slow([f"{path.parent.name}-{path.stem}" for path in PLANS], PLANS_QUICK))
def test_a_plan_that_is_shipped_binds_parties_to_the_same(name, priced):
    folder, _, stem = name.partition("-")
    compare(f"example-{name}", priced(EXAMPLES / folder / f"{stem}.toml"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["dped", "dp_sgd", "privdistil", "distildp", "swing"])
@pytest.mark.parametrize("launch", ["ray", "connect"])
def test_a_plan_that_init_writes_binds_parties_to_the_same(launch, recipe, priced, written):
    compare(f"init-{launch}-{recipe}", priced(written(launch, recipe)))


def published(student):
    """Every file of a published folder, by its path."""
    return {
        path.relative_to(student).as_posix(): _content(path) for path in sorted(student.rglob("*")) if path.is_file()
    }


def _content(path):
    if path.name.endswith(UNCOMPARED):
        return "is there"
    if path.name == "privacy.json" or path.parent.name == "attestations":
        return {key: value for key, value in json.loads(path.read_text()).items() if key not in FRESH}
    return hashlib.sha256(path.read_bytes()).hexdigest()


def machine():
    """What the last bits of what is learned depend on."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().partition("\n\n")[0].splitlines() if told.exists() else []
    own = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    processor = hashlib.sha256("\n".join(own).encode()).hexdigest()[:16]
    libraries = {name: version(name) for name in ("numpy", "scipy", "scikit-learn", "torch", "transformers")}
    return {"system": platform.system(), "architecture": platform.machine(), "processor": processor} | libraries


def compare(name, found):
    """Fail, naming every difference, where a case is not what was stored; or store it."""
    path = STORED / f"{name}.json"
    if os.environ.get("CONCLAVE_GOLDEN") == "store":
        text = json.dumps({"machine": machine()} | found, indent=1, sort_keys=True, ensure_ascii=False)
        path.write_text(text + "\n")
        return
    stored = json.loads(path.read_text())
    of, found = stored.pop("machine"), json.loads(json.dumps(found))
    apart = 0.0
    if of != machine():
        if name in LEARNED:
            pytest.skip(f"what {path.name} holds was learned on another machine")
        warnings.warn(f"the bytes stored in {path.name} are of another machine: digests are not compared", stacklevel=2)
        stored, found, apart = anywhere(stored), anywhere(found), 1e-6
    differ = list(differences(stored, found, apart))
    assert not differ, f"{path.name} holds something else:\n" + "\n".join(differ)


def anywhere(value, key=""):
    """What is the same on every machine."""
    if key in ("plan_hash", "parts"):
        return None
    if key == "metrics":
        return sorted(value)
    if key == "wire":
        return {party: [line.split()[:2] for line in lines] for party, lines in value.items()}
    if key == "published":
        return {name: of if isinstance(of, dict) else "is there" for name, of in value.items()}
    if isinstance(value, dict):
        return {inner: anywhere(of, inner) for inner, of in value.items()}
    return value


def differences(stored, found, apart, key=""):
    """Where two JSON documents differ, and how. apart: how far numbers may be, relative to the larger."""
    if isinstance(stored, dict) and isinstance(found, dict):
        for name in sorted(stored.keys() | found.keys()):
            yield from differences(stored.get(name), found.get(name), apart, f"{key}.{name}" if key else name)
    elif isinstance(stored, list) and isinstance(found, list) and len(stored) == len(found):
        for place, (one, other) in enumerate(zip(stored, found, strict=True)):
            yield from differences(one, other, apart, f"{key}[{place}]")
    elif isinstance(stored, float) and isinstance(found, float):
        if not (math.isclose(stored, found, rel_tol=apart, abs_tol=0.0) or (math.isnan(stored) and math.isnan(found))):
            yield f"{key}: stored {stored}, found {found}"
    elif stored != found:
        yield f"{key}: stored {str(stored)[:200]}, found {str(found)[:200]}"
