"""What comparisons of language models share: a seed's data, what a row is measured by, and how a table shows it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from coordinator.comparing.comparable import SeedData, View
from coordinator.progress.progress import Progress
from coordinator.publishing.measured import shown_perplexity
from coordinator.transport.launchers import DocumentPart, DocumentsWanted, Simulation

if TYPE_CHECKING:
    from learning.language.speaker import Speaker


@dataclass(slots=True)
class LanguageData(SeedData):
    """The data of one seed. shards: the simulated parties. folder: for runs that rows share. cache: for
    models. read: what `documents` has read."""

    plan: Any
    public: Any
    shards: Simulation
    progress: Progress
    base: Path
    folder: Path
    cache: Path
    read: dict[bool, tuple[DocumentPart, ...]] = field(default_factory=dict)

    def documents(self, *, coded: bool) -> tuple[DocumentPart, ...]:
        """Each party's documents in clear, read once, with their control codes or without."""
        if coded not in self.read:
            codes = self.plan.coded if coded else None
            wanted = DocumentsWanted(codes, self.public.tokenizer, self.public.longest, self.public.pairs)
            self.read[coded] = self.shards.documents(wanted)
        return self.read[coded]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a row is measured by. coded: whether it reads the control codes of held-out text."""

    speakers: "tuple[Speaker, ...]"
    coded: bool = False


def _shown(mean: float, deviation: float | None, best: float | None) -> str:
    return shown_perplexity(mean) if deviation is None else f"{shown_perplexity(mean)} ± {deviation:.1f}"


PERPLEXITY: Final = View(
    metric="perplexity",
    axis="perplexity of a token, lower is better",
    columns=(),
    best=min,
    shown=_shown,
    said=lambda value: "not measured" if value is None else f"perplexity {shown_perplexity(value)}",
    about=lambda plan, seeds: (
        f"Perplexity of a token on public held-out text, mean and spread over {seeds} seed{'s' if seeds > 1 else ''}; "
        f"teacher: {plan.model.name}, {plan.model.adapt}; {len(plan.federation.names)} parties; unit: one "
        f"{'user' if plan.privacy.unit == 'user' else plan.privacy.record}; delta {plan.privacy.delta:g}."
    ),
    logarithmic=True,
)
