"""Tasks of text models: a step, a training of one party alone, an ensemble; each checked and turned into its job."""

import hashlib
import hmac
import json
import math
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from party.admission.labels import columns_of, targets_of
from party.config import PartyConfig
from party.releasing.mechanisms import is_weights
from party.shard.public_texts import is_text, listed
from party.store.artefacts import Artefacts, parameters
from party.store.keys import KEY_BYTES, insecure_key, slot_key
from party.store.runs import Run
from party.tasks.job import Descent, Job, TextWork, release_of
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.refusal import Reason, Refusal
from protos.steps import is_step

TEXT_TASKS: Final = ("step", "text_model", "ensemble")
MODEL_FILES: Final = frozenset(
    {
        "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json",
        "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json",
        "merges.txt", "spiece.model", "sentencepiece.bpe.model", "1_Pooling/config.json",
    }
)  # fmt: skip
"""What a model's folder may hold: numbers, words and settings; nothing that is code or could be."""
MOST_FILES: Final = 64
MOST_RANK: Final = 4096
LONGEST: Final = 1 << 20
MOST_CLASSIFIERS: Final = 1000

_PART: Final = re.compile(r"model-[0-9]{5}-of-[0-9]{5}\.safetensors", re.ASCII)
_ADAPTS: Final[Mapping[int, Literal["head", "lora", "full"]]] = {
    party_pb2.ADAPT_HEAD: "head",
    party_pb2.ADAPT_LORA: "lora",
    party_pb2.ADAPT_FULL: "full",
}
_OBJECTIVES: Final[Mapping[int, Literal["labels", "domain", "language"]]] = {
    party_pb2.OBJECTIVE_LABELS: "labels",
    party_pb2.OBJECTIVE_DOMAIN: "domain",
    party_pb2.OBJECTIVE_LANGUAGE: "language",
}
_OPTIMISERS: Final[Mapping[int, Literal["adamw", "sgd"]]] = {
    party_pb2.OPTIMISER_ADAMW: "adamw",
    party_pb2.OPTIMISER_SGD: "sgd",
}
_SCHEDULES: Final[Mapping[int, Literal["constant", "linear", "cosine"]]] = {
    party_pb2.FALLING_CONSTANT: "constant",
    party_pb2.FALLING_LINEAR: "linear",
    party_pb2.FALLING_COSINE: "cosine",
}


def check_gives(kind: str, release: plan_pb2.Release) -> None:
    """Raises `Refusal` (REQUEST) for a release that a task of this kind cannot give."""
    match kind:
        case "step":
            gives = is_step(release)
        case "text_model":
            gives = is_weights(release) or release.HasField("free")
        case _:
            gives = release.HasField("joint")
    if not gives:
        raise _wrong(f"release {release.name} is not one that {kind} can give.")


def text_work(
    request: party_pb2.TrainRequest, run: Run, config: PartyConfig, artefacts: Artefacts, home: Path
) -> TextWork:
    """What a request asks to be learned of a text model, with the secrets that it needs of this party.

    The key of a training that is charged before it begins comes from the ledger, later. Raises `Refusal`: ARTEFACT,
    REQUEST, and PLAN or POLICY where the plan's labelled text cannot be had from this shard.
    """
    kind: Literal["step", "text_model", "ensemble"] = request.WhichOneof("task")  # type: ignore[assignment]
    task = getattr(request, kind)
    release = run.release(task.release)
    check_gives(kind, release)
    files = _files(task.model, artefacts)
    adapt = _named(_ADAPTS, task.model.adapt, "what is trained of the model")
    rank, alpha, longest = task.model.rank, task.model.alpha, task.model.longest
    if adapt == "lora" and not (1 <= rank <= MOST_RANK and 1 <= alpha <= MOST_RANK):
        raise _wrong(f"adapters of rank {rank} and alpha {alpha} make no sense; use 1 to {MOST_RANK:,}.")
    if not 2 <= longest <= LONGEST:
        raise _wrong(f"examples of {longest} tokens make no sense; use 2 to {LONGEST:,}.")
    together = json.dumps({name: path.name for name, path in sorted(files.items())})
    made: dict[str, Any] = {
        "kind": kind,
        "files": {name: str(path) for name, path in files.items()},
        "folder": str(run.folder / "models" / hashlib.sha256(together.encode()).hexdigest()[:32]),
        "adapt": adapt,
        "rank": rank,
        "alpha": alpha,
        "longest": longest,
        "seed": run.terms.seed,
    }
    match kind:
        case "step":
            made |= {"labelled": _labelled(run, config, kind), "key": _sample_key(run, config, task).hex()}
            made |= {"parameters": _parameters(run, task.parameters_sha256)}
        case "text_model":
            made |= _alone(task, release, run, config, artefacts)
        case "ensemble":
            made |= _ensemble(task, run, config, artefacts, home)
    return TextWork(**made)


