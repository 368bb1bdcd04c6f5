"""The public data of a PrivDistil run: the corpus, the teacher, the student before distillation, the domain
classifier.
"""

import copy
import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from aggregation.errors import ConclaveError
from coordinator.errors import PlanError
from coordinator.plan.public_text import source_of
from coordinator.systems.privdistil.plan import HALF, CorpusTable, PrivDistilPlan
from coordinator.text_models import public
from coordinator.text_models.public import PublicText, placed_model, public_model
from learning.errors import DataError
from learning.text.corpus import Corpus, indexed
from learning.text.corpus_files import CorpusSource
from learning.text.labelled import LabelMap
from learning.text.reading import UTF_8
from learning.text.source import read

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DOMAINS: Final = LabelMap(("private", "public"))
"""The classes of a domain classifier, in this order: `party.tasks.text.model.DOMAINS`."""
FEWEST: Final = 10
"""The least number of public texts in the training of a party's classifier."""
MOST_SCORED: Final = 1_000_000
"""The most public texts that parties score themselves."""
_CHARACTERS: Final = 24
"""Characters of a public text that are sent for every token that is read: few words are longer."""
_IN_PLACE: Final = (".jsonl", ".ndjson", ".txt")


@dataclass(frozen=True, slots=True)
class PublicCorpus:
    """The public data of a plan.

    text: a classifier on the student before distillation; afterwards, `distilled` gives the one that is trained.
    layers: number of layers of the student and of the teacher. teacher: its folder or name. domain: the model of the
    domain classifiers, None where no text is scored. samples: the public texts for each party's classifier, as JSON
    lists; no text is in two of them. opposed: how many texts each has. embedder: a classifier on the teacher, with
    which the corpus is embedded; None where `domain` is None. cache: for models, embeddings and indexes.
    """

    text: PublicText
    layers: tuple[int, int]
    teacher: str
    domain: PublicText | None
    corpus: Corpus
    samples: Mapping[str, bytes]
    opposed: int
    cache: Path
    embedder: PublicText | None = None

    def distilled(self, plan: PrivDistilPlan, folder: Path) -> PublicText:
        """The classifier on the student in a folder, in place of `text`. Raises `ModelError`."""
        made = public_model(plan, str(folder), self.cache, pool=plan.model.pooling)
        return replace(made, heldout=self.text.heldout)


def prepare(plan: PrivDistilPlan, base: Path, cache: Path) -> PublicCorpus:
    """Index the corpus, load the teacher, make the student, and draw the public texts for the parties' classifiers.

    Raises `DataError` for a corpus that cannot be read, or that is smaller than the plan needs; `ModelError` for models
    that cannot be loaded or do not fit together.
    """
    plan.distil.settings()
    corpus = _corpus(plan, base, cache)
    _enough(plan, corpus)
    _few_enough(plan, corpus)
    teacher = placed_model(plan.model.name, base)
    text, layers = _student(plan, teacher, base, cache)
    text = replace(text, heldout=public.heldout(plan, base, cache))
    domain: PublicText | None = None
    samples: dict[str, bytes] = {}
    opposed, embedder = 0, None
    if plan.selection.scored:
        table = plan.domain
        name = teacher if table.model is None else placed_model(table.model, base)
        domain = public_model(plan, name, cache, pool=plan.model.pooling, targets=DOMAINS, how=table.adapt)
        # The head is not trained yet; all get it from one seed, so that its inputs are computed once.
        unseeded = plan.model_copy(update={"run": plan.run.model_copy(update={"seed": 0})})
        embedder = public_model(unseeded, teacher, cache, pool=plan.model.pooling, targets=DOMAINS)
        samples, opposed = _samples(plan, corpus)
    return PublicCorpus(text, layers, teacher, domain, corpus, samples, opposed, cache, embedder)


def cut(plan: PrivDistilPlan, text: str) -> str:
    """The beginning of a public text, as long as a party's classifier may read."""
    return text[: _CHARACTERS * plan.text.longest]


def first_student(
    plan: PrivDistilPlan, teacher: str, base: Path | None, cache: Path
) -> "tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]":
    """The teacher, the student as it starts, and the tokenizer of both.

    base: the folder against which `[distil] student` is resolved. Raises `ModelError` for models that do not fit
    together.
    """
    from learning.models.compute import on_device
    from learning.models.encoders import encoder
    from learning.transformers.layered_student import check_alike, load_teacher, make_student

    model, tokenizer = load_teacher(teacher, cache=cache)
    settings = plan.distil
    if settings.student is not None:
        name = settings.student if base is None else placed_model(settings.student, base)
        student, _ = load_teacher(name, cache=cache) if _speaks(model) else encoder(name, cache=cache)
        on_device(student)
        check_alike(model, student)
        return model, student, tokenizer
    layers = settings.layers or max(1, model.config.num_hidden_layers // HALF)
    return model, make_student(model, layers, settings.start, seed=plan.run.seed), tokenizer


def _speaks(model: "PreTrainedModel") -> bool:
    return model.get_output_embeddings() is not None  # type: ignore[no-untyped-call]


def _student(plan: PrivDistilPlan, teacher: str, base: Path, cache: Path) -> tuple[PublicText, tuple[int, int]]:
    from learning.models.checkpoints import pooling_of
    from learning.transformers.layered_student import save

    model, student, tokenizer = first_student(plan, teacher, base, cache)
    _try(plan, model, copy.deepcopy(student), tokenizer)
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=cache) as beside:
        save(student, tokenizer, Path(beside), pooling_of(teacher, cache))
        text = public_model(plan, beside, cache, pool=plan.model.pooling)
    return text, (student.config.num_hidden_layers, model.config.num_hidden_layers)


