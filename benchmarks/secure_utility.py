"""What the secure sum costs in utility: students at epsilon 4 of ten parties, for two drop-outs and one colluder.

    python benchmarks/secure_utility.py [--seeds N] [--out FILE]

`coordinator compare` on the text of examples/dped/plan.toml, once with a trusted aggregator, whose ten shares of the
noise add up to what is charged, and twice under the secure sum, where seven have to, so that ten add up to more: with
rounded Gaussian shares and with Skellam ones.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

EPSILON = 4.0
METHODS = ("counts", "moments", "unigram", "non-private")
KINDS = {
    "trusted-aggregator": {"trust": "trusted-aggregator", "dropouts": 0, "colluders": 0},
    "secure-sum": {"trust": "secure-sum", "dropouts": 2, "colluders": 1},
    "secure-sum, Skellam": {"trust": "secure-sum", "dropouts": 2, "colluders": 1, "noise": "skellam"},
}


def main() -> None:
    from coordinator import api
    from coordinator.systems.registry import plan_of, read_plan

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"epsilon": EPSILON, "parties": 10, "seeds": options.seeds}
    for kind, privacy in KINDS.items():
        tables = read_plan(ROOT / "examples/dped/plan.toml").model_dump()
        tables["privacy"] |= privacy
        tables["federation"]["shards"]["split"]["parties"] = 10
        tables["dped"] |= {"teachers_per_party": 1, "signals": ["counts"]}
        with tempfile.TemporaryDirectory(prefix="secure-utility-") as folder:
            compared = api.compare(
                plan_of(tables),
                recipes=METHODS,
                epsilons=[EPSILON],
                seeds=options.seeds,
                output=Path(folder) / "out",
            )
            spreads = {name: compared.spread(name, EPSILON, "perplexity") for name in METHODS}
        found[kind] = {name: None if each is None else [round(x, 2) for x in each] for name, each in spreads.items()}
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
