"""A party on a real port, and a coordinator's half of the conversation, for the tests of this room."""

import asyncio
import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from coordinator.transport.dialled.way import DialledWay, opened_gate
from learning.embeddings.skipgram import SkipGram
from learning.embeddings.weights import to_bytes
from learning.text.words import Vocabulary
from party.config import PartyConfig, check_config, read_config
from party.dialling.destination import destination
from party.ledger.accounts import open_account, read_account
from party.ledger.protection import of_policy
from party.node.lifecycle import ServedNode, start
from party.node.training import Training
from party.store.runs import private_folder
from party.tasks import process as work
from party.tasks.job import Failure
from protos import PROTOCOL_VERSION
from protos.codec import TensorReader
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.conclave.v1.party_pb2_grpc import PartyStub
from protos.digest import artefact_digest, batch_digest, plan_hash
from protos.identity.authority import Authority, new_authority
from protos.identity.certificates import Role, fingerprint
from protos.identity.credentials import bearer
from protos.identity.identity import Identity, parse_identity, self_made, write_private
from protos.identity.requests import Request, key_pem, new_keys
from protos.identity.tls import channel_credentials, channel_options
from protos.refusal import refusal_of

WORDS = ("apple", "bread", "cheese", "door", "egg", "fish")
TEXTS = ("apple bread cheese", "door egg fish apple", "bread bread cheese door", "fish egg apple apple unknown")


TOKEN = "the tests'"
WIDTH = 4
ANSWERS = plan_pb2.Release(
    name="answers",
    charges=4,
    form=plan_pb2.FORM_SUMMED,
    joint=plan_pb2.JointMechanism(
        votes=plan_pb2.VotesMechanism(classes=3, levels=2, noise=12.0, shares=2, distribution="gaussian"),
        hidden=plan_pb2.HiddenMechanism(
            layers=2, width=WIDTH, clip=1.0, levels=64, noise=24.0, shares=2, distribution="gaussian"
        ),
    ),
)
THRESHOLDED = plan_pb2.Release(
    name="votes",
    charges=1,
    form=plan_pb2.FORM_CLEAR_VOTES,
    thresholded=plan_pb2.ThresholdedVotes(
        classes=3, teachers=4, threshold=2.0, threshold_noise=4.0, noise=6.0, cap=0.5
    ),
)
TRAINING = plan_pb2.Release(
    name="training",
    charges=1,
    form=plan_pb2.FORM_TRAINING,
    gradients=plan_pb2.GradientMechanism(
        clip=1.0, levels=256, noise_multiplier=2.0, sampling_probability=0.5, steps=3, parameters=6 * (2 * WIDTH + 1)
    ),
)
FREE = plan_pb2.Release(
    name="answers",
    charges=1,
    form=plan_pb2.FORM_FREE,
    free=plan_pb2.FreeAnswers(after="training", classes=3, layers=2, width=WIDTH, clip=1.0, levels=2**20),
)


def make_reference(words: int = len(WORDS), width: int = WIDTH) -> SkipGram:
    """A public skip-gram of these tests, any numbers."""
    rng = np.random.default_rng(words + width)
    inputs, outputs = (rng.normal(0, 0.3, (words, width)).astype(np.float32) for _ in range(2))
    return SkipGram(inputs, outputs, rng.normal(0, 1, words).astype(np.float32))


def make_terms(**changes: Any) -> plan_pb2.Terms:
    """Terms that a party of these tests admits, with changes to the top level or to privacy."""
    privacy = {
        "epsilon": 8.0,
        "delta": 1e-6,
        "unit": plan_pb2.UNIT_RECORD,
        "record": plan_pb2.RECORD_DOCUMENT,
        "trust": plan_pb2.TRUST_TRUSTED_AGGREGATOR,
    }
    privacy |= {key: changes.pop(key) for key in list(changes) if key in plan_pb2.Privacy.DESCRIPTOR.fields_by_name}
    counts = {"clip": 4.0, "levels": 64, "noise_multiplier": 1.0, "shares": 2, "distribution": "gaussian"}
    counts |= {key: changes.pop(key) for key in list(changes) if key in counts}
    release = plan_pb2.Release(
        name="counts", charges=1, form=plan_pb2.FORM_SUMMED, counts=plan_pb2.CountsMechanism(**counts)
    )
    whole: dict[str, Any] = {
        "recipe": "dped",
        "seed": 7,
        "parties": ["north", "south"],
        "minimum_parties": 2,
        "privacy": plan_pb2.Privacy(**privacy),
        "releases": [release],
    }
    return plan_pb2.Terms(**whole | changes)


