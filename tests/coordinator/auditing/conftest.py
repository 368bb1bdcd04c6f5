"""A small plan of embeddings, and what breaks its mechanism."""

import json
from itertools import count

import numpy as np
import pytest

from aggregation.noise.stream import NoiseStream
from coordinator.plan.audit import AuditTable
from coordinator.progress.progress import Silent
from coordinator.run.audited import audited
from coordinator.systems.registry import plan_of
from coordinator.transport.launchers import find_launcher
from deploy import simulated_links
from party.tasks.result import wrapped

WORDS = [a + b for a in ("ba", "di", "fo", "gu", "ke", "lo") for b in ("lam", "ner", "pos", "qui", "rit", "sol")]


@pytest.fixture(scope="session")
def letters(tmp_path_factory):
    """A folder with `letters.jsonl`, of twelve senders, and `public.jsonl`, in the same made-up words."""
    folder = tmp_path_factory.mktemp("letters")
    rng = np.random.default_rng(0)
    weights = 1 / np.arange(1, len(WORDS) + 1)
    for name, many in (("letters", 300), ("public", 100)):
        rows = [
            {"text": " ".join(rng.choice(WORDS, 20, p=weights / weights.sum())), "sender": f"s{number % 12}"}
            for number in range(many)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="session")
def dped_tables(letters):
    """`dped_tables(signals, **tables)`: tables of a plan of embeddings among three parties, at epsilon 1."""

    def makes(*signals, privacy=None, shards=None, dped=None, **tables):
        return {
            "run": {"name": "demo", "recipe": "dped", "seed": 7},
            "privacy": {"epsilon": 1.0, "delta": 1e-6} | (privacy or {}),
            "federation": {
                "launch": "ray",
                "shards": {"source": str(letters / "letters.jsonl"), "split": {"by": "hash", "parties": 3}}
                | (shards or {}),
            },
            "vocabulary": {"source": str(letters / "public.jsonl"), "size": 36},
            "dped": {"signals": list(signals), "dimension": 8, "teachers_per_party": 2} | (dped or {}),
        } | tables

    return makes


@pytest.fixture
def audit(tmp_path, monkeypatch):
    """`audit(tables, seed=..., **settings)`: the audit of a plan."""
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))

    def audits(tables, seed=0, **settings):
        return audited(plan_of(tables), find_launcher("ray"), tmp_path, AuditTable(**settings), Silent(), seed=seed)

    return audits


@pytest.fixture
def noise(monkeypatch):
    """`noise(part, key)`: simulated parties add so large a part of their share of the noise, of a stream that is
    known where a key is given.
    """

    def parts(part=1.0, key=None):
        known = None if key is None else NoiseStream.from_key(bytes([key]) * 32)
        calls = count()

        def less(clean, mechanism, stream):
            dense = clean if isinstance(clean, np.ndarray) else clean.toarray()
            share = mechanism.noise_share(dense.shape, stream if known is None else known.child("call", next(calls)))
            return wrapped(dense.astype(np.int64) + np.rint(part * share).astype(np.int64))

        monkeypatch.setattr(simulated_links, "noised", less)

    return parts


@pytest.fixture
def no_noise(monkeypatch):
    """Simulated parties leave out their share of the noise."""

    def bare(clean, mechanism, stream):
        dense = clean if isinstance(clean, np.ndarray) else clean.toarray()
        return wrapped(dense.astype(np.int64))

    monkeypatch.setattr(simulated_links, "noised", bare)
