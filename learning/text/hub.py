"""A dataset of the Hugging Face hub as a table of text: what the datasets library does.

What comes from the hub is cached, in a folder that nobody else may enter.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from learning.errors import DataError
from learning.text.files import ENDINGS
from learning.text.table import Row, Table, first_line

HUB_TIMEOUT = 10.0
"""Seconds to wait for the hub's first answer before only the cache is tried."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
"""The form of a name on the hub, of a dataset or of a model."""


def is_hub_name(name: str) -> bool:
    """Whether a name could be that of a dataset or model on the hub: it is no path and has no file's ending."""
    return Path(name).suffix not in ENDINGS and HUB_NAME.fullmatch(name) is not None


def dataset(
    name: str, config: str | None, split: str, wanted: Sequence[str], cache: Path, *, stream: bool, lenient: bool
) -> Iterator[Table]:
    """The one table of a split of a dataset. wanted: columns to read, of those that there are.

    cache: folder for what the hub sends; stream: not to store it there. Raises `DataError`, at the first table asked
    for: a hub that does not give the dataset, offline included.
    """
    import datasets
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    folder = private_folder(cache)
    # The hub's error inherits from its HTTP library, which differs between versions.
    problems = (
        OSError,
        ValueError,
        KeyError,
        RuntimeError,
        datasets.exceptions.DatasetsError,
        *HfHubHTTPError.__bases__,
    )
    reason = silence_of(constants.ENDPOINT) if not constants.HF_HUB_OFFLINE else "HF_HUB_OFFLINE is set"
    with (
        held(constants, "HF_HUB_CACHE", str(folder / "hub")),
        held(constants, "HF_HUB_OFFLINE", reason is not None),
        held(datasets.config, "HF_HUB_OFFLINE", reason is not None),
        _quiet(datasets),
    ):
        try:
            found = datasets.load_dataset(name, config, split=split, streaming=stream, cache_dir=str(folder))
            columns = tuple(found.column_names or (() if lenient else next(iter(found.take(1)), {})))
            chosen = found.select_columns([c for c in wanted if c in columns]) if columns else found
            rows = _wrapped(chosen, name, problems)
        except problems as error:
            why = reason or first_line(error)
            raise DataError(
                f"{name} is no file here, and the hub gave no such dataset: {why}. "
                "Give an existing path, or check the name, split and configuration.",
                code="C201",
            ) from error
    yield Table(name, columns, rows)


def _wrapped(rows: Iterable[Row], name: str, problems: tuple[type[Exception], ...]) -> Iterator[Row]:
    try:
        yield from rows
    except problems as error:
        raise DataError(f"{name} broke off while it was read: {first_line(error)}.") from error


def silence_of(endpoint: str) -> str | None:
    """Why the hub does not answer, or None if it does. Asks once: `load_dataset` retries for half a minute."""
    try:
        with urlopen(Request(endpoint, method="HEAD"), timeout=HUB_TIMEOUT):
            return None
    except HTTPError:
        return None
    except (OSError, ValueError) as error:
        return f"{endpoint} cannot be reached ({getattr(error, 'reason', None) or error}), and no copy is cached"


@contextmanager
def held(module: Any, name: str, value: object) -> Iterator[None]:
    """A context in which a library's setting, a variable of its module, has another value. Not for threads."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Without the library's progress bars and warnings: what matters becomes a `DataError`."""
    shown, level = not datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if shown:
            datasets.enable_progress_bars()


def private_folder(cache: Path) -> Path:
    """Make the folder for cached text under `cache`, mode 0700, and return it. Raises `DataError` where it cannot."""
    folder = cache / "text"
    try:
        for path in (cache, folder):
            if not path.exists():
                path.mkdir(mode=0o700, parents=True)
        folder.chmod(0o700)
    except OSError as error:
        raise DataError(f"{folder} cannot be made a private folder: {error.strerror or error}.") from error
    return folder
