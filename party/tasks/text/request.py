"""The checks that all tasks of a text model share: its model, the text it learns from, its training settings."""

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

from party.admission.codes import codes_of
from party.admission.labels import columns_of, targets_of
from party.admission.pairs import answers_in
from party.shard.public_texts import listed
from party.store.artefacts import parameters
from party.tasks.task import Given, there, wrong
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.refusal import Reason, Refusal

MODEL_FILES: Final = frozenset(
    {
        "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json",
        "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json",
        "merges.txt", "spiece.model", "sentencepiece.bpe.model", "1_Pooling/config.json",
    }
)  # fmt: skip
"""The files that a model's folder may hold: numbers, words and settings, nothing that is or could be code."""
MOST_FILES: Final = 64
MOST_RANK: Final = 4096
LONGEST: Final = 1 << 20
MOST_EPOCHS: Final = 1000

Value = TypeVar("Value")

TOKENIZER_FILES: Final = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_PART: Final = re.compile(r"model-[0-9]{5}-of-[0-9]{5}\.safetensors", re.ASCII)
_ADAPTS: Final[Mapping[int, Literal["head", "lora", "lora-all", "full"]]] = {
    party_pb2.ADAPT_HEAD: "head",
    party_pb2.ADAPT_LORA: "lora",
    party_pb2.ADAPT_LORA_ALL: "lora-all",
    party_pb2.ADAPT_FULL: "full",
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


@dataclass(frozen=True, slots=True)
class TextModel:
    """A checked `party_pb2.TextModel`: the provided model, and which of its parameters are trained.

    files: by name, the path of each provided file; folder: where they lie together under their names when the model is
    loaded. seed: for parameters that the model does not contain.
    """

    files: dict[str, str]
    folder: str
    adapt: Literal["head", "lora", "lora-all", "full"]
    rank: int
    alpha: int
    longest: int
    seed: int


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The files of a checked `party_pb2.TextModel` that say how it reads text, none of its weights.

    files, folder, longest: as of `TextModel`.
    """

    files: dict[str, str]
    folder: str
    longest: int


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a text model learns, and from which text.

    labelled: the plan's message in hexadecimal, empty where only text is read. texts: path of the public texts that a
    domain classifier is trained against. second: the column of second texts, which a domain classifier of pairs reads
    beside the first; empty otherwise. coded: the plan's control codes, in hexadecimal, for a language model; empty
    where it has none. tilt: path of the numbers that are added to a language model's logits; empty for none.
    """

    objective: Literal["labels", "domain", "language"] = "labels"
    labelled: str = ""
    texts: str = ""
    second: str = ""
    coded: str = ""
    tilt: str = ""


@dataclass(frozen=True, slots=True)
class Paired:
    """The answers to inputs that a language model learns. second: the column of answers. separator, answer: as of
    `learning.models.pairs.PairForm`.
    """

    second: str
    separator: str
    answer: int


@dataclass(frozen=True, slots=True)
class Descent:
    """A checked `party_pb2.Descent`. expected_batch: for private training; epochs, batch: for training without
    noise.
    """

    learning_rate: float
    optimiser: Literal["adamw", "sgd"]
    schedule: Literal["constant", "linear", "cosine"]
    warm_up: float
    momentum: float
    decay: float
    expected_batch: float
    epochs: int
    batch: int


class OnModel(Protocol):
    """Work on a text model: the model, and what it learns from."""

    @property
    def model(self) -> TextModel: ...

    @property
    def lesson(self) -> Lesson: ...


def model_of(message: party_pb2.TextModel, given: Given) -> TextModel:
    """Check the model. Raises `Refusal`: REQUEST for a file that no model has and for invalid numbers, ARTEFACT."""
    files, folder = _files(message, given)
    adapt = named(_ADAPTS, message.adapt, "what is trained of the model")
    rank, alpha, longest = message.rank, message.alpha, message.longest
    if adapt in ("lora", "lora-all") and not (1 <= rank <= MOST_RANK and 1 <= alpha <= MOST_RANK):
        raise wrong(f"adapters of rank {rank} and alpha {alpha} make no sense; use 1 to {MOST_RANK:,}.")
    _check_longest(longest)
    return TextModel(
        files=files, folder=folder, adapt=adapt, rank=rank, alpha=alpha, longest=longest, seed=given.run.terms.seed
    )


def tokenizer_of(message: party_pb2.TextModel, given: Given) -> TokenizerFiles:
    """Check what a model reads text by; neither its weights nor what is trained of it are looked at. Raises as
    `model_of`.
    """
    files, folder = _files(message, given, only=TOKENIZER_FILES)
    _check_longest(message.longest)
    return TokenizerFiles(files, folder, message.longest)


def labelled_of(given: Given, kind: str) -> str:
    """The plan's labelled text, in hexadecimal. Raises `Refusal`: REQUEST where it has none, and as `columns_of`."""
    terms = given.run.terms
    if not terms.HasField("labelled"):
        raise wrong(f"the plan declares no labelled text, and {kind} learns from labels.")
    columns_of(terms.labelled, given.config.shard)
    targets_of(terms.labelled, given.config.shard)
    return terms.labelled.SerializeToString().hex()


def spoken_of(given: Given, tilt_sha256: bytes) -> Lesson:
    """What a language model learns: the plan's control codes, if it has any, and the tilt, if one is named.

    Raises `Refusal`: REQUEST where a record is no text, ARTEFACT for a tilt that never came, and as `codes_of`.
    """
    terms = given.run.terms
    if terms.privacy.record == plan_pb2.RECORD_PAIR:
        raise wrong('a text model learns from texts, and a record is a pair of words; plan with record = "document".')
    tilt = str(given.provided("tilt", tilt_sha256)) if tilt_sha256 else ""
    return Lesson("language", coded=coded_of(given), tilt=tilt)


def paired_of(given: Given, longest: int) -> Paired | None:
    """The plan's pairs; None where a model learns single texts. longest: tokens of a pair.

    Raises `Refusal`: REQUEST for a pair without room for its input, and as `answers_in`.
    """
    terms = given.run.terms
    if not terms.HasField("paired"):
        return None
    if terms.paired.answer >= longest:
        raise wrong(f"pairs of {longest:,} tokens leave no input beside an answer of {terms.paired.answer:,}.")
    return Paired(answers_in(given.config.shard), terms.paired.separator, terms.paired.answer)


def coded_of(given: Given) -> str:
    """The plan's control codes, in hexadecimal; empty where it has none. Raises `Refusal` as `codes_of`."""
    terms = given.run.terms
    if not terms.HasField("coded"):
        return ""
    codes_of(terms.coded, given.config.shard)
    return terms.coded.SerializeToString().hex()


def parameters_of(given: Given, sha256: bytes) -> str:
    """The path of the parameters that a training starts from. Raises `Refusal` (ARTEFACT) when they never came."""
    return str(there(parameters(given.run.folder, sha256), "parameters", sha256))


def descent_of(message: party_pb2.Descent) -> Descent:
    """Check the training settings. Raises `Refusal` (REQUEST) for an invalid number."""
    for name in ("learning_rate", "warm_up", "momentum", "decay"):
        value = getattr(message, name)
        if not 0 <= value < math.inf or (name == "learning_rate" and not value):
            raise wrong(f"{name} = {value:g} makes no sense; it is finite and not below 0.")
    if message.warm_up >= 1:
        raise wrong(f"warm_up = {message.warm_up:g} is no share of the steps; use 0 to under 1.")
    if message.epochs > MOST_EPOCHS:
        raise wrong(f"{message.epochs:,} epochs would keep this party for ever; use {MOST_EPOCHS:,} at most.")
    return Descent(
        learning_rate=message.learning_rate,
        optimiser=named(_OPTIMISERS, message.optimiser, "an optimiser"),
        schedule=named(_SCHEDULES, message.schedule, "a schedule"),
        warm_up=message.warm_up,
        momentum=message.momentum,
        decay=message.decay,
        expected_batch=message.expected_batch,
        epochs=message.epochs,
        batch=message.batch,
    )


def check_parameters(path: str, training: plan_pb2.Release) -> None:
    """Raises `Refusal` (ARTEFACT) where the number of parameters differs from that of a release of gradients.
    Blocks.
    """
    bounded = training.gradients.parameters
    numbers, rest = divmod(Path(path).stat().st_size, 4)
    if rest or numbers != bounded:
        raise Refusal(
            Reason.ARTEFACT,
            f"the parameters that were provided are {numbers:,} numbers, and the plan's terms bound {bounded:,}.",
        )


def texts_in(path: str) -> list[Any]:
    """The provided JSON list. Blocks. Raises `Refusal` (ARTEFACT) for an invalid one."""
    texts = listed(Path(path))
    if not texts:
        raise Refusal(Reason.ARTEFACT, "the texts that were provided are no JSON list.")
    return texts


def named(known: Mapping[int, Value], given: int, what: str) -> Value:
    """The name of an enumeration's number. Raises `Refusal` (REQUEST) for an unknown one."""
    if given not in known:
        raise wrong(f"{what} is not said, or is one that this party does not know.")
    return known[given]


def _check_longest(longest: int) -> None:
    if not 2 <= longest <= LONGEST:
        raise wrong(f"examples of {longest} tokens make no sense; use 2 to {LONGEST:,}.")


def _files(model: party_pb2.TextModel, given: Given, only: Collection[str] | None = None) -> tuple[dict[str, str], str]:
    """The path of each of a model's files, by its name, and the folder where they lie together when it is loaded.

    only: the names of those that are wanted; by default all.
    """
    names = [file.name for file in model.files]
    odd = next((name for name in names if name not in MODEL_FILES and not _PART.fullmatch(name)), None)
    if odd is not None:
        raise wrong(f"{odd[:64]!r} is no file of a model that this party takes; it takes weights as model.safetensors.")
    if len(set(names)) != len(names) or len(names) > MOST_FILES:
        raise wrong(f"a model has {MOST_FILES} files at most, and each once.")
    if "config.json" not in names:
        raise wrong("the model has no config.json.")
    wanted = [file for file in model.files if only is None or file.name in only]
    files = {file.name: given.provided("model", file.sha256) for file in wanted}
    together = json.dumps({name: path.name for name, path in sorted(files.items())})
    folder = given.run.folder / "models" / hashlib.sha256(together.encode()).hexdigest()[:32]
    return {name: str(path) for name, path in files.items()}, str(folder)
