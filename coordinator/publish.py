"""Publishing a student: an ordinary folder that other libraries load, and beside the model what it promises.

The folder is made beside its place and renamed into it, so that nobody ever sees half of one.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator import manifest
from coordinator.errors import RunError
from coordinator.manifest import Seal
from coordinator.measure import Student
from coordinator.report import Statement, markdown

UNKNOWN = "[UNK]"


def check_free(folder: Path) -> None:
    """Raises `RunError` when something stands where the student is to go; called before anything is spent."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} exists already. Choose another place to publish, or move it away.")


def publish(student: Student, statement: Statement, folder: Path, seal: Seal) -> None:
    """Write the student's folder whole and signed, or not at all. Raises `RunError` when it cannot be written.

    It loads in `SentenceTransformer(folder)` as mean word embeddings, and `vectors.txt` in
    `KeyedVectors.load_word2vec_format`; `skipgram.safetensors` holds every parameter for who wants the whole model.
    """
    check_free(folder)
    beside = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.parent.mkdir(parents=True, exist_ok=True)
        _sentence_transformer(student, beside)
        (beside / "vectors.txt").write_text(word2vec(student.vocabulary.words, student.vectors), encoding="utf-8")
        _parameters(student, beside / "skipgram.safetensors")
        (beside / manifest.PRIVACY).write_text(_json(statement.privacy), encoding="utf-8")
        (beside / manifest.CARD).write_text(card(student, statement), encoding="utf-8")
        manifest.write(beside, seal)
        _settle(beside)
        if folder.exists():
            folder.rmdir()
        beside.rename(folder)
        _sync(folder.parent)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise RunError(f"{folder} cannot be written: {error.strerror}. Nothing was published.") from None


def _settle(folder: Path) -> None:
    """Make every file readable for all, whatever library wrote it, and wait until it is on disk."""
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def word2vec(words: tuple[str, ...], vectors: NDArray[np.float32]) -> str:
    """The word2vec text form: a line of counts, then a line a word. Nine digits give back every float32 exactly."""
    lines = [f"{len(words)} {vectors.shape[1]}"]
    lines += [f"{word} {' '.join(f'{value:.9g}' for value in row)}" for word, row in zip(words, vectors, strict=True)]
    return "\n".join(lines) + "\n"


def card(student: Student, statement: Statement) -> str:
    """The model card: what it is, licence, language, how it was measured, and the promise in full."""
    head = {
        "language": statement.plan.student.language,
        "license": statement.plan.student.licence,
        "library_name": "sentence-transformers",
        "pipeline_tag": "feature-extraction",
    }
    front = "\n".join(f"{key}: {value}" for key, value in head.items())
    rows = "\n".join(f"- {word}: {', '.join(near)}" for word, near in student.neighbours.items())
    words, dimension = student.vectors.shape
    return f"""---
{front}
tags: [differential-privacy, word-embeddings]
---

# {statement.plan.run.name}

Embeddings of {words:,} words in {dimension} dimensions, learned from the text of {len(statement.parties)} parties
that did not show it to each other. Made by Conclave, recipe `{statement.plan.run.recipe}`.

```python
from sentence_transformers import SentenceTransformer
from gensim.models import KeyedVectors

SentenceTransformer("this-folder").encode(["a sentence of words that the vocabulary knows"])
KeyedVectors.load_word2vec_format("this-folder/vectors.txt").most_similar("{student.vocabulary.words[0]}")
```

{markdown(statement)}
## Checking it

`coordinator verify this-folder --trust ca.pem`, with the `ca.pem` of the federation's authority, compares every file
with the coordinator's signature, and this promise with what each party signed about its cost.

## Nearest words

{rows}
"""


def _sentence_transformer(student: Student, folder: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.normalizers import Lowercase, Replace, Sequence
    from tokenizers.pre_tokenizers import Split

    from learning.words import WORD

    index = {word: position for position, word in enumerate(student.vocabulary.words)}
    tokenizer = Tokenizer(WordLevel(index | {UNKNOWN: len(index)}, unk_token=UNKNOWN))
    tokenizer.normalizer = Sequence([Lowercase(), Replace("’", "'")])
    tokenizer.pre_tokenizer = Split(Regex(WORD), behavior="removed", invert=True)
    nothing = np.zeros((1, student.vectors.shape[1]), np.float32)
    embedding = StaticEmbedding(tokenizer, embedding_weights=np.vstack([student.vectors, nothing]))
    SentenceTransformer(modules=[embedding], device="cpu").save(str(folder), create_model_card=False)


def _parameters(student: Student, path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(value) for name, value in student.parameters.items()}, path)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
