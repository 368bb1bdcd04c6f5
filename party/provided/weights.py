"""A model's provided weights, checked before a model is made of them: finite numbers, in the declared shapes."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from safetensors import SafetensorError, safe_open

from party.errors import TrainingError
from party.provided.documents import parsed, quoted, written, wrong

if TYPE_CHECKING:
    from transformers import PretrainedConfig

WHOLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"

LARGEST: Final = 24
"""The largest size of a weight, as a power of two. Weights of public models are under 2**16; products of larger ones
overflow on some texts.
"""

_AT_ONCE: Final = 1 << 22
_MOST_HEADER: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class _Bits:
    """The memory layout of a number type: its words, the bits of its exponent, and the exponent's highest value."""

    words: str
    shift: int
    mask: int
    most: int


KINDS: Final[dict[str, _Bits]] = {
    "F32": _Bits("<u4", 23, 0xFF, 127 + LARGEST),
    "BF16": _Bits("<u2", 7, 0xFF, 127 + LARGEST),
    "F16": _Bits("<u2", 10, 0x1F, 31),
}
_PLACES: Final = _Bits("<i8", 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Declared:
    """The shape of every tensor, by name, that a configuration gives a model without a head, and the name that this
    model has as part of a larger one.
    """

    prefix: str
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def numbers(self) -> int:
        """The number of numbers in all tensors."""
        return sum(map(math.prod, self.shapes.values()))

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a checkpoint's tensor; None for one that is not part of the model without a head."""
        return self.shapes.get(name.removeprefix(f"{self.prefix}."))


def declared(config: "PretrainedConfig", memory: int) -> Declared:
    """The shapes of a configuration's model, computed without allocating it.

    memory: MiB that a model may take in single precision; 0 for any. Raises `TrainingError` for a larger one, and for a
    configuration of which no model can be made.
    """
    import torch

    from learning.models.library import transformers

    try:
        with torch.device("meta"):
            model = transformers.AutoModel.from_config(  # type: ignore[no-untyped-call]
                config, attn_implementation="eager", trust_remote_code=False
            )
    except Exception as error:  # the library can raise anything for a configuration
        raise wrong("config.json", f"makes no model ({type(error).__name__})") from error
    found = Declared(model.base_model_prefix, {name: tuple(each.shape) for name, each in model.state_dict().items()})
    if memory and 4 * found.numbers > memory * 2**20:
        raise TrainingError(
            f"the model that was provided has {found.numbers:,} numbers, which is more than the {memory:,} MiB that "
            "[limits] memory_mib allows. Use a smaller model."
        )
    return found


def check_weights(files: Mapping[str, Path], expected: Declared) -> None:
    """Read all weights once: they must be finite numbers below 2**`LARGEST`, in the shapes of the configuration.

    files: by name, one file, or several with an index. Tensors that the model without a head does not have, for example
    a head, are allowed if together they are no larger than it. Memory: `_AT_ONCE` numbers. Raises `TrainingError`.
    """
    others = 0
    for name in weights_of(files):
        for tensor, kind, shape, words in _tensors(name, files[name]):
            if kind is _PLACES:
                _check_places(name, tensor, words)
                continue
            own = expected.shape(tensor)
            if own is None:
                others += math.prod(shape)
            elif own != shape:
                raise wrong(name, f"has {quoted(tensor)} of shape {shape}, and config.json says {own}")
            if others > expected.numbers:
                raise wrong(name, "has more that is not the model's than the model has. Save the model alone")
            if not all(_finite(some, kind) for some in words):
                raise wrong(name, f"has numbers in {quoted(tensor)} that are not finite, or of 2**{LARGEST} and more")


def weights_of(files: Mapping[str, Path]) -> Sequence[str]:
    """The names of the files with weights. Raises `TrainingError` where there are none, or an index names others."""
    parts = sorted(name for name in files if name.endswith(".safetensors"))
    if not parts:
        raise TrainingError("the model that was provided has no weights; they come as model.safetensors.")
    if WHOLE in parts and len(parts) > 1:
        raise TrainingError(
            "the model that was provided has its weights in one file and in parts. Provide one of them."
        )
    if WHOLE not in parts and INDEX not in files:
        raise TrainingError(f"the model that was provided has its weights in parts, and no {INDEX} that names them.")
    return parts


def clean_index(content: bytes, parts: Sequence[str]) -> bytes:
    """The index of weights in several files, naming only these files. Raises `TrainingError`."""
    found = parsed(content, INDEX).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(each, str) and each in parts for each in found.values()):
        raise wrong(INDEX, "names files that are none of the model's parts")
    return written({"metadata": {}, "weight_map": found})


def _check_places(name: str, tensor: str, words: "Iterator[np.ndarray[Any, np.dtype[Any]]]") -> None:
    """Check the position numbers, in order, that older models of BERT's kind store among their weights."""
    found = next(words, np.empty(0, np.int64))
    if (
        not tensor.endswith("position_ids")
        or not np.array_equal(found, np.arange(len(found)))
        or next(words, None) is not None
    ):
        raise wrong(name, f"has whole numbers in {quoted(tensor)}; {', '.join(KINDS)} are taken")


def _finite(words: "np.ndarray[Any, np.dtype[Any]]", kind: _Bits) -> bool:
    return not words.size or int(((words >> kind.shift) & kind.mask).max()) < kind.most


def _tensors(
    name: str, path: Path
) -> Iterator[tuple[str, _Bits, tuple[int, ...], Iterator["np.ndarray[Any, np.dtype[Any]]"]]]:
    """Every tensor of a file: its name, number type, shape, and its numbers' bits, a part at a time."""
    try:
        with safe_open(path, framework="numpy"):  # the format, whole: overlaps and gaps among other things
            pass
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > _MOST_HEADER:
                raise ValueError(size)
            header = json.loads(file.read(size))
    except (SafetensorError, ValueError, RecursionError):
        raise wrong(name, "is not in the safetensors format, or was cut short") from None
    for tensor, told in header.items():
        if tensor == "__metadata__":
            continue
        kind = _PLACES if told["dtype"] == "I64" else KINDS.get(told["dtype"])
        if kind is None:
            raise wrong(name, f"has {quoted(tensor)} of {told['dtype']}; {', '.join(KINDS)} are taken")
        begin, end = told["data_offsets"]
        yield tensor, kind, tuple(told["shape"]), _words(path, kind, 8 + size + begin, end - begin)


def _words(path: Path, kind: _Bits, start: int, size: int) -> Iterator["np.ndarray[Any, np.dtype[Any]]"]:
    each = np.dtype(kind.words).itemsize
    for at in range(0, size, each * _AT_ONCE):
        yield np.fromfile(path, kind.words, min(size - at, each * _AT_ONCE) // each, offset=start + at)
