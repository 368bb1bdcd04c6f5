"""The recipe as the coordinator runs it: one noisy sum, and the pairs of words that stand out of its noise."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent

from aggregation.errors import ConclaveError
from coordinator.errors import PlanError
from coordinator.forecasting.cost import COMMAND_SECONDS, COORDINATOR_MEMORY, NODE_MEMORY, VALUE_BYTES
from coordinator.forecasting.forecast import Forecast, Row
from coordinator.forecasting.needs import Needs
from coordinator.pricing.release import Release, shares, unpromised
from coordinator.publishing.report import markdown
from coordinator.systems.example import example
from coordinator.systems.system import System
from learning.text.words import Vocabulary
from own_recipe.mechanism import PresenceMechanism
from own_recipe.plan import NearWordsPlan
from protos.conclave.v1 import party_pb2

PAIRS, LEVELS = "pairs", 100
MEMORY = {"coordinator": COORDINATOR_MEMORY, "party node": NODE_MEMORY, "party training": NODE_MEMORY}


def prepare(plan: NearWordsPlan, base: Path, cache: Path) -> Vocabulary:
    """What is public: the words. Raises `PlanError` for words that no text is divided into."""
    try:
        return Vocabulary(tuple(plan.near_words.words))
    except (ConclaveError, ValueError) as error:
        raise PlanError(f"[near_words] words: {error}") from None


@dataclass(frozen=True, slots=True)
class NearWords:
    """A `coordinator.systems.system.Recipe`."""

    plan: NearWordsPlan
    public: Vocabulary

    fewer_cells = "Use fewer words."
    finer_grid = "Leave noise out."
    labelled = None

    def total_event(self, multiplier: float) -> DpEvent:
        """What all releases cost together at this noise multiplier."""
        return GaussianDpEvent(multiplier)

    def releases(self, multiplier: float) -> tuple[Release, ...]:
        """One sum of words x words cells, at this noise multiplier. Raises `PlanError`."""
        size, privacy = len(self.plan.near_words.words), self.plan.privacy
        if privacy.noise != "gaussian":
            raise PlanError(f'[privacy] noise = "{privacy.noise}": this mechanism draws Gaussian noise. Leave it out.')
        try:
            mechanism = PresenceMechanism(self.plan.near_words.most_pairs, LEVELS, multiplier, shares(self.plan))
        except ConclaveError as error:
            raise PlanError(f"[near_words] {error}") from None
        return (Release(PAIRS, mechanism, size, size, attempts=privacy.attempts),)

    def doubts(self) -> list[str]:
        """None: nothing public is compared with the parties' text."""
        return []

    async def collect(self, priced: Any, federation: Any, store: Any, stage: Any) -> dict[str, int]:
        """Have every party count, and add up what they say; asks for nothing that is stored already."""
        (release,) = priced.releases
        with stage("provide"):
            await federation.provide("vocabulary", self.public.to_bytes())
        with stage("train"):
            request = party_pb2.TrainRequest(operation_id=f"{PAIRS}-0")
            task = request.cooccurrence
            task.release, task.window, task.vocabulary_sha256 = (
                PAIRS, self.plan.near_words.window, self.public.sha256,
            )  # fmt: skip
            await federation.train(request, "counting")
        with stage("aggregate") as result:
            if self.plan.privacy.trust == "secure-sum":
                present = await federation.sum_securely(release, priced.binding.terms, release.rows, store)
            else:
                note = unpromised(self.plan)
                present = await federation.aggregate(PAIRS, release.rows, release.columns, release.rows, store, note)
            result |= {"parties": list(federation.present), "present": {PAIRS: present}, "bytes": federation.traffic}
        return {PAIRS: present}

    def learn(self, priced: Any, present: dict[str, int], store: Any, progress: Any) -> bytes:
        """The noisy sums and the noise on each, from what is stored alone."""
        (release,) = priced.releases
        total = np.concatenate([block for _, _, block in store.blocks(PAIRS)])
        released = release.mechanism.release(total, present[PAIRS])
        return np.append(released.values.ravel(), released.sigma).astype(np.float64).tobytes()

    def student(self, content: bytes, priced: Any, present: dict[str, int], store: Any, progress: Any) -> "NearStudent":
        """The pairs that stand out of the noise."""
        *values, sigma = np.frombuffer(content)
        words = self.plan.near_words.words
        return NearStudent.of(words, np.reshape(values, (len(words), len(words))), float(sigma))


