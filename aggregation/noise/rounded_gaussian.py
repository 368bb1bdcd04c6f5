"""A Gaussian rounded to integers, drawn to within 2^-100: one party's share of noise."""

import math
from dataclasses import dataclass

import mpmath  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from aggregation.noise.bins import EXACT, LARGEST_SIGMA, LARGEST_TABLE, Bins, Number, of_mass
from aggregation.noise.stream import NoiseStream
from aggregation.noise.tables import FRACTION, Table, made_once, of_masses, total_variation

SMALLEST_SIGMA = 4.0


@dataclass(frozen=True, slots=True)
class RoundedGaussian:
    """round(N(0, sigma^2)), the noise share of one party: integers, sigma in grid units, each drawn on its own.

    **What a sum of shares costs.** Let g be the density of N(0, s^2) + U with U uniform on [-1/2, 1/2]; then
    g(k) = P(round(N(0, s^2)) = k) for every integer k. Write g_h for the density of N(0, h s^2) + U_1 + ... + U_h, the
    h-fold convolution of g over the reals. g_h(k), at integers k, is the distribution of

        I_h = round(N(0, h s^2) + V),   V = U_1 + ... + U_(h-1) independent of the normal,

    because the h-th uniform is the rounding. For an integer vector x, x + I_h = round(x + N(0, h s^2) + V) is
    post-processing of one exact Gaussian mechanism on x, with variance h s^2, and costs no more than it.

    The sum S_h of h independent rounded normals is the convolution of g over the *integers*, and is within

        d(S_h, I_h) <= sum_(k=1)^(h-1) sum_(m>=1) exp(-2 pi^2 m^2 s^2 k / (k+1))

    of I_h in total variation (`sum_distance`). Proof, by induction over the number k of shares: adding the same
    independent X, one more rounded normal, does not increase a distance, so
    d(S_(k+1), I_(k+1)) <= d(S_k, I_k) + d(I_k + X, I_(k+1)). For an integer n, P(I_k + X = n) is the sum over integers
    y, and P(I_(k+1) = n) the integral over real y, of g_k(y) g(n - y). By Poisson summation they differ by the Fourier
    transforms of that product at 2 pi m, m != 0. Given the uniforms (their sum u in g_k, w in g), the product is
    phi(n - u - w), the normal density of variance (k+1) s^2, times a normal density in y of variance k s^2/(k+1); its
    transform there has modulus at most E[phi(n - u - w)] exp(-2 pi^2 m^2 s^2 k/(k+1)). Summed over n the expectation
    is 1, because w spreads evenly over a unit; half the sum over m != 0 is the claim.

    **What the sampler adds.** `total_variation` bounds the distance of one sample from round(N(0, sigma^2)), given
    uniform words. Up to sigma 16,384 a 128-bit uniform word is compared with the cumulative distribution rounded to 128
    bits; the second 64 bits are drawn only when the first 64 tie, which changes nothing in distribution. Each of 2 r
    thresholds is off by less than 2^-128, and values beyond +-r, r = ceil(13.5 sigma), are moved there.

    Above 16,384 samples come from `Bins`, which ask that f(k) = P(round(N(0, s^2)) = k) falls as a normal density
    does, up to a part c <= 2^-30 of the exponent. With h = 1/(2 s) and x = k/s, f(k) is the density phi(x) / s times
    S(x), the mean of cosh(x u) exp(-u^2/2) over u in [-h, h]. The derivative of log S by x^2/2 is S'(x) / (x S(x)), the
    mean of (u/x) sinh(x u) exp(-u^2/2) over S(x); as 0 <= tanh(z) <= z for z >= 0, it lies between 0 and h^2. So from j
    to k >= j >= 0 the factor S takes back at least 0 and at most h^2 = 1/(4 s^2) < 2^-30 of (k^2 - j^2)/(2 s^2).

    The time of a draw depends a little on its value; do not let an attacker time single draws.

    sigma: from 4 (below, the sum of shares strays from a Gaussian's) to 2^31.
    """

    sigma: float

    def __post_init__(self) -> None:
        if not SMALLEST_SIGMA <= self.sigma <= LARGEST_SIGMA:
            remedy = "fewer levels" if self.sigma > LARGEST_SIGMA else "more levels, or count on fewer shares"
            raise ConclaveError(
                f"Noise of {self.sigma:g} grid units a party cannot be drawn: it must lie between {SMALLEST_SIGMA:g} "
                f"and {LARGEST_SIGMA:,.0f}. Use {remedy}."
            )

    @property
    def variance(self) -> float:
        """Variance of a sample, grid units squared: sigma^2 + 1/12 but for terms of exp(-2 pi^2 sigma^2)."""
        return self.sigma**2 + 1.0 / 12.0

    @property
    def total_variation(self) -> float:
        """Upper bound of the distance between one sample and round(N(0, sigma^2)), given uniform words.

        A table of noise is not made for it: who prices draws nothing.
        """
        if self.sigma > LARGEST_TABLE:
            return _bins(self.sigma).total_variation
        reach = _reach(self.sigma)
        return total_variation(reach, _beyond(self.sigma, reach))

    def sum_distance(self, shares: int) -> float:
        """Upper bound of the distance between the exact sum of `shares` rounded normals and I_shares; see the class."""
        total = 0.0
        for k in range(1, shares):
            first = math.exp(-2.0 * math.pi**2 * self.sigma**2 * k / (k + 1))
            total += first / (1.0 - first)
        return math.nextafter(total * (1.0 + 1e-9), math.inf) if shares > 1 else 0.0

    def sample(self, shape: tuple[int, ...], stream: NoiseStream) -> NDArray[np.int64]:
        """Independent samples of the given shape, grid units."""
        out = np.empty(math.prod(shape), dtype=np.int64)
        _sampler(self.sigma).fill(out, stream)
        return out.reshape(shape)


