"""What the published folders of language models share: the model's files, and the beginning and end of the card."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from coordinator.language_models.plan import SpokenPlan
from coordinator.language_models.public import PublicLanguage
from coordinator.plan.named import named
from coordinator.publishing.front_matter import front_matter
from coordinator.publishing.report import Statement
from coordinator.publishing.verdict import headline
from learning.text.hub import is_hub_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PICTURE: Final = "evaluation.png"
CHECKING: Final = """## Checking it

`coordinator verify this-folder --trust ca.pem`, with the `ca.pem` of the federation's authority, compares every file
with the coordinator's signature, and this promise with what the parties signed about its cost.
"""


def save_model(model: "PreTrainedModel", public: PublicLanguage, folder: Path) -> None:
    """Write a model with its tokenizer into a new folder, in the standard library's form."""
    from learning.models.checkpoints import save
    from learning.models.encoders import longest

    tokenizer = public.tokenizer
    tokenizer.model_max_length = longest(model, public.longest)
    model.config.use_cache = True
    save(model, tokenizer, folder)


def beginning(
    plan: SpokenPlan, statement: Statement, metrics: dict[str, Any], tags: Sequence[str], *, pipeline: bool = True
) -> str:
    """The front matter of a card, its title, and the verdict on the student. pipeline: whether the standard library has
    one for the student.
    """
    front = front_matter(
        plan,
        library="transformers",
        task="text-generation",
        tags=tags,
        metrics=metrics,
        pipeline=pipeline,
        base=plan.model.name,
    )
    return f"{front}\n# {plan.run.name}\n\n**{headline(statement.privacy, metrics)}**\n\n"


def base_of(plan: SpokenPlan) -> str:
    """The public model that a student began as, as a card names it."""
    name = plan.model.name
    return name if is_hub_name(name) else f"{named(name)} (a local folder)"


def picture_of(metrics: dict[str, Any]) -> str:
    """The picture of what was measured, as a card shows it; empty where nothing was."""
    return f"![Perplexity on public held-out text]({PICTURE})\n\n" if "token_perplexity" in metrics else ""
