"""Membership inference: which examples a model was trained on, by how models with and without them treat them.

Shadow models are trained as the target was, each on some of the examples by a fair coin. All functions take arrays
[models, examples] of per-example figures and of which model was trained on which example. Scores are higher where an
example seems to be a member.
Sources: LiRA, Carlini, Chien, Nasr, Song, Terzis & Tramer 2022, "Membership Inference Attacks From First Principles",
algorithm 1; RMIA, Zarifzadeh, Liu & Shokri 2024, "Low-Cost High-Power Membership Inference Attacks".
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError

LEAST_MODELS: Final = 2
"""Shadow models that an example needs of each kind, with it and without it."""
_SMALLEST: Final = 1e-6
OFFLINE: Final = 0.3
"""RMIA's a: how far a mean over models without an example is moved towards 1 where there are none with it."""

Floats: TypeAlias = NDArray[np.float64]
Members: TypeAlias = NDArray[np.bool_]
Attack: TypeAlias = Callable[[Floats, Floats, Members], Floats]
"""From the target's losses [examples], the shadow models' [models, examples] and their members to scores [examples]."""


def confidences(losses: Floats) -> Floats:
    """ln(p / (1 - p)) of losses -ln p, of the same shape: nearly normal over models (Carlini et al. 2022)."""
    held = np.maximum(losses, _SMALLEST)
    return np.asarray(-held - np.log(-np.expm1(-held)))


def lira(target: Floats, shadows: Floats, members: Members) -> Floats:
    """The online attack's scores [examples]: ln N(c; mean, variance with the example) - ln N(...; without it).

    target: losses of the model that is attacked, [examples]. shadows: losses of other models, [models, examples].
    members: which example was in which of these, of the same shape. Variances are shared by all examples where an
    example has fewer than 16 models of either kind, as the paper does. Raises `ConclaveError` for shapes
    that do not fit, and for an example with fewer than two models with it or without it.
    """
    _check(target, shadows, members, online=True)
    own, others = confidences(target), confidences(shadows)
    shared = min(int(members.sum(axis=0).min()), int((~members).sum(axis=0).min())) < 16
    with_it, without = (_normal(others, each, shared) for each in (members, ~members))
    return np.asarray(_log_normal(own, *with_it) - _log_normal(own, *without))


def lira_offline(target: Floats, shadows: Floats, members: Members) -> Floats:
    """The offline attack's scores [examples]: how many deviations the target is above models without the example.

    Given as `lira`; only models without an example are used for it. Raises as `lira`, for these alone.
    """
    _check(target, shadows, members, online=False)
    shared = int((~members).sum(axis=0).min()) < 16
    mean, deviation = _normal(confidences(shadows), ~members, shared)
    return np.asarray((confidences(target) - mean) / deviation)


def rmia(target: Floats, shadows: Floats, members: Members, *, gamma: float = 1.0, online: bool = True) -> Floats:
    """RMIA's scores [examples]: the share of the other examples z for which ratio(x) / ratio(z) >= gamma, ratio(x) =
    p(x | target) / mean of p(x | shadow model).

    Given as `lira`; the examples themselves are the population. online: the mean is of models with x and without it in
    equal parts; otherwise of those without it alone, moved by `OFFLINE`. Raises as `lira`, and for
    a gamma not above 0.
    """
    if not gamma > 0:
        raise ConclaveError(f"A gamma of {gamma:g} makes no sense. Use 1 or a little more.")
    _check(target, shadows, members, online=online)
    said = np.exp(-shadows)
    without = _mean(said, ~members)
    mean = (_mean(said, members) + without) / 2 if online else ((1 + OFFLINE) * without + 1 - OFFLINE) / 2
    ratios = np.exp(-target) / np.maximum(mean, _SMALLEST)
    # The number of z with ratio(z) <= ratio(x)/gamma, by order: all pairs at once would take examples^2 numbers.
    found = np.searchsorted(np.sort(ratios), ratios / gamma, side="right").astype(np.float64)
    itself = ratios <= ratios / gamma
    return np.asarray((found - itself) / max(1, len(ratios) - 1))


def by_each(losses: Floats, members: Members, attack: Attack) -> tuple[Floats, Members]:
    """Scores and members, both [models * examples], where each model in turn is attacked and the others are its
    shadows.

    losses, members: [models, examples]. Raises as the attack does.
    """
    scores = []
    for place in range(len(losses)):
        others = np.arange(len(losses)) != place
        scores.append(attack(losses[place], losses[others], members[others]))
    return np.concatenate(scores), members.reshape(-1)


def coins(models: int, examples: int, rng: np.random.Generator) -> Members:
    """Which example is in which model, [models, examples]: each example is in half of the models, drawn at random.

    Raises `ConclaveError` for fewer than four models: then an example may have too few of a kind.
    """
    if models < 2 * LEAST_MODELS:
        raise ConclaveError(f"{models} models cannot shadow each other. Train {2 * LEAST_MODELS} or more.")
    return np.asarray(rng.random((models, examples)).argsort(axis=0) < models // 2)


def _check(target: Floats, shadows: Floats, members: Members, *, online: bool) -> None:
    if shadows.ndim != 2 or shadows.shape != members.shape or target.shape != shadows.shape[1:] or not target.size:
        raise ConclaveError(
            f"Losses of {target.shape} examples, of shadow models {shadows.shape} and their members {members.shape} do "
            "not fit. Give [examples], [models, examples] and [models, examples]."
        )
    if not (np.isfinite(target).all() and np.isfinite(shadows).all()):
        raise ConclaveError("A loss is NaN or infinite. Leave out models that diverged.")
    least = int((~members).sum(axis=0).min())
    least = min(least, int(members.sum(axis=0).min())) if online else least
    if least < LEAST_MODELS:
        raise ConclaveError(
            f"An example has only {least} shadow models of a kind; it takes {LEAST_MODELS}. Train more models, with "
            "coins as `coins` draws them."
        )


def _mean(values: Floats, chosen: Members) -> Floats:
    return np.asarray(np.where(chosen, values, 0.0).sum(axis=0) / chosen.sum(axis=0))


def _normal(values: Floats, chosen: Members, shared: bool) -> tuple[Floats, Floats]:
    """Means and deviations [examples] over the chosen models; one deviation for all examples where it is shared."""
    mean = _mean(values, chosen)
    off = np.where(chosen, values - mean, 0.0) ** 2
    if shared:
        deviation = np.full(mean.shape, np.sqrt(off.sum() / max(1, int(chosen.sum()) - len(mean))))
    else:
        deviation = np.sqrt(off.sum(axis=0) / (chosen.sum(axis=0) - 1))
    return mean, np.maximum(deviation, _SMALLEST)


def _log_normal(values: Floats, mean: Floats, deviation: Floats) -> Floats:
    return np.asarray(-(((values - mean) / deviation) ** 2) / 2 - np.log(deviation))
