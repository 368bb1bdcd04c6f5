"""Runs and accounts whose pages are looked at."""

import json
import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from aggregation.accounting.price import Guarantee
from coordinator import api
from coordinator.comparing.comparable import Method, View
from coordinator.comparing.comparison import Cell, Comparison
from coordinator.page.account import Account, Beside, Checked, Spent, Stage, gathered
from coordinator.page.exhibits import (
    Calibration,
    Dots,
    Exhibit,
    Matrix,
    Passage,
    Passages,
    Points,
    Spot,
    Sure,
    Table,
)
from coordinator.published.audit import Attacked, Audit
from coordinator.publishing.heard import Heard
from coordinator.store.store import RunStore
from coordinator.systems.registry import plan_of


@pytest.fixture(scope="session")
def letters(tmp_path_factory):
    """A folder of made-up letters: those of the parties, public ones, and public ones to measure on."""
    folder = tmp_path_factory.mktemp("letters")
    rng = np.random.default_rng(0)
    words = [a + b for a in ("ba", "di", "fo", "gu", "ke", "lo") for b in ("lam", "ner", "pos", "qui", "rit", "sol")]
    weights = 1 / np.arange(1, len(words) + 1)
    for name, count in (("letters", 240), ("public", 60), ("others", 60)):
        rows = (
            {"text": " ".join(rng.choice(words, 20, p=weights / weights.sum())), "sender": f"s{number % 12}"}
            for number in range(count)
        )
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="session")
def dped_tables(letters):
    """`dped_tables(signals, **privacy)`: tables of a plan of embeddings among three parties."""

    def makes(*signals, **privacy):
        return {
            "run": {"name": "letters", "recipe": "dped", "seed": 7},
            "privacy": {"epsilon": 8.0, "delta": 1e-6, "dropouts": 0, "declared_size": 240} | privacy,
            "federation": {
                "launch": "ray",
                "shards": {"source": str(letters / "letters.jsonl"), "split": {"by": "sender", "parties": 3}},
            },
            "vocabulary": {"source": str(letters / "public.jsonl"), "size": 30},
            "dped": {"signals": list(signals), "dimension": 8, "teachers_per_party": 2, "queries": 10, "classes": 8},
            "evaluation": {"source": str(letters / "others.jsonl")},
        }

    return makes


@pytest.fixture
def ran(here, tmp_path):
    """`ran(tables)`: the result of a run of a plan, and its account."""

    def runs(tables):
        result = api.run(plan_of(tables), output=tmp_path / "run")
        with closing(RunStore(tmp_path / "run")) as store:
            return result, gathered(store)

    return runs


@pytest.fixture
def keep(request):
    """`keep(page)`: keeps a page to be looked at, where CONCLAVE_PAGES names a folder."""

    def keeps(page):
        if folder := os.environ.get("CONCLAVE_PAGES"):
            name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
            Path(folder, f"{name.strip('-')}.html").write_text(page, encoding="utf-8")

    return keeps


@pytest.fixture
def privacy():
    """`privacy(**changes)`: the content of a `privacy.json` of one Gaussian release."""

    def makes(**changes):
        release = {
            "name": "moments", "parties": ["north", "south"], "charges": 1, "values": 100, "says": "sums of something",
            "mechanism": {}, "event": {"kind": "gaussian", "noise_multiplier": 2.0},
        }  # fmt: skip
        return {
            "format": 1, "run": "1-demo", "plan_hash": "00" * 32, "unit": "record", "record": "document",
            "relation": "add or remove one unit at one party", "epsilon": 2.2, "delta": 1e-5, "accountant": "PLD",
            "epsilon_by_rdp": 2.4, "epsilon_by_the_papers_formula": None, "sampler_delta": 1e-9, "attempts": 1,
            "trust": "trusted-aggregator", "trust_means": ["Trusted aggregator: it saw much."],
            "insecure_reproducible_noise": False,
            "parties": {"planned": 2, "in_the_sum": 2, "shares_needed": 2}, "left_out": {}, "releases": [release],
            "not_protected": ["the number of parties"],
        } | changes  # fmt: skip

    return makes


METRICS = {"accuracy": 0.8, "public_start": 0.6, "majority": 0.5, "examples": 400, "macro_f1": 0.79}


