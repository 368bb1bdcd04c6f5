"""How much noise a sum needs under each kind of noise share, computed by the accountants; nothing is simulated.

    python benchmarks/noise_needed.py [--out FILE]

Standard deviation in grid units at delta 1e-6, of the whole sum: rounded Gaussian shares, priced by PLD as the one
Gaussian that their sum is post-processing of, and Skellam shares by their Renyi bound.
"""

import argparse
import json
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

DELTA = 1e-6
EPSILONS = (1.0, 4.0, 8.0)
CASES = {
    "counts, 320 levels, 10^6 cells": {"l2_squared": 320**2, "dimension": 10**6, "count": 1},
    "votes of 1,000 queries": {"l2_squared": 2, "dimension": 2, "count": 1000},
}


def main() -> None:
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent

    from aggregation.accounting.calibration import calibrate_skellam
    from aggregation.accounting.price import calibrate
    from aggregation.accounting.renyi import l1_of

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {}
    for name, case in CASES.items():
        square, count = case["l2_squared"], case["count"]
        l1 = l1_of(square, case["dimension"])
        found[name] = {
            f"epsilon {epsilon:g}": {
                "rounded Gaussian": round(
                    math.sqrt(square)
                    * calibrate(lambda z, n=count: SelfComposedDpEvent(GaussianDpEvent(z), n), epsilon, DELTA),
                    1,
                ),
                "Skellam": round(math.sqrt(calibrate_skellam(epsilon, DELTA, l1, square, count=count)), 1),
            }
            for epsilon in EPSILONS
        }
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
