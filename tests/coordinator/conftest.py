"""Runs of text classifiers among parties that are nodes of this process, for the tests of this room."""

import asyncio
import json
import os
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.mechanism import Form
from aggregation.mechanisms.said import SoftenedTargets
from coordinator.plan.plan import Plan
from coordinator.pricing.release import Release
from coordinator.run import connecting
from coordinator.store import output
from coordinator.systems.registry import plan_of
from coordinator.transport.grpc_link import GrpcLink
from coordinator.transport.launchers import PartyAddress
from deploy.simulation import ClearShards
from party.config import check_config
from party.ledger.accounts import open_account, read_account
from party.ledger.protection import of_policy
from party.node.lifecycle import start
from party.node.training import Training
from party.store.runs import private_folder
from party.tasks import process
from party.tasks.job import Failure
from protos.console.settings import check_settings
from protos.identity.requests import key_pem, make_request, new_keys

FILLERS = ("film", "was", "plot", "actor", "and", "very", "slow", "fast", "end", "start", "story", "we", "saw", "it")
UNITS = 240
ALONE = threading.Lock()
"""Loading a model changes what all threads share for a while: two at once leave it changed."""


class Here:
    """A launcher of nodes in a thread of this process, which train in threads of their own.

    changes: of tables of a party's file, by its name. asked: what parties were to train, as `(party, operation)`, in
    order. before: is called with both first, in a thread. stays: whether nodes outlive the coordinator that had them
    launched, as those of parties elsewhere do; `end` then ends them.
    """

    def __init__(self):
        self.stays = False
        self.changes = {}
        self.asked = []
        self.before = None
        self.nodes = {}
        self._loop = None
        self._keeps = {}

    def begun(self, parties, recipe="", most=None):
        return nullcontext()

    @contextmanager
    def launch(self, request):
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever)
            self._thread.start()
        try:
            keys = {name: new_keys() for name in request.parties}
            requests = {name: make_request(name, *own) for name, own in keys.items()}
            tables = request.introduced(requests)
            for name in request.parties.keys() - self.nodes.keys():
                issued = request.vouch(name, requests[name]), key_pem(*keys[name])
                self.nodes[name] = self.wait(self._start(name, tables[name], request, issued))
            yield tuple(PartyAddress(name, self.nodes[name].address, f"token {name}") for name in request.parties)
        finally:
            if not self.stays:
                self.end()

    def simulate(self, request):
        """The parties of an audit, which have no nodes."""
        return ClearShards(request)

    def end(self):
        """End every node. Idempotent."""
        if self._loop is not None:
            for name in list(self.nodes):
                self.kill(name)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = None
            self._keeps.clear()

    async def _start(self, name, tables, request, issued):
        merged = {
            key: value | self.changes.get(name, {}).get(key, {}) if isinstance(value, dict) else value
            for key, value in tables.items()
            if key != "name"
        }
        own = {"name": name, "listen": "127.0.0.1:0", "folder": str((request.folder / name).absolute())}
        config = check_config(merged | own, name)
        home = config.home(request.base)
        if not config.policy.simulation and read_account(home / "ledger.sqlite", config.lineage) is None:
            private_folder(home)
            policy = config.policy
            cap = {"epsilon": policy.epsilon, "delta": policy.delta, "simulation": False}
            open_account(home, config.lineage, **cap, protection=of_policy(policy))
        return await start(config, token=f"token {name}", issued=issued, base=request.base)

    def wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def kill(self, name):
        """End a party's node, from any thread but its own."""
        if name in self.nodes:
            self.wait(self.nodes.pop(name).stop())

    async def trained(self, job, charge):
        """Do a job in this process."""
        private = await asyncio.to_thread(self._prepared, job)
        if isinstance(private, Failure):
            return private
        return await asyncio.to_thread(self._finished, private, job.paid_with(await charge()))

    def _prepared(self, job):
        from party.tasks.step.training import Kept

        with ALONE:
            kept = self._keeps.setdefault(Path(job.result).parent, Kept()) if job.stays else None
            return process.prepared(job, kept)

    def _finished(self, private, job):
        with ALONE:
            return process.finished(private, job, lambda percent: None)


@pytest.fixture
def here(monkeypatch, tmp_path):
    """The launcher of every run of this test, whose home is its own."""
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    with launching(monkeypatch) as found:
        yield found


