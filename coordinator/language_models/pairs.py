"""Pairs of an input and an answer in a plan of swing distillation, and what a model writes as answers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Protocol

from coordinator.language_models.tables import PairedTextTable
from coordinator.plan.federation import FederationTable
from coordinator.plan.plan import EvaluationTable
from coordinator.plan.privacy import PrivacyTable

if TYPE_CHECKING:
    from coordinator.language_models.public import PublicLanguage
    from learning.language.speaker import Speaker
    from learning.models.batching import Tokens

MOST_WRITTEN: Final = 200
"""Public inputs that a model writes an answer to: the first ones of `[evaluation]`."""
_OF_PAIRS: Final = {"text": ("kind", "separator", "answer"), "queries": ("second",)}


class Asking(Protocol):
    """`[queries]`."""

    @property
    def second(self) -> str | None: ...


class MayPair(Protocol):
    """A plan that learns answers to inputs, or single texts."""

    @property
    def pairs(self) -> bool: ...
    @property
    def text(self) -> PairedTextTable: ...
    @property
    def queries(self) -> Asking: ...
    @property
    def federation(self) -> FederationTable: ...
    @property
    def evaluation(self) -> EvaluationTable | None: ...
    @property
    def privacy(self) -> PrivacyTable: ...


def check_pairs(plan: MayPair) -> None:
    """Raises ValueError where `[text] kind` and the columns of answers do not agree."""
    shards = plan.federation.shards
    named = {"queries": plan.queries.second}
    if shards is not None:
        named["federation.shards"] = shards.second
    if plan.evaluation is not None:
        named["evaluation"] = plan.evaluation.second
    for name, column in named.items():
        if plan.pairs and column is None:
            raise ValueError(
                f'[{name}] second is missing: the column of the answers, which [text] kind = "pair" learns.'
            )
        if not plan.pairs and name == "queries" and column is not None:
            raise ValueError(
                '[queries] second: a plan of single texts asks about no answers. Add [text] kind = "pair", or '
                "leave it out."
            )
    plain = PairedTextTable()
    if not plan.pairs and (plan.text.separator, plan.text.answer) != (plain.separator, plain.answer):
        raise ValueError('[text] separator and answer belong to kind = "pair". Add it, or leave them out.')
    if plan.pairs and plan.privacy.record != "document":
        raise ValueError(
            f'[privacy] record = "{plan.privacy.record}": an input and its answer are of one row. Use record = '
            '"document".'
        )
    if plan.pairs and plan.text.answer >= plan.text.longest:
        raise ValueError(
            f"[text] answer = {plan.text.answer} leaves nothing of longest = {plan.text.longest} for an input. Use "
            "shorter answers, or longer pairs."
        )


def without_pairs(tables: dict[str, Any]) -> None:
    """Leave the keys of pairs out of a plan of single texts: it binds parties to what it did before there were any."""
    for name, keys in _OF_PAIRS.items():
        for key in keys:
            del tables[name][key]


def heldout_rows(public: "PublicLanguage") -> "list[Tokens]":
    """The documents of `[evaluation]` as tokens; of pairs, the answers after their inputs."""
    from learning.models.batching import encode_documents
    from learning.models.pairs import encode_pairs

    texts = [each.text for each in public.heldout]
    if public.pairs is not None:
        return encode_pairs(public.tokenizer, texts, [each.second for each in public.heldout], public.pairs).rows
    return encode_documents(public.tokenizer, texts, longest=public.longest, codes=[None] * len(texts)).rows


def answers_rouge(
    public: "PublicLanguage",
    speakers: "Sequence[Speaker]",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Mapping[str, float]:
    """ROUGE of the answers that models write to the first `MOST_WRITTEN` public inputs, the likeliest token each time:
    `rouge_1`, `rouge_2`, `rouge_l`, means over models, and `written`, how many answers of each. Empty for single texts.
    progress: is told of each model how many answers of how many it has written.
    """
    import numpy as np

    from learning.language.generation import Sampling, generate
    from learning.models.pairs import encode_inputs
    from learning.swing.rouge import rouge

    form, some = public.pairs, public.heldout[:MOST_WRITTEN]
    if form is None or not some:
        return {}
    before = [row.ids.tolist() for row in encode_inputs(public.tokenizer, [each.text for each in some], form).rows]
    known, real = len(public.tokenizer), [each.second for each in some]
    found = []
    for speaker in speakers:
        with TemporaryDirectory() as folder:
            settings = Sampling(longest=form.answer, top_k=1, batch=64)
            written = generate(
                speaker,
                before,
                settings,
                end=public.end,
                seed=0,  # nothing is drawn
                folder=Path(folder),
                known=known,
                progress=progress,
            )
        said = [public.tokenizer.decode(ids, skip_special_tokens=True) for ids in written]
        found.append(rouge([str(each) for each in said], real))
    means = {
        name: float(np.mean([getattr(each, name) for each in found])) for name in ("rouge_1", "rouge_2", "rouge_l")
    }
    return means | {"written": len(some)}
