"""What the published folders of language models share: the model's files, and the beginning and end of the card."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from coordinator.language_models.plan import SpokenPlan
from coordinator.language_models.public import PublicLanguage
from coordinator.plan.named import named
from coordinator.publishing.measured import learned_nothing
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


def beginning(plan: SpokenPlan, metrics: dict[str, Any], tags: str, *, pipeline: bool = True) -> str:
    """The front matter of a card, its title, and, where the student learned nothing, that it did not. pipeline: whether
    the standard library has one for the student.
    """
    head = {
        "language": plan.student.language,
        "license": plan.student.licence,
        "library_name": "transformers",
    }
    if pipeline:
        head["pipeline_tag"] = "text-generation"
    front = "\n".join(f"{key}: {value}" for key, value in head.items())
    nothing = learned_nothing(metrics)
    first = "" if nothing is None else f"**{nothing}**\n\n"
    return f"---\n{front}\ntags: [{tags}]\n---\n\n# {plan.run.name}\n\n{first}"


def base_of(plan: SpokenPlan) -> str:
    """The public model that a student began as, as a card names it."""
    name = plan.model.name
    return name if is_hub_name(name) else f"{named(name)} (a local folder)"


def picture_of(metrics: dict[str, Any]) -> str:
    """The picture of what was measured, as a card shows it; empty where nothing was."""
    return f"![Perplexity on public held-out text]({PICTURE})\n\n" if "token_perplexity" in metrics else ""