def check_text(job: Job, text: TextWork) -> None:
    """What was provided against the plan's terms, before any training is charged. Blocks: it reads files.

    Raises `Refusal`: ARTEFACT for parameters of another number than the terms bound, and for texts that are none;
    REQUEST for more public texts than the release has charges.
    """
    release = release_of(job.release)
    training = release_of(text.training) if text.training else release
    if training.HasField("gradients"):
        numbers, rest = divmod(Path(text.parameters).stat().st_size, 4)
        if rest or numbers != training.gradients.parameters:
            raise Refusal(
                Reason.ARTEFACT,
                f"the parameters that were provided are {numbers:,} numbers, and the plan's terms bound "
                f"{training.gradients.parameters:,}.",
            )
    if asked := text.texts if text.kind == "ensemble" else text.scored:
        texts = listed(Path(asked))
        if not texts:
            raise Refusal(Reason.ARTEFACT, "the texts that were provided are no JSON list.")
        if text.scored and not all(map(is_text, texts)):
            raise Refusal(Reason.ARTEFACT, "the texts to score are no JSON list of texts; pairs are not scored.")
        if len(texts) > release.charges:
            paid = "has rows" if text.scored else "is paid"
            raise _wrong(f"{len(texts):,} texts are asked, and release {release.name} {paid} for {release.charges:,}.")


def _alone(
    task: party_pb2.TextModelTask, release: plan_pb2.Release, run: Run, config: PartyConfig, artefacts: Artefacts
) -> dict[str, Any]:
    objective = _named(_OBJECTIVES, task.objective, "an objective")
    scored = _scored(task, release, objective, artefacts)
    descent = _descent(task.descent)
    if not 0 < descent.expected_batch < math.inf:
        raise _wrong("private training needs an expected batch, finite and above 0.")
    texts = second = ""
    if objective == "domain":
        texts = str(provided(artefacts, "texts", task.texts_sha256))
        second = _second(run, config)
    if objective != "labels" and run.terms.privacy.record == plan_pb2.RECORD_PAIR:
        raise _wrong('a text model learns from texts, and a record is a pair of words; plan with record = "document".')
    return {
        "labelled": _labelled(run, config, "text_model") if objective == "labels" else "",
        "parameters": _parameters(run, task.parameters_sha256),
        "objective": objective,
        "texts": texts,
        "second": second,
        "training": (run.release(release.free.after) if scored else release).SerializeToString().hex(),
        "scored": scored,
        "descent": descent,
    }


def _second(run: Run, config: PartyConfig) -> str:
    """The column of second texts, where the plan's labelled text is of pairs; else empty.

    PrivDistil trains one classifier for each field of a pair, and each would have to be paid for. Here one classifier
    learns from the texts of both fields: both are examples of their record, clipped together, at the cost of one.
    """
    if not run.terms.HasField("labelled"):
        return ""
    return columns_of(run.terms.labelled, config.shard).second or ""


def _scored(task: party_pb2.TextModelTask, release: plan_pb2.Release, objective: str, artefacts: Artefacts) -> str:
    """Where the texts lie that are to be scored; empty where a model's parameters are what leaves."""
    free = release.HasField("free")
    if objective != "domain" and (task.scored_sha256 or free):
        raise _wrong("texts are scored by a domain classifier, and the request trains another model.")
    if not free:
        if task.scored_sha256:
            raise _wrong(
                f"release {release.name} gives a model's parameters; texts are scored for a release of free answers."
            )
        return ""
    asked = release.free
    if (asked.classes, asked.layers, asked.width, asked.clip) != (0, 1, 1, 1.0):
        raise _wrong(
            f"release {release.name} is of other answers; scores have no classes, 1 layer of width 1, and clip 1."
        )
    return str(provided(artefacts, "texts", task.scored_sha256))


