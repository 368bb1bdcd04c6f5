"""What a divergence admits: how well anyone can tell from a sample which of two texts, or of two classes, it is of.

Telling two laws P and Q apart, each as likely, succeeds with probability 1/2 + TV / 2 at best, TV their distance in
total variation. By Pinsker's inequality TV <= sqrt(KL / 2), by Bretagnolle & Huber's TV <= sqrt(1 - exp(-KL)), and KL
is at most the Renyi divergence of any order of 1 or more. With classes, each a mixture of texts' samplers, TV is convex
in both laws, so the LARGEST divergence over pairs of texts of different classes bounds the mean of the two classes'
recalls: of the sampler that made the samples on which the accuracy is measured. A divergence bounds it once summed over
all that a sample holds. So a mean over pairs, positions or dimensions bounds nothing here, and an accuracy above
the bound shows that a divergence is not that of what was shared: 0.19 admits 65.4%, by Pinsker.

The labels must not be otherwise in the sample. Source: Bretagnolle & Huber 1979; van Erven & Harremoes 2014, theorem 3.
"""

import math

from aggregation.errors import ConclaveError


class AboveBound(ConclaveError):
    """An accuracy is above what the divergence reported beside it admits: one of the two is not what it is called."""

    CODE = "C802"


def most_accurate(divergence: float) -> float:
    """The most that a balanced accuracy of two classes can be, in [0.5, 1].

    divergence: in nats, the largest over pairs of the two classes, of an order of 1 or more, summed over everything
    that is sampled; infinite admits 1. Raises `ConclaveError` for one below 0 or NaN.
    """
    if not divergence >= 0:
        raise ConclaveError(f"{divergence:g} is no divergence. Give the largest over all pairs, 0 or more.")
    by_pinsker, by_huber = math.sqrt(divergence / 2), math.sqrt(-math.expm1(-divergence))
    return 0.5 + 0.5 * min(by_pinsker, by_huber, 1.0)


def check_accuracy(accuracy: float, divergence: float, slack: float = 0.0) -> None:
    """Refuse a balanced accuracy that the divergence beside it does not admit.

    accuracy: the mean of two classes' recalls, a share of 1. divergence: as of `most_accurate`. slack: what it may
    be above by chance, as half its confidence interval. Raises `AboveBound`, and `ConclaveError` for numbers that
    make no sense.
    """
    if not 0 <= accuracy <= 1 or not slack >= 0:
        raise ConclaveError(f"An accuracy of {accuracy:g} give or take {slack:g} makes no sense. Give shares of 1.")
    if accuracy > (most := most_accurate(divergence)) + slack:
        raise AboveBound(
            f"A balanced accuracy of {accuracy:.1%} is reported beside a largest divergence of {divergence:g}, which "
            f"admits {most:.1%} at most. Sum the divergence over all positions and dimensions of what is shared, take "
            "the largest of all pairs, and test on samples."
        )
