"""A student of fewer transformer layers than its teacher, begun from the teacher's own weights.

As DistilBERT's (Sanh et al. 2019) and PrivDistil's (section 3.4): the teacher's architecture, as wide, with every other
layer, without token types and without the pooler. It stays an ordinary model of the teacher's family that the standard
library loads:

- the pooler is left out where the class can do without one. A classifier that is made from the student begins a new
  one (`learning.models.encoders.classifier`); `AutoModel` makes one that nothing uses.
- token types are removed in effect, not in form: the row of the first type, which every token of a single text gets,
  is added to the positions, and the table is left, all zero and not trained. A single text comes out as before, and of
  a pair no token knows which side it is on. Who trains the student further may train the table again.
- a head for language stays, tied to the embeddings as the teacher's is.
"""

import copy
import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor, nn

from learning.models import checkpoints, encoders, pooling
from learning.models.checkpoints import ModelError, config_of
from learning.models.compute import on_device
from learning.models.seeded import start as draw_start

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from learning.models.encoders import Pretrained

Start = Literal["spread", "first", "random"]


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of model: where its base model keeps the layers, and whether a token sees only those before it."""

    layers: str
    causal: bool


FAMILIES: Final = {
    "bert": Family("encoder.layer", False),
    "roberta": Family("encoder.layer", False),
    "distilbert": Family("transformer.layer", False),
    "gpt2": Family("h", True),
}
"""Kinds of model that a student can be made of."""

_SPEAKS: Final = ("ForMaskedLM", "LMHeadModel", "ForPreTraining")
_TYPES: Final = "token_type_embeddings.weight"
_PLACES: Final = "position_embeddings.weight"


def family_of(config: "PretrainedConfig") -> Family:
    """The family of a kind of model. Raises `ModelError` for one that no student can be made of."""
    found = FAMILIES.get(config.model_type)
    if found is None:
        raise ModelError(
            f"A student of a {config.model_type} model cannot be made: its layers are not known here. Name a teacher "
            f"of the kinds {', '.join(FAMILIES)}."
        )
    return found


def load_teacher(name: str, *, cache: Path | None = None) -> "Pretrained":
    """A teacher and its tokenizer: with its head for language if its checkpoint was saved with one, else the encoder.

    name: `learning.models.checkpoints.PACKAGED`, a local folder, or a name on the hub. A student's folder loads too.
    Attention is the library's fast one, dropout is off; it is on the device of `learning.models.compute.running`.
    Raises `ModelError`: see `learning.models.checkpoints.load`; a kind that no student can be made of.
    """
    config = config_of(name, cache)
    family = family_of(config)
    if not any(each.endswith(_SPEAKS) for each in getattr(config, "architectures", None) or ()):
        model, tokenizer = encoders.encoder(name, cache=cache)
    elif family.causal:
        model, tokenizer = encoders.language_model(name, cache=cache)
    else:
        found = checkpoints.load(name, "masked language model", config, cache)
        if found.missing:
            raise ModelError(
                f"The checkpoint {name} lacks {len(found.missing):,} parameters of its head for language, "
                f"{min(found.missing)} among them. Save the whole model there, or name another."
            )
        model, tokenizer = found.model, found.tokenizer
    model.set_attn_implementation("sdpa")
    return on_device(model), tokenizer


def copied(student_layers: int, teacher_layers: int) -> tuple[int, ...]:
    """Which layers of the teacher, from 0, a student of "spread" begins with: floor(i N / n), i = 0 .. n - 1.

    6 to 3 gives 0, 2, 4; 12 to 4 gives 0, 3, 6, 9. Raises `ModelError` unless 1 <= n <= N.
    Source: every other layer: DistilBERT (Sanh et al. 2019) and PrivDistil, section 3.4.
    """
    _check_layers(student_layers, teacher_layers)
    return tuple(place * teacher_layers // student_layers for place in range(student_layers))


def pair(student_layers: int, teacher_layers: int) -> tuple[int, ...]:
    """Which hidden state of the teacher each layer of the student is matched with: after its layer floor(i N / n).

    i = 1 .. n, and state 0 is the embeddings': 6 to 3 gives 2, 4,
    6, so that each layer stands for those up to the next that was copied, and the last for the last. Raises
    `ModelError` unless 1 <= n <= N.
    Source: TinyBERT's uniform map of layers (Jiao et al. 2020).
    """
    _check_layers(student_layers, teacher_layers)
    return tuple(place * teacher_layers // student_layers for place in range(1, student_layers + 1))


def make_student(
    teacher: "PreTrainedModel", layers: int, start: Start = "spread", *, seed: int = 0
) -> "PreTrainedModel":
    """A model of the teacher's class with this many layers, float32, on the teacher's device; the teacher is not
    changed.

    start: "spread" copies the layers of `copied`; "first" the first ones; either copies embeddings and head as well.
    "random" takes nothing of the teacher: weights are the seed's, the same on every machine (`learning.models.seeded`).
    Raises `ModelError` for a kind of model that is not known, one with a head that is not for language or with
    adapters, and a number of layers that the teacher does not have.
    Source: DistilBERT (Sanh et al. 2019) and PrivDistil, section 3.4.
    """
    config = teacher.config
    family = family_of(config)
    speaks = teacher.get_output_embeddings() is not None  # type: ignore[no-untyped-call]
    if not speaks and teacher.base_model is not teacher:
        raise ModelError(
            f"The teacher is a {type(teacher).__name__}, whose head is for one task. Give the encoder or language "
            "model that it was made from."
        )
    if pooling.has_mean(config) or any("lora_" in name for name, _ in teacher.named_parameters()):
        raise ModelError(
            "The teacher has layers added to it, adapters or a pooling. Give the model that it was made from."
        )
    depth = config.num_hidden_layers
    _check_layers(layers, depth)

    fewer = copy.deepcopy(config)
    fewer.num_hidden_layers = layers
    kind: Any = type(teacher)
    without = {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(kind).parameters else {}
    with torch.random.fork_rng(devices=[]):
        student: PreTrainedModel = kind(fewer, **without)
    if start != "random":
        _copy(teacher, student, _chosen(start, layers, depth), family)
    _remove_types(student)
    if start == "random":
        draw_start(student, frozenset(name for name, each in student.named_parameters() if each.requires_grad), seed)
    student.train(False)
    nn.Module.to(student, teacher.device)
    return student


def inherit(teacher: "PreTrainedModel", student: "PreTrainedModel", start: Start = "spread") -> None:
    """Copy the teacher's trained parameters into the student's, in place; frozen parameters stay as they are.

    teacher, student: two classifiers with the same head, or adapters of one rank, of which the same is trained
    (`learning.models.adapting`); the student has no more layers. start: which layers its own stand for, as in
    `make_student`; "random" ones as "spread". Raises `ModelError` where the student's parameters are not its teacher's.
    Source: DPKD (Mireshghallah et al. 2022), FT in PrivDistil's table 7.
    """
    own, theirs = (each.config.num_hidden_layers - pooling.has_mean(each.config) for each in (student, teacher))
    try:
        _copy(teacher, student, _chosen(start, own, theirs), family_of(student.config))
    except (KeyError, RuntimeError) as error:
        raise ModelError(
            f"What a {teacher.config.model_type} teacher learned has no place in this {student.config.model_type} "
            f"student: {error}. Make the student from this teacher."
        ) from None


def check_alike(teacher: "PreTrainedModel", student: "PreTrainedModel") -> None:
    """Raise `ModelError` where a student cannot be held against a teacher: another width, vocabulary or direction."""
    ways = {"hidden width": "hidden_size", "vocabulary": "vocab_size"}
    for what, field in ways.items():
        theirs, own = getattr(teacher.config, field), getattr(student.config, field)
        if theirs != own:
            raise ModelError(
                f"The student has a {what} of {own:,}, its teacher one of {theirs:,}. Make the student from this "
                f"teacher, or name one with a {what} of {theirs:,}."
            )
    if family_of(teacher.config).causal != family_of(student.config).causal:
        raise ModelError(
            f"The student is a {student.config.model_type} model, its teacher a {teacher.config.model_type} one: "
            "tokens of only one of them see those that follow. Make the student from this teacher."
        )


def save(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", folder: Path, pool: str | None = None) -> None:
    """Write a student and its tokenizer as `learning.models.checkpoints.save` does, for the standard library's Auto
    classes.

    pool: how its teacher makes one vector of a text ("mean", "first", None if it does not say), which the folder then
    says too (`learning.models.checkpoints.pooling_of`): a classifier made from the student does as one made from the
    teacher. Raises `ModelError` like `learning.models.checkpoints.save`.
    """
    checkpoints.save(model, tokenizer, folder)
    if pool is not None:
        modes = {
            "word_embedding_dimension": model.config.hidden_size,
            "pooling_mode_cls_token": pool == "first",
            "pooling_mode_mean_tokens": pool == "mean",
        }
        place = folder / "1_Pooling/config.json"
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps(modes, indent=2) + "\n", encoding="utf-8")


def _check_layers(student_layers: int, teacher_layers: int) -> None:
    if not 1 <= student_layers <= teacher_layers:
        raise ModelError(
            f"A student of {student_layers:,} layers cannot be made of a teacher of {teacher_layers:,}. Give 1 to "
            f"{teacher_layers:,}."
        )


def _chosen(start: Start, student_layers: int, teacher_layers: int) -> tuple[int, ...]:
    return tuple(range(student_layers)) if start == "first" else copied(student_layers, teacher_layers)


def _copy(teacher: "PreTrainedModel", student: "PreTrainedModel", chosen: tuple[int, ...], family: Family) -> None:
    """Give a student the teacher's parameters under its own names, those of a layer from the one that was chosen.

    What a student does not train stays.
    """
    base = student.base_model_prefix + "." if student.base_model is not student else ""
    within = f"{base}{family.layers}."
    theirs: dict[str, Tensor] = dict(teacher.named_parameters())
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if not parameter.requires_grad:
                continue
            if name.startswith(within):
                place, _, rest = name.removeprefix(within).partition(".")
                name = f"{within}{chosen[int(place)]}.{rest}"
            parameter.copy_(theirs[name])


def _remove_types(student: nn.Module) -> None:
    """Add the first token type to the positions and leave a table of zeros, which is not trained."""
    parameters = dict(student.named_parameters())
    for name, table in parameters.items():
        if name.endswith(_TYPES):
            with torch.no_grad():
                parameters[name.removesuffix(_TYPES) + _PLACES].add_(table[0])
                table.zero_()
            table.requires_grad_(False)