@dataclass(frozen=True, slots=True)
class NearStudent:
    """A `coordinator.publishing.student.Student`. pairs: two words, and in about how many documents they are near each
    other, the most frequent first. sigma: of the noise on each number.
    """

    pairs: tuple[tuple[str, str, float], ...]
    sigma: float
    cells: int
    claimed = None

    @classmethod
    def of(cls, words: list[str], noisy: np.ndarray, sigma: float) -> "NearStudent":
        """Both cells of two words count the same documents, but for those with too many pairs, each under noise of its
        own: their mean has less.

        Kept is what is above any that would likely be the greatest of nothing but noise, `sigma sqrt(2 ln cells)`.
        """
        mean, deviation = (noisy + noisy.T) / 2, sigma / math.sqrt(2)
        rows, columns = np.triu_indices(len(words), 1)
        least = deviation * math.sqrt(2 * math.log(max(2, rows.size)))
        kept = [
            (words[a], words[b], round(float(mean[a, b]), 1))
            for a, b in zip(rows, columns, strict=True)
            if mean[a, b] > least
        ]
        return cls(tuple(sorted(kept, key=lambda each: -each[2])), deviation, rows.size)

    @property
    def metrics(self) -> dict[str, Any]:
        """How much of it stands out of the noise."""
        return {"pairs_above_noise": len(self.pairs), "pairs": self.cells, "noise": round(self.sigma, 2)}

    @property
    def neighbours(self) -> dict[str, list[str]]:
        """The words that are near each word, the nearest first."""
        found: dict[str, list[str]] = {}
        for first, second, _ in self.pairs:
            found.setdefault(first, []).append(second)
            found.setdefault(second, []).append(first)
        return {word: near[:5] for word, near in list(found.items())[:5]}

    def write(self, folder: Path) -> None:
        """The pairs as a table. Raises OSError."""
        rows = [f"{first}\t{second}\t{documents}" for first, second, documents in self.pairs]
        (folder / "pairs.tsv").write_text("\n".join(["first\tsecond\tdocuments", *rows, ""]), encoding="utf-8")
        (folder / "noise.json").write_text(json.dumps({"standard_deviation": self.sigma}), encoding="utf-8")

    def card(self, statement: Any) -> str:
        """What the table is, and the whole guarantee."""
        what = (
            f"`pairs.tsv`: in about how many documents two words stand near each other, for {len(self.pairs)} of "
            f"{self.cells} pairs; the others do not stand out of the noise, whose standard deviation is "
            f"{self.sigma:.1f} documents."
        )
        return f"# {statement.plan.run.name}\n\n{what}\n\n{markdown(statement)}"


def needs(recipe: NearWords, priced: Any, base: Path, cache: Path) -> Needs:
    """What a run is expected to need."""
    return Needs.of(MEMORY, 0, len(recipe.plan.near_words.words) ** 2)


def forecast(recipe: NearWords, priced: Any, base: Path, cache: Path, prepared: float) -> Forecast:
    """What a run would cost. How much of the signal is left depends on the parties' text, which nobody looks at."""
    plan, (release,) = recipe.plan, priced.releases
    sensitivity = math.sqrt(release.mechanism.most_cells)
    noise = release.mechanism.noise_multiplier * sensitivity
    said = f"two words that are near each other in fewer than about {3 * noise:,.0f} documents are lost in the noise"
    return Forecast(
        plan=plan,
        rows=(Row(release.name, 1, sensitivity, noise, None),),
        epsilon=priced.guarantee.epsilon if priced.private else None,
        trained=0,
        bytes=VALUE_BYTES * release.rows * release.columns * len(plan.federation.names),
        seconds=prepared + COMMAND_SECONDS,
        memory=MEMORY,
        assumptions=(f"{said[0].upper()}{said[1:]}.",),
        warnings=(),
    )


def no_comparison(request: Any) -> NoReturn:
    """Raises `PlanError`: there is no other method beside this one."""
    raise PlanError('[run] recipe = "near_words" has nothing to be compared with: its own package offers no other row.')


SYSTEM = System(
    name="near_words",
    plan=NearWordsPlan,
    prepare=prepare,
    recipe=NearWords,
    needs=needs,
    forecast=forecast,
    comparison=no_comparison,
    example=example(__package__),
    about="which words stand near each other, and in about how many documents",
)