@functools.cache
def south() -> Identity:
    """The other party of these tests, which the party under test has pinned and which every caller shows."""
    return self_made("south", Role.PARTY, None)


def make_tables(where: Path, **changes: Any) -> dict[str, Any]:
    """The tables of a party file, its shard a file of four documents in `where`; south is pinned."""
    shard = where / "notes.jsonl"
    if not shard.exists():
        shard.write_text("".join(f'{{"text": "{text}", "who": "p{n % 2}"}}\n' for n, text in enumerate(TEXTS)))
    policy = {"epsilon": 20.0, "delta": 1e-6, "recipes": ["dped"], "trust": "trusted-aggregator"}
    return {
        "name": "north",
        "listen": "127.0.0.1:0",
        "shard": {"source": "notes.jsonl"} | changes.pop("shard", {}),
        "policy": policy | changes.pop("policy", {}),
        "peers": {"south": south().fingerprint},
        **changes,
    }


def make_config(where: Path, **changes: Any) -> PartyConfig:
    """A checked party file, whose account somebody opened."""
    config = check_config(make_tables(where, **changes), "party.toml")
    open_account_of(config, where)
    return config


def open_account_of(config: PartyConfig, base: Path) -> None:
    """What `party account open` does, where nobody did it yet and it must be done."""
    home, policy = config.home(base), config.policy
    if not policy.simulation and read_account(home / "ledger.sqlite", config.lineage) is None:
        private_folder(home)
        cap = {"epsilon": policy.epsilon, "delta": policy.delta, "simulation": False}
        open_account(home, config.lineage, **cap, protection=of_policy(policy))


def shown(identity: Identity) -> Any:
    """A party as the coordinator shows it to another."""
    return party_pb2.Peer(name=identity.name, certificate=identity.signing.public_bytes(Encoding.DER))


