"""Embeddings as they are published: an ordinary folder that other libraries load.

It loads in `SentenceTransformer(folder)` as mean word embeddings, and `vectors.txt` in
`KeyedVectors.load_word2vec_format`; `skipgram.safetensors` holds every parameter for who wants the whole model.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.publishing.report import Statement, learned_nothing, markdown
from learning.text.words import Vocabulary

UNKNOWN = "[UNK]"


@dataclass(frozen=True, slots=True)
class EmbeddingStudent:
    """What `dped` learned, ready to be published.

    vectors: float32 [words, dimension]. parameters: every array of the model by name. claimed: what the paper's own
    formula gives for the same noise.
    """

    vocabulary: Vocabulary
    vectors: NDArray[np.float32]
    parameters: dict[str, NDArray[np.float32]]
    metrics: dict[str, Any]
    neighbours: dict[str, list[str]]
    claimed: float | None = None

    def write(self, folder: Path) -> None:
        """Write the model's files. Raises OSError."""
        _sentence_transformer(self, folder)
        (folder / "vectors.txt").write_text(word2vec(self.vocabulary.words, self.vectors), encoding="utf-8")
        _parameters(self, folder / "skipgram.safetensors")

    def card(self, statement: Statement) -> str:
        """The model card."""
        return card(self, statement)


def word2vec(words: tuple[str, ...], vectors: NDArray[np.float32]) -> str:
    """The word2vec text form: a line of counts, then a line a word. Nine digits give back every float32 exactly."""
    lines = [f"{len(words)} {vectors.shape[1]}"]
    lines += [f"{word} {' '.join(f'{value:.9g}' for value in row)}" for word, row in zip(words, vectors, strict=True)]
    return "\n".join(lines) + "\n"


def card(student: EmbeddingStudent, statement: Statement) -> str:
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
    nothing = learned_nothing(student.metrics)
    first = "" if nothing is None else f"**{nothing}**\n\n"
    return f"""---
{front}
tags: [differential-privacy, word-embeddings]
---

# {statement.plan.run.name}

{first}Embeddings of {words:,} words in {dimension} dimensions,
learned from the text of {len(statement.parties)} parties that did not show it to each other.
Made by Conclave, recipe `{statement.plan.run.recipe}`.

```python
from sentence_transformers import SentenceTransformer
from gensim.models import KeyedVectors

SentenceTransformer("this-folder").encode(["a sentence of words that the vocabulary knows"])
KeyedVectors.load_word2vec_format("this-folder/vectors.txt").most_similar("{student.vocabulary.words[0]}")
```

{markdown(statement)}
## Checking it

`coordinator verify this-folder --trust ca.pem`, with the `ca.pem` of the federation's authority, compares every file
with the coordinator's signature, and this promise with what the parties signed about its cost.

## Nearest words

{rows}
"""


def _sentence_transformer(student: EmbeddingStudent, folder: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.normalizers import Lowercase, Replace, Sequence
    from tokenizers.pre_tokenizers import Split

    from learning.text.words import WORD

    index = {word: position for position, word in enumerate(student.vocabulary.words)}
    tokenizer = Tokenizer(WordLevel(index | {UNKNOWN: len(index)}, unk_token=UNKNOWN))
    tokenizer.normalizer = Sequence([Lowercase(), Replace("’", "'")])
    tokenizer.pre_tokenizer = Split(Regex(WORD), behavior="removed", invert=True)
    nothing = np.zeros((1, student.vectors.shape[1]), np.float32)
    embedding = StaticEmbedding(tokenizer, embedding_weights=np.vstack([student.vectors, nothing]))
    SentenceTransformer(modules=[embedding], device="cpu").save(str(folder), create_model_card=False)


def _parameters(student: EmbeddingStudent, path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(value) for name, value in student.parameters.items()}, path)
