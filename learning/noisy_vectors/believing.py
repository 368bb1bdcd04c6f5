"""A noisy estimate and what public text expects, each believed as far as the data bears it out.

In the axes of a covariance with variances v, an estimate y of a true value t has known noise, and t is expected near a
multiple of a public value p:

    y_i ~ N(t_i, n_i),    t_i ~ N(a p_i, b w_i),    w = v or w = mean(v)

How much of p carries over, a, how far private text strays from it, b, and whether it strays in proportion to v are not
known. They are integrated out on a grid, weighted by how likely the estimates are under each: with a weak signal the
result is the public value, with a strong one the estimate. Source: hierarchical normal model, Gelman et al., "Bayesian
Data Analysis", section 5.4.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SCALE: Final = (0.8, 0.5)
"""How much of a public difference private text is expected to have, and the standard deviation of that."""

_SCALES: Final = np.linspace(-0.6, 2.2, 57)
_SPREADS: Final = np.geomspace(1e-4, 1, 25)


def believed(estimate: Floats, noise: Floats, expected: Floats, variances: Floats, most: float = 1.0) -> Floats:
    """The posterior mean [values, d] of what was estimated, over all the grid.

    estimate: y, [values, d], in the axes of the variances [d]. noise: n, variances of the estimate, [values, d].
    expected: p, [values, d], zeros where public text says nothing. All values share a and b. most: of b; the
    least is a ten-thousandth of it.
    """
    scales = _SCALES if np.any(expected) else np.zeros(1)
    prior = -((scales - SCALE[0]) ** 2) / (2 * SCALE[1] ** 2)
    total, weight, best = np.zeros_like(estimate), 0.0, -np.inf
    for shape in (variances, np.full_like(variances, variances.mean())):
        for spread in most * _SPREADS:
            wide = spread * shape
            whole = wide + noise
            off = estimate - scales[:, None, None] * expected
            logs = prior - 0.5 * (off**2 / whole).sum(axis=(1, 2)) - 0.5 * np.log(whole).sum()
            if (top := float(logs.max())) > best:
                rescale = np.exp(best - top)
                total, weight, best = total * rescale, weight * rescale, top
            own = np.exp(logs - best)
            toward = estimate - (noise / whole) * off
            total = total + np.tensordot(own, toward, axes=1)
            weight += float(own.sum())
    return np.asarray(total / weight)
