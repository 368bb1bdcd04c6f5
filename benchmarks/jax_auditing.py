"""What the auditing module of jax-privacy says of scores and of counts; `audits.py` asks it.

    python -m venv jax && jax/bin/python -m pip install jax-privacy
    CONCLAVE_JAX=jax/bin/python python benchmarks/audits.py

Reads one JSON object from standard input: scores of canaries that were in and that were out, the delta, the share of
failures, and counts of guesses. Writes one to standard output.
"""

import json
import sys
from importlib.metadata import version


def main() -> None:
    """Answer one question."""
    from jax_privacy import auditing

    asked = json.load(sys.stdin)
    significance, delta = asked["significance"], asked["delta"]
    auditor = auditing.CanaryScoreAuditor(asked["inside"], asked["outside"])
    half = auditing.Split(seed=0)
    found = {
        "version": version("jax-privacy"),
        "one_run": auditor.epsilon_one_run(significance, delta, threshold_strategy=half),
        "one_run_fdp": auditor.epsilon_one_run_fdp(significance, delta, threshold_strategy=half),
        "clopper_pearson": auditor.epsilon_clopper_pearson(
            significance, delta, one_sided=False, threshold_strategy=half
        ),
        # Its own functions, on the very counts that ours went by.
        "counts": [
            {
                "plain": auditing._epsilon_one_run(0.0, m, guesses, right, share, delta),
                "fdp": auditing._epsilon_one_run_fdp(1e-6, m, guesses, right, share, delta),
            }
            for m, guesses, right, share in asked["counts"]
        ],
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
