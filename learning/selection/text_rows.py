"""A row of numbers for every text of a corpus: described once, computed wherever the corpus is read.

A `TextRows` is a small description that can be pickled. `load` loads its model and returns the function that computes
the rows; torch is imported only then. A text's row does not depend on the texts beside it but for rounding.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from learning.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from learning.models.batching import Tokens
    from learning.models.encoders import Pooling

Texts = Sequence[Sequence[str]]
"""Rows of a corpus, each of one text or two."""
Work = Callable[[Texts], NDArray[np.float32]]

AT_ONCE: Final = 8192
"""Tokens in one pass through the model, padding included: these and the model itself bound the memory."""
_EITHER: Final = ("no", "yes")


@dataclass(frozen=True, slots=True)
class TextRows:
    """What to do with each text.

    kind: "embedding", what a classifier's last layer sees of it (`learning.models.features`), [rows, width], so that a
        head trained there fits here; "mean", its tokens' last hidden states, averaged, [rows, width]; "probability", a
        trained classifier's softmax probability of one class, [rows, 1].
    model: a folder, or `learning.models.checkpoints.PACKAGED`; a name on the hub is not taken, so that the digest is of
        what is there.
    longest: tokens of a text at most; the model's own limit where that is fewer.
    reads: which text of a row: "first", "second", or "both" as the model takes a pair.
    pool: for embeddings, as in `learning.models.encoders.classifier`; "mean" is for BERT.
    column: for probabilities, the place of the class.
    """

    kind: Literal["embedding", "mean", "probability"]
    model: str
    longest: int = 64
    reads: Literal["first", "second", "both"] = "first"
    pool: "Pooling" = "mean"
    column: int = 1

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise DataError(f"A text cannot be read for {self.longest} tokens. Give 1 or more.")

    def digest(self) -> str:
        """SHA-256, hex, of this work: its settings, and the model's files by name and content instead of their place.

        Raises `ModelError` like `load`.
        """
        folder = self._folder()
        found = hashlib.sha256(json.dumps({**asdict(self), "model": ""}, sort_keys=True).encode())
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and ".cache" not in path.parts):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            found.update(f"\n{path.relative_to(folder).as_posix()} {content}".encode())
        return found.hexdigest()

    def load(self) -> Work:
        """Load the model; returns what gives float32 [rows, width] for rows of texts, in their order.

        Memory: the model, `AT_ONCE` tokens in it, and what it is given. Raises `ModelError` for a model that cannot be
        had, gives no one vector a text, or has no trained head with that class. The function raises `DataError` for
        rows without the text that it reads.
        """
        self._folder()
        return {"embedding": _embedding, "mean": _mean, "probability": _probability}[self.kind](self)

    def _folder(self) -> Path:
        from learning.models.checkpoints import ModelError, place_of

        folder = Path(place_of(self.model))
        if not folder.is_dir():
            raise ModelError(
                f"The model {self.model} is no folder here. Save it in one, with its tokenizer, first.", code="C206"
            )
        return folder

    def sides(self, rows: Texts) -> tuple[list[str], list[str] | None]:
        """The texts that are read of rows, and those that are second in a pair."""
        try:
            if self.reads == "both":
                return [row[0] for row in rows], [row[1] for row in rows]
            return [row[0 if self.reads == "first" else 1] for row in rows], None
        except IndexError:
            raise DataError(
                f'reads = "{self.reads}" needs a corpus of pairs, and this one has single texts. Use "first".'
            ) from None


def _embedding(work: TextRows) -> Work:
    from learning.models.batching import Tokens
    from learning.models.checkpoints import ModelError
    from learning.models.compute import on_device
    from learning.models.encoders import classifier
    from learning.models.features import features
    from learning.text.labelled import LabelMap

    # Its classes do not matter: the rows are the inputs of the last layer, not its outputs.
    model, tokenizer = classifier(work.model, LabelMap(_EITHER), seed=0, pool=work.pool)
    on_device(model)
    try:
        features(model, [Tokens(np.zeros(2, np.int32), 2)])
    except ValueError:
        raise ModelError(
            f"{work.model} ({model.config.model_type}) classifies every token, and has no one vector for a text. Name "
            "an encoder."
        ) from None
    return _over(work, model, tokenizer, lambda rows: features(model, rows, AT_ONCE))


def _mean(work: TextRows) -> Work:
    import torch

    from learning.models.batching import batches, inputs_of
    from learning.models.compute import device_of, moved, on_device, passing
    from learning.models.device_memory import halved
    from learning.models.encoders import encoder

    model, tokenizer = encoder(work.model)
    model.train(False)
    device = device_of(on_device(model))

    def of(rows: "Sequence[Tokens]") -> NDArray[np.float32]:
        found = np.empty((len(rows), int(model.config.hidden_size)), np.float32)

        def mean(places: NDArray[np.int64]) -> NDArray[np.float32]:
            inputs = moved(inputs_of(model.config, [rows[place] for place in places]), model)
            with torch.inference_mode(), passing(device):
                states = model(**inputs).last_hidden_state.float()
            attended = inputs["attention_mask"][..., None].float()
            return np.asarray(((states * attended).sum(1) / attended.sum(1)).cpu().numpy())

        for places, vectors in halved(batches(rows, AT_ONCE), mean):
            found[places] = vectors
        return found

    return _over(work, model, tokenizer, of)


def _probability(work: TextRows) -> Work:
    from learning.classification.training import predict, probabilities
    from learning.models.checkpoints import ModelError, config_of, load
    from learning.models.compute import on_device

    config = config_of(work.model)
    classes = len(config.id2label or ())
    if classes < 2:
        raise ModelError(f"{work.model} is a regression, which has no probabilities. Give a classifier.")
    if not 0 <= work.column < classes:
        raise ModelError(
            f"{work.model} has {classes} classes, 0 to {classes - 1}, and no {work.column}. Name one of those."
        )
    found = load(work.model, "classifier", config)
    if found.missing:
        raise ModelError(
            f"The checkpoint {work.model} lacks {sorted(found.missing)[0]}, so what it says is not trained. Give a "
            "classifier that is."
        )

    on_device(found.model)

    def of(rows: "Sequence[Tokens]") -> NDArray[np.float32]:
        return probabilities(predict(found.model, rows, AT_ONCE))[:, [work.column]].astype(np.float32)

    return _over(work, found.model, found.tokenizer, of)


def _over(
    work: TextRows, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", answer: Callable[[Any], Any]
) -> Work:
    from learning.models.batching import encode
    from learning.models.encoders import longest

    limit = longest(model, work.longest)

    def rows_of(rows: Texts) -> NDArray[np.float32]:
        first, second = work.sides(rows)
        found: NDArray[np.float32] = answer(encode(tokenizer, first, second, longest=limit).rows)
        return found

    return rows_of
