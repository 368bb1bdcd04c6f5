"""What a page shows of a language model: a few texts or answers that it writes."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from coordinator.language_models.public import PublicLanguage
from coordinator.page.exhibits import Exhibit, Passage, Passages, shortened

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MOST_TEXTS: Final = 6
MOST_TOKENS: Final = 80
_WRITTEN: Final = (
    "Drawn from the published student, from its plan's seed. They cost no privacy: whoever has the student can draw as "
    "many as they like. Made-up names and numbers in them are made up."
)


def written(model: "PreTrainedModel", public: PublicLanguage, seed: int) -> list[Exhibit]:
    """A few texts that a student writes from nothing or, of pairs, its likeliest answers to public inputs; none of
    pairs without public text.
    """
    if public.pairs is not None:
        return _answers(model, public)
    said = _generated(model, public, [public.bare] * MOST_TEXTS, min(MOST_TOKENS, public.longest), seed, top_k=50)
    return texts_shown("What it writes", [_WRITTEN], said)


def texts_shown(title: str, says: list[str], texts: Sequence[str], about: Sequence[str] = ()) -> list[Exhibit]:
    """An exhibit of some texts; none where all are empty. about: a line on each."""
    notes = list(about) or [""] * len(texts)
    passages = [
        Passage(text=shortened(text), about=shortened(note, 300))
        for text, note in zip(texts, notes, strict=True)
        if text.strip()
    ]
    return [Exhibit(title=title, says=says, content=Passages(passages=passages))] if passages else []


def _answers(model: "PreTrainedModel", public: PublicLanguage) -> list[Exhibit]:
    """The student's likeliest answers to the first inputs of the public test text, beside the real ones."""
    from learning.models.pairs import encode_inputs

    some = public.heldout[:MOST_TEXTS]
    if not some or public.pairs is None:
        return []
    rows = encode_inputs(public.tokenizer, [each.text for each in some], public.pairs).rows
    before = [row.ids.tolist() for row in rows]
    said = _generated(model, public, before, public.pairs.answer, 0, top_k=1)
    about = [f"It answers: {answer.strip() or '(nothing)'} \u2014 the real answer: {each.second}"
             for answer, each in zip(said, some, strict=True)]  # fmt: skip
    says = ["Its likeliest answers to inputs of the public test text. No text of any party is shown here, or known."]
    return texts_shown("What it answers", says, [each.text for each in some], about)


def _generated(
    model: "PreTrainedModel",
    public: PublicLanguage,
    openings: Sequence[Sequence[int]],
    longest: int,
    seed: int,
    *,
    top_k: int,
) -> list[str]:
    from learning.language.generation import Sampling, generate
    from learning.language.speaker import Speaker

    settings = Sampling(longest=longest, top_k=top_k, top_p=0.95 if top_k > 1 else 1.0, batch=MOST_TEXTS)
    with TemporaryDirectory(prefix="conclave-") as folder:
        found = generate(
            Speaker(model), openings, settings, end=public.end, seed=seed, folder=Path(folder),
            known=len(public.tokenizer),
        )  # fmt: skip
    return [str(public.tokenizer.decode(ids, skip_special_tokens=True)) for ids in found]
