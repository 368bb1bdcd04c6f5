"""The public data of a classifier's run: the model that every party starts from, and labelled text to measure on."""

import hashlib
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordinator.plan.public_text import source_of
from coordinator.text_models.plan import ClassifierPlan, ModelPlan
from learning.errors import DataError
from learning.text import labelled
from learning.text.labelled import Example, LabelMap, ScoreRange, TextColumns
from learning.text.source import Skipped, read

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from learning.models.adapting import Adapt
    from learning.models.encoders import Pooling


@dataclass(frozen=True, slots=True)
class PublicModel:
    """The public model of a plan.

    model: with its trained parameters marked, with or without adapters. files: the model's files that parties are sent,
    by name; sha256: of each; digest: of all. start: the trained parameters' start values, float32 [parameters].
    longest: maximum length of an example in tokens, no more than the model takes.
    """

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    files: dict[str, Path]
    sha256: dict[str, bytes]
    digest: str
    start: NDArray[np.float32]
    longest: int


@dataclass(frozen=True, slots=True)
class PublicText(PublicModel):
    """The public data of a plan of labelled text.

    heldout: the examples of `[evaluation]`. queries: the public texts of `[pate]`, one or two each.
    """

    heldout: tuple[Example, ...] = ()
    queries: tuple[tuple[str, ...], ...] = ()


def prepare(plan: ClassifierPlan, base: Path, cache: Path, *, asks: bool = False) -> PublicText:
    """Load the public model, mark the parameters that are trained, and read the public text.

    asks: whether there are texts for teachers to vote on.

    Raises `learning.models.checkpoints.ModelError` for a model that cannot be loaded, or whose gradients cannot be
    computed per example; `DataError` naming the source.
    """
    table = plan.model
    public = public_model(plan, placed_model(table.name, base), cache, pool=table.pooling)
    asked = queries(plan, base, cache) if asks else ()
    return replace(public, heldout=heldout(plan, base, cache), queries=asked)


def placed_model(name: str, base: Path) -> str:
    """The name under which a model is loaded: a folder of that name beside the plan takes precedence."""
    return str(base / name) if (base / name).is_dir() else name


def public_model(
    plan: ClassifierPlan,
    name: str,
    cache: Path,
    *,
    pool: "Pooling",
    targets: LabelMap | ScoreRange | None = None,
    how: "Adapt | None" = None,
) -> PublicText:
    """A public model with its trained parameters marked, on the device of `learning.models.compute.running`, without
    text.

    name: a folder, the packaged encoder, or a name on the hub. targets: what it predicts, by default the plan's labels.
    how: which parameters are trained, by default as the plan says. Raises `ModelError` as `prepare` does.
    """
    from learning.models.encoders import classifier

    targets = targets or plan.text.targets
    model, tokenizer = classifier(name, targets, seed=plan.run.seed, pool=pool, cache=cache)
    found = marked(model, tokenizer, plan, cache, wanted=plan.text.longest, how=how)
    return PublicText(*(getattr(found, field.name) for field in fields(found)))


def marked(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    plan: ModelPlan,
    cache: Path,
    *,
    wanted: int,
    how: "Adapt | None" = None,
) -> PublicModel:
    """A public model with the parameters marked that are trained, its files in the cache as parties are sent them.

    wanted: maximum length of an example in tokens. how: which parameters are trained, by default as the plan says.
    Raises `ModelError` as `prepare` does.
    """
    from learning.models.adapting import Lora, adapt, flatten
    from learning.models.checkpoints import save
    from learning.models.compute import on_device
    from learning.models.encoders import longest
    from learning.private_training.per_example import PerExample

    table, folder = plan.model, cache / "models"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        save(model, tokenizer, Path(beside))
        files, digests, digest = _kept(Path(beside), folder)
    adapt(model, how or table.adapt, seed=plan.run.seed, lora=Lora(table.rank, table.alpha))
    on_device(model)
    PerExample(model)
    return PublicModel(
        model=model,
        tokenizer=tokenizer,
        files=files,
        sha256=digests,
        digest=digest,
        start=flatten(model).numpy(),
        longest=longest(model, wanted),
    )


def _kept(made: Path, folder: Path) -> tuple[dict[str, Path], dict[str, bytes], str]:
    """A model's files stored under the digest of all of them, so that the same model is stored once."""
    digests = {}
    for path in sorted(path for path in made.iterdir() if path.is_file()):
        with path.open("rb") as file:
            digests[path.name] = hashlib.file_digest(file, "sha256").digest()
    digest = hashlib.sha256(b"".join(name.encode() + b"\n" + each for name, each in digests.items())).hexdigest()
    place = folder / digest
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=folder) as beside:
            part = shutil.copytree(made, Path(beside) / digest)
            with suppress(OSError):  # another run may have put the same there in the meantime
                part.rename(place)
    return {name: place / name for name in digests}, digests, digest


def queries(plan: ClassifierPlan, base: Path, cache: Path) -> tuple[tuple[str, ...], ...]:
    """The first public texts of `[pate]`. Raises `DataError` where there are fewer than the plan's queries."""
    table = plan.pate
    if table is None:
        return ()
    source = source_of(table, base)
    second = table.second if plan.text.pairs else None
    if second is not None:
        source = replace(source, columns=(*source.columns, second))
    found: list[tuple[str, ...]] = []
    for document in read(source, cache):
        if second is None:
            found.append((document.text,))
        elif document.fields.get(second, "").strip():
            found.append((document.text, document.fields[second]))
        if len(found) == table.queries:
            return tuple(found)
    raise DataError(
        f"[pate] {table.source} has {len(found):,} texts, and queries = {table.queries:,}. Use fewer, or more text.",
        code="C204",
    )


def heldout(plan: ClassifierPlan, base: Path, cache: Path) -> tuple[Example, ...]:
    """The examples of `[evaluation]`. Raises `DataError`."""
    table, text = plan.evaluation, plan.text
    if table is None:
        return ()
    assert table.label is not None
    columns = TextColumns(text.kind, table.text, table.second if text.pairs else None, table.label)
    left_out = Skipped()
    documents = read(labelled.source_of(source_of(table, base), columns), cache, left_out)
    try:
        found = tuple(labelled.examples(documents, columns, plan.held_out_targets, left_out))
    except labelled.LabelError as error:
        raise DataError(f"[evaluation] {table.source}: {error}") from None
    if not found:
        raise DataError(
            f"[evaluation] {table.source} has no example. Name the columns that hold texts and labels.", code="C204"
        )
    if text.kind != "regression" and len({each.target for each in found}) == 1:
        raise DataError(
            f"[evaluation] {table.source} is of one class only, which tells nothing of a classifier. Use text of two "
            "or more.",
            code="C204",
        )
    return found