@dataclass
class Caller:
    """The coordinator's half, as plain as it can be: every failed call raises the refusal or the gRPC error."""

    stub: Any
    channel: grpc.aio.Channel
    plan: plan_pb2.Plan
    token: str = ""
    run: party_pb2.RunContext = field(default_factory=party_pb2.RunContext)

    def __post_init__(self) -> None:
        self.run = party_pb2.RunContext(run_id="run-1", plan_hash=plan_hash(self.plan))
        self.vocabulary = Vocabulary(WORDS)

    async def ask(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise refusal_of(error) or error from None

    async def describe(self) -> Any:
        request = party_pb2.DescribeRequest(nonce=b"n" * 32)
        return await self.ask(self.stub.Describe(request, metadata=bearer(self.token)))

    async def attest(self) -> Any:
        request = party_pb2.AttestRequest(run=self.run)
        return await self.ask(self.stub.Attest(request, metadata=bearer(self.token)))

    async def join(self, **changes: Any) -> Any:
        request = {"protocol_version": PROTOCOL_VERSION, "run": self.run, "plan": self.plan}
        request |= {"peers": [shown(south())]} | changes
        return await self.ask(self.stub.Join(party_pb2.JoinRequest(**request), metadata=bearer(self.token)))

    async def leave(self) -> Any:
        return await self.ask(self.stub.Leave(party_pb2.LeaveRequest(run=self.run), metadata=bearer(self.token)))

    async def provide(self, content: bytes | None = None, **changes: Any) -> Any:
        content = self.vocabulary.to_bytes() if content is None else content
        header = {"run": self.run, "kind": "vocabulary", "sha256": artefact_digest(content), "size": len(content)}
        parts = [
            party_pb2.ProvideRequest(header=party_pb2.ArtefactHeader(**header | changes)),
            party_pb2.ProvideRequest(data=content),
        ]
        return await self.ask(self.stub.Provide(iter(parts), metadata=bearer(self.token)))

    async def provide_reference(self, content: bytes | None = None) -> Any:
        content = to_bytes(make_reference()) if content is None else content
        return await self.provide(content, kind="reference")

    async def teach(self, operation: str = "answers-0", *, reference: bytes | None = None, **changes: Any) -> list[Any]:
        settings = {
            "release": "answers",
            "vocabulary_sha256": self.vocabulary.sha256,
            "reference_sha256": artefact_digest(to_bytes(make_reference()) if reference is None else reference),
            "window": 2,
            "teachers": 2,
            "alignment": party_pb2.ALIGNMENT_INITIALISATION,
            "queries": [5, 0, 1, 3],
            "classes": [0, 2, 4],
            "layers": [party_pb2.LAYER_CENTRE, party_pb2.LAYER_CONTEXT],
            "vote": party_pb2.VOTE_PROBABLE,
            "expected_batch": 2.0,
            "learning_rate": 0.1,
        }
        task = party_pb2.TeachersTask(**settings | changes)
        return await self.trained(party_pb2.TrainRequest(run=self.run, operation_id=operation, teachers=task))

    async def train(self, operation: str = "counts-0", *, release: str = "counts", window: int = 2) -> list[Any]:
        task = party_pb2.CooccurrenceTask(release=release, vocabulary_sha256=self.vocabulary.sha256, window=window)
        return await self.trained(party_pb2.TrainRequest(run=self.run, operation_id=operation, cooccurrence=task))

    async def trained(self, request: Any) -> list[Any]:
        async def all_of_it() -> list[Any]:
            return [each async for each in self.stub.Train(request, metadata=bearer(self.token))]

        return await self.ask(all_of_it())

    def batch(self, number: int, start: int, stop: int, release: str = "counts") -> Any:
        rows = party_pb2.RowRange(start=start, stop=stop)
        request = party_pb2.AnswerRequest(run=self.run, release=release, batch=number, rows=rows)
        request.digest = batch_digest(request)
        return request

    async def answer(self, *batches: Any, columns: int = len(WORDS)) -> list[np.ndarray]:
        async def blocks() -> list[np.ndarray]:
            found: list[np.ndarray] = []
            waiting = list(batches)
            reader = None
            async for response in self.stub.Answer(iter(batches), metadata=bearer(self.token)):
                request = waiting[0]
                shape = (request.rows.stop - request.rows.start, columns)
                reader = reader or TensorReader(np.int32, shape)
                assert response.batch == request.batch
                chunk = response.chunk
                header = chunk.header if chunk.HasField("header") else None
                block = reader.put(header, chunk.offset, chunk.data)
                if block is not None:
                    found.append(block)
                    waiting.pop(0)
                    reader = None
            assert not waiting
            return found

        return await self.ask(blocks())

    async def ready(self) -> "Caller":
        """Join, provide, train."""
        await self.join()
        await self.provide()
        await self.train()
        return self

    async def provide_model(self, folder: Path) -> list[Any]:
        """The files of a model's folder, and how a task names them."""
        files = []
        for path in sorted(folder.rglob("*.*")):
            await self.provide(path.read_bytes(), kind="model")
            name = str(path.relative_to(folder))
            files.append(party_pb2.ModelFile(name=name, sha256=artefact_digest(path.read_bytes())))
        return files

    async def step(self, number: int, model: Any, vector: np.ndarray, attempt: int = 0, **changes: Any) -> list[Any]:
        """Send the parameters that a step starts from, and have it trained."""
        content = vector.astype("<f4").tobytes()
        await self.provide(content, kind="parameters")
        settings = {"release": f"steps.{number}", "attempt": attempt, "model": model}
        settings |= {"parameters_sha256": artefact_digest(content)}
        operation = changes.pop("operation", f"steps-{number}-{attempt}")
        task = party_pb2.StepTask(**settings | changes)
        return await self.trained(party_pb2.TrainRequest(run=self.run, operation_id=operation, step=task))

    async def train_alone(self, model: Any, vector: np.ndarray, operation: str = "weights-0", **changes: Any) -> Any:
        """Send the parameters that a training of this party alone starts from, and have it trained."""
        content = vector.astype("<f4").tobytes()
        await self.provide(content, kind="parameters")
        descent = party_pb2.Descent(
            learning_rate=0.1, optimiser=party_pb2.OPTIMISER_SGD, schedule=party_pb2.FALLING_CONSTANT, momentum=0.9,
            expected_batch=4.0,
        )  # fmt: skip
        settings = {"release": "weights", "model": model, "descent": descent, "objective": party_pb2.OBJECTIVE_LABELS}
        settings |= {"parameters_sha256": artefact_digest(content)}
        task = party_pb2.TextModelTask(**settings | changes)
        return await self.trained(party_pb2.TrainRequest(run=self.run, operation_id=operation, text_model=task))

    async def ready_to_teach(self) -> "Caller":
        """Join, provide what teachers need."""
        await self.join()
        await self.provide()
        await self.provide_reference()
        return self


@dataclass
class Served:
    """What a caller needs to know of a node in another process: what it said when it began."""

    address: str
    metrics_port: int = 0


@functools.cache
def federation() -> Authority:
    """The authority that vouches for the parties and the coordinator of these tests."""
    return new_authority("the tests' federation")


@functools.cache
def coordinator() -> Identity:
    """Who calls nodes in other processes."""
    return issued_to("coordinator.here", Role.COORDINATOR)


def issued_to(name: str, role: Role) -> Identity:
    """An identity that the tests' federation vouches for."""
    bundle, keys = certified(name, role)
    return parse_identity(bundle, keys, role=role)


def certified(name: str, role: Role) -> tuple[bytes, bytes]:
    """Certificates and keys, PEM."""
    transport, signing = new_keys()
    request = Request(name, transport.public_key(), signing.public_key())
    return federation().issue(request, role).pem(), key_pem(transport, signing)


def identified(where: Path, name: str = "north") -> dict[str, str]:
    """The `[identity]` of a party file, its files made in `where`."""
    if not (where / f"{name}.key").exists():
        bundle, keys = certified(name, Role.PARTY)
        (where / f"{name}.pem").write_bytes(bundle)
        write_private(where / f"{name}.key", keys)
    return {
        "certificate": f"{name}.pem",
        "key": f"{name}.key",
        "authority": fingerprint(federation().certificate),
    }


Opener = Callable[..., Awaitable[Caller]]


@pytest.fixture
def coordinating() -> Identity:
    """Who calls nodes in other processes, and nodes that dial."""
    return coordinator()


@pytest.fixture
def dials(request: pytest.FixtureRequest) -> bool:
    """Whether the party of a test dials; it listens unless the test is done for both (`either_way` of a file)."""
    return getattr(request, "param", "listens") == "dials"


@pytest.fixture
async def opened(tmp_path: Path, dials: bool) -> AsyncIterator[Opener]:
    """`await opened(...)`: a caller of a party started for it, or of the party at `node`; everything ends by itself."""
    nodes: list[ServedNode] = []
    channels: list[grpc.aio.Channel] = []
    gates = contextlib.ExitStack()
    way: DialledWay | None = None

    async def opens(
        *, node: Any = None, plan: plan_pb2.Terms | None = None, token: str = TOKEN, **changes: Any
    ) -> Caller:
        nonlocal way
        if dials:
            way = way or gates.enter_context(opened_gate("127.0.0.1:0", ["north"], coordinator()))["north"]
            token = ""
        if node is None and way is not None:
            config = make_config(tmp_path, **{"identity": identified(tmp_path)} | changes)
            node = await start(config, base=tmp_path, dials=destination(way.gate.address, "none"))
            nodes.append(node)
        elif node is None:
            node = await start(make_config(tmp_path, **changes), token=token, base=tmp_path)
            nodes.append(node)
        if isinstance(node, Served) or way is not None:
            at = node.address if way is None else way.address
            assert way is None or await way.missing(10) is None
            channel = grpc.aio.secure_channel(at, channel_credentials(coordinator()), options=channel_options("north"))
        else:
            channel = grpc.aio.insecure_channel(node.address)
        channels.append(channel)
        caller = Caller(PartyStub(channel), channel, plan_pb2.Plan(document="{}", terms=plan or make_terms()), token)
        caller.node = node  # type: ignore[attr-defined]
        caller.way = way  # type: ignore[attr-defined]
        return caller

    yield opens
    for channel in channels:
        await channel.close()
    for node in nodes:
        await node.stop()
    await asyncio.to_thread(gates.close)


@pytest.fixture
def trains_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training in a thread of this process: the same work without two seconds of imports for each test."""

    kept: dict[Path, Any] = {}

    async def here(training: Training, job: work.Job, charge: Callable[[], Awaitable[str]]) -> Failure | None:
        def told(percent: int) -> None:
            training.percent = percent

        held = None
        if job.stays:
            from party.tasks.step.training import Kept

            held = kept.setdefault(Path(job.result).parent, Kept())
        private = await asyncio.to_thread(work.prepared, job, held)
        if isinstance(private, Failure):
            return private
        return await asyncio.to_thread(work.finished, private, job.paid_with(await charge()), told)

    monkeypatch.setattr(Training, "_work", here)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """`installed(name, recipe)`: have a package outside the tree bring a recipe of this name; recipe: in Python."""

    def installs(name: str, recipe: str) -> str:
        site = tmp_path / "site" / name
        described = site / f"somebodys_{name}-1.0.dist-info"
        described.mkdir(parents=True)
        (site / f"somebodys_{name}.py").write_text(f"from party.recipes.recipe import *\n\nRECIPE = {recipe}\n")
        (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: somebodys-{name}\nVersion: 1.0\n")
        (described / "entry_points.txt").write_text(f"[conclave.recipes]\n{name} = somebodys_{name}:RECIPE\n")
        monkeypatch.syspath_prepend(site)
        return name

    return installs


FILMS = (
    ("the film was good", "yes"), ("a great film and a bright plot", "yes"), ("awful slow film", "no"),
    ("we saw a dull story", "no"), ("good actor", "yes"), ("the end was not good", "no"),
    ("bad start bad end", "no"), ("a very fast bright film", "yes"),
)  # fmt: skip
LABELLED = plan_pb2.LabelledText(kind=plan_pb2.TEXT_KIND_SINGLE, labels=["no", "yes"])
CODED = plan_pb2.CodedText(
    template="Is {opinion}", columns=[plan_pb2.CodeColumn(name="opinion", labels=["bad", "good"], values=["no", "yes"])]
)
HEAD = 2 * 32 + 2


@pytest.fixture(scope="session")
def pooled(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sentence encoder: a BERT that says it was trained for the mean of its tokens."""
    folder = tmp_path_factory.mktemp("pooled") / "bert"
    shutil.copytree(tiny_bert, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder


@pytest.fixture
def films(tmp_path: Path) -> Callable[..., list[tuple[str, str]]]:
    """`films()`: a labelled shard of three people in `tmp_path`; what is in it."""

    def writes(rows: Any = FILMS) -> list[tuple[str, str]]:
        lines = [{"text": text, "stars": label, "who": f"p{n % 3}"} for n, (text, label) in enumerate(rows)]
        (tmp_path / "notes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return list(rows)

    return writes


@pytest.fixture
def descent() -> Callable[..., plan_pb2.Release]:
    """Makes a release of gradients of the small models' heads: in steps, or the weights of one party's training."""

    def makes(name: str = "steps", parameters: int = HEAD, *, weights: bool = False, **more: Any) -> plan_pb2.Release:
        settings = {"clip": 1.0, "levels": 400, "noise_multiplier": 1.0, "sampling_probability": 0.5, "steps": 4}
        gradients = plan_pb2.GradientMechanism(**settings | more, parameters=parameters)
        return plan_pb2.Release(
            name=name, charges=1, gradients=gradients, form=plan_pb2.FORM_WEIGHTS if weights else plan_pb2.FORM_STEPPED
        )

    return makes


@pytest.fixture
def learner(
    opened: Opener, descent: Callable[..., plan_pb2.Release], pooled: Path, films: Callable[..., Any], tmp_path: Path
) -> Opener:
    """`await learner(...)`: a caller of a party of labelled text that joined and has the model, `caller.model`.

    recipe: by default one that may have these releases. peers: other parties whose keys this one has pinned.
    """

    async def joins(
        *releases: plan_pb2.Release,
        node: Any = None,
        folder: Path | None = None,
        model: dict[str, Any] | None = None,
        shard: dict[str, Any] | None = None,
        policy: dict[str, Any] | None = None,
        limits: dict[str, Any] | None = None,
        compute: dict[str, Any] | None = None,
        peers: tuple[str, ...] = (),
        **plan: Any,
    ) -> Caller:
        if not (tmp_path / "notes.jsonl").exists():
            films()
        recipe = "pate" if any(each.HasField("joint") for each in releases) else "privdistil"
        settings = {"recipe": recipe, "releases": releases or [descent()], "epsilon": 100.0, "labelled": LABELLED}
        rules = {"simulation": True, "epsilon": 200.0, "recipes": ["dp_sgd", "pate", "privdistil"], "weights": True}
        rules |= {"unit": "user"} if plan.get("unit") == plan_pb2.UNIT_USER else {}
        others = {name: south() if name == "south" else self_made(name, Role.PARTY, None) for name in peers}
        caller = await opened(
            node=node,
            plan=make_terms(**settings | {"insecure_reproducible_noise": True} | plan),
            shard={"label": "stars", "user": "who"} | (shard or {}),
            policy=rules | (policy or {}),
            limits=limits or {},
            compute=compute or {},
            peers={name: other.fingerprint for name, other in others.items()},
        )
        await caller.join(peers=[shown(other) for other in others.values()])
        files = await caller.provide_model(folder or pooled)
        caller.model = party_pb2.TextModel(  # type: ignore[attr-defined]
            **{"files": files, "adapt": party_pb2.ADAPT_HEAD, "longest": 16, "rank": 2, "alpha": 4} | (model or {})
        )
        return caller

    return joins


@pytest.fixture
def speaker(learner: Opener, distildp: str, tiny_gpt2: Path) -> Opener:
    """`await speaker(...)`: as `learner`, of a language model without labels; its codes are in the column of labels."""

    async def joins(*releases: plan_pb2.Release, shard: dict[str, Any] | None = None, **more: Any) -> Caller:
        settings: dict[str, Any] = {"recipe": distildp, "folder": tiny_gpt2, "labelled": None, "coded": CODED}
        settings |= {"epsilon": 1e12, "policy": {"epsilon": 1e15, "recipes": [distildp]} | more.pop("policy", {})}
        model = {"adapt": party_pb2.ADAPT_LORA, "longest": 24} | more.pop("model", {})
        shard = {"label": None, "codes": {"opinion": "stars"}} | (shard or {})
        return await learner(*releases, model=model, shard=shard, **settings | more)

    return joins


@pytest.fixture
def coded() -> Callable[..., plan_pb2.CodedText]:
    """Makes the control codes of these tests, with changes."""

    def makes(**changes: Any) -> plan_pb2.CodedText:
        made = plan_pb2.CodedText.FromString(CODED.SerializeToString())
        for name, value in changes.items():
            made.ClearField(name)  # type: ignore[arg-type]
            made.MergeFrom(plan_pb2.CodedText(**{name: value}))
        return made

    return makes


@pytest.fixture
def terms() -> Callable[..., plan_pb2.Terms]:
    """Makes terms that a party of these tests admits, with changes."""
    return make_terms


@pytest.fixture
def releases() -> Callable[..., list[plan_pb2.Release]]:
    """Copies of releases of teachers' answers by the word for them: joint, thresholded, training, free."""
    known = {"joint": ANSWERS, "thresholded": THRESHOLDED, "training": TRAINING, "free": FREE}

    def copies(*words: str) -> list[plan_pb2.Release]:
        return [plan_pb2.Release.FromString(known[word].SerializeToString()) for word in words]

    return copies


@pytest.fixture
def reference() -> Callable[..., SkipGram]:
    """Makes a public skip-gram of any numbers; by default it fits the releases of these tests."""
    return make_reference


@pytest.fixture
def tables(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Makes the tables of a party file whose shard lies in `tmp_path`."""
    return lambda **changes: make_tables(tmp_path, **changes)


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., PartyConfig]:
    """Makes a checked party file whose shard lies in `tmp_path`."""
    return lambda **changes: make_config(tmp_path, **changes)


@pytest.fixture
def killable(tmp_path: Path, tables: Callable[..., dict[str, Any]], warm_parties: Any) -> Iterator[Callable[..., Any]]:
    """`killable(...)`: `party serve` of the tables under mutual TLS, a process that ends with the test; its node.

    command: of another Python than the one that is forked. dying: where it dies, as `tests/faults/dying.py` is told.
    """
    processes: list[Any] = []

    def starts(
        command: tuple[str, ...] = (), log: Any = subprocess.DEVNULL, dying: tuple[str, ...] = (), **changes: Any
    ) -> tuple[Any, Served]:
        path = tmp_path / "party.toml"
        lines = []
        for key, value in ({"identity": identified(tmp_path)} | tables(**changes)).items():
            if isinstance(value, dict):
                inner = ", ".join(f"{name} = {json.dumps(each)}" for name, each in value.items())
                lines.append(f"{key} = {{ {inner} }}")
            else:
                lines.append(f"{key} = {json.dumps(value)}")
        path.write_text("\n".join(lines))
        open_account_of(read_config(path), tmp_path)
        if command:
            process = subprocess.Popen(
                [sys.executable, *command, str(path)], stdout=subprocess.PIPE, stderr=log, text=True
            )
        else:
            serve = ["serve", "--json", "--config", str(path)]
            with (tmp_path / "party.log").open("a") as said:
                process = warm_parties.start(
                    serve, cwd=Path.cwd(), environment=dict(os.environ), stderr=said, dying=dying
                )
        processes.append(process)
        said = json.loads(process.stdout.readline())
        return process, Served(said["address"], said.get("metrics_port", 0))

    yield starts
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