@contextmanager
def launching(monkeypatch):
    found = Here()

    async def trains(training, job, charge):
        return await found.trained(job, charge)

    train = GrpcLink.train

    async def asks(link, request, heard):
        found.asked.append((link.name, request.operation_id))
        if found.before is not None:
            await asyncio.to_thread(found.before, link.name, request.operation_id)
        return await train(link, request, heard)

    monkeypatch.setattr(GrpcLink, "train", asks)
    monkeypatch.setattr(Training, "_work", trains)
    monkeypatch.setattr(connecting, "find_launcher", lambda name: found)
    yield found
    found.end()


@pytest.fixture(scope="module")
def here_for_all(tmp_path_factory):
    """The same for all tests of a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONCLAVE_HOME", str(tmp_path_factory.mktemp("home")))
        with launching(patch) as found:
            yield found


@pytest.fixture(scope="session")
def opinions(tmp_path_factory):
    """A folder of labelled text in which one word decides: `films.jsonl` of the parties, and two that are public."""
    folder = tmp_path_factory.mktemp("opinions")
    rng = np.random.default_rng(0)

    def rows(count):
        for _ in range(count):
            label = int(rng.integers(2))
            words = [*rng.choice(FILLERS, rng.integers(3, 7)), ("bad", "good")[label]]
            rng.shuffle(words)
            yield {"text": " ".join(words), "second": " ".join(rng.choice(FILLERS, 3)), "mood": str(label)}

    for name, count in (("films", UNITS), ("public", 60), ("others", 160)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(count)))
    return folder


@pytest.fixture(scope="session")
def private_but_for_the_student(opinions, tiny_bert):
    """`private_but_for_the_student(folder)` of a run: all in it is known for a run's own and for its owner alone, and
    nothing that is published tells where on this machine anything lies.
    """
    places = [os.fsencode(path) for path in (opinions, tiny_bert, opinions.parent)]

    def check(folder):
        assert output.strangers(folder) == []
        for path in (folder, *folder.rglob("*")):
            if path.is_relative_to(folder / "student"):
                content = path.read_bytes() if path.is_file() else b""
                assert [place for place in places if place in content] == [], path
            elif not path.is_relative_to(folder / "parties"):
                assert path.stat().st_mode & 0o077 == 0, path

    return check


@pytest.fixture(scope="session")
def classifier_tables(opinions, tiny_bert):
    """`classifier_tables(recipe, ...)`: tables of a plan of four parties; keywords change settings of tables."""

    def makes(recipe="dp_sgd", **changes):
        found = {
            "run": {"name": "demo", "recipe": recipe, "seed": 7},
            "privacy": {"epsilon": 8.0, "delta": 1e-5, "declared_size": UNITS, "noise_multiplier": 1.5},
            "federation": {
                "launch": "ray",
                "retry_seconds": 0.5,
                "shards": {
                    "source": str(opinions / "films.jsonl"),
                    "label": "mood",
                    "split": {"by": "hash", "parties": 4},
                },
            },
            "text": {"labels": ["negative", "positive"], "values": ["0", "1"], "longest": 16},
            "model": {"name": str(tiny_bert)},
            "dp_sgd": {"steps": 4, "batch": 60, "learning_rate": 0.1},
            "evaluation": {"source": str(opinions / "public.jsonl"), "label": "mood"},
        }
        if recipe == "pate":
            queries = {"queries": 20, "teachers_per_party": 5, "epochs": 3}
            found["pate"] = {"source": str(opinions / "public.jsonl")} | queries
        for name, table in changes.items():
            found[name] = found.get(name, {}) | table
        return found

    return makes


@pytest.fixture(scope="session")
def nvdp_tables(classifier_tables, opinions):
    """`nvdp_tables(form, ...)`: tables of a plan of rows, "single", "pairs" or "published", of the same parties."""

    def makes(form="single", privacy=(), **changes):
        pairs, published = form == "pairs", form == "published"
        second = {"second": "second"} if pairs else {}
        tables = classifier_tables("nvdp", model={"pooling": "mean"}, **changes)
        del tables["dp_sgd"], tables["privacy"]["noise_multiplier"]
        tables["privacy"] |= dict(privacy)
        tables["public"] = {"source": str(opinions / "others.jsonl"), "label": "mood"} | second
        tables["samples"] = {"rows": 90} | ({} if published else {"dimensions": 4})
        tables["evaluation"] |= second
        tables["federation"]["shards"] = tables["federation"]["shards"] | second
        if pairs:
            tables["text"] |= {"kind": "pair"}
        if published:
            tables["samples"] |= {"form": "published", "labels": "public"}
            tables["bottleneck"] = {"tokens": 8, "width": 16, "heads": 2}
            for each in ("epsilon", "delta"):
                del tables["privacy"][each]
            tables["privacy"] |= {"guarantee": False}
        return tables

    return makes


@pytest.fixture(scope="session")
def classifier_plan(classifier_tables):
    """The plan of `classifier_tables`."""
    return lambda recipe="dp_sgd", **changes: plan_of(classifier_tables(recipe, **changes))


@pytest.fixture(scope="session")
def public_texts(tmp_path_factory):
    """A public corpus, JSON Lines: half of it talks as the parties do, half of something else; `like` says which."""
    rng = np.random.default_rng(3)
    other = ("bank", "rate", "share", "market", "price", "tax", "trade", "loan", "fund", "stock")
    rows = []
    for number in range(240):
        words = rng.choice(FILLERS if number % 2 else other, rng.integers(4, 8))
        rows.append({"text": " ".join(words), "like": number % 2})
    path = tmp_path_factory.mktemp("public") / "texts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def privdistil_tables(classifier_tables, public_texts):
    """Tables of a plan of PrivDistil among four parties; keywords change settings of tables, `corpus` all of it."""

    def makes(**changes):
        tables = {
            "domain": {"epsilon": 3.0, "texts": 40, "steps": 10, "batch": 60, "clip": 1.0},
            "selection": {"texts": 60, "clusters": 4},
            "distil": {"layers": 1, "passes": 1, "batch": 16, "micro_batch": 16, "longest": 16, "mask": 0.0},
        }
        corpus = changes.pop("corpus", [{"source": str(public_texts)}])
        for name, table in changes.items():
            tables[name] = tables.get(name, {}) | table
        return classifier_tables("privdistil", **tables) | {"corpus": corpus}

    return makes


@pytest.fixture(scope="session")
def privdistil_plan(privdistil_tables):
    """The plan of `privdistil_tables`."""
    return lambda **changes: plan_of(privdistil_tables(**changes))


WAYS = {
    "east": ["the", "ship", "sails", "over", "a", "calm", "sea", "to", "the", "port"],
    "west": ["a", "train", "runs", "through", "the", "old", "town", "at", "night"],
}


@pytest.fixture(scope="session")
def news(tmp_path_factory):
    """The folder of `parties.jsonl` and `public.jsonl`: short texts with a kind, 1 or 2, and a person."""
    folder = tmp_path_factory.mktemp("news")
    rng = np.random.default_rng(0)

    def rows(count):
        for number in range(count):
            kind = int(rng.random() < 0.3)
            words = rng.choice(WAYS[list(WAYS)[kind]], rng.integers(2, 6))
            yield {"text": " ".join(words), "kind": str(kind + 1), "person": f"p{number % 17}"}

    for name, count in (("parties", 120), ("public", 20)):
        lines = [json.dumps(row) + "\n" for row in rows(count)]
        (folder / f"{name}.jsonl").write_text("".join(lines), "utf-8")
    return folder


@pytest.fixture(scope="session")
def distildp_tables(news, tiny_gpt2):
    """`makes(**changes)`: the tables of a plan; a table that is None is left out."""

    def makes(**changes):
        tables = {
            "run": {"name": "words", "recipe": "distildp", "seed": 5},
            "privacy": {
                "epsilon": 8.0, "delta": 1e-5, "unit": "record", "record": "document", "trust": "trusted-aggregator",
                "declared_size": 120,
            },
            "federation": {
                "launch": "ray",
                "shards": {"source": str(news / "parties.jsonl"), "split": {"by": "hash", "parties": 2}},
            },
            "text": {"longest": 24},
            "model": {"name": str(tiny_gpt2), "adapt": "lora-all", "rank": 2, "alpha": 4},
            "codes": {
                "template": "{way}",
                "columns": {"way": {"values": ["east", "west"], "stored": ["1", "2"], "column": "kind"}},
            },
            "floor": {},
            "dp_sgd": {"steps": 2, "batch": 40},
            "generation": {"texts": 40, "batch": 16, "top_k": 0, "top_p": 1.0},
            "distil": {"layers": 1, "passes": 2, "batch": 8, "held_out": 0.1, "top": 16},
            "evaluation": {"source": str(news / "public.jsonl")},
        }  # fmt: skip
        for name, change in changes.items():
            if change is None:
                tables.pop(name)
            else:
                tables[name] = tables.get(name, {}) | change
        return tables

    return makes


@pytest.fixture(scope="session")
def distildp_plan(distildp_tables):
    return lambda **changes: plan_of(distildp_tables(**changes))


class HeuristicPlan(Plan):
    """A plan of a system whose releases may be without a guarantee."""

    UNPROVEN = True


class HeuristicRecipe:
    """What pricing needs to know of a system that asks every party for softened outcomes, for counts, or for both."""

    fewer_cells = finer_grid = ""
    labelled = None

    def __init__(self, plan, releases):
        self.plan, self._releases = plan, releases

    def total_event(self, multiplier):
        return GaussianDpEvent(multiplier)

    def releases(self, multiplier):
        softened = SoftenedTargets(4, 100, "top", 0.05, 2, 1.5, 8.0, 12.0)
        made = {
            "outcomes": lambda: Release("outcomes", softened, 40, softened.columns, charges=40, form=Form.SAID),
            "counts": lambda: Release("counts", CountsMechanism(4.0, 64, multiplier or 1.0, 2), 5, 5),
        }
        return tuple(made[name]() for name in self._releases)


@pytest.fixture(scope="session")
def heuristic():
    """`heuristic(*releases, **privacy)`: a recipe of two parties, by default one that softens and promises nothing."""

    def makes(*releases, federation=None, **privacy):
        named = [{"name": name, "address": "127.0.0.1:7443"} for name in ("north", "south")]
        tables = {
            "run": {"name": "demo", "recipe": "softening", "seed": 7},
            "privacy": privacy or {"guarantee": False},
            "federation": federation or {"launch": "connect", "parties": named},
        }
        return HeuristicRecipe(check_settings(tables, HeuristicPlan, "plan.toml"), releases or ("outcomes",))

    return makes


@pytest.fixture(scope="session")
def swing_tables(news, tiny_gpt2):
    """`makes(**changes)`: the tables of a plan of swing distillation; a table that is None is left out."""

    def makes(**changes):
        tables = {
            "run": {"name": "taught", "recipe": "swing", "seed": 5},
            "privacy": {
                "epsilon": 8.0, "delta": 1e-5, "unit": "record", "record": "document", "trust": "trusted-aggregator",
                "declared_size": 120,
            },
            "federation": {
                "launch": "ray",
                "shards": {"source": str(news / "parties.jsonl"), "split": {"by": "hash", "parties": 2}},
            },
            "text": {"longest": 24},
            "model": {"name": str(tiny_gpt2), "adapt": "lora-all", "rank": 2, "alpha": 4},
            "teachers": {"per_party": 2, "epochs": 1, "batch": 16, "learning_rate": 0.01},
            "queries": {"source": str(news / "public.jsonl"), "limit": 12},
            "swing": {"clip": 0.3},
            "distil": {"layers": 1, "passes": 2, "batch": 4, "held_out": 0.2, "top": 8, "mixing": 0.5},
            "student": {"publish": "published"},
            "evaluation": {"source": str(news / "public.jsonl")},
        }  # fmt: skip
        for name, change in changes.items():
            if change is None:
                tables.pop(name)
            else:
                tables[name] = tables.get(name, {}) | change
        return tables

    return makes


@pytest.fixture(scope="session")
def swing_plan(swing_tables):
    return lambda **changes: plan_of(swing_tables(**changes))


@pytest.fixture(scope="session")
def softened_tables(swing_tables):
    """`makes(**changes)`: the tables of a plan in the published form."""

    def makes(**changes):
        tables = swing_tables(
            teachers={"per_party": 1}, swing={"form": "published"}, distil={"mixing": 0.9}, privacy=None
        )  # fmt: skip
        tables["privacy"] = {"guarantee": False, "unit": "record", "record": "document", "declared_size": 120}
        del tables["swing"]["clip"]
        for name, change in changes.items():
            tables[name] = tables.get(name, {}) | change
        return tables

    return makes


@pytest.fixture(scope="session")
def learner_tables(swing_tables, news):
    """`makes(**changes)`: the tables of a plan of three parties, of which the third learns and does not teach."""

    def makes(**changes):
        shards = {"source": str(news / "parties.jsonl"), "split": {"by": "hash", "parties": 3}}
        tables = swing_tables(
            federation={"launch": "ray", "shards": shards},
            queries={"public": True},
            learner={"parties": ["party-3"], "declared_size": 40, "steps": 4, "batch": 10, "learning_rate": 0.01},
        )
        for name, change in changes.items():
            if change is None:
                tables.pop(name)
            else:
                tables[name] = tables.get(name, {}) | change
        return tables

    return makes
