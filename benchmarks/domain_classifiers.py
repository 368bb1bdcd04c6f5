"""How often the parties' domain classifiers are wrong about texts that they never saw: PrivDistil's table 8.

    python benchmarks/domain_classifiers.py [--tasks sst2,qqp] [--epsilons 1,2,4] [--seeds 3] [--out FOLDER]

The plans are those of `benchmarks/privdistil.py`. As in the paper the whole epsilon is the classifier's; beside that,
the part of it that the plan leaves to the classifier at that epsilon. Private texts that were not seen are the first
1,000 of [evaluation], one by one where they come in pairs; against them stand as many texts of the corpus that no party
was given. A text is called private where the probability is over one half: the mean over the parties, as a run takes
it, or one party's. It needs ../shared/data, and writes domain-classifiers.json as soon as a cell is done.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from privdistil import PLANS, RESULTS, WORK

if TYPE_CHECKING:
    from coordinator.privdistil_methods import CorpusBench, Floats


def main() -> None:
    """Train the classifiers of every cell and write how often they err."""
    from coordinator import api
    from coordinator.family import changed
    from coordinator.plan import read_plan
    from coordinator.privdistil_plan import PrivDistilPlan
    from coordinator.privdistil_terms import domain_epsilon
    from coordinator.progress import Terminal

    parser = argparse.ArgumentParser(description="Measure domain classifiers on texts that they never saw.")
    parser.add_argument("--tasks", default="sst2,qqp", help="which plans, with commas")
    parser.add_argument("--epsilons", default="1,2,4", help="with commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    epsilons = [float(each) for each in options.epsilons.split(",")]
    cells: list[dict[str, Any]] = []
    for task in options.tasks.split(","):
        plan = read_plan(PLANS[task])
        assert isinstance(plan, PrivDistilPlan)
        family = api.family_of(plan, PLANS[task].parent, Terminal())
        for number in range(options.seeds):
            bench = family.bench(plan.run.seed + number, WORK / f"domain-{task}")
            heldout = Heldout(bench)
            for epsilon in epsilons:
                at = changed(bench.plan, epsilon=epsilon)
                part = domain_epsilon(at, len(bench.public.domain.start), bench.public.opposed)
                for share, own in (("whole", epsilon), ("the plan's part", part)):
                    found = heldout.errors(own)
                    cells.append({"task": task, "seed": bench.seed, "epsilon": epsilon, "share": share, **found})
                    print(json.dumps(cells[-1]), flush=True)
                    text = json.dumps({"cells": cells, "table": table(cells)}, indent=1)
                    (options.out / "domain-classifiers.json").write_text(text + "\n")


MOST = 1000
"""Private texts, of those that were not seen."""


class Heldout:
    """Texts that no party's classifier was trained on, private and public, as many of each."""

    def __init__(self, bench: "CorpusBench") -> None:
        from coordinator.privdistil_public import cut
        from learning.batching import encode
        from learning.features import features

        self.bench = bench
        domain = bench.public.domain
        assert domain is not None
        texts = [text for each in bench.public.text.heldout for text in (each.first, each.second) if text is not None]
        private = list(dict.fromkeys(texts))[:MOST]
        given = {text for sample in bench.public.samples.values() for text in json.loads(sample)}
        corpus, rng = bench.public.corpus, np.random.default_rng(bench.seed)
        drawn = rng.choice(corpus.count(), min(corpus.count(), 2 * len(private) + len(given)), replace=False)
        others = [cut(bench.plan, text) for text in corpus.texts(drawn.tolist())]
        public = [text for text in others if text not in given][: len(private)]
        assert len(public) == len(private), "the corpus has too few texts that no party was given"
        rows = encode(domain.tokenizer, [*private, *public], longest=domain.longest).rows
        self.vectors = features(domain.model, rows)
        self.count = len(private)

    def errors(self, epsilon: float) -> dict[str, Any]:
        """Train every party's classifier at this epsilon, and count what it takes for the other kind."""
        from coordinator.family import changed
        from coordinator.privdistil_methods import domain_classifiers
        from coordinator.privdistil_terms import domain_mechanism

        # A plan's epsilon is more than its classifier's; what is left is not spent here.
        plan = changed(self.bench.plan, {"privacy": {"epsilon": 2 * epsilon}, "domain": {"epsilon": epsilon}})
        mechanism = domain_mechanism(plan, self.bench.public)
        weights = domain_classifiers(self.bench, plan, mechanism, f"held out {epsilon!r}")
        private = np.stack([self.private(each) for each in weights.values()])
        return {
            "own_epsilon": epsilon,
            "noise_multiplier": mechanism.noise_multiplier,
            "texts": 2 * self.count,
            "missed": self.wrong(private.mean(axis=0))[0],
            "taken": self.wrong(private.mean(axis=0))[1],
            "alone": statistics.fmean(sum(self.wrong(each)) / (2 * self.count) for each in private),
        }

    def private(self, weights: "Floats") -> Any:
        """The probability that each text is private, [texts], by one party's classifier."""
        import torch

        from learning.adapting import unflatten
        from learning.classifying import probabilities
        from learning.features import head_alone

        domain = self.bench.public.domain
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
        found.append(row | {"alone": round(statistics.fmean(each["alone"] for each in own), 5)})
    return found


if __name__ == "__main__":
    main()