def audit(attacked="released sums"):
    """An audit of one attack."""
    attack = Attacked(
        attacked=attacked, canaries="worst", count=200, how="It looked.", guesses=100, right=70, tried=7, lower=0.4
    )
    return Audit(
        format=1, run="1-demo", plan_hash="00" * 32, claimed=2.2, delta=1e-5, unit="one document", confidence=0.95,
        records=100, source=100, coins="system", attacks=[attack],
    )  # fmt: skip


@pytest.fixture
def account(privacy):
    """`account(**changes)`: the account of a finished run of two parties."""

    def makes(**changes):
        exhibits = (
            Exhibit(title="A map", content=Points(spots=[Spot(label=f"w{n}", x=n % 5, y=n // 5) for n in range(20)])),
            Exhibit(title="Taken for", content=Matrix(names=["no", "yes"], cells=[[40, 3], [5, 52]])),
            Exhibit(title="Sure", content=Calibration(bins=[Sure(confidence=0.7, right=0.6, examples=9)])),
            Exhibit(title="Scores", content=Dots(across="true", up="said", dots=[[1.0, 2.0], [2.0, 2.5]])),
            Exhibit(title="A table", says=["It says."], content=Table(heads=["word", "near"], rows=[["a", "b, c"]])),
            Exhibit(title="Texts", content=Passages(passages=[Passage(text="a text", about="of something")])),
        )
        return Account(
            **{
                "run": "1-demo", "name": "demo", "status": "finished", "error": None, "recipe": "dp_sgd",
                "about": "a classifier of texts", "plan": {"privacy": {"epsilon": 3.0, "declared_size": 1000},
                "federation": {"parties": ["north", "south"], "shards": None}}, "privacy": privacy(),
                "metrics": METRICS, "audit": audit(), "stages": (Stage("join", 0.0, 2.0), Stage("train", 2.0, 70.0)),
                "started": 1.7e9, "parties": ("north", "south"), "states": {"north": "ready", "south": "lost: silent"},
                "retries": {"south": {"train": 2}}, "resumed": 1,
                "spent": (Spent("north", 2.2, 1, 10.0), Spent("south", None, None, None, "it did not sign")),
                "heard": {"moments": [Heard("moments", "", 5.0, 1.0, 1000)]}, "exhibits": exhibits,
                "student": "student", "beside": (Beside("no privacy", {"accuracy": 0.9}, 3),),
                "checked": (Checked("files", True, ("9 of 9 match",)),),
            } | changes
        )  # fmt: skip

    return makes


@pytest.fixture
def comparison(tmp_path):
    """`comparison(label)`: a comparison of four methods, one of them not measured, at two epsilons and two seeds."""

    def makes(label="counts"):
        tables = {
            "run": {"name": "letters", "recipe": "dped", "seed": 7},
            "privacy": {"epsilon": 8.0, "delta": 1e-6},
            "federation": {
                "launch": "ray",
                "shards": {"source": "letters.jsonl", "split": {"by": "sender", "parties": 3}},
            },
            "vocabulary": {"source": "public.jsonl", "size": 30},
            "evaluation": {"source": "others.jsonl"},
        }
        methods = (
            Method("counts", label, lambda *_: None),
            Method("moments", "moments", lambda *_: None),
            Method("floor", "noised unigram", lambda *_: None, plain=True),
            Method("non-private", "no privacy", lambda *_: None, private=False),
            Method("odd", "never measured", lambda *_: None),
        )
        values = {"counts": 310.0, "moments": 240.0, "floor": 280.0, "non-private": 221.0}
        cells = tuple(
            Cell(name, None if name == "non-private" else epsilon, seed, None, None, None,
                 {"perplexity": value + seed - 3 * epsilon}, {}, 1.0)
            for name, value in values.items() for epsilon in (1.0, 4.0) for seed in (7, 8)
        )  # fmt: skip
        view = View(
            metric="perplexity",
            axis="perplexity, lower is better",
            columns=(),
            best=min,
            shown=lambda mean, spread, best: f"{mean:.1f}",
            said=lambda value: f"{value:.1f}",
            about=lambda plan, seeds: "What the table shows.",
            logarithmic=True,
        )
        total = Guarantee(12.3, 1e-6, "PLD", 12.5)
        return Comparison(plan_of(tables), view, methods, (1.0, 4.0), (7, 8), cells, (), total, True, tmp_path)

    return makes