def _ensemble(
    task: party_pb2.EnsembleTask, run: Run, config: PartyConfig, artefacts: Artefacts, home: Path
) -> dict[str, Any]:
    if not 1 <= task.teachers <= MOST_CLASSIFIERS:
        raise _wrong(f"{task.teachers} teachers make no sense; use 1 to {MOST_CLASSIFIERS:,}.")
    descent = _descent(task.descent)
    if not (descent.epochs and descent.batch):
        raise _wrong(f"{descent.epochs} epochs in batches of {descent.batch} train nothing; use 1 or more of each.")
    if run.terms.privacy.insecure_reproducible_noise:
        key = insecure_key(run.terms.seed, config.name, "slots")
    else:
        key = hmac.digest(slot_key(home), b"teachers", "sha256")
    return {
        "labelled": _labelled(run, config, "ensemble"),
        "key": key.hex(),
        "texts": str(provided(artefacts, "texts", task.texts_sha256)),
        "teachers": task.teachers,
        "descent": descent,
    }


def _labelled(run: Run, config: PartyConfig, kind: str) -> str:
    terms = run.terms
    if not terms.HasField("labelled"):
        raise _wrong(f"the plan declares no labelled text, and {kind} learns from labels.")
    columns_of(terms.labelled, config.shard)
    targets_of(terms.labelled, config.shard)
    return terms.labelled.SerializeToString().hex()


def _sample_key(run: Run, config: PartyConfig, task: party_pb2.StepTask) -> bytes:
    """Of one attempt at one step, and drawn anew where its training is begun again."""
    if run.terms.privacy.insecure_reproducible_noise:
        return insecure_key(run.terms.seed, config.name, f"{task.release} sample {task.attempt}")
    return secrets.token_bytes(KEY_BYTES)


def _files(model: party_pb2.TextModel, artefacts: Artefacts) -> dict[str, Path]:
    names = [file.name for file in model.files]
    odd = next((name for name in names if name not in MODEL_FILES and not _PART.fullmatch(name)), None)
    if odd is not None:
        raise _wrong(
            f"{odd[:64]!r} is no file of a model that this party takes; it takes weights as model.safetensors."
        )
    if len(set(names)) != len(names) or len(names) > MOST_FILES:
        raise _wrong(f"a model has {MOST_FILES} files at most, and each once.")
    if "config.json" not in names:
        raise _wrong("the model has no config.json.")
    return {file.name: provided(artefacts, "model", file.sha256) for file in model.files}


def _descent(message: party_pb2.Descent) -> Descent:
    for name in ("learning_rate", "warm_up", "momentum", "decay"):
        value = getattr(message, name)
        if not 0 <= value < math.inf or (name == "learning_rate" and not value):
            raise _wrong(f"{name} = {value:g} makes no sense; it is finite and not below 0.")
    if message.warm_up >= 1:
        raise _wrong(f"warm_up = {message.warm_up:g} is no share of the steps; use 0 to under 1.")
    return Descent(
        learning_rate=message.learning_rate,
        optimiser=_named(_OPTIMISERS, message.optimiser, "an optimiser"),
        schedule=_named(_SCHEDULES, message.schedule, "a schedule"),
        warm_up=message.warm_up,
        momentum=message.momentum,
        decay=message.decay,
        expected_batch=message.expected_batch,
        epochs=message.epochs,
        batch=message.batch,
    )


def provided(artefacts: Artefacts, kind: str, sha256: bytes) -> Path:
    """Where an artefact is. Raises `Refusal` (ARTEFACT) when it never came."""
    return _there(artefacts.path(sha256), kind, sha256)


def _parameters(run: Run, sha256: bytes) -> str:
    return str(_there(parameters(run.folder, sha256), "parameters", sha256))


def _there(path: Path, kind: str, sha256: bytes) -> Path:
    if len(sha256) != hashlib.sha256().digest_size or not path.exists():
        were, them = ("were", "them") if kind.endswith("s") else ("was", "it")
        raise Refusal(Reason.ARTEFACT, f"the {kind} {were} never provided; send {them} first.")
    return path


def _named(known: Mapping[int, Any], given: int, what: str) -> Any:
    if given not in known:
        raise _wrong(f"{what} is not said, or is one that this party does not know.")
    return known[given]


def _wrong(what: str) -> Refusal:
    return Refusal(Reason.REQUEST, what)
