"""Small runs of every recipe with noise from the plan's seed, and what goes over the wire meanwhile.

All that this folder takes of the product is imported here: `coordinator.api`, `plan_of`, the command line for `init`,
and what tests/coordinator/conftest.py gives, by its path.
"""

import hashlib
import importlib.util
import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.json_format import MessageToDict

from coordinator import api
from coordinator.console.command import main
from coordinator.systems import registry
from coordinator.systems.registry import plan_of

ROOT = Path(__file__).parents[2]
SAME = {"insecure_reproducible_noise": True}
SERVICE = "conclave.v1.Party"


def _of_the_coordinators_tests():
    """`tests/coordinator/conftest.py`, which is no package."""
    spec = importlib.util.spec_from_file_location("golden_coordinator", ROOT / "tests/coordinator/conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_beside = _of_the_coordinators_tests()
here, opinions, public_texts = _beside.here, _beside.opinions, _beside.public_texts
classifier_tables, privdistil_tables = _beside.classifier_tables, _beside.privdistil_tables
news, distildp_tables, swing_tables = _beside.news, _beside.distildp_tables, _beside.swing_tables
nvdp_tables = _beside.nvdp_tables


@pytest.fixture(autouse=True)
def one_thread():
    """What is learned depends, in its last bits, on how many threads add it up."""
    import torch
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def letters(tmp_path_factory):
    """A folder with `letters.jsonl`, of twelve senders, and `public.jsonl`, in the same made-up words."""
    folder = tmp_path_factory.mktemp("letters")
    rng = np.random.default_rng(0)
    words = [a + b for a in ("ba", "di", "fo", "gu", "ke", "lo") for b in ("lam", "ner", "pos", "qui", "rit", "sol")]
    weights = 1 / np.arange(1, len(words) + 1)
    for name, count in (("letters", 240), ("public", 60)):
        rows = (
            {"text": " ".join(rng.choice(words, 20, p=weights / weights.sum())), "sender": f"s{number % 12}"}
            for number in range(count)
        )
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="session")
def dped_tables(letters):
    """`dped_tables(signals, privacy, **settings)`: tables of a plan of embeddings among three parties."""

    def makes(*signals, privacy=None, **settings):
        return {
            "run": {"name": "demo", "recipe": "dped", "seed": 7},
            "privacy": {"epsilon": 8.0, "delta": 1e-6, "dropouts": 0} | (privacy or {}),
            "federation": {
                "launch": "ray",
                "shards": {"source": str(letters / "letters.jsonl"), "split": {"by": "sender", "parties": 3}},
            },
            "vocabulary": {"source": str(letters / "public.jsonl"), "size": 30},
            "dped": {"signals": list(signals), "dimension": 8, "teachers_per_party": 2} | settings,
        }

    return makes


@pytest.fixture
def tables(dped_tables, classifier_tables, privdistil_tables, distildp_tables, swing_tables, nvdp_tables):
    """`tables(recipe, *signals, **changes)`: of a small plan, whose noise is from its seed."""

    def makes(recipe, *signals, privacy=None, **changes):
        privacy = SAME | (privacy or {})
        if recipe == "dped":
            return dped_tables(*signals, privacy=privacy, **changes)
        if recipe == "privdistil":
            return privdistil_tables(privacy=privacy, **changes)
        if recipe == "distildp":
            return distildp_tables(privacy=privacy, **changes)
        if recipe == "nvdp":
            return nvdp_tables(*signals, privacy=privacy, **changes)
        if recipe == "swing":
            return (
                _published(swing_tables, privacy, changes)
                if "swing" in changes
                else swing_tables(privacy=privacy, **changes)
            )
        if recipe == "fine_tune":
            privacy = {}
        return classifier_tables(recipe, privacy=privacy, **changes)

    return makes


def _published(swing_tables, privacy, changes):
    """The tables of the published form, which promises nothing and names no clip."""
    found = swing_tables(privacy=privacy, **changes)
    del found["swing"]["clip"]
    for each in ("epsilon", "delta"):
        del found["privacy"][each]
    return found | {"privacy": found["privacy"] | {"guarantee": False}}


@pytest.fixture(scope="session")
def kept_runs():
    """What each plan of a session gave, so that no two tests run the same."""
    return {}


@pytest.fixture
def run(request, tables, kept_runs, wire, tmp_path_factory, monkeypatch):
    """`run(recipe, ...)` a plan of `tables`, once in a session.

    Its `result`; what was `bound`, None without a promise; its `folder`; and what went over the `wire`.
    """

    def runs(recipe, *signals, **changes):
        key = json.dumps([recipe, signals, changes], sort_keys=True)
        if key not in kept_runs:
            kept_runs[key] = runs_once(recipe, *signals, **changes)
        return kept_runs[key]

    def runs_once(recipe, *signals, **changes):
        folder = tmp_path_factory.mktemp(recipe)
        if recipe == "fine_tune":  # no party is asked: a simulation reads their text
            monkeypatch.setenv("CONCLAVE_HOME", str(folder / "home"))
        else:
            request.getfixturevalue("here")
        priced, own = [], api.price_plan

        def keeps(*given):
            priced.append(own(*given))
            return priced[-1]

        monkeypatch.setattr(api, "price_plan", keeps)
        result = api.run(plan_of(tables(recipe, *signals, **changes)), output=folder / "run")
        bound = bind_of(priced[0]) if priced else None
        return SimpleNamespace(result=result, bound=bound, folder=folder / "run", wire=wire())

    return runs