def _sampler(sigma: float) -> Table | Bins:
    return _table(sigma) if sigma <= LARGEST_TABLE else _bins(sigma)


@made_once
def _bins(sigma: float) -> Bins:
    return of_mass(sigma, lambda k: _mass(sigma, k))


def _mass(sigma: float, k: int) -> Number:
    """P(round(N(0, sigma^2)) = k) to within 2^-370 of itself, by the series of `_masses`."""
    x, square = EXACT.mpf(k) / sigma, 1 / (4 * EXACT.mpf(sigma) ** 2)
    drift = x / (2 * EXACT.mpf(sigma))
    before, now, series, n = EXACT.mpf(0), EXACT.mpf(1), EXACT.mpf(1), 0
    while n < 4 or abs(now) + abs(before) > EXACT.ldexp(series, -EXACT.prec):
        before, now = now, (drift * now - square * before) / (n + 1)
        n += 1
        if n % 2 == 0:
            series += now / (n + 1)
    return EXACT.exp(-x * x / 2) * series / (sigma * EXACT.sqrt(2 * EXACT.pi))


_TAIL = 13.5  # standard deviations: a normal strays further with probability below 2^-135
_NEGLIGIBLE = -200.0  # log2 of the terms left out of a series


@made_once
def _table(sigma: float) -> Table:
    reach = _reach(sigma)
    return of_masses(_beyond(sigma, reach), _masses(sigma, reach))


def _reach(sigma: float) -> int:
    return math.ceil(_TAIL * sigma)


def _beyond(sigma: float, reach: int) -> int:
    """P(X > reach) times 2^FRACTION, to well under 2^-140."""
    with mpmath.workprec(FRACTION + 64):
        tail = mpmath.erfc((reach + mpmath.mpf(0.5)) / (mpmath.mpf(sigma) * mpmath.sqrt(2))) / 2
        return int(mpmath.nint(mpmath.ldexp(tail, FRACTION)))


def _masses(sigma: float, reach: int) -> list[int]:
    """P(X = k) for k = 0 .. reach, times 2^FRACTION, each to well under 2^-140.

    With x = k/sigma and h = 1/(2 sigma), the mass is the integral of the normal density phi over [x - h, x + h], by its
    Taylor series 2 h phi(x) sum_j a_2j / (2j + 1), where a_n = He_n(x) h^n / n! (Hermite polynomials). That sum is the
    mean of cosh(x u) exp(-u^2/2) over u in [-h, h], a power series in (x h)^2 = k^2 / (4 sigma^4) with the coefficients

        c_m = 1/(2m)! sum_i (-h^2/2)^i / (i! (2m + 2i + 1)),

    evaluated by Horner's rule; each of its steps is off by at most two units of the last place. exp(-x^2/2) follows
    from k to k + 1 by two multiplications, each off by at most one unit, so at k by at most (k + 1)^2 units: 2^-219 at
    the largest reach.
    """
    terms = range(_terms(sigma, reach) // 2 + 2)  # of a_2j, and so of both sums
    places = 2 * reach.bit_length()  # that the product with k^2 takes
    with mpmath.workprec(FRACTION + 64):
        s = mpmath.mpf(sigma)

        def fixed(value: object) -> int:
            return int(mpmath.nint(mpmath.ldexp(value, FRACTION)))

        def coefficient(m: int) -> object:
            parts = (mpmath.mpf(-1 / (8 * s * s)) ** i / (mpmath.factorial(i) * (2 * (m + i) + 1)) for i in terms)
            return sum(parts) / mpmath.factorial(2 * m)

        bell, ratio, step = fixed(1), fixed(mpmath.exp(-1 / (2 * s * s))), fixed(mpmath.exp(-1 / (s * s)))
        scale = fixed(1 / (s * mpmath.sqrt(2 * mpmath.pi)))
        square = fixed(mpmath.ldexp(1 / (4 * s**4), places))
        last, *others = (fixed(coefficient(m)) for m in reversed(terms))
    masses = []
    for k in range(reach + 1):
        series, power = last, (k * k * square) >> places
        for each in others:
            series = each + ((series * power) >> FRACTION)
        masses.append((((scale * bell) >> FRACTION) * series) >> FRACTION)
        bell, ratio = (bell * ratio) >> FRACTION, (ratio * step) >> FRACTION
    return masses


def _terms(sigma: float, reach: int) -> int:
    """How many terms of the series leave out less than 2^-200 at every point of the table.

    The a_n are the coefficients of exp(x h t - h^2 t^2 / 2), so |a_n| <= exp(x h t + h^2 t^2 / 2) / t^n for any t > 0.
    """
    h = 0.5 / sigma
    drift = reach / sigma * h
    count = 2
    while True:
        t = (math.sqrt(drift**2 + 4 * h**2 * count) - drift) / (2 * h**2)  # smallest bound
        if (drift * t + (h * t) ** 2 / 2 - count * math.log(t)) / math.log(2) < _NEGLIGIBLE:
            return count + 1
        count += 1
