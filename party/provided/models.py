"""A model's folder made from provided files: all are rewritten, except the weights, which are checked."""

import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from party.errors import TrainingError
from party.provided.documents import parsed, wrong
from party.provided.settings import clean_config, clean_pooling, tokens_of
from party.provided.tokenizers import clean_settings, clean_tokenizer
from party.provided.weights import INDEX, check_weights, clean_index, declared, weights_of
from party.store.runs import private_folder, write_whole

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_POOLING: Final = "1_Pooling/config.json"


def put_tokenizer_together(files: Mapping[str, str], folder: Path) -> None:
    """Write a folder with what a model reads text by, its configuration and tokenizer; as `put_together`."""
    _put(files, folder, lambda own, beside: _written(_reading(own), beside))


def put_together(files: Mapping[str, str], folder: Path, memory: int = 0) -> None:
    """Write the model's folder, with every file checked and rewritten. Idempotent.

    Of the files that a model may have, only tokenizer.json defines how texts become tokens. Other forms, for example
    `vocab.txt` or a SentencePiece model, are left out, since nothing here could check them on every text. files: by
    name, the path of each provided file. memory: MiB that the model may take; 0 for any. Raises `TrainingError` for a
    file that is not accepted; its message depends on the files alone.
    """
    _put(files, folder, lambda own, beside: _write(own, beside, memory))


def _put(files: Mapping[str, str], folder: Path, write: Callable[[Mapping[str, Path], Path], None]) -> None:
    """Make a folder by `write`, completely or not at all."""
    if folder.exists():
        return
    private_folder(folder.parent)
    beside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    private_folder(beside)
    try:
        write({name: Path(path) for name, path in files.items()}, beside)
        try:
            beside.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _write(files: Mapping[str, Path], folder: Path, memory: int) -> None:
    made = _reading(files)
    config = _config(made["config.json"])
    if _POOLING in files:
        made[_POOLING] = clean_pooling(files[_POOLING].read_bytes())
    weights = weights_of(files)
    if INDEX in files and len(weights) > 1:
        made[INDEX] = clean_index(files[INDEX].read_bytes(), weights)
    check_weights(files, declared(config, memory))
    _written(made, folder)
    for name in weights:
        os.link(files[name], folder / name)


def _reading(files: Mapping[str, Path]) -> dict[str, bytes]:
    """The checked and rewritten files that say how a model reads text, by name."""
    settings = clean_config(files["config.json"].read_bytes())
    if "tokenizer.json" not in files:
        raise TrainingError("the model that was provided has no tokenizer.json. Save it with a current transformers.")
    tokenizer = clean_tokenizer(files["tokenizer.json"].read_bytes(), tokens_of(_config(settings)))
    named = [files[name].read_bytes() if name in files else None for name in _NAMES]
    return {
        "config.json": settings,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": clean_settings(tokenizer, *named),
    }


def _written(made: Mapping[str, bytes], folder: Path) -> None:
    for name, content in made.items():
        place = folder / name
        private_folder(place.parent)
        write_whole(place, content)


_NAMES: Final = ("tokenizer_config.json", "special_tokens_map.json")


def _config(content: bytes) -> "PretrainedConfig":
    from transformers import CONFIG_MAPPING

    given = parsed(content, "config.json")
    try:
        found: PretrainedConfig = CONFIG_MAPPING[given["model_type"]].from_dict(given)
    except Exception as error:  # the library can raise anything for a configuration
        raise wrong("config.json", f"makes no model ({type(error).__name__})") from error
    return found