def _try(
    plan: PrivDistilPlan,
    teacher: "PreTrainedModel",
    student: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
) -> None:
    """Distil one step on made-up text, so that any obstacle shows before anything is spent. Raises `PlanError`."""
    from learning.transformers.distilling import distil

    settings = replace(plan.distil.settings(), passes=1, batch=2)
    try:
        distil(teacher, student, lambda: ["one text", "and another"], settings, tokenizer=tokenizer, seed=0)
    except ConclaveError as error:
        raise PlanError(f"[distil] The student cannot learn from {plan.model.name}: {error}") from None


def _corpus(plan: PrivDistilPlan, base: Path, cache: Path) -> Corpus:
    return indexed([_source(table, base, cache) for table in plan.corpus], cache / "corpora")


def _source(table: CorpusTable, base: Path, cache: Path) -> CorpusSource:
    """A table's source as files that are read in place; a source of another kind is copied to the cache once."""
    take = None if table.take is None else (table.take[0], table.take[1])
    place = base / table.source
    patterned = any(sign in table.source for sign in "*?[")
    usual = table.encoding in (None, UTF_8)
    if (usual and place.is_dir()) or (usual and table.source.endswith(_IN_PLACE) and (place.exists() or patterned)):
        return CorpusSource(str(place), text=table.text, take=take, limit=table.limit)
    copy = cache / "corpora" / f"{_key(table, place)}.jsonl"
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=copy.parent) as beside:
            part = Path(beside) / copy.name
            with part.open("w", encoding="utf-8") as file:
                for document in read(source_of(table, base), cache):
                    file.write(json.dumps({"text": document.text}, ensure_ascii=False) + "\n")
            part.rename(copy)
    return CorpusSource(str(copy), take=take, limit=table.limit)


def _key(table: CorpusTable, place: Path) -> str:
    """The cache key of a copied source: its name, and for a file its modification time and length."""
    about = place.stat() if place.exists() else None
    told = [table.model_dump(exclude={"take", "limit"}), about and [about.st_mtime_ns, about.st_size]]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]


def _enough(plan: PrivDistilPlan, corpus: Corpus) -> None:
    count, wanted = corpus.count(), plan.selection
    if wanted.method != "all" and count < wanted.texts:
        raise DataError(
            f"[selection] texts = {wanted.texts:,} and the public corpus has {count:,}. Choose fewer, or name more "
            "public text in [[corpus]].",
            code="C204",
        )
    if wanted.method == "ais" and count < wanted.clusters:
        raise DataError(
            f"[selection] clusters = {wanted.clusters:,} and the public corpus has {count:,} texts. Use fewer "
            "clusters, or name more public text in [[corpus]].",
            code="C204",
        )


def _few_enough(plan: PrivDistilPlan, corpus: Corpus) -> None:
    if plan.selection.scored and plan.domain.release == "scores" and corpus.count() > MOST_SCORED:
        raise DataError(
            f'[domain] release = "scores" sends the public corpus to every party, and it has {corpus.count():,} texts; '
            f'a party scores {MOST_SCORED:,} at most. Use release = "weights", or limit in [[corpus]].'
        )


def _samples(plan: PrivDistilPlan, corpus: Corpus) -> tuple[dict[str, bytes], int]:
    """Disjoint public texts for every party's classifier: so what the classifiers have in common comes from other
    text.
    """
    names, count = plan.federation.names, corpus.count()
    each = min(plan.domain.texts, count // len(names))
    if each < FEWEST:
        raise DataError(
            f"The public corpus has {count:,} texts, and the domain classifiers of {len(names)} parties need {FEWEST} "
            "each, and no text twice. Name more public text in [[corpus]]."
        )
    rng = np.random.default_rng([plan.run.seed, 0x646F6D])
    drawn = rng.choice(count, each * len(names), replace=False)
    samples = {}
    for place, name in enumerate(names):
        own = np.sort(drawn[place * each : (place + 1) * each])
        texts = [cut(plan, text) for text in corpus.texts(own.tolist())]
        samples[name] = json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode()
    return samples, each
