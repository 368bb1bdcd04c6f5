"""How often the parties' domain classifiers are wrong about texts that they never saw: PrivDistil's table 8.

    python benchmarks/domain_classifiers.py [--tasks sst2,qqp] [--epsilons 1,2,4] [--seeds 3] [--out FOLDER]

The plans are those of `benchmarks/privdistil.py`. As in the paper the whole epsilon is the classifier's; beside that,
the part of it that the plan leaves to the classifier at that epsilon. Private texts that were not seen are the first
1,000 of [evaluation], one by one where they come in pairs; against them stand as many texts of the corpus that no party
was given. A text is called private where the probability is over one half: the mean over the parties, as a run
takes it, or one party's. Beside the errors stands how often a private text is ranked before a public one (the area
under the curve), for a choice takes the first and has no threshold; and both of a logistic regression on what each
party's classifier sees, without noise. It needs ../shared/data, writes domain-classifiers.json as soon as a cell is
done, and goes on with what is missing there.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from privdistil import PLANS, RESULTS, WORK

if TYPE_CHECKING:
    from coordinator.systems.privdistil.data import CorpusData, Floats


def main() -> None:
    """Train the classifiers of every cell and write how often they err."""
    from coordinator import api
    from coordinator.comparing.comparable import changed
    from coordinator.progress.terminal import Terminal
    from coordinator.systems.privdistil.plan import PrivDistilPlan
    from coordinator.systems.privdistil.releases import domain_epsilon
    from coordinator.systems.registry import read_plan

    parser = argparse.ArgumentParser(description="Measure domain classifiers on texts that they never saw.")
    parser.add_argument("--tasks", default="sst2,qqp", help="which plans, with commas")
    parser.add_argument("--epsilons", default="1,2,4", help="with commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    epsilons = [float(each) for each in options.epsilons.split(",")]
    kept = options.out / "domain-classifiers.json"
    cells: list[dict[str, Any]] = json.loads(kept.read_bytes())["cells"] if kept.exists() else []
    for task in options.tasks.split(","):
        plan = read_plan(PLANS[task])
        assert isinstance(plan, PrivDistilPlan)
        comparable = api.comparable_of(plan, PLANS[task].parent, Terminal())
        for seed in range(plan.run.seed, plan.run.seed + options.seeds):
            done = {(each["epsilon"], each["share"]) for each in cells if (each["task"], each["seed"]) == (task, seed)}
            if done >= {(None, NONE), *((each, share) for each in epsilons for share in (WHOLE, PART))}:
                continue
            data = comparable.data(seed, WORK / f"domain-{task}")
            heldout = Heldout(data)

            def keep(
                epsilon: float | None, share: str, found: dict[str, Any], task: str = task, seed: int = seed
            ) -> None:
                cells.append({"task": task, "seed": seed, "epsilon": epsilon, "share": share, **found})
                print(json.dumps(cells[-1]), flush=True)
                kept.write_text(json.dumps({"cells": cells, "table": table(cells)}, indent=1) + "\n")

            if (None, NONE) not in done:
                keep(None, NONE, heldout.without_noise())
            for epsilon in epsilons:
                at = changed(data.plan, epsilon=epsilon)
                part = domain_epsilon(at, len(data.public.domain.start), data.public.opposed)
                for share, own in ((WHOLE, epsilon), (PART, part)):
                    if (epsilon, share) not in done:
                        keep(epsilon, share, heldout.errors(own))


MOST = 1000
"""Private texts, of those that were not seen."""
WHOLE, PART, NONE = "whole", "the plan's part", "no noise"


class Heldout:
    """Texts that no party's classifier was trained on, private and public, as many of each."""

    def __init__(self, data: "CorpusData") -> None:
        from coordinator.systems.privdistil.public import cut
        from learning.models.batching import encode
        from learning.models.features import features

        self.data = data
        domain = data.public.domain
        assert domain is not None
        texts = [text for each in data.public.text.heldout for text in (each.first, each.second) if text is not None]
        private = list(dict.fromkeys(texts))[:MOST]
        given = {text for sample in data.public.samples.values() for text in json.loads(sample)}
        corpus, rng = data.public.corpus, np.random.default_rng(data.seed)
        drawn = rng.choice(corpus.count(), min(corpus.count(), 2 * len(private) + len(given)), replace=False)
        others = [cut(data.plan, text) for text in corpus.texts(drawn.tolist())]
        public = [text for text in others if text not in given][: len(private)]
        assert len(public) == len(private), "the corpus has too few texts that no party was given"
        rows = encode(domain.tokenizer, [*private, *public], longest=domain.longest).rows
        self.vectors = features(domain.model, rows)
        self.count = len(private)

    def errors(self, epsilon: float) -> dict[str, Any]:
        """Train every party's classifier at this epsilon, and count what it takes for the other kind."""
        from coordinator.comparing.comparable import changed
        from coordinator.comparing.simulated_run import driven
        from coordinator.systems.privdistil.recipe import PrivDistil, domain_classifiers
        from coordinator.systems.privdistil.releases import domain_mechanism

        class Classifiers(PrivDistil):
            """The recipe's first stage alone."""

            async def collect(self, priced: Any, federation: Any, store: Any, stage: Any) -> dict[str, int]:
                found.update((await domain_classifiers(priced, self.read, federation, store)).weights)
                return {}

            def learn(self, priced: Any, present: Any, store: Any, progress: Any) -> bytes:
                return b""

        # A plan's epsilon is more than its classifier's; what is left is not spent here.
        table = {"epsilon": epsilon, "release": "weights"}
        plan = changed(self.data.plan, {"privacy": {"epsilon": 2 * epsilon}, "domain": table})
        mechanism = domain_mechanism(plan, self.data.public)
        found: dict[str, Floats] = {}
        with driven(Classifiers(plan, self.data.public), self.data.text.shards, self.data.progress):
            errors = self.told(np.stack([self.private(each) for each in found.values()]))
        return {"own_epsilon": epsilon, "noise_multiplier": mechanism.noise_multiplier, **errors}

    def without_noise(self) -> dict[str, Any]:
        """The same of a logistic regression at every party, on the same vectors."""
        from sklearn.linear_model import LogisticRegression

        from coordinator.systems.privdistil.data import singles
        from learning.models.batching import encode

        domain, shards = self.data.public.domain, self.data.text.shards
        assert domain is not None
        said = []
        for name, part in zip(self.data.plan.federation.names, self.data.text.parts, strict=True):
            texts = json.loads(self.data.public.samples[name])
            opposed = encode(domain.tokenizer, texts, longest=domain.longest).rows
            own, public = shards.vectors(domain.model, singles(part)), shards.vectors(domain.model, opposed)
            rows, labels = np.concatenate([own, public]), np.repeat([1, 0], [len(own), len(public)])
            model = LogisticRegression(C=100, max_iter=2000).fit(rows, labels)
            said.append(model.predict_proba(self.vectors)[:, 1])
        return {"own_epsilon": None, "noise_multiplier": 0.0, **self.told(np.stack(said))}

    def told(self, private: Any) -> dict[str, Any]:
        """Errors and order of the probabilities [parties, texts] that texts are private."""
        from sklearn.metrics import roc_auc_score

        mean = private.mean(axis=0)
        missed, taken = self.wrong(mean)
        return {
            "texts": 2 * self.count,
            "missed": missed,
            "taken": taken,
            "order": float(roc_auc_score(np.repeat([1, 0], self.count), mean)),
            "alone": statistics.fmean(sum(self.wrong(each)) / (2 * self.count) for each in private),
        }

    def private(self, weights: "Floats") -> Any:
        """The probability that each text is private, [texts], by one party's classifier."""
        import torch

        from learning.classification.training import probabilities
        from learning.models.adapting import unflatten
        from learning.models.features import head_alone

        domain = self.data.public.domain
        assert domain is not None
        unflatten(domain.model, torch.from_numpy(weights))
        head = head_alone(domain.model)
        assert head is not None, "the plans train the last layer alone"
        with torch.inference_mode():
            return probabilities(head(torch.from_numpy(self.vectors)).numpy())[:, 0]

    def wrong(self, chance: Any) -> tuple[int, int]:
        """How many private texts are taken for public ones, and public texts for private ones."""
        return int((chance[: self.count] <= 0.5).sum()), int((chance[self.count :] > 0.5).sum())


def table(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and spread of the error over the seeds, for every task, epsilon and share."""
    found = []
    for task, epsilon, share in dict.fromkeys((each["task"], each["epsilon"], each["share"]) for each in cells):
        own = [each for each in cells if (each["task"], each["epsilon"], each["share"]) == (task, epsilon, share)]
        errors = [(each["missed"] + each["taken"]) / each["texts"] for each in own]
        row = {"task": task, "epsilon": epsilon, "share": share, "own_epsilon": own[0]["own_epsilon"]}
        row |= {"texts": own[0]["texts"], "seeds": len(own), "error": round(statistics.fmean(errors), 5)}
        row |= {"spread": round(statistics.stdev(errors), 5) if len(errors) > 1 else None}
        row |= {"order": round(statistics.fmean(each["order"] for each in own), 5)}
        found.append(row | {"alone": round(statistics.fmean(each["alone"] for each in own), 5)})
    return found


if __name__ == "__main__":
    main()