def bind_of(priced):
    """What a plan binds parties to, readable, and what that costs.

    parts: a digest of every part of it, so that a change of one is seen to be the only one.
    """
    plan = MessageToDict(priced.binding, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    plan["document"] = json.loads(plan["document"])
    terms = plan["terms"]
    releases = {f"releases.{each['name']}": each for each in terms["releases"]}
    parts = {"document": plan["document"]} | {key: terms[key] for key in terms.keys() - {"releases"}} | releases
    return {
        "plan": plan,
        "plan_hash": api.plan_hash(priced.binding).hex(),
        "parts": {key: digest(canonical(value)) for key, value in parts.items()},
        "guarantee": asdict(priced.guarantee),
    }


class Queries(list):
    """Texts that are asked, as far as a plan's price depends on them."""

    ids = range(9000)


@pytest.fixture
def priced(tmp_path):
    """`bound(path)`: what the plan in a file binds parties to, from the file alone.

    A stand-in says what a recipe of classifiers has to know of public text and models. A plan whose noise depends on
    public text itself is read and not bound.
    """
    model = SimpleNamespace(start=np.zeros(1000, np.float32))
    public = SimpleNamespace(
        start=model.start,
        text=model,
        domain=model,
        opposed=1000,
        corpus=SimpleNamespace(count=lambda: 10_000),
        trainable=1000,
        tokens=8192,
        queries=Queries([0] * 400),
    )

    def binds(path):
        plan = api.read_plan(path)
        if plan.run.recipe == "dped" and "moments" in plan.dped.signals:
            return {"document": json.loads(plan.document())}
        return bind_of(registry.price_of(plan, None if plan.run.recipe == "dped" else public))

    return binds


@pytest.fixture
def written(tmp_path, capsys):
    """`written(launch, recipe)`: the plan that `coordinator init` writes."""

    def writes(launch, recipe):
        path = tmp_path / "plan.toml"
        assert main(["init", str(path), "--launch", launch, "--recipe", recipe]) == 0
        return path

    return writes


def digest(content):
    return hashlib.sha256(content).hexdigest()[:16]


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


@pytest.fixture
def wire(monkeypatch):
    """`wire()`: what the coordinator sent to each party and got from it, read where gRPC makes bytes of messages.

    A line a message: `Answer < 3f1c0d... 1204` is an answer of 1,204 bytes, whose fields have that digest; `-` stands
    for the size of a message that holds certificates, signatures or the plan. Lines of a party are in order: there is
    one call to it at a time.

    Not in a digest: ids and hashes of the run and the plan (the plan is compared apart), times, nonces, what is signed,
    and what a machine has room for. Of a secure sum the messages are masked and sealed with fresh keys: their sizes
    alone stay. Of a training's progress, which comes as often as time allows, its end alone is there.
    """
    channels = []

    def listened(opens):
        def listens(*given, **more):
            channels.append(_Channel(opens(*given, **more)))
            return channels[-1]

        return listens

    for name in ("secure_channel", "insecure_channel"):
        monkeypatch.setattr(grpc.aio, name, listened(getattr(grpc.aio, name)))
    return lambda: {channel.party: channel.lines for channel in channels}


_FRESH = {
    "run", "plan", "nonce", "clock", "identity", "software_version", "certificate", "needs", "statement", "seconds",
}  # fmt: skip
_UNSIZED = {"Describe", "Join", "Attest"}


class _Channel:
    """A channel that keeps a line of every message. party: as whoever answers names itself."""

    def __init__(self, channel):
        self._channel = channel
        self.party = None
        self.lines = []

    def __getattr__(self, name):
        made = getattr(self._channel, name)
        if name not in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
            return made

        def listens(path, request_serializer=None, response_deserializer=None, **more):
            _, service, verb = path.split("/")
            if service == SERVICE:
                method = descriptor_pool.Default().FindServiceByName(SERVICE).methods_by_name[verb]
                request_serializer = self._sending(verb, method.input_type, request_serializer)
                response_deserializer = self._receiving(verb, method.output_type, response_deserializer)
            return made(path, request_serializer, response_deserializer, **more)

        return listens

    def _sending(self, verb, kind, serialize):
        def sends(message):
            content = serialize(message)
            self._note(f"{verb} >", kind, content)
            return content

        return sends

    def _receiving(self, verb, kind, deserialize):
        def receives(content):
            self._note(f"{verb} <", kind, content)
            return deserialize(content)

        return receives

    def _note(self, what, kind, content):
        message = message_factory.GetMessageClass(kind).FromString(content)
        fields = MessageToDict(message, preserving_proto_field_name=True)
        verb = what.partition(" ")[0]
        if what == "Describe <":
            self.party = fields["name"]
        if what == "Train <" and not fields.get("finished"):
            return
        if what == "Answer >":
            del fields["digest"]  # of the run too
        sealed = verb == "SecureSum" and fields.pop("message", None) is not None
        of = "sealed" if sealed else digest(canonical(_lasting(fields)))
        self.lines.append(f"{what} {of} {'-' if verb in _UNSIZED else len(content)}")


def _lasting(value):
    """Fields without those that differ from run to run."""
    if isinstance(value, dict):
        return {key: _lasting(inner) for key, inner in value.items() if key not in _FRESH}
    return [_lasting(each) for each in value] if isinstance(value, list) else value
