"""What it would tell to know the size of every secret batch: the price of step replies that take as long as they take.

    python benchmarks/batch_sizes.py --units 1000 --rate 0.1 --steps 500

A shard of n units gives a batch of Binomial(n, q) units at every step, one of n - 1 units Binomial(n - 1, q). Whoever
knew every size exactly would see `steps` draws of one or of the other, beside the noisy sums. The price of that is the
divergence between the two, composed: by a privacy loss distribution, pessimistic, in both directions.

To first order the loss of one step is (k/n - q) / (1 - q), of standard deviation sqrt(q / (n (1 - q))), so that all
steps tell about as much as one Gaussian release of noise multiplier sqrt(n (1 - q) / (q steps)). It adds to the run's
own epsilon by basic composition, delta by delta.
"""

import argparse
import math

from dp_accounting import get_epsilon_gaussian
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

INTERVAL = 1e-5
"""The grid that losses are rounded to, upwards."""
SMALLEST = -200.0
"""Logarithm of the least probability that a size is looked at for."""


def epsilon_of_sizes(units: int, rate: float, steps: int, delta: float) -> float:
    """Epsilon at this delta of all batch sizes together, under add-or-remove of one unit."""
    sizes = range(units + 1)
    masses = {}
    for count in (units, units - 1):
        every = zip(sizes, stats.binom.logpmf(sizes, count, rate), strict=True)
        masses[count] = {size: float(mass) for size, mass in every if mass > SMALLEST}
    found = []
    for one, other in ((units, units - 1), (units - 1, units)):
        loss = privacy_loss_distribution.from_two_probability_mass_functions(
            masses[other],
            masses[one],
            value_discretization_interval=INTERVAL,
            symmetric=True,
        )
        found.append(loss.self_compose(steps).get_epsilon_for_delta(delta))
    return max(found)


def main() -> None:
    """Print the price at the usual deltas, and what its first order says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=500)
    asked = parser.parse_args()
    multiplier = math.sqrt(asked.units * (1 - asked.rate) / (asked.rate * asked.steps))
    for delta in (1e-5, 1e-6):
        exact = epsilon_of_sizes(asked.units, asked.rate, asked.steps, delta)
        print(f"delta {delta:g}: epsilon {exact:.3f}; as one Gaussian {get_epsilon_gaussian(multiplier, delta):.3f}")


if __name__ == "__main__":
    main()
